"""Verdicts of a transaction buffer on SENDs, and its limits.

Owns: the verdicts, what makes an entry a repetition, `BufferLimits`. Imports: errors, ids,
participant_records, fences. Pure. Invariant: an entry whose sequence id is not above the highest of
its producer in its transaction is a repetition.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from magnetar.errors import NotAllowed
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import NOWHERE, Place
from magnetar.transactions.topic.fences import FENCES_MAX


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Per topic; `inquire_ms` is how long a transaction is open before its coordinator is asked
    about it, again and again.

    `fences_max` bounds runs of ended transactions above the floor, 16 bytes each, of one
    coordinator: at it no further transaction begins to send here. `open_entries_max` bounds the
    entries of all open transactions together: their places are in memory, after a takeover too.
    """

    open_transactions_max: int = 10_000
    open_entries_max: int = 1_000_000
    entries_per_transaction_max: int = 100_000
    transaction_bytes_max: int = 1 << 30
    remembered_commits_max: int = 1_000
    inquire_ms: int = 300_000
    fences_max: int = FENCES_MAX

    def check_room(self, topic: str, txn: TxnId, is_full: bool, fence_runs: int) -> None:
        """Raises NotAllowed if `txn` may not begin to send to the topic."""
        if is_full:
            raise NotAllowed(
                f"topic {topic} has {self.open_transactions_max} open transactions, the most it "
                "takes (txn_open_per_topic_max); end some"
            )
        if fence_runs >= self.fences_max:
            raise NotAllowed(
                f"topic {topic} remembers {self.fences_max} runs of ended transactions of "
                f"coordinator {txn.most}, the most it does: end that coordinator's oldest "
                "transactions"
            )

    def check(self, topic: str, txn: TxnId, entries: int, size: int, waiting: int) -> None:
        """Raises NotAllowed if a transaction may not have so many entries, of so many bytes, or
        the topic `waiting` of all open transactions."""
        if entries > self.entries_per_transaction_max or size > self.transaction_bytes_max:
            raise NotAllowed(
                f"transaction {txn} would have {entries} entries of {size} bytes on topic {topic}; "
                "the limits are "
                f"txn_entries_max={self.entries_per_transaction_max} and "
                f"txn_bytes_max={self.transaction_bytes_max}: end it earlier"
            )
        if waiting > self.open_entries_max:
            raise NotAllowed(
                f"topic {topic} would have {waiting} entries of open transactions with those of "
                f"{txn}, more than "
                f"txn_open_entries_per_topic_max={self.open_entries_max}: end some transactions "
                "first"
            )


class Verdict(enum.Enum):
    """What to do with an entry that names a transaction."""

    NEW = enum.auto()
    """Append it to the sidecar."""
    DUPLICATE = enum.auto()
    """It is durable or in flight: send a receipt, through the log's queue."""
    ORDINARY = enum.auto()
    """Its transaction has committed without it (Go's batcher keeps an ended id): refuse it, or
    publish it as if it named none."""


class Judgement(NamedTuple):
    """A verdict; `position` is where a duplicate lies, NOWHERE if that is not remembered."""

    verdict: Verdict
    position: Place = NOWHERE


def repeated(found: tuple[int, Place] | None, sequence: int | None) -> Judgement:
    """Whether an entry of this sequence id is there already; `found` is the highest one, and
    where it is."""
    if found is None or sequence is None or sequence > found[0]:
        return Judgement(Verdict.NEW)
    return Judgement(Verdict.DUPLICATE, found[1] if sequence == found[0] else NOWHERE)
