"""Where bundles are split, when, and when they are merged again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.balance.cluster import Bundle, Memory, Outcome
from magnetar.balance.filters import Situation
from magnetar.balance.load import BundleLoad, History, LoadReport, Rates, TopicLoad
from magnetar.balance.planner import loads
from magnetar.balance.settings import Settings
from magnetar.balance.splitting import (
    MERGES_MAX,
    boundaries,
    flow_or_qps_equally_divide,
    heavy,
    isolate,
    may_split,
    merge,
    split,
    topic_count_equally_divide,
)
from magnetar.errors import InvalidRequest
from magnetar.names import (
    FULL_RANGE_END,
    BundleName,
    NamespaceName,
    bundles_of,
    initial_boundaries,
)
from tests.support.balance import broker, rates, situation

NAMESPACE = NamespaceName("public", "default")
HALF = BundleName(NAMESPACE, 0, 0x80000000)
PULSAR_TOPICS = [
    (0x10000000, 100, 10), (0x15000000, 200, 20), (0x24000000, 300, 30), (0x39000000, 400, 40),
    (0x58000000, 500, 50), (0x76000000, 600, 60),
]  # fmt: skip


def topics(*given: tuple[int, float, float]) -> list[TopicLoad]:
    return [TopicLoad(f"t{at}", at, rates(messages, mib)) for at, messages, mib in given]


def limits(messages: float, mib: float) -> Settings:
    return Settings(bundle_rate_max=messages, bundle_mib_max=mib)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ((0x00, 0x05, 0x10, 0x15, 0x20, 0x25), (0x12,)),
        (tuple(at << 24 for at in (0x10, 0x20, 0x35, 0x65, 0x70, 0x75)), (0x4D000000,)),
        ((0x10, 0x20, 0x30), (0x18,)),
        ((0x10,), ()),
        ((), ()),
        ((0x10, 0x11), (0x10,)),
        ((0, 0), ()),
    ],
    ids=["T1", "T2", "T3", "T4 one", "T4 none", "adjacent", "at the low end"],
)
def test_topic_count(positions: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert topic_count_equally_divide(HALF, positions) == expected


@pytest.mark.parametrize(
    ("given", "settings", "expected"),
    [
        (PULSAR_TOPICS, limits(450, 200), (0x1C800001, 0x2E800001, 0x48800001, 0x67000001)),
        (PULSAR_TOPICS, limits(1900, 90), (0x2E800001, 0x67000001)),
        (PULSAR_TOPICS, limits(1100, 110), (0x48800001,)),
        (
            [
                (at, messages, mib)
                for at, (_, messages, mib) in zip(
                    (10, 20, 80, 90, 100, 110), PULSAR_TOPICS, strict=True
                )
            ],
            limits(1100, 110),
            (96,),
        ),
        ([(10, 100, 0), (20, 394, 0)], limits(450, 200), ()),
        ([(10, 100, 0), (20, 395, 0)], limits(450, 200), (16,)),
        ([(10, 2000, 0), *((at, 50, 0) for at in range(20, 40, 2))], limits(1010, 200), (16,)),
        ([(10, 2000, 0)], limits(1010, 200), ()),
        ([(10, 2000, 0), (20, 0, 0)], limits(1010, 200), ()),
    ],
    ids=["F1", "F2", "F3", "F4", "F5", "above F5", "F6", "one topic", "one busy topic"],
)
def test_flow_or_qps(
    given: list[tuple[int, float, float]], settings: Settings, expected: tuple[int, ...]
) -> None:
    assert flow_or_qps_equally_divide(HALF, topics(*given), settings) == expected


def test_sides_of_topics_are_those_of_the_documentation() -> None:
    """Its boundaries are decimal averages of hexadecimal digits; they part the topics alike."""
    ours = flow_or_qps_equally_divide(HALF, topics(*PULSAR_TOPICS), limits(450, 200))
    printed = (0x19500000, 0x31500000, 0x48500000, 0x67000000)
    for topic, _, _ in PULSAR_TOPICS:
        assert sum(topic >= at for at in ours) == sum(topic >= at for at in printed)


@given(
    st.lists(
        st.tuples(st.integers(0, 0x80000000 - 1), st.floats(0, 1e6), st.floats(0, 1e4)),
        max_size=60,
    ),
    st.floats(1, 1e5),
    st.floats(0.1, 1e4),
)
def test_boundaries_lie_inside(
    given: list[tuple[int, float, float]], messages: float, mib: float
) -> None:
    found = topics(*given)
    for algorithm in (
        "range_equally_divide",
        "topic_count_equally_divide",
        "flow_or_qps_equally_divide",
    ):
        edges = boundaries(HALF, algorithm, found, limits(messages, mib))
        assert all(low < high for low, high in itertools.pairwise((0, *edges, 0x80000000)))
        assert len(edges) < 32


def test_other_algorithms() -> None:
    narrow = BundleName(NAMESPACE, 7, 8)
    assert boundaries(narrow, "range_equally_divide", [], Settings()) == ()
    with pytest.raises(InvalidRequest, match="not for automatic splits"):
        boundaries(HALF, "specified_positions_divide", [], Settings())


def test_isolation_of_a_topic() -> None:
    assert isolate(HALF, 0x1000) == (0x1000, 0x1001)
    assert isolate(HALF, 0) == (1,)
    last = BundleName(NAMESPACE, 0x80000000, FULL_RANGE_END)
    assert isolate(last, FULL_RANGE_END) == (), "it belongs to the last bundle, closed at the top"
    assert isolate(last, FULL_RANGE_END - 1) == (FULL_RANGE_END - 1,)


def layout(*loads: float, settings: dict[str, object] | None = None, **fields: object) -> Situation:
    """A namespace of equal bundles with these message rates on one broker."""
    width = (1 << 32) // len(loads)
    edges = [*(at * width for at in range(len(loads))), FULL_RANGE_END]
    owned = [
        replace(
            Bundle(str(BundleName(NAMESPACE, low, high)), "b1", History.steady(rates(load)), 2),
            **fields,  # type: ignore[arg-type]
        )
        for (low, high), load in zip(itertools.pairwise(edges), loads, strict=True)
    ]
    return situation([broker("b1"), broker("b2")], owned, settings)


def cycles(now: Situation, count: int) -> list[Outcome]:
    found = []
    for _ in range(count):
        found.append(split(now))
        now = replace(now, memory=found[-1].memory)
    return found


@pytest.mark.parametrize(
    ("fields", "load", "reason"),
    [
        ({}, 30_001, "30001 messages/s"),
        ({}, 30_000, None),
        ({"topics": 1001}, 1, "1001 topics"),
        ({"topics": 1000}, 1, None),
        ({"sessions": 1001}, 1, "1001 sessions"),
        ({"topics": 1}, 90_000, None),
        ({"topics": 0}, 90_000, None),
        ({"history": History.steady(rates(mib=101))}, 0, "101 MiB/s"),
        ({"history": None, "topics": 2000}, 0, None),
    ],
)
def test_when_a_bundle_is_split(fields: dict[str, object], load: float, reason: str | None) -> None:
    """At the fourth check in a row; with one topic never (#12527)."""
    *before, last = cycles(layout(load, 0.0, **fields), 4)
    assert all(outcome.splits == () for outcome in before)
    assert {found.reason for found in last.splits} == ({reason} if reason else set())


def test_a_miss_begins_again() -> None:
    hot, cold = layout(40_000), layout(10)
    three = cycles(hot, 3)[-1]
    missed = split(replace(cold, memory=three.memory))
    assert missed.memory.split_hits == {}
    assert split(replace(hot, memory=missed.memory)).splits == ()


def test_limits_of_splits() -> None:
    """Bundles of the namespace, splits of a cycle, neighbours (#16612), narrow ranges (#11937),
    and switched off."""
    now: dict[str, object] = {"loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 0}
    many = split(layout(*[40_000] * 4, settings={**now, "loadBalancerNamespaceMaximumBundles": 4}))
    assert many.splits == ()
    assert len(many.notes) == 4
    room = split(layout(*[40_000] * 4, settings={**now, "loadBalancerNamespaceMaximumBundles": 5}))
    assert len(room.splits) == 1
    alternating = split(layout(*[40_000] * 4, settings=now))
    assert [found.bundle[-21:-11] for found in alternating.splits] == ["0x00000000", "0x80000000"]
    few = {**now, "loadBalancerMaxNumberOfBundlesToSplitPerCycle": 1}
    assert len(split(layout(*[40_000] * 4, settings=few)).splits) == 1
    off = {**now, "loadBalancerAutoBundleSplitEnabled": False}
    assert split(layout(40_000, settings=off)).splits == ()
    narrow = str(BundleName(NAMESPACE, 7, 8))
    assert split(layout(40_000, settings=now, name=narrow)).splits == ()


def test_a_hot_topic_gets_a_bundle_of_its_own() -> None:
    now: dict[str, object] = {"loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 0}
    hot = TopicLoad("persistent://public/default/hot", 0x1234, rates(30_000))
    (found,) = split(layout(40_000, settings=now, hot=(hot,))).splits
    assert found.algorithm == "specified_positions_divide"
    assert found.boundaries == (0x1234, 0x1235)
    assert "hot" in found.reason
    mild = replace(hot, rates=rates(10_000))
    (found,) = split(layout(40_000, settings=now, hot=(mild,))).splits
    assert (found.algorithm, found.boundaries) == ("range_equally_divide", ())


def test_the_planner_splits_what_it_could_not_move() -> None:
    """A bundle that is a large share of a broker, if it is worth it; never by Pulsar's shedders."""
    now: dict[str, object] = {
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 0,
        "loadBalancerLoadSheddingStrategy": "Planner",
    }
    (found,) = split(layout(7000, 7000, settings=now)).splits
    assert (found.algorithm, found.part_max) == ("flow_or_qps_equally_divide", 875.25), "an eighth"
    assert split(layout(80, 80, settings=now)).splits == (), "not worth it"
    assert split(layout(*[7000] * 10, settings=now)).splits == (), "a tenth of the load each"
    modular = {**now, "loadBalancerLoadSheddingStrategy": "ThresholdShedder"}
    assert split(layout(7000, 7000, settings=modular)).splits == ()


COLD: dict[str, object] = {"plannerMergeHits": 0}
"""Settings by which a pair is merged when it is found cold for the first time."""


def cold(*loads: float, settings: dict[str, object] | None = None, **fields: object) -> Situation:
    return layout(*loads, settings={**COLD, **(settings or {})}, **fields)


def test_cold_neighbours_are_merged() -> None:
    """Pairs, each bundle once, down to the least number."""
    merged = [found.merged[-21:] for found in merge(cold(*[10.0] * 8)).merges]
    assert merged == [
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
        "0x80000000_0xc0000000",
        "0xc0000000_0xffffffff",
    ]
    assert len(merge(cold(*[10.0] * 6)).merges) == 2
    assert merge(cold(*[10.0] * 4)).merges == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"pinned": True},
        {"history": None},
        {"topics": 51},
        {"sessions": 51},
        {"history": History.steady(rates(1501))},
        {"history": History.steady(rates(mib=5.1))},
    ],
)
def test_what_is_not_merged(fields: dict[str, object]) -> None:
    assert merge(cold(*[10.0] * 8, **fields)).merges == ()


