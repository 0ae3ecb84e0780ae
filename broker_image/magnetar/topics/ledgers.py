"""The ledgers of one topic, and the numbering of its entries.

Owns: `Position`, its text in properties of topics, `LedgerTable` and the map between positions and
ordinals. Imports: errors. Pure.
Invariants: ledger ids strictly increase; entries of a ledger are numbered 0, 1, 2, ... without
gaps; an entry's ordinal (its place in the topic, an int) never changes while the table lives;
ordinals live in memory only: the wire and the log carry positions; what was dropped from the front
is never found again, and its ids are never given to other entries; of what was dropped the
positions from `floor` on are still known, since a compacted view holds some of these entries. Why: cursors and dispatch work
on runs of ordinals, so that crossing a ledger costs them nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from magnetar.errors import CorruptData


class Position(NamedTuple):
    """Where an entry is: ledger id and entry id, both signed (the wire's unsigned 2^64-1 is -1
    here)."""

    ledger: int
    entry: int


EARLIEST = Position(-1, -1)
LATEST = Position((1 << 63) - 1, (1 << 63) - 1)
TERMINATED, TRIMMED = "terminated", "trimmed"
"""Properties with a position `ledger:entry`: the last entry there will ever be, and the last one
that was dropped."""


def position_text(position: Position) -> str:
    """A position as properties hold it."""
    return f"{position.ledger}:{position.entry}"


def position_of_text(text: str) -> Position:
    """What `position_text` has written."""
    ledger, _, entry = text.partition(":")
    return Position(int(ledger), int(entry))


class LedgerTable:
    """All entries that can be read, in order: ledgers with their entry counts. Grows at the end, is
    dropped from the front.

    Entries are dropped one by one, ledgers when all of theirs are: a ledger is a term of a bundle's
    ownership, and may be huge.
    """

    __slots__ = ("_bases", "_end", "_first", "_floor", "_ids")

    def __init__(self, ledgers: Iterable[tuple[int, int]] = ()) -> None:
        """`ledgers` are (ledger id, entry count) in order."""
        self._ids: list[int] = []
        self._bases: list[int] = []
        self._end = 0
        self._first = self._floor = 0
        for ledger, count in ledgers:
            if count:
                self.append(ledger, 0, count)

    @property
    def first(self) -> int:
        """Ordinal of the first entry that still exists (equals `end` if there is none)."""
        return self._first

    @property
    def floor(self) -> int:
        """Ordinal of the first entry whose position is known: `first`, unless a compacted view
        holds entries before that."""
        return self._floor

    def start(self, reads_view: bool) -> int:
        """The first ordinal that may be delivered: `floor` to who reads the compacted view."""
        return self._floor if reads_view else self._first

    @property
    def end(self) -> int:
        """One more than the ordinal of the last entry."""
        return self._end

    @property
    def last_ledger(self) -> int:
        """Id of the ledger of the last entry, or -1."""
        return self._ids[-1] if self._ids else -1

    @property
    def last_position(self) -> Position:
        """Position of the last entry, or EARLIEST."""
        return Position(self._ids[-1], self._end - self._bases[-1] - 1) if self._ids else EARLIEST

    def ledgers(self) -> list[tuple[int, int]]:
        """(ledger id, entry count) in order; the dropped beginning of the first one counted as
        well."""
        bounds = [*self._bases[1:], self._end] if self._bases else []
        return [
            (ledger, bound - base)
            for ledger, base, bound in zip(self._ids, self._bases, bounds, strict=True)
        ]

    def append(self, ledger: int, first: int, count: int) -> int:
        """Add entries first .. first+count-1 of `ledger`; returns the ordinal of the first one.

        A new ledger must have the greatest id and begin with entry 0. Raises CorruptData for
        anything that leaves a hole.
        """
        assert count > 0, count
        if not self._ids or ledger != self._ids[-1]:
            if ledger <= self.last_ledger or first != 0:
                raise self._hole(ledger, first)
            self._ids.append(ledger)
            self._bases.append(self._end)
        elif first != self._end - self._bases[-1]:
            raise self._hole(ledger, first)
        ordinal = self._end
        self._end += count
        return ordinal

    def _hole(self, ledger: int, first: int) -> CorruptData:
        last = self.last_position
        return CorruptData(
            f"entry ({ledger}, {first}) does not follow ({last.ledger}, {last.entry}): records "
            "before it are missing"
        )

    def extend(self, ledger: int, first: int, count: int) -> int:
        """Like `append`, for replay: entries that are there (or trimmed) already are passed
        over. Returns how many were new."""
        if ledger == self.last_ledger:
            known = self._end - self._bases[-1]
            if first + count <= known:
                return 0
            count, first = first + count - max(first, known), max(first, known)
        elif ledger < self.last_ledger:
            if ledger >= self._ids[0] and not self._held(ledger, first + count):
                raise self._hole(ledger, first)
            return 0
        self.append(ledger, first, count)
        return count

    def _held(self, ledger: int, count: int) -> bool:
        """Whether `ledger` is listed with at least `count` entries, dropped ones included."""
        index = bisect_right(self._ids, ledger) - 1
        return self._ids[index] == ledger and count <= self._bound(index) - self._bases[index]

    def _bound(self, index: int) -> int:
        """One more than the ordinal of the last entry of the ledger at `index`."""
        return self._bases[index + 1] if index + 1 < len(self._bases) else self._end

    def drop_before(self, ordinal: int, floor: int | None = None) -> int:
        """Drop the entries below `ordinal`; returns how many were dropped. The positions of those
        from `floor` on stay known, as far as they are.

        Ledgers all of whose entries are unknown then are forgotten, the last one excepted: so the
        topic remembers its last position, and replay knows what it has seen.
        """
        first = min(max(ordinal, self._first), self._end)
        dropped, self._first = first - self._first, first
        self._floor = min(max(floor if floor is not None else first, self._floor), first)
        whole = max(0, min(bisect_right(self._bases, self._floor) - 1, len(self._ids) - 1))
        del self._ids[:whole]
        del self._bases[:whole]
        return dropped

    def position(self, ordinal: int) -> Position:
        """Position of the entry with this ordinal, which must exist or be known."""
        bases = self._bases
        assert self._floor <= ordinal < self._end, (ordinal, self._floor, self._end)
        index = -1 if ordinal >= bases[-1] else bisect_right(bases, ordinal) - 1
        return Position(self._ids[index], ordinal - bases[index])

    def position_before(self, ordinal: int) -> Position:
        """Position of the entry before `ordinal`: how a mark-delete is written. Without one,
        that before the first entry, or EARLIEST."""
        if ordinal > self._floor:
            return self.position(ordinal - 1)
        if not self._ids:
            return EARLIEST
        index = max(0, bisect_right(self._bases, self._floor) - 1)
        return Position(self._ids[index], self._floor - 1 - self._bases[index])

    def ordinal_after(self, position: tuple[int, int]) -> int:
        """Ordinal of the first entry after `position`: how a mark-delete is read; `position`
        need not exist."""
        return self.clamp((position[0], position[1] + 1))

    def find(self, position: tuple[int, int]) -> int | None:
        """Ordinal of `position`, or None if there is no such entry."""
        ordinal = self.known(position)
        return ordinal if ordinal is not None and ordinal >= self._first else None

    def known(self, position: tuple[int, int]) -> int | None:
        """As `find`, also of an entry that was dropped and whose position is still known."""
        ledger, entry = position
        index = bisect_right(self._ids, ledger) - 1
        if index < 0 or self._ids[index] != ledger or entry < 0:
            return None
        ordinal = self._bases[index] + entry
        return ordinal if self._floor <= ordinal < self._bound(index) else None

    def clamp(self, position: tuple[int, int]) -> int:
        """Ordinal of `position`, or of the next entry that exists; `end` if there is none after
        it."""
        return max(self._first, self.clamp_known(position))

    def clamp_known(self, position: tuple[int, int]) -> int:
        """As `clamp`, where entries that were dropped and are still known count."""
        ledger, entry = position
        index = bisect_right(self._ids, ledger) - 1
        if index < 0:
            return self._floor
        bound = self._bound(index)
        if self._ids[index] != ledger:
            return max(self._floor, bound)
        return max(self._floor, min(self._bases[index] + max(entry, 0), bound))

    def span(self, ledger: int, first: int, last: int) -> tuple[int, int]:
        """The ordinals [start, end) of those of the entries first..last (inclusive) of `ledger`
        that exist."""
        start, end = self.known_span(ledger, first, last)
        start = max(start, self._first)
        return (start, end) if start < end else (0, 0)

    def known_span(self, ledger: int, first: int, last: int) -> tuple[int, int]:
        """As `span`, where entries that were dropped and are still known count."""
        index = bisect_right(self._ids, ledger) - 1
        if index < 0 or self._ids[index] != ledger:
            return 0, 0
        base = self._bases[index]
        start, end = (
            max(self._floor, base + max(first, 0)),
            min(base + last + 1, self._bound(index)),
        )
        return (start, end) if start < end else (0, 0)

    def next(self, position: tuple[int, int]) -> Position | None:
        """The entry after `position`, across ledgers, or None."""
        ordinal = self.ordinal_after(position)
        return self.position(ordinal) if ordinal < self._end else None

    def previous(self, position: tuple[int, int]) -> Position | None:
        """The entry before `position`, across ledgers, or None."""
        ordinal = self.clamp(position) - 1
        return self.position(ordinal) if ordinal >= self.first else None

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """The ordinals [start, end) as (ledger, first entry, last entry inclusive), one per
        ledger touched."""
        assert start >= end or (self._floor <= start and end <= self._end), (
            start,
            end,
            self._floor,
            self._end,
        )
        index = bisect_right(self._bases, start) - 1
        while start < end:
            base = self._bases[index]
            bound = min(end, self._bound(index))
            yield self._ids[index], start - base, bound - 1 - base
            start = bound
            index += 1
