"""Stored policies as decisions read them, and the picture of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.balance.load import BundleLoad, History, LoadReport, Rates
from magnetar.broker.bundles.balancing.picture import Sight
from magnetar.broker.bundles.balancing.policies import (
    domains,
    isolation_policies,
    isolation_policy,
    zones,
)
from magnetar.errors import InvalidRequest
from magnetar.hosting.views import Viewed
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    DocumentsRecord,
    IncarnationRecord,
    NamespaceRecord,
)

PULSARS = {
    "namespaces": ["public/.*"],
    "primary": ["broker-[01]"],
    "secondary": ["broker-2"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}


def test_pulsars_isolation_policy_is_read() -> None:
    found = isolation_policy("p", PULSARS)
    assert (found.namespaces, found.primary) == (("public/.*",), ("broker-[01]",))
    assert (found.secondary, found.primaries_min, found.usage_max_percent) == (("broker-2",), 1, 80)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"primary": ["("]}, "not a regular expression"),
        ({"primary": "broker"}, "primary"),
        ({"auto_failover_policy": {"policy_type": "other"}}, "policy_type"),
        (
            {"auto_failover_policy": {"parameters": {"min_limit": "many"}}},
            "parameters.min_limit",
        ),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        isolation_policy("p", PULSARS | change)
    assert isolation_policies({"p": PULSARS | change, "q": PULSARS})[0].name == "q"


def test_failure_domains_are_read_by_broker() -> None:
    stored = {"zone-a": {"brokers": ["a:8080", "b:8080"]}, "zone-b": {"brokers": ["c"]}, "bad": 1}
    assert domains(stored) == {"a:8080": "zone-a", "b:8080": "zone-a", "c": "zone-b"}


def _incarnation(broker: str, started_ms: int = 1, **fields: Any) -> Viewed[IncarnationRecord]:
    return Viewed(
        IncarnationRecord(
            broker, "pulsar://x", f"http://{broker}:8080", started_ms, "1.0", **fields
        ),
        1,
    )


def _bundle(number: int, state: BundleState, owner: str = "", **fields: Any) -> tuple[str, Any]:
    name = f"public/default/0x{number:08x}_0x{number + 1:08x}"
    return name, Viewed(BundleRecord(state, 2, owner, **fields), 1)


def test_zones_are_read_by_broker() -> None:
    stored = {"a": {"pod": "1", "zone": "west"}, "b": {"pod": "2", "zone": ""}, "bad": 1}
    assert zones(stored) == {"a": "west"}


def test_a_picture_shows_who_takes_bundles_and_what_may_move() -> None:
    """By name of the broker; draining brokers and their bundles take no part in a plan. A failure
    domain that was registered wins over the zone of the broker's node."""
    bundles = dict(
        [
            _bundle(0, BundleState.OWNED, "a.1"),
            _bundle(1, BundleState.OWNED, "a.1", pinned_until_ms=10_000),
            _bundle(2, BundleState.RELEASING, "a.1", destination="b.1"),
            _bundle(3, BundleState.OWNED, "draining.1"),
            _bundle(4, BundleState.OWNED, "dead.1"),
            _bundle(5, BundleState.FREE),
            _bundle(6, BundleState.DELETED),
        ]
    )
    names = list(bundles)
    load = BundleLoad(names[4], History.steady(Rates(7.0)))
    group = NamespaceRecord((0, 1), {"anti_affinity": "g"})
    sight = Sight(
        5000,
        frozenset({"a.1", "b.1"}),
        {
            "a.1": _incarnation("a"),
            "b.1": _incarnation("b"),
            "draining.1": _incarnation("draining", draining=True),
        },
        bundles,
        {"public/default": Viewed(group, 1)},
        {
            "failureDomains/standalone": Viewed(DocumentsRecord({"z": {"brokers": ["a:8080"]}}), 1),
            "nodeZones/standalone": Viewed(
                DocumentsRecord({name: {"pod": name, "zone": "west"} for name in "ab"}), 1
            ),
            "namespaceIsolationPolicies/standalone": Viewed(DocumentsRecord({"p": PULSARS}), 1),
        },
        {"a.1": LoadReport("a", 4000)},
        (LoadReport("dead", 3000, top=(load,)),),
    )
    picture = sight.picture(frozenset({names[4]}))
    assert picture.incarnations == {"a": "a.1", "b": "b.1"}
    shown = {bundle.name: (bundle.broker, bundle.pinned) for bundle in picture.cluster.bundles}
    assert shown == {
        names[0]: ("a", False),
        names[1]: ("a", True),
        names[2]: ("b", True),
        names[4]: ("", False),
    }
    assert picture.cluster.bundle[names[4]].level.messages_in == 7.0
    assert [(broker.host, broker.domain) for broker in picture.cluster.brokers] == [
        ("a", "z"),
        ("b", "west"),
    ]
    assert picture.policies.group("public/default") == "g"
    assert picture.policies.isolating("public/default") is not None
    everything = sight.picture().cluster.bundle
    assert everything[names[3]].broker == "draining"
    assert everything[names[5]].broker == ""
    assert names[6] not in everything