def test_neighbours_on_different_brokers_are_not_merged() -> None:
    now = cold(*[10.0] * 8)
    owned = tuple(
        replace(bundle, broker=f"b{at % 2}") for at, bundle in enumerate(now.cluster.bundles)
    )
    assert merge(replace(now, cluster=replace(now.cluster, bundles=owned))).merges == ()
    off: dict[str, object] = {"plannerMergeEnabled": "false"}
    assert merge(cold(*[10.0] * 8, settings=off)).merges == ()


@given(st.floats(6001, 29_000))
def test_what_a_split_made_is_not_merged(load: float) -> None:
    """Halves of the lightest bundle that is split at all."""
    halves = [load / 2] * 2
    assert merge(cold(*halves, settings={"plannerMergeBundlesMin": 1})).merges == ()


def test_a_pair_is_merged_once_it_was_cold_for_long() -> None:
    """So what was split lately stays, and one busy check begins the wait again."""
    settings: dict[str, object] = {"plannerMergeHits": 2, "plannerMergeBundlesMin": 1}
    quiet, busy = layout(10.0, 10.0, settings=settings), layout(10.0, 9000.0, settings=settings)
    memory, merged = Memory(), []
    for found in (quiet, quiet, busy, quiet, quiet, quiet):
        outcome = merge(replace(found, memory=memory))
        memory = outcome.memory
        merged.append(len(outcome.merges))
    assert merged == [0, 0, 0, 0, 0, 1]
    assert memory.merge_hits == {}


