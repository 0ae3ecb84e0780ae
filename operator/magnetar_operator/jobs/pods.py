"""Reading a job's pods.

Owns: what driver pods say of their attempts, which pod of a run does not start, and which executors
are to be made or deleted. Imports: pods.pods, conditions, jobs.plan, names. Pure. Invariants: a
driver's phase counts, because container statuses may be missing; executors are made for a driver
that runs, and for no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, wall_ms_of
from magnetar_operator.jobs.plan import Attempt
from magnetar_operator.pods import pods as broker_pods

DEADLINE_EXCEEDED = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class JobPods:
    """The pods of a job: its drivers, and the executors of these."""

    drivers: tuple[Manifest, ...]
    executors: tuple[Manifest, ...]

    @classmethod
    def among(cls, pods: Sequence[Manifest], job_uid: str) -> JobPods:
        drivers = owned_by(pods, [job_uid])
        return cls(tuple(drivers), tuple(owned_by(pods, _uids(drivers))))

    def of_run(self, run: str) -> JobPods:
        """Its drivers, and the executors of those at work."""
        drivers = [pod for pod in self.drivers if is_of(pod, run)]
        return JobPods(
            tuple(drivers), tuple(owned_by(self.executors, _uids(drivers_at_work(drivers))))
        )

    def driver_of_another(self, run: str) -> str:
        """The name of a driver of another run that has not ended; "" = there is none."""
        return next(
            (
                broker_pods.name_of(pod)
                for pod in self.drivers
                if not is_of(pod, run) and not attempt_of(pod).is_over
            ),
            "",
        )

    def waiting(self) -> list[str]:
        """Drivers (uids) that have not begun to run."""
        return _uids([pod for pod in self.drivers if _phase_of(pod) == "Pending"])

    def over(self) -> list[tuple[str, Manifest]]:
        """Drivers that have ended and are not being deleted, with the label of their run."""
        return [
            (str(pod["metadata"]["labels"].get(names.RUN, "")), pod)
            for pod in self.drivers
            if attempt_of(pod).is_over and not broker_pods.is_terminating(pod)
        ]


def is_of(pod: Manifest, run: str) -> bool:
    return bool(pod["metadata"]["labels"].get(names.RUN) == run[: names.LABEL_LENGTH_MAX])


def attempt_of(pod: Manifest) -> Attempt:
    """What a driver pod's manifest says."""
    status = pod.get("status", {})
    ended: dict[str, Any] = next(
        (
            state["state"]["terminated"]
            for state in status.get("containerStatuses", [])
            if "terminated" in state.get("state", {})
        ),
        {},
    )
    message = broker_pods.trouble_of(pod)
    if ended.get("exitCode") and not ended.get("message"):
        message = f"{message}; kubectl logs {broker_pods.name_of(pod)}"
    return Attempt(
        number=int(pod["metadata"]["labels"].get(names.ATTEMPT, "0")),
        phase=status.get("phase", "Pending"),
        exit_code=ended.get("exitCode"),
        finished_ms=wall_ms_of(ended["finishedAt"]) if ended.get("finishedAt") else 0,
        message=message,
        stopped=broker_pods.is_terminating(pod),
        unscheduled=any(
            condition.get("type") == "PodScheduled" and condition.get("status") == "False"
            for condition in status.get("conditions", [])
        ),
        # a kubelet gives a reason for what it ends; a driver that ends has none
        evicted=bool(status.get("reason")) and status["reason"] != DEADLINE_EXCEEDED,
        timed_out=status.get("reason") == DEADLINE_EXCEEDED,
    )


def owned_by(pods: Iterable[Manifest], uids: Iterable[str]) -> list[Manifest]:
    """Those of the pods that one of these objects owns."""
    wanted = set(uids)
    return [
        pod
        for pod in pods
        if any(owner["uid"] in wanted for owner in pod["metadata"].get("ownerReferences", []))
    ]


def not_started(pods: Sequence[Manifest]) -> Problem | None:
    """What keeps the first of these pods that has not begun to run from it, and what to do."""
    return next(
        iter(
            broker_pods.pod_problems(
                [pod for pod in pods if _phase_of(pod) in ("Pending", "Running")]
            )
        ),
        None,
    )


def any_runs(pods: Sequence[Manifest]) -> bool:
    """Whether one is at work. An executor that ends again and again is Running as well."""
    return any(_phase_of(pod) == "Running" and broker_pods.problem_of(pod) is None for pod in pods)


def drivers_at_work(drivers: Iterable[Manifest]) -> list[Manifest]:
    """Those that executors can come to."""
    return [
        pod
        for pod in drivers
        if _phase_of(pod) == "Running"
        and pod["status"].get("podIP")
        and not broker_pods.is_terminating(pod)
    ]


def left_over(executors: Iterable[Manifest], at_work: Sequence[Manifest]) -> list[Manifest]:
    """Executors to delete: their driver has ended or is stopping, or they were evicted and are
    to be made again."""
    kept = {
        broker_pods.name_of(pod)
        for pod in owned_by(executors, _uids(at_work))
        if _phase_of(pod) != "Failed"
    }
    return [
        pod
        for pod in executors
        if broker_pods.name_of(pod) not in kept and not broker_pods.is_terminating(pod)
    ]


def missing_executors(driver: Manifest, executors: Iterable[Manifest], wanted: int) -> list[int]:
    """Numbers of the executors that a driver at work lacks."""
    have = {broker_pods.name_of(pod) for pod in executors}
    return [
        number
        for number in range(1, wanted + 1)
        if names.executor_pod(broker_pods.name_of(driver), number) not in have
    ]


def _uids(pods: Iterable[Manifest]) -> list[str]:
    return [str(pod["metadata"]["uid"]) for pod in pods]


def _phase_of(pod: Manifest) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))
