"""Pulsar's five shedders, by the vectors of their documentation, tests and source."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from magnetar.balance.cluster import Broker, Cluster, Memory, Moved
from magnetar.balance.filters import IsolationPolicy, Policies, Situation
from magnetar.balance.settings import SHEDDERS
from magnetar.balance.shedding.selection import sheddable, throughput
from tests.support.balance import (
    NOW_MS,
    broker,
    bundles,
    cycle,
    moved,
    name_of,
    rates,
    remembering,
    situation,
)

THRESHOLD: dict[str, object] = {"loadBalancerDistributeBundlesEvenlyEnabled": False}
OVERLOAD = {**THRESHOLD, "loadBalancerLoadSheddingStrategy": "OverloadShedder"}
UNIFORM: dict[str, object] = {
    "loadBalancerLoadSheddingStrategy": (
        "org.apache.pulsar.broker.loadbalance.impl.UniformLoadShedder"
    ),
    "maxUnloadPercentage": 0.5,
    "maxUnloadBundleNumPerShedding": 1,
    "minUnloadMessage": 1,
}
AVERAGE: dict[str, object] = {
    "loadBalancerLoadSheddingStrategy": "AvgShedder",
    "loadBalancerLoadPlacementStrategy": "AvgShedder",
    "maxUnloadPercentage": 0.5,
}
TRANSFER: dict[str, object] = {
    "loadBalancerLoadSheddingStrategy": "TransferShedder",
    "loadBalancerHistoryResourcePercentage": 0,
}
TEN = tuple(rates(mib=2 * at) for at in range(1, 11))


def brokers(*usages: float, mib: float = 1000.0) -> list[Broker]:
    return [broker(f"b{at}", cpu, mib=mib) for at, cpu in enumerate(usages, 1)]


def after_cycles(now: Situation, count: int) -> list[list[tuple[int, str]]]:
    """The moves of successive cycles, a minute apart."""
    found = []
    for minute in range(count):
        outcome = cycle(now, minute)
        found.append(moved(outcome))
        now = remembering(now, outcome)
    return found


def test_e1_usage_is_averaged() -> None:
    memory = Memory()
    found = []
    for cpu in (40, 80, 80, 80):
        now = situation([broker("b1", cpu)])
        memory = memory.observe(now.cluster, now.settings)
        found.append(memory.usage["b1"])
    assert found == pytest.approx([0.4, 0.44, 0.476, 0.5084])


@pytest.mark.parametrize(("mib", "count"), [(66.0, 0), (67.0, 1)])
def test_th1_one_broker_above_the_mean(mib: float, count: int) -> None:
    """40/10/10: 15 % of the throughput leave, if that is at least 10 MiB."""
    owned = bundles("b1", [rates(mib=mib / 2)] * 2)
    outcome = cycle(situation(brokers(40, 10, 10, mib=mib), owned, THRESHOLD))
    assert len(outcome.moves) == count
    assert outcome.reason == "mean usage 0.20"


@pytest.mark.parametrize("usages", [(12, 2, 1, 1), (50, 50, 50, 50, 50, 0)])
def test_th2_within_the_threshold(usages: tuple[float, ...]) -> None:
    owned = [
        bundle
        for at, _ in enumerate(usages, 1)
        for bundle in bundles(f"b{at}", [rates(mib=100)] * 2, start=10 * at)
    ]
    assert cycle(situation(brokers(*usages), owned, THRESHOLD)).moves == ()


@pytest.mark.parametrize("lower", [False, True])
def test_th3_an_idle_broker_needs_the_lower_boundary(lower: bool) -> None:
    """Ten at 80, one at 0: 5 % of the busiest one's throughput."""
    owned = [
        bundle
        for at in range(1, 11)
        for bundle in bundles(f"b{at}", [rates(mib=40)] * 20, start=100 * at)
    ]
    settings = {**THRESHOLD, "lowerBoundarySheddingEnabled": lower}
    outcome = cycle(situation(brokers(*[80] * 10, 0), owned, settings))
    assert [move.source for move in outcome.moves] == (["b9", "b9"] if lower else []), (
        "5 % of 1000 MiB by bundles of 40"
    )


