"""Statistics of consumers.

Owns: CONSUMER_STATS and the rates of a consumer, from counters that delivery keeps anyway. Imports:
wire. Invariant: nothing is computed without a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from magnetar.broker.commands.sessions import consumer_of
from magnetar.clock import iso8601
from magnetar.errors import WireCode
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.broker.commands.sessions import ConsumerSession
    from magnetar.broker.connections.connection import Connection


class ConsumerRates(NamedTuple):
    """Per second, of one consumer; `expired` is of its whole subscription. `acknowledged` counts
    messages, a batch with all of its own; `chunks` are parts of messages."""

    messages_out: float
    bytes_out: float
    redelivered: float
    acknowledged: float
    expired: float
    chunks: float


def consumer_rates(session: ConsumerSession) -> ConsumerRates:
    host = session.subscription
    consumer = host.core.consumers[session]
    # Acknowledgements are counted in entries, which is all that they cost; the consumer's own
    # average makes messages of them.
    per_entry = consumer.messages_out / session.entries_out if session.entries_out else 1.0
    acknowledged = round(session.entries_acknowledged * per_entry)
    counts = (
        consumer.messages_out,
        session.bytes_out,
        session.messages_redelivered,
        acknowledged,
        host.traffic.messages_expired,
        session.chunks_out,
    )
    return ConsumerRates(*session.meter.rates(host.topic.context.clock.monotonic(), counts))


def statistics(connection: Connection, request: api.CommandConsumerStats) -> None:
    """CONSUMER_STATS."""
    session = consumer_of(connection, request.consumer_id)
    if session is None:
        connection.queue(
            commands.consumer_stats_failed(
                request.request_id, WireCode.CONSUMER_NOT_FOUND, "Consumer not found"
            )
        )
        return
    core = session.subscription.core
    consumer, kind, rates = core.consumers[session], core.kind, consumer_rates(session)
    answer = api.CommandConsumerStatsResponse(
        request_id=request.request_id,
        msgRateOut=rates.messages_out,
        msgThroughputOut=rates.bytes_out,
        msgRateRedeliver=rates.redelivered,
        msgRateExpired=rates.expired,
        messageAckRate=rates.acknowledged,
        consumerName=consumer.name,
        availablePermits=max(0, consumer.permits),
        unackedMessages=consumer.unacknowledged,
        blockedConsumerOnUnackedMsgs=consumer.blocked,
        address=connection.peer,
        connectedSince=iso8601(session.connected_ms),
        type=kind.name.title() if kind is not None else "",
        msgBacklog=core.backlog,
    )
    connection.queue(commands.consumer_stats(answer))
