"""A bundle in service.

Owns: the topics of one owned bundle, their creation, checkpoints and RELEASE. Imports: storage
formats, topics, siblings. Invariants: everything written carries the bundle's epoch; after
`append_release` nothing of this epoch is written any more; a checkpoint holds the state as of its
position or later, never earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from magnetar.broker.bundles.cursor_writing import CursorWriter
from magnetar.broker.bundles.phases import Phase, advance
from magnetar.broker.bundles.recovery.replay_cost import ReplayCost
from magnetar.broker.bundles.split_buffer import SplitBuffer
from magnetar.broker.context import BrokerContext
from magnetar.broker.metrics import Traffic
from magnetar.broker.ports import ServedSubscription, ServedTopic
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.broker.reading.entry_index import EntryIndex, TailCache
from magnetar.broker.replay.topic_transactions import TopicTransactions
from magnetar.broker.topics.effective_policies import EffectivePolicies
from magnetar.broker.topics.non_persistent import NonPersistentTopics
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.topics.topic_registry import TopicRegistry
from magnetar.errors import LimitExceeded, NotAllowed, ServiceNotReady
from magnetar.hosting.advertised import Successor
from magnetar.hosting.shared_task import SharedTasks
from magnetar.metadata.records import BundleRecord, CheckpointPointer, LogPosition
from magnetar.names import SIDECAR, BundleName, TopicName, topic_of_sidecar
from magnetar.storage.checkpoint import CheckpointEncoder, write_checkpoint
from magnetar.storage.log.format import (
    CursorOperation,
    TopicOperation,
    encode_cursor,
    encode_heartbeat,
    encode_release,
    encode_term,
    encode_topic,
)
from magnetar.storage.log.framing import Encoded
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.writer import Durable
from magnetar.storage.manifest import Compacted
from magnetar.storage.turns import Turns
from magnetar.topics.ledger_ids import LedgerIds
from magnetar.topics.topic import Topic
from magnetar.topics.trimming import check_view, stands_for
from magnetar.watermarks.replay import TopicWatermarks

log = structlog.get_logger(__name__)

MANIFEST_AGE_MAX_S = 1.0
CHECKPOINT_SLICE_BYTES = 32 << 10
"""A checkpoint is encoded in turns of this size, one or two milliseconds each."""
HOSTED_PER_TURN_MAX = 200
"""Topics and subscriptions per turn of the loop: a few milliseconds."""
GROUPED_ACKNOWLEDGEMENTS_S = 0.15
"""How long a transfer waits, without delivery, for what consumers were given: Pulsar's clients
group acknowledgements for 100 ms."""
ACKNOWLEDGED_POLL_S = 0.01
LATE_ACKNOWLEDGEMENTS_S = 1.0
"""How long a transfer waits for acknowledgements that consumers sent before they read that they are
to reconnect; publishing continues during the wait."""
HEARTBEAT_S = 300.0
"""How much of the age of entries a crash of their owner loses at most."""


@dataclass(slots=True)
class RecoveredTopic:
    """A topic as recovery rebuilt it."""

    core: Topic
    index: EntryIndex
    transactions: TopicTransactions | None = None
    watermarks: TopicWatermarks | None = None

    def used(self) -> TopicTransactions:
        """Its transactions, from now on if there were none."""
        if self.transactions is None:
            self.transactions = TopicTransactions(self.core)
        return self.transactions


@dataclass(frozen=True, slots=True)
class RecoveredBundle:
    """Outcome of recovery. `sealed_end` closes the previous owner's open range, if it had one;
    `fenced`: we had to fence it. `records` is how many were replayed."""

    topics: dict[str, RecoveredTopic]
    catalog: BundleCatalog
    sealed_end: LogPosition | None
    fenced: bool
    records: int


class OwnedBundle:
    """One bundle from SERVING on. The acquirer holds it until its Owned record is committed."""

    def __init__(
        self,
        context: BrokerContext,
        name: BundleName,
        ledger_ids: LedgerIds,
        recovered: RecoveredBundle,
        tail_cache: TailCache,
        policies: EffectivePolicies,
        registry: TopicRegistry,
        checkpoint_due: Callable[[str], None],
    ) -> None:
        """`ledger_ids` are those of our term; `checkpoint_due` is called with our name when the
        next owner would have much to replay."""
        self.context, self.name, self.tail_cache, self.policies = (
            context,
            name,
            tail_cache,
            policies,
        )
        self.ledger_ids, self.epoch = ledger_ids, ledger_ids.epoch
        self._registry = registry
        self.non_persistent = NonPersistentTopics(self, registry)
        self.catalog = recovered.catalog
        self.replay = ReplayCost(
            context.settings.checkpoint_records_max,
            recovered.records,
            lambda: checkpoint_due(str(name)),
        )
        self.traffic = Traffic()
        self.phase = Phase.SERVING
        self.since_ms = context.clock.wall_ms()
        self.buffered: SplitBuffer | None = None
        self._checkpoints = 0
        self._manifest_due = 0.0
        self._creating = SharedTasks[TopicHost]("create")
        self._last_written = recovered.records, context.clock.monotonic()
        self.topics: dict[str, TopicHost] = {}
        self.cursors = CursorWriter(self)
        # Subscriptions call the writer itself: with every acknowledgement.
        self.cursor_dirty = self.cursors.note
        self.confirm_cursor = self.cursors.confirm
        self.write_cursor = self.cursors.write

    @property
    def unstored(self) -> Mapping[str, TopicHost]:
        """Its topics without storage."""
        return self.non_persistent.by_name

    @property
    def serving(self) -> bool:
        """Whether topics are published to and delivered."""
        return self.phase is Phase.SERVING

    def enter(self, phase: Phase) -> None:
        """Go on to a phase that may follow."""
        self.phase = advance(self.phase, phase)

    async def host(self, topics: Mapping[str, RecoveredTopic]) -> None:
        """Make hosts of the topics that recovery found. Other work has its turns on the way."""
        turns = Turns(HOSTED_PER_TURN_MAX)
        for topic, found in topics.items():
            name, marks = TopicName.parse(topic), found.watermarks
            timeline = marks.timeline if marks is not None else None
            self.topics[topic] = TopicHost(
                self, name, found.core, found.index, found.transactions, timeline
            )
            await turns.after(1 + len(found.core.subscriptions))

    def append(self, record: Encoded, on_durable: Durable | None) -> None:
        """Write a record of this term; `on_durable` gets its place. Raises LimitExceeded."""
        self.context.log.append(record.buffers, record.size, 1, on_durable)
        self.replay.add(len(record.buffers[0]))

    def keep_time(self) -> None:
        """Note that time has passed if nothing else was written for long, and if there is
        something whose age counts."""
        total, since = self._last_written
        now = self.context.clock.monotonic()
        if self.replay.total != total:
            self._last_written = self.replay.total, now
        elif now - since >= HEARTBEAT_S and self.serving and self.context.log.space.short is None:
            ledgers = (host.core.ledgers for host in self.topics.values())
            if any(found.first < found.end for found in ledgers):
                with contextlib.suppress(LimitExceeded):  # then much is under way
                    self.append(encode_heartbeat(epoch=self.epoch), None)

    # --- topics -----------------------------------------------------------------------------------

    def held(self, name: TopicName) -> TopicHost | None:
        """The topic, with or without storage, if it exists; one that is being created does not
        yet."""
        if self._creating.get(str(name)) is not None:
            return None
        return (
            self.topics.get(str(name))
            if name.persistent
            else self.non_persistent.by_name.get(str(name))
        )

    async def topic(self, name: TopicName, create: bool) -> TopicHost | None:
        """The topic, created (durably) if need be and allowed; None if it does not exist and
        `create` is False."""
        creating, found = self._creating.get(str(name)), self.topics.get(str(name))
        if not create:
            if creating is not None:
                await asyncio.wait([creating])  # whether it exists is known then
            return self.topics.get(str(name))
        if creating is None and found is not None:
            return found
        return await asyncio.shield(self._creating.join(str(name), lambda: self._create(name)))

    def _check_serving(self, name: TopicName) -> None:
        if not self.serving:
            raise ServiceNotReady(
                f"bundle {self.name} of topic {name} is being unloaded; look it up again"
            )

    async def _create(self, name: TopicName) -> TopicHost:
        self._check_serving(name)
        self.context.log.space.check_publishing()
        created_ms = self.context.clock.wall_ms()
        core = Topic(str(name), self.ledger_ids, created_ms=created_ms)
        properties = {"created_ms": str(created_ms)}
        if topic_of_sidecar(str(name)) is not None:
            raise NotAllowed(
                f"topic {name}: names that end in {SIDECAR} are the broker's own; choose another"
            )
        encoded = encode_topic(
            epoch=self.epoch,
            topic=str(name),
            operation=TopicOperation.CREATE,
            properties=properties,
        )
        places: list[RecordPlace] = []
        self.append(encoded, places.append)
        await self.context.log.barrier()
        host = self.topics[str(name)] = TopicHost(self, name, core, EntryIndex())
        host.created_at = places[0]
        if not self.serving:
            core.freeze()  # it is in the log, so the next owner has it
        self._check_serving(name)
        await self._registry.add(self, name)
        return host

    async def delete_topic(self, name: TopicName, *, keep_schema: bool = False) -> None:
        """Delete a topic, durably; its clients are disconnected and may create it again. Entries on
        their way to storage are answered first. Its schema goes with its entry in the registry.
        Raises ServiceNotReady, StorageError."""
        if not name.persistent:
            await self.non_persistent.delete(name)
            return
        host = self.topics.get(str(name))
        if host is None:
            return
        if not self.serving or host.frozen:
            raise ServiceNotReady(f"topic {name} is being unloaded or deleted; try again")
        host.core.freeze()
        encoded = encode_topic(
            epoch=self.epoch, topic=str(name), operation=TopicOperation.DELETE, properties={}
        )
        self.append(encoded, lambda _place: self._deleted(host))
        await self.context.log.barrier()
        await self._registry.remove(self, name, keep_schema=keep_schema)

    def _deleted(self, host: TopicHost) -> None:
        self.topics.pop(str(host.name), None)
        for subscription in host.subscriptions.values():
            self.cursors.forget(subscription)
        host.close_clients(None)
        log.info("topic.deleted", topic=str(host.name))

    async def compacted_view(self, topic: ServedTopic) -> Compacted | None:
        """The compacted view of a topic, as of a moment ago: jobs commit beside us. Raises
        StoreError, StorageError, CorruptData if it was lost.

        That of an earlier incarnation of its name is none, nor one that the topic was truncated
        behind.
        """
        now = self.context.clock.monotonic()
        if now >= self._manifest_due:
            await self.catalog.refresh()
            self._manifest_due = now + MANIFEST_AGE_MAX_S
        self.check_view(topic)
        return self.known_view(topic)

    def check_view(self, topic: ServedTopic) -> None:
        """Raises CorruptData if the compacted view was lost that has what the topic dropped."""
        view = self.catalog.compacted(str(topic.name))
        check_view(topic.core, str(topic.name), view.horizon if view is not None else None)

    def known_view(self, topic: ServedTopic) -> Compacted | None:
        """As `compacted_view`, as far as this broker knows."""
        view = self.catalog.compacted(str(topic.name))
        return view if view is not None and stands_for(topic.core, view.horizon) else None

    def refresh_policies(self) -> None:
        """Policies of our namespace, or of topics in it, may have changed."""
        for host in self.topics.values():
            host.refresh_policies()
        self.non_persistent.refresh_policies()

    async def remove_subscription(self, subscription: ServedSubscription) -> None:
        """Unsubscribe durably. Raises ServiceNotReady, StorageError."""
        topic = subscription.topic
        if not self.serving:  # what is written now would be void
            raise ServiceNotReady(
                f"topic {topic.name} is being unloaded; unsubscribe again after a lookup"
            )
        topic.drop_subscription(subscription)
        self.cursors.forget(subscription)
        if subscription.core.durable:
            encoded = encode_cursor(
                epoch=self.epoch,
                topic=str(topic.name),
                subscription=subscription.core.name,
                operation=CursorOperation.DELETE,
                mark_delete=(-1, -1),
                ranges=(),
                partial=(),
                properties=None,
            )
            self.append(encoded, None)
        await self.context.log.barrier()

    # --- checkpoint and release -------------------------------------------------------------------

    def append_term(self, record: BundleRecord) -> None:
        """Keep a copy of the bundle's record in the log, from which a lost metadata store is
        rebuilt; durable with the next record."""
        encoded = encode_term(epoch=self.epoch, bundle=str(self.name), state=record.encode())
        self.append(encoded, None)

    async def write_checkpoint(
        self, position: LogPosition, neighbour: OwnedBundle | None = None
    ) -> tuple[CheckpointPointer, int]:
        """Write the bundle's state, and that of a neighbour that it is to be merged with, as an
        object that covers everything before `position` of our log, which is durable; its pointer
        and its size in bytes.

        The state is taken topic by topic, with turns for other work, so it may hold later records
        too: replaying those changes nothing. A topic whose creation lies behind `position` is left
        out: replay creates it, and earlier records belong to a former topic of its name.
        """
        self._checkpoints += 1
        incarnation, paused_at = self.context.incarnation, 0
        encoder = CheckpointEncoder(str(self.name), self.epoch, incarnation, position)
        others: Mapping[str, TopicHost] = neighbour.topics if neighbour is not None else {}
        for name in sorted((*self.topics, *others)):
            host = self.topics.get(name) or others.get(name)
            if host is None or (
                host.created_at is not None and host.created_at >= (position.file, position.offset)
            ):
                continue  # it was deleted, or created, behind `position`
            for _ in encoder.add_in_pieces(name, host.to_state()):
                if encoder.size - paused_at >= CHECKPOINT_SLICE_BYTES:
                    paused_at = encoder.size
                    await asyncio.sleep(0)
        written, size = await write_checkpoint(self.context.volume, encoder, self._checkpoints)
        return CheckpointPointer(written, incarnation, position), size

    async def disconnect_consumers(self, successor: Successor | None) -> None:
        """Disconnect consumers, with the successor's address if known, and take what they
        acknowledged before they read that. Publishing continues.

        Delivery ends first, for GROUPED_ACKNOWLEDGEMENTS_S at most: clients group acknowledgements.
        What a slow peer acknowledges after LATE_ACKNOWLEDGEMENTS_S is redelivered.
        """
        turns, connections = Turns(HOSTED_PER_TURN_MAX), set()
        leaving: list[SubscriptionHost] = []
        for host in list(self.topics.values()):
            for subscription in list(host.subscriptions.values()):
                subscription.stop_delivery()
                leaving.append(subscription)
            await turns.after(1 + len(host.subscriptions))
        await self._acknowledged(leaving)
        for subscription in leaving:
            connections.update(subscription.disconnect_consumers(successor))
            await turns.after(1)
        if connections:
            read = [connection.heartbeat.has_read() for connection in connections]
            _, slow = await asyncio.wait(read, timeout=LATE_ACKNOWLEDGEMENTS_S)
            if slow:
                log.info(
                    "bundle.consumers_slow",
                    bundle=str(self.name),
                    connections=len(slow),
                    waited_s=LATE_ACKNOWLEDGEMENTS_S,
                )

    async def _acknowledged(self, subscriptions: list[SubscriptionHost]) -> None:
        """Wait until what was delivered is acknowledged, if that is soon."""
        clock = self.context.clock
        deadline = clock.monotonic() + GROUPED_ACKNOWLEDGEMENTS_S
        while clock.monotonic() < deadline:
            subscriptions = [found for found in subscriptions if found.core.outstanding]
            if not subscriptions:
                return
            await asyncio.sleep(ACKNOWLEDGED_POLL_S)

    def freeze(self, *, buffering: bool = False) -> None:
        """Stop publishing and delivery: the bundle is leaving. With `buffering`, what its clients
        send waits for the bundles that replace it."""
        if buffering:
            self.buffered = SplitBuffer(self.context.settings.split_buffered_bytes_max)
        self.cursors.stop()
        self.cursors.write_all()
        self.enter(Phase.FROZEN)
        for host in self.topics.values():
            host.core.freeze()
        self.non_persistent.freeze()

    async def append_release(self) -> LogPosition:
        """Flush, send all receipts, and end this epoch in our log; the position just after
        RELEASE. Raises Fenced, StorageError."""
        # Without state: the next owner has read the log up to here, and a list of very many topics
        # would not fit into a block.
        self.append(encode_release(epoch=self.epoch, bundle=str(self.name), state=b""), None)
        await self.context.log.barrier()
        self.enter(Phase.RELEASED)
        return self.context.log.position

    def take_over(self, parent: OwnedBundle) -> None:
        """Continue the topics of `parent`, which was split or merged, that fall into this bundle, with
        their clients: its term has ended in our log. What was acknowledged since the freeze is written in this term."""
        assert not parent.serving
        for name, host in parent.topics.items():
            if self.name.contains(host.name):
                self.topics[name] = host
                host.begin_term(self)

    def stop(self) -> None:
        """The incarnation is over: write nothing more, disconnect every client."""
        self.enter(Phase.ABSENT)
        self.cursors.stop()
        self.close_clients(None)

    def close_clients(self, successor: Successor | None) -> None:
        """Disconnect every producer and consumer, with the successor's address if known."""
        for host in self.topics.values():
            host.close_clients(successor)
        self.non_persistent.close_clients(successor)
