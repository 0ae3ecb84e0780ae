"""Replacing brokers' pods: single cases, and any history of requests, drains, rolls and outages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar_operator import names
from magnetar_operator.brokers.replacing import plan_replace, requests_of
from magnetar_operator.brokers.scaling import (
    CORDON_REASON,
    REPLACE_REASON,
    Cordon,
    Fleet,
    plan_scale,
)
from magnetar_operator.conditions import Reason
from magnetar_operator.pods.rolling import BrokerPod, plan_roll

OURS = Cordon(True, REPLACE_REASON)
PERSONS = Cordon(True, "maintenance of the rack")


def name(ordinal: int) -> str:
    return names.broker_pod("main", ordinal)


def pods(count: int, sick: int = -1) -> list[BrokerPod]:
    return [
        BrokerPod(name(at), "r1", ready=at != sick, terminating=False, uid=f"u{at}")
        for at in range(count)
    ]


def fleet(
    count: int,
    bundles: Mapping[str, int] | None = None,
    cordons: Mapping[str, Cordon] | None = None,
) -> Fleet:
    return Fleet(
        "main", count, frozenset(name(at) for at in range(count)), bundles or {}, cordons or {}
    )


def request(*ordinals: int) -> str:
    return ",".join(f"{name(at)}@u{at}" for at in ordinals)


def test_a_request_names_pod_and_uid() -> None:
    assert list(requests_of("a-0@u1, a-1@u2,nonsense,@u,a@,")) == [("a-0", "u1"), ("a-1", "u2")]


def test_cordon_then_drain_then_delete_then_lift() -> None:
    """The successor has another uid: the request is over, and the cordon goes once it is ready."""
    first = plan_replace(request(1), fleet(3, {name(1): 2}), pods(3), False)
    assert (first.cordon, first.delete, first.active) == (name(1), "", True)
    second = plan_replace(request(1), fleet(3, {name(1): 2}, {name(1): OURS}), pods(3), False)
    assert (second.cordon, second.delete, second.left) == ("", "", 2)
    third = plan_replace(request(1), fleet(3, {}, {name(1): OURS}), pods(3), False)
    assert third.delete == name(1)
    back = [replace(pod, uid="new", ready=False) if pod.name == name(1) else pod for pod in pods(3)]
    fourth = plan_replace(request(1), fleet(3, {}, {name(1): OURS}), back, False)
    assert (fourth.uncordon, fourth.reason, fourth.active) == ((), Reason.REPLACING, False)
    ready = [replace(pod, ready=True) for pod in back]
    fifth = plan_replace(request(1), fleet(3, {}, {name(1): OURS}), ready, False)
    assert (fifth.uncordon, fifth.reason) == ((name(1),), None)


def test_one_at_a_time_and_only_among_ready_ones() -> None:
    both = plan_replace(request(2, 0), fleet(3, {name(0): 1, name(2): 1}), pods(3), False)
    assert both.cordon == name(2)
    going_on = plan_replace(
        request(2, 0), fleet(3, {name(0): 1, name(2): 1}, {name(0): OURS}), pods(3), False
    )
    assert (going_on.cordon, going_on.broker) == ("", name(0))
    waits = plan_replace(request(1), fleet(3), pods(3, sick=2), False)
    assert (waits.cordon, waits.reason, waits.active) == ("", Reason.REPLACE_WAITS, False)
    assert name(2) in waits.message
    sick = plan_replace(request(2), fleet(3, {}, {name(2): OURS}), pods(3, sick=2), False)
    assert sick.delete == name(2)


def test_the_only_broker_goes_without_a_drain() -> None:
    plan = plan_replace(request(0), fleet(1, {name(0): 5}), pods(1), False)
    assert (plan.cordon, plan.delete) == ("", name(0))
    assert "its 5 bundles are served again when it is ready" in plan.message


def test_a_request_that_is_taken_back_lifts_its_cordon_and_no_persons() -> None:
    plan = plan_replace("", fleet(3, {}, {name(1): OURS, name(0): PERSONS}), pods(3), False)
    assert (plan.uncordon, plan.reason) == ((name(1),), None)


def test_scaling_comes_first() -> None:
    """The cordon is lifted concurrently, so that never two brokers drain at once; unless it is the
    broker that is removed."""
    plan = plan_replace(request(0), fleet(3, {name(0): 1}, {name(0): OURS}), pods(3), True)
    assert (plan.uncordon, plan.cordon, plan.delete, plan.reason) == ((name(0),), "", "", None)
    victim = plan_replace(request(2), fleet(3, {name(2): 1}, {name(2): OURS}), pods(3), True)
    assert victim.uncordon == ()


def test_nothing_is_deleted_while_the_store_is_silent() -> None:
    plan = plan_replace(request(1), replace(fleet(3), bundles=None, cordons=None), pods(3), False)
    assert (plan.delete, plan.cordon, plan.reason) == ("", "", Reason.STORE_UNAVAILABLE)


class World:
    """Brokers that obey the three plans; checks what may never happen."""

    def __init__(self, count: int) -> None:
        self.replicas = self.wanted = count
        self.uids = {name(at): 0 for at in range(count)}
        self.starting: set[str] = set()
        self.bundles = dict.fromkeys(self.uids, 2)
        self.cordons: dict[str, Cordon] = {}
        self.revisions = dict.fromkeys(self.uids, "r1")
        self.revision, self.annotation, self.store = "r1", "", True
        self.replaced: set[tuple[str, int]] = set()

    def view(self) -> list[BrokerPod]:
        return [
            BrokerPod(
                pod, self.revisions[pod], pod not in self.starting, terminating=False, uid=str(uid)
            )
            for pod, uid in self.uids.items()
        ]

    def look(self) -> Fleet:
        seen = self.store
        return Fleet(
            "main",
            self.replicas,
            frozenset(self.uids),
            dict(self.bundles) if seen else None,
            dict(self.cordons) if seen else None,
        )

    def restart(self, pod: str) -> None:
        assert pod in self.starting or not self.starting, (
            "a broker that serves goes only while all others do"
        )
        self.uids[pod] += 1
        self.starting.add(pod)
        self.revisions[pod] = self.revision
        others = [other for other in self.uids if other != pod]
        if others:
            self.bundles[others[0]] += self.bundles[pod]
            self.bundles[pod] = 0

    def obey(self) -> None:
        scale = plan_scale(self.wanted, self.look())
        plan = plan_replace(self.annotation, self.look(), self.view(), scale.reason is not None)
        roll = plan_roll(
            self.view(), self.revision, scale.replicas, scale.reason is not None or plan.active
        )
        for broker in (*scale.uncordon, *plan.uncordon):
            assert self.cordons.pop(broker).reason in (CORDON_REASON, REPLACE_REASON), (
                "a person's cordon stays"
            )
        for broker, reason in ((scale.cordon, CORDON_REASON), (plan.cordon, REPLACE_REASON)):
            if broker:
                self.cordons[broker] = Cordon(True, reason)
        draining = [
            pod
            for pod, cordon in self.cordons.items()
            if cordon != PERSONS and self.bundles.get(pod)
        ]
        assert len(draining) <= 1, "never two brokers drain for us"
        assert not (roll.restart and plan.delete), (
            "a roll and a replacement never take two brokers at once"
        )
        if plan.delete:
            wanted = dict(requests_of(self.annotation))
            assert wanted[plan.delete] == str(self.uids[plan.delete]), "never the successor"
            assert len(self.uids) == 1 or self.bundles[plan.delete] == 0, (
                "only a drained broker goes"
            )
            self.replaced.add((plan.delete, self.uids[plan.delete]))
            self.restart(plan.delete)
        elif roll.restart:
            self.restart(roll.restart)
        self.replicas = scale.replicas
        for at in range(self.replicas):
            if name(at) not in self.uids:
                self.uids[name(at)], self.bundles[name(at)], self.revisions[name(at)] = (
                    0,
                    0,
                    self.revision,
                )
                self.starting.add(name(at))
        for pod in [pod for pod in self.uids if names.ordinal_of(pod) >= self.replicas]:
            for known in (self.uids, self.bundles, self.revisions):
                known.pop(pod)
            self.starting.discard(pod)

    def drain(self) -> None:
        for pod, cordon in self.cordons.items():
            others = [other for other in self.uids if other != pod and other not in self.cordons]
            if cordon.drain and others and self.bundles.get(pod):
                self.bundles[pod] -= 1
                self.bundles[others[0]] += 1


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["want", "request"]), st.integers(1, 5)),
        st.tuples(
            st.sampled_from(["look", "drain", "start", "outage", "roll", "person", "undo"]),
            st.just(0),
        ),
    ),
    max_size=60,
)


@pytest.mark.slow
@given(st.integers(1, 5), steps)
@settings(deadline=None)
def test_any_history_replaces_one_at_a_time_and_ends_calm(
    count: int, history: list[tuple[str, int]]
) -> None:
    """`World.obey` checks every step; at the end every request has been carried out once, and no
    cordon of ours is left."""
    world, roll = World(count), 1
    for step, value in history:
        if step == "want":
            world.wanted = value
        elif step == "request" and name(value - 1) in world.uids:
            world.annotation += f",{name(value - 1)}@{world.uids[name(value - 1)]}"
        elif step == "drain":
            world.drain()
        elif step == "start":
            world.starting.clear()
        elif step == "outage":
            world.store = not world.store
        elif step == "roll":
            roll += 1
            world.revision = f"r{roll}"
        elif step == "undo":
            world.annotation = ""
        elif step == "person":
            world.cordons.setdefault(name(0), PERSONS)
        world.obey()
    world.store = True
    world.cordons = {pod: cordon for pod, cordon in world.cordons.items() if cordon != PERSONS}
    for _ in range(300):
        world.drain()
        world.starting.clear()
        world.obey()
    assert world.cordons == {}
    assert set(world.revisions.values()) == {world.revision}
    assert not [
        pod for pod, uid in requests_of(world.annotation) if str(world.uids.get(pod)) == uid
    ]
