"""The planner: what no plan does, whatever the cluster, and what every plan reaches."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from magnetar.balance.cluster import ARRIVAL_MS, Broker, Bundle, Cluster, Memory, Moved, Outcome
from magnetar.balance.filters import IsolationPolicy, Policies, Situation
from magnetar.balance.load import BundleLoad, History, LoadReport, Rates, Resource
from magnetar.balance.placement import place
from magnetar.balance.planner import REPEAT_MS, capacities, cost, loads, plan
from magnetar.balance.rebalance import Problem, rebalance
from magnetar.balance.settings import Settings
from tests.support.balance import MINUTE_MS, NOW_MS, broker, bundles, name_of, rates, situation

PLANNER: dict[str, object] = {
    "loadBalancerLoadSheddingStrategy": "Planner",
    "loadBalancerLoadPlacementStrategy": "Planner",
}
LONG_MS = 60 * MINUTE_MS


def applied(now: Situation, outcome: Outcome, later_ms: int = 0) -> Situation:
    """The cluster after all moves, and what is remembered."""
    to = {move.bundle: move.destination for move in outcome.moves}
    cluster = now.cluster
    moved = tuple(
        replace(bundle, broker=to.get(bundle.name, bundle.broker)) for bundle in cluster.bundles
    )
    after = Cluster(cluster.now_ms + later_ms, cluster.brokers, moved)
    return replace(now, cluster=after, memory=outcome.memory)


def fills(now: Situation) -> dict[str, float]:
    """Load for capacity by broker that takes bundles."""
    found = {broker.name: 0.0 for broker in now.cluster.brokers if not broker.draining}
    known, capacity = loads(now), capacities(now)
    for bundle, load in zip(now.cluster.bundles, known, strict=True):
        if bundle.broker in found:
            found[bundle.broker] += load / capacity[bundle.broker]
    return found


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Any cluster: draining brokers, unequal ones, orphans, pins, isolation, few moves."""
    count = draw(st.integers(1, 8))
    members = [
        broker(
            f"b{at}",
            cpu=draw(st.sampled_from([0.0, 50.0])),
            draining=draw(st.sampled_from([False, False, False, True])),
            host=draw(st.sampled_from(["left", "right"])),
        )
        for at in range(count)
    ]
    if draw(st.booleans()):
        members = [
            replace(
                item,
                report=item.report
                and replace(item.report, cpu=Resource(0, draw(st.sampled_from([100.0, 400.0])))),
            )
            for item in members
        ]
    owners = st.sampled_from([*(item.name for item in members), "", "gone"])
    load = st.one_of(st.floats(0, 1e4), st.sampled_from([0.0, 100.0]))
    owned = [
        Bundle(
            name_of(at, draw(st.sampled_from(["a/b", "left/b"]))),
            draw(owners),
            draw(st.one_of(st.none(), load.map(lambda rate: History.steady(rates(rate))))),
            pinned=draw(st.sampled_from([False, False, False, True])),
        )
        for at in range(draw(st.integers(0, 40)))
    ]
    policies = Policies()
    if draw(st.booleans()):
        policies = Policies((IsolationPolicy("left", ("left/.*",), ("left",)),))
    limits: dict[str, object] = {"plannerMovesMax": draw(st.sampled_from([1, 3, 1000]))}
    return situation(members, owned, {**PLANNER, **limits}, policies=policies)


@given(situations())
@profile(max_examples=100)
def test_no_plan_goes_where_it_must_not(now: Situation) -> None:
    """Never to a draining or unknown broker, nor against isolation; never more moves than the
    limit; no bundle twice; a pinned bundle stays unless its broker goes."""
    outcome = plan(now)
    brokers = now.cluster.by_name
    assert len({move.bundle for move in outcome.moves}) == len(outcome.moves)
    with_source = [move for move in outcome.moves if move.source in brokers]
    assert len(with_source) <= now.settings.moves_max
    for move in outcome.moves:
        destination = brokers[move.destination]
        assert not destination.draining
        assert move.source != move.destination
        isolated = bool(now.policies.isolation)
        left = move.bundle.startswith("left/")
        assert not isolated or left == (destination.host == "left")
        bundle = now.cluster.bundle[move.bundle]
        source = brokers.get(move.source)
        if bundle.pinned and source is not None and not source.draining:
            assert isolated
            assert left != (source.host == "left")


