"""How pods know who their clients are, and each other.

Owns: the document that says so, its ConfigMap, the secret of the cluster's own key, what a secret
of a token key must hold, and how pods mount these. Imports: builders.object, resources, names,
magnetar.security. Pure. Invariants: no ConfigMap, argument or template holds a key or anything that
follows from one; processes follow the mounted files, so that another role or key changes no
template; everything is in one volume, whose content changes at once.
"""

from __future__ import annotations

import base64
from typing import Any

import yaml

from magnetar.errors import InvalidRequest
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.security import Auth, SecretEntry
from magnetar.security.keys import key_lines, secret_key, secret_keys
from magnetar.security.passwords import Passwords
from magnetar.security.signatures import public_key
from magnetar_operator import names
from magnetar_operator.brokers.internal_rotation import InternalKeys
from magnetar_operator.builders.client_tls import AUTHORITY_PATH
from magnetar_operator.builders.etcd_tls import READABLE_BY_GROUP, content
from magnetar_operator.builders.object import Manifest, cluster_object
from magnetar_operator.etcd.rotation import Phase

PATH = "/etc/magnetar/security"
VOLUME = "security"
DOCUMENT, INTERNAL_KEY, TOKEN_KEY = "security.yaml", "internal.key", "token.key"
USERS = "users"
ROTATION = "rotation"
ANYBODY = "anonymous"
"""Role of every client of a cluster without authentication."""


def is_secured(cluster: BrokerCluster) -> bool:
    """Whether the cluster's processes need to know each other."""
    return cluster.spec.auth is not None or cluster.spec.tls is not None


# --- the document ---------------------------------------------------------------------------------


def security_document(cluster: BrokerCluster, *, authority: bool) -> dict[str, Any]:
    """What `--security` gets. `authority`: the certificate's secret has the authority that other
    processes' certificates are checked against."""
    auth = cluster.spec.auth or Auth(anonymous_role=ANYBODY, authorization=False)
    authentication: dict[str, Any] = {
        "anonymousRole": auth.anonymous_role,
        "tls": auth.client_certificates,
    }
    if auth.tokens is not None:
        kind = "secretKeyFile" if auth.tokens.secret_key is not None else "publicKeyFile"
        authentication["token"] = {
            kind: f"{PATH}/{TOKEN_KEY}", "roleClaim": auth.tokens.role_claim, "audience": auth.tokens.audience,
        }  # fmt: skip
    if auth.users is not None:
        authentication["basic"] = {"usersFile": f"{PATH}/{USERS}"}
    return {
        "authentication": authentication,
        "authorization": {
            "enabled": auth.authorization,
            "superUserRoles": list(auth.super_user_roles),
            "proxyRoles": list(auth.proxy_roles),
            "openMetrics": auth.open_metrics,
        },
        "internal": {
            "keyFile": f"{PATH}/{INTERNAL_KEY}",
            "caFile": AUTHORITY_PATH if authority else "",
        },
    }


def security_config(cluster: BrokerCluster, *, authority: bool) -> list[Manifest]:
    """The ConfigMap with the document; none for a cluster that is without authentication."""
    if not is_secured(cluster):
        return []
    config = cluster_object("v1", "ConfigMap", cluster, names.security(cluster.name), names.BROKER)
    text = yaml.safe_dump(
        security_document(cluster, authority=authority), sort_keys=False, allow_unicode=True
    )
    return [config | {"data": {DOCUMENT: text}}]


def knows_authority(config: Manifest | None) -> bool:
    """Whether the document of an earlier pass names the authority."""
    return config is not None and AUTHORITY_PATH in config.get("data", {}).get(DOCUMENT, "")


# --- keys -----------------------------------------------------------------------------------------


