"""A job's runs in its status.

Owns: what the plans of runs make of the history, of the conditions and of the fields about the
schedule. Imports: jobs.plan, jobs.schedule, conditions, names, magnetar.resources. Pure.
Invariants: a run that is over stays as it is, unless its record says after all that it succeeded;
the conditions speak of the latest run, or of one under way that needs a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.metadata.records import JobProgressRecord, JobRunRecord
from magnetar.resources.cron import CronSchedule, time_zone
from magnetar.resources.data_job import DEFAULT_RUN, DataJob, JobProgress, Run
from magnetar_operator import names
from magnetar_operator.conditions import Finding, Reason, Type, timestamp, wall_ms_of
from magnetar_operator.jobs.failures import Limits
from magnetar_operator.jobs.plan import (
    FAILED,
    FINAL,
    PENDING,
    RECORD_SUCCEEDED,
    REPLACED,
    RUNNING,
    SCHEDULED,
    SUCCEEDED,
    SUSPENDED,
    JobPlan,
)
from magnetar_operator.jobs.schedule import Begin, Schedule, ScheduleView, Timetable, kept

_REASONS = {SUCCEEDED: Reason.SUCCEEDED, FAILED: Reason.FAILED, REPLACED: Reason.REPLACED}


@dataclass(frozen=True, slots=True)
class RunRecords:
    """The durable records of runs, by run, and how far drivers say that they are."""

    found: Mapping[str, JobRunRecord]
    progress: Mapping[str, JobProgressRecord]

    def of(self, run: str) -> JobRunRecord | None:
        return self.found.get(run)

    def succeeded(self, run: str) -> bool:
        record = self.of(run)
        return record is not None and record.state == RECORD_SUCCEEDED


def requested_token(job: DataJob) -> str:
    """The token of the run that is requested; "" = a schedule alone decides."""
    wanted = job.spec.run_request
    return "" if job.spec.schedule is not None and wanted == DEFAULT_RUN else wanted


def requested_run(job: DataJob) -> str:
    """The run that is requested; "" = none."""
    token = requested_token(job)
    return names.run_id(token, job.metadata.uid) if token else ""


def schedule_view(job: DataJob, now_ms: int) -> ScheduleView:
    """What the schedule is decided by. A schedule that is new begins now; one that was created
    with its job, with that."""
    spec, status = job.spec, job.status
    timetable, since_ms, last_ms = None, 0, 0
    if spec.schedule is not None:
        timetable = Timetable(CronSchedule.parse(spec.schedule), time_zone(spec.time_zone))
        if status.schedule == _schedule_text(job):
            since_ms = _wall_ms(status.scheduled_since)
            last_ms = _wall_ms(status.last_schedule_time)
        elif job.metadata.generation <= 1 and job.metadata.creation_timestamp:
            since_ms = wall_ms_of(job.metadata.creation_timestamp)
        else:
            since_ms = now_ms
    return ScheduleView(
        timetable=timetable,
        since_ms=since_ms,
        last_ms=last_ms,
        policy=spec.concurrency_policy,
        deadline_s=spec.starting_deadline_seconds,
        suspended=spec.suspend,
        requested=requested_token(job),
        history=status.history,
        suffix=names.run_id("", job.metadata.uid),
        now_ms=now_ms,
    )


def limits_of(job: DataJob) -> Limits:
    """How often its runs may fail."""
    spec, retries = job.spec, job.spec.retries
    return Limits(
        attempts_max=spec.attempts_max,
        unschedulable=retries.unschedulable,
        driver_start=retries.driver_start,
        pods_lost=retries.pods_lost,
        backoff_s=retries.backoff_seconds,
        backoff_max_s=retries.backoff_max_seconds,
        start_timeout_s=retries.start_timeout_seconds,
    )


def with_deadline(job: DataJob, entry: Run, now_ms: int) -> Run:
    """The run with the end that its first driver gives it, if it has none yet. Another deadline
    in the spec is one for later runs."""
    seconds = job.spec.deadline_seconds
    if seconds is None or entry.attempts:
        return entry
    return entry.model_copy(update={"deadline_at": timestamp(now_ms + 1000 * seconds)})


def with_begun(history: Sequence[Run], begin: Sequence[Begin]) -> tuple[Run, ...]:
    """The history with the runs that begin now, the latest first."""
    new = [
        Run(
            run=each.run,
            state=PENDING,
            scheduled_at=timestamp(each.scheduled_ms) if each.scheduled_ms else "",
            message="the run begins",
        )
        for each in begin
    ]
    return (*reversed(new), *history)


def is_over(entry: Run, records: RunRecords) -> bool:
    """Whether nothing is to be decided about it any more."""
    return entry.state in FINAL and (entry.state == SUCCEEDED or not records.succeeded(entry.run))


def entry_after(entry: Run, plan: JobPlan, record: JobRunRecord | None, now_ms: int) -> Run:
    """The run's entry as its plan says."""
    now, final = timestamp(now_ms), plan.state in FINAL
    succeeded = plan.state == SUCCEEDED and record is not None
    started = timestamp(record.started_ms) if record is not None and record.started_ms else ""
    finished = timestamp(record.finished_ms) if record is not None and record.finished_ms else now
    return Run(
        run=entry.run,
        state=plan.state,
        scheduled_at=entry.scheduled_at,
        attempts=plan.attempt,
        started_at=started or entry.started_at or (now if plan.attempt else ""),
        finished_at=(entry.finished_at or finished) if final else "",
        message=record.message if succeeded and record is not None else plan.message,
        failures=dict(plan.failures.counts) if plan.failures is not None else entry.failures,
        last_failure=plan.failures.latest if plan.failures is not None else entry.last_failure,
        deadline_at=entry.deadline_at if plan.attempt else "",
        last_error=plan.error or entry.last_error,
        result={name: str(value) for name, value in record.result.items()}
        if succeeded and record is not None
        else {},
    )


