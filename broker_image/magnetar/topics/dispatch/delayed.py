"""Entries that wait for their delivery time.

Owns: `DelayedEntries`, what a dispatcher has read and must not deliver yet. Imports: intervals.
Pure. Source: Pulsar's `deliver_at_time` with a tick, not strict: an entry may go out up to one tick
early, together with an earlier one. Invariants: `take_due` returns an added entry once, not before
a tick before its time, and not after the first call at or after it; entries beyond the memory
limit may be returned early, and the caller tests their time again. Acknowledged entries stay until
then; the caller skips them. Why intervals per tick: most delays are alike and ordinals grow with
time, so ten million entries that wait an hour are a few thousand intervals.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from magnetar.topics.intervals import IntervalSet

DELAYED_RUNS_MAX = 50_000
DELAY_TICK_MS = 1000

Filter = Callable[[int, int], Iterable[tuple[int, int]]]
"""Those runs of the ordinals [start, end) that are still to be delivered."""


class DelayedEntries:
    """Ordinals by the time at which they may be delivered.

    About `runs_max` runs are remembered with their times. Beyond that the latest ones are merged
    ("far"): only their earliest time is known, and at that time all of them are read again. That
    costs reads, and delays no other entry.
    """

    __slots__ = ("_far", "_far_ms", "_order", "_runs", "_runs_max", "_tick_ms", "_ticks")

    def __init__(self, tick_ms: int = DELAY_TICK_MS, runs_max: int = DELAYED_RUNS_MAX) -> None:
        assert tick_ms > 0 < runs_max, (tick_ms, runs_max)
        self._tick_ms, self._runs_max = tick_ms, runs_max
        # tick -> (ordinals, the earliest time of any)
        self._ticks: dict[int, tuple[IntervalSet, int]] = {}
        self._order: list[int] = []  # a heap of the ticks
        self._runs = 0
        self._far = IntervalSet()
        self._far_ms = 0

    def __bool__(self) -> bool:
        return bool(self._ticks) or bool(self._far)

    @property
    def run_count(self) -> int:
        """How many runs are remembered with their times."""
        return self._runs

    @property
    def size(self) -> int:
        """Entries that wait, those acknowledged since included."""
        return self._far.size + sum(ordinals.size for ordinals, _ in self._ticks.values())

    def must_wait(self, deliver_at_ms: int, now_ms: int, *, again: bool) -> bool:
        """Whether an entry is too early; one that has waited (`again`) may go with those of its
        tick."""
        return deliver_at_ms > (now_ms + self._tick_ms if again else now_ms)

    def defers(
        self,
        ordinal: int,
        deliver_at_ms: int,
        now_ms: int,
        still_wanted: Filter,
        *,
        again: bool,
    ) -> bool:
        """Whether an entry must wait, which it does from now on."""
        if self.must_wait(deliver_at_ms, now_ms, again=again):
            self.add(ordinal, ordinal + 1, deliver_at_ms, still_wanted)
            return True
        if again:
            # A transaction may have released it while it waited.
            self.discard(ordinal, deliver_at_ms)
        return False

    def add(self, start: int, end: int, deliver_at_ms: int, still_wanted: Filter) -> None:
        """The entries [start, end) wait until `deliver_at_ms`; `still_wanted` is asked at the
        memory limit."""
        if self._far and deliver_at_ms >= self._far_ms:
            self._far.add(start, end)
            return
        tick = deliver_at_ms // self._tick_ms
        found = self._ticks.get(tick)
        if found is None:
            ordinals, earliest = IntervalSet(), deliver_at_ms
            heapq.heappush(self._order, tick)
        else:
            ordinals, earliest = found
        before = ordinals.interval_count
        ordinals.add(start, end)
        self._runs += ordinals.interval_count - before
        self._ticks[tick] = ordinals, min(earliest, deliver_at_ms)
        if self._runs > self._runs_max:
            self._shrink(still_wanted)

    def next_ms(self) -> int | None:
        """When `take_due` will return something; None if nothing waits."""
        near = self._ticks[self._order[0]][1] if self._order else None
        if not self._far:
            return near
        return self._far_ms if near is None else min(near, self._far_ms)

    def take_due(self, now_ms: int) -> list[tuple[int, int]]:
        """Take out all entries that are due, as runs in no particular order."""
        runs: list[tuple[int, int]] = []
        while self._order and self._ticks[self._order[0]][1] <= now_ms:
            ordinals, _ = self._ticks.pop(heapq.heappop(self._order))
            self._runs -= ordinals.interval_count
            runs += ordinals
        if self._far and self._far_ms <= now_ms:
            runs += self._far
            self._far.clear()
        return runs

    def take_all(self) -> list[tuple[int, int]]:
        runs = [run for ordinals, _ in self._ticks.values() for run in ordinals]
        runs += self._far
        self.clear()
        return runs

    def discard(self, ordinal: int, deliver_at_ms: int) -> None:
        found = self._ticks.get(deliver_at_ms // self._tick_ms)
        if found is not None:
            before = found[0].interval_count
            found[0].remove(ordinal, ordinal + 1)
            self._runs += found[0].interval_count - before
        self._far.remove(ordinal, ordinal + 1)

    def clear(self) -> None:
        self._ticks.clear()
        self._order.clear()
        self._far.clear()
        self._runs = 0

    def _shrink(self, still_wanted: Filter) -> None:
        """Get down to half the limit: forget unwanted entries, then merge the latest ones."""
        ticks = sorted(self._ticks)
        for tick in ticks:
            ordinals, earliest = self._ticks.pop(tick)
            wanted = IntervalSet(run for start, end in ordinals for run in still_wanted(start, end))
            self._runs -= ordinals.interval_count - wanted.interval_count
            if wanted:
                self._ticks[tick] = wanted, earliest
        for tick in sorted(self._ticks, reverse=True):
            if self._runs <= self._runs_max // 2:
                break
            ordinals, earliest = self._ticks.pop(tick)
            self._runs -= ordinals.interval_count
            self._far_ms = min(earliest, self._far_ms) if self._far else earliest
            for start, end in ordinals:
                self._far.add(start, end)
        self._order = sorted(self._ticks)
