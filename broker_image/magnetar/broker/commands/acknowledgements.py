"""What consumers say about messages.

Owns: ACK, REDELIVER and GET_LAST_MESSAGE_ID over a consumer session; ACKs in transactions are read
by `transactions/acknowledging`. Imports: wire, topics. Invariants: an ACK with a request id is
answered, also for a consumer that is not attached; a success leaves only after its cursor record is
durable; ids of entries that do not exist (any more) are ignored; the cost of one ACK, and of all
that a subscription acknowledges, is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.commands.sessions import ConsumerSession, attached_consumer, consumer_of
from magnetar.broker.reading.catalog import last_surviving_message
from magnetar.broker.transactions.acknowledging import (
    acknowledge_in_transaction,
    read_sizes,
    without_size,
)
from magnetar.broker.transactions.positions import entry_named, last_up_to
from magnetar.errors import (
    LimitExceeded,
    MagnetarError,
    NotAllowed,
    ProtocolError,
    ServiceNotReady,
    WireCode,
)
from magnetar.topics.acksets import mask_of_words
from magnetar.topics.dispatch.base import SubscriptionType
from magnetar.topics.intervals import joined
from magnetar.topics.ledger_ids import is_sidecar
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import readable_entry
from magnetar.wire.runs import AckSpan

if TYPE_CHECKING:
    from magnetar.broker.connections.connection import Connection

log = structlog.get_logger(__name__)

CUMULATIVE = api.CommandAck.Cumulative
ACK_SETS_PER_COMMAND_MAX = 16
"""Ack sets of the greatest length that one ACK may have, all its ids together: 4 million
messages."""
IDS_IN_TRANSACTION_MAX = 1_500
"""Of one ACK in a transaction, which is carried out at once."""
PART_REST_S = 0.001
"""Between two parts of a long list: requests of other connections take several turns of the
loop."""
HELD_AT_ONCE_MAX = 250
"""Messages that one consumer gives back before others get their turn."""
SPAN_BYTES = 100
"""What a span counts for while it is held."""
TRACKED = (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
"""Types that know which consumer holds what."""


def acknowledge(connection: Connection, ack: api.CommandAck) -> None:
    """ACK: individual or cumulative; answered only if it has a request id. One that changes much
    gets turns, with what follows it behind.

    During its consumer's SUBSCRIBE it waits until that has ended.
    """
    if ack.consumer_id not in connection.sessions.consumers:
        again = partial(acknowledge, connection, ack)
        if connection.sessions.early_acknowledgements.hold(ack.consumer_id, ack.ByteSize(), again):
            return
    refused = _take(connection, ack, _confirm(connection, ack))
    if refused is not None:
        _refuse(connection, ack, *refused)


def _take(
    connection: Connection, ack: api.CommandAck, confirmed: Callable[[], None] | None
) -> tuple[WireCode, str] | None:
    """Do what an ACK asks for, now or later; `confirmed` is called when it is durable. Why it is
    refused, or None."""
    session = consumer_of(connection, ack.consumer_id)
    if session is None:
        # Apache Pulsar does not answer: a client that acknowledges while it resubscribes waits for
        # its whole operation timeout.
        return (
            WireCode.CONSUMER_NOT_FOUND,
            "Consumer not found: it is not attached; subscribe, and acknowledge then",
        )
    topic = session.subscription.topic
    if topic.leaving:
        return (
            WireCode.SERVICE_NOT_READY,
            f"topic {topic.name} is being unloaded; acknowledge again after the reconnect",
        )
    refusal = _too_many_words(ack, topic.context.settings.ack_words_max)
    if refusal is not None:
        return WireCode.NOT_ALLOWED, refusal
    if _in_transaction(ack):
        _acknowledge_in_transaction(connection, session, ack, confirmed)
    elif ack.ack_type == CUMULATIVE:
        _acknowledge_cumulative(session, ack, confirmed)
    else:
        try:
            _acknowledge_each(session, ack, confirmed)
        except LimitExceeded as error:
            return error.wire_code, str(error)
    return None


def _in_transaction(ack: api.CommandAck) -> bool:
    return ack.HasField("txnid_least_bits") or ack.HasField("txnid_most_bits")


async def take_list(connection: Connection, parts: Iterator[bytes | None]) -> None:
    """An ACK or REDELIVER that names so many messages that it is taken part by part (`list_parts`),
    others having their turns in between.

    An ACK is answered once, after all of it; one that is refused may have been carried out in part,
    as if its ids had come one by one. In a transaction it is carried out as a whole or refused.
    """
    whole, previous = api.CommandAck(), None
    try:
        for part in parts:
            await asyncio.sleep(0 if part is None else PART_REST_S)
            if part is None:
                continue
            command = commands.decode_command(part)
            if command.type == api.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
                if not _redeliver_listed(connection, command.redeliver_unacknowledged_messages):
                    return
            elif command.ack.ack_type == CUMULATIVE or _in_transaction(command.ack):
                whole.MergeFrom(command.ack)
                if len(whole.message_id) > IDS_IN_TRANSACTION_MAX:
                    break
            elif (
                previous is not None and (refused := _take(connection, previous, None)) is not None
            ):
                _refuse(connection, previous, *refused)
                return
            else:
                previous = command.ack
    except ProtocolError as error:
        log.warning("connection.protocol_error", peer=connection.peer, error=str(error))
        connection.close()
        return
    await asyncio.sleep(0)
    if previous is not None:
        acknowledge(connection, previous)
    elif whole.message_id:
        acknowledge(connection, whole)


def _too_many_words(ack: api.CommandAck, limit: int) -> str | None:
    """Why the ack sets of an ACK are refused; None if they are not."""
    longest = total = 0
    for identifier in ack.message_id:
        words = len(identifier.ack_set)
        longest, total = max(longest, words), total + words
    if longest > limit:
        return (
            f"ack_set of {longest} words is longer than ack_set_words_max={limit}; make smaller "
            "batches"
        )
    if total > ACK_SETS_PER_COMMAND_MAX * limit:
        most = ACK_SETS_PER_COMMAND_MAX * limit
        return (
            f"ack_sets of {total} words in one ACK are more than {most}; acknowledge fewer batches "
            "at once"
        )
    return None


def acknowledge_span(connection: Connection, span: AckSpan) -> None:
    """As `acknowledge`, for consecutive entries that are acknowledged without a request id: what
    consumers send most."""
    session = consumer_of(connection, span.consumer_id)
    if session is None:
        again = partial(acknowledge_span, connection, span)
        connection.sessions.early_acknowledgements.hold(span.consumer_id, SPAN_BYTES, again)
    if session is None or session.subscription.topic.leaving:
        return
    host = session.subscription
    if host.topic.transactions is not None and is_sidecar((span.ledger, span.first)):
        found = (
            entry_named(host.topic, (span.ledger, entry))
            for entry in range(span.first, span.first + span.entries)
        )
        ranges = [(ordinal, ordinal + 1) for ordinal in found if ordinal is not None]
    else:
        ranges = [
            host.topic.core.ledgers.known_span(
                span.ledger, span.first, span.first + span.entries - 1
            )
        ]
    if host.core.crowded_out(ranges, ()) is None:
        host.acknowledge(session, ranges, (), None)


def _acknowledge_in_transaction(
    connection: Connection,
    session: ConsumerSession,
    ack: api.CommandAck,
    confirmed: Callable[[], None] | None,
) -> None:
    """Answered with why it cannot be done, as far as it can be answered; while the topic's
    bundle is divided it waits."""
    topic = session.subscription.topic
    try:
        if len(ack.message_id) > IDS_IN_TRANSACTION_MAX:
            raise NotAllowed(
                f"message_id: one ACK in a transaction names at most {IDS_IN_TRANSACTION_MAX} "
                "messages; send several, with fewer each"
            )
        if topic.frozen:
            buffered = topic.bundle.buffered
            if buffered is None or not buffered.request(
                ack.ByteSize(), lambda: acknowledge(connection, ack)
            ):
                raise ServiceNotReady(
                    f"topic {topic.name} is being unloaded; acknowledge again in a moment"
                )
        elif missing := without_size(topic, ack):
            connection.spawn(_acknowledge_when_read(connection, session, ack, missing))
        else:
            acknowledge_in_transaction(session.subscription, session, ack, confirmed)
    except MagnetarError as error:
        _refuse(connection, ack, error.wire_code, str(error))


async def _acknowledge_when_read(
    connection: Connection,
    session: ConsumerSession,
    ack: api.CommandAck,
    missing: list[api.MessageIdData],
) -> None:
    try:
        await read_sizes(session.subscription.topic, missing)
    except MagnetarError as error:
        _refuse(connection, ack, error.wire_code, str(error))
        return
    acknowledge(connection, ack)


def _refuse(connection: Connection, ack: api.CommandAck, code: WireCode, text: str) -> None:
    if ack.HasField("request_id"):
        connection.queue(commands.ack_response(ack.consumer_id, ack.request_id, code, text))


def _confirm(connection: Connection, ack: api.CommandAck) -> Callable[[], None] | None:
    if not ack.HasField("request_id"):
        return None
    response = commands.ack_response(ack.consumer_id, ack.request_id)
    return lambda: connection.queue(response)


def _acknowledge_cumulative(
    session: ConsumerSession, ack: api.CommandAck, confirmed: Callable[[], None] | None
) -> None:
    if len(ack.message_id) != 1:
        if confirmed is not None:
            confirmed()
        return
    host, identifier = session.subscription, ack.message_id[0]
    named, ledgers = commands.position_of(identifier), host.topic.core.ledgers
    position = last_up_to(host.topic, named)
    if position is None or position > ledgers.last_position:
        # Pulsar refuses to move a mark-delete beyond the last entry, silently.
        host.acknowledge(session, (), (), confirmed)
        return
    # The position need not exist (a client may acknowledge what it saw before a seek): everything
    # up to it is acknowledged.
    ordinal = ledgers.clamp_known((position[0], position[1] + 1)) - 1
    mask = (
        mask_of_words(identifier.ack_set)
        if identifier.ack_set and entry_named(host.topic, named) is not None
        else None
    )
    host.acknowledge_cumulative(session, ordinal, mask or None, confirmed)


def _acknowledge_each(
    session: ConsumerSession, ack: api.CommandAck, confirmed: Callable[[], None] | None
) -> None:
    topic = session.subscription.topic
    find = topic.core.ledgers.known if topic.transactions is None else partial(entry_named, topic)
    entries: list[int] = []
    messages: list[tuple[int, int]] = []
    for identifier in ack.message_id:
        ordinal = find(commands.position_of(identifier))
        if ordinal is None:
            continue
        mask = mask_of_words(identifier.ack_set) if identifier.ack_set else 0
        if mask:
            messages.append((ordinal, mask))
        else:
            entries.append(ordinal)
    ranges = joined(entries)
    crowded = session.subscription.core.crowded_out(ranges, (ordinal for ordinal, _ in messages))
    if crowded is not None:
        raise LimitExceeded(crowded)
    session.subscription.acknowledge(session, ranges, messages, confirmed)


def redeliver(connection: Connection, request: api.CommandRedeliverUnacknowledgedMessages) -> None:
    """REDELIVER: the listed entries, or everything this consumer holds; much of that part by
    part."""
    session = consumer_of(connection, request.consumer_id)
    if session is None:
        return
    core = session.subscription.core
    if request.message_ids:
        _redeliver_listed(connection, request)
    elif (
        consumer := core.consumers.get(session)
    ) is not None and consumer.unacknowledged > HELD_AT_ONCE_MAX:
        connection.spawn_in_order(_redeliver_held(session, core.held(session)))
    else:
        core.redeliver(session, None, request.consumer_epoch)
        session.subscription.schedule()


def _redeliver_listed(
    connection: Connection, request: api.CommandRedeliverUnacknowledgedMessages
) -> bool:
    """Give back the listed entries; False if the rest of a longer list changes nothing more."""
    session = consumer_of(connection, request.consumer_id)
    if session is None:
        return False
    host = session.subscription
    found = (
        host.topic.core.ledgers.find(commands.position_of(identifier))
        for identifier in request.message_ids
    )
    host.core.redeliver(
        session,
        joined([ordinal for ordinal in found if ordinal is not None]),
        request.consumer_epoch,
    )
    host.schedule()
    return host.core.kind in TRACKED  # others begin again with the mark-delete, once


async def _redeliver_held(session: ConsumerSession, held: Sequence[int]) -> None:
    for at in range(0, len(held), HELD_AT_ONCE_MAX):
        if session.closed:
            return
        part = held[at : at + HELD_AT_ONCE_MAX]
        session.subscription.core.redeliver(session, joined(list(part)))
        session.subscription.schedule()
        await asyncio.sleep(0)


async def last_message_id(connection: Connection, request: api.CommandGetLastMessageId) -> None:
    """GET_LAST_MESSAGE_ID. Raises InvalidRequest, StorageError."""
    session = attached_consumer(connection, request.consumer_id)
    host = session.subscription
    await host.topic.context.log.confirm()
    position, entry = await host.topic.reader.last_message(session.read_compacted)
    batch_index: int | None = None
    if entry is not None:
        parsed = readable_entry(entry)
        batch_index = (
            last_surviving_message(parsed.metadata) if parsed is not None and parsed.batched else -1
        )
    identifier = commands.message_id_data(
        commands.Position(*position), session.partition, batch_index
    )
    mark_delete = host.topic.core.ledgers.position_before(host.core.cursor.mark_delete)
    connection.queue(
        commands.last_message_id(request.request_id, identifier, commands.Position(*mark_delete))
    )
