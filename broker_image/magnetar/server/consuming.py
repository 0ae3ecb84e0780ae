"""Consumers of all connections.

Owns: SUBSCRIBE, CLOSE_CONSUMER, UNSUBSCRIBE, SEEK and GET_LAST_MESSAGE_ID: admission and the answer. Imports: wire, topics, errors, server siblings.
Source: facts on protocol semantics 2.1-2.3, 2.7, 2.10, 2.18.
Invariants: SUCCESS of SUBSCRIBE leaves before the first MESSAGE, and after its cursor is durable; a request that its client has closed meanwhile
leaves nothing behind.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from magnetar.errors import (
    ConsumerBusy,
    InvalidRequest,
    LimitExceeded,
    MagnetarError,
    NotAllowed,
    ServiceNotReady,
    StorageError,
    StoreError,
)
from magnetar.names import TopicName
from magnetar.server.acknowledgements import last_message_id
from magnetar.server.connection import Connection
from magnetar.server.context import BrokerContext
from magnetar.server.seeking import first_published_at, reset, seek
from magnetar.server.sessions import ConsumerSession
from magnetar.server.subscription_host import SubscriptionHost
from magnetar.server.topic_host import TopicHost
from magnetar.topics.dispatch import KeySharedMode, KeySharedPolicy, SubscriptionType
from magnetar.topics.ledgers import EARLIEST, LATEST, Position
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

log = structlog.get_logger(__name__)


class TopicOpener(Protocol):
    """Where producers and consumers get their topics from."""

    async def open_topic(self, name: TopicName, create: bool) -> TopicHost:
        """The topic as served here. Raises NotOwner, TopicNotFound, NotAllowed and what creation may raise."""
        ...


class Consuming:
    """Answers what is about a consumer as a whole."""

    def __init__(self, context: BrokerContext, topics: TopicOpener) -> None:
        self._context, self._topics = context, topics

    async def ensure(self, topic: TopicHost, name: str) -> None:
        host = topic.open_subscription(name, EARLIEST, durable=True, properties={})
        await self._write_cursor(topic, host)

    async def subscribe(self, connection: Connection, request: api.CommandSubscribe) -> None:
        consumer_id, pending = request.consumer_id, connection.pending_consumers
        if consumer_id in connection.consumers:
            connection.queue(commands.success(request.request_id))
            return
        if consumer_id in pending:
            raise ServiceNotReady(
                f"consumer_id: {consumer_id} subscribes already and its topic is being unloaded or opened; try again"
            )
        if len(connection.consumers) >= self._context.settings.consumers_per_connection_max:
            raise LimitExceeded(
                f"consumers_per_connection_max: this connection has {len(connection.consumers)}; open another connection"
            )
        _check_subscribe(request)
        pending[consumer_id] = request.request_id
        try:
            topic = await self._topics.open_topic(TopicName.parse(request.topic), create=request.force_topic_creation)
            host = topic.open_subscription(
                request.subscription,
                _start_position(request),
                durable=request.durable,
                properties={pair.key: pair.value for pair in request.subscription_properties},
            )
            if request.read_compacted:
                await _look_for_compaction(topic)
            await self._write_cursor(topic, host)
            await self._roll_back(request, host)
            if pending.get(consumer_id) != request.request_id or connection.closed:
                self._drop_if_unused(host)
                return  # closed by the client while it waited
        finally:
            if pending.get(consumer_id) == request.request_id:
                del pending[consumer_id]
        if topic.frozen or topic.subscriptions.get(request.subscription) is not host:
            raise ServiceNotReady(f"topic {topic.name} is being unloaded; look it up again")
        self._attach_consumer(connection, request, host)
        connection.queue(commands.success(request.request_id))
        host.attached()
        host.schedule()  # after SUCCESS: a consumer may have to be told that it is active, or is not

    def _attach_consumer(self, connection: Connection, request: api.CommandSubscribe, host: SubscriptionHost) -> None:
        """Register the consumer with its subscription. Raises ConsumerBusy, NotAllowed."""
        session = ConsumerSession(
            connection,
            request.consumer_id,
            request.consumer_name,
            host,
            read_compacted=request.read_compacted,
            sends_epoch=request.HasField("consumer_epoch"),
        )
        try:
            host.core.add_consumer(
                session,
                SubscriptionType(request.subType),
                name=request.consumer_name,
                priority=request.priority_level,
                epoch=request.consumer_epoch,
                key_shared=_key_shared_policy(request.keySharedMeta),
            )
        except MagnetarError:
            self._drop_if_unused(host)
            raise
        if not connection.writable:
            host.core.pause(session)
        host.read_compacted = request.read_compacted
        connection.consumers[request.consumer_id] = session

    def _drop_if_unused(self, host: SubscriptionHost) -> None:
        """A reader's subscription must not outlive the attempt to make it."""
        if not host.core.connected and not host.core.durable:
            host.topic.drop_subscription(host)

    async def _write_cursor(self, topic: TopicHost, host: SubscriptionHost) -> None:
        """Have the cursor durable, as it is now, before anybody relies on it.

        Also when another request wrote it: a subscription that is just being created is not there yet, and a client that hears of its SEEK
        after the first messages behind it throws those away.
        """
        if host.core.durable:
            if host.core.dirty:
                topic.bundle.write_cursor(host, lambda: None)
            await self._context.log.barrier()

    async def _roll_back(self, request: api.CommandSubscribe, host: SubscriptionHost) -> None:
        """`start_message_rollback_duration_sec`: begin with what was published since; those who are there already are not disturbed."""
        if request.start_message_rollback_duration_sec and not host.core.connected:
            since_ms = self._context.clock.wall_ms() - 1000 * request.start_message_rollback_duration_sec
            ordinal = await first_published_at(host.topic, since_ms)
            if not host.core.connected:
                await reset(host, ordinal)

    async def close(self, connection: Connection, request: api.CommandCloseConsumer) -> None:
        connection.pending_consumers.pop(request.consumer_id, None)
        session = connection.consumers.get(request.consumer_id)
        if session is not None:
            session.closed = True
            connection.forget_consumer(session)
        connection.queue(commands.success(request.request_id))

    async def unsubscribe(self, connection: Connection, request: api.CommandUnsubscribe) -> None:
        session = connection.consumers.get(request.consumer_id)
        if session is None:
            raise InvalidRequest("Consumer not found")
        host = session.subscription
        if host.topic.frozen:
            raise ServiceNotReady(f"topic {host.topic.name} is being unloaded; unsubscribe again after the reconnect")
        others = [other for other in host.sessions() if other is not session]
        if others and not request.force:
            raise ConsumerBusy(f"subscription {host.core.name!r} has {len(others)} more consumers; close them first or force it")
        for other in others:
            other.close_by_broker(None)
        session.closed = True
        connection.consumers.pop(request.consumer_id, None)
        host.core.remove_consumer(session)
        await host.topic.bundle.remove_subscription(host)
        connection.queue(commands.success(request.request_id))

    async def last_message_id(self, connection: Connection, request: api.CommandGetLastMessageId) -> None:
        connection.queue(await last_message_id(connection, request))

    async def seek(self, connection: Connection, request: api.CommandSeek) -> None:
        await seek(connection, request)
        connection.queue(commands.success(request.request_id))


