"""Client security as pods see it: mounts, configuration, changes that restart nobody, and keys
that will not do."""

from __future__ import annotations

import argparse
import copy
from base64 import b64encode
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from magnetar.cli import serving
from magnetar.errors import InvalidRequest
from magnetar.resources import API_VERSION, parse_manifest
from magnetar.resources.broker_cluster import BrokerClusterStatus
from magnetar.security.document import parse_document
from magnetar_operator.brokers.client_security import SeenSecurity, judge
from magnetar_operator.brokers.desired import Identity, desired, identity_of
from magnetar_operator.brokers.internal_rotation import InternalKeys, advanced
from magnetar_operator.brokers.previewing import preview
from magnetar_operator.builders.security import DOCUMENT, internal_keys, internal_secret
from magnetar_operator.conditions import Reason
from magnetar_operator.engine.planning import plan, sealed
from magnetar_operator.etcd.rotation import SETTLE_MS, Phase
from magnetar_operator.pods.rolling import BrokerPod, RollPlan, held, plan_roll
from tests.support.pod_templates import AUTH, arguments, templates
from tests.support.samples import DEFAULTS, cluster


def made(**spec: Any) -> dict[Identity, dict[str, Any]]:
    return {identity_of(found): found for found in desired(cluster(**spec), DEFAULTS, 2, {})}


def document(**spec: Any) -> dict[str, Any]:
    found = made(**spec)["ConfigMap", "main-security"]["data"]
    assert list(found) == [DOCUMENT]
    parse_document(found[DOCUMENT])  # a process takes it
    parsed: dict[str, Any] = yaml.safe_load(found[DOCUMENT])
    return parsed


def secret(**entries: bytes) -> dict[str, Any]:
    data = {
        name.replace("_", "."): b64encode(content).decode() for name, content in entries.items()
    }
    return {"metadata": {"name": "s"}, "type": "Opaque", "data": data}


# --- what pods get --------------------------------------------------------------------------------


def test_a_cluster_without_security_is_as_it_was() -> None:
    """No object, volume or argument more: an upgrade of the operator restarts nobody."""
    assert ("ConfigMap", "main-security") not in made()
    for template in templates().values():
        given = arguments(template)
        assert "--security" not in given
        assert "security" not in {volume["name"] for volume in template["spec"]["volumes"]}


