"""What a job does next.

Owns: the state machine of one run. Imports: jobs.failures, magnetar.metadata.records, conditions.
Pure. Invariants: the durable record decides whether a run succeeded, so a driver that
ended before anybody saw its pod is not mistaken for a failed one; at most one driver of a job is
alive; an attempt that was stopped on purpose is not used up, and its number is given again once its
pod has gone; every state that is not final asks to be looked at again; no attempt begins for a
topic that does not exist, or while a newer run takes the run's place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from magnetar.metadata.records import JobRunRecord
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.jobs.failures import NO_FAILURES, Failures, Kind, Limits

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
EXIT_EXECUTORS_LOST = 3
"""Its exit code when executors were lost more often than Spark puts up with."""
EXIT_NOT_STARTED = 4
"""Its exit code when Spark's JVM ended before it was ready."""
LOOK_AGAIN_S = 5.0
_LATE = "is not over within spec.deadlineSeconds"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One driver pod of the run. `exit_code` is None while it has none; `finished_ms` is 0 while
    it is unknown; `stopped`: it was asked to stop; `unscheduled`: no node takes it; `evicted`:
    Kubernetes ended it; `timed_out`: its deadline did; `waited_s`: how long it has not begun to
    run."""

    number: int
    phase: str
    exit_code: int | None = None
    finished_ms: int = 0
    message: str = ""
    stopped: bool = False
    waited_s: float = 0.0
    unscheduled: bool = False
    evicted: bool = False
    timed_out: bool = False

    @property
    def is_over(self) -> bool:
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class JobView:
    """What is known about the wanted run.

    `last_attempt` is the highest number that was used for it, as the status remembers; `obstacle`
    says why a driver would find nothing to do; `not_started` is what keeps a pod of the run, driver
    or executor, from starting or from being made; `executors_run`: at least one executor is at
    work; `gives_way`: FINISH or STOP, if a newer run takes its place; `failures` are those of earlier
    passes, the latest for the reason `error`; `deadline_ms`: when it must be over (0 = never).
    """

    suspended: bool
    limits: Limits
    last_attempt: int
    attempts: tuple[Attempt, ...]
    record: JobRunRecord | None
    other_driver: str
    now_ms: int
    obstacle: Problem | None = None
    not_started: Problem | None = None
    executors_run: bool = False
    gives_way: str = ""
    failures: Failures = NO_FAILURES
    error: str = ""
    deadline_ms: int = 0

    @property
    def is_late(self) -> bool:
        return 0 < self.deadline_ms <= self.now_ms


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The run's state and what to do: `create` a driver with that number (0 = none), `stop` the
    run's drivers, look `again_s` later.

    `degraded`: a person may have to act before the run, which is not over, goes on. `error`: why
    the latest attempt failed ("" = it is not known to have failed); `failures`: with it.
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
    failures: Failures | None = None


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
        going = alive is not None or leaving is not None
        used = last - 1 if going and not view.failures.includes(last) else last
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
    failed = _not_begun(view, alive, last)
    if failed is not None:
        return failed
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


def _not_begun(view: JobView, alive: Attempt, last: int) -> JobPlan | None:
    """A driver that has not begun to work is stopped when it takes too long. One that works has
    its deadline from its pod."""
    if alive.phase != "Pending":
        return None
    timeout_s, stop = view.limits.start_timeout_s, not alive.stopped
    if view.is_late:
        message = f"attempt {last} is stopped: the run {_LATE}"
        return JobPlan(PENDING, Reason.RETRYING, message, last, stop=stop)
    if timeout_s is None or alive.stopped or alive.waited_s <= timeout_s:
        return None
    failures, kind = view.failures.including(
        last, Kind.UNSCHEDULABLE if alive.unscheduled else Kind.DRIVER_START
    )
    why = f"not within {timeout_s:.0f} s; {alive.message or 'nothing is said of its pod'}"
    message = f"attempt {last} failed ({kind.words}): {why}"
    return JobPlan(PENDING, Reason.RETRYING, message, last, stop=stop, error=why, failures=failures)


def _after_failure(view: JobView, last: int) -> JobPlan:
    """The latest attempt is over or its pod has vanished, and the record does not say succeeded."""
    ended, why = _attempt(view, last), _why(view, last)
    if ended is not None and ended.exit_code == EXIT_UNUSABLE:
        return JobPlan(
            FAILED,
            Reason.FAILED,
            f"attempt {last} cannot succeed: {why}",
            last,
            again_s=None,
            error=why,
        )
    failures, kind = view.failures.including(last, _kind_of(view, ended))
    plan = _next_attempt(view, last, failures, kind, f"attempt {last} failed ({kind.words}): {why}")
    return replace(plan, error=why, failures=failures)


def _next_attempt(view: JobView, last: int, failures: Failures, kind: Kind, failed: str) -> JobPlan:
    """After a failure of that kind."""
    ended = _attempt(view, last)
    if view.is_late or (ended is not None and ended.timed_out):
        message = f"attempt {last} was the last one: the run {_LATE}"
        return JobPlan(FAILED, Reason.FAILED, message, last, again_s=None)
    most, limit = view.limits.of(kind)
    if failures.count(kind) >= most:
        return JobPlan(FAILED, Reason.FAILED, f"{failed}; {limit}", last, again_s=None)
    pause_s = view.limits.back_off_s(failures.count(kind))
    wait_s = (
        # not longer, whatever the clocks say
        min(pause_s, ended.finished_ms / 1000 + pause_s - view.now_ms / 1000)
        if ended is not None and ended.finished_ms
        else 0.0
    )
    if wait_s > 0:
        message = f"{failed}; the next one follows"
        return JobPlan(PENDING, Reason.RETRYING, message, last, again_s=wait_s)
    return _begin(view, last + 1, Reason.RETRYING, f"{failed}; attempt {last + 1} begins")


def _kind_of(view: JobView, ended: Attempt | None) -> Kind:
    """Why it failed. Without an exit code of its own it was not the driver that ended it."""
    if ended is None:
        recorded = view.record is not None and view.record.state == RECORD_FAILED
        return Kind.JOB if recorded else Kind.PODS_LOST
    if ended.stopped or ended.evicted:
        return Kind.PODS_LOST
    if ended.exit_code == EXIT_EXECUTORS_LOST:
        return Kind.PODS_LOST
    if ended.exit_code == EXIT_NOT_STARTED:
        return Kind.DRIVER_START
    return Kind.PODS_LOST if ended.exit_code is None and ended.phase == "Failed" else Kind.JOB


def _attempt(view: JobView, number: int) -> Attempt | None:
    return next((attempt for attempt in view.attempts if attempt.number == number), None)


def _why(view: JobView, number: int) -> str:
    """Why that attempt did not succeed: as the record says, or else as its pod does."""
    if view.failures.includes(number) and view.error:
        return view.error  # the record may be about an earlier one
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
