"""Control records of one topic.

Owns: anchors, the five kinds of control records, and their limits. Imports: errors,
transactions.ids. Pure. A control record is zero-width: it is ordered behind an entry and has no
entry id, so ids, backlog and permits are the same with and without it. Invariants: an anchor names
the last entry of the topic that has an id, in whichever ledger, or NOWHERE, never the beginning of
an empty ledger; anchors of a topic strictly increase; rewriting keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from magnetar.errors import LimitExceeded
from magnetar.transactions.ids import TxnId

Place = tuple[int, int]
"""(ledger, entry)."""
NOWHERE: Place = (-1, -1)
EVENT_MS_MAX = (1 << 63) - 1
PRODUCER_BYTES_MAX = 1024
PRODUCERS_MAX = 10_000
"""Active producers of a topic."""
ELEMENTS_MAX = 200_000
"""Active producers, holds, and assertions in open transactions of a topic together."""


class Anchor(NamedTuple):
    """Where a control record is: behind an entry, the `ordinal`th there."""

    ledger: int
    entry: int
    ordinal: int

    @property
    def place(self) -> Place:
        return self.ledger, self.entry


START = Anchor(*NOWHERE, -1)
"""Before all anchors."""


# Values, but not frozen: recovery makes one per record. No named tuples: those of two kinds would be
# equal.


@dataclass(slots=True)
class Assertion:
    """W_SET: no later message of the producer is older than `event_ms`. With `txn` it takes effect
    with that transaction's commit. It replaces the producer's assertion before, a higher one too.
    """

    producer: str
    event_ms: int
    txn: TxnId | None = None


@dataclass(slots=True)
class Idle:
    """W_IDLE: the producer counts no more, until its next assertion."""

    producer: str
    txn: TxnId | None = None


@dataclass(slots=True)
class Hold:
    """W_HOLD: the producer's first message in the transaction, on this topic. Until the
    transaction's end, what the producer had asserted here (W0) bounds the watermark."""

    producer: str
    txn: TxnId


@dataclass(slots=True)
class End:
    """W_END: the transaction has ended on this topic. Behind the last entry of its commit marker,
    or where it was aborted."""

    txn: TxnId
    committed: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """W_SNAPSHOT: what all control records before it amount to.

    `producers` are the active ones; `holds` are (transaction, producer, W0 or None), `pending` are
    (transaction, producer, event time or None for idle). `resting_ms` counts while no
    producer is active.
    """

    producers: tuple[tuple[str, int], ...] = ()
    resting_ms: int | None = None
    holds: tuple[tuple[TxnId, str, int | None], ...] = ()
    pending: tuple[tuple[TxnId, str, int | None], ...] = ()


Event = Assertion | Idle | Hold | End
Record = Event | Snapshot


def marker_end(marker: Place, entries: int, last: Place) -> Place:
    """Where a commit takes effect: at the last entry of its marker; `last`, the last entry of the
    topic, if the transaction has none here."""
    return (marker[0], marker[1] + entries - 1) if entries else last


def check_name(producer: str) -> None:
    """Raises LimitExceeded for a name that no record holds."""
    size = len(producer.encode())
    if not 0 < size <= PRODUCER_BYTES_MAX:
        raise LimitExceeded(
            f"producer name {producer[:40]!r} has {size} bytes; 1 to {PRODUCER_BYTES_MAX} are "
            "possible with watermarks"
        )


def check_event_ms(event_ms: int) -> int:
    """Raises LimitExceeded for a time that no record holds."""
    if not 0 <= event_ms <= EVENT_MS_MAX:
        raise LimitExceeded(f"event time {event_ms} is out of range; send 0 to {EVENT_MS_MAX} ms")
    return event_ms