def remembered(job: DataJob, history: Sequence[Run]) -> tuple[Run, ...]:
    """The history within its limits."""
    spec = job.spec
    return kept(
        history,
        requested_run(job),
        spec.successful_runs_history_limit,
        spec.failed_runs_history_limit,
    )


def shown_plan(job: DataJob, history: Sequence[Run], plans: Mapping[str, JobPlan]) -> JobPlan:
    """What the job's conditions say."""
    troubled = next((plan for plan in plans.values() if plan.degraded), None)
    if troubled is not None:
        return troubled
    latest = history[0] if history else None
    if latest is not None and latest.run in plans:
        return plans[latest.run]
    if job.spec.suspend and (latest is None or job.spec.schedule is not None):
        return JobPlan(SUSPENDED, Reason.SUSPENDED, Reason.SUSPENDED.meaning, 0)
    if latest is None:
        return JobPlan(SCHEDULED, Reason.SCHEDULED, Reason.SCHEDULED.meaning, 0)
    message = latest.message or (
        "the run succeeded" if latest.state == SUCCEEDED else _REASONS[latest.state].meaning
    )
    return JobPlan(latest.state, _REASONS[latest.state], message, latest.attempts)


def findings(plan: JobPlan) -> list[Finding]:
    """The conditions of a job of which `plan` is shown."""
    rest = (*FINAL, SUSPENDED, SCHEDULED)
    return [
        Finding(
            Type.PROGRESSING,
            plan.state not in rest and not plan.degraded,
            plan.reason,
            plan.message,
        ),
        Finding(Type.DEGRADED, plan.degraded or plan.state == FAILED, plan.reason, plan.message),
        Finding(Type.READY, plan.state == SUCCEEDED, plan.reason, plan.message),
    ]


def progress_of(history: Sequence[Run], records: RunRecords) -> JobProgress | None:
    """How far the latest run is, if its driver is at work and says so."""
    record = records.progress.get(history[0].run) if history else None
    if record is None or history[0].state != RUNNING:
        return None
    return JobProgress(
        phase=record.phase,
        complete=f"{record.percent}%" if record.percent is not None else "",
        topics_done=record.topics_done,
        topics_total=record.topics_total,
        bytes_done=record.bytes_done,
        bytes_planned=record.bytes_planned,
        bytes_per_second=record.bytes_per_s,
        seconds_left=record.eta_s,
        updated_at=timestamp(record.updated_ms),
    )


def status_fields(
    job: DataJob,
    planned: Schedule,
    history: Sequence[Run],
    plan: JobPlan,
    progress: JobProgress | None = None,
) -> dict[str, Any]:
    """Everything in the status but the conditions."""
    latest = history[0] if history else None
    run, attempt = (latest.run, latest.attempts) if latest is not None else ("", 0)
    successes = [entry.finished_at for entry in history if entry.state == SUCCEEDED]
    scheduled = job.spec.schedule is not None
    return {
        "observed_generation": job.metadata.generation,
        "state": plan.state if latest is None or plan.state == SUSPENDED else latest.state,
        "run": run,
        "attempt": attempt,
        "driver_pod": names.driver_pod(job.name, job.metadata.uid, run, attempt) if attempt else "",
        "progress": progress,
        "history": tuple(history),
        "schedule": _schedule_text(job) if scheduled else "",
        "scheduled_since": timestamp(planned.since_ms) if scheduled else "",
        "last_schedule_time": timestamp(planned.last_ms) if planned.last_ms else "",
        "next_schedule_time": timestamp(planned.next_ms)
        if planned.next_ms and not job.spec.suspend
        else "",
        "last_successful_time": max([*successes, job.status.last_successful_time]),
    }


def _schedule_text(job: DataJob) -> str:
    return f"{job.spec.schedule} {job.spec.time_zone}"


def _wall_ms(text: str) -> int:
    return wall_ms_of(text) if text else 0
