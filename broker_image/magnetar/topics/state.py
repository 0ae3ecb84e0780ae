"""What recovery needs of a topic.

Owns: the plain values that cursors and topics hand to the log and to checkpoints, and take back.
Imports: ledgers. Pure. Invariants: values hold positions, never ordinals; ranges are (ledger, first
entry, last entry inclusive); ack sets are signed 64-bit words as on the wire (bit 1 = not
acknowledged). Applying, in order, every delta from any earlier moment on gives the same state as
applying them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.topics.ledgers import Position
from magnetar.topics.sent_chunks import ChunkState
from magnetar.transactions.participant_records import ParticipantState

Range = tuple[int, int, int]
PartialAck = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class CursorDelta:
    """What changed in a cursor: one record of the log.

    With `reset` the cursor is set to exactly this (created, or moved by a seek); otherwise it only
    grows by it. `ranges` are those newly acknowledged above `mark_delete`. `properties` is None
    when they did not change.
    """

    mark_delete: Position
    ranges: tuple[Range, ...] = ()
    partial: tuple[PartialAck, ...] = ()
    reset: bool = False
    properties: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CursorState:
    """A cursor in a checkpoint: acknowledged are all up to `mark_delete`, `ranges`, and of
    `partial` all but the bits set."""

    mark_delete: tuple[int, int]
    ranges: Sequence[Range] = ()
    partial: Sequence[PartialAck] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def as_delta(self) -> CursorDelta:
        """The delta that creates a cursor in exactly this state."""
        return CursorDelta(
            Position(*self.mark_delete),
            tuple(self.ranges),
            tuple(self.partial),
            True,
            dict(self.properties),
        )


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic in a checkpoint.

    `ledgers` are (ledger id, entry count) in order, dropped entries of the first one included (the
    property `trimmed` is their number); `cursors` are the durable ones by subscription name;
    `sequences` are (producer name, highest durable sequence id) where deduplication is on; `chunks`
    are those stored last, by which repetitions are known. `sizes` is (bytes ever dropped, bytes and
    messages ever appended). `marks` are (ledger, entry, elapsed ms of the broker that writes the
    checkpoint, bytes appended up to it) of the last entry that each mark of age covers.
    `transactions` is None for a topic that was never used with any, `watermarks` (control records
    as bytes) for one on which no producer ever asserted any.
    """

    created_ms: int
    ledgers: Sequence[tuple[int, int]] = ()
    cursors: Mapping[str, CursorState] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    sequences: Sequence[tuple[str, int]] = ()
    sizes: tuple[int, int, int] = (0, 0, 0)
    marks: Sequence[tuple[int, int, int, int]] = ()
    chunks: Sequence[ChunkState] = ()
    transactions: ParticipantState | None = None
    watermarks: Iterable[bytes] | None = None
