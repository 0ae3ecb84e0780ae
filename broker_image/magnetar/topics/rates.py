"""Limits on how much goes through in a time.

Owns: `TokenBucket`. Imports: policies. Pure: time comes in. Source: Pulsar's token buckets, which
hold a period's worth. Invariants: over a long time no more goes through than the rate; what was let
through at once is waited for afterwards, and nothing is refused.
"""

from __future__ import annotations

from magnetar.policies import Rate

UNLIMITED = 1 << 31


class _Tokens:
    """Of one kind. They may be in debt, and are never more than a period's worth unless some were
    added."""

    __slots__ = ("_limit", "_period_s", "left")

    def __init__(self, limit: int, period_s: float) -> None:
        self._limit, self._period_s, self.left = limit, period_s, float(limit)

    def fill(self, passed_s: float) -> None:
        if self._limit > 0 and self.left < self._limit:
            self.left = min(self._limit, self.left + passed_s * self._limit / self._period_s)

    def wait_s(self) -> float:
        if self._limit <= 0 or self.left >= 1:
            return 0.0
        return (1 - self.left) * self._period_s / self._limit


class TokenBucket:
    """Messages and bytes at one rate."""

    __slots__ = ("_bytes", "_messages", "_now", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        """`now` in seconds on any clock that does not go back."""
        self.rate, self._now = rate, now
        self._messages = _Tokens(rate.messages, rate.period_s)
        self._bytes = _Tokens(rate.bytes, rate.period_s)

    def take(self, messages: int, size: int) -> None:
        """So much has gone through."""
        self._messages.left -= messages
        self._bytes.left -= size

    def wait_s(self, now: float) -> float:
        """Seconds until something may go through; 0 is now."""
        passed_s, self._now = max(0.0, now - self._now), now
        self._messages.fill(passed_s)
        self._bytes.fill(passed_s)
        return max(self._messages.wait_s(), self._bytes.wait_s())

    def room(self) -> int:
        """Messages that may go through now, one at least; ask `wait_s` first."""
        return max(1, int(self._messages.left)) if self.rate.messages > 0 else UNLIMITED
