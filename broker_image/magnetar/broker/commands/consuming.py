"""Consumers of all connections.

Owns: SUBSCRIBE, CLOSE_CONSUMER and UNSUBSCRIBE: admission and the answer. Imports: wire, topics,
errors. Invariants: SUCCESS of SUBSCRIBE leaves before the first MESSAGE, and after its cursor is
durable under this owner's claim: a former owner gives no consumer an outdated state; a request that
its client closes before the answer leaves nothing behind.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.broker.commands.schemas import SchemaCommands, TopicOpener, takes_any_schema
from magnetar.broker.commands.seeking import reset
from magnetar.broker.commands.sessions import (
    ConsumerSession,
    attached_consumer,
    consumer_of,
)
from magnetar.broker.connections.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.ports import ServedTopic
from magnetar.broker.topics.publish_times import first_published_at
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.transactions.positions import first_from
from magnetar.errors import (
    ConsumerAssignError,
    ConsumerBusy,
    InvalidRequest,
    LimitExceeded,
    NotAllowed,
    ServiceNotReady,
    StorageError,
    StoreError,
    SubscriptionNotFound,
)
from magnetar.names import TopicName
from magnetar.policy_shapes import SUBSCRIPTION_TYPES
from magnetar.topics.dispatch.base import KeySharedMode, KeySharedPolicy, SubscriptionType
from magnetar.topics.ledgers import EARLIEST, LATEST, Position
from magnetar.topics.topic import check_subscription_name
from magnetar.watermarks.records import NOWHERE
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

log = structlog.get_logger(__name__)


class Consuming:
    """Answers the commands about a consumer as a whole."""

    def __init__(
        self, context: BrokerContext, topics: TopicOpener, schemas: SchemaCommands
    ) -> None:
        self._context, self._topics, self._schemas = context, topics, schemas

    async def ensure(self, topic: TopicHost, name: str) -> None:
        """Have a durable subscription that begins with the first message. Raises NotAllowed
        where subscriptions are not created by use."""
        if name not in topic.subscriptions:
            if not topic.policies.auto_subscription_creation:
                raise NotAllowed(
                    f"initial subscription {name!r} does not exist on {topic.name}; create it "
                    "first, for auto-creation is off"
                )
            check_subscription_limit(topic)
        host = topic.open_subscription(name, EARLIEST, durable=True, properties={})
        await self._write_cursor(topic, host)

    async def subscribe(self, connection: Connection, request: api.CommandSubscribe) -> None:
        consumer_id, pending = request.consumer_id, connection.sessions.pending_consumers
        attached = consumer_of(connection, consumer_id)
        if attached is not None and not attached.closed:
            connection.queue(commands.success(request.request_id))
            return
        if consumer_id in pending or attached is not None:
            raise ServiceNotReady(
                f"consumer_id: {consumer_id} subscribes already and its topic is being unloaded or "
                "opened; try again"
            )
        count = len(connection.sessions.consumers)
        if count >= self._context.settings.consumers_per_connection_max:
            raise LimitExceeded(
                f"consumers_per_connection_max: this connection has {count}; open "
                "another connection"
            )
        _check_subscribe(request)
        pending[consumer_id] = request.request_id
        host = None
        try:
            host = await self._open(request, connection.peer)
            if not await self._attach(connection, request, host):
                return  # closed by the client while it waited
        finally:
            if pending.get(consumer_id) == request.request_id:
                del pending[consumer_id]
            if host is not None:
                host.drop_if_unused()
        connection.queue(commands.success(request.request_id))
        host.attached()
        # after SUCCESS: the consumer may get ACTIVE_CONSUMER_CHANGE
        host.schedule()
        session = consumer_of(connection, consumer_id)
        if request.watermarks and session is not None and host.topic.watermarks is not None:
            host.topic.watermarks.attached(session, host)

    async def _open(self, request: api.CommandSubscribe, peer: str) -> SubscriptionHost:
        """The subscription, as it is durable. Raises what SUBSCRIBE may be refused with."""
        topic = await self._topics.open_topic(
            TopicName.parse(request.topic), create=request.force_topic_creation
        )
        _check_exists(topic, request)
        _check_consumers_of_topic(topic)
        await self._schemas.check_consumer(
            topic, request.schema if request.HasField("schema") else None
        )
        _check_policies(topic, request)
        if topic.throttles is not None:
            topic.throttles.check_subscribe(peer, request.consumer_name, request.consumer_id)
        host = topic.open_subscription(
            request.subscription,
            _start_position(topic, request),
            durable=request.durable,
            properties={pair.key: pair.value for pair in request.subscription_properties},
            reads_view=request.read_compacted,
        )
        try:
            if request.read_compacted:
                await _look_for_compaction(topic)
            mark_delete = host.core.cursor.mark_delete_position
            written = await self._write_cursor(topic, host)
            if request.watermarks and topic.watermarks is not None:
                topic.watermarks.follow(host, mark_delete if written else NOWHERE)
            await self._roll_back(request, host)
        except BaseException:
            host.drop_if_unused()
            raise
        return host

    async def _attach(
        self, connection: Connection, request: api.CommandSubscribe, host: SubscriptionHost
    ) -> bool:
        """Register the consumer with its subscription; False if it is not wanted any more.

        Where another consumer is in the way, it must prove first that it is alive: a client that
        crashed must not keep its successor out. Raises ConsumerBusy, ConsumerAssignError,
        NotAllowed, ServiceNotReady.
        """
        try:
            return self._add_consumer(connection, request, host)
        except (ConsumerBusy, ConsumerAssignError):
            others = {session.connection for session in host.sessions()} - {connection}
            if not others or host.core.kind is not SubscriptionType(request.subType):
                raise
            alive = await asyncio.gather(*[other.is_alive() for other in others])
            if all(alive):
                raise
        return self._add_consumer(connection, request, host)

    def _add_consumer(
        self, connection: Connection, request: api.CommandSubscribe, host: SubscriptionHost
    ) -> bool:
        if (
            connection.sessions.pending_consumers.get(request.consumer_id) != request.request_id
            or connection.closed
        ):
            return False
        topic = host.topic
        if (
            topic.frozen
            or host.disconnecting
            or topic.subscriptions.get(host.core.name) is not host
        ):
            raise ServiceNotReady(f"topic {topic.name} is being unloaded; look it up again")
        _check_consumer_limits(host)
        session = ConsumerSession(
            connection,
            request.consumer_id,
            request.consumer_name,
            host,
            read_compacted=request.read_compacted,
            sends_epoch=request.HasField("consumer_epoch"),
            takes_watermarks=request.watermarks,
            takes_any_schema=takes_any_schema(request),
        )
        if request.metadata:
            session.metadata = {pair.key: pair.value for pair in request.metadata}
        host.core.add_consumer(
            session,
            SubscriptionType(request.subType),
            name=request.consumer_name,
            priority=request.priority_level,
            epoch=request.consumer_epoch,
            key_shared=_key_shared_policy(request.keySharedMeta),
        )
        if not connection.writable:
            host.core.pause(session)
        host.read_compacted = host.core.reads_view = request.read_compacted
        if not request.read_compacted:  # it gets nothing that only a compacted view has
            host.core.trim(topic.core.ledgers.first)
        connection.sessions.register_consumer(session)
        return True

    async def _write_cursor(self, topic: TopicHost, host: SubscriptionHost) -> bool:
        """Make the cursor durable under this owner's claim before a client relies on it; False if
        only what was written of it before is.

        Also when another request wrote it: a subscription under creation is not durable yet, and a
        client whose SEEK is answered behind the first messages discards those.
        """
        log = self._context.log
        waits = log.space.stalled is not None or log.hangs
        if not host.core.durable or (waits and host.recorded and host.core.placed):
            # no space, or a disk that hangs: what is durable can be consumed
            await log.confirm()
            return not host.core.durable
        log.space.check_room()
        if host.core.dirty:
            topic.bundle.write_cursor(host, lambda: None)
        await log.barrier()
        host.recorded = True
        return True

    async def _roll_back(self, request: api.CommandSubscribe, host: SubscriptionHost) -> None:
        """`start_message_rollback_duration_sec`: begin with what was published since; those who
        are there already are not disturbed."""
        if request.start_message_rollback_duration_sec and not host.core.connected:
            since_ms = (
                self._context.clock.wall_ms() - 1000 * request.start_message_rollback_duration_sec
            )
            ordinal = await first_published_at(host.topic, since_ms)
            if not host.core.connected:
                await reset(host, ordinal)

    async def close(self, connection: Connection, request: api.CommandCloseConsumer) -> None:
        connection.sessions.pending_consumers.pop(request.consumer_id, None)
        session = consumer_of(connection, request.consumer_id)
        if session is not None:
            session.closed = True
            connection.sessions.forget_consumer(session)
        connection.queue(commands.success(request.request_id))

    async def unsubscribe(self, connection: Connection, request: api.CommandUnsubscribe) -> None:
        session = attached_consumer(connection, request.consumer_id)
        host = session.subscription
        host.topic.check_serving("unsubscribe again after the reconnect")
        others = [other for other in host.sessions() if other is not session]
        if others and not request.force:
            raise InvalidRequest(
                f"subscription {host.core.name!r} has {len(others)} more consumers; close them "
                "first or force it"
            )
        for other in others:
            other.close_by_broker(None)
        session.closed = True
        connection.sessions.consumers.pop(request.consumer_id, None)
        host.core.remove_consumer(session)
        await host.topic.bundle.remove_subscription(host)
        connection.queue(commands.success(request.request_id))


async def _look_for_compaction(topic: TopicHost) -> None:
    """Jobs commit at any time: a reader of the compacted view gets the newest one, or the known one
    while the store is unavailable. Raises CorruptData if it was lost."""
    try:
        await topic.bundle.catalog.refresh()
    except (StoreError, StorageError) as error:
        log.warning("manifest.refresh_delayed", topic=str(topic.name), error=str(error))
    topic.bundle.check_view(topic)


def _check_exists(topic: TopicHost, request: api.CommandSubscribe) -> None:
    """Raises SubscriptionNotFound."""
    if (
        request.durable
        and request.subscription not in topic.subscriptions
        and not topic.policies.auto_subscription_creation
    ):
        raise SubscriptionNotFound(
            f"subscription {request.subscription!r} does not exist on {topic.name}; create it "
            "first, for auto-creation is off"
        )


def _check_policies(topic: TopicHost, request: api.CommandSubscribe) -> None:
    """What namespace and topic allow, before a subscription is created. Raises NotAllowed."""
    policies = topic.policies
    kind = SUBSCRIPTION_TYPES[request.subType]
    if kind not in policies.subscription_types_enabled:
        raise NotAllowed(
            f"topic {topic.name} does not support {kind} subscriptions; its policy "
            "subscription_types_enabled has others"
        )
    if request.subscription not in topic.subscriptions:
        check_subscription_limit(topic)


def check_subscription_limit(topic: TopicHost) -> None:
    """Whether the topic may have one more. Raises NotAllowed."""
    if 0 < topic.policies.max_subscriptions <= len(topic.subscriptions):
        raise NotAllowed(
            f"Exceed the maximum number of subscriptions of the topic: {topic.name}",
            f"it has {len(topic.subscriptions)}; delete one, or raise maxSubscriptionsPerTopic",
        )


def _check_consumer_limits(host: SubscriptionHost) -> None:
    """Raises ConsumerBusy."""
    policies = host.topic.policies
    if 0 < policies.max_consumers_per_subscription <= len(host.core.consumers):
        raise ConsumerBusy(
            f"subscription {host.core.name!r} reached max consumers limit "
            f"{policies.max_consumers_per_subscription}"
        )
    _check_consumers_of_topic(host.topic)


def _check_consumers_of_topic(topic: ServedTopic) -> None:
    """Raises ConsumerBusy."""
    policies = topic.policies
    if policies.max_consumers > 0:
        connected = sum(len(other.core.consumers) for other in topic.subscriptions.values())
        if connected >= policies.max_consumers:
            raise ConsumerBusy(
                f"topic {topic.name} reached max consumers limit {policies.max_consumers}"
            )


def _check_subscribe(request: api.CommandSubscribe) -> None:
    """Refuse what no topic allows, before one is created for it. Raises InvalidSubscriptionName,
    NotAllowed."""
    check_subscription_name(request.subscription)
    if request.read_compacted and SubscriptionType(request.subType) not in (
        SubscriptionType.EXCLUSIVE,
        SubscriptionType.FAILOVER,
    ):
        raise NotAllowed(
            "read_compacted is allowed for Exclusive and Failover subscriptions only; use one of "
            "them"
        )


def _key_shared_policy(meta: api.KeySharedMeta) -> KeySharedPolicy:
    """What a consumer asks of Key_Shared; hashes split automatically if it does not say."""
    ranges = tuple((found.start, found.end) for found in meta.hashRanges)
    return KeySharedPolicy(KeySharedMode(meta.keySharedMode), meta.allowOutOfOrderDelivery, ranges)


def _start_position(topic: TopicHost, request: api.CommandSubscribe) -> Position:
    """Where a new subscription begins.

    A reader's start id may lie inside a batch, whose entry is delivered whole again: the client
    drops what it has seen. The id itself is where reading starts (a chunked message's first chunk);
    whether it is included is the client's affair.
    """
    if not request.durable and request.HasField("start_message_id"):
        start = request.start_message_id
        named = start.first_chunk_message_id if start.HasField("first_chunk_message_id") else start
        return first_from(topic, commands.position_of(named))
    if request.initialPosition == api.CommandSubscribe.Earliest:
        return EARLIEST
    return LATEST
