"""What topics and subscriptions write about transactions.

Owns: the changes that the log holds (`storage.transactions.topic_format` has their bytes) and the
values that checkpoints hold. Imports: ids. Pure. Invariants: values hold positions, never ordinals;
applying, in order, every change from any earlier moment on to a state gives the same state as
applying each once. Numbers: positions are (ledger, entry), both signed; `floor` is the
coordinator's low watermark plus one: every transaction of that coordinator with a smaller number
has ended everywhere; times are wall-clock ms.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.transactions.ids import TxnId

Place = tuple[int, int]
NOWHERE: Place = (-1, -1)
NO_SEQUENCE = -1
"""The sequence id of a run that deduplication does not record: chunks before the last of their
message."""


class Outcome(enum.IntEnum):
    """How a transaction has ended, as far as it is known here. The first two are the protocol's
    `TxnAction`."""

    COMMITTED = 0
    ABORTED = 1
    ENDED = 2
    """Below the floor: one or the other."""


class Span(NamedTuple):
    """Consecutive sidecar entries of one transaction; `send_point` is the last position that the
    partition had given when they were sent."""

    ledger: int
    first: int
    entries: int
    send_point: Place

    @property
    def last(self) -> Place:
        """Its last entry."""
        return self.ledger, self.first + self.entries - 1


# --- changes: records of the log ------------------------------------------------------------------

# Values, but not frozen where recovery makes one per record: freezing costs as much as decoding
# does.


@dataclass(slots=True)
class Append:
    """A run of one producer's entries joined the transaction, in the sidecar from `first` on.
    Written behind the entries themselves.

    `highest` is the highest sequence id of the run (NO_SEQUENCE: does not count), `size` the bytes
    of its entries, `messages` what they hold.
    """

    txn: TxnId
    producer: str
    first: Place
    count: int
    highest: int
    size: int
    messages: int
    send_point: Place
    append_ms: int


@dataclass(slots=True)
class Commit:
    """The transaction's entries are those of the partition from `marker` on: `spans` are (ledger,
    first, count) in the sidecar, in that order.

    Without entries the marker is NOWHERE. `append_ms` is when the partition got them.
    """

    txn: TxnId
    floor: int
    marker: Place
    spans: tuple[tuple[int, int, int], ...]
    append_ms: int

    @property
    def count(self) -> int:
        """How many entry ids of the partition the marker takes."""
        return sum(count for _, _, count in self.spans)


@dataclass(slots=True)
class Abort:
    """The transaction's entries are void."""

    txn: TxnId
    floor: int


@dataclass(frozen=True, slots=True)
class Unbegun:
    """Entries up to `last`, in the sidecar, named a transaction that had not begun: they are
    void. A transaction may yet begin under that id."""

    txn: TxnId
    last: Place


@dataclass(frozen=True, slots=True)
class PendingAck:
    """Acknowledgements that take effect when the transaction commits.

    `ranges` are (ledger, first, last), `partial` (ledger, entry, messages in the batch, ack set:
    bit 1 = not by this transaction). A cumulative one is the ranges that it covers.
    """

    txn: TxnId
    ranges: tuple[tuple[int, int, int], ...] = ()
    partial: tuple[tuple[int, int, int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class EndAcks:
    """Commit: what the transaction holds on this subscription is acknowledged. Abort: it is to be
    delivered again.

    A commit names what was held, as `PendingAck` does: a seek in the log may lie between a
    checkpoint and the place where replay begins.
    """

    txn: TxnId
    floor: int
    outcome: Outcome
    ranges: tuple[tuple[int, int, int], ...] = ()
    partial: tuple[tuple[int, int, int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class UnbegunAcks:
    """As `Unbegun`: what is held here for that id is to be delivered again."""

    txn: TxnId


BufferChange = Append | Commit | Abort | Unbegun
PendingChange = PendingAck | EndAcks | UnbegunAcks
Change = BufferChange | PendingChange


# --- states: parts of a checkpoint ----------------------------------------------------------------


def _numbers() -> array[int]:
    return array("Q")


@dataclass(frozen=True, slots=True)
class FenceState:
    """Ended transactions of one coordinator at or above `floor`, as first and last number of
    each run, one after the other."""

    coordinator: int
    floor: int
    committed: array[int] = field(default_factory=_numbers)
    aborted: array[int] = field(default_factory=_numbers)


@dataclass(frozen=True, slots=True)
class OpenState:
    """An open transaction: `producers` are (name, highest sequence id, position of its entry)."""

    txn: TxnId
    since_ms: int
    size: int
    messages: int
    spans: tuple[Span, ...]
    producers: tuple[tuple[str, int, Place], ...]


@dataclass(frozen=True, slots=True)
class CommittedState:
    """What is remembered of a commit for late sends: `producers` as in `OpenState`."""

    txn: TxnId
    producers: tuple[tuple[str, int, Place], ...]


@dataclass(frozen=True, slots=True)
class TranslationState:
    """Where ended entries of sidecar ledger `ledger` went: parallel arrays, one element per run, in
    order.

    `codes` is twice the index in `targets` (ledgers) plus 1 for committed; `entries` are the entry
    of the first one, or of the send point.
    """

    ledger: int
    targets: tuple[int, ...]
    firsts: array[int]
    counts: array[int]
    codes: array[int]
    entries: array[int]


@dataclass(frozen=True, slots=True)
class BufferState:
    """A transaction buffer: `last` is the last sidecar position, `trimmed_to` the first position
    that the partition still has."""

    last: Place = NOWHERE
    trimmed_to: Place = NOWHERE
    open: tuple[OpenState, ...] = ()
    fences: tuple[FenceState, ...] = ()
    committed: tuple[CommittedState, ...] = ()
    translations: tuple[TranslationState, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingState:
    """Pending acknowledgements of one subscription, one `PendingAck` per transaction."""

    pending: tuple[PendingAck, ...] = ()
    fences: tuple[FenceState, ...] = ()


@dataclass(frozen=True, slots=True)
class ParticipantState:
    """What a topic that was used with transactions adds to its checkpoint: `pending` by
    subscription."""

    buffer: BufferState | None = None
    pending: Mapping[str, PendingState] = field(default_factory=dict)