def test_a_namespace_keeps_the_bundles_it_was_created_with() -> None:
    now = cold(*[10.0] * 8, settings={"plannerMergeBundlesMin": 1})
    policies = replace(now.policies, bundles_min={str(NAMESPACE): 7})
    assert len(merge(replace(now, policies=policies)).merges) == 1
    assert len(merge(now).merges) == 4


def test_few_pairs_are_merged_at_a_time() -> None:
    assert len(merge(cold(*[10.0] * 32)).merges) == MERGES_MAX


def test_what_would_be_split_under_twice_its_load_is_not_merged() -> None:
    """However the conditions of splits are set."""
    planner: dict[str, object] = {
        "loadBalancerLoadSheddingStrategy": "Planner",
        "plannerMergeBundlesMin": 1,
    }
    heavy = [1499.0, 1499.0]
    merged = merge(cold(*heavy, settings={**planner, "plannerSplitShare": 0}))
    assert len(merged.merges) == 1
    assert merge(cold(*heavy, settings=planner)).merges == ()


@given(
    st.lists(st.tuples(st.integers(0, 0xFFFFFFFE), st.floats(0, 20_000)), max_size=12),
    st.sampled_from(["Planner", "ThresholdShedder"]),
    st.sampled_from(["range_equally_divide", "topic_count_equally_divide"]),
)
def test_splits_and_merges_end_under_constant_load(
    loads: list[tuple[int, float]], strategy: str, algorithm: str
) -> None:
    """A bundle that was split does not come back while the load stays, and nor does a boundary that
    a merge has removed: so they end."""
    settings: dict[str, object] = {
        "loadBalancerNamespaceBundleSplitConditionHitCountThreshold": 1,
        "loadBalancerLoadSheddingStrategy": strategy,
        "defaultNamespaceBundleSplitAlgorithm": algorithm,
        "plannerMergeHits": 2,
        "plannerMergeBundlesMin": 1,
    }
    given_topics = [
        TopicLoad(f"persistent://public/default/{at}", position, rates(load))
        for at, (position, load) in enumerate(loads)
    ]
    edges, splitting, merging = set(initial_boundaries(4)), Memory(), Memory()
    parents, removed, quiet = set[str](), set[int](), 0
    for _ in range(300):
        now = _measured(sorted(edges), given_topics, settings)
        splits = split(replace(now, memory=splitting))
        merges = merge(replace(now, memory=merging))
        splitting, merging = splits.memory, merges.memory
        quiet = 0 if splits.splits or merges.merges else quiet + 1
        for chosen in splits.splits:
            name = BundleName.parse(chosen.bundle)
            inside = [topic for topic in given_topics if name.contains_hash(topic.position)]
            fresh = set(
                chosen.boundaries
                or boundaries(name, chosen.algorithm, inside, now.settings)
                or boundaries(name, "range_equally_divide", inside, now.settings)
            )
            assert not fresh & removed, "a merge was undone"
            parents.add(chosen.bundle)
            edges |= fresh
        for pair in merges.merges:
            edge = BundleName.parse(pair.bundles[0]).high
            if edge in edges and not any(chosen.bundle in pair.bundles for chosen in splits.splits):
                assert pair.merged not in parents, "a split was undone"
                removed.add(edge)
                edges.discard(edge)
        if quiet > 4:
            return
    raise AssertionError("splits and merges do not end")