@pytest.mark.parametrize(
    ("recent", "chosen"), [((), [10, 9, 8]), ((10, 9), [8, 7, 6, 5])], ids=["all", "two recent"]
)
def test_th4_as_many_as_are_needed(recent: tuple[int, ...], chosen: list[int]) -> None:
    """b1 at 0.999, b2 idle: 49.445 of 110 MiB."""
    owned = bundles("b1", TEN, start=1)
    memory = Memory(moved={name_of(at): Moved(NOW_MS - 1, 0.0) for at in recent})
    now = situation([broker("b1", 99.9, mib=110), broker("b2")], owned, THRESHOLD, memory)
    assert moved(cycle(now)) == [(at, "b2") for at in chosen]


def test_th5_nothing_to_give() -> None:
    owned = bundles("b1", TEN)
    assert cycle(situation([broker("b1", 99, mib=110)], owned, THRESHOLD)).moves == ()
    lonely = situation([broker("b1", 99, mib=1000), broker("b2")], owned[:1], THRESHOLD)
    assert cycle(lonely).moves == ()


@pytest.mark.parametrize(("cpu", "chosen"), [(84, []), (85, [10]), (99, [10, 9])])
def test_overload_begins_at_the_threshold(cpu: float, chosen: list[int]) -> None:
    """(usage - 0.85 + 0.05) of 110 MiB: 5.5, then 20.9."""
    now = situation([broker("b1", cpu, mib=110), broker("b2")], bundles("b1", TEN, 1), OVERLOAD)
    assert moved(cycle(now)) == [(at, "b2") for at in chosen]


@pytest.mark.parametrize(
    ("high", "low", "fires"), [(50_000, 30_000, True), (45_000, 30_000, False)]
)
def test_u1_message_rates_differ(high: float, low: float, fires: bool) -> None:
    owned = bundles("b1", [rates(messages=5000)] * 10)
    ends = [broker("b1", messages=high), broker("b2", messages=low)]
    assert bool(cycle(situation(ends, owned, UNIFORM)).moves) is fires


@pytest.mark.parametrize(("high", "fires"), [(450, True), (400, False)])
def test_u1_throughputs_differ(high: float, fires: bool) -> None:
    owned = bundles("b1", [rates(mib=45)] * 10)
    ends = [broker("b1", mib=high), broker("b2", mib=100)]
    assert bool(cycle(situation(ends, owned, UNIFORM)).moves) is fires


@pytest.mark.parametrize(
    ("rate", "multiple", "source"), [(50, 0, "b2"), (0, 2, "b3"), (50, 2, "b2"), (0, 0, None)]
)
def test_u2_which_broker_gives(rate: float, multiple: float, source: str | None) -> None:
    now = situation(
        [
            broker(f"b{at}", messages=1000 * messages, mib=mib)
            for at, (messages, mib) in enumerate([(50, 50), (60, 60), (70, 70), (10, 80), (20, 10)])
        ],
        [
            bundle
            for at in range(5)
            for bundle in bundles(f"b{at}", [rates(1000 if at else 500, 10)] * 5, start=10 * at)
        ],
        {
            **UNIFORM,
            "loadBalancerMsgRateDifferenceShedderThreshold": rate,
            "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold": multiple,
        },
    )
    assert [move.source for move in cycle(now).moves] == ([source] if source else [])


def test_a1_pairs_from_both_ends() -> None:
    """20, 30, 52, 70, 80: both outer pairs are far apart, 40 points included; 52 is alone."""
    now = situation(brokers(20, 30, 52, 70, 80), settings=AVERAGE)
    assert cycle(now).memory.hits == dict.fromkeys(("b1", "b2", "b4", "b5"), (1, 1))


@pytest.mark.parametrize(("least", "count"), [(1000, 0), (249, 5)])
def test_a2_the_least_rate_worth_moving(least: float, count: int) -> None:
    """Rates 1000 and 500 by half: 250, which the default minimum forbids."""
    settings = {
        **AVERAGE,
        "minUnloadMessage": least,
        "loadBalancerAvgShedderHitCountHighThreshold": 1,
    }
    ends = [broker("b1", 20, messages=500), broker("b2", 80, messages=1000)]
    outcome = cycle(situation(ends, bundles("b2", [rates(50)] * 20), settings))
    assert [move.destination for move in outcome.moves] == ["b1"] * count


