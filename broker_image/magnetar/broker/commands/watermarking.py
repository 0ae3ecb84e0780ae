"""Commands of event-time watermarks.

Owns: SET_WATERMARK of a producer, GET_LAST_WATERMARK of a consumer. Imports: wire, topics, errors.
Invariants: an assertion lies in the log behind the SENDs that its producer sent before it; it is
answered once it is durable, also where its producer is not attached.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from magnetar.broker.commands.sessions import ProducerSession, attached_consumer, producer_of
from magnetar.broker.connections.refusals import refuse
from magnetar.errors import MagnetarError, NotAllowed, ServiceNotReady
from magnetar.wire import commands, watermarks
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.broker.connections.connection import Connection

Type = api.BaseCommand.Type


def set_watermark(connection: Connection, request: api.CommandSetWatermark) -> None:
    """SET_WATERMARK, in the order of the producer's SENDs; during a split it waits behind them."""
    session = producer_of(connection, request.producer_id)
    try:
        if session is None or session.leaving:
            raise ServiceNotReady(
                f"producer_id: {request.producer_id} is not attached, for it was closed or its "
                "topic is being unloaded; create it, and assert then"
            )
        buffered = session.topic.bundle.buffered
        if session.topic.frozen and buffered is not None:
            again = partial(set_watermark, connection, request)
            if buffered.request(request.ByteSize(), again):
                return
        _set(connection, session, request)
    except MagnetarError as error:
        refuse(connection, Type.SET_WATERMARK, request, error)


def _set(
    connection: Connection, session: ProducerSession, request: api.CommandSetWatermark
) -> None:
    topic = session.topic
    if not topic.name.persistent or not topic.policies.watermarks.enabled:
        raise NotAllowed(
            f"topic {topic.name} takes no watermarks: it is not persistent, or its policy watermarks "
            "is not enabled"
        )
    topic.check_writable()
    topic.context.log.space.check_publishing()  # the reserve is for what frees space
    topic.used_with_watermarks().set(
        session.name,
        watermarks.event_ms_of(request),
        watermarks.txn_of(request),
        lambda: connection.queue(commands.success(request.request_id)),
    )


async def get_last_watermark(connection: Connection, request: api.CommandGetLastWatermark) -> None:
    """GET_LAST_WATERMARK. Raises InvalidRequest, StorageError."""
    host = attached_consumer(connection, request.consumer_id).subscription
    await host.topic.context.log.confirm()
    known = host.topic.watermarks
    event_ms = known.last_ms(host) if known is not None else None
    connection.queue(watermarks.last_watermark(request.request_id, event_ms))
