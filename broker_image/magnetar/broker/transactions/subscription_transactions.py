"""Transactions on one subscription that is served here.

Owns: driving `PendingAcks`: what it decides becomes a record of the log, and is answered when that
is durable; redelivery after an abort; the end of forgotten transactions. Imports: transactions,
storage formats. Source: PIP-31. Invariants: what could not be written is refused before anything is
held or ended; nothing changes in a topic that is being unloaded; an end takes effect at once, since
its coordinator's decision is durable, and records that follow from it lie behind it in the log; a
consumer that leaves changes nothing of what its transactions hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import structlog

from magnetar.broker.transactions.committing import may_write
from magnetar.errors import InvalidTxnStatus, NotAllowed, ServiceNotReady
from magnetar.storage.log.format import encode_transaction
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import Outcome, PendingAck, PendingChange
from magnetar.transactions.records import Action
from magnetar.transactions.topic.pending_acks import PendingAcks

if TYPE_CHECKING:
    from magnetar.broker.ports import AttachedConsumer
    from magnetar.broker.topics.subscription_host import SubscriptionHost

log = structlog.get_logger(__name__)


class Named(NamedTuple):
    """Entries as ranges of ordinals [start, end), and messages of batches as (ordinal, ack set's
    mask, messages in the batch)."""

    ranges: Sequence[tuple[int, int]]
    partial: Sequence[tuple[int, int, int]]


class SubscriptionTransactions:
    """What transactions have acknowledged on a subscription and not ended yet."""

    def __init__(self, host: SubscriptionHost) -> None:
        """Of a subscription that is used with transactions from now on. Raises NotAllowed for
        one that keeps no acknowledgements."""
        if not host.core.durable:
            raise NotAllowed(
                f"subscription {host.core.name!r} of topic {host.topic.name} is not durable: what "
                "a transaction acknowledges would be lost "
                "with its consumer; acknowledge on a durable subscription"
            )
        self._host = host
        self.core: PendingAcks = host.topic.used_with_transactions().pending_of(host.core.name)

    # --- acknowledging ----------------------------------------------------------------------------

    def acknowledge(
        self,
        session: AttachedConsumer,
        txn: TxnId,
        named: Named,
        confirmed: Callable[[], None] | None,
    ) -> None:
        """Hold these for the transaction; `confirmed` is called when that is durable.

        Raises TransactionConflict, InvalidTxnStatus, NotAllowed, ServiceNotReady, StorageError:
        then nothing is held.
        """
        self._check()
        change, unblocked = self.core.acknowledge(txn, session, named.ranges, named.partial)
        self._held(session, change, unblocked, confirmed)

    def acknowledge_cumulative(
        self,
        session: AttachedConsumer,
        txn: TxnId,
        ordinal: int,
        mask: int,
        size: int,
        confirmed: Callable[[], None] | None,
    ) -> None:
        """As `acknowledge`: everything up to `ordinal`; with `mask` of that entry, a batch of
        `size`, only the messages whose bit is 0."""
        self._check()
        change, unblocked = self.core.acknowledge_cumulative(txn, session, ordinal, mask, size)
        if change is not None and self._host.core.cursor.dirty:
            # What others have acknowledged is no part of what it holds: it must not be lost either
            # once this one is confirmed.
            self._host.topic.bundle.write_cursor(self._host, _nobody_waits)
        self._held(session, change, unblocked, confirmed)

    def _held(
        self,
        session: AttachedConsumer,
        change: PendingAck | None,
        unblocked: bool,
        confirmed: Callable[[], None] | None,
    ) -> None:
        if change is not None:
            session.entries_acknowledged += sum(
                last - first + 1 for _, first, last in change.ranges
            )
        self._write(change, confirmed)
        if unblocked:
            self._host.schedule()

    # --- ending -----------------------------------------------------------------------------------

    async def end(self, txn: TxnId, action: Action, floor: int) -> None:
        """The transaction has been decided: what it holds is acknowledged, or delivered again;
        durable when this returns.

        An end may come again. `floor`: every transaction of that coordinator with a smaller number
        has ended everywhere; those that hold something here all the same are released. Raises
        InvalidTxnStatus if it has ended the other way here, ServiceNotReady, StorageError.
        """
        self._check()
        try:
            self._end(txn, Outcome(int(action)), floor)
        except InvalidTxnStatus:
            # the coordinator takes the other end for final
            await self._host.topic.context.log.barrier()
            raise
        self.abort_orphans()
        await self._host.topic.context.log.barrier()

    def abort_forgotten(self, txn: TxnId, floor: int) -> None:
        """Release what a transaction holds that its coordinator has forgotten: it did not commit.
        Nothing happens while nothing can be written.

        `floor`: every transaction of that coordinator with a smaller number has ended everywhere.
        """
        if may_write(self._check) and self.core.is_open(txn):
            self._end(txn, Outcome.ABORTED, floor)

    def abort_orphans(self) -> None:
        """Release what is held here below its coordinator's floor: it was never registered
        there."""
        for orphan in self.core.orphans():
            log.info(
                "transaction.orphan_released",
                topic=str(self._host.topic.name),
                subscription=self._host.core.name,
                txn=str(orphan),
            )
            # it may be another coordinator's, left over: the floor is not about that one
            self.abort_forgotten(orphan, 0)

    def void_unbegun(self, txn: TxnId) -> bool:
        """The coordinator was asked, and says that the transaction has not begun: what is held in
        its name comes again, and no fence stays.

        False, for now, if nothing can be written, or something was acknowledged since it was to be
        asked.
        """
        change, unblocked = self.core.unbegun(txn) if may_write(self._check) else (None, False)
        if change is not None:
            self._released(change, unblocked)
        return change is not None

    def _end(self, txn: TxnId, outcome: Outcome, floor: int) -> None:
        self._released(*self.core.end(txn, outcome, floor))

    def _released(self, change: PendingChange | None, unblocked: bool) -> None:
        self._write(change, None)
        if unblocked:
            self._host.schedule()
        if self._host.topic.watermarks is not None:
            self._host.topic.watermarks.acknowledged(self._host)
        self._host.end_of_topic()

    # --- the log ----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Whether a change could be written now. Raises ServiceNotReady, StorageError."""
        topic = self._host.topic
        if topic.subscriptions.get(self._host.core.name) is not self._host:
            raise ServiceNotReady(f"topic {topic.name} is being unloaded; try again after a lookup")
        topic.check_writable()

    def _write(self, change: PendingChange | None, confirmed: Callable[[], None] | None) -> None:
        topic = self._host.topic
        on_durable = None if confirmed is None else lambda _place: confirmed()
        if change is None:
            if on_durable is not None:
                topic.context.log.append((), 0, 0, on_durable)  # behind whatever is under way
            return
        encoded = encode_transaction(
            epoch=topic.bundle.epoch,
            topic=str(topic.name),
            change=change,
            subscription=self._host.core.name,
        )
        topic.bundle.append(encoded, on_durable)


def _nobody_waits() -> None:
    """The caller waits for the record behind it."""
