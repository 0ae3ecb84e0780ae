"""Filters and placement strategies, by Pulsar's vectors and rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.balance.cluster import Bundle, Cluster, Memory
from magnetar.balance.filters import IsolationPolicy, Policies, Situation, allowed, candidates, kept
from magnetar.balance.placement import STRATEGIES, place
from magnetar.balance.settings import PLACEMENTS
from magnetar.errors import InvalidRequest
from tests.support.balance import broker, bundles, name_of, rates, situation

NEW = Bundle(name_of(99), topics=5)
ANYWHERE: dict[str, object] = {"loadBalancerDistributeBundlesEvenlyEnabled": "false"}
AVERAGE = {
    "loadBalancerLoadSheddingStrategy": "AvgShedder",
    "loadBalancerLoadPlacementStrategy": "AvgShedder",
}
SEEDS = range(40)


def choices(now: Situation, bundle: Bundle = NEW) -> set[str]:
    """What chance may choose."""
    return {place(bundle, replace(now, seed=seed)).broker for seed in SEEDS}


def rated(*long: float, **cpus: float) -> Situation:
    members = [broker(f"b{at}", cpus.get(f"b{at}", 10)) for at in range(1, len(long) + 1)]
    owned = [
        bundle
        for at, rate in enumerate(long, 1)
        for bundle in bundles(f"b{at}", [rates(rate)], start=at)
    ]
    return situation(members, [*owned, NEW], ANYWHERE)


def test_every_strategy_is_offered_by_name() -> None:
    assert set(STRATEGIES) == set(PLACEMENTS)


def test_l1_the_lowest_long_term_rate() -> None:
    """100/200/300; 400/200/300; the lowest is overloaded; its CPU does not count."""
    assert choices(rated(100, 200, 300)) == {"b1"}
    assert choices(rated(400, 200, 300)) == {"b2"}
    overloaded = rated(400, 200, 300, b2=90)
    assert choices(overloaded) == {"b3"}
    careless = replace(overloaded, settings=replace(overloaded.settings, cpu_weight=0))
    assert choices(careless) == {"b2"}
    assert choices(rated(1, 2, 3, b1=90, b2=90, b3=90)) == {"b1", "b2", "b3"}, "all infinite"


def test_what_is_on_its_way_counts() -> None:
    """And a repeated request gets the same answer."""
    now = rated(100, 200, 300)
    coming = bundles("", [rates(150)], start=50)
    cluster = Cluster(now.cluster.now_ms, now.cluster.brokers, (*now.cluster.bundles, *coming))
    now = replace(now, cluster=cluster)
    first = place(coming[0], now)
    now = replace(now, memory=first.memory)
    assert first.broker == "b1"
    assert place(coming[0], replace(now, seed=7)).reason == "chosen before"
    assert choices(now) == {"b2"}
    arrived = now.memory.observe(
        replace(cluster, bundles=(replace(coming[0], broker="b1"),)), now.settings
    )
    assert arrived.preallocated == {}


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        ((10, 30, 80), {"b1", "b2"}),
        ((40, 40, 40, 40, 69, 70), {"b1", "b2", "b3", "b4", "b5", "b6"}),
    ],
)
def test_l2_usage_below_the_average(usages: tuple[float, ...], expected: set[str]) -> None:
    """The second: none is far enough below, so all are (PIP-364)."""
    members = [broker(f"b{at}", cpu) for at, cpu in enumerate(usages, 1)]
    owned = [bundle for at in range(1, 7) for bundle in bundles(f"b{at}", [rates(1)], start=at)]
    settings = {
        **ANYWHERE,
        "loadBalancerLoadPlacementStrategy": "LeastResourceUsageWithWeight",
    }
    now = situation(members, [*owned, NEW], settings)
    now = replace(now, memory=Memory().observe(now.cluster, now.settings))
    assert choices(now) == expected


def test_round_robin_takes_turns() -> None:
    settings = {**ANYWHERE, "loadBalancerLoadPlacementStrategy": "RoundRobinBrokerSelector"}
    now = situation([broker(f"b{at}") for at in (1, 2, 3)], settings=settings)
    found = []
    for at in range(7):
        placed = place(Bundle(name_of(at)), now)
        now = replace(now, memory=placed.memory)
        found.append(placed.broker)
    assert found == ["b1", "b2", "b3", "b1", "b2", "b3", "b1"]
    wrapped = replace(now, memory=Memory(turn=(1 << 31) - 1))
    assert place(NEW, wrapped).memory.turn == 0


def test_avg_shedder_places_as_it_planned() -> None:
    settings = {**ANYWHERE, **AVERAGE}
    memory = Memory(planned={NEW.name: "b2"})
    now = situation([broker("b1"), broker("b2")], [NEW], settings, memory)
    assert choices(now) == {"b2"}
    gone = replace(now, memory=Memory(planned={NEW.name: "b9"}))
    assert choices(gone) == {"b1", "b2"}


def test_excluded_namespaces_are_placed_round_robin() -> None:
    """PIP-380."""
    settings = {**ANYWHERE, "loadBalancerSheddingExcludedNamespaces": "public/default"}
    now = situation([broker("b1"), broker("b2")], bundles("b1", [rates(9)]), settings)
    assert place(NEW, now).broker == "b1"


def test_no_broker_at_all() -> None:
    now = situation([broker("b1", draining=True)])
    assert place(NEW, now).broker == ""
    assert place(NEW, situation([])).broker == ""


ISOLATION = Policies(
    (
        IsolationPolicy("first", ("tenant/a.*",), ("p[12]",), ("s1",), primaries_min=2),
        IsolationPolicy("second", ("tenant/.*",), ("q1",)),
    )
)


def isolated(*alive: str, **cpus: float) -> Situation:
    members = [broker(name, cpus.get(name, 0.0), host=name) for name in alive]
    return situation(members, policies=ISOLATION)


@pytest.mark.parametrize(
    ("alive", "namespace", "expected"),
    [
        (("p1", "p2", "q1", "s1", "x1"), "tenant/a1", ("p1", "p2")),
        (("p1", "q1", "s1", "x1"), "tenant/a1", ("p1", "s1")),
        (("q1", "s1", "x1"), "tenant/a1", ("s1",)),
        (("q1", "x1"), "tenant/a1", ()),
        (("p1", "p2", "q1", "x1"), "tenant/b", ("q1",)),
        (("p1", "p2", "q1", "s1", "x1"), "other/a1", ("s1", "x1")),
        (("p1", "p2", "q1"), "other/a1", ()),
    ],
)
def test_isolation(alive: tuple[str, ...], namespace: str, expected: tuple[str, ...]) -> None:
    """The first policy that matches; secondaries fill up; others have what is no policy's primary."""
    assert allowed(isolated(*alive), namespace) == expected


