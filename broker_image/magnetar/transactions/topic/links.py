"""Where committed entries came from.

Owns: the map from positions of the partition that markers assigned to the sidecar entries that have
their bytes. Imports: participant_records. Pure. Invariants: markers come in the order of their ids,
so a new link is always the last one; a link is kept until the partition has trimmed past it; links
that continue each other on both sides are merged; a link costs 36 bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from magnetar.transactions.participant_records import Place

_COUNT_MAX = (1 << 32) - 1


class LinkColumns:
    """Links into one ledger of the partition, in any order: entry there, sidecar ledger and
    first entry, count."""

    __slots__ = ("counts", "entries", "source_firsts", "source_ledgers")

    def __init__(self) -> None:
        self.entries, self.source_ledgers, self.source_firsts = array("Q"), array("Q"), array("Q")
        self.counts = array("I")

    def extend(
        self,
        entries: Iterable[int],
        source_ledger: int,
        source_firsts: array[int],
        counts: array[int],
    ) -> None:
        """Add what came from one ledger of the sidecar."""
        self.entries.extend(array("Q", entries))
        self.source_ledgers.extend(array("Q", [source_ledger]) * len(counts))
        self.source_firsts.extend(source_firsts)
        self.counts.extend(counts)

    def sort(self) -> None:
        """By the partition's entries; of what is in order already nothing is moved."""
        if self.entries.tolist() == (ordered := sorted(self.entries)):
            return
        places = sorted(range(len(ordered)), key=self.entries.__getitem__)
        for column in (self.source_ledgers, self.source_firsts, self.counts):
            column[:] = array(column.typecode, map(column.__getitem__, places))
        self.entries[:] = array("Q", ordered)


class Links:
    """Parallel arrays, one element per link, in the partition's order."""

    __slots__ = ("_counts", "_entries", "_ledgers", "_source_firsts", "_source_ledgers")

    def __init__(self) -> None:
        self._ledgers, self._entries = array("Q"), array("Q")
        self._source_ledgers, self._source_firsts = array("Q"), array("Q")
        self._counts = array("I")

    def add(self, target: Place, span: tuple[int, int, int]) -> None:
        """The entries from `target` on are the `span` (ledger, first, count) of the sidecar; the
        greatest ids so far."""
        ledger, first, count = span
        if self._counts:
            last = self._counts[-1]
            after = (self._ledgers[-1], self._entries[-1] + last)
            assert target >= after, (target, after)
            source = (self._source_ledgers[-1], self._source_firsts[-1] + last)
            if (target, (ledger, first)) == (after, source) and last + count <= _COUNT_MAX:
                self._counts[-1] = last + count
                return
        self._ledgers.append(target[0])
        self._entries.append(target[1])
        self._source_ledgers.append(ledger)
        self._source_firsts.append(first)
        self._counts.append(count)

    def extend(self, ledger: int, columns: LinkColumns) -> None:
        """Add the links of a whole ledger, a later one than all before."""
        columns.sort()
        self._ledgers.extend(array("Q", [ledger]) * len(columns.counts))
        self._entries.extend(columns.entries)
        self._source_ledgers.extend(columns.source_ledgers)
        self._source_firsts.extend(columns.source_firsts)
        self._counts.extend(columns.counts)

    def find(self, position: Place) -> tuple[Place, int] | None:
        """The sidecar position of an entry of the partition, and how many follow it on both
        sides, itself included; None if it is no link."""
        at = self._at(position)
        if at < 0 or self._ledgers[at] != position[0]:
            return None
        within = position[1] - self._entries[at]
        left = self._counts[at] - within
        return (
            ((self._source_ledgers[at], self._source_firsts[at] + within), left)
            if left > 0
            else None
        )

    def unbroken(self, position: Place, most: int) -> int:
        """How many entries from this one on, `most` at most, markers gave in its ledger without
        another between them; 0 if it is no link."""
        found = self.find(position)
        if found is None:
            return 0
        ledger, entry = position
        at = self._at(position)
        end = bisect_left(self._entries, entry + most, at, bisect_right(self._ledgers, ledger, at))
        step = 1
        # what lies between two links is nothing if their distance is the sum of what they and those
        # between them hold
        while step:
            ahead = at + step
            if ahead < end and self._entries[ahead] - self._entries[at] == sum(
                self._counts[at:ahead]
            ):
                at, step = ahead, 2 * step
            else:
                step //= 2
        return min(most, self._entries[at] + self._counts[at] - entry)

    def first_outside(self, spans: Sequence[tuple[Place, Place]], after: Place) -> Place | None:
        """The first position behind `after` that a marker gave and that is in none of the spans
        (first and last, in order); None if there is none."""
        while (linked := self._first_behind(after)) is not None:
            held = bisect_right(spans, linked, key=lambda span: span[0]) - 1
            if held < 0 or spans[held][1] < linked:
                return linked
            after = spans[held][1]
        return None

    def _first_behind(self, position: Place) -> Place | None:
        """The first position behind this one that a marker gave."""
        at = max(0, self._at(position))
        # the one that holds it, or else the next one
        for link in range(at, min(at + 2, len(self._counts))):
            ledger, entry = self._target(link)
            first = max((ledger, entry), (position[0], position[1] + 1))
            if first[0] == ledger and first[1] < entry + self._counts[link]:
                return first
        return None

    def _at(self, position: Place) -> int:
        """The last link that begins at `position` or before; -1 if there is none."""
        return bisect_right(range(len(self._counts)), position, key=self._target) - 1

    def _target(self, at: int) -> Place:
        return self._ledgers[at], self._entries[at]

    def trim(self, first: Place) -> None:
        """The partition begins with `first`: forget what lies wholly before it."""
        gone = 0
        while (
            gone < len(self._counts)
            and (self._ledgers[gone], self._entries[gone] + self._counts[gone] - 1) < first
        ):
            gone += 1
        if gone:
            for column in (
                self._ledgers,
                self._entries,
                self._source_ledgers,
                self._source_firsts,
                self._counts,
            ):
                del column[:gone]
