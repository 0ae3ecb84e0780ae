"""Counts of a minute, by size.

Owns: `MinuteHistogram`, what Pulsar's metrics have in place of Prometheus' histograms. Imports:
nothing. Pure: time comes in. Invariants: a value is counted in one bucket only; what is read is of
a whole minute, because those who read it divide it by sixty.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

MINUTE_S = 60.0


class Minute(NamedTuple):
    """Values of a minute in each bucket, and what they add up to."""

    buckets: Sequence[float]
    total: float = 0.0

    @property
    def values(self) -> float:
        return sum(self.buckets)


class MinuteHistogram:
    """Counts of the minute under way, and those of the last whole one. The last bucket is for
    values above all `bounds`."""

    __slots__ = ("_bounds", "_buckets", "_last", "_since", "_total")

    def __init__(self, bounds: Sequence[float], now: float) -> None:
        """`now` in seconds on any clock that does not go back."""
        self._bounds = bounds
        self._last: Minute | None = None
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._since, self._buckets, self._total = now, [0] * (len(self._bounds) + 1), 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count so many of one value."""
        self._buckets[bisect_left(self._bounds, value)] += count
        self._total += count * value

    def read(self, now: float) -> Minute:
        """The last whole minute, or longer and scaled; before there is one, what there is."""
        elapsed = now - self._since
        if elapsed < MINUTE_S:
            return self._last or Minute(self._buckets, self._total)
        share = MINUTE_S / elapsed
        self._last = Minute([share * found for found in self._buckets], share * self._total)
        self._begin(now)
        return self._last
