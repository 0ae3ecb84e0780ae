"""Sets of integers kept as intervals.

Owns: `IntervalSet`, and what is known of ranges of integers. Imports: nothing. Pure. Invariants:
intervals are half-open, sorted, not empty, and neither overlap nor touch; `size` is the number of
integers in the set; no block is empty or has more than 2 * `BLOCK_MAX` intervals, two neighbours
are not both nearly empty, and `_firsts` has the start of each. Why: acknowledgements and pending
entries are mostly runs, so the cost follows the number of holes, not of entries. The intervals lie
in blocks, because an insertion into one long list moves everything behind it: peers choose the
order in which they acknowledge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

BLOCK_MAX = 1024
"""Intervals of one block; an insertion moves no more than these, or the starts of all blocks."""


class IntervalSet:
    """A set of integers as intervals [start, end).

    Every operation is a bisection, the intervals it touches, and moves within one block. `remove`
    may add one interval, others only take away.
    """

    __slots__ = ("_count", "_ends", "_firsts", "_size", "_starts")

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._starts: list[list[int]] = []
        self._ends: list[list[int]] = []
        self._size = self._count = 0
        for start, end in intervals:
            self.add(start, end)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The intervals in order; the set must not change concurrently."""
        for starts, ends in zip(self._starts, self._ends, strict=True):
            yield from zip(starts, ends, strict=True)

    def __contains__(self, number: int) -> bool:
        firsts = self._firsts
        if not firsts or number < firsts[0]:
            return False
        at = bisect_right(firsts, number) - 1 if len(firsts) > 1 else 0
        return number < self._ends[at][bisect_right(self._starts[at], number) - 1]

    def __repr__(self) -> str:
        return f"IntervalSet({list(self)})"

    @property
    def size(self) -> int:
        """How many integers are in the set."""
        return self._size

    @property
    def interval_count(self) -> int:
        """How many intervals the set consists of."""
        return self._count

    @property
    def start(self) -> int:
        """The smallest integer; the set must not be empty."""
        return self._firsts[0]

    @property
    def end(self) -> int:
        """One more than the largest integer; the set must not be empty."""
        return self._ends[-1][-1]

    def add(self, start: int, end: int) -> int:
        """Add [start, end); returns how many of them were not in the set."""
        assert start <= end, (start, end)
        if start == end:
            return 0
        firsts = self._firsts
        if not firsts:
            firsts.append(start)
            self._starts.append([start])
            self._ends.append([end])
            self._size, self._count = end - start, 1
            return end - start
        at = max(0, bisect_right(firsts, start) - 1) if len(firsts) > 1 else 0
        if at + 1 < len(firsts) and end >= firsts[at + 1]:
            self._join(at, bisect_right(firsts, end) - 1)
        starts, ends = self._starts[at], self._ends[at]
        if start > ends[-1]:
            # The usual case, runs arriving in order, needs no search.
            starts.append(start)
            ends.append(end)
            added = end - start
            self._count += 1
        else:
            low = bisect_left(ends, start)
            high = bisect_right(starts, end)
            if low == high:
                starts.insert(low, start)
                ends.insert(low, end)
                added = end - start
                self._count += 1
            else:
                merged_start, merged_end = min(start, starts[low]), max(end, ends[high - 1])
                if high - low == 1:
                    added = merged_end - merged_start - (ends[low] - starts[low])
                    starts[low], ends[low] = merged_start, merged_end
                else:
                    added = (
                        merged_end - merged_start - (sum(ends[low:high]) - sum(starts[low:high]))
                    )
                    starts[low:high] = [merged_start]
                    ends[low:high] = [merged_end]
                    self._count -= high - low - 1
            firsts[at] = starts[0]
        self._size += added
        if len(starts) > BLOCK_MAX:
            self._split(at)
        return added

    def remove(self, start: int, end: int) -> int:
        """Remove [start, end); returns how many of them were in the set."""
        assert start <= end, (start, end)
        firsts = self._firsts
        if not firsts or start == end or end <= firsts[0]:
            return 0
        at = max(0, bisect_right(firsts, start) - 1) if len(firsts) > 1 else 0
        if at + 1 < len(firsts) and end > firsts[at + 1]:
            self._join(at, bisect_left(firsts, end) - 1)
        starts, ends = self._starts[at], self._ends[at]
        low = bisect_right(ends, start)
        high = bisect_left(starts, end)
        if low >= high:
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
        self._count += len(kept_starts) - (high - low)
        self._size -= covered
        if not starts:
            del firsts[at], self._starts[at], self._ends[at]
            return covered
        firsts[at] = starts[0]
        if len(starts) > BLOCK_MAX:
            self._split(at)
        elif len(starts) < BLOCK_MAX // 4 and len(firsts) > 1:
            at = min(at, len(firsts) - 2)
            if len(self._starts[at]) + len(self._starts[at + 1]) < BLOCK_MAX // 2:
                self._join(at, at + 1)
        return covered

    def remove_below(self, limit: int) -> int:
        """Remove every integer below `limit`; returns how many there were."""
        if not self._firsts or self._firsts[0] >= limit:
            return 0
        return self.remove(self._firsts[0], limit)

    def clear(self) -> None:
        self._firsts.clear()
        self._starts.clear()
        self._ends.clear()
        self._size = self._count = 0

    def first_gap(self, start: int) -> int:
        """The smallest integer >= `start` that is not in the set."""
        firsts = self._firsts
        if not firsts or start < firsts[0]:
            return start
        at = bisect_right(firsts, start) - 1 if len(firsts) > 1 else 0
        return max(start, self._ends[at][bisect_right(self._starts[at], start) - 1])

    def missing(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) is not in the set, as intervals in order; the set must not change
        concurrently."""
        firsts = self._firsts
        at = max(0, bisect_right(firsts, start) - 1) if len(firsts) > 1 else 0
        for block in range(at, len(firsts)):
            starts, ends = self._starts[block], self._ends[block]
            for index in range(bisect_right(ends, start), len(starts)):
                low = starts[index]
                if low >= end:
                    break
                if low > start:
                    yield start, low
                start = ends[index]
            else:
                continue
            break
        if start < end:
            yield start, end

    def overlap(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) is in the set, as intervals in order; the set must not change
        concurrently."""
        firsts = self._firsts
        at = max(0, bisect_right(firsts, start) - 1) if len(firsts) > 1 else 0
        for block in range(at, len(firsts)):
            starts, ends = self._starts[block], self._ends[block]
            for index in range(bisect_right(ends, start), len(starts)):
                if starts[index] >= end:
                    return
                yield max(start, starts[index]), min(end, ends[index])

    def _join(self, first: int, last: int) -> None:
        """Make one block of the blocks first..last, for an operation that touches all of them
        and thereby most of their intervals."""
        starts, ends = self._starts, self._ends
        for block in range(first + 1, last + 1):
            starts[first] += starts[block]
            ends[first] += ends[block]
        del (
            starts[first + 1 : last + 1],
            ends[first + 1 : last + 1],
            self._firsts[first + 1 : last + 1],
        )

    def _split(self, at: int) -> None:
        """Divide a block that has become too long."""
        half = len(self._starts[at]) // 2
        for blocks in (self._starts, self._ends):
            blocks.insert(at + 1, blocks[at][half:])
            del blocks[at][half:]
        self._firsts.insert(at + 1, self._starts[at + 1][0])


def known_within(known: Mapping[int, object], start: int, end: int) -> list[int]:
    """The keys of `known` in [start, end), in order: a walk over the shorter of the two."""
    if end - start <= len(known):
        return [ordinal for ordinal in range(start, end) if ordinal in known]
    return sorted(ordinal for ordinal in known if start <= ordinal < end)


def joined(numbers: list[int]) -> list[tuple[int, int]]:
    """The integers of a list, which is sorted on the way, as intervals [start, end) that neither
    overlap nor touch."""
    numbers.sort()
    found: list[tuple[int, int]] = []
    start = end = -1
    for number in numbers:
        if number > end:
            if end >= 0:
                found.append((start, end))
            start = number
        end = number + 1
    if end >= 0:
        found.append((start, end))
    return found
