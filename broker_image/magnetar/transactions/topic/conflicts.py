"""Conflicts between acknowledgements of transactions.

Owns: `Held`, what one transaction holds of a subscription, and `Conflicts`, which refuses what
another transaction holds, or what is acknowledged already. Imports: errors, topics, ids. Pure.
Source: PIP-31 (PENDING_ACK). Invariant: nothing is changed here but the `Held` that is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.errors import NotAllowed, TransactionConflict
from magnetar.topics.intervals import IntervalSet, known_within
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription
from magnetar.transactions.ids import TxnId

MESSAGES_PER_SHARE = 64


def shares_of(size: int) -> int:
    """What holding messages of a batch of `size` costs."""
    return 1 + size // MESSAGES_PER_SHARE


@dataclass(slots=True)
class Held:
    """What one transaction holds; of batches the messages as a mask (bit 1 = held), and how many
    there are."""

    entries: IntervalSet = field(default_factory=IntervalSet)
    messages: dict[int, int] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    batch_shares: int = 0

    @property
    def shares(self) -> int:
        return self.entries.interval_count + self.batch_shares

    def more_shares(self, ordinal: int, size: int) -> int:
        """What holding messages of this batch costs beyond what it costs already."""
        return max(
            0, shares_of(size) - (shares_of(self.sizes[ordinal]) if ordinal in self.sizes else 0)
        )

    def hold(self, start: int, end: int) -> None:
        """The entries [start, end), also those of which it holds messages."""
        self.entries.add(start, end)
        for ordinal in known_within(self.messages, start, end):
            self.batch_shares -= shares_of(self.sizes.pop(ordinal))
            del self.messages[ordinal]

    def hold_messages(self, ordinal: int, wanted: int, size: int) -> None:
        """Messages of one batch of `size`."""
        self.batch_shares += self.more_shares(ordinal, size)
        self.sizes[ordinal] = max(size, self.sizes.get(ordinal, 0))
        self.messages[ordinal] = self.messages.get(ordinal, 0) | wanted

    def batches(self) -> dict[int, tuple[int, int]]:
        """(messages held, messages) by ordinal."""
        return {
            ordinal: (messages, self.sizes[ordinal]) for ordinal, messages in self.messages.items()
        }


class Conflicts:
    """Of one subscription; `held` is what its transactions hold."""

    __slots__ = ("_held", "_ledgers", "_subscription")

    def __init__(
        self, subscription: Subscription, ledgers: LedgerTable, held: Mapping[TxnId, Held]
    ) -> None:
        self._subscription, self._ledgers, self._held = subscription, ledgers, held

    def messages_named(self, ordinal: int, mask: int, size: int) -> int:
        """Which messages of a batch of `size` an ack set's `mask` acknowledges (bit 1 = does).
        Raises NotAllowed."""
        if size < 1:
            raise NotAllowed(
                f"batch_size: {size} of message {self._name(ordinal)} is out of range; send that "
                "of its batch with the ack_set"
            )
        return ((1 << size) - 1) & ~mask

    def not_acknowledged(self, held: Held | None, ordinal: int) -> int:
        """Which messages of an entry are not acknowledged (bit 1 = is not; all bits if all are);
        what `held` has counts as not."""
        cursor = self._subscription.cursor
        own = (
            0 if held is None else -1 if ordinal in held.entries else held.messages.get(ordinal, 0)
        )
        return own | (0 if cursor.is_acknowledged(ordinal) else cursor.partial.get(ordinal, -1))

    def nothing_left(self, txn: TxnId, ordinal: int) -> TransactionConflict:
        return TransactionConflict(
            f"message {self._name(ordinal)} and all before it are acknowledged already: abort {txn}"
        )

    def fresh(self, txn: TxnId, held: Held, start: int, end: int) -> Sequence[tuple[int, int]]:
        """What of the entries [start, end) the transaction does not hold yet. Raises
        TransactionConflict if it may not hold it."""
        cursor, view = self._subscription.cursor, self._subscription.deferred
        runs = list(held.entries.missing(start, end))
        for low, high in runs:
            unacknowledged = sum(
                after - before for before, after in cursor.unacknowledged(low, high)
            )
            if unacknowledged < high - low:
                gone = next(
                    ordinal for ordinal in range(low, high) if cursor.is_acknowledged(ordinal)
                )
                raise TransactionConflict(
                    f"message {self._name(gone)} is acknowledged already: abort {txn}"
                )
            if view is None:
                continue
            for first, _ in view.entries.overlap(low, high):
                raise self._conflict(txn, first)
            for ordinal in known_within(view.messages, low, high):
                if view.messages[ordinal] & ~held.messages.get(ordinal, 0):
                    raise self._conflict(txn, ordinal)
        return runs

    def fresh_messages(self, txn: TxnId, held: Held, ordinal: int, wanted: int) -> int:
        """As `_fresh`, of messages of one entry."""
        cursor, view = self._subscription.cursor, self._subscription.deferred
        if ordinal in held.entries:
            return 0
        wanted &= ~held.messages.get(ordinal, 0)
        acknowledged = ~cursor.partial[ordinal] if ordinal in cursor.partial else 0
        if wanted and (cursor.is_acknowledged(ordinal) or wanted & acknowledged):
            raise TransactionConflict(
                f"message {self._name(ordinal)} is acknowledged already, wholly or partly: abort "
                f"{txn}"
            )
        if (
            view is not None
            and wanted
            and (ordinal in view.entries or wanted & view.messages.get(ordinal, 0))
        ):
            raise self._conflict(txn, ordinal, wanted)
        return wanted

    def _conflict(self, txn: TxnId, ordinal: int, wanted: int = -1) -> TransactionConflict:
        """`wanted`: which messages of the entry, all by default."""
        holder = next(
            other
            for other, held in self._held.items()
            if other != txn and (ordinal in held.entries or held.messages.get(ordinal, 0) & wanted)
        )
        return TransactionConflict(
            f"message {self._name(ordinal)} is held by transaction {holder}: abort {txn}, or wait "
            "for its end"
        )

    def _name(self, ordinal: int) -> str:
        if not self._ledgers.first <= ordinal < self._ledgers.end:
            return "(gone)"
        ledger, entry = self._ledgers.position(ordinal)
        return f"{ledger}:{entry}"
