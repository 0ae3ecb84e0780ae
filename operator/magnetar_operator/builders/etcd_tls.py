"""Who has which certificate for etcd.

Owns: the subjects of a managed etcd's certificates, the secrets that hold them, and how pods mount
one. Imports: builders.object, certificates, names. Pure. Invariants: the authority's key is in one
secret, which no pod mounts and which outlives the cluster, as its volumes do; every other secret
goes with the cluster; a secret carries no hash of its content.
"""

from __future__ import annotations

import base64
import binascii

from magnetar.names import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object, uses_etcd_tls
from magnetar_operator.etcd.certificates import Pair, Subject
from magnetar_operator.etcd.rotation import Authorities

MEMBERS_MAX = 3
MEMBER = "member"
"""Common name of the members. There is no such user: a member's certificate reads and writes
nothing, and no other is taken for a member's."""
UPCOMING_CERTIFICATE, UPCOMING_KEY, FORMER_CERTIFICATE, ROTATION = (
    "upcoming.crt",
    "upcoming.key",
    "former.crt",
    "rotation",
)
"""What the authority's secret holds besides its pair while it is rotated; the last one stays:
number of rotations, and when files last changed."""
READABLE_BY_GROUP = 0o440
"""The pods' fsGroup makes the files theirs."""


def subjects(cluster: BrokerCluster) -> dict[str, Subject]:
    """By the secret's component: the members' certificate, and one per kind of client, whose
    common name is its user in etcd."""
    service, namespace = names.etcd_set(cluster.name), cluster.namespace
    hosts = [service, *(f"{service}-{ordinal}.{service}" for ordinal in range(MEMBERS_MAX))]
    reached = [
        f"{host}.{namespace}.{domain}" for host in hosts for domain in ("svc", "svc.cluster.local")
    ]
    members = Subject(MEMBER, ("localhost", "127.0.0.1", f"{service}.{namespace}", *reached))
    return {names.ETCD_MEMBERS: members} | {user: Subject(user) for user in names.ETCD_USERS}


def authority_secret(cluster: BrokerCluster, authorities: Authorities) -> Manifest:
    secret = cluster_object(
        "v1", "Secret", cluster, names.etcd_authority(cluster.name), names.ETCD, owned=False
    )
    data = {CERTIFICATE_FILE: authorities.current.certificate, KEY_FILE: authorities.current.key}
    if authorities.upcoming is not None:
        data |= {
            UPCOMING_CERTIFICATE: authorities.upcoming.certificate,
            UPCOMING_KEY: authorities.upcoming.key,
        }
    if authorities.former:
        data[FORMER_CERTIFICATE] = authorities.former
    if authorities.number:
        data[ROTATION] = f"{authorities.number} {authorities.since_ms}".encode()
    return secret | {"type": "kubernetes.io/tls", "data": _encoded(data)}


def authorities_of(secret: Manifest) -> Authorities:
    """What the authority's secret holds."""
    upcoming = Pair(content(secret, UPCOMING_CERTIFICATE), content(secret, UPCOMING_KEY))
    former = content(secret, FORMER_CERTIFICATE)
    numbers = [
        int(part) if part.isdigit() else 0
        for part in content(secret, ROTATION).decode(errors="replace").split()
    ]
    number, since_ms = (
        numbers if len(numbers) == 2 else (int(bool(former or upcoming.certificate)), 0)
    )
    return Authorities(
        pair_of(secret), number, since_ms, upcoming if upcoming.certificate else None, former
    )


def leaf_secret(cluster: BrokerCluster, component: str, authority: bytes, leaf: Pair) -> Manifest:
    secret = cluster_object(
        "v1", "Secret", cluster, names.etcd_secret(cluster.name, component), names.ETCD
    )
    data = {AUTHORITY_FILE: authority, CERTIFICATE_FILE: leaf.certificate, KEY_FILE: leaf.key}
    return secret | {"type": "kubernetes.io/tls", "data": _encoded(data)}


def _encoded(data: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


def content(secret: Manifest, name: str) -> bytes:
    """One file of a secret; b"" if it is missing or malformed."""
    try:
        return base64.b64decode(secret.get("data", {}).get(name, "") or "", validate=True)
    except (binascii.Error, ValueError):
        return b""


def pair_of(secret: Manifest) -> Pair:
    return Pair(content(secret, CERTIFICATE_FILE), content(secret, KEY_FILE))


def client_secret(cluster: BrokerCluster, user: str) -> str:
    """Name of the secret that a client of the cluster's etcd uses; "" = no TLS. An external etcd
    has one certificate for all."""
    if not uses_etcd_tls(cluster):
        return ""
    external = cluster.spec.etcd.external
    if external is not None:
        return external.tls.secret_ref.name if external.tls is not None else ""
    return names.etcd_secret(cluster.name, user)


def secret_volume(name: str, secret: str) -> Manifest:
    """A volume with the three files and nothing else that the secret may hold."""
    items = [{"key": file, "path": file} for file in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)]
    return {
        "name": name,
        "secret": {"secretName": secret, "defaultMode": READABLE_BY_GROUP, "items": items},
    }


def client_volumes(cluster: BrokerCluster, user: str) -> list[Manifest]:
    """The volume with the client certificate of `user`, if the cluster's etcd wants one."""
    secret = client_secret(cluster, user)
    return [secret_volume(names.ETCD_TLS_VOLUME, secret)] if secret else []


def client_mounts(cluster: BrokerCluster, user: str) -> list[Manifest]:
    if not client_secret(cluster, user):
        return []
    return [{"name": names.ETCD_TLS_VOLUME, "mountPath": names.ETCD_TLS_PATH, "readOnly": True}]


def client_arguments(cluster: BrokerCluster, user: str) -> list[str]:
    """What a process gets beside --store."""
    return ["--store-tls", names.ETCD_TLS_PATH] if client_secret(cluster, user) else []
