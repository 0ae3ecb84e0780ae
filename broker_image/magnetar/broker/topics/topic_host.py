"""A topic in service.

Owns: driving one `topics.Topic`: publishing into the log, reading from memory or storage, its
subscriptions. Imports: topics, storage formats. Invariants: an entry gets its id, its place in the
log and its receipt in one order; what is dispatched was confirmed durable under our claim first;
entries read from storage are verified against the checksum the client sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from magnetar.broker.context import BrokerContext
from magnetar.broker.ports import (
    AttachedProducer,
    SendRun,
    ServedBundle,
    ServedSubscription,
)
from magnetar.broker.reading.catalog import CompactedRead
from magnetar.broker.reading.entry_checks import PieceOfRun, checked_entries
from magnetar.broker.reading.entry_index import ELSEWHERE, EntryIndex, Run
from magnetar.broker.reading.log_span import LogSpan, bytes_ahead
from magnetar.broker.replay.topic_transactions import TopicTransactions, limits_of
from magnetar.broker.topics.effective_policies import PROPERTY
from magnetar.broker.topics.entry_metadata import EntryMetadata
from magnetar.broker.topics.publishing import PublishBlock, Publishing, Recorded
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.errors import CorruptData, NotAllowed, ServiceNotReady
from magnetar.hosting.rates import RateMeter
from magnetar.names import TopicName
from magnetar.policies import Policies
from magnetar.storage.log.format import TopicOperation, encode_entries, encode_topic
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.names import log_file
from magnetar.topics.dispatch.base import DispatchLimits, ReadRequest
from magnetar.topics.ledgers import Position
from magnetar.topics.state import TopicState
from magnetar.topics.subscription import Subscription
from magnetar.topics.topic import TERMINATED, TRIMMED, Topic, position_text

if TYPE_CHECKING:
    from magnetar.hosting.advertised import Successor


class _PublishedRun:
    """A run on its way to stable storage: called by the log, in order, once it is there."""

    __slots__ = (
        "append_ms",
        "entries_offset",
        "lengths",
        "payload",
        "position",
        "recorded",
        "run",
        "session",
        "topic",
    )

    def __init__(
        self,
        topic: TopicHost,
        session: AttachedProducer,
        run: SendRun,
        position: Position,
        payload: bytes,
        lengths: Sequence[int],
        entries_offset: int,
        recorded: Recorded | None,
        append_ms: int,
    ) -> None:
        self.topic, self.session, self.run, self.position = topic, session, run, position
        self.payload, self.lengths, self.entries_offset = payload, lengths, entries_offset
        self.recorded, self.append_ms = recorded, append_ms

    def __call__(self, place: RecordPlace) -> None:
        self.topic.durable(self, place)


class TopicHost:
    """One topic of a bundle that is served here."""

    def __init__(
        self,
        bundle: ServedBundle,
        name: TopicName,
        core: Topic,
        index: EntryIndex,
        transactions: TopicTransactions | None = None,
    ) -> None:
        self.bundle, self.name, self.core, self.index = bundle, name, core, index
        self.transactions = transactions
        if transactions is not None:
            transactions.limit(limits_of(bundle.context.settings))
        self.created_at: RecordPlace | None = None  # if that was in this log
        self.context: BrokerContext = bundle.context
        self.partition = name.partition
        self._encoded_name = str(name).encode()
        self._epoch = bundle.epoch
        self.policies: Policies = bundle.policies.topic(name, core.properties)
        core.limit(self._dispatch_limits())
        self.publishing = Publishing(self)
        self.metadata = EntryMetadata.of_topic(self)
        self.unused_since_ms: int | None = None
        self._ending: asyncio.Task[Position] | None = None
        self.meter: RateMeter | None = None  # made when somebody first asks for rates
        self.subscriptions: dict[str, SubscriptionHost] = {
            subscription: SubscriptionHost(self, found, self.metadata)
            for subscription, found in core.subscriptions.items()
        }
        for recovered in self.subscriptions.values():
            recovered.recorded = True

    @property
    def frozen(self) -> bool:
        """Whether a planned move has stopped publishing and delivery."""
        return self.core.frozen

    @property
    def leaving(self) -> bool:
        """Whether it is frozen for good, or until it is deleted: its clients will be sent away.
        While its bundle is split they stay."""
        return self.core.frozen and self.bundle.buffered is None

    async def update_properties(self, changes: Mapping[str, str]) -> None:
        """Set properties of the topic durably ("" removes one); in force when this returns.
        Raises ServiceNotReady, StorageError."""
        if self.frozen:
            raise ServiceNotReady(f"topic {self.name} is being unloaded; try again after a lookup")
        self.append_update(changes, lambda: self._updated(changes))
        await self.context.log.barrier()

    def append_update(self, changes: Mapping[str, str], on_durable: Callable[[], None]) -> None:
        """Write a change of properties, which acts on what is written behind it; `on_durable`
        runs when it is there to stay."""
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
            for subscription in self.subscriptions.values():
                subscription.schedule()
        if PROPERTY in changes:
            self.refresh_policies()
        self.publishing.refresh()

    def refresh_policies(self) -> None:
        """Policies of the topic or of its namespace may have changed."""
        self.policies = self.bundle.policies.topic(self.name, self.core.properties)
        self.core.limit(self._dispatch_limits())
        self.publishing.refresh()
        if not self.frozen:
            self.publishing.compare_backlog()
        for subscription in self.subscriptions.values():
            subscription.schedule()  # a limit may be gone

    def _dispatch_limits(self) -> DispatchLimits:
        settings = self.context.settings
        return DispatchLimits(
            unacknowledged_per_consumer_messages_max=self.policies.max_unacked_per_consumer,
            unacknowledged_per_subscription_messages_max=self.policies.max_unacked_per_subscription,
            delayed_delivery=self.policies.delayed_delivery.active,
            delay_tick_ms=max(1, self.policies.delayed_delivery.tick_ms),
            delayed_runs_max=settings.delayed_runs_max,
            chunked_messages_max=settings.chunked_messages_max,
            failover_delay_ms=settings.failover_delay_ms,
            key_shared_consistent_hashing=bool(settings.key_shared_consistent_hashing),
            look_ahead_per_consumer_entries_max=settings.look_ahead_per_consumer_entries_max,
            look_ahead_per_subscription_entries_max=settings.look_ahead_per_subscription_entries_max,
        )

    @property
    def terminated(self) -> bool:
        """Whether the topic takes no more messages, permanently."""
        return TERMINATED in self.core.properties

    @property
    def ended(self) -> bool:
        """Whether that is durable: nobody hears before of an end that may yet not be."""
        return self.terminated and self._ending is None

    def begin_term(self, bundle: ServedBundle) -> None:
        """Go on in `bundle`, which a split has made of ours, with everybody who is attached."""
        self.bundle, self._epoch = bundle, bundle.epoch
        self.core.go_on_in(bundle.ledger_ids)
        if self.transactions is not None:
            self.transactions.begin_term()
        for subscription in self.subscriptions.values():
            if subscription.core.dirty:
                bundle.cursor_dirty(subscription)
            subscription.schedule()

    # --- transactions -----------------------------------------------------------------------------

    def used_with_transactions(self) -> TopicTransactions:
        """Its transactions, from now on if there were none."""
        if self.transactions is None:
            self.transactions = TopicTransactions(self.core)
            self.transactions.limit(limits_of(self.context.settings))
        return self.transactions

    def last_sequence_in_transactions(self, name: str) -> int | None:
        """The highest sequence id that a producer of this name has used in a transaction; None
        if the topic knows no transactions."""
        return self.transactions.buffer.last_sequence(name) if self.transactions else None

    def to_state(self) -> TopicState:
        """For a checkpoint: everything that recovery needs as of now."""
        state = self.core.to_state()
        return (
            state
            if self.transactions is None
            else replace(state, transactions=self.transactions.to_state())
        )

    # --- its end ----------------------------------------------------------------------------------

    async def terminate(self) -> Position:
        """Let nothing more be published, durably; the last position there will ever be. Raises
        ServiceNotReady, StorageError."""
        if self._ending is not None:
            return await asyncio.shield(self._ending)
        if self.core.terminated is not None:
            await self.context.log.confirm()
            return self.core.terminated
        if self.frozen:
            raise ServiceNotReady(f"topic {self.name} is being unloaded; try again after a lookup")
        if self.transactions is not None and self.transactions.buffer.has_open:
            raise NotAllowed(
                f"topic {self.name} has messages of open transactions; terminate it when they have "
                "ended"
            )
        last = self.core.last_published
        changes = {TERMINATED: position_text(last)}
        self.append_update(changes, lambda: None)
        # refused from now on; producers are sent away, and consumers told, once it is durable
        self._updated(changes)
        self._ending = asyncio.create_task(self._end(last), name=f"terminate {self.name}")
        # whoever asked may have left
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

    async def trim(self, ordinal: int) -> None:
        """Drop the entries below `ordinal`, durably. Raises ServiceNotReady, StorageError."""
        ledgers = self.core.ledgers
        if ledgers.first < ordinal <= ledgers.end:
            await self.update_properties({TRIMMED: position_text(ledgers.position_before(ordinal))})

    async def truncate(self) -> None:
        """Drop everything there is, acknowledged or not, durably. Raises ServiceNotReady,
        StorageError."""
        await self.trim(self.core.ledgers.end)

    # --- publishing -------------------------------------------------------------------------------

    @property
    def publish_block(self) -> PublishBlock | None:
        """Why no producers are taken: a backlog quota."""
        return self.publishing.block

    def publish(self, session: AttachedProducer, run: SendRun) -> None:
        """Take a run of entries of one producer; receipts follow when it is durable.

        The entries are copied once, back to back: for the log, and for readers at the tail.
        """
        if not self.admits(session, run):
            return
        if self.core.ledger < 0 and not self.publishing.take_ledger(session, run):
            return
        if self.publishing.guarded or session.sends_chunks:
            for part, recorded in self.publishing.admitted(session, run):
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
        """Give a run that nothing speaks against to the log. `recorded` is what is to be known
        of it once it is durable."""
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
        published = _PublishedRun(
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

    def durable(self, published: _PublishedRun, place: RecordPlace) -> None:
        """The log has a run on stable storage: confirm, answer, deliver."""
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
        self.count_in(sum(run.counts), stored.bytes)
        self.wake()

    def after_appends(self, then: Callable[[], None]) -> None:
        """Call `then` once everything appended so far is durable, in the order of the log."""
        self.context.log.append((), 0, 0, lambda _place: then())

    @property
    def fenced(self) -> bool:
        """Whether another broker has fenced us: nothing becomes durable any more."""
        return self.context.log.fenced

    def count_refused(self, sends: int) -> None:
        """So many SENDs were refused."""
        self.context.metrics.publish_errors += sends

    def count_in(self, messages: int, size: int) -> None:
        """So much more can be delivered."""
        metrics, counters = self.context.metrics, self.core.counters
        metrics.messages_in += messages
        metrics.bytes_in += size
        counters.messages_in += messages
        counters.bytes_in += size

    def wake(self) -> None:
        """There may be something to deliver."""
        for subscription in self.subscriptions.values():
            subscription.schedule()

    # --- reading ----------------------------------------------------------------------------------

    def tail(self, request: ReadRequest) -> tuple[list[memoryview], Sequence[int]] | None:
        """Entries of the request that are in memory and in one run, with their message counts;
        None if the first one is not."""
        at = self.index.run_of(request.first)
        if at is None:
            self.context.metrics.tail_misses += 1
            return None
        run = self.index.runs[at]
        low = request.first - run.first
        high = min(low + request.entries, run.count)
        entries = run.entries(low, high)
        if entries is None:
            self.context.metrics.tail_misses += 1
            return None
        self.context.metrics.tail_hits += 1
        return entries, run.message_counts if high - low == run.count else run.message_counts[
            low:high
        ]

    async def read(self, request: ReadRequest) -> tuple[list[memoryview], list[int]]:
        """Entries of the request from storage, as many as one read may hold (at least one), with
        their message counts.

        Raises StorageError; CorruptData if what is there is not what the client sent.
        """
        at = self.index.run_of(request.first)
        gone: tuple[str, int] | None = None
        if at is not None:
            run = self.index.runs[at]
            place = run.incarnation, run.file
            try:
                if run.incarnation != ELSEWHERE:
                    return await self._read_runs(request, at)
            except FileNotFoundError:
                # The file was rewritten into segments, or given up with everything in it: the
                # catalog knows.
                gone = place
        sources = self.transactions.buffer.source_of if self.transactions is not None else None
        bytes_max = self.context.settings.read_batch_bytes_max
        try:
            found = await self.bundle.catalog.read(
                self.name, self.core.ledgers, request, bytes_max, sources
            )
        except CorruptData as error:
            if gone is None or error.file:
                raise
            # Nothing is in its place: it is still there that the entry belongs, once somebody has
            # brought it back.
            name = log_file(*gone)
            raise CorruptData(
                f"{name} is missing, {error}; restore it",
                file=name,
                topic=error.topic,
                first=error.first,
            ) from error
        if gone is not None:
            self.index.lose_file(*gone)
        return found

    async def _read_runs(self, request: ReadRequest, at: int) -> tuple[list[memoryview], list[int]]:
        """As `read`, from the runs in log files that we know of, from the `at`-th on. Raises
        FileNotFoundError if the first is gone."""
        entries: list[memoryview] = []
        message_counts: list[int] = []
        left, budget = request.entries, self.context.settings.read_batch_bytes_max
        # A copy: while we wait another reader may find out that files are gone and forget their
        # runs.
        runs, span = self.index.runs[at : at + request.entries], LogSpan(self.context.volume)
        for number, run in enumerate(runs):
            if left <= 0 or budget <= 0 or run.incarnation == ELSEWHERE:
                break
            low = max(0, request.first - run.first)
            try:
                found = run.entries(low, min(run.count, low + left))
                if found is None:
                    ahead = partial(
                        bytes_ahead, runs, number, left - (run.count - low), budget - run.bytes
                    )
                    found = await self._read_run(run, low, left, budget, span, ahead)
            except FileNotFoundError:
                if entries:
                    break
                raise
            entries += found
            message_counts += run.message_counts[low : low + len(found)]
            left -= len(found)
            budget -= sum(map(len, found))
            if low + len(found) < run.count:
                break
        return entries, message_counts

    async def _read_run(
        self, run: Run, low: int, count: int, budget: int, span: LogSpan, ahead: Callable[[], int]
    ) -> list[memoryview]:
        """Entries low.. of one run, at most `count` and about `budget` bytes, at least one;
        `ahead` says how much more to fetch."""
        offsets = run.offsets()
        high = low + 1
        while high < min(run.count, low + count) and offsets[high + 1] - offsets[low] <= budget:
            high += 1
        base = offsets[low]
        view = await span.bytes_of(run, base, offsets[high], ahead if high == run.count else int)
        first = self.core.ledgers.position(run.first + low)
        lengths = [offsets[at + 1] - offsets[at] for at in range(low, high)]
        return checked_entries(
            view,
            lengths,
            PieceOfRun(
                log_file(run.incarnation, run.file), run.offset + base, str(self.name), *first
            ),
        )

    def compacted_before(self, ordinal: int) -> bool:
        """Whether a read-compacted consumer gets `ordinal` from the compacted segments."""
        view = self.bundle.catalog.compacted(str(self.name))
        return view is not None and ordinal < self.core.ledgers.ordinal_after(view.horizon)

    async def read_compacted(self, request: ReadRequest) -> CompactedRead:
        """The next surviving entries of the compacted view from the request on. Raises
        StorageError."""
        return await self.bundle.catalog.read_compacted(str(self.name), self.core.ledgers, request)

    async def last_message(self, read_compacted: bool) -> tuple[Position, memoryview | None]:
        """Position and bytes of the last entry that can be delivered; (EARLIEST, None) if there
        is none, be it that all were trimmed."""
        end = self.core.ledgers.end
        if read_compacted and end > 0 and self.compacted_before(end - 1):
            return await self.bundle.catalog.last_compacted(str(self.name), self.core.ledgers)
        if end == self.core.ledgers.first:
            return self.core.last_message_position(), None
        request = ReadRequest(end - 1, 1)
        found = self.tail(request)
        entries = found[0] if found is not None else (await self.read(request))[0]
        return self.core.ledgers.position(end - 1), entries[0]

    # --- subscriptions ----------------------------------------------------------------------------

    def open_subscription(
        self, name: str, start: tuple[int, int], *, durable: bool, properties: dict[str, str]
    ) -> SubscriptionHost:
        """The subscription, created if need be. Raises NotAllowed, ServiceNotReady."""
        if self.core.frozen:
            raise ServiceNotReady(
                f"topic {self.name} is being unloaded; subscribe again after a lookup"
            )
        core: Subscription = self.core.subscribe(
            name, start, durable=durable, properties=properties
        )
        host = self.subscriptions.get(name)
        if host is None:
            host = self.subscriptions[name] = SubscriptionHost(self, core, self.metadata)
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

    def close_clients(self, successor: Successor | None) -> None:
        """Tell everybody to reconnect, at the successor's address if known."""
        self.publishing.close_all(successor)
        for subscription in list(self.subscriptions.values()):
            for consumer in subscription.sessions():
                consumer.close_by_broker(successor)
            subscription.stop()
