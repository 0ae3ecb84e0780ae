"""Why attempts of a run fail, and how often that may be.

Owns: the kinds of failures, their limits and back-off, and counting them. Imports: clock's
arithmetic. Pure. Invariants: every attempt that failed is counted once, under one kind; an attempt
whose kind is not known any more counts as one of the job.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from magnetar.clock import doubled_s


class Kind(enum.StrEnum):
    """Why an attempt failed; the names of the fields of `spec.retries` that limit it."""

    JOB = "job"
    UNSCHEDULABLE = "unschedulable"
    DRIVER_START = "driverStart"
    PODS_LOST = "podsLost"

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Kind.JOB: "the job itself",
    Kind.UNSCHEDULABLE: "no node took the driver",
    Kind.DRIVER_START: "the driver did not start",
    Kind.PODS_LOST: "pods were lost",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """How often each kind may follow, and how long to wait before the next attempt."""

    attempts_max: int = 3
    unschedulable: int = 3
    driver_start: int = 3
    pods_lost: int = 5
    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    start_timeout_s: float | None = None

    def of(self, kind: Kind) -> tuple[int, str]:
        """The number of failures after which no attempt follows, and the field that says so."""
        return {
            Kind.JOB: (self.attempts_max, f"spec.attemptsMax is {self.attempts_max}"),
            Kind.UNSCHEDULABLE: (
                self.unschedulable + 1,
                f"spec.retries.unschedulable is {self.unschedulable}",
            ),
            Kind.DRIVER_START: (
                self.driver_start + 1,
                f"spec.retries.driverStart is {self.driver_start}",
            ),
            Kind.PODS_LOST: (
                self.pods_lost + 1,
                f"spec.retries.podsLost is {self.pods_lost}",
            ),
        }[kind]

    def back_off_s(self, failures: int) -> float:
        """How long to wait after so many failures of one kind."""
        return doubled_s(failures - 1, self.backoff_s, self.backoff_max_s)


@dataclass(frozen=True, slots=True)
class Failures:
    """The attempts of a run that failed: how many of each kind, and the kind of the latest."""

    counts: tuple[tuple[str, int], ...] = ()
    latest: str = ""

    @classmethod
    def of(cls, counts: Mapping[str, int], latest: str) -> Failures:
        return cls(tuple(sorted(counts.items())), latest)

    def count(self, kind: Kind) -> int:
        return dict(self.counts).get(kind.value, 0)

    def includes(self, attempt: int) -> bool:
        """Whether that attempt, the latest, is counted."""
        return sum(number for _, number in self.counts) >= attempt

    def including(self, attempt: int, kind: Kind) -> tuple[Failures, Kind]:
        """With the latest attempt, which failed like that unless it is counted already; and its
        kind."""
        known = dict(self.counts)
        if self.includes(attempt):
            return self, Kind(self.latest or Kind.JOB)
        unknown = attempt - 1 - sum(known.values())
        if unknown:
            known[Kind.JOB.value] = known.get(Kind.JOB.value, 0) + unknown
        known[kind.value] = known.get(kind.value, 0) + 1
        return Failures.of(known, kind.value), kind


NO_FAILURES = Failures()