@given(situations())
@profile(max_examples=60)
def test_two_plans_on_equal_input_are_equal(now: Situation) -> None:
    mixed = replace(
        now,
        cluster=Cluster(NOW_MS, tuple(reversed(now.cluster.brokers)), now.cluster.bundles),
    )
    assert plan(now) == plan(mixed)


@given(situations())
@profile(max_examples=100)
def test_moves_never_raise_the_highest_load(now: Situation) -> None:
    """Beyond what orphans, drains and isolation force: those are placed first."""
    now = replace(now, policies=Policies())
    candidates = [item.name for item in now.cluster.brokers if not item.draining]
    settled = tuple(item for item in now.cluster.bundles if item.broker in candidates)
    now = replace(now, cluster=Cluster(NOW_MS, now.cluster.brokers, settled))
    before, after = fills(now), fills(applied(now, plan(now)))
    assert max(after.values(), default=0) <= max(before.values(), default=0) * (1 + 1e-9)


@given(situations())
@profile(max_examples=60)
def test_repeated_application_settles(now: Situation) -> None:
    """Even without any memory of former moves: no bundle goes back and forth."""
    now = replace(now, settings=replace(now.settings, grace_minutes=0, moves_max=1000))
    for _ in range(12):
        outcome = plan(now)
        if not outcome.moves:
            break
        now = applied(now, outcome, LONG_MS)
        now = replace(
            now,
            cluster=replace(
                now.cluster,
                brokers=tuple(
                    replace(item, report=item.report and replace(
                        item.report, updated_ms=now.cluster.now_ms))
                    for item in now.cluster.brokers
                ),
            ),
        )  # fmt: skip
    else:
        pytest.fail(f"still moving: {outcome}")


@given(st.integers(2, 10), st.integers(1, 10), st.floats(0, 1e5))
def test_a_balanced_cluster_has_an_empty_plan(count: int, each: int, load: float) -> None:
    members = [broker(f"b{at}") for at in range(count)]
    owned = [
        bundle
        for at in range(count)
        for bundle in bundles(f"b{at}", [rates(load)] * each, start=100 * at)
    ]
    assert plan(situation(members, owned, PLANNER)).moves == ()


@given(
    st.lists(st.lists(st.floats(0.1, 1e4), min_size=0, max_size=12), min_size=1, max_size=6),
    st.integers(1, 3),
)
@profile(max_examples=100)
def test_an_idle_broker_is_never_left_idle(owned: list[list[float]], idle: int) -> None:
    """While any other has two bundles: no such start is a fixed point (#18215, #17456, #22321)."""
    members = [broker(f"b{at}") for at in range(len(owned) + idle)]
    found = [
        bundle
        for at, sizes in enumerate(owned)
        for bundle in bundles(f"b{at}", [rates(size) for size in sizes], start=100 * at)
    ]
    outcome = plan(situation(members, found, PLANNER))
    assert bool(outcome.moves) or all(len(sizes) < 2 for sizes in owned)


def test_an_idle_cluster_is_spread_by_count() -> None:
    members = [broker(f"b{at}") for at in range(3)]
    now = situation(members, bundles("b0", [rates()] * 9), PLANNER)
    after = applied(now, plan(now))
    assert Counter(bundle.broker for bundle in after.cluster.bundles) == dict.fromkeys(
        ("b0", "b1", "b2"), 3
    )


def test_a_larger_broker_gets_more() -> None:
    """Capacity is the scarcest of the limits that every broker reports."""
    members = [
        Broker(name, LoadReport(name, NOW_MS, Resource(0, cpu), bandwidth_in=Resource(0, limit)))
        for name, cpu, limit in [("b1", 400, 100), ("b2", 400, 300), ("b3", 800, 0)]
    ]
    now = situation(members, bundles("b1", [rates(100)] * 60), PLANNER)
    after = applied(now, plan(now))
    counts = Counter(bundle.broker for bundle in after.cluster.bundles)
    assert (counts["b1"], counts["b2"], counts["b3"]) == (15, 15, 30)


def test_orphans_go_where_load_is_lowest_in_the_same_plan() -> None:
    """A crash: the heaviest first, and not all of them to one broker (#13136)."""
    members = [broker(f"b{at}") for at in range(4)]
    alive = [
        bundle for at in range(4) for bundle in bundles(f"b{at}", [rates(100)] * 10, start=100 * at)
    ]
    orphans = bundles("dead", [rates(300), *[rates(100)] * 9], start=900)
    now = situation(members, [*alive, *orphans], PLANNER)
    outcome = plan(now)
    assert {move.bundle for move in outcome.moves} == {bundle.name for bundle in orphans}
    spread = Counter(move.destination for move in outcome.moves)
    assert sorted(spread.values()) == [1, 3, 3, 3]


