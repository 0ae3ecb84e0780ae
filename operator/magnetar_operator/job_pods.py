"""Reading a job's pods.

Owns: what driver pods say of their attempts, and which pod of a run does not start. Imports: broker_pods, conditions, job_plan, names. Pure.
Invariant: a driver's phase counts, because container statuses may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from magnetar_operator import broker_pods, names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, wall_ms_of
from magnetar_operator.job_plan import Attempt

EXECUTORS = "spark-role=executor"
"""Label that Spark gives to the executors."""


def attempt_of(pod: Manifest) -> Attempt:
    """What a driver pod's manifest says."""
    status = pod.get("status", {})
    ended: dict[str, Any] = next(
        (state["state"]["terminated"] for state in status.get("containerStatuses", []) if "terminated" in state.get("state", {})),
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
    )


def owned_by(pods: Iterable[Manifest], uids: Iterable[str]) -> list[Manifest]:
    """Those of the pods that one of these objects owns."""
    wanted = set(uids)
    return [pod for pod in pods if any(owner["uid"] in wanted for owner in pod["metadata"].get("ownerReferences", []))]


def not_started(pods: Sequence[Manifest]) -> Problem | None:
    """What keeps the first of these pods that has not begun to run from it, and what to do."""
    return next(iter(broker_pods.pod_problems([pod for pod in pods if _phase_of(pod) == "Pending"])), None)


def any_runs(pods: Sequence[Manifest]) -> bool:
    return any(_phase_of(pod) == "Running" for pod in pods)


def any_lives(pods: Sequence[Manifest]) -> bool:
    return any(_phase_of(pod) in ("Pending", "Running") for pod in pods)


def _phase_of(pod: Manifest) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))
