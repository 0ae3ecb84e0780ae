"""A bundle in service.

Owns: the topics of one owned bundle, their creation, the writing of cursors, checkpoints and
RELEASE. Imports: storage formats, topics, siblings. Invariants: everything written carries the
bundle's epoch; after `append_release` nothing of this epoch is written any more; a checkpoint holds
the state as of its position or later, never earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from magnetar.broker.bundles.recovery.replay_cost import ReplayCost
from magnetar.broker.bundles.split_buffer import SplitBuffer
from magnetar.broker.context import BrokerContext
from magnetar.broker.ports import ServedSubscription, ServedTopic
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.broker.reading.entry_index import EntryIndex, TailCache
from magnetar.broker.replay.topic_transactions import TopicTransactions
from magnetar.broker.topics.effective_policies import EffectivePolicies
from magnetar.broker.topics.non_persistent import NonPersistentTopics
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.topics.topic_registry import TopicRegistry
from magnetar.errors import LimitExceeded, NotAllowed, ServiceNotReady
from magnetar.hosting.advertised import Successor
from magnetar.metadata.records import BundleRecord, CheckpointPointer, LogPosition
from magnetar.names import SIDECAR, BundleName, TopicName, topic_of_sidecar
from magnetar.storage.checkpoint import CheckpointEncoder, write_checkpoint
from magnetar.storage.log.format import (
    CursorOperation,
    Encoded,
    TopicOperation,
    encode_cursor,
    encode_heartbeat,
    encode_release,
    encode_term,
    encode_topic,
)
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.writer import Durable
from magnetar.storage.turns import Turns
from magnetar.topics.ledger_ids import LedgerIds
from magnetar.topics.state import CursorDelta
from magnetar.topics.topic import Topic

log = structlog.get_logger(__name__)

MANIFEST_AGE_MAX_S = 1.0
CHECKPOINT_SLICE_BYTES = 32 << 10
"""A checkpoint is made in turns of so much, one or two milliseconds each."""
HOSTED_PER_TURN_MAX = 200
"""Topics and subscriptions of a bundle that begins: a few milliseconds, in which nobody else is
served."""
DIRTY_RETRY_S = 1.0
DELTAS_PER_BLOCK = 5
"""A piece of a cursor has such a part of a block for ranges, and each time as much for masks,
for the last of them, for properties, and names."""
LATE_ACKNOWLEDGEMENTS_S = 1.0
"""How long a move waits for what consumers acknowledged before they read that they are to
reconnect; publishing continues during the wait."""
HEARTBEAT_S = 300.0
"""Of the age of entries a crash of their owner forgets no more than this, if nothing else is
written to their bundle."""
UNWRITTEN_MAX = 2_000
"""Ranges and masks of one cursor that wait for the log: writing them takes some 10 ms."""
CONFIRMATIONS_MAX = 10_000
"""Acknowledgements of one subscription that wait for space."""


@dataclass(slots=True)
class RecoveredTopic:
    """A topic as recovery rebuilt it."""

    core: Topic
    index: EntryIndex
    transactions: TopicTransactions | None = None

    def used(self) -> TopicTransactions:
        """Its transactions, from now on if there were none."""
        if self.transactions is None:
            self.transactions = TopicTransactions(self.core)
        return self.transactions


@dataclass(frozen=True, slots=True)
class RecoveredBundle:
    """Outcome of recovery. `sealed_end` closes the previous owner's open range, if it had one;
    `fenced` tells that we had to fence it.

    `records` are those that were replayed, which the next recovery replays as well while there is
    no newer checkpoint.
    """

    topics: dict[str, RecoveredTopic]
    catalog: BundleCatalog
    sealed_end: LogPosition | None
    fenced: bool
    records: int


class OwnedBundle:
    """One bundle between our Owned record and our RELEASE."""

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
        """`ledger_ids` are those of our term; `checkpoint_due` is called with our name when a
        successor would have much to replay."""
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
        self.serving = True
        self.since_ms = context.clock.wall_ms()
        self.buffered: SplitBuffer | None = None
        self._checkpoints = 0
        self._manifest_due = 0.0
        self._creating: dict[str, asyncio.Task[TopicHost]] = {}
        self._dirty: dict[ServedSubscription, list[Callable[[], None]]] = {}
        """Cursors with what is not in the log, and who wants to hear when it is."""
        self._dirty_timer: asyncio.TimerHandle | None = None
        self._awaited: dict[ServedSubscription, None] = {}
        """Those of them that are written in the next turn of the loop."""
        self._last_written = recovered.records, context.clock.monotonic()
        self.topics: dict[str, TopicHost] = {}

    async def host(self, topics: Mapping[str, RecoveredTopic]) -> None:
        """Serve what recovery found, before anybody else knows of this bundle. Others have their
        turns on the way."""
        turns = Turns(HOSTED_PER_TURN_MAX)
        for topic, found in topics.items():
            self.topics[topic] = TopicHost(
                self, TopicName.parse(topic), found.core, found.index, found.transactions
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
        """The topic, with or without storage, if it is there; one that is being created is not,
        as it may be deleted again."""
        if str(name) in self._creating:
            return None
        return (
            self.topics.get(str(name))
            if name.persistent
            else self.non_persistent.by_name.get(str(name))
        )

    async def topic(self, name: TopicName, create: bool) -> TopicHost | None:
        """The topic, created (durably) if need be and allowed; None if it does not exist and
        `create` is False."""
        creating = self._creating.get(str(name))
        if not create:
            if creating is not None:
                await asyncio.wait([creating])  # whether it is there is known then
            return self.topics.get(str(name))
        if creating is None:
            if (found := self.topics.get(str(name))) is not None:
                return found
            creating = asyncio.create_task(self._create(name), name=f"create {name}")
            self._creating[str(name)] = creating
            creating.add_done_callback(lambda task: self._created(str(name), task))
        return await asyncio.shield(creating)

    def _created(self, name: str, task: asyncio.Task[TopicHost]) -> None:
        """Who asked gets the error, and nobody is missed whose client has left concurrently."""
        self._creating.pop(name, None)
        if not task.cancelled():
            task.exception()

    async def _create(self, name: TopicName) -> TopicHost:
        if not self.serving:
            raise ServiceNotReady(
                f"bundle {self.name} of topic {name} is being unloaded; look it up again"
            )
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
            core.freeze()  # it is in the log, so whoever goes on with this bundle has it
            raise ServiceNotReady(
                f"bundle {self.name} of topic {name} is being unloaded; look it up again"
            )
        await self._registry.add(self, name)
        return host

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic, durably; its clients are sent away and may create it again. Raises
        ServiceNotReady, StorageError.

        Entries that are on their way to storage are answered first.
        """
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
        await self._registry.remove(self, name)

    def _deleted(self, host: TopicHost) -> None:
        """The deletion is durable."""
        self.topics.pop(str(host.name), None)
        for subscription in host.subscriptions.values():
            self._dirty.pop(subscription, None)
        host.close_clients(None)
        log.info("topic.deleted", topic=str(host.name))

    async def is_compacted(self, topic: ServedTopic) -> bool:
        """Whether a topic has a compacted view, as of a moment ago: jobs commit beside us. Raises
        StoreError, StorageError.

        That of an earlier incarnation of its name, all of whose entries are gone, is none.
        """
        now = self.context.clock.monotonic()
        if self.catalog.compacted(str(topic.name)) is None and now >= self._manifest_due:
            await self.catalog.refresh()
            self._manifest_due = now + MANIFEST_AGE_MAX_S
        view, ledgers = self.catalog.compacted(str(topic.name)), topic.core.ledgers
        return view is not None and ledgers.ordinal_after(view.horizon) > ledgers.first

    def refresh_policies(self) -> None:
        """Policies of our namespace, or of topics in it, may have changed."""
        for host in self.topics.values():
            host.refresh_policies()
        self.non_persistent.refresh_policies()

    # --- cursors ----------------------------------------------------------------------------------

    def cursor_dirty(self, subscription: ServedSubscription) -> None:
        """Acknowledgements wait to be written; they are in the log at most `ack_write_delay_s`
        later, or once there are many of them."""
        if (
            subscription.core.cursor.unwritten > UNWRITTEN_MAX
            and self.context.log.space.stalled is None
        ):
            with contextlib.suppress(LimitExceeded):
                self._append_deltas(subscription, self._dirty.pop(subscription, ()))
            return
        self._dirty.setdefault(subscription, [])
        self._write_dirty_in(self.context.settings.ack_write_delay_s)

    def confirm_cursor(
        self, subscription: ServedSubscription, confirmed: Callable[[], None]
    ) -> None:
        """As `write_cursor`, in the next turn of the loop, with what else comes of this cursor in
        this one.

        While there is no space it waits in the cursor, so that the log's queue does not grow by
        every acknowledgement. Confirmations beyond CONFIRMATIONS_MAX are given up then: the
        consumer asks again.
        """
        waiting = self._dirty.setdefault(subscription, [])
        if self.context.log.space.stalled is None or not self.serving:
            waiting.append(confirmed)
            if not self._awaited:
                asyncio.get_running_loop().call_soon(self._write_awaited)
            self._awaited[subscription] = None
            return
        if len(waiting) < CONFIRMATIONS_MAX:
            waiting.append(confirmed)
        self._write_dirty_in(DIRTY_RETRY_S)

    def write_cursor(self, subscription: ServedSubscription, confirmed: Callable[[], None]) -> None:
        """Write what is not in the log yet of one cursor; `confirmed` runs when all of it, earlier
        deltas included, is durable.

        Raises LimitExceeded if the log does not take it: it is written later then, and `confirmed`
        runs after that.
        """
        self._append_deltas(subscription, [*self._dirty.pop(subscription, ()), confirmed])

    def _write_dirty_in(self, delay_s: float) -> None:
        if self._dirty_timer is None:
            self._dirty_timer = asyncio.get_running_loop().call_later(
                delay_s, self._write_dirty_if_room
            )

    def _write_dirty_if_room(self) -> None:
        """While there is no space nothing would come of it, and what waits in memory must not
        grow."""
        self._dirty_timer = None
        if self.context.log.space.stalled is not None and self.serving:
            self._write_dirty_in(DIRTY_RETRY_S)
        else:
            self._write_dirty()

    def _write_awaited(self) -> None:
        awaited, self._awaited = self._awaited, {}
        self._write(
            {
                subscription: self._dirty.pop(subscription)
                for subscription in awaited
                if self._dirty.get(subscription)
            }
        )

    def _write_dirty(self) -> None:
        dirty, self._dirty = self._dirty, {}
        self._write(dirty)

    def _write(self, dirty: dict[ServedSubscription, list[Callable[[], None]]]) -> None:
        for subscription, confirmed in dirty.items():
            try:
                self._append_deltas(subscription, confirmed)
            except LimitExceeded as error:  # no other cursor waits for this one
                log.error(
                    "cursor.write_delayed",
                    topic=str(subscription.topic.name),
                    subscription=subscription.core.name,
                    error=str(error),
                )
            except Exception as error:
                about = {
                    "topic": str(subscription.topic.name),
                    "subscription": subscription.core.name,
                }
                self.context.metrics.surprises.note("cursors", error, **about)

    def _append_deltas(
        self, subscription: ServedSubscription, confirmed: Sequence[Callable[[], None]]
    ) -> None:
        topic = subscription.topic
        if self.topics.get(str(topic.name)) is not topic:
            return  # deleted
        if not self.serving:
            if self.buffered is not None:
                for confirm in confirmed:
                    self.buffered.confirmation(subscription, confirm)
            # else the client gets no confirmation, and acknowledges again if there is a new owner
            return
        then = _confirming(confirmed)
        room = self.context.log.append_bytes_max // DELTAS_PER_BLOCK
        while (delta := subscription.core.take_delta(room)) is not None:
            last = not subscription.core.dirty
            try:
                self._append_delta(subscription, delta, then if last else None)
            except LimitExceeded:
                subscription.core.put_back(delta)
                self._dirty.setdefault(subscription, []).extend(confirmed)
                self._write_dirty_in(DIRTY_RETRY_S)
                raise
            if last:
                return
        if then is not None:
            self.context.log.append((), 0, 0, then)  # behind whatever is under way

    def _append_delta(
        self, subscription: ServedSubscription, delta: CursorDelta, on_durable: Durable | None
    ) -> None:
        topic = subscription.topic
        encoded = encode_cursor(
            epoch=self.epoch,
            topic=str(topic.name),
            subscription=subscription.core.name,
            operation=CursorOperation.RESET if delta.reset else CursorOperation.ACKNOWLEDGE,
            mark_delete=delta.mark_delete,
            ranges=delta.ranges,
            partial=delta.partial,
            properties=delta.properties,
        )
        self.append(encoded, on_durable)

    async def remove_subscription(self, subscription: ServedSubscription) -> None:
        """Unsubscribe durably. Raises ServiceNotReady, StorageError."""
        topic = subscription.topic
        if not self.serving:  # what is written now would be void
            raise ServiceNotReady(
                f"topic {topic.name} is being unloaded; unsubscribe again after a lookup"
            )
        topic.drop_subscription(subscription)
        self._dirty.pop(subscription, None)
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
        rebuilt; durable with whatever comes next."""
        encoded = encode_term(epoch=self.epoch, bundle=str(self.name), state=record.encode())
        self.append(encoded, None)

    async def write_checkpoint(self, position: LogPosition) -> tuple[CheckpointPointer, int]:
        """Write the bundle's state as an object that stands for everything before `position` of our
        log, which is durable; its size in bytes.

        The state is taken from now on, topic by topic, so it may hold more than that: replaying
        what it holds already changes nothing, and every record is one topic's. A topic whose
        creation lies behind `position` is left out: replay makes it, and what the log has before
        that creation is of an earlier topic of its name. Others have their turns on the way.
        """
        self._checkpoints += 1
        encoder, paused_at = (
            CheckpointEncoder(str(self.name), self.epoch, self.context.incarnation, position),
            0,
        )
        for name in sorted(self.topics):
            host = self.topics.get(name)
            if host is None or (
                host.created_at is not None and host.created_at >= (position.file, position.offset)
            ):
                continue  # it was deleted concurrently, behind `position`, or created there
            for _ in encoder.add_in_pieces(name, host.to_state()):
                if encoder.size - paused_at >= CHECKPOINT_SLICE_BYTES:
                    paused_at = encoder.size
                    await asyncio.sleep(0)
        written, size = await write_checkpoint(self.context.volume, encoder, self._checkpoints)
        return CheckpointPointer(
            object=written, incarnation=self.context.incarnation, position=position
        ), size

    async def disconnect_consumers(self, successor: Successor | None) -> None:
        """Send consumers away, to the successor's address if known, and take what they acknowledged
        before they read that.

        Publishing continues. The wait for a slow peer ends after LATE_ACKNOWLEDGEMENTS_S: what it
        acknowledges later is redelivered.
        """
        turns, connections = Turns(HOSTED_PER_TURN_MAX), set()
        for host in list(self.topics.values()):
            for subscription in list(host.subscriptions.values()):
                connections.update(subscription.disconnect_consumers(successor))
            await turns.after(1 + len(host.subscriptions))
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

    def freeze(self, *, parking: bool = False) -> None:
        """Stop publishing and delivery for good: the bundle is leaving. With `parking`: what its
        clients send waits for its children."""
        if parking:
            self.buffered = SplitBuffer(self.context.settings.split_buffered_bytes_max)
        if self._dirty_timer is not None:
            self._dirty_timer.cancel()
        self._write_dirty()
        self.serving = False
        for host in self.topics.values():
            host.core.freeze()
        self.non_persistent.freeze()

    async def append_release(self) -> LogPosition:
        """Flush, let all receipts out, and end this epoch in our log; the position just after
        RELEASE. Raises Fenced, StorageError."""
        assert not self.serving
        # No state in it: whoever comes next has read the log up to here, and a list of very many
        # topics would not fit into a block.
        self.append(encode_release(epoch=self.epoch, bundle=str(self.name), state=b""), None)
        await self.context.log.barrier()
        return self.context.log.position

    def take_over(self, parent: OwnedBundle) -> None:
        """Go on with the topics of `parent` that fall into this bundle, clients and all: its term
        has ended in our own log, ours begins.

        What they have acknowledged since the freeze, which is not in the log, is written in this
        term.
        """
        assert not parent.serving
        for name, host in parent.topics.items():
            if self.name.contains(host.name):
                self.topics[name] = host
                host.begin_term(self)

    def stop(self) -> None:
        """The incarnation is over: write nothing more, send everybody away."""
        self.serving = False
        if self._dirty_timer is not None:
            self._dirty_timer.cancel()
        self.close_clients(None)

    def close_clients(self, successor: Successor | None) -> None:
        """Send every producer and consumer away, to the successor's address if known."""
        for host in self.topics.values():
            host.close_clients(successor)
        self.non_persistent.close_clients(successor)


def _confirming(confirmed: Sequence[Callable[[], None]]) -> Durable | None:
    """Who is told when a record is durable."""
    if not confirmed:
        return None

    def tell(_place: RecordPlace) -> None:
        for confirm in confirmed:
            confirm()

    return tell