def test_a_draining_broker_is_emptied() -> None:
    members = [broker("b1", draining=True), broker("b2"), broker("b3")]
    now = situation(members, bundles("b1", [rates(100)] * 10), PLANNER)
    after = applied(now, plan(now))
    assert Counter(bundle.broker for bundle in after.cluster.bundles) == {"b2": 5, "b3": 5}


def test_a_bundle_is_not_moved_twice_unless_its_load_changes() -> None:
    settings = {**PLANNER, "plannerBundleCost": 1}
    owned = bundles("b1", [rates(100), rates(100)])
    recent = {bundle.name: Moved(NOW_MS - 1, 101.0) for bundle in owned}
    now = situation([broker("b1"), broker("b2")], owned, settings, Memory(moved=recent))
    assert plan(now).moves == ()
    changed = (replace(owned[0], history=History.steady(rates(150))), owned[1])
    now = situation([broker("b1"), broker("b2")], changed, settings, Memory(moved=recent))
    assert [move.bundle for move in plan(now).moves] == [owned[0].name]


def test_bundles_that_moved_move_again_rather_than_leave_a_broker_too_full() -> None:
    """Each waits after its move, and twice as long after the next one; where moving it again would
    lower no broker by more than the trigger band, it stays for the grace period."""
    owned = (*bundles("b1", [rates(320), rates(50)]), *bundles("b2", [rates(280)], start=9))
    hot, other = owned[0].name, owned[1].name
    members = [broker("b1"), broker("b2")]

    def plan_after(age_ms: int, times: int, owned: tuple[Bundle, ...] = owned) -> list[str]:
        now = situation(members, owned, PLANNER)
        moved = {
            bundle.name: Moved(NOW_MS - age_ms, load, times=times)
            for bundle, load in zip(owned, loads(now), strict=True)
        }
        return [move.bundle for move in plan(replace(now, memory=Memory(moved=moved))).moves]

    assert plan_after(REPEAT_MS - 1, 1) == []
    assert plan_after(REPEAT_MS, 1) == [other]
    assert plan_after(2 * REPEAT_MS - 1, 2) == []
    assert plan_after(2 * REPEAT_MS, 2) == [other]
    alone = (owned[0], *bundles("b2", [rates(140)] * 2, start=9))
    assert hot not in plan_after(100 * REPEAT_MS, 1, alone)
    assert plan_after(100 * REPEAT_MS, 1, alone) == []


def test_a_bundle_counts_how_often_it_moved() -> None:
    owned = bundles("b1", [rates(100), rates(100)])
    moved = {bundle.name: Moved(NOW_MS - 8 * REPEAT_MS, 102.0, times=3) for bundle in owned}
    outcome = plan(situation([broker("b1"), broker("b2")], owned, PLANNER, Memory(moved=moved)))
    assert [outcome.memory.moved[move.bundle].times for move in outcome.moves] == [4]


def test_an_unmeasured_bundle_counts_with_its_share_of_the_rest() -> None:
    """Reports name the top bundles only. What has moved since is not shared out among the rest."""
    named = bundles("b1", [rates(400)])
    top = (BundleLoad(named[0].name, History.steady(rates(400))),)
    rest = tuple(Bundle(name_of(at), "b1") for at in (7, 8, 9))
    orphan = Bundle(name_of(10))
    now = situation([broker("b1", messages=1000, top=top)], [*named, *rest, orphan])
    assert loads(now) == pytest.approx([402, 200, 200, 200, 2])
    moved = (replace(named[0], broker="b2"), *named[1:])
    now = situation([broker("b1", messages=1000, top=top), broker("b2")], [*moved, *rest])
    assert loads(now) == pytest.approx([402, 200, 200, 200])


def test_cost_counts_bytes() -> None:
    now = situation([])
    assert cost(Rates(10, 20, 4096, 8192), now.settings) == pytest.approx(35)


def test_a_broker_over_the_threshold_is_not_filled_up() -> None:
    """Its rates are low, but something else uses its processor."""
    members = [broker("b1"), broker("b2", cpu=95), broker("b3")]
    now = situation(members, bundles("b1", [rates(100)] * 10), PLANNER)
    assert {move.destination for move in plan(now).moves} == {"b3"}