def internal_secret(cluster: BrokerCluster, keys: InternalKeys) -> Manifest:
    """The key by which the cluster's processes know each other, and what a rotation has beside
    it."""
    secret = cluster_object(
        "v1", "Secret", cluster, names.internal_secret(cluster.name), names.BROKER
    )
    secret["metadata"]["annotations"] = {names.KEY_ID: keys.id}
    data = {INTERNAL_KEY: keys.keys[0] if len(keys.keys) == 1 else key_lines(keys.keys)}
    if keys.phase is not Phase.NONE:
        data[ROTATION] = f"{keys.phase} {keys.since_ms}".encode()
    return secret | {
        "type": "Opaque",
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }


def internal_keys(secret: Manifest) -> InternalKeys | None:
    """None if the secret holds no usable one."""
    try:
        keys = tuple(key.secret for key in secret_keys(INTERNAL_KEY, content(secret, INTERNAL_KEY)))
    except InvalidRequest:
        return None
    phase, _, since = content(secret, ROTATION).decode(errors="replace").partition(" ")
    if phase not in {*Phase} or not since.isdigit() or len(keys) == 1:
        return InternalKeys(keys[:1])
    return InternalKeys(keys[:2], Phase(phase), int(since))


def token_entry(cluster: BrokerCluster) -> SecretEntry | None:
    """Where the key is by which tokens are checked."""
    tokens = cluster.spec.auth.tokens if cluster.spec.auth is not None else None
    return (tokens.secret_key or tokens.public_key) if tokens is not None else None


def token_key_problem(cluster: BrokerCluster, secret: Manifest) -> str:
    """Why an existing secret will not do; "" if it will, or tokens are not used."""
    entry = token_entry(cluster)
    if entry is None:
        return ""
    key = content(secret, entry.key)
    if not key:
        return (
            f"secret {entry.name} has no {entry.key}; add it, or name the right entry in "
            "spec.auth.tokens"
        )
    assert cluster.spec.auth is not None
    assert cluster.spec.auth.tokens is not None
    loads = secret_key if cluster.spec.auth.tokens.secret_key is not None else public_key
    try:
        loads(f"secret {entry.name}: {entry.key}", key)
    except InvalidRequest as error:
        return str(error)
    return ""


def users_entry(cluster: BrokerCluster) -> SecretEntry | None:
    """Where users and the hashes of their passwords are."""
    return cluster.spec.auth.users if cluster.spec.auth is not None else None


def users_problem(cluster: BrokerCluster, secret: Manifest) -> str:
    """Why an existing secret will not do; "" if it will, or there are no users."""
    entry = users_entry(cluster)
    if entry is None:
        return ""
    try:
        Passwords(content(secret, entry.key))
    except InvalidRequest as error:
        return f"secret {entry.name}, entry {entry.key}: {error}"
    return ""


# --- pods -----------------------------------------------------------------------------------------


def security_arguments(cluster: BrokerCluster) -> list[str]:
    return ["--security", f"{PATH}/{DOCUMENT}"] if is_secured(cluster) else []


def security_volumes(cluster: BrokerCluster) -> list[Manifest]:
    """Nothing is optional: a process that cannot know who comes must not start."""
    if not is_secured(cluster):
        return []
    sources: list[Manifest] = [
        {
            "configMap": {
                "name": names.security(cluster.name),
                "items": [{"key": DOCUMENT, "path": DOCUMENT}],
            }
        },
        {
            "secret": {
                "name": names.internal_secret(cluster.name),
                "items": [{"key": INTERNAL_KEY, "path": INTERNAL_KEY}],
            }
        },
    ]
    entry = token_entry(cluster)
    if entry is not None:
        sources.append(
            {"secret": {"name": entry.name, "items": [{"key": entry.key, "path": TOKEN_KEY}]}}
        )
    users = users_entry(cluster)
    if users is not None:
        sources.append(
            {"secret": {"name": users.name, "items": [{"key": users.key, "path": USERS}]}}
        )
    return [{"name": VOLUME, "projected": {"defaultMode": READABLE_BY_GROUP, "sources": sources}}]


def security_mounts(cluster: BrokerCluster) -> list[Manifest]:
    return [{"name": VOLUME, "mountPath": PATH, "readOnly": True}] if is_secured(cluster) else []
