"""What one subscription has acknowledged.

Owns: the mark-delete, acknowledged ranges above it, partial acknowledgements of batches, and what
of them is not in the log yet. Imports: intervals, ledgers, state, acksets. Pure. Source: Pulsar's
ACK (individual, cumulative, ack_set ANDed, all zero = acknowledged), seek by id. Invariants:
everything below `mark_delete` is acknowledged and the entry at it is not; nothing acknowledged is
ever forgotten except by `reset`; restoring a state and applying the deltas taken since gives an
equal cursor; a delta fits into a block of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from magnetar.topics.acksets import mask_of_words, words_of_mask
from magnetar.topics.intervals import IntervalSet
from magnetar.topics.ledgers import LedgerTable, Position
from magnetar.topics.state import CursorDelta, CursorState, PartialAck, Range

ACKNOWLEDGED_RANGES_MAX = 200_000
MASK_BITS_MAX = 64 << 23
"""Of all masks of a subscription together (64 MiB)."""
DELTA_BYTES_MAX = 1 << 20
"""Bytes of ranges in a delta, and of masks besides the last one, unless the caller sets another
limit; the rest comes with the next delta."""
RANGE_BYTES = 24


class Cursor:
    """Acknowledgements of one subscription, by ordinal.

    `acknowledged_ranges_max` bounds the holes kept, and the partly acknowledged batches: at it the
    cursor is `saturated`, and dispatch stops reading new entries until holes are filled. (Pulsar
    instead forgets ranges beyond 10 000 at a restart, which would undo confirmed acknowledgements.)
    A client that acknowledges undelivered entries may open more: at twice the bound, or with too
    many bits in masks, the cursor is `crowded`, and `admits` says what it still takes.
    """

    __slots__ = (
        "_acknowledged",
        "_fresh",
        "_fresh_partial",
        "_ledgers",
        "_mark",
        "_mask_bits",
        "_partial",
        "_partial_end",
        "_ranges_max",
        "_reset",
        "_taken_mark",
    )

    def __init__(
        self,
        ledgers: LedgerTable,
        mark_delete: int,
        *,
        acknowledged_ranges_max: int = ACKNOWLEDGED_RANGES_MAX,
    ) -> None:
        """A new cursor whose first unacknowledged entry is `mark_delete`; its first delta
        creates it (`reset` is set)."""
        self._ledgers = ledgers
        self._ranges_max = acknowledged_ranges_max
        self._acknowledged = IntervalSet()
        self._fresh = IntervalSet()
        self._partial: dict[int, int] = {}
        self._partial_end = 0
        self._mask_bits = 0
        self._fresh_partial: set[int] = set()
        self._mark = self._taken_mark = self._bounded(mark_delete)
        self._reset = True

    # --- questions --------------------------------------------------------------------------------

    @property
    def mark_delete(self) -> int:
        """Ordinal of the first unacknowledged entry: everything below it is acknowledged."""
        return self._mark

    @property
    def mark_delete_position(self) -> Position:
        """The mark-delete as the wire and the log have it: the last entry of the acknowledged
        beginning."""
        return self._ledgers.position_before(self._mark)

    @property
    def end(self) -> int:
        """One more than the ordinal of the topic's last entry."""
        return self._ledgers.end

    @property
    def acknowledged_end(self) -> int:
        """One more than the greatest ordinal that is acknowledged, wholly or partly (or was
        partly, lately)."""
        return max(self._acknowledged.end if self._acknowledged else self._mark, self._partial_end)

    @property
    def range_count(self) -> int:
        """How many separate acknowledged ranges lie above the mark-delete."""
        return self._acknowledged.interval_count

    @property
    def saturated(self) -> bool:
        """No more holes may be opened, or batches begun: only entries below `acknowledged_end`
        may be delivered."""
        return (
            self._acknowledged.interval_count >= self._ranges_max
            or len(self._partial) >= self._ranges_max
        )

    @property
    def crowded(self) -> bool:
        """Whether it takes only what `admits` admits."""
        return (
            self._acknowledged.interval_count >= 2 * self._ranges_max
            or len(self._partial) >= 2 * self._ranges_max
            or self._mask_bits >= MASK_BITS_MAX
        )

    def admits(self, start: int, end: int) -> bool:
        """Whether acknowledging the entries [start, end) opens no hole, or at least frees a mask
        for each."""
        if (
            start <= self._mark
            or start - 1 in self._acknowledged
            or end in self._acknowledged
            or start in self._acknowledged
        ):
            return True
        if self._acknowledged.interval_count >= 2 * self._ranges_max or end - start > len(
            self._partial
        ):
            return False
        return all(ordinal in self._partial for ordinal in range(start, end))

    def admits_partial(self, ordinal: int) -> bool:
        """Whether acknowledging messages of an entry adds no mask."""
        return ordinal in self._partial or self.is_acknowledged(ordinal)

    @property
    def partial(self) -> dict[int, int]:
        """Masks of the messages still unacknowledged, by ordinal of partly acknowledged entries;
        read only."""
        return self._partial

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged."""
        return self._ledgers.end - self._mark - self._acknowledged.size

    @property
    def dirty(self) -> bool:
        """Whether `take_delta` would return something."""
        return (
            self._reset
            or self._mark != self._taken_mark
            or bool(self._fresh)
            or bool(self._fresh_partial)
        )

    @property
    def unwritten(self) -> int:
        """How many ranges and masks wait for `take_delta`."""
        return self._fresh.interval_count + len(self._fresh_partial)

    @property
    def reset_unwritten(self) -> bool:
        """Whether it was created, or moved by a seek, since `take_delta`."""
        return self._reset

    def is_acknowledged(self, ordinal: int) -> bool:
        return ordinal < self._mark or ordinal in self._acknowledged

    def first_unacknowledged(self, ordinal: int) -> int:
        """The first entry at or after `ordinal` that is not acknowledged (possibly `end`)."""
        return self._acknowledged.first_gap(max(ordinal, self._mark))

    def unacknowledged(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [start, end) is not acknowledged, in order; the cursor must not change
        concurrently."""
        return self._acknowledged.missing(max(start, self._mark), end)

    # --- acknowledging ----------------------------------------------------------------------------

    def acknowledge(self, start: int, end: int) -> int:
        """Acknowledge the entries [start, end).

        What lies outside the topic is ignored. Returns how many were not acknowledged yet.
        """
        end = min(end, self._ledgers.end)
        if end <= self._mark or start >= end:
            return 0
        if start <= self._mark:
            mark = self._acknowledged.first_gap(end)
            added = mark - self._mark - self._acknowledged.remove_below(mark)
            self._mark = mark
        else:
            added = self._acknowledged.add(start, end)
            if added:
                self._fresh.add(start, end)
        if self._partial:
            self._drop_partial(start, max(end, self._mark))
        return added

    def acknowledge_cumulative(self, ordinal: int) -> int:
        """Acknowledge everything up to and including `ordinal`. Returns how many were not
        acknowledged yet."""
        return self.acknowledge(self._mark, ordinal + 1)

    def acknowledge_partial(self, ordinal: int, mask: int) -> int:
        """Acknowledge the messages of one entry whose bit in `mask` is 0.

        Returns the mask that remains (0 = entry acknowledged).
        """
        if self.is_acknowledged(ordinal) or ordinal >= self._ledgers.end:
            return 0
        known = self._partial.get(ordinal)
        remaining = mask if known is None else mask & known
        if not remaining:
            self.acknowledge(ordinal, ordinal + 1)
        elif remaining != known:
            self._partial[ordinal] = remaining
            self._mask_bits += remaining.bit_length() - (
                known.bit_length() if known is not None else 0
            )
            self._partial_end = max(self._partial_end, ordinal + 1)
            self._fresh_partial.add(ordinal)
        return remaining

    def reset(self, ordinal: int, mask: int | None = None) -> None:
        """Seek: make `ordinal` the first unacknowledged entry and forget all else; `mask` keeps
        part of that entry acknowledged."""
        self._mark = self._bounded(ordinal)
        self._acknowledged.clear()
        self._fresh.clear()
        self._partial.clear()
        self._partial_end = self._mask_bits = 0
        self._fresh_partial.clear()
        self._reset = True
        if mask is not None and ordinal < self._ledgers.end:
            self.acknowledge_partial(ordinal, mask)

    def _bounded(self, ordinal: int) -> int:
        return min(max(ordinal, self._ledgers.floor), self._ledgers.end)

    def _drop_partial(self, start: int, end: int) -> None:
        if end - start <= len(self._partial):
            gone: Iterable[int] = [
                ordinal for ordinal in range(start, end) if ordinal in self._partial
            ]
        else:
            gone = [ordinal for ordinal in self._partial if start <= ordinal < end]
        for ordinal in gone:
            self._mask_bits -= self._partial.pop(ordinal).bit_length()
            self._fresh_partial.discard(ordinal)
        if not self._partial:
            self._partial_end = 0

    # --- the log ----------------------------------------------------------------------------------

    def take_delta(self, room_bytes: int = DELTA_BYTES_MAX) -> CursorDelta | None:
        """What changed since the last call (or since creation or restoration), as much as there is
        room for; None if nothing did.

        Call it until the cursor is not `dirty` any more.
        """
        if not self.dirty:
            return None
        self._fresh.remove_below(self._mark)
        ranges = list(islice(self._fresh, max(1, room_bytes // RANGE_BYTES)))
        partial = self._first_masks(room_bytes) if len(ranges) == self._fresh.interval_count else []
        delta = CursorDelta(
            mark_delete=self.mark_delete_position,
            ranges=self._as_ranges(ranges),
            partial=self._as_partial(partial),
            reset=self._reset,
        )
        if ranges:
            self._fresh.remove_below(ranges[-1][1])
        self._fresh_partial.difference_update(partial)
        self._taken_mark, self._reset = self._mark, False
        return delta

    def _first_masks(self, room_bytes: int) -> list[int]:
        """As many of the partly acknowledged entries that were not written as there is room for,
        in order; the last one need not fit."""
        used, found = 0, list[int]()
        for ordinal in sorted(self._fresh_partial):
            if used >= room_bytes:
                break
            used += RANGE_BYTES + self._partial[ordinal].bit_length() // 8
            found.append(ordinal)
        return found

    def put_back(self, delta: CursorDelta) -> None:
        """The delta that was taken last could not be written: it is part of the next one."""
        for ledger, first, last in delta.ranges:
            self._fresh.add(*self._ledgers.known_span(ledger, first, last))
        found = (self._ledgers.known((ledger, entry)) for ledger, entry, _ in delta.partial)
        self._fresh_partial.update(ordinal for ordinal in found if ordinal in self._partial)
        self._reset = self._reset or delta.reset
        self._taken_mark = -1

    def apply_delta(self, delta: CursorDelta) -> None:
        """Replay one record of the log, or a checkpoint's state as a delta. The ledgers must
        hold what was in them then."""
        # Entries that were dropped may still be in a compacted view, and not be acknowledged.
        mark = self._ledgers.clamp_known((delta.mark_delete[0], delta.mark_delete[1] + 1))
        if delta.reset:
            self.reset(mark)
        self.acknowledge(self._mark, mark)
        for ledger, first, last in delta.ranges:
            self.acknowledge(*self._ledgers.known_span(ledger, first, last))
        for ledger, entry, words in delta.partial:
            ordinal = self._ledgers.known((ledger, entry))
            if ordinal is not None:
                self.acknowledge_partial(ordinal, mask_of_words(words))
        self._settle()

    def to_state(self) -> CursorState:
        """Everything, for a checkpoint."""
        return CursorState(
            mark_delete=self.mark_delete_position,
            ranges=self._as_ranges(self._acknowledged),
            partial=self._as_partial(sorted(self._partial)),
        )

    def _settle(self) -> None:
        """Count everything as written."""
        self._fresh.clear()
        self._fresh_partial.clear()
        self._taken_mark = self._mark
        self._reset = False

    def _as_ranges(self, intervals: Iterable[tuple[int, int]]) -> tuple[Range, ...]:
        return tuple(run for start, end in intervals for run in self._ledgers.runs(start, end))

    def _as_partial(self, ordinals: Sequence[int]) -> tuple[PartialAck, ...]:
        return tuple(
            (*self._ledgers.position(ordinal), words_of_mask(self._partial[ordinal]))
            for ordinal in ordinals
        )
