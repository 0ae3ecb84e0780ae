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

OURS = Cordon(True, CORDON_REASON)
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

    def look(self) -> Fleet:
        seen = self.store
        return Fleet(
            "main",
            self.replicas,
            frozenset(self.pods),
            dict(self.bundles) if seen else None,
            dict(self.cordons) if seen else None,
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
            assert self.cordons[name] == OURS, "a person's cordon stays"
            del self.cordons[name]
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

    def drain(self) -> None:
        for name, cordon in self.cordons.items():
            others = [other for other in self.pods if other != name and other not in self.cordons]
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
        elif step == "person" and world.pods:
            world.cordons.setdefault(min(world.pods, key=names.ordinal_of), PERSONS)
        world.obey(wanted)
    world.store = True
    world.cordons = {name: cordon for name, cordon in world.cordons.items() if cordon == OURS}
    for _ in range(200):
        world.drain()
        world.finish_pods()
        world.obey(wanted)
    assert world.replicas == wanted
    assert world.cordons == {}