@pytest.mark.parametrize(
    ("cpus", "settings", "quiet"),
    [
        ((80, 50, 30), {}, 1),
        (
            (60, 50, 40),
            {
                "loadBalancerAvgShedderLowThreshold": 20,
                "loadBalancerAvgShedderHitCountLowThreshold": 6,
            },
            5,
        ),
    ],
    ids=["A3", "A4"],
)
def test_a3_a4_a_difference_must_last(
    cpus: tuple[float, ...], settings: dict[str, object], quiet: int
) -> None:
    """A3: 50 points for two cycles; A4: 20 points for six. Ten of eleven bundles of 900 fit."""
    now = situation(
        [
            broker(f"b{at}", cpu, messages=messages)
            for at, (cpu, messages) in enumerate(zip(cpus, (20_000, 10_000, 2000), strict=True), 1)
        ],
        bundles("b1", [rates(900)] * 11),
        {**AVERAGE, **settings},
    )
    *before, last = after_cycles(now, quiet + 1)
    assert before == [[]] * quiet
    assert [destination for _, destination in last] == ["b3"] * 10


def transferring(
    usages: list[float], traffic: dict[int, list[float]], settings: dict[str, object]
) -> Situation:
    """Brokers b1.. of a load each, with bundles of so many MB/s; the throughput is their sum."""
    members = []
    owned = []
    for at, usage in enumerate(usages, 1):
        sizes = traffic.get(at, [1.0])
        members.append(broker(f"b{at}", 100 * usage, mib=sum(sizes)))
        owned += bundles(f"b{at}", [rates(mib=size) for size in sizes], start=16 * at)
    return situation(members, owned, {**TRANSFER, **settings})


def last_of(now: Situation, count: int = 4) -> list[tuple[int, str]]:
    *before, last = after_cycles(now, count)
    assert before == [[]] * (count - 1), "it acts at the fourth cycle"
    return last


def test_x1_a_small_deviation() -> None:
    assert last_of(transferring([0.1, 0.2, 0.3], {}, {})) == []


def test_x2_two_pairs() -> None:
    now = transferring([0.02, 0.04, 0.06, 0.80, 0.90], {5: [2.0, 7.0], 4: [2.0, 6.0]}, {})
    assert last_of(now) == [(16 * 5, "b1"), (16 * 4, "b2")]


def test_x3_one_pair_is_enough() -> None:
    traffic = {5: [2.0, 7.0], 4: [2.0, 6.0], 1: [2.0], 2: [2.0], 3: [2.0]}
    now = transferring([0.02, 0.04, 0.06, 0.55, 0.65], traffic, {})
    assert last_of(now) == [(16 * 5, "b1")]


def test_x4_one_overloaded_broker_among_many() -> None:
    """The standard deviation of 100 brokers hides it (#20059)."""
    now = transferring([0.01] * 99 + [1.0], {100: [1.0, 1.0, 1.0]}, {})
    assert last_of(now) == [(1602, "b1")]


def test_x5_bundles_are_swapped_back() -> None:
    """Three large ones for four small ones: loads of 5.05 and 5.05, deviation 0.05."""
    now = transferring(
        [0.1, 10.0],
        {1: [1.0, 2.0, 3.0, 4.0, 5.0], 2: [100.0, 180.0, 220.0, 250.0, 250.0]},
        {},
    )
    assert last_of(now) == [
        (32, "b1"), (33, "b1"), (34, "b1"), (16, "b2"), (17, "b2"), (18, "b2"), (19, "b2"),
    ]  # fmt: skip


def test_transfer_off_swaps_nothing() -> None:
    now = transferring(
        [0.1, 10.0],
        {1: [1.0, 2.0, 3.0, 4.0, 5.0], 2: [100.0, 180.0, 220.0, 250.0, 250.0]},
        {"loadBalancerTransferEnabled": "false"},
    )
    assert [at for at, _ in last_of(now)] == [32, 33]


