"""A topic in service.

Owns: driving one `topics.Topic`: publishing into the log, properties, termination, its
subscriptions. Imports: topics, storage formats. Invariants: an entry gets its id, its place in the
log and its receipt in one order; an entry is dispatched only after it is durable under this owner's
claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Unpack

from magnetar.broker.context import BrokerContext
from magnetar.broker.ports import AttachedProducer, SendRun, ServedBundle, ServedSubscription
from magnetar.broker.reading.entry_index import EntryIndex, Run
from magnetar.broker.replay.topic_transactions import TopicTransactions, limits_of
from magnetar.broker.topics.admission import Admission, Recorded
from magnetar.broker.topics.compaction_state import CompactionState
from magnetar.broker.topics.effective_policies import PROPERTY
from magnetar.broker.topics.entry_metadata import EntryMetadata
from magnetar.broker.topics.message_sender import MessageSender
from magnetar.broker.topics.producers import Publishing
from magnetar.broker.topics.published_run import PublishedRun
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.throttles import throttles_of
from magnetar.broker.topics.topic_limits import dispatch_limits
from magnetar.broker.topics.topic_reader import TopicReader
from magnetar.broker.topics.traffic import TopicTraffic
from magnetar.broker.watermarks.topic_watermarks import ServedWatermarks, note_sent
from magnetar.errors import NotAllowed, ServiceNotReady
from magnetar.names import TopicName
from magnetar.policies import Policies
from magnetar.storage.log.format import TopicOperation, encode_entries, encode_topic
from magnetar.storage.log.places import RecordPlace
from magnetar.topics.dispatch.base import DispatchLimits
from magnetar.topics.ledgers import TERMINATED, TRIMMED, Position, position_text
from magnetar.topics.state import TopicState
from magnetar.topics.topic import SubscriptionOptions, Topic
from magnetar.topics.trimming import trim_changes
from magnetar.watermarks.replay import controls_of

if TYPE_CHECKING:
    from magnetar.hosting.advertised import Successor
    from magnetar.watermarks.timeline import Timeline


class TopicHost:
    """One topic of a bundle that is served here."""

    _host_type: ClassVar[type[SubscriptionHost]] = SubscriptionHost
    _sender_type: ClassVar[type[MessageSender]] = MessageSender

    def __init__(
        self,
        bundle: ServedBundle,
        name: TopicName,
        core: Topic,
        index: EntryIndex,
        transactions: TopicTransactions | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.bundle, self.name, self.core, self.index = bundle, name, core, index
        self.transactions = transactions
        if transactions is not None:
            transactions.limit(limits_of(bundle.context.settings))
        self.created_at: RecordPlace | None = None  # if that was in this log
        self.context: BrokerContext = bundle.context
        self.partition, self._encoded_name = name.partition, str(name).encode()
        self._epoch = bundle.epoch
        self.policies: Policies = bundle.policies.topic(name, core.properties)
        core.limit(self._dispatch_limits())
        self.reader, self.admission = TopicReader(self), Admission(self)
        self.publishing = Publishing(self, self.admission)
        self.metadata, self.sender = EntryMetadata.of_topic(self), self._sender_type(self)
        self.traffic = TopicTraffic(self, index)
        self.unused_since_ms: int | None = None
        self.compaction: CompactionState | None = None  # made by the first compaction here
        self._ending: asyncio.Task[Position] | None = None
        self.subscriptions: dict[str, SubscriptionHost] = {
            subscription: self._host_type(self, found, self.sender, self.metadata)
            for subscription, found in core.subscriptions.items()
        }
        for recovered in self.subscriptions.values():
            recovered.recorded = True
        self.watermarks = ServedWatermarks(self, timeline) if timeline is not None else None
        self.throttles = throttles_of(self, None)

    @property
    def frozen(self) -> bool:
        """Whether a planned move has stopped publishing and delivery."""
        return self.core.frozen

    @property
    def leaving(self) -> bool:
        """Whether it is frozen until it is unloaded or deleted: its clients will be closed. During
        a split of its bundle they stay."""
        return self.core.frozen and self.bundle.buffered is None

    def check_serving(self, advice: str = "try again after a lookup") -> None:
        """Raises ServiceNotReady, with advice to the client, if the topic is frozen."""
        if self.core.frozen:
            raise ServiceNotReady(f"topic {self.name} is being unloaded; {advice}")

    def check_writable(self) -> None:
        """Whether a change can be written now. Raises ServiceNotReady, StorageError."""
        self.check_serving()
        self.context.check_log()

    async def update_properties(self, changes: Mapping[str, str]) -> None:
        """Set properties of the topic durably ("" removes one); in force when this returns.
        Raises ServiceNotReady, StorageError."""
        self.check_serving()
        self.append_update(changes, lambda: self._updated(changes))
        await self.context.log.barrier()

    def append_update(self, changes: Mapping[str, str], on_durable: Callable[[], None]) -> None:
        """Append a change of properties, which holds for the records behind it; `on_durable` runs
        when it is durable."""
        record = encode_topic(
            epoch=self._epoch,
            topic=str(self.name),
            operation=TopicOperation.UPDATE,
            properties=changes,
        )
        self.bundle.append(record, lambda _place: on_durable())

    def _updated(self, changes: Mapping[str, str]) -> None:
        self.core.apply_update(changes)
        if TRIMMED in changes:
            self.index.drop_before(self.core.ledgers.first)
            if self.transactions is not None:
                self.transactions.trimmed()
            if self.watermarks is not None:
                self.watermarks.trimmed()
            self.wake()
        if PROPERTY in changes:
            self.refresh_policies()
        self.admission.refresh()

    def refresh_policies(self) -> None:
        self.policies = self.bundle.policies.topic(self.name, self.core.properties)
        self.core.limit(self._dispatch_limits())
        self.admission.refresh()
        before, self.throttles = self.throttles, throttles_of(self, self.throttles)
        if before is not None and before is not self.throttles:
            before.stop()
        if self.watermarks is not None:
            self.watermarks.refresh_policies()
        self.publishing.refresh()
        self.wake()  # a limit may be gone

    def _dispatch_limits(self) -> DispatchLimits:
        return dispatch_limits(self.policies, self.context.settings)

    @property
    def terminated(self) -> bool:
        """Whether the topic takes no more messages, permanently."""
        return TERMINATED in self.core.properties

    @property
    def ended(self) -> bool:
        """Whether termination is durable: clients are not notified of one that may be lost."""
        return self.terminated and self._ending is None

    def begin_term(self, bundle: ServedBundle) -> None:
        """Continue in `bundle`, a part of the split one, with all clients attached."""
        self.bundle, self._epoch = bundle, bundle.epoch
        self.core.go_on_in(bundle.ledger_ids)
        if self.transactions is not None:
            self.transactions.begin_term()
        if self.watermarks is not None:
            self.watermarks.begin_term()
        for subscription in self.subscriptions.values():
            if subscription.core.dirty:
                bundle.cursor_dirty(subscription)
            subscription.schedule()

    # --- transactions -----------------------------------------------------------------------------

    def used_with_transactions(self) -> TopicTransactions:
        """Its transactions, created if there were none."""
        if self.transactions is None:
            self.transactions = TopicTransactions(self.core)
            self.transactions.limit(limits_of(self.context.settings))
        return self.transactions

    def used_with_watermarks(self) -> ServedWatermarks:
        """Its watermarks, created if no producer has asserted any before."""
        if self.watermarks is None:
            self.watermarks = ServedWatermarks(self)
        return self.watermarks

    def last_sequence_in_transactions(self, name: str) -> int | None:
        """The highest sequence id that a producer of this name has used in a transaction; None
        if the topic knows no transactions."""
        return self.transactions.buffer.last_sequence(name) if self.transactions else None

    def to_state(self) -> TopicState:
        """For a checkpoint: everything that recovery needs."""
        return replace(
            self.core.to_state(),
            transactions=self.transactions.to_state() if self.transactions else None,
            watermarks=controls_of(self.watermarks.timeline) if self.watermarks else None,
        )

    # --- termination, trimming --------------------------------------------------------------------

    async def terminate(self) -> Position:
        """Terminate the topic durably; its last position. Raises NotAllowed, ServiceNotReady,
        StorageError."""
        if self._ending is not None:
            return await asyncio.shield(self._ending)
        if self.core.terminated is not None:
            await self.context.log.confirm()
            return self.core.terminated
        self.check_serving()
        if self.transactions is not None and self.transactions.buffer.has_open:
            raise NotAllowed(
                f"topic {self.name} has messages of open transactions; terminate it when they have "
                "ended"
            )
        last = self.core.last_published
        changes = {TERMINATED: position_text(last)}
        self.append_update(changes, lambda: None)
        # SENDs are refused from now on; clients are notified once it is durable
        self._updated(changes)
        self._ending = asyncio.create_task(self._end(last), name=f"terminate {self.name}")
        # the caller may have been cancelled
        self._ending.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._ending)

    async def _end(self, last: Position) -> Position:
        try:
            await self.context.log.barrier()
        finally:
            self._ending = None
        self.publishing.close_all(None)
        for subscription in list(self.subscriptions.values()):
            subscription.end_of_topic()
        return last

    async def trim(self, ordinal: int, viewed_from: tuple[int, int] | None = None) -> None:
        """Drop the entries below `ordinal`, durably; a compacted view keeps what it has of them
        from a position on. Raises ServiceNotReady, StorageError."""
        if changes := trim_changes(self.core, ordinal, viewed_from):
            await self.update_properties(changes)

    async def truncate(self) -> None:
        """Drop all entries, acknowledged or not, durably. Raises ServiceNotReady, StorageError."""
        await self.trim(self.core.ledgers.end)

    # --- publishing -------------------------------------------------------------------------------

    def publish(self, session: AttachedProducer, run: SendRun) -> None:
        """Take a run of entries of one producer; receipts follow when it is durable.

        The entries are copied once, back to back: for the log, and for readers at the tail.
        """
        if not self.admits(session, run):
            return
        if self.core.ledger < 0 and not self.admission.take_ledger(session, run):
            return
        if self.admission.guarded or session.sends_chunks:
            for part, recorded in self.admission.admitted(session, run):
                self._append(session, part, recorded)
        else:
            self._append(session, run, None)

    def admits(self, session: AttachedProducer, run: SendRun) -> bool:
        """Whether the topic takes SENDs now.

        While frozen they are dropped: the client sends them again to the new owner, which
        CLOSE_PRODUCER will name. While the bundle is split they are buffered. Without space they
        are refused.
        """
        if self.core.frozen:
            if self.bundle.buffered is not None:
                self.bundle.buffered.send(session, run)
            return False
        if self.context.log.space.short is not None:
            session.refuse_sends(run, self.context.log.space.short)
            return False
        return True

    def _append(self, session: AttachedProducer, run: SendRun, recorded: Recorded | None) -> None:
        """Append an admitted run to the log; `recorded` is applied once it is durable."""
        position, now_ms = self.core.publish(len(run.entries)), self.context.clock.wall_ms()
        payload, lengths = b"".join(run.entries), list(map(len, run.entries))
        encoded = encode_entries(
            epoch=self._epoch,
            ledger=position.ledger,
            first_entry=position.entry,
            append_ms=now_ms,
            topic=self._encoded_name,
            producer=session.encoded_name,
            message_counts=run.counts,
            sequences=recorded.sequences if recorded is not None else run.tops,
            entries=[payload],
            lengths=lengths,
        )
        session.pending += len(lengths)
        published = self.publishing.run_type(
            self,
            session,
            run,
            position,
            payload,
            lengths,
            encoded.entries_offset,
            recorded,
            now_ms,
        )
        self.bundle.append(encoded, published)
        if recorded is not None:
            recorded.placed(position)
        if self.policies.watermarks.in_properties or self.watermarks is not None:
            note_sent(self, session.name, run.entries, len(payload))

    def durable(self, published: PublishedRun, place: RecordPlace) -> None:
        """A run is on stable storage: confirm, answer, deliver."""
        run = published.run
        ordinal = self.core.confirm(published.position, len(published.lengths))
        stored = Run(
            ordinal,
            self.context.incarnation,
            place.file,
            place.offset + published.entries_offset,
            published.lengths,
            run.counts,
            published.append_ms,
            self.core.messages,
        )
        self.index.add(stored)
        self.bundle.tail_cache.keep(stored, published.payload)
        if published.recorded is not None:
            published.recorded.persist(published.session.name)
        published.session.durable(*published.position, run)
        self.traffic.published(
            published.session, sum(run.counts), stored.bytes, published.append_ms
        )
        self.wake()

    def after_appends(self, then: Callable[[], None]) -> None:
        """Call `then` once every record appended so far is durable, in the order of the log."""
        self.context.log.append((), 0, 0, lambda _place: then())

    @property
    def fenced(self) -> bool:
        """Whether another broker has fenced this one: nothing becomes durable any more."""
        return self.context.log.fenced

    def count_refused(self, sends: int) -> None:
        self.context.metrics.publish_errors += sends

    def wake(self) -> None:
        """Deliver what can be delivered."""
        for subscription in self.subscriptions.values():
            subscription.schedule()

    # --- subscriptions ----------------------------------------------------------------------------

    def open_subscription(
        self, name: str, start: tuple[int, int], **options: Unpack[SubscriptionOptions]
    ) -> SubscriptionHost:
        """The subscription, created if need be. Raises NotAllowed, ServiceNotReady."""
        self.check_serving("subscribe again after a lookup")
        core = self.core.subscribe(name, start, **options)
        if (host := self.subscriptions.get(name)) is None:
            host = self._host_type(self, core, self.sender, self.metadata)
            self.subscriptions[name] = host
        return host

    def drop_subscription(self, subscription: ServedSubscription) -> None:
        """Forget a subscription that has no consumers any more (unsubscribed, or a reader's)."""
        if self.subscriptions.get(subscription.core.name) is not subscription:
            return
        subscription.stop()
        self.unused_since_ms = None
        self.core.remove_subscription(subscription.core.name)
        self.subscriptions.pop(subscription.core.name, None)
        if self.transactions is not None:
            self.transactions.pending.pop(subscription.core.name, None)
        if self.watermarks is not None:
            self.watermarks.forget(subscription)

    def close_clients(self, successor: Successor | None) -> None:
        """Close all clients, with the successor's address if known."""
        self.publishing.close_all(successor)
        for subscription in list(self.subscriptions.values()):
            for consumer in subscription.sessions():
                consumer.close_by_broker(successor)
            subscription.stop()