def test_one_placement_is_as_the_plan_would_do() -> None:
    owned = (*bundles("b1", [rates(100)]), *bundles("b2", [rates(50)], start=9))
    new = Bundle(name_of(20))
    settings = {**PLANNER, "loadBalancerDistributeBundlesEvenlyEnabled": "false"}
    now = situation([broker("b1"), broker("b2")], [*owned, new], settings)
    assert place(new, now).broker == "b2"
    assert [move.destination for move in plan(now).moves] == ["b2"]


def test_moves_under_way_are_not_planned_again() -> None:
    """The next plan counts them as arrived, so it does not move others as well."""
    owned = bundles("b0", [rates(100 + at % 37) for at in range(200)])
    now = situation([broker(f"b{at}") for at in range(5)], owned, PLANNER)
    first = plan(now)
    assert len(first.moves) > 100
    assert plan(replace(now, memory=first.memory)).moves == ()


def test_a_move_that_fails_is_forgotten() -> None:
    """At once if the host says so, otherwise after a while: the bundle may move again."""
    now = situation([broker("b1"), broker("b2")], bundles("b1", [rates(99)] * 2), PLANNER)
    first = plan(now)
    waiting = replace(now, memory=first.memory)
    assert plan(waiting).moves == ()
    assert plan(replace(now, memory=first.memory.forget([first.moves[0].bundle]))).moves
    later = replace(now.cluster, now_ms=NOW_MS + ARRIVAL_MS + 1)
    assert plan(replace(waiting, cluster=later)).moves
    arrived = applied(now, first, ARRIVAL_MS + 1)
    assert plan(arrived).moves == ()
    assert arrived.memory.observe(arrived.cluster, arrived.settings).preallocated == {}


@pytest.mark.parametrize("name", ["loadBalancerSheddingEnabled", "loadBalancerEnabled"])
def test_orphans_are_placed_while_shedding_is_off(name: str) -> None:
    owned = (*bundles("b1", [rates(100)] * 9), *bundles("", [rates(100)], start=50))
    now = situation([broker("b1"), broker("b2")], owned, {**PLANNER, name: False})
    assert [move.source for move in plan(now).moves] == [""]


def test_a_wrong_limit_draws_no_more_than_its_bound() -> None:
    members = [broker(f"b{at}") for at in range(4)]
    huge = members[0].report
    assert huge is not None
    members[0] = replace(members[0], report=replace(huge, cpu=Resource(0, 1e15)))
    found = capacities(situation(members))
    assert found == {"b0": 16.0, "b1": 1.0, "b2": 1.0, "b3": 1.0}


def test_a_plan_says_why() -> None:
    now = situation([broker("b1"), broker("b2")], bundles("b1", [rates(99)] * 2), PLANNER)
    outcome = plan(now)
    assert outcome.reason == "brokers at 0.0 to 200.0 % of the mean"
    assert [move.reason for move in outcome.moves] == ["from 200 to 0 % of the mean"]
    assert plan(applied(now, outcome)).reason == (
        "brokers at 100.0 to 100.0 % of the mean: within the trigger band"
    )
    lonely = situation([broker("b1", draining=True)], bundles("b1", [rates(1)]), PLANNER)
    assert plan(lonely).reason == "no broker takes bundles"
    nowhere = situation(
        [broker("b1", host="x")],
        bundles("b1", [rates(1)]),
        PLANNER,
        policies=Policies((IsolationPolicy("p", ("public/.*",), ("y",)),)),
    )
    assert plan(nowhere).notes == (f"{name_of(0)}: no broker may have it",)


@pytest.mark.parametrize("load", [0.0, 1.0])
def test_groups_of_isolation_are_balanced_each_by_itself(load: float) -> None:
    """Primaries are busier than the shared brokers; nothing moves for that."""
    policies = Policies((IsolationPolicy("left", ("left/.*",), ("left",)),))
    members = [broker(f"b{at}", host="left" if at < 2 else "right") for at in range(4)]
    owned = [
        *(bundle for at in (0, 1) for bundle in bundles(f"b{at}", [rates(900)] * 9, 9 * at, "left/b")),
        *bundles("b2", [rates(load)] * 10, 100),
    ]  # fmt: skip
    outcome = plan(situation(members, owned, PLANNER, policies=policies))
    assert Counter((move.source, move.destination) for move in outcome.moves) == {("b2", "b3"): 5}


