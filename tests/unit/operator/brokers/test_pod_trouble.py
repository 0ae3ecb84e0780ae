"""What kubelet and scheduler say of pods, as conditions."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar_operator.brokers.scaling import ScalePlan
from magnetar_operator.brokers.status import Observed, findings_of
from magnetar_operator.conditions import Finding, Reason
from magnetar_operator.coordinators.scaling import CoordinatorPlan
from magnetar_operator.coordinators.state import CoordinatorsState
from magnetar_operator.coordinators.status import ObservedCoordinators
from magnetar_operator.coordinators.status import findings_of as findings_of_coordinators
from magnetar_operator.pods.pods import LAST_WORDS_MAX, pod_problems, problem_of
from magnetar_operator.pods.rolling import RollPlan
from tests.support.pod_states import UNSCHEDULABLE, container, ended, pod, waiting
from tests.support.samples import cluster, coordinators

PULLS = {
    "containerStatuses": [
        {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}}
    ]
}


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (UNSCHEDULABLE, Reason.POD_UNSCHEDULABLE, "not scheduled: Unschedulable: 0/3 nodes: cpu"),
        (PULLS, Reason.IMAGE_UNAVAILABLE, "ImagePullBackOff: no such tag"),
        (container(waiting("ErrImagePull")), Reason.IMAGE_UNAVAILABLE, "ErrImagePull"),
        (
            {"initContainerStatuses": container(waiting("InvalidImageName"))["containerStatuses"]},
            Reason.IMAGE_UNAVAILABLE,
            "InvalidImageName",
        ),
        (
            container(
                waiting("CrashLoopBackOff", "back-off 2m40s"),
                **ended(1, message="Traceback\n  line\nOSError: no volume\n\n"),
            ),
            Reason.POD_CRASHING,
            "it ended with exit code 1 (Error), saying: OSError: no volume",
        ),
        (
            container({"running": {}}, **ended(137, "OOMKilled")),
            Reason.POD_CRASHING,
            "it ended with exit code 137 (OOMKilled)",
        ),
        (
            container(waiting("CrashLoopBackOff"), **ended(0, "Completed")),
            Reason.POD_CRASHING,
            "it ended with exit code 0 (Completed)",
        ),
        (container(waiting("CrashLoopBackOff")), Reason.POD_CRASHING, "it ends again and again"),
        (
            container(waiting("CreateContainerConfigError", 'secret "s3" not found')),
            Reason.CONTAINER_NOT_STARTED,
            'CreateContainerConfigError: secret "s3" not found',
        ),
    ],
)
def test_each_trouble_has_its_reason_and_the_words_of_who_saw_it(
    status: dict[str, Any], reason: Reason, text: str
) -> None:
    found = problem_of(pod(**status))
    assert found is not None
    assert (found.reason, found.message) == (reason, text)


@pytest.mark.parametrize(
    "status",
    [
        {},
        container(waiting("ContainerCreating")),
        container(waiting("PodInitializing")),
        container({"running": {}}),
        container({"running": {}}, **ended(0)),
    ],
)
def test_what_only_takes_time_is_no_trouble(status: dict[str, Any]) -> None:
    assert problem_of(pod(**status)) is None


def test_last_words_are_bounded_and_the_growing_pause_is_no_news() -> None:
    """The same crash gives the same message however long the kubelet pauses, so that no status
    is written again and again."""
    crashed = [
        problem_of(
            pod(
                **container(
                    waiting("CrashLoopBackOff", f"back-off {pause}"), **ended(1, message="x" * 5000)
                )
            )
        )
        for pause in ("10s", "5m0s")
    ]
    assert crashed[0] == crashed[1]
    assert crashed[0] is not None
    assert len(crashed[0].message) < LAST_WORDS_MAX + 60


def test_every_pod_that_needs_help_is_named_with_the_remedy() -> None:
    """In their order; not one that is ready, and not one that goes anyway."""
    leaving = pod("main-broker-0", **PULLS)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = pod_problems(
        [
            pod("main-broker-10", **PULLS),
            leaving,
            pod("main-broker-1", ready=True),
            pod("main-broker-2", **UNSCHEDULABLE),
        ]
    )
    assert [(one.reason, one.about) for one in found] == [
        (Reason.POD_UNSCHEDULABLE, "main-broker-2"),
        (Reason.IMAGE_UNAVAILABLE, "main-broker-10"),
    ]
    assert (
        found[0].message == "main-broker-2: not scheduled: Unschedulable: 0/3 nodes: cpu. "
        f"{Reason.POD_UNSCHEDULABLE.remedy}"
    )
    assert pod_problems([leaving]) == []


def by_type(found: list[Finding]) -> dict[str, Finding]:
    return {finding.type.value: finding for finding in found}


def test_a_pod_in_trouble_degrades_its_resource_until_it_is_ready() -> None:
    """Brokers and coordinators alike; others that serve keep it Available."""
    wanted = cluster(replicas=2)
    sick, well = pod("main-broker-1", **PULLS), pod("main-broker-1", ready=True)
    state = ObservedCoordinators(
        {}, (pod("tx-coordinator-0", **PULLS),), CoordinatorsState(None, 0, {}, {})
    )
    for one, serving in (
        (
            findings_of(
                wanted, Observed({}, (pod(ready=True), sick), None), ScalePlan(2), RollPlan(), ()
            ),
            True,
        ),
        (
            findings_of_coordinators(
                coordinators(), wanted, state, CoordinatorPlan(1), RollPlan(), ()
            ),
            False,
        ),
    ):
        found = by_type(one)
        assert (found["Degraded"].holds, found["Degraded"].reason) == (
            True,
            Reason.IMAGE_UNAVAILABLE,
        )
        assert (found["Ready"].holds, found["Ready"].reason) == (False, Reason.IMAGE_UNAVAILABLE)
        assert found["Available"].holds is serving
    healed = by_type(
        findings_of(
            wanted, Observed({}, (pod(ready=True), well), None), ScalePlan(2), RollPlan(), ()
        )
    )
    assert not healed["Degraded"].holds


def test_a_volume_that_is_not_bound_comes_before_what_follows_from_it() -> None:
    """The scheduler's words are repeated; a claim that nobody waits for yet, or that serves
    brokers already, is no trouble."""
    claim = {("PersistentVolumeClaim", "main-storage"): {"status": {"phase": "Pending"}}}

    def degraded(*pods: dict[str, Any]) -> Finding:
        return by_type(
            findings_of(cluster(), Observed(claim, pods, None), ScalePlan(1), RollPlan(), ())
        )["Degraded"]

    found = degraded(pod(**UNSCHEDULABLE))
    assert found.reason is Reason.STORAGE_PENDING
    assert found.message.startswith(
        "claim main-storage is not bound; main-broker-0: not scheduled: Unschedulable: 0/3 nodes: "
        "cpu. "
    )
    assert not degraded().holds
    assert not degraded(pod()).holds
    assert (
        degraded(pod(ready=True), pod("main-broker-1", **UNSCHEDULABLE)).reason
        is Reason.POD_UNSCHEDULABLE
    )