async def _look_for_compaction(topic: TopicHost) -> None:
    """Jobs commit beside us: a reader of the compacted view gets the newest one, or the one we know while the store is away."""
    try:
        await topic.bundle.catalog.refresh()
    except (StoreError, StorageError) as error:
        log.warning("manifest.refresh_delayed", topic=str(topic.name), error=str(error))


def _check_subscribe(request: api.CommandSubscribe) -> None:
    """Refuse combinations that are not allowed, or not offered yet. Raises NotAllowed."""
    if request.read_compacted and SubscriptionType(request.subType) not in (
        SubscriptionType.EXCLUSIVE,
        SubscriptionType.FAILOVER,
    ):
        raise NotAllowed("read_compacted is allowed for Exclusive and Failover subscriptions only; use one of them")


def _key_shared_policy(meta: api.KeySharedMeta) -> KeySharedPolicy:
    """What a consumer asks of Key_Shared; hashes split automatically if it does not say."""
    ranges = tuple((found.start, found.end) for found in meta.hashRanges)
    return KeySharedPolicy(KeySharedMode(meta.keySharedMode), meta.allowOutOfOrderDelivery, ranges)


def _start_position(request: api.CommandSubscribe) -> Position:
    """Where a new subscription begins.

    A reader's start id may lie inside a batch, whose entry is delivered whole again: the client drops what it has seen. The id itself is where
    reading starts (a chunked message's first chunk); whether it is included is the client's affair.
    """
    if not request.durable and request.HasField("start_message_id"):
        start = request.start_message_id
        return Position(*commands.position_of(start.first_chunk_message_id if start.HasField("first_chunk_message_id") else start))
    if request.initialPosition == api.CommandSubscribe.Earliest:
        return EARLIEST
    return LATEST
