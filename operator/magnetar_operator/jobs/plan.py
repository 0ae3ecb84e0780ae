"""What a job does next.

Owns: the state machine of one run. Imports: clock's arithmetic, magnetar.metadata.records,
conditions. Pure. Invariants: the durable record decides whether a run succeeded, so a driver that
ended before anybody saw its pod is not mistaken for a failed one; at most one driver of a job is
alive; an attempt that was stopped on purpose is not used up, and its number is given again once its
pod has gone; every state that is not final asks to be looked at again; no attempt begins for a
topic that does not exist, or while a newer run takes the run's place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from magnetar.clock import doubled_s
from magnetar.metadata.records import JobRunRecord
from magnetar_operator.conditions import Problem, Reason

RECORD_SUCCEEDED, RECORD_FAILED = "succeeded", "failed"
PENDING, RUNNING, SUCCEEDED, FAILED, SUSPENDED, REPLACED, SCHEDULED = (
    "Pending",
    "Running",
    "Succeeded",
    "Failed",
    "Suspended",
    "Replaced",
    "Scheduled",
)
FINAL = (SUCCEEDED, FAILED, REPLACED)
FINISH, STOP = "finish", "stop"
"""How a run gives way to a newer one: its driver may finish and gets no successor, or is stopped."""
EXIT_UNUSABLE = 2
"""The driver's exit code for arguments or an environment that will not do: another attempt would
end the same way."""
BACKOFF_BASE_S, BACKOFF_MAX_S = 5.0, 300.0
LOOK_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One driver pod of the run. `exit_code` is None while it has none; `finished_ms` is 0 while
    it is unknown; `stopped`: it was asked to stop."""

    number: int
    phase: str
    exit_code: int | None = None
    finished_ms: int = 0
    message: str = ""
    stopped: bool = False

    @property
    def is_over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class JobView:
    """What is known about the wanted run.

    `last_attempt` is the highest number that was used for it, as the status remembers; `obstacle`
    says why a driver would find nothing to do; `not_started` is what keeps a pod of the run, driver
    or executor, from starting or from being made; `executors_run`: at least one executor is at
    work; `gives_way`: FINISH or STOP, if a newer run takes its place.
    """

    suspended: bool
    attempts_max: int
    last_attempt: int
    attempts: tuple[Attempt, ...]
    record: JobRunRecord | None
    other_driver: str
    now_ms: int
    obstacle: Problem | None = None
    not_started: Problem | None = None
    executors_run: bool = False
    gives_way: str = ""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The run's state and what to do: `create` a driver with that number (0 = none), `stop` the
    run's drivers, look `again_s` later.

    `degraded`: a person may have to act before the run, which is not over, goes on. `error`: why
    the latest attempt failed ("" = it is not known to have failed).
    """

    state: str
    reason: Reason
    message: str
    attempt: int
    create: int = 0
    stop: bool = False
    again_s: float | None = LOOK_AGAIN_S
    degraded: bool = False
    error: str = ""


def plan_job(view: JobView) -> JobPlan:
    """One step of the wanted run."""
    last = max([view.last_attempt, *(attempt.number for attempt in view.attempts)])
    if view.record is not None and view.record.state == RECORD_SUCCEEDED:
        return JobPlan(
            SUCCEEDED,
            Reason.SUCCEEDED,
            view.record.message or "the run succeeded",
            last,
            again_s=None,
        )
    alive = next((attempt for attempt in view.attempts if not attempt.is_over), None)
    # A kubelet shows a pod that it has stopped as Failed until the object goes, which says nothing
    # about the attempt.
    leaving = next(
        (attempt for attempt in view.attempts if attempt.stopped and attempt.number == last), None
    )
    if view.suspended:
        # A driver that is stopped on purpose used no attempt up: its number is given again.
        used = last - 1 if alive is not None or leaving is not None else last
        stop = alive is not None and not alive.stopped
        return JobPlan(
            SUSPENDED, Reason.SUSPENDED, Reason.SUSPENDED.meaning, used, stop=stop, again_s=None
        )
    if view.gives_way:
        return _give_way(view, alive, last)
    if leaving is not None and last > view.last_attempt:
        message = f"attempt {last} was stopped; it begins again when its pod has gone"
        return JobPlan(PENDING, Reason.PENDING, message, last - 1)
    if alive is not None:
        return _under_way(view, alive, last)
    if view.other_driver:
        return JobPlan(
            PENDING,
            Reason.PENDING,
            f"waits until the earlier run's driver {view.other_driver} has ended",
            last,
        )
    if last == 0:
        return _begin(view, 1, Reason.PENDING, "attempt 1 begins")
    return _after_failure(view, last)


def _give_way(view: JobView, alive: Attempt | None, last: int) -> JobPlan:
    """A newer run takes its place. A driver that has not begun to work is not waited for."""
    reason = Reason.REPLACED
    if alive is not None and alive.phase == "Running" and view.gives_way == FINISH:
        return _under_way(view, alive, last)
    if alive is not None:
        state = RUNNING if alive.phase == "Running" else PENDING
        message = f"attempt {last} is stopped: a newer run takes its place"
        return JobPlan(state, reason, message, last, stop=not alive.stopped)
    failed = f"; attempt {last} had ended: {_why(view, last)}" if last else ""
    return JobPlan(REPLACED, reason, f"{reason.meaning}{failed}", last, again_s=None)


def _under_way(view: JobView, alive: Attempt, last: int) -> JobPlan:
    """A driver runs. Its work goes on with a single executor, and not without one."""
    running, waits = alive.phase == "Running", view.not_started
    state, reason = (RUNNING, Reason.RUNNING) if running else (PENDING, Reason.PENDING)
    if waits is not None and not view.executors_run:
        return JobPlan(state, waits.reason, waits.message, last, degraded=True)
    message = (
        alive.message
        or f"attempt {alive.number} {'is at work' if running else 'waits for its pod'}"
    )
    return JobPlan(
        state, reason, f"{message}; {waits.message}" if waits is not None else message, last
    )


def _after_failure(view: JobView, last: int) -> JobPlan:
    """The latest attempt is over or its pod has vanished, and the record does not say succeeded."""
    return replace(_next_attempt(view, last), error=_why(view, last))


def _next_attempt(view: JobView, last: int) -> JobPlan:
    ended, why = _attempt(view, last), _why(view, last)
    if ended is not None and ended.exit_code == EXIT_UNUSABLE:
        return JobPlan(
            FAILED, Reason.FAILED, f"attempt {last} cannot succeed: {why}", last, again_s=None
        )
    if last >= view.attempts_max:
        return JobPlan(
            FAILED,
            Reason.FAILED,
            f"attempt {last} of {view.attempts_max} failed: {why}",
            last,
            again_s=None,
        )
    backoff_s = doubled_s(last - 1, BACKOFF_BASE_S, BACKOFF_MAX_S)
    wait_s = (
        (ended.finished_ms / 1000 + backoff_s - view.now_ms / 1000)
        if ended is not None and ended.finished_ms
        else 0.0
    )
    if wait_s > 0:
        return JobPlan(
            PENDING,
            Reason.RETRYING,
            f"attempt {last} failed: {why}; the next one follows",
            last,
            again_s=wait_s,
        )
    return _begin(
        view, last + 1, Reason.RETRYING, f"attempt {last} failed: {why}; attempt {last + 1} begins"
    )


def _attempt(view: JobView, number: int) -> Attempt | None:
    return next((attempt for attempt in view.attempts if attempt.number == number), None)


def _why(view: JobView, number: int) -> str:
    """Why that attempt did not succeed: as the record says, or else as its pod does."""
    if view.record is not None and view.record.state == RECORD_FAILED and view.record.message:
        return view.record.message
    ended = _attempt(view, number)
    return (
        ended.message if ended is not None else "its pod has vanished"
    ) or "the driver ended without a result; see its log"


def _begin(view: JobView, number: int, reason: Reason, message: str) -> JobPlan:
    """Make the driver of this attempt, or use no attempt up while it would find nothing to do."""
    if view.obstacle is not None:
        return JobPlan(
            PENDING, view.obstacle.reason, view.obstacle.message, number - 1, degraded=True
        )
    return JobPlan(PENDING, reason, message, number, create=number)
