"""Which runs a job should have.

Owns: when a run begins, by schedule or on request; which runs under way give way to another one;
which runs that are over are forgotten. Imports: magnetar.resources, jobs.plan. Pure. Invariants: a
time of the schedule is run at most once, and again only if the clock was set back behind a run that
is forgotten; of several times that were missed the latest is run; no clock that was wrong for a
while keeps a job from running later; a request is run whatever the schedule says; the latest run
and the latest request are never forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from magnetar.resources.cron import CronSchedule
from magnetar.resources.data_job import Run
from magnetar_operator.jobs.plan import FINAL, FINISH, STOP, SUCCEEDED

ACTIVE_MAX = 10
"""Runs of one job under way at the same time."""


@dataclass(frozen=True, slots=True)
class Timetable:
    """A schedule in its zone."""

    cron: CronSchedule
    zone: ZoneInfo


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """What is known. `requested`: the token of the run that is requested ("" = none); `history`:
    runs, the latest first; `since_ms` and `last_ms` (0 = none): no time up to these is due."""

    timetable: Timetable | None
    since_ms: int
    last_ms: int
    policy: str
    deadline_s: int | None
    suspended: bool
    requested: str
    history: Sequence[Run]
    suffix: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Begin:
    """A run that begins; `scheduled_ms` is 0 for a request."""

    run: str
    scheduled_ms: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What to do. `missed_ms`, `waiting_ms`: a time that is left out because it is too late, or
    that waits for a run under way (0 = none)."""

    begin: tuple[Begin, ...]
    since_ms: int
    last_ms: int
    next_ms: int = 0
    missed_ms: int = 0
    waiting_ms: int = 0


def plan_schedule(view: ScheduleView) -> Schedule:
    """The runs that begin now."""
    known = {entry.run for entry in view.history}
    begin = []
    wanted = view.requested + view.suffix
    if view.requested and wanted not in known and not view.suspended:
        begin.append(Begin(wanted))
    if view.timetable is None:
        return Schedule(tuple(begin), 0, 0)
    since_ms, last_ms = min(view.since_ms, view.now_ms), view.last_ms
    latest_ms = view.timetable.cron.before(view.now_ms, view.timetable.zone) or 0
    if last_ms > view.now_ms:
        # The clock was set back. What has been run already is not due again at once.
        last_ms = latest_ms
    next_ms = view.timetable.cron.after(view.now_ms, view.timetable.zone) or 0
    plan = Schedule(tuple(begin), since_ms, last_ms, next_ms)
    if view.suspended or latest_ms <= max(since_ms, last_ms):
        return plan
    if view.deadline_s is not None and view.now_ms - latest_ms > 1000 * view.deadline_s:
        return Schedule(plan.begin, since_ms, last_ms, next_ms, missed_ms=latest_ms)
    run = scheduled_token(latest_ms) + view.suffix
    if run in known:
        return Schedule(plan.begin, since_ms, latest_ms, next_ms)
    active = len(begin) + sum(entry.state not in FINAL for entry in view.history)
    if active >= {"Forbid": 1, "Allow": ACTIVE_MAX}.get(view.policy, ACTIVE_MAX):
        return Schedule(plan.begin, since_ms, last_ms, next_ms, waiting_ms=latest_ms)
    return Schedule((*begin, Begin(run, latest_ms)), since_ms, latest_ms, next_ms)


def scheduled_token(wall_ms: int) -> str:
    """The name of the run of a time, the same in every pass and every operator."""
    return datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%Y%m%d-%H%M")


def giving_way(policy: str, history: Sequence[Run]) -> Mapping[str, str]:
    """Runs under way that another one takes the place of, and how."""
    requested = 0
    found = {}
    for newer, entry in enumerate(history):
        if entry.state not in FINAL:
            if policy == "Replace" and newer:
                found[entry.run] = STOP
            elif policy == "Forbid" and requested:
                found[entry.run] = FINISH
        requested += not entry.scheduled_at
    return found


def kept(history: Sequence[Run], requested: str, successful: int, failed: int) -> tuple[Run, ...]:
    """The runs to remember. `requested` is the run of the latest request: forgotten, it would
    begin again."""
    found = []
    room = {True: successful, False: failed}
    for number, entry in enumerate(history):
        if entry.state in FINAL:
            room[entry.state == SUCCEEDED] -= 1
        always = number == 0 or entry.run == requested or entry.state not in FINAL
        if always or room[entry.state == SUCCEEDED] >= 0:
            found.append(entry)
    return tuple(found)
