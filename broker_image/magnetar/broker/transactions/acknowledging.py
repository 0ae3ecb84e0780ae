"""ACK in a transaction.

Owns: what an ACK with a TxnID names: entries by their ids, messages of batches and how large those
are. Imports: wire, topics, siblings. Invariants: an ACK in a transaction does all that it names or
is refused: what does not exist (any more) is not passed over, for the transaction would commit
without it; a batch has as many messages as its entry says, since clients may not send it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.broker.transactions.positions import entry_named, last_up_to
from magnetar.broker.transactions.subscription_transactions import Named, SubscriptionTransactions
from magnetar.coordinator.identity import txn_of
from magnetar.errors import NotAllowed, StorageError, TransactionConflict
from magnetar.topics.acksets import mask_of_words
from magnetar.topics.dispatch.base import ReadRequest
from magnetar.topics.intervals import joined
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.broker.ports import AttachedConsumer, ServedTopic
    from magnetar.broker.topics.subscription_host import SubscriptionHost

SIZES_READ_MAX = 1_000
"""Batches of one ACK whose sizes may have to be read from storage."""


def acknowledge_in_transaction(
    host: SubscriptionHost,
    session: AttachedConsumer,
    ack: api.CommandAck,
    confirmed: Callable[[], None] | None,
) -> None:
    """An ACK whose transaction is to hold what it names; `confirmed` is called when that is
    durable.

    The sizes of its batches must be known (`without_size`). Raises TransactionConflict,
    InvalidTxnStatus, NotAllowed, ServiceNotReady, StorageError.
    """
    txn = txn_of(ack)
    if not host.topic.name.persistent:
        raise NotAllowed(
            f"topic {host.topic.name} is not persistent and knows no transactions; use a "
            "persistent one"
        )
    transactions = SubscriptionTransactions(host)
    if ack.ack_type == api.CommandAck.Individual:
        transactions.acknowledge(session, txn, _each(host.topic, txn, ack), confirmed)
        return
    if len(ack.message_id) != 1:
        raise NotAllowed(
            f"message_id: a cumulative ACK names one message, this one {len(ack.message_id)}"
        )
    identifier = ack.message_id[0]
    ordinal = _up_to(host.topic, txn, identifier)
    mask = (
        mask_of_words(identifier.ack_set)
        if entry_named(host.topic, commands.position_of(identifier)) is not None
        else 0
    )
    size = _size(host.topic, ordinal, mask, identifier) if mask else 0
    transactions.acknowledge_cumulative(session, txn, ordinal, mask, size, confirmed)


def _each(topic: ServedTopic, txn: TxnId, ack: api.CommandAck) -> Named:
    entries: list[int] = []
    partial: list[tuple[int, int, int]] = []
    for identifier in ack.message_id:
        ordinal = entry_named(topic, commands.position_of(identifier))
        if ordinal is None:
            raise _nothing_there(txn, identifier)
        mask = mask_of_words(identifier.ack_set)
        if mask:
            partial.append((ordinal, mask, _size(topic, ordinal, mask, identifier)))
        else:
            entries.append(ordinal)
    return Named(joined(entries), partial)


def _up_to(topic: ServedTopic, txn: TxnId, identifier: api.MessageIdData) -> int:
    """Ordinal of the last entry that a cumulative ACK names; it may be one that is gone."""
    position, ledgers = last_up_to(topic, commands.position_of(identifier)), topic.core.ledgers
    if position is None or position > ledgers.last_position:
        raise _nothing_there(txn, identifier)
    return ledgers.ordinal_after(position) - 1


def _nothing_there(txn: TxnId, identifier: api.MessageIdData) -> TransactionConflict:
    ledger, entry = commands.position_of(identifier)
    return TransactionConflict(f"message {ledger}:{entry} does not exist (any more): abort {txn}")


# --- how large batches are ------------------------------------------------------------------------


def without_size(topic: ServedTopic, ack: api.CommandAck) -> list[api.MessageIdData]:
    """Message ids of batches whose sizes only storage knows. Raises NotAllowed for too many."""
    missing = []
    for identifier in ack.message_id:
        if identifier.ack_set and identifier.batch_size < 1:
            ordinal = entry_named(topic, commands.position_of(identifier))
            if ordinal is not None and topic.index.messages_of(ordinal) is None:
                missing.append(identifier)
    if len(missing) > SIZES_READ_MAX:
        raise NotAllowed(
            f"batch_size: {len(missing)} message ids have an ack_set and no batch_size; send it, "
            "or fewer at once"
        )
    return missing


async def read_sizes(topic: ServedTopic, identifiers: list[api.MessageIdData]) -> None:
    """Fill in the `batch_size` of these message ids. Raises StorageError."""
    for identifier in identifiers:
        ordinal = entry_named(topic, commands.position_of(identifier))
        if ordinal is not None:
            try:
                _, counts = await topic.reader.read(ReadRequest(ordinal, 1))
            except FileNotFoundError as error:
                raise StorageError(
                    f"{error.filename} is missing from storage; try again, and restore it if that "
                    "does not help"
                ) from error
            identifier.batch_size = counts[0]


def _size(topic: ServedTopic, ordinal: int, mask: int, identifier: api.MessageIdData) -> int:
    """How many messages the batch at `ordinal` has. Raises NotAllowed beyond what an ack set may
    hold."""
    counted = topic.index.messages_of(ordinal) or 0
    size = max(counted, identifier.batch_size, mask.bit_length())
    most = 64 * topic.context.settings.ack_words_max
    if size > most:
        ledger, entry = commands.position_of(identifier)
        raise NotAllowed(
            f"batch_size: message {ledger}:{entry} is one of {size}; an ack_set of "
            "ack_set_words_max="
            f"{topic.context.settings.ack_words_max} words has {most}: acknowledge the whole batch"
        )
    return size
