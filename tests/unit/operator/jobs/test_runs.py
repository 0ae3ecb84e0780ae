"""What plans of runs make of a job's status."""

from __future__ import annotations

from magnetar.metadata.records import JobProgressRecord, JobRunRecord
from magnetar.resources.data_job import DataJob, DataJobStatus, Run
from magnetar_operator.conditions import Problem, Reason, Type
from magnetar_operator.jobs.plan import FAILED, PENDING, RUNNING, SUCCEEDED, JobPlan
from magnetar_operator.jobs.runs import (
    RunRecords,
    entry_after,
    findings,
    is_over,
    progress_of,
    schedule_view,
    shown_plan,
)
from tests.support.samples import job

SUCCESS = JobRunRecord("compaction", "succeeded", 1000, 2000, {"keys": 7})
NOW_MS = 1_000_000_000


def with_status(found: DataJob, **fields: object) -> DataJob:
    return found.model_copy(update={"status": DataJobStatus.model_validate(fields)})


def test_a_new_schedule_begins_now_and_one_made_with_its_job_begins_with_it() -> None:
    made = job(schedule="0 3 * * *")
    created = made.metadata.model_copy(update={"creation_timestamp": "1970-01-01T00:00:09Z"})
    first = made.model_copy(update={"metadata": created})
    assert schedule_view(first, NOW_MS).since_ms == 9_000
    edited = created.model_copy(update={"generation": 2})
    assert schedule_view(made.model_copy(update={"metadata": edited}), NOW_MS).since_ms == NOW_MS
    known = {
        "schedule": "0 3 * * * Etc/UTC",
        "scheduledSince": "1970-01-01T00:00:11Z",
        "lastScheduleTime": "1970-01-01T03:00:00Z",
    }
    view = schedule_view(with_status(made, **known), NOW_MS)
    assert (view.since_ms, view.last_ms) == (11_000, 3 * 3_600_000)
    zone = with_status(job(schedule="0 3 * * *", timeZone="Europe/Berlin"), **known)
    assert (schedule_view(zone, NOW_MS).since_ms, schedule_view(zone, NOW_MS).last_ms) == (
        0 if zone.metadata.creation_timestamp else NOW_MS,
        0,
    )


def test_a_schedule_needs_a_word_to_run_beside_itself() -> None:
    assert schedule_view(job(), NOW_MS).requested == "once"
    assert schedule_view(job(schedule="@daily"), NOW_MS).requested == ""
    assert schedule_view(job(schedule="@daily", runRequest="now"), NOW_MS).requested == "now"


def test_a_run_that_is_over_stays_so_unless_its_record_says_that_it_succeeded() -> None:
    failed = Run(run="a", state=FAILED)
    assert is_over(failed, RunRecords({}, {}))
    assert not is_over(failed, RunRecords({"a": SUCCESS}, {}))
    assert is_over(Run(run="a", state=SUCCEEDED), RunRecords({}, {}))


def test_an_entry_keeps_its_first_times_and_its_last_error() -> None:
    entry = Run(run="a", state=RUNNING, started_at="1970-01-01T00:00:01Z")
    retried = entry_after(
        entry, JobPlan(PENDING, Reason.RETRYING, "m", 2, error="disk"), None, NOW_MS
    )
    assert (retried.attempts, retried.last_error) == (2, "disk")
    assert retried.started_at == entry.started_at
    done = entry_after(retried, JobPlan(SUCCEEDED, Reason.SUCCEEDED, "m", 2), SUCCESS, NOW_MS)
    assert (done.finished_at, done.result) == ("1970-01-01T00:00:02Z", {"keys": "7"})
    assert (done.message, done.last_error) == ("", "disk")


def test_the_conditions_speak_of_the_latest_run_or_of_one_that_needs_a_person() -> None:
    history = (Run(run="b", state=RUNNING), Run(run="a", state=PENDING))
    calm = JobPlan(RUNNING, Reason.RUNNING, "works", 1)
    waits = Problem(Reason.POD_UNSCHEDULABLE, "no node")
    stuck = JobPlan(PENDING, waits.reason, waits.message, 1, degraded=True)
    assert shown_plan(job(), history, {"a": calm, "b": calm}) is calm
    assert shown_plan(job(), history, {"a": stuck, "b": calm}) is stuck
    over = (Run(run="b", state=FAILED, message="attempt 3 failed"),)
    shown = shown_plan(job(), over, {})
    assert (shown.state, shown.reason, shown.message) == (
        FAILED,
        Reason.FAILED,
        "attempt 3 failed",
    )
    assert [found.type for found in findings(shown) if found.holds] == [Type.DEGRADED]
    before = shown_plan(job(schedule="@daily"), (), {})
    assert (before.reason, [found for found in findings(before) if found.holds]) == (
        Reason.SCHEDULED,
        [],
    )
    suspended = shown_plan(job(schedule="@daily", suspend=True), over, {})
    assert suspended.reason is Reason.SUSPENDED


def test_progress_is_that_of_the_latest_run_while_its_driver_works() -> None:
    record = JobProgressRecord("Reading", 1, 4, 10, 20, 31, 5, 60, 1000)
    records = RunRecords({}, {"a": record})
    found = progress_of((Run(run="a", state=RUNNING),), records)
    assert found is not None
    assert (found.phase, found.complete, found.seconds_left) == ("Reading", "31%", 60)
    assert progress_of((Run(run="a", state=PENDING),), records) is None
    assert progress_of((Run(run="b", state=RUNNING), Run(run="a", state=RUNNING)), records) is None