def _measured(
    edges: list[int], given_topics: list[TopicLoad], settings: dict[str, object]
) -> Situation:
    """The bundles between these edges, at one broker, with the topics in each."""
    found = []
    for name in bundles_of(NAMESPACE, edges):
        inside = [topic for topic in given_topics if name.contains_hash(topic.position)]
        total = sum((topic.rates for topic in inside), Rates())
        hot = tuple(sorted(inside, key=lambda topic: -topic.rates.size))
        found.append(
            Bundle(str(name), "b0", History.steady(total), len(inside), len(inside), hot=hot)
        )
    made = situation([broker("b0")], found, settings=settings)
    return replace(made, cluster=replace(made.cluster, bundles=tuple(found)))


@given(st.floats(1, 29_000), st.integers(0, 20), st.floats(0, 10), st.floats(0, 1))
def test_what_the_planner_split_is_not_merged(
    load: float, others: int, ratio: float, share: float
) -> None:
    """Two parts of what it splits, beside others of the namespace, at the same load."""
    planner: dict[str, object] = {
        "loadBalancerLoadSheddingStrategy": "Planner",
        "plannerMergeBundlesMin": 1,
    }
    rest = [ratio * load] * others
    whole = layout(load, *rest, settings=planner)
    parts = cold(share * load, (1 - share) * load, *rest, settings=planner)
    ours = tuple(bundle.name for bundle in parts.cluster.bundles[:2])
    if loads(whole)[0] > heavy(whole, loads(whole)):
        assert ours not in [found.bundles for found in merge(parts).merges]


def test_a_report_says_whether_splits_are_worth_a_look() -> None:
    """Without a bundle beyond a limit, or beyond the least that the planner splits, none is."""
    modular, planner = Settings(), Settings(shedder="Planner")

    def report(load: float, **fields: int) -> LoadReport:
        bundle = BundleLoad(str(HALF), History.steady(rates(load)), **fields)
        return LoadReport("b1", 0, top=(bundle,))

    assert may_split(report(30_001), modular)
    assert not may_split(report(30_000), modular)
    assert may_split(report(30_000), planner)
    assert not may_split(report(80), planner)
    assert may_split(report(80, topics=1001), planner)
    assert not may_split(LoadReport("b1", 0), planner)
