"""Faults of Pulsar's load balancing that users reported, each by its number."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from magnetar.balance.cluster import Bundle, Cluster, Memory
from magnetar.balance.load import History
from magnetar.balance.placement import place
from magnetar.balance.planner import plan
from magnetar.balance.splitting import split
from tests.support.balance import (
    NOW_MS,
    broker,
    bundles,
    cycle,
    name_of,
    rates,
    remembering,
    situation,
)

ANYWHERE: dict[str, object] = {"loadBalancerDistributeBundlesEvenlyEnabled": False}
PLANNER = {**ANYWHERE, "loadBalancerLoadSheddingStrategy": "Planner"}
AVERAGE = {
    **ANYWHERE,
    "loadBalancerLoadSheddingStrategy": "AvgShedder",
    "loadBalancerLoadPlacementStrategy": "AvgShedder",
}


def test_20822_a_shed_bundle_does_not_return_to_its_source() -> None:
    """The broker with the highest usage has the lowest message rate (#18100)."""
    owned = (*bundles("b1", [rates(1, 50)] * 2), *bundles("b2", [rates(900)], start=5))
    now = situation([broker("b1", 99, mib=1000), broker("b2")], owned, ANYWHERE)
    outcome = cycle(replace(now, settings=replace(now.settings, overloaded_percent=100)))
    assert outcome.moves == ()
    assert "placement chose the broker that it leaves" in outcome.notes[0]


def test_bundles_of_one_cycle_do_not_pile_up() -> None:
    """Each choice counts in the next one."""
    members = [broker("b1", 90, mib=1000), *(broker(f"b{at}", 5) for at in range(2, 6))]
    now = situation(members, bundles("b1", [rates(mib=25)] * 40), ANYWHERE)
    counts = Counter(move.destination for move in cycle(now).moves)
    assert len(counts) == 4
    assert max(counts.values()) - min(counts.values()) <= 1


def test_18173_shedding_ends_when_the_load_is_even() -> None:
    """Averages lag and shed on; the planner predicts by what each bundle brings."""
    now = situation([broker("b1"), broker("b2")], bundles("b1", [rates(100)] * 10), PLANNER)
    first = cycle(now)
    to = {move.bundle: move.destination for move in first.moves}
    owned = tuple(
        replace(bundle, broker=to.get(bundle.name, bundle.broker)) for bundle in now.cluster.bundles
    )
    after = replace(now, cluster=Cluster(NOW_MS, now.cluster.brokers, owned))
    assert len(first.moves) == 5
    assert all(cycle(remembering(after, first), minute).moves == () for minute in range(60))


def test_16059_8492_counts_do_not_override_load() -> None:
    """Eight hot bundles among many cold ones: each broker gets two."""
    cold = [
        bundle for at in range(4) for bundle in bundles(f"b{at}", [rates(1)] * 20, start=100 * at)
    ]
    hot = bundles("b0", [rates(10_000)] * 8, start=900)
    outcome = plan(situation([broker(f"b{at}") for at in range(4)], [*cold, *hot], PLANNER))
    heavy = {bundle.name for bundle in hot}
    assert Counter(move.destination for move in outcome.moves if move.bundle in heavy) == {
        "b1": 2,
        "b2": 2,
        "b3": 2,
    }


def test_26246_a_plan_is_known_by_the_name_of_its_bundle() -> None:
    """Its load has changed since; and a destination that is overloaded by now is given up."""
    bundle = Bundle(name_of(1), "", History.steady(rates(10)))
    memory = Memory(planned={bundle.name: "b2"})
    members = [broker("b1"), broker("b2"), broker("b3", 90)]
    now = situation(members, [replace(bundle, history=History.steady(rates(99)))], AVERAGE, memory)
    assert place(bundle, now).broker == "b2"
    overloaded = situation([broker("b1"), broker("b2", 90)], [bundle], AVERAGE, memory)
    assert {place(bundle, replace(overloaded, seed=seed)).broker for seed in range(40)} == {"b1"}


def test_25518_bundles_of_different_namespaces_are_different() -> None:
    memory = Memory(planned={name_of(1, "a/b"): "b2"})
    now = situation([broker("b1"), broker("b2")], (), AVERAGE, memory)
    other = Bundle(name_of(1, "a/c"))
    assert len({place(other, replace(now, seed=seed)).broker for seed in range(40)}) == 2


def test_13119_memory_outlives_a_leader() -> None:
    """The next leader continues with the averages and counts of the former one."""
    now = situation([broker("b1", 80), broker("b2", 20)], settings=AVERAGE)
    memory = cycle(now).memory
    assert Memory.decode(memory.encode()) == memory
    assert memory.usage == {"b1": 0.8, "b2": 0.2}
    assert memory.hits == {"b1": (1, 1), "b2": (1, 1)}


def test_7065_a_split_is_not_repeated_from_the_same_statistics() -> None:
    hot = replace(bundles("b1", [rates(90_000)])[0], name="a/b/0x00000000_0xffffffff")
    now = situation([broker("b1"), broker("b2")], [hot])
    found = []
    for _ in range(8):
        outcome = split(now)
        now = remembering(now, outcome)
        found.append(len(outcome.splits))
    assert found == [0, 0, 0, 1, 0, 0, 0, 1]


def test_21299_a_minimum_that_stops_shedding_is_named() -> None:
    settings = {**ANYWHERE, "loadBalancerLoadSheddingStrategy": "UniformLoadShedder"}
    ends = [broker("b1", messages=900), broker("b2", messages=300)]
    outcome = cycle(situation(ends, bundles("b1", [rates(90)] * 10), settings))
    assert outcome.moves == ()
    assert outcome.reason == "message rate: the difference is not worth a move"


def test_17456_ten_at_eighty_and_one_idle() -> None:
    """By the planner in one plan; ThresholdShedder does nothing (vector TH3)."""
    owned = [
        bundle
        for at in range(10)
        for bundle in bundles(f"b{at}", [rates(800)] * 20, start=100 * at)
    ]
    members = [*(broker(f"b{at}", 80) for at in range(10)), broker("idle")]
    moves = plan(situation(members, owned, PLANNER)).moves
    assert {move.destination for move in moves} == {"idle"}
    assert 17 <= len(moves) <= 19
