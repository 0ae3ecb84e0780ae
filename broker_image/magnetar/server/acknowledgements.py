"""What consumers tell about messages.

Owns: ACK, REDELIVER, SEEK, GET_LAST_MESSAGE_ID and CONSUMER_STATS over a consumer session. Imports: wire, topics, server siblings.
Source: facts on protocol semantics 2.5-2.7, 2.10.
Invariants: an ACK of an unknown consumer is dropped without a word; an ACK_RESPONSE leaves only after its cursor record is durable; a SEEK
disconnects its consumers, resets the cursor durably and is answered last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.errors import InvalidRequest, NotAllowed, ServiceNotReady, WireCode
from magnetar.server.catalog import last_surviving_message
from magnetar.server.sessions import ConsumerSession
from magnetar.topics.acksets import mask_of_words
from magnetar.topics.ledgers import Position
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import parse_entry

if TYPE_CHECKING:
    from magnetar.server.connection import Connection
    from magnetar.server.context import BrokerContext

CUMULATIVE = api.CommandAck.Cumulative


def acknowledge(connection: Connection, ack: api.CommandAck) -> None:
    """ACK: individual or cumulative; answered only if it has a request id."""
    session = connection.consumers.get(ack.consumer_id)
    if session is None:
        return
    if ack.HasField("txnid_least_bits") or ack.HasField("txnid_most_bits"):
        connection.queue(
            commands.ack_response(ack.consumer_id, ack.request_id, WireCode.NOT_ALLOWED, "Transactions are not enabled.")
        )
        return
    host = session.subscription
    if host.topic.frozen:
        if ack.HasField("request_id"):
            text = f"topic {host.topic.name} is being unloaded; acknowledge again after the reconnect"
            connection.queue(commands.ack_response(ack.consumer_id, ack.request_id, WireCode.SERVICE_NOT_READY, text))
        return
    confirmed = _confirm(connection, ack) if ack.HasField("request_id") else None
    if ack.ack_type == CUMULATIVE:
        _acknowledge_cumulative(session, ack, confirmed)
    else:
        _acknowledge_each(session, ack, confirmed)


def _confirm(connection: Connection, ack: api.CommandAck) -> Callable[[], None]:
    response = commands.ack_response(ack.consumer_id, ack.request_id)
    return lambda: connection.queue(response)


def _acknowledge_cumulative(session: ConsumerSession, ack: api.CommandAck, confirmed: Callable[[], None] | None) -> None:
    if len(ack.message_id) != 1:
        if confirmed is not None:
            confirmed()
        return
    host, identifier = session.subscription, ack.message_id[0]
    # The position need not exist (a client may acknowledge what it saw before a seek): everything up to it is acknowledged.
    ordinal = host.topic.core.ledgers.ordinal_after(commands.position_of(identifier)) - 1
    mask = mask_of_words(identifier.ack_set) if identifier.ack_set else None
    host.acknowledge_cumulative(session, ordinal, mask or None, confirmed)


def _acknowledge_each(session: ConsumerSession, ack: api.CommandAck, confirmed: Callable[[], None] | None) -> None:
    find = session.subscription.topic.core.ledgers.find
    ranges: list[tuple[int, int]] = []
    partial: list[tuple[int, int]] = []
    for identifier in ack.message_id:
        ordinal = find(commands.position_of(identifier))
        if ordinal is None:
            continue
        mask = mask_of_words(identifier.ack_set) if identifier.ack_set else 0
        if mask:
            partial.append((ordinal, mask))
        elif ranges and ranges[-1][1] == ordinal:
            ranges[-1] = (ranges[-1][0], ordinal + 1)
        else:
            ranges.append((ordinal, ordinal + 1))
    session.subscription.acknowledge(session, ranges, partial, confirmed)


def redeliver(connection: Connection, request: api.CommandRedeliverUnacknowledgedMessages) -> None:
    """REDELIVER: the listed entries, or everything this consumer holds."""
    session = connection.consumers.get(request.consumer_id)
    if session is None:
        return
    host = session.subscription
    ranges: list[tuple[int, int]] | None = None
    if request.message_ids:
        found = (host.topic.core.ledgers.find(commands.position_of(identifier)) for identifier in request.message_ids)
        ranges = [(ordinal, ordinal + 1) for ordinal in found if ordinal is not None]
    host.core.redeliver(session, ranges, request.consumer_epoch)
    host.schedule()


async def seek(connection: Connection, request: api.CommandSeek, context: BrokerContext) -> None:
    """SEEK by id: disconnect, reset, make it durable. Raises InvalidRequest, NotAllowed, ServiceNotReady."""
    session = connection.consumers.get(request.consumer_id)
    if session is None:
        raise InvalidRequest("Consumer not found")
    if not request.HasField("message_id"):
        if request.HasField("message_publish_time"):
            raise NotAllowed("seek by message_publish_time is not offered yet; seek by message_id")
        raise InvalidRequest("SEEK has neither message_id nor message_publish_time; set one")
    host = session.subscription
    if host.topic.frozen:
        raise ServiceNotReady(f"topic {host.topic.name} is being unloaded; seek again after the reconnect")
    mask = mask_of_words(request.message_id.ack_set) if request.message_id.ack_set else None
    host.disconnect_for_seek()
    if host.core.durable:
        host.core.reset(host.topic.core.ledgers.clamp(Position(*commands.position_of(request.message_id))), mask)
        host.topic.bundle.write_cursor(host, lambda: None)
        await context.log.barrier()


async def last_message_id(connection: Connection, request: api.CommandGetLastMessageId) -> bytes:
    """The frame of GET_LAST_MESSAGE_ID_RESPONSE. Raises InvalidRequest, StorageError."""
    session = connection.consumers.get(request.consumer_id)
    if session is None:
        raise InvalidRequest("Consumer not found")
    host = session.subscription
    position, entry = await host.topic.last_message(session.read_compacted)
    batch_index: int | None = None
    if entry is not None:
        parsed = parse_entry(entry)
        batch_index = last_surviving_message(parsed.metadata) if parsed.batched else -1
    identifier = commands.message_id_data(commands.Position(*position), session.partition, batch_index)
    mark_delete = host.topic.core.ledgers.position_before(host.core.cursor.mark_delete)
    return commands.last_message_id(request.request_id, identifier, commands.Position(*mark_delete))


def statistics(connection: Connection, request: api.CommandConsumerStats) -> None:
    """CONSUMER_STATS."""
    session = connection.consumers.get(request.consumer_id)
    if session is None:
        connection.queue(commands.consumer_stats_failed(request.request_id, WireCode.CONSUMER_NOT_FOUND, "Consumer not found"))
        return
    core = session.subscription.core
    consumer = core.consumers[session]
    kind = core.kind
    connection.queue(
        commands.consumer_stats(
            api.CommandConsumerStatsResponse(
                request_id=request.request_id,
                consumerName=consumer.name,
                availablePermits=max(0, consumer.permits),
                unackedMessages=consumer.unacknowledged,
                blockedConsumerOnUnackedMsgs=consumer.blocked,
                address=connection.peer,
                type=kind.name.title() if kind is not None else "",
                msgBacklog=core.backlog,
            )
        )
    )
