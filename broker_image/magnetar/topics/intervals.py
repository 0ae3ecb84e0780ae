"""Sets of integers kept as intervals.

Owns: `IntervalSet`. Imports: nothing. Pure.
Invariants: intervals are half-open, sorted, not empty, and neither overlap nor touch; `size` is the number of integers in the set.
Why: acknowledgements and pending entries are mostly runs, so the cost follows the number of holes, not of entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class IntervalSet:
    """A set of integers as intervals [start, end) over two sorted lists.

    Every operation is a bisection plus the intervals it touches.
    """

    __slots__ = ("_ends", "_size", "_starts")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._size = 0
        for start, end in intervals:
            self.add(start, end)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals in order; the set must not change meanwhile."""
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number) - 1
        return index >= 0 and number < self._ends[index]

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)})"

    @property
    def size(self) -> int:
        """How many integers are in the set."""
        return self._size

    @property
    def interval_count(self) -> int:
        """How many intervals the set consists of."""
        return len(self._starts)

    @property
    def start(self) -> int:
        """The smallest integer; the set must not be empty."""
        return self._starts[0]

    @property
    def end(self) -> int:
        """One more than the largest integer; the set must not be empty."""
        return self._ends[-1]

    def add(self, start: int, end: int) -> int:
        """Add [start, end); returns how many of them were not in the set."""
        assert start <= end, (start, end)
        if start == end:
            return 0
        starts, ends = self._starts, self._ends
        if not ends or start > ends[-1]:
            # The usual case, runs arriving in order, needs no search.
            starts.append(start)
            ends.append(end)
            self._size += end - start
            return end - start
        low = bisect_left(ends, start)
        high = bisect_right(starts, end)
        if low == high:
            starts.insert(low, start)
            ends.insert(low, end)
            self._size += end - start
            return end - start
        merged_start, merged_end = min(start, starts[low]), max(end, ends[high - 1])
        if high - low == 1:
            added = merged_end - merged_start - (ends[low] - starts[low])
            starts[low], ends[low] = merged_start, merged_end
        else:
            added = merged_end - merged_start - (sum(ends[low:high]) - sum(starts[low:high]))
            starts[low:high] = [merged_start]
            ends[low:high] = [merged_end]
        self._size += added
        return added

    def remove(self, start: int, end: int) -> int:
        """Remove [start, end); returns how many of them were in the set."""
        assert start <= end, (start, end)
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, start)
        high = bisect_left(starts, end)
        if low >= high or start == end:
            return 0
        first, last = starts[low], ends[high - 1]
        kept_starts: list[int] = []
        kept_ends: list[int] = []
        covered = last - first if high - low == 1 else sum(ends[low:high]) - sum(starts[low:high])
        if first < start:
            kept_starts.append(first)
            kept_ends.append(start)
            covered -= start - first
        if last > end:
            kept_starts.append(end)
            kept_ends.append(last)
            covered -= last - end
        starts[low:high] = kept_starts
        ends[low:high] = kept_ends
        self._size -= covered
        return covered

    def remove_below(self, limit: int) -> int:
        """Remove every integer below `limit`; returns how many there were."""
        if not self._starts or self._starts[0] >= limit:
            return 0
        return self.remove(self._starts[0], limit)

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()
        self._size = 0

    def first_gap(self, start: int) -> int:
        """The smallest integer >= `start` that is not in the set."""
        index = bisect_right(self._starts, start) - 1
        return self._ends[index] if index >= 0 and start < self._ends[index] else start

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) is not in the set, as intervals in order; the set must not change meanwhile."""
        starts, ends = self._starts, self._ends
        index = bisect_right(ends, start)
        while start < end:
            if index == len(starts) or starts[index] >= end:
                yield start, end
                return
            if starts[index] > start:
                yield start, starts[index]
            start = ends[index]
            index += 1

    def overlap(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) is in the set, as intervals in order; the set must not change meanwhile."""
        starts, ends = self._starts, self._ends
        index = bisect_right(ends, start)
        while index < len(starts) and starts[index] < end:
            yield max(start, starts[index]), min(end, ends[index])
            index += 1
