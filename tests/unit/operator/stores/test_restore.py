"""Restoring a metadata store by request: single cases, and any history of passes that end
halfway over a model of pods, leases and etcd."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from pydantic import ValidationError

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.etcd import MetadataRestore, RestoreStatus
from magnetar_operator import names
from magnetar_operator.brokers.scaling import ScalePlan
from magnetar_operator.brokers.state import ClusterState
from magnetar_operator.brokers.status import Observed, derive, findings_of
from magnetar_operator.builders.restore_pod import restore_pod, restore_pod_name
from magnetar_operator.conditions import Reason, Type
from magnetar_operator.etcd.view import is_known
from magnetar_operator.pods.rolling import RollPlan
from magnetar_operator.stores.restore import (
    PAUSE_MIN_S,
    UNDER_WAY,
    Etcd,
    Phase,
    RestorePlan,
    RestoreView,
    is_held,
    pause_s,
    plan_restore,
)
from tests.support.samples import DEFAULTS, cluster

ASKED = MetadataRestore(request="monday")
FORCED = MetadataRestore(request="monday", force=True)
NEW = RestoreStatus()


def phase_of(plan: RestorePlan) -> Phase:
    return Phase(plan.status.phase)


# --- single cases ---------------------------------------------------------------------------------


def test_without_a_request_nothing_is_so() -> None:
    plan = plan_restore(RestoreView(None, NEW, Etcd.LOST))
    assert (plan.status, plan.is_held, plan.progress, plan.problem, plan.is_active) == (
        NEW,
        False,
        None,
        None,
        False,
    )


def test_an_intact_store_is_left_alone_for_good_unless_another_request_forces_it() -> None:
    """A refusal that waits would strike when etcd is really lost, long after everybody forgot
    it."""
    refused = plan_restore(RestoreView(ASKED, NEW, Etcd.ANSWERS, intact=True))
    assert (phase_of(refused), refused.is_held) == (Phase.REFUSED, False)
    assert refused.problem is not None
    assert refused.problem.reason is Reason.RESTORE_REFUSED
    assert plan_restore(RestoreView(ASKED, refused.status, Etcd.LOST)) == refused
    assert plan_restore(RestoreView(FORCED, refused.status, Etcd.ANSWERS, intact=True)) == refused
    again = MetadataRestore(request="tuesday", force=True)
    assert (
        phase_of(plan_restore(RestoreView(again, refused.status, Etcd.ANSWERS, intact=True)))
        is Phase.FILLING
    )


def test_nothing_is_begun_while_etcd_may_come_back() -> None:
    waits = plan_restore(RestoreView(ASKED, NEW, Etcd.UNREACHABLE))
    assert (phase_of(waits), waits.is_held, waits.is_active) == (Phase.WAITING, False, True)
    assert (
        phase_of(plan_restore(RestoreView(ASKED, waits.status, Etcd.ANSWERS, intact=True)))
        is Phase.REFUSED
    )
    assert phase_of(plan_restore(RestoreView(ASKED, waits.status, Etcd.LOST))) is Phase.BEGINNING
    forced = plan_restore(RestoreView(FORCED, waits.status, Etcd.UNREACHABLE))
    assert (phase_of(forced), forced.is_held) == (Phase.BEGINNING, True)


def test_the_pause_is_said_before_it_comes() -> None:
    """With the request, before etcd is begun and before the pod is made; what it was reckoned
    from is gone with the store then."""
    begins = plan_restore(RestoreView(ASKED, NEW, Etcd.LOST, pause_s=pause_s((0, 300))))
    assert begins.progress is not None
    assert begins.progress.message.endswith(
        "brokers serve until it is filled, then no topic is served for about 14 s"
    )
    fills = plan_restore(RestoreView(ASKED, begins.status, pause_s=pause_s(())))
    assert (fills.makes_pod, fills.status.pause_seconds) == (False, 14)
    assert fills.status.message.endswith(
        "brokers serve until it fences them, then no topic is served for about 14 s"
    )
    waits = plan_restore(
        RestoreView(
            ASKED, fills.status, pod="Pending", words="not scheduled: 0/1 nodes are available"
        )
    )
    assert "(not scheduled: 0/1 nodes are available)" in waits.status.message
    assert pause_s(()) == pause_s((0,)) == PAUSE_MIN_S


def test_the_lost_etcd_is_named_before_an_empty_one_takes_its_place() -> None:
    begins = plan_restore(RestoreView(ASKED, NEW, Etcd.LOST, identity="ab12"))
    assert (phase_of(begins), begins.status.replaces, begins.makes_pod) == (
        Phase.BEGINNING,
        "ab12",
        False,
    )
    resource = cluster()
    status = resource.status.model_copy(
        update={"etcd": resource.status.etcd.model_copy(update={"cluster_id": "ab12"})}
    )
    lost = resource.model_copy(update={"status": status})
    assert is_known(lost)
    permitted = lost.model_copy(
        update={"status": status.model_copy(update={"restore": begins.status})}
    )
    assert not is_known(permitted)
    other = status.etcd.model_copy(update={"cluster_id": "cd34"})
    begun = permitted.model_copy(
        update={"status": permitted.status.model_copy(update={"etcd": other})}
    )
    assert is_known(begun), "the permission has no effect on any other etcd"


def test_the_phase_is_written_before_the_pod_is_made_and_the_pod_once() -> None:
    first = plan_restore(RestoreView(ASKED, NEW))
    assert (phase_of(first), first.makes_pod) == (Phase.FILLING, False)
    assert plan_restore(RestoreView(ASKED, first.status)).makes_pod
    assert not plan_restore(RestoreView(ASKED, first.status, pod="Running")).makes_pod


def test_a_failure_holds_the_fleet_until_the_request_is_another_or_withdrawn() -> None:
    filling = RestoreStatus(request="monday", phase="Filling")
    failed = plan_restore(
        RestoreView(ASKED, filling, pod="Failed", words="nothing was written: x is missing")
    )
    assert (phase_of(failed), failed.is_held) == (Phase.FAILED, True)
    assert failed.problem is not None
    assert "x is missing" in failed.problem.message
    assert plan_restore(RestoreView(ASKED, failed.status, pod="")) == failed
    assert not plan_restore(RestoreView(None, failed.status)).is_held
    assert (
        phase_of(plan_restore(RestoreView(MetadataRestore(request="tuesday"), failed.status)))
        is Phase.FILLING
    )


def test_a_request_that_is_withdrawn_ends_when_its_pod_has() -> None:
    filling = RestoreStatus(request="monday", phase="Filling", replaces="ab12")
    assert plan_restore(RestoreView(None, filling, pod="Running")).status == filling
    assert plan_restore(RestoreView(None, filling, pod="Succeeded")).status == RestoreStatus(
        replaces="ab12"
    )
    done = RestoreStatus(request="monday", phase="Restored")
    assert plan_restore(RestoreView(None, done)).status == done
    assert plan_restore(RestoreView(ASKED, done, Etcd.LOST)).status == done, (
        "a request is carried out once"
    )


# --- any history ----------------------------------------------------------------------------------


@dataclass
class Cluster:
    """A model of what is around the plan. Effects reach it at once, their ends come later."""

    chance: random.Random
    asked: MetadataRestore
    etcd: Etcd
    intact: bool
    status: RestoreStatus = NEW
    serving: bool = True
    held: bool = False
    identity: str = "old"
    filled_for: str = ""
    pod: str = ""
    fills: int = 0
    phases: list[Phase] = field(default_factory=list)

    def operate(self) -> None:
        """One pass; it may end after any of its effects."""
        answers = self.etcd is Etcd.ANSWERS
        plan = plan_restore(
            RestoreView(
                self.asked, self.status, self.etcd, self.intact and answers, self.identity,
                filled_for=self.filled_for if answers else "", pod=self.pod,
            )
        )  # fmt: skip
        effects = self.chance.choice((0, 1, 2, 3))
        if effects >= 1:
            self.status = plan.status
            self.phases.append(phase_of(plan))
        if effects >= 2:
            self.held = plan.is_held
        if effects >= 3 and plan.makes_pod and not self.pod:
            self.pod = "Running"

    def live(self) -> None:
        """Whatever happens by itself, in any order."""
        happens = self.chance.random
        if not self.serving and self.intact and happens() < 0.5:
            self.serving = True
        if self.etcd is Etcd.LOST and self.status.replaces == self.identity and happens() < 0.5:
            self.etcd, self.identity, self.intact, self.filled_for = Etcd.ANSWERS, "new", False, ""
        if self.pod == "Running" and self.etcd is Etcd.ANSWERS:
            self._work()

    def _work(self) -> None:
        """The pod ends with its work done, or halfway with its node."""
        if self.chance.random() < 0.3:
            self.pod = ""
        elif self.chance.random() < 0.5:
            if self.filled_for != self.asked.request:
                assert self.status.phase == Phase.FILLING, "nobody said that a pause comes"
                self.fills += 1
                self.serving, self.intact, self.filled_for = False, True, self.asked.request
            self.pod = "Succeeded" if self.chance.random() < 0.7 else ""


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    ("asked", "etcd", "intact"),
    [(ASKED, Etcd.LOST, False), (ASKED, Etcd.ANSWERS, False), (FORCED, Etcd.ANSWERS, True)],
)
def test_a_request_is_carried_out_once_whatever_ends_in_between(
    seed: int, asked: MetadataRestore, etcd: Etcd, intact: bool
) -> None:
    """Passes that end after any effect, pods that are lost with their nodes, leases and members
    that come when they like."""
    model = Cluster(random.Random(seed), asked, etcd, intact)
    for _ in range(500):
        model.operate()
        model.live()
        assert model.serving or model.fills, "brokers serve until the store is filled"
        if model.status.phase == Phase.RESTORED and model.serving and not model.held:
            break
    assert (model.status.phase, model.fills, model.serving, model.intact) == (
        "Restored",
        1,
        True,
        True,
    )
    assert model.identity == ("new" if etcd is Etcd.LOST else "old")
    assert set(model.phases) >= {Phase.FILLING, Phase.RESTORED}
    for _ in range(20):
        model.operate()
        model.live()
    assert (model.fills, model.serving, model.held) == (1, True, False)


# --- what follows ---------------------------------------------------------------------------------


def in_phase(phase: Phase) -> BrokerCluster:
    made = cluster(etcd={"managed": {"restore": {"request": "monday"}}})
    status = made.status.model_copy(
        update={"restore": RestoreStatus(request="monday", phase=phase.value)}
    )
    return made.model_copy(update={"status": status})


def test_the_pod_is_made_once_per_request_and_shows_the_operators_certificate() -> None:
    pod = restore_pod(
        cluster(),
        DEFAULTS,
        MetadataRestore(
            request="monday", source="backups/00000001-00000000000000000007", force=True
        ),
    )
    arguments = pod["spec"]["containers"][0]["args"]
    assert arguments[:3] == ["magnetar", "metadata", "rebuild"]
    assert arguments[-3:] == ["--copy", "backups/00000001-00000000000000000007", "--force"]
    assert arguments[arguments.index("--request") + 1] == "monday"
    mounted = [
        volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume
    ]
    assert mounted == ["main-etcd-operator"]
    assert pod["spec"]["restartPolicy"] == "Never"
    assert (
        "--without-copy"
        in restore_pod(cluster(), DEFAULTS, MetadataRestore(request="a", source="Storage"))["spec"][
            "containers"
        ][0]["args"]
    )
    assert (
        restore_pod_name(cluster(), "monday")
        == pod["metadata"]["name"]
        != restore_pod_name(cluster(), "tuesday")
    )
    assert len(restore_pod_name(cluster("m" * 40), "x" * 60)) <= names.LABEL_LENGTH_MAX


def test_conditions_and_status_tell_the_story() -> None:
    state = ClusterState("5e" * 16, {}, {}, {})
    for phase, kind, reason in (
        (Phase.BEGINNING, Type.PROGRESSING, Reason.RESTORING),
        (Phase.WAITING, Type.DEGRADED, Reason.RESTORE_WAITS),
        (Phase.FAILED, Type.DEGRADED, Reason.RESTORE_FAILED),
    ):
        plan = RestorePlan(RestoreStatus(request="monday", phase=phase.value, message="words"))
        observed = Observed({}, (), state, restore=plan)
        found = {
            finding.type: finding
            for finding in findings_of(cluster(), observed, ScalePlan(1), RollPlan(), ())
        }
        assert (found[kind].holds, found[kind].reason, found[kind].message) == (
            True,
            reason,
            "words",
        )
        assert derive(cluster(), observed, RollPlan(), ()).restore == plan.status
    assert {phase for phase in Phase if is_held(RestoreStatus(phase=phase.value))} == UNDER_WAY | {
        Phase.FAILED
    }
    assert is_held(in_phase(Phase.FAILED).status.restore)


@pytest.mark.parametrize(
    "wrong", [{"request": ""}, {"request": "a b"}, {"request": "a", "source": "../x"}, {}]
)
def test_requests_that_mean_nothing_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        MetadataRestore.model_validate(wrong)