@pytest.mark.parametrize("component", ["broker", "coordinator"])
def test_keys_are_mounted_and_nothing_of_them_is_in_a_template(component: str) -> None:
    """One volume for what belongs together; nothing in it is optional, so that no process starts
    without knowing who comes."""
    template = templates(auth=AUTH)[component]
    assert arguments(template)["--security"] == "/etc/magnetar/security/security.yaml"
    (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "security"]
    sources = volume["projected"]["sources"]
    assert sources == [
        {
            "configMap": {
                "name": "main-security",
                "items": [{"key": "security.yaml", "path": "security.yaml"}],
            }
        },
        {
            "secret": {
                "name": "main-internal",
                "items": [{"key": "internal.key", "path": "internal.key"}],
            }
        },
        {"secret": {"name": "tokens", "items": [{"key": "secret.key", "path": "token.key"}]}},
    ]
    assert volume["projected"]["defaultMode"] == 0o440
    (mount,) = [
        mount
        for mount in template["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == "security"
    ]
    assert mount == {"name": "security", "mountPath": "/etc/magnetar/security", "readOnly": True}


@pytest.mark.parametrize("component", ["broker", "coordinator"])
def test_processes_take_the_arguments_that_their_pods_give(
    component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image's own command line parses them."""
    taken: list[argparse.Namespace] = []
    monkeypatch.setattr(serving, f"_{component}", taken.append)
    serving.serve(templates(auth=AUTH)[component]["spec"]["containers"][0]["args"][1:])
    assert taken[0].security == "/etc/magnetar/security/security.yaml"


def test_roles_change_the_document_and_no_template() -> None:
    """They reach processes through the file that they follow."""
    more = {
        **AUTH,
        "superUserRoles": ["admin", "root"],
        "proxyRoles": ["proxy"],
        "authorization": False,
        "anonymousRole": "guest",
    }
    assert templates(auth=AUTH) == templates(auth=more)
    assert document(auth=AUTH) == {
        "authentication": {
            "anonymousRole": "",
            "tls": False,
            "token": {
                "secretKeyFile": "/etc/magnetar/security/token.key",
                "roleClaim": "sub",
                "audience": "shop",
            },
        },
        "authorization": {
            "enabled": True,
            "superUserRoles": ["admin"],
            "proxyRoles": [],
            "openMetrics": True,
        },
        "internal": {"keyFile": "/etc/magnetar/security/internal.key", "caFile": ""},
    }
    changed = document(auth=more)
    assert changed["authorization"] == {
        "enabled": False, "superUserRoles": ["admin", "root"], "proxyRoles": ["proxy"], "openMetrics": True,
    }  # fmt: skip
    assert changed["authentication"]["anonymousRole"] == "guest"
    public = document(
        auth={"tokens": {"publicKey": {"name": "tokens", "key": "p"}, "roleClaim": "role"}}
    )["authentication"]["token"]
    assert public == {
        "publicKeyFile": "/etc/magnetar/security/token.key",
        "roleClaim": "role",
        "audience": "",
    }


def test_a_preview_shows_what_restarts_and_what_does_not() -> None:
    """`magnetar plan`: switching it on rolls; another role changes one ConfigMap."""
    status = {"brokers": [{"name": "main-broker-0", "phase": "Ready"}]}
    opened, closed, more = (
        cluster(**spec).model_copy(update={"status": BrokerClusterStatus.model_validate(status)})
        for spec in ({}, {"auth": AUTH}, {"auth": {**AUTH, "superUserRoles": ["admin", "root"]}})
    )
    assert preview(opened, closed).restarts == (("main-broker-0", "Template"),)
    change = preview(closed, more)
    assert change.restarts == ()
    assert [(item.action, item.kind, item.name) for item in change.objects] == [
        ("update", "ConfigMap", "main-security")
    ]


def test_planning_against_what_was_just_applied_yields_nothing() -> None:
    observed = {name: copy.deepcopy(sealed(item)) for name, item in made(auth=AUTH).items()}
    assert plan(desired(cluster(auth=AUTH), DEFAULTS, 2, observed), observed, "u-1") == []


def test_the_clusters_own_key_is_kept_while_it_will_do() -> None:
    kept = internal_secret(cluster(auth=AUTH), InternalKeys((bytes(range(32)),)))
    assert internal_keys(kept) == InternalKeys((bytes(range(32)),))
    assert kept["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    for data in (
        {},
        {"internal.key": ""},
        {"internal.key": b64encode(b"short").decode()},
        {"internal.key": "%"},
    ):
        assert internal_keys({**kept, "data": data}) is None


def test_its_rotation_is_one_request_and_neighbouring_phases_know_each_other() -> None:
    """Through the secret at each step, as another operator would go on; a phase lasts until
    every kubelet has brought it."""
    first, second, now_ms, reasons = b"1" * 32, b"2" * 32, 1_000_000, []
    keys = InternalKeys((first,))
    requested = keys.id
    assert advanced(keys, "another", now_ms, lambda: second) == (keys, "")
    for phase in (Phase.TRUSTING, Phase.ISSUING, Phase.NONE):
        before = keys
        keys, why = advanced(keys, requested, now_ms, lambda: second)
        reasons.append(why)
        assert keys.phase is phase
        assert keys.keys[0] in before.keys, "what signs now was believed before"
        assert before.keys[0] in keys.keys or phase is Phase.NONE, (
            "what signed before is believed now"
        )
        assert internal_keys(internal_secret(cluster(auth=AUTH), keys)) == keys
        assert advanced(keys, requested, now_ms + SETTLE_MS - 1, lambda: b"3" * 32) == (keys, "")
        now_ms += SETTLE_MS
    assert keys == InternalKeys((second,))
    assert advanced(keys, requested, now_ms, lambda: b"3" * 32) == (keys, ""), (
        "the request is over with the key that it named"
    )
    assert all(reasons)


# --- what secrets must hold -----------------------------------------------------------------------


def public_key(encoding: serialization.Encoding) -> bytes:
    return (
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


@pytest.mark.parametrize(
    ("tokens", "content", "said"),
    [
        ("secretKey", b"x" * 32, ""),
        ("secretKey", b"data:;base64," + b64encode(b"x" * 32) + b"\n", ""),
        ("secretKey", b"x" * 31, "has 31 bytes, fewer than 32"),
        ("secretKey", b"data:;base64," + b64encode(b"x" * 31), "has 31 bytes, fewer than 32"),
        ("secretKey", b"data:;base64,*", "is not data:;base64"),
        ("secretKey", b"", "has no k; add it"),
        (
            "secretKey",
            public_key(serialization.Encoding.PEM),
            "everybody who knows a public key could sign tokens",
        ),
        ("publicKey", public_key(serialization.Encoding.PEM), ""),
        ("publicKey", public_key(serialization.Encoding.DER), ""),
        ("publicKey", b"x" * 32, "holds no public key in PEM or DER"),
    ],
)
def test_a_token_key_that_will_not_do_is_named_before_a_process_meets_it(
    tokens: str, content: bytes, said: str
) -> None:
    found = judge(
        cluster(auth={"tokens": {tokens: {"name": "s", "key": "k"}}}), None, secret(k=content), 0
    ).blocking
    assert [problem.reason for problem in found] == ([Reason.TOKEN_KEY_MISSING] if said else [])
    assert all(said in problem.message for problem in found)
    assert judge(cluster(auth={"anonymousRole": "guest"}), None, None, 0) == SeenSecurity(), (
        "nobody shows tokens"
    )


def test_nobody_is_restarted_while_a_key_is_missing() -> None:
    """A pod that were restarted now would not come back: even a sick one is left alone."""
    (problem,) = judge(cluster(auth=AUTH), None, None, 0).blocking
    assert problem.message.startswith("secret tokens does not exist. Make the secret")
    outdated = plan_roll(
        [BrokerPod("main-broker-0", "old", ready=False, terminating=False)], "new", 1, scaling=False
    )
    assert outdated.restart == "main-broker-0"
    assert held(outdated, [problem]) == RollPlan(
        "", outdated.pending, f"the end of this: {problem.message}"
    )
    assert held(outdated, ()) == outdated


def test_what_is_said_of_a_key_holds_nothing_of_it() -> None:
    (problem,) = judge(cluster(auth=AUTH), None, secret(secret_key=b"hush-hush"), 0).blocking
    assert "fewer than 32" in problem.message
    assert "hush" not in problem.message


# --- what a spec may say --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"auth": {}}, "no client would be admitted"),
        ({"auth": {"tokens": {}}}, "set exactly one of secretKey and publicKey"),
        (
            {
                "auth": {
                    "tokens": {
                        "secretKey": {"name": "a", "key": "b"},
                        "publicKey": {"name": "a", "key": "c"},
                    }
                }
            },
            "set exactly one of secretKey and publicKey",
        ),
        ({"auth": {**AUTH, "anonymousRole": "admin"}}, "which lets every client do everything"),
        ({"auth": {**AUTH, "proxyRoles": ["admin"]}}, "a proxy needs no rights of its own"),
        ({"auth": {**AUTH, "superUserRoles": [""]}}, "superUserRoles"),
    ],
)
def test_security_that_cannot_be_meant_is_refused(spec: dict[str, Any], said: str) -> None:
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
        "spec": spec,
    }
    with pytest.raises(InvalidRequest) as refused:
        parse_manifest(manifest)
    assert said in str(refused.value)


USERS = {"users": {"name": "people", "key": "htpasswd"}}


def test_users_are_mounted_beside_the_document() -> None:
    found = document(auth=USERS)
    assert found["authentication"]["basic"] == {"usersFile": "/etc/magnetar/security/users"}
    for template in templates(auth=USERS).values():
        (volume,) = [one for one in template["spec"]["volumes"] if one["name"] == "security"]
        assert {
            "secret": {"name": "people", "items": [{"key": "htpasswd", "path": "users"}]}
        } in volume["projected"]["sources"]


@pytest.mark.parametrize(
    ("users", "said"),
    [
        (None, "secret people does not exist"),
        (secret(other=b""), "0 users"),
        (secret(htpasswd=b"alice:plain"), "line 1"),
        (secret(htpasswd=b"alice:$1$saltsalt$NuzA7WTAelpl95xgBGWN60"), ""),
    ],
)
def test_users_that_will_not_do_are_named(users: dict[str, Any] | None, said: str) -> None:
    found = judge(cluster(auth=USERS), None, None, 0, users=users)
    assert bool(found.blocking) == bool(said)
    for problem in found.blocking:
        assert problem.reason is Reason.TOKEN_KEY_MISSING
        assert said in problem.message
        assert "plain" not in problem.message
