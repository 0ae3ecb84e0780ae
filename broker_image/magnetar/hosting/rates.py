"""Rates of counters.

Owns: `RateMeter`. Imports: nothing. Pure: time comes in. Invariant: counting adds to plain
integers; a rate costs something only when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence

RATE_INTERVAL_S = 10.0


class RateMeter:
    """Rates of a row of counters since the last read, but over `RATE_INTERVAL_S`
    at least (or since the beginning)."""

    __slots__ = ("_counts", "_rates", "_since")

    def __init__(self, now: float, counters: int, counts: Sequence[int] | None = None) -> None:
        """`now` in seconds on any clock that does not go back; all counters are 0 unless
        `counts` says where they are."""
        self._since = now
        self._counts: Sequence[int] = (0,) * counters if counts is None else tuple(counts)
        self._rates: Sequence[float] | None = None

    def rates(self, now: float, counts: Sequence[int]) -> Sequence[float]:
        """Per second, for each counter."""
        elapsed = now - self._since
        if self._rates is not None and elapsed < RATE_INTERVAL_S:
            return self._rates
        rates = [
            (count - before) / elapsed if elapsed > 0 else 0.0
            for count, before in zip(counts, self._counts, strict=True)
        ]
        if elapsed >= RATE_INTERVAL_S:
            self._since, self._counts, self._rates = now, tuple(counts), rates
        return rates
