"""Secrets, users and the way to TLS of a managed etcd: the decisions."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata import keys
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.brokers.desired import desired, identity_of
from magnetar_operator.builders.etcd_tls import content, pair_of
from magnetar_operator.builders.object import Manifest
from magnetar_operator.engine.planning import Taken
from magnetar_operator.etcd.certificates import make_authority
from magnetar_operator.etcd.roles import ROLES, USERS, Access, Change, Grant, plan_access
from magnetar_operator.etcd.secrets import Lost, Write, plan_secrets, secret_names
from tests.support.samples import DEFAULTS, cluster

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
NAMES = secret_names(cluster())


def made(now_ms: int = NOW_MS) -> dict[str, Manifest | None]:
    """The secrets of a new cluster."""
    return {
        step.manifest["metadata"]["name"]: step.manifest
        for step in writes(plan_secrets(cluster(), {}, now_ms))
    }


def writes(steps: list[Any]) -> list[Write]:
    assert all(isinstance(step, Write) for step in steps), steps
    return steps


SECRETS = made()


def found(**changes: Any) -> dict[str, Manifest | None]:
    """`SECRETS` with some of them changed: data by file, or None = gone."""
    secrets = copy.deepcopy(SECRETS)
    for name, change in changes.items():
        secret = f"main-etcd-{name}"
        if change is None:
            secrets[secret] = None
        else:
            existing = secrets[secret]
            assert existing is not None
            existing["data"] |= change
    return secrets


# --- secrets --------------------------------------------------------------------------------------


def test_a_new_cluster_gets_one_secret_per_kind_of_client() -> None:
    assert [
        f"main-etcd-{part}" for part in ("ca", "server", "operator", "broker", "coordinator", "job")
    ] == NAMES
    assert list(SECRETS) == NAMES
    assert plan_secrets(cluster(), SECRETS, NOW_MS) == []


def test_the_authoritys_key_is_in_its_own_secret_alone_and_outlives_the_cluster() -> None:
    authority = SECRETS["main-etcd-ca"]
    assert authority is not None
    key = pair_of(authority).key
    for name, secret in SECRETS.items():
        assert secret is not None
        assert bool(secret["metadata"].get("ownerReferences")) == (name != "main-etcd-ca")
        held = [content(secret, file) for file in secret["data"]]
        assert (key in held) == (name == "main-etcd-ca")
    mounted = {
        volume["secret"]["secretName"] for volume in all_volumes(cluster()) if "secret" in volume
    }
    assert mounted == {"main-etcd-server", "main-etcd-broker"}


def all_volumes(resource: BrokerCluster) -> list[Manifest]:
    sets = [
        manifest
        for manifest in desired(resource, DEFAULTS, 1, {})
        if manifest["kind"] == "StatefulSet"
    ]
    return [
        volume for manifest in sets for volume in manifest["spec"]["template"]["spec"]["volumes"]
    ]


def test_a_missing_or_damaged_certificate_is_made_again_alone() -> None:
    (again,) = writes(plan_secrets(cluster(), found(job=None), NOW_MS))
    assert (again.manifest["metadata"]["name"], again.why) == ("main-etcd-job", "")
    for damage in ({"tls.key": "eA=="}, {"tls.crt": ""}, {"tls.crt": "%"}):
        (repaired,) = writes(plan_secrets(cluster(), found(broker=damage), NOW_MS))
        assert (repaired.manifest["metadata"]["name"], repaired.renews) == (
            "main-etcd-broker",
            False,
        )
        assert "cannot be read" in repaired.why


def test_a_changed_field_is_corrected_with_the_certificate_kept_and_no_value_shown() -> None:
    secrets = found(broker={"ca.crt": "c2VjcmV0"})
    (step,) = writes(plan_secrets(cluster(), secrets, NOW_MS))
    assert step.why == "data.ca.crt had been changed"
    assert step.manifest == SECRETS["main-etcd-broker"]
    secrets = found()
    broker = secrets["main-etcd-broker"]
    assert broker is not None
    broker["metadata"]["labels"].pop(names.CLUSTER)
    (step,) = writes(plan_secrets(cluster(), secrets, NOW_MS))
    assert step.why.startswith("metadata.labels.")


@given(st.integers(0, 364))
def test_certificates_are_renewed_under_the_same_authority(days: int) -> None:
    steps = writes(plan_secrets(cluster(), SECRETS, NOW_MS + days * DAY_MS))
    assert [step.manifest["metadata"]["name"] for step in steps] == (
        NAMES[1:] if days >= 244 else []
    )
    for step in steps:
        assert step.renews
        assert content(step.manifest, "ca.crt") == content(SECRETS["main-etcd-ca"] or {}, "tls.crt")


def test_no_authority_takes_the_place_of_one_that_is_in_use() -> None:
    """Members that know different authorities could not talk to each other."""
    stranger = make_authority("x", NOW_MS)
    for lost in (
        found(ca=None),
        found(ca={"tls.key": "eA=="}),
        found(ca={"tls.crt": "", "tls.key": ""}),
    ):
        (step,) = plan_secrets(cluster(), lost, NOW_MS)
        assert isinstance(step, Lost)
        assert "main-etcd-ca" in step.message
        assert "main-etcd-server" in step.message
    nothing_left: dict[str, Manifest | None] = dict.fromkeys(NAMES)
    assert len(writes(plan_secrets(cluster(), nothing_left, NOW_MS))) == len(NAMES)
    assert "PRIVATE" not in repr(stranger)


def test_secrets_of_others_are_left_alone() -> None:
    theirs = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "main-etcd-job"},
        "type": "Opaque",
        "data": {},
    }
    (step,) = plan_secrets(cluster(), {**SECRETS, "main-etcd-job": theirs}, NOW_MS)
    assert step == Taken(("Secret", "main-etcd-job"), "")
    (step,) = plan_secrets(
        cluster(), {"main-etcd-ca": {**theirs, "metadata": {"name": "main-etcd-ca"}}}, NOW_MS
    )
    assert step == Taken(("Secret", "main-etcd-ca"), "")


def test_a_new_etcd_knows_nothing_but_tls() -> None:
    children = {identity_of(manifest): manifest for manifest in desired(cluster(), DEFAULTS, 2, {})}
    etcd, brokers = children["StatefulSet", "main-etcd"], children["StatefulSet", "main-broker"]
    command = etcd["spec"]["template"]["spec"]["containers"][0]["command"]
    assert not [
        part
        for part in command
        if "http://" in part and not part.startswith("--listen-metrics-urls")
    ]
    assert "--store-tls" in brokers["spec"]["template"]["spec"]["containers"][0]["args"]


def test_mounted_certificates_are_readable_by_the_pods_user_alone() -> None:
    for volume in all_volumes(cluster()):
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o440
            assert [item["key"] for item in volume["secret"]["items"]] == [
                "ca.crt",
                "tls.crt",
                "tls.key",
            ]


def test_an_external_etcd_is_https_exactly_with_a_secret() -> None:
    for external in (
        {"endpoints": ["https://e:1"]},
        {"endpoints": ["http://e:1"], "tls": {"secretRef": {"name": "x"}}},
    ):
        with pytest.raises(ValueError, match="external: "):
            cluster(etcd={"external": external})


# --- users ----------------------------------------------------------------------------------------


def after(known: Access, changes: list[Change]) -> Access:
    """What etcd knows once `changes` were made; like etcd it keeps one permission per range."""
    roles = {
        role: {(grant.key, grant.end): grant for grant in grants}
        for role, grants in known.roles.items()
    }
    users = {user: set(held) for user, held in known.users.items()}
    for change in changes:
        if change.what == "add_role":
            roles[change.name] = {}
        elif change.what == "add_user":
            users[change.name] = set()
        elif change.what == "add_user_role":
            users[change.name].add(change.role)
        elif change.what == "remove_user_role":
            users[change.name].remove(change.role)
        else:
            assert change.grant is not None
            place = (change.grant.key, change.grant.end)
            if change.what == "grant":
                roles[change.name][place] = change.grant
            else:
                del roles[change.name][place]
    return Access(
        {role: frozenset(grants.values()) for role, grants in roles.items()},
        {u: frozenset(held) for u, held in users.items()},
    )


_ranges = st.sampled_from(
    [
        *(grant for grants in ROLES.values() for grant in grants),
        Grant(b"a", b"b", 2),
        Grant(b"\0", b"\0", 2),
    ]
)
_known = st.builds(
    Access,
    st.dictionaries(
        st.sampled_from([*ROLES, "theirs"]),
        st.lists(_ranges, unique_by=lambda g: (g.key, g.end)).map(frozenset),
    ),
    st.dictionaries(
        st.sampled_from([*USERS, "their-user"]), st.frozensets(st.sampled_from([*ROLES, "root"]))
    ),
)


@given(_known)
def test_from_any_state_one_plan_leads_to_what_is_wanted(known: Access) -> None:
    reached = after(known, plan_access(known))
    assert plan_access(reached) == []
    assert {role: reached.roles[role] for role in ROLES} == ROLES
    assert {user: set(reached.users[user]) for user in USERS} == {
        user: {role} for user, role in USERS.items()
    }
    assert reached.roles.get("theirs") == known.roles.get("theirs")
    assert reached.users.get("their-user") == known.users.get("their-user")


def test_nobody_but_the_operator_may_write_its_term() -> None:
    term = keys.OPERATOR_TERM.encode()
    for role, grants in ROLES.items():
        writes_it = [
            grant
            for grant in grants
            if grant.kind != 0 and grant.key <= term and (grant.end == b"\0" or term < grant.end)
        ]
        assert not writes_it, role
    assert USERS[names.OPERATOR_USER] == "root"
