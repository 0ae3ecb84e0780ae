"""The commands that a broker answers.

Owns: which part answers which command (SEND and FLOW aside: `connection` handles those at speed),
refusals, back-pressure by the disk, opening topics. Imports: wire, names, errors. Invariants: every
request gets exactly one answer, a typed refusal if it cannot be done; a request that waits never
delays others of its connection.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.commands.acknowledgements import (
    acknowledge,
    acknowledge_span,
    last_message_id,
    redeliver,
    take_list,
)
from magnetar.broker.commands.consuming import Consuming
from magnetar.broker.commands.lookups import Lookups
from magnetar.broker.commands.partitioning import Partitioning
from magnetar.broker.commands.producing import Producing
from magnetar.broker.commands.schemas import SchemaCommands
from magnetar.broker.commands.seeking import seek
from magnetar.broker.commands.statistics import statistics
from magnetar.broker.commands.transaction_ends import Ending, OwnParticipants
from magnetar.broker.commands.watermarking import get_last_watermark, set_watermark
from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.refusals import (
    COORDINATOR_KINDS,
    NOT_ENABLED,
    TRANSACTION_KINDS,
    refuse,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.ports import TransactionCommands
from magnetar.broker.schema_statistics import SchemaStatistics
from magnetar.broker.schemas import SchemaRegistry
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.coordinator.discovery import CoordinatorDiscovery
from magnetar.errors import (
    MagnetarError,
    NamespaceNotFound,
    NotAllowed,
    StorageError,
    TopicNotFound,
)
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.names import NamespaceName, TopicName
from magnetar.policies import Policies
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.broker.replay.topic_transactions import TopicTransactions
    from magnetar.hosting.security.guard import Guard

log = structlog.get_logger(__name__)
Type = api.BaseCommand.Type
Mode = api.CommandGetTopicsOfNamespace.Mode
Handler = Callable[[Connection, Any], Coroutine[Any, Any, None]]


class BrokerService:
    """Answers the commands of all connections."""

    acknowledge_span = staticmethod(acknowledge_span)
    take_list = staticmethod(take_list)

    def __init__(self, context: BrokerContext, views: ClusterViews, ownership: Ownership) -> None:
        self._context, self._views, self._ownership = context, views, ownership
        self._waiting_for_disk: list[Callable[[], None]] = []
        self.guard: Guard | None = None
        """None: every client has every right."""
        self.coordinator: TransactionCommands | None = None
        """The transaction coordinator of a standalone server, which checks rights itself;
        elsewhere coordinators are processes of their own."""
        context.metrics.gauge(
            "magnetar_transactions_open",
            "Transactions that topics served here wait for, counted once per topic",
            lambda: sum(map(_open_transactions, self._topics_with_transactions())),
        )
        context.metrics.gauge(
            "magnetar_transactions_oldest_seconds",
            "How long the oldest transaction with messages at a topic served here has been there, "
            "0 if there is none",
            self._oldest_transaction_s,
        )
        self.partitioning = Partitioning(context, ownership)
        self._lookups = lookups = Lookups(context, ownership, self.partitioning)
        self.schemas = SchemaRegistry(context, SchemaStatistics(context.clock, views.namespaces))
        schemas = SchemaCommands(self.schemas, self)
        self._consuming = consuming = Consuming(context, self, schemas)
        producing = Producing(context, self, consuming, schemas)
        ending = Ending(context, ownership)
        self.participants = OwnParticipants(
            ending, ownership, context.settings.transaction_participant_timeout_s
        )
        """Topics here as a coordinator in this process reaches them."""
        self._handlers: dict[int, Handler] = {
            Type.LOOKUP: lookups.lookup,
            Type.PARTITIONED_METADATA: lookups.partitioned_metadata,
            Type.GET_TOPICS_OF_NAMESPACE: lookups.topics_of_namespace,
            Type.WATCH_TOPIC_LIST: lookups.watch_topic_list,
            Type.WATCH_TOPIC_LIST_CLOSE: lookups.close_watcher,
            Type.GET_SCHEMA: schemas.get,
            Type.GET_OR_CREATE_SCHEMA: schemas.get_or_create,
            Type.PRODUCER: producing.create,
            Type.CLOSE_PRODUCER: producing.close,
            Type.SUBSCRIBE: consuming.subscribe,
            Type.CLOSE_CONSUMER: consuming.close,
            Type.UNSUBSCRIBE: consuming.unsubscribe,
            Type.GET_LAST_MESSAGE_ID: last_message_id,
            Type.SEEK: seek,
            Type.GET_LAST_WATERMARK: get_last_watermark,
            Type.END_TXN_ON_PARTITION: ending.on_partition,
            Type.END_TXN_ON_SUBSCRIPTION: ending.on_subscription,
        }

    def handle(self, connection: Connection, command: api.BaseCommand) -> None:
        kind = command.type
        if kind == Type.ACK:
            acknowledge(connection, command.ack)
        elif kind == Type.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            redeliver(connection, command.redeliver_unacknowledged_messages)
        elif kind == Type.CONSUMER_STATS:
            statistics(connection, command.consumer_stats)
        elif kind == Type.SET_WATERMARK:
            set_watermark(connection, command.set_watermark)
        elif self.coordinator is not None and kind in COORDINATOR_KINDS:
            self.coordinator.handle(connection, command)
        elif kind in self._handlers:
            body = getattr(command, commands.FIELD_OF_TYPE[kind])
            task = connection.spawn(self._answer(self._handlers[kind], connection, kind, body))
            if kind == Type.SUBSCRIBE:
                early, consumer_id = connection.sessions.early_acknowledgements, body.consumer_id
                early.expect(consumer_id)
                task.add_done_callback(lambda _task: early.release(consumer_id))
        else:
            refuse(connection, kind, command, NotAllowed(_not_offered(kind)))

    async def _answer(self, handler: Handler, connection: Connection, kind: int, body: Any) -> None:
        try:
            try:
                if self.guard is not None:
                    await self._guarded(self.guard, handler, connection, kind, body)
                else:
                    await handler(connection, body)
            except FileNotFoundError as error:  # a refusal, not the end of the connection
                raise StorageError(
                    f"{error.filename} is missing from storage; try again, and restore it if that "
                    "does not help"
                ) from error
        except MagnetarError as error:
            log.info(
                "request.refused",
                command=commands.FIELD_OF_TYPE[kind],
                peer=connection.peer,
                error=str(error),
                code=int(error.wire_code),
            )
            refuse(connection, kind, body, error)

    async def _guarded(
        self, guard: Guard, handler: Handler, connection: Connection, kind: int, body: Any
    ) -> None:
        """Answer a command if its sender has the right; a right that is lost during the command
        closes what it opened."""
        version = guard.version
        await guard.check(connection, kind, body)
        await handler(connection, body)
        if guard.version != version:
            guard.look_at(connection)

    # --- back-pressure ----------------------------------------------------------------------------

    def disk_is_behind(self) -> bool:
        """Whether so much waits for a flush that reading must stop."""
        pending_max = self._context.settings.log_pending_bytes_max
        return self._context.log.pending_bytes > pending_max or (
            self.coordinator is not None and self.coordinator.disk_is_behind()
        )

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        """Call `resume` once no more than half of the limit waits."""
        self._waiting_for_disk.append(resume)
        if len(self._waiting_for_disk) == 1:
            self._let_disk_catch_up()

    def _let_disk_catch_up(self) -> None:
        pending_max = self._context.settings.log_pending_bytes_max // 2
        if self._context.log.pending_bytes > pending_max:
            self._context.log.when_at_most(pending_max, self._let_disk_catch_up)
        elif self.coordinator is not None and self.coordinator.disk_is_behind():
            self.coordinator.when_disk_catches_up(self._let_disk_catch_up)
        else:
            waiting, self._waiting_for_disk = self._waiting_for_disk, []
            for resume in waiting:
                resume()

    # --- topics -----------------------------------------------------------------------------------

    async def open_topic(
        self, name: TopicName, create: bool, *, by_administrator: bool = False
    ) -> TopicHost:
        """The topic as served here; whether clients may create it is a matter of policy, and does
        not bind an administrator.

        Raises NotOwner, TopicNotFound, NotAllowed and what creation may raise.
        """
        owned = await self._ownership.serving_topic(name)
        if (held := owned.held(name)) is not None:
            return held
        partitioned = await self.partitioning.partitioned_topic_of(name)
        if create or partitioned is not None:
            self._ownership.registry.check_namespace(name)
        if partitioned is None and create:
            await self.partitioning.check_creation(name)
            create = (
                by_administrator
                or self.namespace_policies(name.namespace_name).auto_topic_creation.allowed
            )
        create = create or partitioned is not None
        with (
            self.partitioning.limits.room((name,))
            if create and partitioned is None
            else contextlib.nullcontext()
        ):
            topic = await (
                owned.topic(name, create)
                if name.persistent
                else owned.non_persistent.topic(name, create)
            )
        if topic is None:
            raise TopicNotFound(f"Topic {name} not found", "publish to it or create it first")
        for subscription in (
            partitioned.subscriptions if partitioned is not None and name.persistent else ()
        ):
            await self._consuming.ensure(topic, subscription)
        return topic

    async def partitions(self, topic: TopicName) -> int:
        """Partitions of a topic, 0 if it is not partitioned (or not there yet). Raises
        NamespaceNotFound."""
        return await self.partitioning.count(topic)

    async def partitions_for_client(self, topic: TopicName, may_create: bool) -> int:
        """As `partitions`, after auto-creation if the namespace has it make partitions. Raises
        TopicNotFound if it may not be created."""
        return await self._lookups.partitions(topic, may_create)

    def begin_coordinator(self, coordinator: TransactionCommands) -> None:
        """Have this process's own transaction coordinator answer what is for one, and lead
        clients here."""
        self.coordinator, self.coordinators.here = coordinator, True

    @property
    def coordinators(self) -> CoordinatorDiscovery:
        return self._lookups.coordinators

    def namespace_policies(self, name: NamespaceName) -> Policies:
        """Policies of a namespace's topics that have none of their own."""
        return self._ownership.policies.namespace(name)

    # --- for REST and the load report -------------------------------------------------------------

    def counts(self) -> tuple[int, int, int, int]:
        """(bundles, topics, producers, consumers) served now."""
        bundles = self._ownership.owned.values()
        topics = [
            topic
            for owned in bundles
            for topic in (*owned.topics.values(), *owned.non_persistent.by_name.values())
        ]
        producers = sum(len(topic.core.producers) for topic in topics)
        consumers = sum(
            len(host.core.consumers) for topic in topics for host in topic.subscriptions.values()
        )
        return len(self._ownership.owned), len(topics), producers, consumers

    def _topics_with_transactions(self) -> Iterator[TopicTransactions]:
        for owned in self._ownership.owned.values():
            yield from (
                topic.transactions
                for topic in owned.topics.values()
                if topic.transactions is not None
            )

    def _oldest_transaction_s(self) -> float:
        oldest = (
            next(found.buffer.open_transactions(), None)
            for found in self._topics_with_transactions()
        )
        now_ms = self._context.clock.wall_ms()
        return max(
            (max(0, now_ms - found.since_ms) / 1000 for found in oldest if found is not None),
            default=0.0,
        )

    async def roll(self, topic: TopicName, *, rewrite: bool = True) -> tuple[int, int]:
        """Make everything acknowledged so far readable from manifest-listed files; the topic's last
        position before that.

        What transactions have published follows before long: the next round of maintenance rewrites
        it, however young. Without `rewrite` it does not, for a job that rewrites it itself, and what
        jobs have committed so far is served from now on.
        """
        host = await self.open_topic(topic, create=False)
        last, end = host.core.last_confirmed, host.core.ledgers.end
        await self._ownership.checkpointer.cover(str(host.bundle.name))
        if not rewrite:
            await host.bundle.catalog.refresh()
        elif host.transactions is not None:
            # A later roll may have finished first.
            host.transactions.wanted_below = max(end, host.transactions.wanted_below)
        return last.ledger, last.entry

    async def topics_in(self, namespace: NamespaceName, mode: int = Mode.PERSISTENT) -> list[str]:
        """Full names of the topics of a namespace, whichever broker serves them. Raises
        NamespaceNotFound."""
        known = self._views.namespaces.get(str(namespace)) is not None
        if not known and await self._context.store.get(keys.namespace(namespace)) is None:
            raise NamespaceNotFound.named(namespace)
        return await self._lookups.topics(namespace, mode)


def _open_transactions(found: TopicTransactions) -> int:
    """Transactions with messages at a topic, or acknowledgements at one of its subscriptions."""
    acknowledging = {
        txn for pending in found.pending.values() for txn in pending.open_transactions()
    }
    return len(acknowledging | {known.txn for known in found.buffer.open_transactions()})


def _not_offered(kind: int) -> str:
    if kind in TRANSACTION_KINDS:
        return NOT_ENABLED
    return (
        f"{commands.FIELD_OF_TYPE[kind]} is not offered by this version of Magnetar; "
        "docs/compatibility.md lists what is"
    )
