"""When runs begin, which give way and which are forgotten."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from magnetar.resources.cron import CronSchedule, time_zone
from magnetar.resources.data_job import Run
from magnetar_operator.jobs.plan import FINAL, FINISH, STOP
from magnetar_operator.jobs.schedule import (
    ACTIVE_MAX,
    Begin,
    ScheduleView,
    Timetable,
    giving_way,
    kept,
    plan_schedule,
)

ZONE = time_zone("")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
HOURLY = Timetable(CronSchedule.parse("0 * * * *"), ZONE)
NOON = int(datetime(2026, 11, 26, 12, tzinfo=UTC).timestamp() * 1000)
NOON_RUN = "20261126-1200-u"
VIEW = ScheduleView(
    timetable=HOURLY,
    since_ms=NOON - HOUR,
    last_ms=0,
    policy="Forbid",
    deadline_s=None,
    suspended=False,
    requested="",
    history=(),
    suffix="-u",
    now_ms=NOON + MINUTE,
)


def run(name: str, state: str = "Succeeded", scheduled: bool = True) -> Run:
    return Run(run=name, state=state, scheduled_at="2026-11-26T11:00:00Z" if scheduled else "")


def test_a_time_of_the_schedule_is_run_once() -> None:
    plan = plan_schedule(VIEW)
    assert plan.begin == (Begin(NOON_RUN, NOON),)
    assert (plan.last_ms, plan.next_ms) == (NOON, NOON + HOUR)
    later = replace(VIEW, last_ms=plan.last_ms, history=(run(NOON_RUN),))
    assert plan_schedule(later).begin == ()
    forgotten = replace(later, history=())
    assert plan_schedule(forgotten).begin == ()


def test_of_several_times_that_were_missed_the_latest_is_run() -> None:
    plan = plan_schedule(replace(VIEW, since_ms=NOON - 9 * DAY))
    assert plan.begin == (Begin(NOON_RUN, NOON),)


def test_no_time_before_the_schedule_was_set_is_run() -> None:
    assert plan_schedule(replace(VIEW, since_ms=NOON)).begin == ()


def test_a_time_is_left_out_when_it_is_too_late_for_it() -> None:
    for late_ms, begins in ((60_000, True), (60_001, False)):
        plan = plan_schedule(replace(VIEW, deadline_s=60, now_ms=NOON + late_ms))
        assert bool(plan.begin) is begins
        assert plan.missed_ms == (0 if begins else NOON)
        assert plan.last_ms == (NOON if begins else 0)


def test_what_happens_while_a_run_is_under_way_is_the_users_choice() -> None:
    busy = replace(VIEW, history=(run("20261126-1100-u", "Running"),))
    waits = plan_schedule(busy)
    assert (waits.begin, waits.waiting_ms, waits.last_ms) == ((), NOON, 0)
    assert plan_schedule(replace(busy, history=(run("20261126-1100-u"),))).begin
    for policy in ("Allow", "Replace"):
        assert plan_schedule(replace(busy, policy=policy)).begin == (Begin(NOON_RUN, NOON),)
    many = tuple(run(str(number), "Running") for number in range(ACTIVE_MAX))
    assert plan_schedule(replace(busy, policy="Allow", history=many)).waiting_ms == NOON


def test_a_request_is_run_once_with_and_without_a_schedule() -> None:
    """Even beside a run under way: that one gives way, or is waited for."""
    busy = (run("old-u", "Running"),)
    for timetable in (None, HOURLY):
        view = replace(VIEW, timetable=timetable, since_ms=NOON, requested="now", history=busy)
        assert plan_schedule(view).begin == (Begin("now-u"),)
        assert plan_schedule(replace(view, history=(run("now-u"), *busy))).begin == ()
        assert plan_schedule(replace(view, suspended=True)).begin == ()


def test_a_suspended_job_begins_nothing_and_then_the_latest_time_that_was_missed() -> None:
    suspended = plan_schedule(replace(VIEW, suspended=True))
    assert (suspended.begin, suspended.last_ms) == ((), 0)
    assert plan_schedule(replace(VIEW, last_ms=suspended.last_ms)).begin


def test_a_clock_that_was_set_back_neither_repeats_a_time_nor_stops_the_schedule() -> None:
    """It had been a year ahead; what was run before that is not run again."""
    wrong = replace(VIEW, since_ms=NOON + 300 * DAY, last_ms=NOON + 365 * DAY)
    plan = plan_schedule(wrong)
    assert (plan.begin, plan.since_ms, plan.last_ms) == ((), NOON + MINUTE, NOON)
    later = plan_schedule(
        replace(wrong, since_ms=plan.since_ms, last_ms=plan.last_ms, now_ms=NOON + HOUR)
    )
    assert [each.scheduled_ms for each in later.begin] == [NOON + HOUR]


def test_who_gives_way() -> None:
    """A newer run replaces one under way; a request only ends the attempts of earlier runs."""
    older, newer = run("a", "Running"), run("b", "Pending")
    request = run("c", "Pending", scheduled=False)
    assert giving_way("Replace", (newer, older)) == {"a": STOP}
    assert giving_way("Forbid", (newer, older)) == {}
    assert giving_way("Forbid", (request, older)) == {"a": FINISH}
    assert giving_way("Allow", (request, newer, older)) == {}
    assert giving_way("Replace", (newer, run("z"))) == {}


def test_only_so_many_runs_are_remembered() -> None:
    history = tuple(run(str(n), "Succeeded" if n % 2 else "Failed") for n in range(10))
    assert [entry.run for entry in kept(history, "9", 2, 1)] == ["0", "1", "3", "9"]
    assert [entry.run for entry in kept(history, "", 0, 0)] == ["0"]
    assert kept((run("x"), run("y", "Running")), "", 0, 0)[1].run == "y"


steps = st.lists(
    st.tuples(
        st.one_of(
            st.integers(0, 3 * HOUR),
            st.integers(0, 3 * DAY),
            st.integers(-400 * DAY, 400 * DAY),
        ),
        st.sampled_from(["", "first", "second"]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)


@given(
    steps,
    st.sampled_from(["Allow", "Forbid", "Replace"]),
    st.sampled_from([None, 60, 7200]),
    st.sampled_from(["0 * * * *", "30 3 * * 1", "*/20 * * * *"]),
    st.integers(0, 3),
)
def test_whatever_the_clock_does_a_job_runs_and_repeats_nothing(
    course: list[tuple[int, str, bool, bool]],
    policy: str,
    deadline_s: int | None,
    schedule: str,
    limit: int,
) -> None:
    """The clock jumps by up to a year and back. Begun times are due, not ahead and not too late;
    what is remembered is not repeated; the history stays bounded; with the clock right again the
    next time is run."""
    table = Timetable(CronSchedule.parse(schedule), ZONE)
    now, since, last = NOON, NOON, 0
    history: tuple[Run, ...] = ()
    requested = ""

    def step(now: int, requested: str, suspended: bool) -> tuple[Begin, ...]:
        nonlocal since, last, history
        view = ScheduleView(
            table, since, last, policy, deadline_s, suspended, requested, history, "-u", now
        )
        plan = plan_schedule(view)
        assert plan == plan_schedule(view)
        since, last = plan.since_ms, plan.last_ms
        assert since <= now
        assert last <= now
        assert plan.next_ms > now
        for each in plan.begin:
            assert not suspended
            assert each.run not in {entry.run for entry in history}
            assert each.scheduled_ms <= now
            if each.scheduled_ms:
                assert table.cron.before(now, ZONE) == each.scheduled_ms
                assert deadline_s is None or now - each.scheduled_ms <= 1000 * deadline_s
        begun = tuple(
            run(each.run, "Pending", bool(each.scheduled_ms)) for each in reversed(plan.begin)
        )
        history = (*begun, *history)
        assert (
            plan_schedule(replace(view, since_ms=since, last_ms=last, history=history)).begin == ()
        )
        return plan.begin

    for passed, request, suspended, ends in course:
        now = max(NOON - 500 * DAY, now + passed)
        requested = request or requested
        step(now, requested, suspended)
        if ends:
            history = tuple(
                entry if entry.state in FINAL else entry.model_copy(update={"state": "Failed"})
                for entry in history
            )
        history = kept(history, requested + "-u" if requested else "", limit, limit)
        active = sum(entry.state not in FINAL for entry in history)
        assert len(history) <= 2 * limit + active + 2
    history = tuple(entry.model_copy(update={"state": "Failed"}) for entry in history)
    next_ms = table.cron.after(now, ZONE)
    assert next_ms is not None
    step(now, requested, False)
    history = tuple(entry.model_copy(update={"state": "Failed"}) for entry in history)
    known = {entry.run for entry in history}
    begun = [each.scheduled_ms for each in step(next_ms, requested, False) if each.scheduled_ms]
    name = datetime.fromtimestamp(next_ms / 1000, UTC).strftime("%Y%m%d-%H%M-u")
    assert begun == ([] if name in known else [next_ms])
