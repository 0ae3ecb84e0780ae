"""What a topic may drop.

Owns: how old the entries of a topic are and how many bytes they have, by a bounded number of marks,
and the rule of retention. Imports: none. Pure. Times are `clock.elapsed_ms` of the process that
serves the topic, which may be below 0 for entries older than the process: only differences of times
mean anything, and no wall clock is used. Source: Pulsar drops what all subscriptions have
acknowledged once it is beyond the time limit or beyond the size limit. Invariants: never drops what
a durable cursor has not acknowledged; never calls an entry older than it is (marks are thinned
towards the younger side); an entry younger than the grace stays even if nothing asks to retain it,
so that a reader which comes a moment later finds it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

MARKS_MAX = 128
MARKS_KEPT_MAX = 96
MARK_INTERVAL_MS = 1000
RESOLUTIONS = (64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
MEBIBYTE = 1 << 20


class AgeMark(NamedTuple):
    """All entries below ordinal `end` were appended at `elapsed_ms` or before, those from it on
    later. They have `total` bytes, counted from the topic's beginning."""

    end: int
    elapsed_ms: int
    total: int


class Ages:
    """Marks of one topic, oldest first.

    At most `MARKS_MAX`: beyond it marks are merged into their younger neighbours, such that the
    distance between two of them is a share of their age, the smallest of the `RESOLUTIONS` for
    which they are few enough: about an eighth for a week.
    """

    __slots__ = ("_base", "_marks", "total")

    def __init__(
        self,
        base: tuple[int, int] = (0, 0),
        marks: Iterable[tuple[int, int, int]] = (),
        total: int = 0,
    ) -> None:
        """`base` is (ordinal, bytes before it): where the first mark begins. `total` counts all
        bytes ever appended."""
        self._base = base
        self._marks = [AgeMark(*mark) for mark in marks]
        self.total = max(total, self._marks[-1].total if self._marks else base[1])

    @property
    def base(self) -> tuple[int, int]:
        """(ordinal, bytes before it) of the place where the first mark begins."""
        return self._base

    @property
    def end(self) -> int:
        """All entries below it have an age."""
        return self._marks[-1].end if self._marks else self._base[0]

    @property
    def marks(self) -> tuple[AgeMark, ...]:
        """Oldest first."""
        return tuple(self._marks)

    def observe(self, end: int, now_ms: int) -> None:
        """All entries below `end` exist, the last of them since `now_ms` at the latest; `total`
        counts their bytes."""
        marks = self._marks
        last = marks[-1] if marks else AgeMark(self._base[0], now_ms, self._base[1])
        if end <= last.end:
            return
        reached_ms = max(now_ms, last.elapsed_ms)
        if len(marks) > 1 and reached_ms - marks[-2].elapsed_ms < MARK_INTERVAL_MS:
            marks.pop()
        marks.append(AgeMark(end, reached_ms, max(self.total, last.total)))
        if len(marks) > MARKS_MAX:
            self._marks = next(
                kept
                for share in RESOLUTIONS
                if len(kept := _thinned(marks, share)) <= MARKS_KEPT_MAX or share == 1
            )

    def drop_before(self, ordinal: int) -> None:
        """Entries below `ordinal` are gone."""
        gone = bisect_right(self._marks, ordinal, key=lambda mark: mark.end)
        if gone:
            self._base = self._marks[gone - 1].end, self._marks[gone - 1].total
            del self._marks[:gone]

    def shift(self, by_ms: int) -> None:
        """Move all marks to the clock of another process, which reads `by_ms` more at the same
        moment."""
        self._marks = [mark._replace(elapsed_ms=mark.elapsed_ms + by_ms) for mark in self._marks]

    def older_than(self, cutoff_ms: int) -> int:
        """All entries below the answer were appended at `cutoff_ms` or before."""
        index = bisect_right(self._marks, cutoff_ms, key=lambda mark: mark.elapsed_ms) - 1
        return self._marks[index].end if index >= 0 else self._base[0]

    def around(self, cutoff_ms: int) -> tuple[AgeMark, AgeMark] | None:
        """The last mark at `cutoff_ms` or before and the one after it: of the entries between
        them some may be older. None if one is missing."""
        index = bisect_right(self._marks, cutoff_ms, key=lambda mark: mark.elapsed_ms)
        return (
            (self._marks[index - 1], self._marks[index]) if 0 < index < len(self._marks) else None
        )

    def appended_by(self, ordinal: int, now_ms: int) -> int:
        """When the entry `ordinal` was appended, or later; `now_ms` if no mark covers it yet."""
        index = bisect_right(self._marks, ordinal, key=lambda mark: mark.end)
        return self._marks[index].elapsed_ms if index < len(self._marks) else now_ms

    def waited_ms(self, ordinal: int, now_ms: int) -> int:
        """How long ago the entry `ordinal` was appended, or less."""
        return now_ms - self.appended_by(ordinal, now_ms)

    def bytes_before(self, ordinal: int, end: int) -> int:
        """Bytes of all entries below `ordinal`, estimated between two marks; `end` is one more
        than the last ordinal."""
        marks = self._marks
        index = bisect_left(marks, ordinal, key=lambda mark: mark.end)
        low_end, low_total = (marks[index - 1].end, marks[index - 1].total) if index else self._base
        high_end, high_total = (
            (marks[index].end, marks[index].total) if index < len(marks) else (end, self.total)
        )
        if ordinal >= high_end or high_end <= low_end:
            return high_total
        if ordinal <= low_end:
            return low_total
        return low_total + (high_total - low_total) * (ordinal - low_end) // (high_end - low_end)

    def bytes_from(self, ordinal: int, end: int) -> int:
        """Bytes of the entries from `ordinal` to `end`, estimated between two marks."""
        return max(0, self.total - self.bytes_before(ordinal, end)) if ordinal < end else 0

    def ordinal_leaving(self, size: int, end: int) -> int:
        """The smallest ordinal from which on there are at most `size` bytes."""
        wanted = self.total - size
        if wanted <= self._base[1]:
            return self._base[0]
        low, high = self._base[0], end
        while low < high:
            middle = (low + high) // 2
            if self.bytes_before(middle, end) >= wanted:
                high = middle
            else:
                low = middle + 1
        return low

    def ordinal_keeping(self, size: int, end: int) -> int:
        """The greatest ordinal from which on there are at least `size` bytes; the first one if
        there are fewer."""
        return end if size <= 0 else max(self._base[0], self.ordinal_leaving(size - 1, end) - 1)


