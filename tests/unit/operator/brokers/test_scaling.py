"""Adding and removing brokers: single cases, and any history of wishes, drains and outages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_operator import names
from magnetar_operator.brokers.scaling import (
    CORDON_REASON,
    REPLACE_REASON,
    Cordon,
    Fleet,
    draining_cordon,
    plan_scale,
)
from magnetar_operator.conditions import Reason

OURS, CLOSED = Cordon(True, CORDON_REASON), Cordon(False, CORDON_REASON)
PERSONS = Cordon(True, "maintenance of the rack")


def pod(ordinal: int) -> str:
    return names.broker_pod("main", ordinal)


def fleet(
    replicas: int, bundles: dict[str, int] | None = None, cordons: dict[str, Cordon] | None = None
) -> Fleet:
    return Fleet(
        "main",
        replicas,
        frozenset(pod(ordinal) for ordinal in range(replicas)),
        bundles or {},
        cordons or {},
        frozenset(pod(ordinal) for ordinal in range(replicas)),
    )


def test_more_brokers_are_made_at_once_even_without_the_store() -> None:
    plan = plan_scale(5, replace(fleet(2), bundles=None, cordons=None))
    assert (plan.replicas, plan.reason) == (5, Reason.SCALING_UP)


def test_the_highest_broker_is_cordoned_then_drained_then_removed() -> None:
    first = plan_scale(2, fleet(11))
    assert (first.replicas, first.cordon) == (11, pod(10))
    second = plan_scale(2, fleet(11, {pod(10): 4}, {pod(10): OURS}))
    assert (second.replicas, second.cordon) == (11, "")
    assert "4 bundles left" in second.message
    third = plan_scale(2, fleet(11, {pod(9): 4}, {pod(10): OURS}))
    assert third.replicas == 10


def test_those_that_go_next_take_no_bundle_while_one_drains() -> None:
    """From the first step on, so that no bundle moves twice; a cordon that there is stays."""
    first = plan_scale(3, fleet(6, {}, {pod(4): PERSONS}))
    assert (first.cordon, first.close) == (pod(5), (pod(3),))
    second = plan_scale(3, fleet(6, {pod(5): 4}, {pod(5): OURS, pod(4): PERSONS, pod(3): CLOSED}))
    assert (second.cordon, second.close, second.uncordon) == ("", (), ())
    third = plan_scale(3, fleet(5, {}, {pod(3): CLOSED, pod(5): OURS}))
    assert (third.cordon, third.close, third.uncordon) == (pod(4), (), (pod(5),))
    assert draining_cordon(CORDON_REASON, CLOSED) == OURS


def test_while_none_that_stays_serves_those_that_go_later_take_bundles() -> None:
    """A broker that crashes concurrently must not leave its bundles without one."""
    now = fleet(4, {pod(3): 4}, {pod(3): OURS, pod(2): CLOSED, pod(1): CLOSED})
    crashed = replace(now, serving=now.serving - {pod(0)})
    plan = plan_scale(1, crashed)
    assert (plan.close, plan.uncordon) == ((), (pod(1), pod(2)))
    cordoned = plan_scale(1, replace(fleet(4), cordons={pod(0): PERSONS}))
    assert (cordoned.cordon, cordoned.close) == (pod(3), ())


def test_brokers_that_stay_after_all_take_bundles_again() -> None:
    now = fleet(6, {pod(5): 4}, {pod(5): OURS, pod(4): CLOSED, pod(3): CLOSED})
    assert plan_scale(5, now).uncordon == (pod(3), pod(4))
    assert plan_scale(6, now).uncordon == (pod(3), pod(4), pod(5))


def test_the_last_broker_takes_what_the_others_transfer() -> None:
    assert plan_scale(0, fleet(3)).close == (pod(1),)


def test_the_next_one_waits_until_the_last_pod_is_gone() -> None:
    going = Fleet("main", 10, frozenset(pod(ordinal) for ordinal in range(11)), {}, {pod(10): OURS})
    plan = plan_scale(2, going)
    assert (plan.replicas, plan.cordon, plan.uncordon) == (10, "", ())
    gone = plan_scale(2, replace(going, pods=going.pods - {pod(10)}))
    assert (gone.cordon, gone.uncordon) == (pod(9), (pod(10),))


def test_nothing_is_removed_while_the_store_is_silent() -> None:
    plan = plan_scale(1, replace(fleet(3), bundles=None, cordons=None))
    assert (plan.replicas, plan.cordon, plan.reason) == (3, "", Reason.STORE_UNAVAILABLE)


def test_raising_the_number_lifts_our_cordon_and_no_persons() -> None:
    plan = plan_scale(3, fleet(3, {}, {pod(2): OURS, pod(0): PERSONS}))
    assert plan.uncordon == (pod(2),)


def test_the_last_broker_may_stop() -> None:
    """It drains to nobody, and the message says what that means."""
    plan = plan_scale(0, fleet(1, {pod(0): 8}))
    assert plan.replicas == 0
    assert "its 8 bundles are served again when spec.replicas is raised" in plan.message


def test_a_drain_takes_the_place_of_a_persons_cordon_and_gives_it_back() -> None:
    """Also when the reason of the drain changes in between: what the person wrote is never lost."""
    placed = Cordon(False, "rack 4 is noisy; instead of: nothing")
    ours = draining_cordon(CORDON_REASON, placed)
    assert (ours.drain, ours.is_ours, ours.is_for_replacement, ours.before) == (
        True,
        True,
        False,
        placed,
    )
    other = draining_cordon(REPLACE_REASON, ours)
    assert (other.is_ours, other.is_for_replacement, other.before) == (False, True, placed)
    assert draining_cordon(CORDON_REASON, None).before is None


def test_cordons_are_lifted_in_the_order_of_numbers() -> None:
    plan = plan_scale(12, fleet(12, {}, {pod(10): OURS, pod(9): OURS}))
    assert plan.uncordon == (pod(9), pod(10))


def test_a_broker_that_died_while_draining_goes_when_its_bundles_are_taken_over() -> None:
    """Its pod may be gone or sick: the records decide."""
    dead = replace(fleet(3, {pod(2): 2}, {pod(2): OURS}), pods=frozenset({pod(0), pod(1)}))
    assert plan_scale(2, dead).replicas == 3
    assert plan_scale(2, replace(dead, bundles={pod(0): 2})).replicas == 2


class World:
    """A fleet that obeys plans: pods go some time after their StatefulSet shrank; drains happen
    when the history says so."""

    def __init__(self, replicas: int) -> None:
        self.replicas = replicas
        self.pods = {pod(ordinal) for ordinal in range(replicas)}
        self.bundles = dict.fromkeys(self.pods, 3)
        self.cordons: dict[str, Cordon] = {}
        self.store = True
        self.crashed: set[str] = set()

    def look(self) -> Fleet:
        seen = self.store
        return Fleet(
            "main",
            self.replicas,
            frozenset(self.pods),
            dict(self.bundles) if seen else None,
            dict(self.cordons) if seen else None,
            frozenset(self.pods) - self.crashed,
        )

    def obey(self, wanted: int) -> None:
        plan = plan_scale(wanted, self.look())
        if plan.replicas < self.replicas:
            victim = pod(self.replicas - 1)
            assert plan.replicas == self.replicas - 1, "one at a time"
            assert not {name for name in self.pods if names.ordinal_of(name) >= self.replicas}, (
                "no other removal is under way"
            )
            if plan.replicas or wanted:
                assert self.bundles.get(victim, 0) == 0, "only a drained broker goes"
                assert self.cordons.get(victim) is not None, "only a cordoned broker goes"
        if plan.cordon:
            assert plan.cordon == pod(self.replicas - 1), "only the highest is cordoned"
        for name in plan.uncordon:
            assert self.cordons[name] in (OURS, CLOSED), "a person's cordon stays"
            del self.cordons[name]
        for name in plan.close:
            assert names.ordinal_of(name) >= max(wanted, 1), "a broker that stays takes bundles"
            self.cordons.setdefault(name, CLOSED)
        if plan.cordon:
            self.cordons[plan.cordon] = OURS
        self.replicas = plan.replicas
        self.pods |= {pod(ordinal) for ordinal in range(self.replicas)}
        ours = [
            name
            for name, cordon in self.cordons.items()
            if cordon == OURS and names.ordinal_of(name) < self.replicas
        ]
        assert len(ours) <= 1, "never two brokers drain for us"
        if self.store:
            serving = {
                name
                for name in self.pods - self.crashed - set(ours)
                if names.ordinal_of(name) < self.replicas and self.cordons.get(name) != PERSONS
            }
            assert not serving or serving - self.cordons.keys(), "one of them takes bundles"

    def drain(self) -> None:
        for name, cordon in self.cordons.items():
            others = sorted(self.pods - self.cordons.keys() - self.crashed - {name})
            if cordon.drain and others and self.bundles.get(name):
                self.bundles[name] -= 1
                self.bundles[others[0]] = self.bundles.get(others[0], 0) + 1

    def finish_pods(self) -> None:
        self.pods = {name for name in self.pods if names.ordinal_of(name) < self.replicas}
        self.bundles = {name: count for name, count in self.bundles.items() if name in self.pods}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(0, 6)),
        st.tuples(st.sampled_from(["look", "drain", "pods", "outage", "person"]), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 5)),
    ),
    max_size=60,
)


@pytest.mark.slow
@given(st.integers(1, 6), steps)
@settings(deadline=None)
def test_any_history_keeps_the_rules_and_ends_at_the_wanted_number(
    replicas: int, history: list[tuple[str, int]]
) -> None:
    """`World.obey` checks every step; at the end, with store and drains at work, the wish comes
    true and no cordon of ours is left."""
    world, wanted = World(replicas), replicas
    for step, value in history:
        if step == "want":
            wanted = value
        elif step == "drain":
            world.drain()
        elif step == "pods":
            world.finish_pods()
        elif step == "outage":
            world.store = not world.store
        elif step == "crash":
            world.crashed ^= {pod(value)}
        elif step == "person" and world.pods:
            world.cordons.setdefault(min(world.pods, key=names.ordinal_of), PERSONS)
        world.obey(wanted)
    world.store, world.crashed = True, set()
    world.cordons = {
        name: cordon for name, cordon in world.cordons.items() if cordon in (OURS, CLOSED)
    }
    for _ in range(200):
        world.drain()
        world.finish_pods()
        world.obey(wanted)
    assert world.replicas == wanted
    assert world.cordons == {}
