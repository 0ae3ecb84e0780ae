"""A metadata store that does not answer.

Owns: which errors mean that; since when the store is unavailable, and why; when waiting resources
look again; which of them may ask concurrently; the error that reports it. Imports:
magnetar.errors. Pure: the caller passes the time. Invariants: callers look again ever more seldom,
and only one of them from time to time waits for an answer. So thousands of resources of one
unavailable store leave the workers to other resources.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.errors import StoreUnavailable

LOOK_AGAIN_MIN_S, LOOK_AGAIN_MAX_S = 2.0, 60.0
LOOKS_PER_AGE = 2.0
TRIAL_MAX_S = 10.0
"""Between two requests that find out whether a store is back."""
NO_ANSWER = (StoreUnavailable, TimeoutError)
"""Errors that leave open whether the store is there; after any other one it has
answered."""


class StoreOutage(StoreUnavailable):
    """The store did not answer others just now, so it was not asked; `retry_s`: when to look
    again (seconds)."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(message)
        self.retry_s = retry_s


@dataclass(frozen=True, slots=True)
class Outage:
    """A store has not answered since `since_s` (monotonic); `words` are its last error."""

    since_s: float
    words: str

    def error(self, now_s: float) -> StoreOutage:
        """The error for a caller that would ask the store now."""
        return StoreOutage(self.words, self.retry_s(now_s))

    def retry_s(self, now_s: float) -> float:
        """How long to leave the store alone (seconds)."""
        return min(max((now_s - self.since_s) / LOOKS_PER_AGE, LOOK_AGAIN_MIN_S), LOOK_AGAIN_MAX_S)


class CircuitBreaker:
    """For one sort of requests to a store: while it does not answer these, one is let through
    from time to time and all others are refused."""

    def __init__(self) -> None:
        self._outage: Outage | None = None
        self._trial_s = 0.0

    def admit(self, now_s: float) -> None:
        """To be called before a request. Raises StoreOutage."""
        if self._outage is None:
            return
        if now_s < self._trial_s:
            raise self._outage.error(now_s)
        self._trial_s = now_s + self._pause_s(self._outage, now_s)

    def failed(self, now_s: float, words: str) -> None:
        """A request had no answer."""
        if self._outage is None:
            self._outage = Outage(now_s, words)
            self._trial_s = now_s + self._pause_s(self._outage, now_s)
        else:
            self._outage = Outage(self._outage.since_s, words)

    def answered(self) -> bool:
        """A request had an answer, be it a refusal; whether that ends an outage."""
        ended, self._outage = self._outage is not None, None
        return ended

    def try_now(self) -> None:
        """The store may be reachable again: let the next request through."""
        self._trial_s = 0.0

    @staticmethod
    def _pause_s(outage: Outage, now_s: float) -> float:
        return min(outage.retry_s(now_s), TRIAL_MAX_S)
