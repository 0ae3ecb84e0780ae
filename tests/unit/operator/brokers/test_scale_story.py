"""The story that `kubectl describe` shows of a change of the number of brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.scaling import ScalingStatus
from magnetar_operator import names
from magnetar_operator.brokers.moves import Moves, plan_moves
from magnetar_operator.brokers.replacing import ReplacePlan
from magnetar_operator.brokers.scaling import CORDON_REASON, Cordon
from magnetar_operator.brokers.state import ClusterState
from magnetar_operator.brokers.status import Observed
from magnetar_operator.conditions import Reason
from tests.support.samples import cluster

SECOND_MS = 1000


def name(ordinal: int) -> str:
    return names.broker_pod("main", ordinal)


class Stage:
    """A cluster whose pods, bundles and cordons the test sets; remembers the status as the API
    server would."""

    def __init__(self, replicas: int) -> None:
        self.wanted = self.replicas = replicas
        self.ordinals = list(range(replicas))
        self.bundles: dict[str, int] = {}
        self.cordons: dict[str, Cordon] = {}
        self.annotations: dict[str, str] = {}
        self.uids: dict[str, str] = {}
        self.scaling, self.known = ScalingStatus(), dict[str, int]()
        self.now_ms = 1_700_000_000_000

    def look(self, after_s: int = 1, ready: bool = True) -> Moves:
        """One pass `after_s` seconds later."""
        self.now_ms += after_s * SECOND_MS
        moves = plan_moves(self._cluster(), self._observed(ready), self.now_ms)
        self.scaling, self.known = moves.story.status, dict(self.bundles)
        for broker in (*moves.scale.uncordon, *moves.replacement.uncordon):
            del self.cordons[broker]
        if moves.scale.cordon:
            self.cordons[moves.scale.cordon] = Cordon(True, CORDON_REASON)
        if moves.replacement.cordon:
            self.cordons[moves.replacement.cordon] = Cordon(True, "replacement: magnetar-operator")
        self.replicas = moves.scale.replicas
        return moves

    def reported(self, after_s: int = 1, ready: bool = True) -> list[str]:
        story = self.look(after_s, ready).story
        return [f"{event.reason}: {event.message}" for event in (*story.before, *story.after)]

    def _cluster(self) -> BrokerCluster:
        found = cluster(replicas=self.wanted, drainTimeoutSeconds=60)
        brokers = [{"name": broker, "bundles": count} for broker, count in self.known.items()]
        status = found.status.model_validate(
            {"scaling": self.scaling.model_dump(by_alias=True), "brokers": brokers}
        )
        return found.model_copy(
            update={
                "status": status,
                "metadata": found.metadata.model_copy(update={"annotations": self.annotations}),
            }
        )

    def _observed(self, ready: bool) -> Observed:
        brokers: dict[str, Any] = {
            "kind": "StatefulSet",
            "metadata": {"name": "main-broker"},
            "spec": {"replicas": self.replicas},
        }
        held: Mapping[str, tuple[str, ...]] = {
            broker: tuple(
                f"shop/eu/0x{at}0000000_0x{at + 1}0000000 (Releasing)"
                for at in range(self.bundles.get(broker, 0))
            )
            for broker in self.cordons
        }
        state = ClusterState(
            "5e",
            {name(at): f"{name(at)}.01" for at in self.ordinals},
            dict(self.bundles),
            dict(self.cordons),
            held,
        )
        return Observed(
            {("StatefulSet", "main-broker"): brokers},
            tuple(self._pod(at, ready) for at in self.ordinals),
            state,
        )

    def _pod(self, ordinal: int, ready: bool) -> dict[str, Any]:
        uid = self.uids.get(name(ordinal), f"u{ordinal}")
        conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
        return {
            "metadata": {"name": name(ordinal), "uid": uid, "labels": {}},
            "spec": {"containers": []},
            "status": {"conditions": conditions},
        }


def test_a_scale_down_is_reported_from_the_wish_to_the_end() -> None:
    """Each chapter once, with numbers and times; nothing while nothing happens."""
    stage = Stage(3)
    assert stage.reported() == []
    stage.wanted, stage.bundles = 2, {name(0): 4, name(1): 4, name(2): 12}
    assert stage.reported() == [
        "ScalingDown: from 3 to 2 brokers, one at a time: main-broker-2",
        "Draining: main-broker-2 transfers 12 bundles to 2 other brokers",
    ]
    assert stage.reported() == []
    stage.bundles = {name(0): 6, name(1): 7, name(2): 7}
    assert stage.reported() == ["Draining: main-broker-2 has 7 of 12 bundles left to transfer"]
    stage.bundles = {name(0): 7, name(1): 7, name(2): 6}
    assert stage.reported() == []
    stage.bundles = {name(0): 10, name(1): 10}
    moves = stage.look()
    assert [event.message for event in moves.story.after] == [
        "main-broker-2 transferred 12 bundles in 4 s",
        "main-broker-2 is drained and goes; 2 brokers stay, 2 are wanted",
    ]
    assert [event.reason for event in moves.story.after] == ["Drained", "Removing"]
    assert stage.reported() == []
    stage.ordinals = [0, 1]
    assert stage.reported() == [
        "Removed: main-broker-2 is gone; 2 brokers now, 2 are wanted",
        "Settled: 2 brokers; the change from 3 to 2 took 6 s",
    ]
    assert stage.scaling == ScalingStatus()
    assert stage.reported() == []
    assert stage.cordons == {}


def test_several_steps_go_in_the_order_of_numbers() -> None:
    stage = Stage(12)
    stage.wanted = 9
    reported = stage.reported()
    assert reported == [
        "ScalingDown: from 12 to 9 brokers, one at a time: main-broker-11, then main-broker-10, "
        "then main-broker-9"
    ]
    seen: list[str] = []
    for _ in range(20):
        seen += [line.partition(" ")[2] for line in stage.reported() if line.startswith("Removed")]
        stage.ordinals = [at for at in stage.ordinals if at < stage.replicas]
    assert [line.partition(" ")[0] for line in seen] == [
        "main-broker-11",
        "main-broker-10",
        "main-broker-9",
    ]
    assert (stage.replicas, stage.scaling) == (9, ScalingStatus())


def test_a_wish_that_is_taken_back_is_reported() -> None:
    stage = Stage(3)
    stage.wanted, stage.bundles = 2, {name(2): 12}
    stage.look()
    stage.look()
    stage.wanted, stage.bundles = 3, {name(0): 7, name(2): 5}
    assert stage.reported() == [
        "ScaleDownCalledOff: 3 brokers are wanted again instead of 2; main-broker-2 stays, with "
        "its 5 bundles",
        "Settled: 3 brokers; the change that was called off took 2 s",
    ]
    assert stage.cordons == {}


def test_a_scale_up_is_settled_when_all_are_ready() -> None:
    stage = Stage(2)
    stage.wanted = 4
    assert stage.reported() == ["ScalingUp: from 2 to 4 brokers"]
    stage.ordinals = [0, 1, 2, 3]
    assert stage.reported(ready=False) == []
    assert stage.reported(8) == ["Settled: 4 brokers; the change from 2 to 4 took 9 s"]


def test_a_drain_that_does_not_end_is_a_problem_that_says_what_to_do() -> None:
    """The broker stays; the sentence names what it still has and who could take it, and does not
    change with the time."""
    stage = Stage(2)
    stage.wanted, stage.bundles = 1, {name(1): 5}
    stage.look()
    stage.cordons[name(0)] = Cordon(True, "maintenance")
    assert stage.look(59).problems == ()
    (problem,) = stage.look(2).problems
    assert problem.reason is Reason.DRAIN_STUCK
    assert problem.message.startswith(
        "main-broker-1 still has bundles after more than 60 s: shop/eu/0x00000000_0x10000000 "
        "(Releasing)"
    )
    assert "and 2 more; no other broker takes bundles" in problem.message
    assert stage.look(3600).problems == (problem,)
    assert stage.replicas == 2
    assert stage.cordons[name(0)] == Cordon(True, "maintenance")


def test_the_last_broker_stops_without_a_drain() -> None:
    stage = Stage(1)
    stage.wanted, stage.bundles = 0, {name(0): 5}
    reported = stage.reported()
    assert reported[0] == "ScalingDown: from 1 to 0 brokers, one at a time: main-broker-0"
    assert reported[1].startswith(
        "Removing: main-broker-0, the last broker, seals its log and stops; its 5 bundles are "
        "served again"
    )
    stage.ordinals = []
    assert [line.partition(":")[0] for line in stage.reported()] == ["Removed", "Settled"]


def test_a_replacement_is_reported_too() -> None:
    stage = Stage(2)
    stage.bundles, stage.annotations = {name(0): 3, name(1): 3}, {names.REPLACE: f"{name(0)}@u0"}
    assert stage.reported() == [
        "Replacing: main-broker-0: it is drained, then its pod is deleted and comes back",
        "Draining: main-broker-0 transfers 3 bundles to the other broker",
    ]
    stage.bundles = {name(1): 6}
    moves = stage.look()
    assert moves.replacement.delete == name(0)
    assert [event.reason for event in moves.story.after] == ["Drained", "Restarting"]
    stage.uids[name(0)] = "new"
    assert stage.reported(ready=False) == []
    assert stage.reported() == ["Replaced: main-broker-0 is back and ready after 3 s"]
    assert (stage.cordons, stage.scaling) == ({}, ScalingStatus())
    assert stage.look().replacement == ReplacePlan()