def _thinned(marks: list[AgeMark], share: int) -> list[AgeMark]:
    """Those marks that are at least one `share`-th of their age apart, the youngest always,
    oldest first."""
    kept = [marks[-1]]
    for mark in reversed(marks[:-1]):
        age_ms = marks[-1].elapsed_ms - mark.elapsed_ms
        if kept[-1].elapsed_ms - mark.elapsed_ms >= max(MARK_INTERVAL_MS, age_ms // share):
            kept.append(mark)
    return kept[::-1]


def trim_point(
    ages: Ages,
    *,
    needed_from: int,
    end: int,
    now_ms: int,
    retention_minutes: int,
    retention_mb: int,
    grace_ms: int,
) -> int:
    """The ordinal below which everything may be dropped.

    `needed_from` is the first entry that a durable subscription has not acknowledged, `end` without
    subscriptions. A limit of -1 does not exist; what is beyond either of the limits that do exist
    is not retained.
    """
    old_enough = ages.older_than(now_ms - grace_ms)
    beyond_time = (
        ages.older_than(now_ms - retention_minutes * 60_000) if retention_minutes >= 0 else 0
    )
    beyond_size = ages.ordinal_keeping(retention_mb * MEBIBYTE, end) if retention_mb >= 0 else 0
    return min(needed_from, old_enough, max(beyond_time, beyond_size))
