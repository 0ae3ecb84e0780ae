"""What is known of watermarks at positions whose control records are gone from memory.

Owns: `Bounds`: for each stretch of a topic before the horizon, the least watermark in it. Imports:
records. Pure. Invariants: what `at` returns is never more than the exact minimum there, so no
message behind that position is late because of it; there are at most BOUNDS_MAX stretches, and the
oldest topic still has some, for neighbours are joined.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from magnetar.watermarks.records import Anchor, Place

BOUNDS_MAX = 1_000
"""Stretches of a topic, about 200 bytes each."""
_LAST_ORDINAL = 1 << 62


class Bound(NamedTuple):
    """From the record at `anchor` up to the next bound, the watermark is nowhere less than
    `least_ms`. None: somewhere there is none."""

    anchor: Anchor
    least_ms: int | None


def least(one: int | None, other: int | None) -> int | None:
    """The lesser watermark; none is less than any."""
    return None if one is None or other is None else min(one, other)


class Bounds:
    """Stretches in the order of the topic; each ends where the next one begins, the last one at the
    horizon."""

    def __init__(self, bounds: Iterable[Bound] = ()) -> None:
        self._bounds = list(bounds)

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def at(self, place: Place) -> int | None:
        """A watermark that holds at a position before the horizon; None if none is known."""
        found = bisect_right(self._bounds, (*place, _LAST_ORDINAL), key=lambda one: one.anchor)
        return self._bounds[found - 1].least_ms if found else None

    def add(self, bound: Bound) -> None:
        """The stretch from there to the new horizon."""
        self._bounds.append(bound)
        if len(self._bounds) > BOUNDS_MAX:
            self._bounds = [
                Bound(first.anchor, least(first.least_ms, second.least_ms))
                for first, second in zip(self._bounds[::2], self._bounds[1::2], strict=False)
            ] + self._bounds[len(self._bounds) & ~1 :]

    def clear(self) -> None:
        """The topic has dropped those entries."""
        self._bounds.clear()

    def to_state(self) -> tuple[Bound, ...]:
        return tuple(self._bounds)
