"""The control records of one topic, in order.

Owns: `Timeline`: anchors, the records between the first and the last position, the standing at the
end, and the snapshots from which a standing in between is found. Imports: errors, bounds, records,
standing. Pure. Invariants: records come in the order of their anchors; a record that is known
already changes nothing, so a replay may begin anywhere before the end; trimming keeps the standing
at every position that is left. Restoring a state and applying the records since gives an equal
timeline.

A host queues a record for the log (`queue`), and applies it when it is durable, in the same order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.errors import CorruptData, LimitExceeded
from magnetar.watermarks.bounds import Bound, Bounds, least
from magnetar.watermarks.records import (
    ELEMENTS_MAX,
    PRODUCERS_MAX,
    START,
    Anchor,
    Place,
    Record,
    Snapshot,
    check_event_ms,
    check_name,
)
from magnetar.watermarks.standing import Standing

_LAST_ORDINAL = 1 << 62
RECORDS_MAX = 100_000
"""In memory, about 200 bytes each. Producers may assert any number without a message."""
THINNED_PARTS = 16
"""Thinning drops one of so many parts."""


@dataclass(frozen=True, slots=True)
class SnapshotInterval:
    """A snapshot is due after so many records, and no fewer than it has elements, or after so many
    bytes of messages: so it costs O(1) a record."""

    records: int = 10_000
    message_bytes: int = 256 << 20


class Anchored(NamedTuple):
    """A record and where it is."""

    anchor: Anchor
    record: Record


class TimelineState(NamedTuple):
    """For a checkpoint: `base` holds everything up to its anchor; `records` follow it. `bounds`
    are of positions before it."""

    base: Anchored
    records: tuple[Anchored, ...]
    bounds: tuple[Bound, ...] = ()


EMPTY = TimelineState(Anchored(START, Snapshot()), ())


class _RestorePoint(NamedTuple):
    """Standing after the record before `sequence`."""

    sequence: int
    snapshot: Snapshot


class Timeline:
    """Records are numbered: sequence numbers grow by one and are never given again while the
    timeline lives."""

    def __init__(
        self, state: TimelineState = EMPTY, interval: SnapshotInterval | None = None
    ) -> None:
        self.interval = interval or SnapshotInterval()
        self._first = 0
        self._base = state.base
        self._bounds = Bounds(state.bounds)
        self._anchors: list[Anchor] = []
        self._records: list[Record] = []
        self._points = [_RestorePoint(0, self._snapshot_of_base)]
        self._given = state.base.anchor
        self._in_flight: deque[Anchored] = deque()
        self._snapshot_queued = False
        self._message_bytes = 0
        self.head = Standing(self._snapshot_of_base)
        for anchored in state.records:
            self.apply(*anchored)

    # --- questions --------------------------------------------------------------------------------

    @property
    def _snapshot_of_base(self) -> Snapshot:
        assert isinstance(self._base.record, Snapshot), self._base
        return self._base.record

    @property
    def first(self) -> int:
        """Number of the first record that is left."""
        return self._first

    @property
    def end(self) -> int:
        """One more than the number of the last record."""
        return self._first + len(self._records)

    @property
    def base_place(self) -> Place:
        """No standing is known before this position."""
        return self._base.anchor.place

    @property
    def last(self) -> Anchor:
        """Of the last record."""
        return self._anchors[-1] if self._anchors else self._base.anchor

    def run(self, sequence: int, place: Place, at_most: int) -> list[Record]:
        """The records from `sequence` on, up to those behind the entry at `place`."""
        start = sequence - self._first
        assert start >= 0, (sequence, self._first)
        anchors = self._anchors
        if start >= len(anchors):
            return []
        end = len(anchors) if anchors[-1][:2] <= place else self._after(place)
        return self._records[start : min(end, start + at_most)]

    def _after(self, place: Place) -> int:
        """Index of the first record behind a later entry."""
        return bisect_right(self._anchors, (*place, _LAST_ORDINAL))

    def knows(self, place: Place) -> bool:
        """Whether the standing there is known: it is not before the horizon."""
        return place >= self._base.anchor.place

    def is_far(self, sequence: int, place: Place) -> bool:
        """Whether there are more records from `sequence` up to the entry at `place` than a snapshot
        interval has: `standing_at` reads less."""
        if self.end - sequence <= self.interval.records:
            return False
        most = max(self.interval.records, self.head.size)
        return self._first + self._after(place) - sequence > most

    def bound_ms(self, place: Place) -> int | None:
        """Before the horizon: a watermark that holds there, though a later one may as well."""
        return self._bounds.at(place)

    def standing_at(self, place: Place) -> tuple[Standing, int]:
        """The standing at a mark-delete, and the number of the next record. Reads at most the
        records since the last snapshot before it.

        Before the horizon a bound stands, and the number is that of a record that is gone.
        """
        if not self.knows(place):
            return Standing(Snapshot(resting_ms=self.bound_ms(place))), self._first - 1
        sequence = self._first + self._after(place)
        point = self._points[bisect_right(self._points, sequence, key=lambda one: one.sequence) - 1]
        standing = Standing(point.snapshot)
        for record in self.run(point.sequence, place, sequence - point.sequence):
            standing.apply(record)
        return standing, sequence

    def check_room(self, producer: str, event_ms: int) -> None:
        """Raises LimitExceeded if the topic takes no such assertion."""
        check_name(producer)
        check_event_ms(event_ms)
        if self.head.active_count >= PRODUCERS_MAX and self.head.asserted_ms(producer) is None:
            raise LimitExceeded(
                f"{self.head.active_count} producers assert watermarks on this topic; "
                f"{PRODUCERS_MAX} may: mark those that are not needed as idle"
            )
        self.check_hold()

    def check_hold(self) -> None:
        """Raises LimitExceeded if the topic takes no transaction of another producer."""
        if self.head.size >= ELEMENTS_MAX:
            raise LimitExceeded(
                f"{self.head.size} producers and open transactions bound this topic's watermarks; "
                f"{ELEMENTS_MAX} may: commit or abort some transactions"
            )

    # --- growing ----------------------------------------------------------------------------------

    def queue(self, last: Place, record: Record) -> Anchored:
        """What to write for a record behind `last`: the last entry that has an id, in flight or
        not. It is in flight until it is applied."""
        ledger, entry, ordinal = self._given
        assert last >= (ledger, entry), (last, self._given)
        ordinal = ordinal + 1 if last == (ledger, entry) else 0
        anchored = Anchored(Anchor(*last, ordinal), record)
        self._given = anchored.anchor
        self._in_flight.append(anchored)
        return anchored

    def withdraw(self) -> None:
        """The log did not take the record that was queued last. Its anchor is not given again."""
        if isinstance(self._in_flight.pop().record, Snapshot):
            self._snapshot_queued = False

    @property
    def in_flight(self) -> int:
        """How many records are queued and not applied yet."""
        return len(self._in_flight)

    def apply(self, anchor: Anchor, record: Record) -> bool:
        """A record is durable, or is replayed. False if it was known."""
        anchors = self._anchors
        if anchor <= (anchors[-1] if anchors else self._base.anchor):
            return False
        if self._in_flight:
            first = self._in_flight.popleft()
            assert first.anchor == anchor, (first, anchor)
        if isinstance(record, Snapshot):
            self._points.append(_RestorePoint(self.end + 1, record))
            self._message_bytes, self._snapshot_queued = 0, False
        anchors.append(anchor)
        self._records.append(record)
        self.head.apply(record)
        if anchor > self._given:
            self._given = anchor
        return True

    def grew(self, message_bytes: int) -> None:
        """Messages of so many bytes were published."""
        self._message_bytes += message_bytes

    @property
    def snapshot_due(self) -> bool:
        """Whether to write `snapshot` now."""
        if self._snapshot_queued:
            return False
        records = self.end - self._points[-1].sequence
        return records >= max(self.interval.records, self.head.size) or (
            records > 0 and self._message_bytes >= self.interval.message_bytes
        )

    def snapshot(self, last: Place) -> Anchored:
        """A snapshot, queued behind the last entry. It holds what is in flight as well: the log
        keeps none of that, or all of it before the snapshot."""
        found = self.head.to_snapshot()
        if self._in_flight:
            ahead = Standing(found)
            for anchored in self._in_flight:
                ahead.apply(anchored.record)
            found = ahead.to_snapshot()
        self._snapshot_queued = True
        return self.queue(last, found)

    # --- shrinking --------------------------------------------------------------------------------

    def horizon(self, place: Place) -> Anchored | None:
        """The snapshot to make durable before the topic drops its entries up to `place`; `trim`
        takes it then. It has the anchor of the last record that it replaces. None if it would
        replace none."""
        at = self._after(place)
        if at == 0:
            return None
        standing, _ = self.standing_at(place)
        return Anchored(self._anchors[at - 1], standing.to_snapshot())

    def trim_to(self, place: Place) -> None:
        """The topic has dropped its entries up to `place`."""
        horizon = self.horizon(place)
        if horizon is not None:
            self.trim(horizon)

    def thin(self) -> bool:
        """Forget the oldest records if there are more than RECORDS_MAX: a part of them, and no
        fewer than the standing there has elements. A bound takes their place. Whether any went."""
        if len(self._records) <= RECORDS_MAX:
            return False
        base = self._snapshot_of_base
        size = len(base.producers) + len(base.holds) + len(base.pending)
        gone = min(len(self._records) // 2, max(1, RECORDS_MAX // THINNED_PARTS, size))
        standing, anchor = Standing(base), self._base.anchor
        least_ms = standing.exact_ms
        for index in range(gone - 1):
            standing.apply(self._records[index])
            exact_ms = standing.exact_ms
            if least_ms is None and not self._bounds:  # there was no watermark before
                anchor, least_ms = self._anchors[index], exact_ms
            else:
                least_ms = least(least_ms, exact_ms)
        standing.apply(self._records[gone - 1])
        if self._bounds or least_ms is not None:
            self._bounds.add(Bound(anchor, least_ms))
        self._drop(Anchored(self._anchors[gone - 1], standing.to_snapshot()))
        return True

    def trim(self, horizon: Anchored) -> None:
        """Drop the records that the horizon holds. Replay calls it too. Raises CorruptData if its
        anchor is beyond the end."""
        if horizon.anchor <= self._base.anchor:
            return
        if horizon.anchor > self.last and self._anchors:
            raise CorruptData(
                f"a snapshot at {tuple(horizon.anchor)} replaces control records up to "
                f"{tuple(self.last)}: records between are missing"
            )
        self._bounds.clear()
        self._drop(horizon)

    def _drop(self, horizon: Anchored) -> None:
        gone = bisect_right(self._anchors, horizon.anchor)
        del self._anchors[:gone]
        del self._records[:gone]
        self._first += gone
        self._base = horizon
        kept = self._points[
            bisect_left(self._points, self._first + 1, key=lambda one: one.sequence) :
        ]
        self._points = [_RestorePoint(self._first, self._snapshot_of_base), *kept]
        if not gone:
            self.head = Standing(self._snapshot_of_base)
        self._given = max(self._given, horizon.anchor)

    def to_state(self) -> TimelineState:
        """Everything durable, for a checkpoint or a rewriting, which keep the anchors."""
        anchored = zip(self._anchors, self._records, strict=True)
        records = tuple(Anchored(*pair) for pair in anchored)
        return TimelineState(self._base, records, self._bounds.to_state())
