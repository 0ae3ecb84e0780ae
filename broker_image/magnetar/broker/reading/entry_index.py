"""Where the entries of one topic lie.

Owns: `Run` (consecutive entries that lie back to back in one log file), the index over them by
ordinal, and the tail cache's bookkeeping. Imports: topics.ledgers only. Invariants: runs are in
ordinal order and leave no gap between the first indexed ordinal and the topic's end; a run's bytes
in the file are exactly its entries back to back; entries kept in memory are the bytes that were
made durable.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise

UNKNOWN = -1
ELSEWHERE = ""
"""The incarnation of a run of which only the catalog knows where it lies."""

RELEASED_HELD_MAX = 1_000
"""Runs without entries that the tail cache may hold, besides as many as it has with entries."""


class Run:
    """Consecutive entries of one ledger in one log file. `offset` is that of the first entry's
    first byte.

    `append_ms` is when the broker appended them; where it is UNKNOWN, `message_counts` are not the
    entries' either. `messages_before` is how many messages the topic had before them, UNKNOWN if
    only storage has it.
    """

    __slots__ = (
        "append_ms",
        "bytes",
        "count",
        "file",
        "first",
        "incarnation",
        "lengths",
        "message_counts",
        "messages_before",
        "offset",
        "payload",
    )

    def __init__(
        self,
        first: int,
        incarnation: str,
        file: int,
        offset: int,
        lengths: Sequence[int],
        message_counts: Sequence[int],
        append_ms: int = UNKNOWN,
        messages_before: int = UNKNOWN,
    ) -> None:
        self.first = first
        self.count = len(lengths)
        self.incarnation = incarnation
        self.file = file
        self.offset = offset
        self.lengths = lengths if isinstance(lengths, array) else array("I", lengths)
        self.message_counts = (
            message_counts if isinstance(message_counts, array) else array("I", message_counts)
        )
        self.bytes = sum(lengths)
        self.append_ms, self.messages_before = append_ms, messages_before
        self.payload: bytes | None = None

    @property
    def end(self) -> int:
        """One more than the last ordinal."""
        return self.first + self.count

    def offsets(self) -> list[int]:
        """Where each entry begins, relative to `offset`; one more element: the end."""
        return [0, *accumulate(self.lengths)]

    def entries(self, low: int, high: int) -> list[memoryview] | None:
        """The entries low..high-1 of this run (counted from 0) if they are in memory."""
        if self.payload is None:
            return None
        view = memoryview(self.payload)
        size = self.lengths[0]
        if size and size * self.count == self.bytes and self.lengths.count(size) == self.count:
            return [view[at : at + size] for at in range(low * size, high * size, size)]
        ends = accumulate(self.lengths[low:high], initial=sum(self.lengths[:low]))
        return [view[start:end] for start, end in pairwise(ends)]


def run_elsewhere(first: int, count: int) -> Run:
    """Entries that lie in some sealed file: the bundle's catalog finds them."""
    return Run(first, ELSEWHERE, 0, 0, [0] * count, [1] * count)


class EntryIndex:
    """Runs of one topic from `first` on."""

    __slots__ = ("_firsts", "_runs")

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self._firsts: list[int] = []

    @property
    def first(self) -> int | None:
        """The first indexed ordinal, or None while nothing is indexed."""
        return self._firsts[0] if self._firsts else None

    @property
    def runs(self) -> Sequence[Run]:
        return self._runs

    def add(self, run: Run) -> None:
        """Append a run that follows the last one."""
        assert not self._runs or run.first == self._runs[-1].end, (run.first, self._runs[-1].end)
        self._runs.append(run)
        self._firsts.append(run.first)

    def drop_before(self, ordinal: int) -> int:
        """Forget the runs that lie wholly below `ordinal`: sealed files and segments have them.
        Returns how many there were."""
        count = 0
        while count < len(self._runs) and self._runs[count].end <= ordinal:
            count += 1
        del self._runs[:count]
        del self._firsts[:count]
        return count

    def messages_of(self, ordinal: int) -> int | None:
        """How many messages an entry has; None if only storage knows."""
        at = self.run_of(ordinal)
        if at is None or self._runs[at].incarnation == ELSEWHERE:
            return None
        return self._runs[at].message_counts[ordinal - self._runs[at].first]

    def lose_file(self, incarnation: str, file: int) -> None:
        """A log file is deleted: its entries lie in segments."""
        for run in self._runs:
            if (run.incarnation, run.file) == (incarnation, file) and run.payload is None:
                run.incarnation = ELSEWHERE

    def run_of(self, ordinal: int) -> int | None:
        """Index in `runs` of the run that holds `ordinal`, or None."""
        index = bisect_right(self._firsts, ordinal) - 1
        if index < 0 or ordinal >= self._runs[index].end:
            return None
        return index


class TailCache:
    """Recent entries of all topics of a broker in memory, oldest run dropped first.

    Catch-up reads do not use it, so a replay evicts no tail.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: deque[Run] = deque()
        self._released = 0
        self.bytes = 0

    def keep(self, run: Run, payload: bytes) -> None:
        """Hold the entries of a run that has just become durable, back to back as in the log."""
        run.payload = payload
        self._held.append(run)
        self.bytes += run.bytes
        while len(self._held) > 1 and (
            self.bytes > self._bytes_max or self._held[0].payload is None
        ):
            oldest = self._held.popleft()
            if oldest.payload is None:
                self._released -= 1
                continue
            oldest.payload = None
            self.bytes -= oldest.bytes

    def release(self, run: Run) -> None:
        """These entries will not be read again."""
        if run.payload is None:
            return
        run.payload = None
        self.bytes -= run.bytes
        self._released += 1
        if self._released > RELEASED_HELD_MAX + len(self._held) // 2:
            self._held = deque(held for held in self._held if held.payload is not None)
            self._released = 0
