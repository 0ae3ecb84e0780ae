"""Cron schedules: five fields, in a time zone, as a Kubernetes CronJob reads them.

Owns: parsing a schedule, and the times before and after a moment at which it is due. Imports:
magnetar.clock, magnetar.errors, zoneinfo. Pure. Invariants: a schedule is due in exactly those minutes whose local
time matches its fields; therefore a time that a clock change skips is not due, and one that occurs
twice is due twice; a schedule that is never due is refused.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from magnetar.clock import LocalTime, local_time
from magnetar.errors import InvalidRequest

DESCRIPTORS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_LEAP_YEAR = 2024
_HOUR, _DAY = 60, 24 * 60
_HORIZON_MINUTES = 9 * 366 * _DAY
"""29 February may be eight years away."""


@dataclass(frozen=True, slots=True)
class _Field:
    """One of the five: its name and limits, the names of its values from `low` on, and the last
    value that `*` stands for."""

    name: str
    low: int
    high: int
    end: int
    words: tuple[str, ...] = ()

    def parse(self, text: str) -> tuple[frozenset[int], bool]:
        """Its values, and whether it restricts nothing. Raises InvalidRequest."""
        values: set[int] = set()
        unrestricted = False
        for part in text.split(","):
            bounds, slash, step_text = part.partition("/")
            step = self._number(step_text, part) if slash else 1
            if step < 1:
                raise self._refused(part, "write a step of 1 or more")
            first, dash, last = bounds.partition("-")
            if bounds in ("*", "?"):
                low, high = self.low, self.end
                unrestricted |= step == 1
            else:
                low = self._value(first, part)
                high = self._value(last, part) if dash else (self.end if slash else low)
            if low > high:
                raise self._refused(part, "write the lower end of the range first")
            values.update(range(low, high + 1, step))
        return frozenset(values), unrestricted

    def _value(self, text: str, part: str) -> int:
        value = (
            self.low + self.words.index(text.lower())
            if text.lower() in self.words
            else self._number(text, part)
        )
        if not self.low <= value <= self.high:
            raise self._refused(part, f"use {self.low}..{self.high}")
        return value

    def _number(self, text: str, part: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 4):
            raise self._refused(part, f"use *, {self.low}..{self.high}, ranges, steps or lists")
        return int(text)

    def _refused(self, part: str, remedy: str) -> InvalidRequest:
        return InvalidRequest(f"{self.name} {part!r} is not valid; {remedy}")


_FIELDS = (
    _Field("minute", 0, 59, 59),
    _Field("hour", 0, 23, 23),
    _Field("day of month", 1, 31, 31),
    _Field("month", 1, 12, 12, tuple(_MONTHS)),
    _Field("day of week", 0, 7, 6, tuple(_WEEKDAYS)),  # 7 is Sunday as well
)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """When something is due. Weekdays count from Sunday, 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    @classmethod
    def parse(cls, text: str) -> CronSchedule:
        """Raises InvalidRequest that says which field is wrong and what to write."""
        words = DESCRIPTORS.get(text.strip().lower(), text).split()
        if len(words) != len(_FIELDS):
            raise InvalidRequest(
                f"{text!r} is not a schedule; write five fields (minute, hour, day of month, "
                f"month, day of week) such as '0 3 * * *', or {', '.join(sorted(DESCRIPTORS))}"
            )
        (minutes, _), (hours, _), (days, any_day), (months, _), (weekdays, any_weekday) = (
            field.parse(word) for field, word in zip(_FIELDS, words, strict=True)
        )
        found = cls(
            minutes, hours, days, months, frozenset(day % 7 for day in weekdays),
            any_day, any_weekday,
        )  # fmt: skip
        longest = max(calendar.monthrange(_LEAP_YEAR, month)[1] for month in months)
        if any_weekday and min(days) > longest:
            raise InvalidRequest(f"{text!r} is never due; its months have no day {min(days)}")
        return found

    def after(self, wall_ms: int, zone: ZoneInfo) -> int | None:
        """The first time after `wall_ms` at which it is due; milliseconds since the epoch."""
        return self._search(wall_ms // 60_000 + 1, zone, 1)

    def before(self, wall_ms: int, zone: ZoneInfo) -> int | None:
        """The last time not after `wall_ms` at which it is due."""
        return self._search(wall_ms // 60_000, zone, -1)

    def _search(self, start: int, zone: ZoneInfo, direction: int) -> int | None:
        minute = start
        while abs(minute - start) <= _HORIZON_MINUTES:
            local = _local(minute, zone)
            distance = self._distance(local, direction)
            if distance == 0:
                return minute * 60_000
            # A leap is right if the clocks do not change on the way; the last one is a minute.
            minute += direction * next(
                leap
                for leap in (distance, _to_edge(local, _HOUR, direction), 1)
                if leap <= distance
                and (
                    leap == 1
                    or _local(minute + direction * leap, zone).utc_offset_s == local.utc_offset_s
                )
            )
        return None

    def _distance(self, local: LocalTime, direction: int) -> int:
        """How many minutes of local time can be passed over: none of them matches. 0: this
        one does."""
        if local.month not in self.months or not self._is_day(local):
            return _to_edge(local, _DAY, direction)
        if local.hour not in self.hours:
            return _to_edge(local, _HOUR, direction)
        return 0 if local.minute in self.minutes else 1

    def _is_day(self, local: LocalTime) -> bool:
        """A schedule that restricts both kinds of days is due on either."""
        day = local.day in self.days
        weekday = local.weekday in self.weekdays
        return day and weekday if self.any_day or self.any_weekday else day or weekday


def time_zone(name: str) -> ZoneInfo:
    """A zone of the IANA database; "" is UTC. Raises InvalidRequest."""
    try:
        return ZoneInfo(name or "UTC")
    except (KeyError, ValueError, OSError) as error:
        raise InvalidRequest(
            f"{name!r} is not a known time zone; write a name of the IANA database such as "
            "Europe/Berlin or Etc/UTC"
        ) from error


def _local(minute: int, zone: ZoneInfo) -> LocalTime:
    return local_time(minute * 60_000, zone)


def _to_edge(local: LocalTime, length: int, direction: int) -> int:
    """Minutes to the next hour or day, or back to the last minute of the one before."""
    passed = (local.hour * 60 + local.minute) % length
    return length - passed if direction > 0 else passed + 1