def test_a_bundle_stays_on_a_secondary_when_the_primaries_are_back() -> None:
    """Their usage would make it go back and forth."""
    policy = IsolationPolicy("p", ("public/.*",), ("p.",), ("s.",), 1, usage_max_percent=70)
    owned = (*bundles("p1", [rates(100)] * 5), *bundles("s1", [rates(100)] * 5, 50))
    for cpu in (60, 80):
        members = [broker("p1", cpu, host="p1"), broker("s1", host="s1"), broker("x", host="x")]
        now = situation(members, owned, PLANNER, policies=Policies((policy,)))
        assert plan(now).moves == ()
    gone = situation(members[::2], owned, PLANNER, policies=Policies((policy,)))
    assert {move.destination for move in plan(gone).moves} == {"p1"}


def test_orphans_of_an_anti_affinity_group_are_kept_apart() -> None:
    """One namespace of the group on each broker, by domain first; none of them is moved for load."""
    policies = Policies(groups={f"g/{at}": "apart" for at in range(4)})
    members = [broker(f"b{at}", domain=f"zone-{at // 2}") for at in range(4)]
    owned = bundles("b0", [rates(900)] * 2, namespace="g/0")
    orphans = [
        bundle for at in (1, 2, 3) for bundle in bundles("", [rates(9)], namespace=f"g/{at}")
    ]
    settings = {**PLANNER, "failureDomainsEnabled": True}
    now = situation(members, [*owned, *orphans], settings, policies=policies)
    moves = plan(now).moves
    assert {move.source for move in moves} == {""}
    assert {move.destination for move in moves} == {"b1", "b2", "b3"}


def test_a_plan_of_ten_thousand_bundles_takes_no_time() -> None:
    """50 brokers. Counted in calls, since the machine is shared: a few for each bundle."""
    members = [broker(f"b{at:02d}") for at in range(50)]
    owned = tuple(
        Bundle(name_of(at), f"b{at * at % 47:02d}", History.steady(rates(1 + at % 97)))
        for at in range(10_000)
    )
    now = situation(members, owned, {**PLANNER, "plannerMovesMax": 10_000})
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        outcome = plan(now)
    finally:
        sys.setprofile(None)
    assert calls < 60 * len(owned)
    after = fills(applied(now, outcome))
    mean = sum(after.values()) / len(after)
    assert max(after.values()) <= 1.02 * mean
    assert min(after.values()) >= 0.98 * mean


@given(
    st.lists(st.floats(0, 1e6), max_size=60),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    st.data(),
)
@profile(max_examples=60)
def test_the_arithmetic_ends_and_obeys(
    weights: list[float], sizes: list[float], data: st.DataObject
) -> None:
    """Any loads, owners, capacities and permissions."""
    number = st.integers(-1, len(sizes) - 1)
    owners = [data.draw(number) for _ in weights]
    some = st.frozensets(st.integers(0, len(sizes) - 1))
    permitted = {at: data.draw(some) for at in range(len(weights)) if data.draw(st.booleans())}
    result = rebalance(Problem(weights, owners, sizes, allowed=permitted))
    homeless = {at for at, owner in enumerate(owners) if owner < 0}
    placed = {step.bundle for step in result.steps}
    assert len(placed) == len(result.steps)
    assert homeless <= placed | set(result.homeless)
    for step in result.steps:
        assert step.destination in permitted.get(step.bundle, {step.destination})
        assert step.destination != owners[step.bundle]


def test_one_load_that_hides_all_others() -> None:
    """Once its broker has left the mean, rounding leaves nothing of the rest."""
    found = rebalance(Problem([1.0, 1e-38, 1e-38], [0, 1, 1], [1.0, 0.5, 1.0]))
    assert {step.bundle for step in found.steps} <= {1, 2}


def test_brokers_that_have_not_reported_are_alike() -> None:
    """A cluster that has just started is balanced by number."""
    bundles = tuple(Bundle(f"t/n/0x{at:08x}_0x{at + 1:08x}", "a") for at in range(4))
    cluster = Cluster(0, (Broker("a"), Broker("b")), bundles)
    outcome = plan(Situation(cluster, settings=Settings.read(PLANNER)))
    assert {move.destination for move in outcome.moves} == {"b"}
    assert len(outcome.moves) == 2
