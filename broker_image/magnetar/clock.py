"""Time and chance.

Owns: the only interface through which any part of the system reads time or draws randomness, its
real implementation, pauses between attempts, and what a time is called. Imports: the standard library only. Every other
module takes a `Clock`; the simulation passes one driven by its seed. Invariant: with the same
`Clock` and the same inputs, every other module behaves identically.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Protocol

DOUBLINGS_MAX = 60
"""Beyond any pause; a float would overflow after a thousand failures."""


class Clock(Protocol):
    """Reads time and draws chance."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump in either direction."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back while the process runs; stands still while the machine is
        suspended."""
        ...

    def boottime(self) -> float:
        """Seconds that never go back and count suspension too: what a lease is measured by."""
        ...

    def random_bits(self, bits: int) -> int:
        """A uniformly random integer of `bits` bits."""
        ...

    def uniform(self, low: float, high: float) -> float:
        """A uniformly random float in [low, high]: jitter and back-off."""
        ...


class SystemClock:
    """The machine's clocks and the system's randomness."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def random_bits(self, bits: int) -> int:
        return self._random.getrandbits(bits)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


def elapsed_ms(clock: Clock) -> int:
    """`monotonic` in milliseconds: what decides about data goes by time that a process saw pass,
    never by differences of wall clocks.

    Of one process only: another one's readings begin elsewhere.
    """
    return int(clock.monotonic() * 1000)


def doubled_s(failures: int, first_s: float, last_s: float) -> float:
    """`first_s`, doubled with each failure up to `last_s`."""
    return min(last_s, first_s * 2.0 ** min(failures, DOUBLINGS_MAX))


def back_off_s(clock: Clock, failures: int, first_s: float, last_s: float) -> float:
    """How long to wait after so many failures in a row: it doubles from `first_s` to `last_s`,
    each time shortened at random by up to a half."""
    return doubled_s(failures, first_s, last_s) * clock.uniform(0.5, 1.0)


def iso8601(wall_ms: int) -> str:
    """A wall time as people and Pulsar's statistics read it: ISO 8601 with milliseconds, UTC."""
    return (
        datetime.fromtimestamp(wall_ms / 1000, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def wall_ms_of(text: str) -> int:
    """The inverse of `iso8601`, for whatever ISO 8601 can say; local time without a zone. Raises
    ValueError."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class LocalTime:
    """A minute as the clocks of a time zone show it. `weekday` counts from Sunday, 0."""

    month: int
    day: int
    weekday: int
    hour: int
    minute: int
    utc_offset_s: float


def local_time(wall_ms: int, zone: tzinfo) -> LocalTime:
    """What the clocks of `zone` show at a wall time."""
    local = datetime.fromtimestamp(wall_ms // 1000, zone)
    offset = local.utcoffset()
    return LocalTime(
        local.month,
        local.day,
        local.isoweekday() % 7,
        local.hour,
        local.minute,
        offset.total_seconds() if offset is not None else 0.0,
    )