def test_a_primary_above_the_threshold_is_not_available() -> None:
    now = isolated("p1", "p2", "s1", p2=80)
    assert allowed(now, "tenant/a1") == ("p1", "p2")
    first = replace(ISOLATION.isolation[0], usage_max_percent=75.0)
    now = replace(now, policies=Policies((first,)))
    assert allowed(now, "tenant/a1") == ("p1", "p2", "s1")


def test_no_secondaries_without_a_minimum() -> None:
    policy = replace(ISOLATION.isolation[0], primaries_min=0)
    now = replace(isolated("s1", "x1"), policies=Policies((policy,)))
    assert allowed(now, "tenant/a1") == ()


def test_a_broken_expression() -> None:
    policy = IsolationPolicy("broken", ("(",), ("b1",))
    with pytest.raises(InvalidRequest, match="broken"):
        policy.check()
    ISOLATION.isolation[0].check()
    now = situation([broker("b1", host="b1")], policies=Policies((policy,)))
    assert allowed(now, "a/b") == (), "a broker of that policy is not shared"


def test_too_many_topics() -> None:
    """Unless all have too many; what is on its way counts."""
    limit = {**ANYWHERE, "loadBalancerBrokerMaxTopics": 100}
    members = [broker("b1", topics=101), broker("b2", topics=98), broker("b3", topics=100)]
    now = situation(members, [NEW], limit)
    assert candidates(now, NEW).names == ("b2", "b3")
    coming = replace(now, memory=Memory(preallocated={NEW.name: "b2"}))
    assert candidates(coming, NEW).names == ("b3",)
    full = situation([broker("b1", topics=101), broker("b2", topics=102)], (), limit)
    assert candidates(full, NEW).names == ("b1", "b2")


