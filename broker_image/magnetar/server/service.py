"""What a broker answers.

Owns: the meaning of every command but SEND and FLOW (which `connection` handles at speed): lookup, metadata, producers, consumers,
acknowledgements. Imports: wire, topics, names, errors, server siblings.
Source: facts on protocol semantics 2.1-2.3, 2.10, 2.11, 2.18.
Invariants: every request gets exactly one answer, a typed refusal if it cannot be done; a request that waits never holds up others of its
connection; SUCCESS of SUBSCRIBE leaves before the first MESSAGE; a producer's CLOSE is answered after its last receipt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from magnetar.errors import (
    ConsumerBusy,
    InvalidRequest,
    LimitExceeded,
    MagnetarError,
    NamespaceNotFound,
    NotAllowed,
    ServiceNotReady,
    StorageError,
    StoreError,
    TopicNotFound,
    WireCode,
)
from magnetar.metadata import keys
from magnetar.metadata.records import PartitionedTopicRecord
from magnetar.names import NamespaceName, TopicName
from magnetar.server.acknowledgements import acknowledge, last_message_id, redeliver, seek, statistics
from magnetar.server.bundle import check_partition
from magnetar.server.connection import Connection
from magnetar.server.context import BrokerContext
from magnetar.server.ownership import Ownership
from magnetar.server.refusals import refuse
from magnetar.server.sessions import ConsumerSession, ProducerSession
from magnetar.server.subscription_host import SubscriptionHost
from magnetar.server.topic_host import TopicHost
from magnetar.server.views import ClusterViews
from magnetar.topics.dispatch import SubscriptionType
from magnetar.topics.ledgers import EARLIEST, LATEST, Position
from magnetar.topics.producers import Producer
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

log = structlog.get_logger(__name__)
Type = api.BaseCommand.Type
Handler = Callable[[Connection, Any], Coroutine[Any, Any, None]]
SHARED_ACCESS = 0


class BrokerService:
    """Answers the commands of all connections."""

    def __init__(self, context: BrokerContext, views: ClusterViews, ownership: Ownership) -> None:
        self._context, self._views, self._ownership = context, views, ownership
        self._waiting_for_disk: list[Callable[[], None]] = []
        self._disk_timer: asyncio.TimerHandle | None = None
        self._producer_number = 0
        self._handlers: dict[int, Handler] = {
            Type.LOOKUP: self._lookup,
            Type.PARTITIONED_METADATA: self._partitioned_metadata,
            Type.PRODUCER: self._create_producer,
            Type.CLOSE_PRODUCER: self._close_producer,
            Type.SUBSCRIBE: self._subscribe,
            Type.CLOSE_CONSUMER: self._close_consumer,
            Type.UNSUBSCRIBE: self._unsubscribe,
            Type.GET_LAST_MESSAGE_ID: self._last_message_id,
            Type.SEEK: self._seek,
        }

    def handle(self, connection: Connection, command: api.BaseCommand) -> None:
        """Answer one command, now or later."""
        kind = command.type
        if kind == Type.ACK:
            acknowledge(connection, command.ack)
        elif kind == Type.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            redeliver(connection, command.redeliver_unacknowledged_messages)
        elif kind == Type.CONSUMER_STATS:
            statistics(connection, command.consumer_stats)
        elif kind in self._handlers:
            body = getattr(command, commands.FIELD_OF_TYPE[kind])
            connection.spawn(self._answer(self._handlers[kind], connection, kind, body))
        else:
            refuse(connection, kind, command, NotAllowed(_not_offered(kind)))

    async def _answer(self, handler: Handler, connection: Connection, kind: int, body: Any) -> None:
        try:
            await handler(connection, body)
        except MagnetarError as error:
            log.info(
                "request.refused",
                command=commands.FIELD_OF_TYPE[kind],
                peer=connection.peer,
                error=str(error),
                code=int(error.wire_code),
            )
            refuse(connection, kind, body, error)

    # --- back-pressure ---------------------------------------------------------------------------------------------------------

    def disk_is_behind(self) -> bool:
        """Whether so much waits for a flush that publishers must be held up."""
        return self._context.log.pending_bytes > self._context.settings.log_pending_bytes_max

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        """Call `resume` once less than half of the limit waits."""
        self._waiting_for_disk.append(resume)
        if self._disk_timer is None:
            self._disk_timer = asyncio.get_running_loop().call_later(0.001, self._look_at_disk)

    def _look_at_disk(self) -> None:
        self._disk_timer = None
        if self._context.log.pending_bytes > self._context.settings.log_pending_bytes_max // 2:
            self._disk_timer = asyncio.get_running_loop().call_later(0.001, self._look_at_disk)
            return
        waiting, self._waiting_for_disk = self._waiting_for_disk, []
        for resume in waiting:
            resume()

    # --- lookup and metadata ---------------------------------------------------------------------------------------------------

    async def _lookup(self, connection: Connection, lookup: api.CommandLookupTopic) -> None:
        topic = TopicName.parse(lookup.topic)
        if lookup.advertised_listener_name.strip():
            raise ServiceNotReady(f"the broker do not have {lookup.advertised_listener_name} listener")
        owner = await self._ownership.resolve(await self._ownership.bundle_of(topic))
        connection.queue(commands.lookup_connect(lookup.request_id, owner.service_url))

    async def _partitioned_metadata(self, connection: Connection, request: api.CommandPartitionedTopicMetadata) -> None:
        topic = TopicName.parse(request.topic)
        connection.queue(commands.partitioned_metadata(request.request_id, await self.partitions(topic)))

    async def partitions(self, topic: TopicName) -> int:
        """Partitions of a topic, 0 if it is not partitioned (or not there yet). Raises NamespaceNotFound."""
        await self._ownership.bundle_of(topic)
        item = await self._context.store.get(keys.partitioned_topic(topic))
        return PartitionedTopicRecord.decode(item.value).partitions if item is not None else 0

    # --- producers -------------------------------------------------------------------------------------------------------------

    async def open_topic(self, name: TopicName, create: bool) -> TopicHost:
        """The topic as served here. Raises NotOwner, TopicNotFound, NotAllowed and what creation may raise."""
        if not name.persistent:
            raise NotAllowed(f"topic {name}: non-persistent topics are not offered yet; use persistent://")
        owned = await self._ownership.serving(await self._ownership.bundle_of(name))
        if create and str(name) not in owned.topics and name.partition >= 0:
            check_partition(name, await self.partitions(name.base))
        topic = await owned.topic(name, create)
        if topic is None:
            raise TopicNotFound(f"topic {name} does not exist; publish to it or create it first")
        return topic

    async def _create_producer(self, connection: Connection, request: api.CommandProducer) -> None:
        producer_id = request.producer_id
        existing = connection.producers.get(producer_id)
        if existing is not None and existing.name == request.producer_name:
            connection.queue(commands.producer_success(request.request_id, existing.name))
            return
        if existing is not None or producer_id in connection.pending_producers:
            raise InvalidRequest(f"producer_id: {producer_id} is in use on this connection; choose another")
        if len(connection.producers) >= self._context.settings.producers_per_connection_max:
            raise LimitExceeded(
                f"producers_per_connection_max: this connection has {len(connection.producers)}; open another connection"
            )
        if request.producer_access_mode != SHARED_ACCESS:
            raise NotAllowed(f"producer_access_mode: {request.producer_access_mode} is not offered yet; use Shared")
        if request.txn_enabled:
            raise NotAllowed("Transactions are not enabled.")
        connection.pending_producers[producer_id] = request.request_id
        try:
            topic = await self.open_topic(TopicName.parse(request.topic), create=True)
            if connection.pending_producers.get(producer_id) != request.request_id:
                return  # closed by the client while it waited
            if request.initial_subscription_name:
                await self._ensure_subscription(topic, request.initial_subscription_name)
            session = self._register_producer(connection, request, topic)
        finally:
            if connection.pending_producers.get(producer_id) == request.request_id:
                del connection.pending_producers[producer_id]
        connection.producers[producer_id] = session
        connection.queue(commands.producer_success(request.request_id, session.name))

    def _register_producer(self, connection: Connection, request: api.CommandProducer, topic: TopicHost) -> ProducerSession:
        if topic.frozen:
            raise ServiceNotReady(f"topic {topic.name} is being unloaded; look it up again")
        name = request.producer_name or self._generate_name()
        session = ProducerSession(connection, request.producer_id, name, request.epoch, topic)
        replaced = topic.core.producers.add(Producer(name, session, connection, request.producer_id, request.epoch))
        if replaced is not None:
            assert isinstance(replaced.handle, ProducerSession)
            replaced.handle.closed = True
        return session

    def _generate_name(self) -> str:
        self._producer_number += 1
        return f"{self._context.incarnation}-{self._producer_number}"

    async def _close_producer(self, connection: Connection, request: api.CommandCloseProducer) -> None:
        connection.pending_producers.pop(request.producer_id, None)
        session = connection.producers.get(request.producer_id)
        if session is not None:
            if session.pending:
                await self._context.log.barrier()
            connection.forget_producer(session)
            session.closed = True
        connection.queue(commands.success(request.request_id))

    # --- consumers -------------------------------------------------------------------------------------------------------------

    async def _ensure_subscription(self, topic: TopicHost, name: str) -> None:
        host = topic.open_subscription(name, EARLIEST, durable=True, properties={})
        await self._write_cursor(topic, host)

    async def _subscribe(self, connection: Connection, request: api.CommandSubscribe) -> None:
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
            topic = await self.open_topic(TopicName.parse(request.topic), create=request.force_topic_creation)
            host = topic.open_subscription(
                request.subscription,
                _start_position(request),
                durable=request.durable,
                properties={pair.key: pair.value for pair in request.subscription_properties},
            )
            if request.read_compacted:
                await _look_for_compaction(topic)
            await self._write_cursor(topic, host)
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
            )
        except MagnetarError:
            self._drop_if_unused(host)
            raise
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
            if host.core.cursor.dirty:
                topic.bundle.write_cursor(host, lambda: None)
            await self._context.log.barrier()

    async def _close_consumer(self, connection: Connection, request: api.CommandCloseConsumer) -> None:
        connection.pending_consumers.pop(request.consumer_id, None)
        session = connection.consumers.get(request.consumer_id)
        if session is not None:
            session.closed = True
            connection.forget_consumer(session)
        connection.queue(commands.success(request.request_id))

    async def _unsubscribe(self, connection: Connection, request: api.CommandUnsubscribe) -> None:
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

    async def _last_message_id(self, connection: Connection, request: api.CommandGetLastMessageId) -> None:
        connection.queue(await last_message_id(connection, request))

    async def _seek(self, connection: Connection, request: api.CommandSeek) -> None:
        await seek(connection, request, self._context)
        connection.queue(commands.success(request.request_id))

    # --- for REST and the load report ------------------------------------------------------------------------------------------

    def counts(self) -> tuple[int, int, int, int]:
        """(bundles, topics, producers, consumers) served now."""
        topics = [topic for owned in self._ownership.owned.values() for topic in owned.topics.values()]
        producers = sum(len(topic.core.producers) for topic in topics)
        consumers = sum(len(host.core.consumers) for topic in topics for host in topic.subscriptions.values())
        return len(self._ownership.owned), len(topics), producers, consumers

    async def roll(self, topic: TopicName) -> tuple[int, int]:
        """Make everything acknowledged so far readable from manifest-listed files; the topic's last position before that."""
        host = await self.open_topic(topic, create=False)
        last = host.core.last_confirmed
        await self._ownership.cover(str(host.bundle.name))
        return last.ledger, last.entry

    async def topics_in(self, namespace: NamespaceName) -> list[str]:
        """Topics of a namespace that this broker serves."""
        known = self._views.namespaces.get(str(namespace)) is not None
        if not known and await self._context.store.get(keys.namespace(namespace)) is None:
            raise NamespaceNotFound(f"namespace {namespace} does not exist; create it first")
        prefix = f"persistent://{namespace}/"
        return sorted(name for owned in self._ownership.owned.values() for name in owned.topics if name.startswith(prefix))


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
    if request.start_message_rollback_duration_sec:
        raise NotAllowed("start_message_rollback_duration_sec is not offered yet; start from a message id")


def _start_position(request: api.CommandSubscribe) -> Position:
    """Where a new subscription begins.

    A reader's start id may lie inside a batch, whose entry is delivered whole again: the client drops what it has seen. An id with an entry
    is where reading starts; whether it is included is the client's affair.
    """
    if not request.durable and request.HasField("start_message_id"):
        start = Position(*commands.position_of(request.start_message_id))
        if start.entry >= 0 or start == EARLIEST:
            return start
    if request.initialPosition == api.CommandSubscribe.Earliest:
        return EARLIEST
    return LATEST


def _not_offered(kind: int) -> str:
    if kind in (
        Type.NEW_TXN,
        Type.ADD_PARTITION_TO_TXN,
        Type.ADD_SUBSCRIPTION_TO_TXN,
        Type.END_TXN,
        Type.TC_CLIENT_CONNECT_REQUEST,
    ):
        return "Transactions are not enabled."
    return f"{commands.FIELD_OF_TYPE[kind]} is not offered by this version of Magnetar; docs/compatibility.md lists what is"


__all__ = ["BrokerService", "WireCode"]