def test_transfer_waits_for_reports() -> None:
    """A broker without one stops the cycle; a stale one is ignored."""
    now = transferring([0.02, 0.04, 0.06, 0.80, 0.90], {5: [2.0, 7.0], 4: [2.0, 6.0]}, {})
    silent = replace(now.cluster.brokers[2], report=None)
    members = (*now.cluster.brokers[:2], silent, *now.cluster.brokers[3:])
    waiting = replace(now, cluster=Cluster(NOW_MS, members, now.cluster.bundles))
    assert cycle(waiting).reason == "broker b3 has not reported"
    memory = Memory(moved={name_of(1): Moved(NOW_MS - 1000, 1.0, ("b1", "b2"))}, transfer_hits=3)
    moving = replace(now, memory=memory, cluster=Cluster(
        NOW_MS, now.cluster.brokers, (*now.cluster.bundles, *bundles("b1", [rates()], 1))
    ))  # fmt: skip
    assert "has not reported since its last move" in cycle(moving).reason


def test_what_never_leaves() -> None:
    """Heartbeats and system topics, excluded namespaces, pinned bundles, and those without
    traffic (#21214, #23626)."""
    owned = (
        *bundles("b1", [rates(mib=50)], namespace="pulsar/b1:8080"),
        *bundles("b1", [rates(mib=50)], namespace="sla-monitor/b1:8080"),
        *bundles("b1", [rates(mib=50)], namespace="quiet/place"),
        *bundles("b1", [rates(mib=0), rates(mib=30)]),
        replace(bundles("b1", [rates(mib=50)], start=9)[0], pinned=True),
    )
    now = situation(
        [broker("b1", 99, mib=1000), broker("b2")],
        owned,
        {**THRESHOLD, "loadBalancerSheddingExcludedNamespaces": "quiet/place,other/one"},
    )
    assert [bundle.name for _, bundle in sheddable(now, "b1", throughput)] == [name_of(1)]
    assert moved(cycle(now)) == [(1, "b2")]


def test_a_shed_bundle_is_left_alone_for_the_grace_period() -> None:
    """Though its new broker is the busy one by now."""
    owned = bundles("b1", [rates(mib=50)] * 2)
    now = situation([broker("b1", 99, mib=1000), broker("b2")], owned, THRESHOLD)
    first = cycle(now)
    assert len(first.moves) == 2
    arrived = situation(
        [broker("b1"), broker("b2", 99, mib=1000)],
        bundles("b2", [rates(mib=50)] * 2),
        {**THRESHOLD, "loadBalancerHistoryResourcePercentage": 0},
        first.memory,
    )
    assert cycle(arrived, 29).moves == ()
    assert len(cycle(arrived, 31).moves) == 2


def test_isolation_keeps_a_bundle_where_no_other_broker_may_have_it() -> None:
    policies = Policies((IsolationPolicy("only", ("public/.*",), ("b1",)),))
    members = [broker("b1", 99, mib=1000, host="b1"), broker("b2", host="b2")]
    now = situation(members, bundles("b1", TEN), THRESHOLD, policies=policies)
    outcome = cycle(now)
    assert outcome.moves == ()
    assert "isolation leaves no other broker" in outcome.notes[0]


def test_shedding_off() -> None:
    off: dict[str, object] = {"loadBalancerSheddingEnabled": "false"}
    now = situation([broker("b1", 99, mib=110), broker("b2")], bundles("b1", TEN), off)
    assert cycle(now).reason == "shedding is off"


@pytest.mark.parametrize("name", SHEDDERS)
def test_garbage_moves_nothing_and_breaks_nothing(name: str) -> None:
    """Not a number, negative, infinite, missing and stale: by every strategy."""
    bad = float("nan")
    members = [
        broker("b1", bad, messages=-5.0, mib=math.inf),
        broker("b2", -1.0),
        broker("b3", updated_ms=-(10**12)),
        replace(broker("b4"), report=None),
    ]
    owned = bundles("b1", [rates(bad, -1.0), rates(mib=bad)]) + bundles("gone", [rates(1)], 5)
    placement = "AvgShedder" if name == "AvgShedder" else "LeastLongTermMessageRate"
    names = ("loadBalancerLoadSheddingStrategy", "loadBalancerLoadPlacementStrategy")
    now = situation(members, owned, dict(zip(names, (name, placement), strict=True)))
    for outcome in (cycle(now), cycle(remembering(now, cycle(now)), 1)):
        assert {move.source for move in outcome.moves} <= {"", "b1", "gone"}
        assert all(math.isfinite(value) for value in outcome.memory.usage.values())
