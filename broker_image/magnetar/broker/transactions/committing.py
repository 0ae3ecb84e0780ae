"""The end of a transaction on a topic.

Owns: commit and abort of what a transaction has published: the marker, the record, what readers
see. Imports: transactions, storage formats. Invariants: the partition's ids are given when the
record goes to the log, and its entries appear when that is durable; an end may come again; it is
answered behind the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from magnetar.errors import InvalidTxnStatus, ServiceNotReady, StorageError
from magnetar.storage.log.format import encode_transaction
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import NOWHERE, Abort, Commit, Unbegun
from magnetar.transactions.records import Action

if TYPE_CHECKING:
    from magnetar.broker.topics.topic_host import TopicHost

log = structlog.get_logger(__name__)


async def end_transaction(topic: TopicHost, txn: TxnId, action: Action, floor: int) -> None:
    """The transaction has been decided: its entries are the partition's, or void; durable and
    visible to readers when this returns.

    `floor`: every transaction of that coordinator with a smaller number has ended everywhere; those
    that are open here all the same are aborted. Raises InvalidTxnStatus if it has ended the other
    way here, ServiceNotReady, StorageError.
    """
    topic.check_writable()
    try:
        if action is Action.COMMIT:
            _commit(topic, txn, floor)
        else:
            _abort(topic, txn, floor)
    except InvalidTxnStatus:
        await topic.context.log.barrier()  # the coordinator takes the other end for final
        raise
    await topic.context.log.barrier()
    abort_orphans(topic)


def abort_orphans(topic: TopicHost) -> None:
    """Abort what is open here below its coordinator's floor: it was never registered there."""
    if topic.frozen:
        return
    for orphan in topic.used_with_transactions().buffer.orphans():
        log.info("transaction.orphan_aborted", topic=str(topic.name), txn=str(orphan))
        abort_forgotten(topic, orphan, 0)


def abort_forgotten(topic: TopicHost, txn: TxnId, floor: int) -> None:
    """Abort an open transaction that its coordinator has forgotten: it did not commit. Nothing
    happens while nothing can be written.

    `floor` as of `end_transaction`.
    """
    if may_write(topic.check_writable) and topic.used_with_transactions().buffer.is_open(txn):
        _abort(topic, txn, floor)


def void_unbegun(topic: TopicHost, txn: TxnId) -> bool:
    """The coordinator was asked, and says that the transaction has not begun: what was sent here in
    its name is void, and no fence stays.

    False, for now, if nothing can be written, or something was sent since it was to be asked.
    """
    change = (
        topic.used_with_transactions().buffer.unbegun(txn)
        if may_write(topic.check_writable)
        else None
    )
    if change is not None:
        _write(topic, change)
        _end_watermarks(topic, txn, committed=False)
    return change is not None


def may_write(check: Callable[[], None]) -> bool:
    """Whether `check` finds that a change can be written now."""
    try:
        check()
    except (ServiceNotReady, StorageError):
        return False
    return True


def _commit(topic: TopicHost, txn: TxnId, floor: int) -> None:
    buffer = topic.used_with_transactions().buffer
    count = buffer.entries_to_commit(txn)
    if count is None:
        _end_watermarks(topic, txn, committed=True)
        return
    marker = topic.core.publish(count) if count else NOWHERE
    change = buffer.commit(txn, marker, floor, topic.context.clock.wall_ms())
    _write(topic, change)
    _end_watermarks(topic, txn, committed=True)


def _abort(topic: TopicHost, txn: TxnId, floor: int) -> None:
    change = topic.used_with_transactions().buffer.abort(txn, floor)
    if change is not None:
        _write(topic, change)
    _end_watermarks(topic, txn, committed=False)


def _end_watermarks(topic: TopicHost, txn: TxnId, *, committed: bool) -> None:
    """Behind the record of the end, at its place: what the transaction held of the topic's
    watermarks is free, and what it asserted counts if it has committed."""
    if topic.watermarks is not None:
        topic.watermarks.ended(txn, committed=committed)


def _write(topic: TopicHost, change: Commit | Abort | Unbegun) -> None:
    encoded = encode_transaction(epoch=topic.bundle.epoch, topic=str(topic.name), change=change)
    topic.bundle.append(encoded, lambda _place: _durable(topic, change))


def _durable(topic: TopicHost, change: Commit | Abort | Unbegun) -> None:
    used = topic.used_with_transactions()
    if isinstance(change, Abort | Unbegun):
        spans = used.buffer.durable_spans(change.txn)
        used.buffer.confirm(change)
        for run in used.forget(spans):
            topic.bundle.tail_cache.release(run)
        return
    size, messages = used.buffer.durable_size(change.txn)
    used.buffer.confirm(change)
    if not change.count:
        return
    ordinal = topic.core.confirm(change.marker, change.count)
    used.link(topic.index, ordinal, change.spans, topic.core.messages)
    topic.traffic.count_in(messages, size)
    topic.wake()
