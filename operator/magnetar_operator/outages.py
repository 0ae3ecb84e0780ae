"""A metadata store that does not answer.

Owns: which errors mean that, since when and why, when who waits for the end looks again, and the error that says so. Imports: magnetar.errors.
Pure: who asks the store tells the time.
Invariants: who looks again does so ever more seldom, so that thousands of resources of one store that is away leave the workers to the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.errors import StoreUnavailable

LOOK_AGAIN_MIN_S, LOOK_AGAIN_MAX_S = 2.0, 60.0
LOOKS_PER_AGE = 2.0
NO_ANSWER = (StoreUnavailable, TimeoutError)
"""Errors after which nobody knows whether the store is there; after any other one it has answered."""


class StoreAway(StoreUnavailable):
    """The store did not answer others just now, so it was not asked; `retry_s`: when to look again."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


@dataclass(frozen=True, slots=True)
class Outage:
    """A store has not answered since `since_s` (monotonic); `words` are its last error."""

    since_s: float
    words: str

    def error(self, now_s: float) -> StoreAway:
        """What to tell who would ask the store now."""
        age_s = now_s - self.since_s
        return StoreAway(self.words, min(max(age_s / LOOKS_PER_AGE, LOOK_AGAIN_MIN_S), LOOK_AGAIN_MAX_S))
