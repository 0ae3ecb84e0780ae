"""One run of a job: the record decides."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata.records import JobRunRecord
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.jobs.failures import Failures, Kind, Limits
from magnetar_operator.jobs.plan import (
    FAILED,
    FINISH,
    PENDING,
    REPLACED,
    RUNNING,
    STOP,
    SUCCEEDED,
    SUSPENDED,
    Attempt,
    JobView,
    plan_job,
)

SUCCESS = JobRunRecord("compaction", "succeeded", 1, 2, {})
STARTED = JobRunRecord("compaction", "started", 1, 0, {})
FAILURE = JobRunRecord("compaction", "failed", 1, 2, {}, "StorageError: disk")
FRESH = JobView(
    suspended=False,
    limits=Limits(attempts_max=3),
    last_attempt=0,
    attempts=(),
    record=None,
    other_driver="",
    now_ms=1_000_000,
)
FAILED_POD = Attempt(1, "Failed", exit_code=1, finished_ms=0)


def test_a_new_run_makes_its_first_driver() -> None:
    assert plan_job(FRESH).create == 1


def test_an_earlier_runs_driver_must_end_first() -> None:
    plan = plan_job(replace(FRESH, other_driver="prices-1"))
    assert (plan.create, plan.state) == (0, PENDING)


def test_no_attempt_begins_or_is_used_up_while_the_topic_is_missing() -> None:
    """Neither the first one nor one that follows a failure; what runs or has succeeded is left
    alone."""
    missing = replace(FRESH, obstacle=Problem(Reason.TOPIC_MISSING, "topic prices does not exist"))
    for view, used in ((missing, 0), (replace(missing, last_attempt=1, record=FAILURE), 1)):
        plan = plan_job(view)
        assert (plan.create, plan.state, plan.attempt, plan.degraded) == (0, PENDING, used, True)
        assert (plan.reason, plan.message) == (Reason.TOPIC_MISSING, "topic prices does not exist")
    assert plan_job(replace(missing, attempts=(Attempt(1, "Running"),))).state == RUNNING
    assert plan_job(replace(missing, last_attempt=1, record=SUCCESS)).state == SUCCEEDED


def test_a_pod_that_does_not_start_is_named_and_degrades_a_run_that_cannot_go_on() -> None:
    """The driver itself, or all of its executors; with one of these at work the others only get
    named."""
    waits = Problem(Reason.POD_UNSCHEDULABLE, "prices-1-exec-1: not scheduled")
    for phase, state in (("Pending", PENDING), ("Running", RUNNING)):
        view = replace(FRESH, last_attempt=1, attempts=(Attempt(1, phase),), not_started=waits)
        plan = plan_job(view)
        assert (plan.state, plan.reason, plan.message) == (state, waits.reason, waits.message)
        assert plan.degraded
    works = plan_job(replace(view, executors_run=True))
    assert (works.state, works.reason, works.degraded) == (RUNNING, Reason.RUNNING, False)
    assert works.message == "attempt 1 is at work; prices-1-exec-1: not scheduled"


def test_success_is_what_the_record_says_whatever_the_pod_says() -> None:
    for attempts in ((), (FAILED_POD,), (Attempt(1, "Running"),)):
        assert (
            plan_job(replace(FRESH, last_attempt=1, attempts=attempts, record=SUCCESS)).state
            == SUCCEEDED
        )


def test_what_a_run_has_left_to_the_next_one_is_reported() -> None:
    found = plan_job(
        replace(FRESH, last_attempt=1, record=replace(SUCCESS, message="complete up to 17:4"))
    )
    assert (found.state, found.message) == (SUCCEEDED, "complete up to 17:4")


def test_a_pod_that_succeeded_without_a_record_did_not() -> None:
    plan = plan_job(
        replace(FRESH, last_attempt=1, attempts=(Attempt(1, "Succeeded", 0),), record=STARTED)
    )
    assert plan.create == 2


def test_a_vanished_pod_is_followed_by_another() -> None:
    plan = plan_job(replace(FRESH, last_attempt=1, record=STARTED))
    assert (plan.create, plan.reason) == (2, Reason.RETRYING)


def test_attempts_wait_longer_each_time_and_end() -> None:
    recent = replace(FAILED_POD, number=2, finished_ms=999_000)
    waiting = plan_job(replace(FRESH, last_attempt=2, attempts=(recent,), record=FAILURE))
    assert (waiting.create, waiting.again_s) == (0, 9.0)
    last = plan_job(
        replace(FRESH, last_attempt=3, attempts=(replace(FAILED_POD, number=3),), record=FAILURE)
    )
    assert (last.state, last.again_s) == (FAILED, None)
    assert "StorageError: disk" in last.message


def test_unusable_arguments_are_not_tried_again() -> None:
    plan = plan_job(
        replace(
            FRESH,
            last_attempt=1,
            attempts=(replace(FAILED_POD, exit_code=2, message="no such topic"),),
        )
    )
    assert (plan.state, plan.create) == (FAILED, 0)
    assert "no such topic" in plan.message


def test_suspending_stops_the_driver_and_costs_no_attempt() -> None:
    stopped = plan_job(
        replace(FRESH, suspended=True, last_attempt=2, attempts=(Attempt(2, "Running"),))
    )
    assert (stopped.state, stopped.stop, stopped.attempt) == (SUSPENDED, True, 1)
    resumed = plan_job(replace(FRESH, last_attempt=stopped.attempt))
    assert resumed.create == 2


def test_a_driver_that_is_shown_as_failed_while_it_goes_costs_no_attempt() -> None:
    """What a kubelet makes of a pod that it stops for a suspension; with a single attempt the
    run would be over without having run."""
    once = replace(FRESH, limits=Limits(attempts_max=1), last_attempt=1)
    for seen in (
        Attempt(1, "Running"),
        Attempt(1, "Running", stopped=True),
        Attempt(1, "Failed", 143, stopped=True),
    ):
        suspended = plan_job(replace(once, suspended=True, attempts=(seen,)))
        assert (suspended.state, suspended.attempt, suspended.stop) == (
            SUSPENDED,
            0,
            not seen.stopped,
        )
        once = replace(once, last_attempt=suspended.attempt)
    for going in (Attempt(1, "Running", stopped=True), Attempt(1, "Failed", 143, stopped=True)):
        resumed = plan_job(replace(once, attempts=(going,)))
        assert (resumed.state, resumed.create, resumed.attempt) == (PENDING, 0, 0)
    gone = plan_job(once)
    assert (gone.state, gone.create) == (PENDING, 1)


def test_a_driver_that_failed_before_it_was_suspended_has_used_its_attempt_up() -> None:
    assert (
        plan_job(replace(FRESH, suspended=True, last_attempt=1, attempts=(FAILED_POD,))).attempt
        == 1
    )


def test_a_driver_that_another_client_deletes_has_used_its_attempt_up() -> None:
    evicted = plan_job(
        replace(FRESH, last_attempt=1, attempts=(Attempt(1, "Failed", 143, stopped=True),))
    )
    assert evicted.create == 2


phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])
views = st.builds(
    JobView,
    suspended=st.booleans(),
    limits=st.builds(
        Limits, st.integers(1, 4), *3 * [st.integers(0, 2)], start_timeout_s=st.none() | st.just(60)
    ),
    last_attempt=st.integers(0, 4),
    attempts=st.lists(
        st.builds(
            Attempt,
            st.integers(1, 4),
            phases,
            st.sampled_from([None, 0, 1, 2, 3]),
            stopped=st.booleans(),
            unscheduled=st.booleans(),
            evicted=st.booleans(),
            timed_out=st.booleans(),
            waited_s=st.sampled_from([0, 61]),
        ),
        max_size=3,
    ).map(tuple),
    record=st.sampled_from([None, SUCCESS, STARTED, FAILURE]),
    other_driver=st.sampled_from(["", "other"]),
    now_ms=st.integers(0, 10**9),
    obstacle=st.sampled_from([None, Problem(Reason.TOPIC_MISSING, "gone")]),
    not_started=st.sampled_from([None, Problem(Reason.POD_UNSCHEDULABLE, "no node")]),
    executors_run=st.booleans(),
    gives_way=st.sampled_from(["", FINISH, STOP]),
    deadline_ms=st.sampled_from([0, 1000, 10**9]),
)


@given(views)
def test_any_view_leads_on(view: JobView) -> None:
    """Never a second driver beside a living one; whatever is not final is looked at again; no
    attempt beyond the last."""
    plan = plan_job(view)
    alive = any(not attempt.is_over for attempt in view.attempts)
    if plan.create:
        assert not alive
        assert not view.other_driver
        assert not view.suspended
        assert view.obstacle is None
        assert plan.create == plan.attempt
        assert not view.gives_way
        assert not (view.is_late and view.attempts)
        assert plan.create not in {attempt.number for attempt in view.attempts}, (
            "its pod's name is taken"
        )
    assert (plan.again_s is None) == (plan.state in (SUCCEEDED, FAILED, SUSPENDED, REPLACED))
    if plan.state == RUNNING:
        assert alive
    assert plan.stop <= alive


def test_a_run_gives_way_to_a_newer_one() -> None:
    """Its driver is stopped, or may finish what it has begun; no attempt follows."""
    busy = replace(FRESH, last_attempt=1, attempts=(Attempt(1, "Running"),))
    stopped = plan_job(replace(busy, gives_way=STOP))
    assert (stopped.state, stopped.stop, stopped.reason) == (RUNNING, True, Reason.REPLACED)
    assert not plan_job(replace(busy, gives_way=FINISH)).stop
    waits = replace(busy, attempts=(Attempt(1, "Pending"),), gives_way=FINISH)
    assert plan_job(waits).stop
    for gives_way in (FINISH, STOP):
        over = plan_job(replace(busy, attempts=(FAILED_POD,), gives_way=gives_way, record=FAILURE))
        assert (over.state, over.create, over.again_s) == (REPLACED, 0, None)
        assert "StorageError: disk" in over.message
        assert plan_job(replace(FRESH, gives_way=gives_way)).state == REPLACED
        assert plan_job(replace(busy, gives_way=gives_way, record=SUCCESS)).state == SUCCEEDED


def test_each_kind_of_failure_has_its_own_limit() -> None:
    """Lost pods use no attempt of the job up, and the job's failures none of theirs; the message
    names the kind and the field."""
    view = replace(FRESH, limits=Limits(attempts_max=1, pods_lost=2), last_attempt=1)
    for ended in (
        None,
        Attempt(1, "Failed", 3),
        Attempt(1, "Failed", 137, evicted=True),
        Attempt(1, "Failed", None),
    ):
        plan = plan_job(replace(view, attempts=(ended,) if ended is not None else ()))
        assert plan.create == 2
        assert plan.failures == Failures.of({"podsLost": 1}, "podsLost")
    no_jvm = plan_job(replace(view, attempts=(Attempt(1, "Failed", 4),)))
    assert no_jvm.failures == Failures.of({"driverStart": 1}, "driverStart")
    lost = Failures.of({"podsLost": 2}, "podsLost")
    third = replace(view, last_attempt=3, attempts=(), failures=lost)
    assert plan_job(third).state == FAILED
    assert "(pods were lost): its pod has vanished; spec.retries.podsLost is 2" in (
        plan_job(third).message
    )
    itself = plan_job(replace(third, attempts=(Attempt(3, "Failed", 1),)))
    assert (itself.state, itself.failures) == (
        FAILED,
        Failures.of({"podsLost": 2, "job": 1}, "job"),
    )
    assert "(the job itself)" in itself.message
    assert "spec.attemptsMax is 1" in itself.message


def test_a_driver_that_does_not_start_in_time_is_stopped_and_counted_once() -> None:
    limits = Limits(unschedulable=1, driver_start=0, start_timeout_s=60)
    waiting = Attempt(1, "Pending", waited_s=60, unscheduled=True, message="no node")
    view = replace(FRESH, limits=limits, last_attempt=1, attempts=(waiting,))
    assert not plan_job(view).stop
    waiting = replace(waiting, waited_s=60.1)
    late = replace(view, attempts=(waiting,))
    plan = plan_job(late)
    assert (plan.stop, plan.failures) == (
        True,
        Failures.of({"unschedulable": 1}, "unschedulable"),
    )
    assert "no node took the driver): not within 60 s; no node" in plan.message
    counted = replace(late, failures=plan.failures, error=plan.error)
    assert plan_job(counted).failures == plan.failures
    going = plan_job(replace(counted, attempts=(replace(waiting, stopped=True),)))
    assert (going.state, going.stop, going.create) == (PENDING, False, 0)
    gone = plan_job(replace(counted, attempts=(), record=FAILURE))
    assert (gone.create, gone.failures, gone.error) == (2, plan.failures, plan.error)
    pulled = plan_job(replace(late, attempts=(replace(waiting, unscheduled=False),)))
    assert pulled.failures == Failures.of({"driverStart": 1}, "driverStart")
    over = replace(late, attempts=(), failures=pulled.failures, error=pulled.error)
    assert plan_job(over).state == FAILED
    suspended = plan_job(replace(counted, suspended=True))
    assert suspended.attempt == 1, "what has failed is used up"


def test_a_run_has_failed_when_its_deadline_has_passed() -> None:
    late = replace(FRESH, last_attempt=1, deadline_ms=1_000_000)
    waits = plan_job(replace(late, attempts=(Attempt(1, "Pending"),)))
    assert (waits.state, waits.stop) == (PENDING, True)
    runs = plan_job(replace(late, attempts=(Attempt(1, "Running"),)))
    assert not runs.stop, "its pod has the deadline"
    for view in (
        late,
        replace(late, attempts=(Attempt(1, "Failed", 1),)),
        replace(late, deadline_ms=0, attempts=(Attempt(1, "Failed", None, timed_out=True),)),
    ):
        plan = plan_job(view)
        assert (plan.state, plan.create) == (FAILED, 0)
        assert "spec.deadlineSeconds" in plan.message
    assert plan_job(replace(late, record=SUCCESS)).state == SUCCEEDED


def test_a_clock_that_was_set_back_does_not_lengthen_the_pause() -> None:
    ahead = replace(FAILED_POD, finished_ms=400 * 86_400_000)
    assert plan_job(replace(FRESH, last_attempt=1, attempts=(ahead,))).again_s == 5.0


ends = st.sampled_from(
    [
        None,
        Attempt(1, "Failed", 1),
        Attempt(1, "Failed", 3),
        Attempt(1, "Succeeded", 0),
        Attempt(1, "Failed", None),
        Attempt(1, "Failed", 137, evicted=True),
        Attempt(1, "Pending", unscheduled=True),
        Attempt(1, "Pending"),
    ]
)


@given(
    st.builds(
        Limits,
        st.integers(1, 4),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 3),
        start_timeout_s=st.just(60),
    ),
    st.lists(ends, min_size=30, max_size=30),
    st.lists(st.integers(-(10**11), 10**11), min_size=30, max_size=30),
)
def test_a_run_ends_within_its_limits_whatever_fails(
    limits: Limits, course: list[Attempt | None], jumps: list[int]
) -> None:
    """And the clock jumps between looks: every attempt is counted once."""
    view = replace(FRESH, limits=limits)
    for ended, jump in zip(course, jumps, strict=True):
        view = replace(view, now_ms=10**12 + jump)
        plan = plan_job(view)
        if plan.state == FAILED:
            break
        assert plan.create == view.last_attempt + 1
        number = plan.create
        failures = plan.failures or view.failures
        assert sum(count for _, count in failures.counts) == number - 1
        view = replace(view, last_attempt=number, failures=failures, error=plan.error)
        seen = () if ended is None else (replace(ended, number=number),)
        if seen and not seen[0].is_over:
            started = replace(view, attempts=(replace(seen[0], waited_s=61),))
            stopped = plan_job(started)
            assert stopped.stop
            assert stopped.failures is not None
            view = replace(view, failures=stopped.failures, error=stopped.error, attempts=())
        else:
            view = replace(view, attempts=seen)
    else:
        raise AssertionError("it goes on and on")
    most = sum(limits.of(kind)[0] for kind in Kind)
    assert view.last_attempt <= most
    assert plan.failures is not None
    assert sum(count for _, count in plan.failures.counts) == view.last_attempt