GROUP = Policies(groups={f"g/{at}": "Apart" if at % 2 else "apart" for at in range(9)})


def apart(*owners: str, **settings: object) -> Situation:
    """Namespace g/0, g/1... on these brokers; two domains."""
    members = [
        broker("b1", domain="east"), broker("b2", domain="east"), broker("b3", domain="west"),
        broker("b4"),
    ]  # fmt: skip
    owned = [
        bundle
        for at, owner in enumerate(owners)
        for bundle in bundles(owner, [rates(1)] * 2, namespace=f"g/{at}")
    ]
    return situation(members, owned, {**ANYWHERE, **settings}, policies=GROUP)


def test_anti_affinity_keeps_namespaces_apart() -> None:
    new = Bundle(name_of(1, "g/8"))
    assert candidates(apart("b1", "b2"), new).names == ("b3", "b4")
    assert candidates(apart("b1", "b2", "b3", "b4", "b4"), new).names == ("b1", "b2", "b3")
    domains = {"failureDomainsEnabled": True}
    assert candidates(apart("b1", "b4", **domains), new).names == ("b3",)
    assert candidates(apart("b1", "b3", "b4", **domains), new).names == ("b2",), (
        "all domains are equal: the broker without one of the group"
    )


@pytest.mark.parametrize(
    ("owners", "stays"),
    [(("b1",), False), (("b1", "b2", "b3", "b4"), True), (("b1", "b2", "b3", "b4", "b1"), False)],
)
def test_anti_affinity_of_what_is_shed(owners: tuple[str, ...], stays: bool) -> None:
    now = apart(*owners)
    assert (kept(now, now.cluster.bundles[0]) is not None) is stays


def test_even_bundles_of_a_namespace() -> None:
    """On by default; always for the system's namespace."""
    owned = (*bundles("b1", [rates(1)] * 2), *bundles("b2", [rates(900)], start=5))
    members = [broker("b1"), broker("b2")]
    assert choices(situation(members, [*owned, NEW])) == {"b2"}
    assert choices(situation(members, [*owned, NEW], ANYWHERE)) == {"b1"}
    system = Bundle(name_of(7, "pulsar/system"))
    now = situation(members, bundles("b1", [rates(1)], namespace="pulsar/system"), ANYWHERE)
    assert choices(now, system) == {"b2"}


def test_newest_version() -> None:
    members = [
        broker("b1", version="1.9.0"), broker("b2", version="1.10.0"), broker("b3", version="1.10"),
    ]  # fmt: skip
    newest = {**ANYWHERE, "preferLaterVersions": "true"}
    assert candidates(situation(members, (), newest), NEW).names == ("b2",)
    assert candidates(situation(members, (), ANYWHERE), NEW).names == ("b1", "b2", "b3")


def test_an_overloaded_choice_is_made_again_without_filters() -> None:
    """The even-count filter would leave the hot broker only (#8492)."""
    owned = (*bundles("b1", [rates(9)]), *bundles("b2", [rates(9)] * 2, start=5))
    now = situation([broker("b1", 95), broker("b2", 10)], [*owned, NEW])
    assert choices(now) == {"b2"}
