"""A subscription in service.

Owns: driving one `topics.Subscription`: fetch what it asks for, send what it hands out, write what
it acknowledges. Imports: topics, sessions. Invariants: at most one fetch is under way per
subscription; nothing is sent while the bundle is frozen; after `read_batch_entries_max` entries
other subscriptions get their turn; acknowledgements are confirmed only after their cursor record is
durable under our claim; whatever goes wrong with a delivery is told, and tried again after a pause:
whoever it had been handed to, and not sent, comes back for it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import structlog

from magnetar.broker.ports import AttachedConsumer, ClientConnection, ServedTopic
from magnetar.broker.topics.entry_metadata import EntryMetadata, Facts
from magnetar.broker.topics.traits import traits_of
from magnetar.errors import StorageError, StoreError
from magnetar.topics.dispatch.base import Delivery, ReadRequest
from magnetar.topics.subscription import Subscription

if TYPE_CHECKING:
    from magnetar.hosting.advertised import Successor

log = structlog.get_logger(__name__)

READ_ENTRIES_MAX = 500
READS_MAX = 50
"""Of one turn: a consumer may have asked for every second entry again, each of which is a read
of its own."""
READ_RETRY_S = 0.5
READ_RETRY_MAX_S = 30.0
# the wall clock, by which things fall due, may be set forward
WAKEUP_MIN_S, WAKEUP_MAX_S = 0.005, 60.0


class SubscriptionHost:
    """Cursor and delivery of one subscription of a topic that is served here."""

    def __init__(
        self, topic: ServedTopic, core: Subscription, metadata: EntryMetadata | None
    ) -> None:
        self.topic, self.core, self._entry_metadata = topic, core, metadata
        self.recorded = False  # whether the log is known to have it
        self._read_failures = 0
        self._looked_ms = 0
        self._scheduled = False
        self._seeking, self.disconnecting = 0, False
        self._missed = False
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._abandoned: asyncio.TimerHandle | None = None
        self.read_compacted = False
        self.messages_expired = 0
        self.unused_since_ms: int | None = None

    # --- consumers --------------------------------------------------------------------------------

    def sessions(self) -> list[AttachedConsumer]:
        """Consumers connected now, in order of arrival."""
        return cast("list[AttachedConsumer]", list(self.core.consumers))

    def detach(self, session: AttachedConsumer) -> None:
        """A consumer has left; what it held goes to the others. A reader's subscription goes
        with its last consumer."""
        self.core.remove_consumer(session)
        # both were in use until now, whether a look saw that or not
        self.unused_since_ms = self.topic.unused_since_ms = None
        if not self.core.connected:
            self.read_compacted = False
            self.drop_if_unused()
        self.schedule()

    def attached(self) -> None:
        """A consumer has come."""
        if self._abandoned is not None:
            self._abandoned.cancel()
            self._abandoned = None
        self._notify_end_of_topic()

    def send_away(self) -> None:
        """Disconnect the consumers whose delivery is about to begin elsewhere (of Failover the
        active one); they come back at once.

        A reader's subscription waits for its consumer: a client that seeks by time does not know
        where it will begin.
        """
        self._expect_return()
        active = self.core.active
        for session in self.sessions():
            if active is None or active.handle is session:
                session.close_by_broker(None)

    def disconnect_consumers(self, successor: Successor | None) -> list[ClientConnection]:
        """Deliver nothing more, and tell the consumers to reconnect; what they acknowledge is
        still taken. Their connections."""
        self.disconnecting = True
        sessions = self.sessions()
        for session in sessions:
            session.part(successor)
        return [session.connection for session in sessions]

    def _expect_return(self) -> None:
        if not self.core.durable and self._abandoned is None:
            wait_s = self.topic.context.settings.reader_return_s
            self._abandoned = asyncio.get_running_loop().call_later(wait_s, self._abandon)

    def drop_if_unused(self) -> None:
        """A reader's subscription must not outlive the attempt to make it, nor a seek after
        which nobody came back."""
        if self.core.durable or self.core.connected or self._abandoned is not None:
            return
        self.topic.drop_subscription(self)

    def _abandon(self) -> None:
        self._abandoned = None
        self.drop_if_unused()

    def end_of_topic(self) -> None:
        """The topic has been terminated: tell consumers once they have acknowledged everything."""
        self._notify_end_of_topic()

    def _notify_end_of_topic(self) -> None:
        if not self.topic.ended or self.core.backlog:
            return
        for session in self.sessions():
            session.end_of_topic()

    # --- acknowledgements -------------------------------------------------------------------------

    def acknowledge(
        self,
        session: AttachedConsumer,
        ranges: Sequence[tuple[int, int]],
        partial: Sequence[tuple[int, int]],
        confirmed: Callable[[], None] | None,
    ) -> None:
        """Individual acknowledgements; `confirmed` is called when they are durable."""
        before = self.core.backlog
        unblocked = self.core.acknowledge(session, ranges, partial)
        session.entries_acknowledged += before - self.core.backlog
        self._acknowledged(unblocked, confirmed)

    def acknowledge_cumulative(
        self,
        session: AttachedConsumer,
        ordinal: int,
        mask: int | None,
        confirmed: Callable[[], None] | None,
    ) -> None:
        """Everything up to `ordinal`; `confirmed` is called when that is durable."""
        before = self.core.backlog
        unblocked = self.core.acknowledge_cumulative(session, ordinal, mask)
        session.entries_acknowledged += before - self.core.backlog
        self._acknowledged(unblocked, confirmed)

    def acknowledge_by_broker(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge for nobody in particular: expired, skipped or evicted."""
        self._acknowledged(self.core.acknowledge(None, ranges), None)

    def _acknowledged(self, unblocked: bool, confirmed: Callable[[], None] | None) -> None:
        if confirmed is not None:
            self.topic.bundle.confirm_cursor(self, confirmed)
        elif self.core.durable and self.core.cursor.dirty:
            self.topic.bundle.cursor_dirty(self)
        if unblocked:
            self.schedule()
        if self.topic.ended:
            self._notify_end_of_topic()

    # --- delivery ---------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Look for something to deliver, once, in this turn of the loop."""
        if not self._scheduled and self.core.connected:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Deliver nothing: a SEEK has come, and what goes out before its consumers are sent away
        a client may take for what follows it."""
        self._seeking += 1
        try:
            yield
        finally:
            self._seeking -= 1
            self.schedule()

    def _deliver(self) -> None:
        self._scheduled = False
        if self.topic.frozen or self.disconnecting or self._seeking:
            return
        # Plain handlers instead of `contained`: this runs for every batch, and they cost nothing
        # until something is raised.
        try:
            self._notify_active()
        except Exception as error:
            self._surprise(error)
        if self._reading is not None:
            self._missed = True
        else:
            try:
                self._deliver_what_is_due()
            except Exception as error:
                self._begin_reading(partial(self._pause, error))
        try:
            self._arm_timer()
        except Exception as error:
            self._surprise(error)

    def _surprise(self, error: Exception) -> None:
        """Log and count an error of this subscription's deliveries that no code foresaw."""
        self.topic.context.metrics.surprises.note(
            "deliveries", error, topic=str(self.topic.name), subscription=self.core.name
        )

    def _notify_active(self) -> None:
        """Whoever is active, or is not any more, since somebody came or left."""
        for session, active in self.core.advance(self.topic.context.clock.wall_ms()):
            cast("AttachedConsumer", session).notify_active(active)

    def _arm_timer(self) -> None:
        """Look again when something becomes due by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self.core.next_wakeup_ms()
        if due_ms is not None:
            delay_s = min(
                max(WAKEUP_MIN_S, (due_ms - self.topic.context.clock.wall_ms()) / 1000),
                WAKEUP_MAX_S,
            )
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.schedule)

    def _deliver_what_is_due(self) -> None:
        settings = self.topic.context.settings
        entries_left, bytes_left = settings.read_batch_entries_max, settings.write_buffer_bytes_max
        # What one turn queues is written at its end: only then does a connection say that it cannot
        # take more.
        for _ in range(READS_MAX):
            if entries_left <= 0 or bytes_left <= 0:
                break
            request = self._next_read(min(entries_left, READ_ENTRIES_MAX))
            if request is None:
                return
            if self.read_compacted and self.topic.compacted_before(request.first):
                self._fetch(request)
                return
            found = self.topic.tail(request)
            if found is None:
                self._fetch(request)
                return
            entries, message_counts = found
            facts = None
            if self._entry_metadata is not None and (metadata := self._metadata()) is not None:
                facts = metadata.at_tail(request.first, len(entries))
            delivered = self._hand_out(request.first, entries, message_counts, facts)
            self._read_succeeded()
            if not delivered:
                return
            entries_left -= len(entries)
            bytes_left -= sum(map(len, entries))
        self.schedule()

    def _next_read(self, limit_entries: int) -> ReadRequest | None:
        self._looked_ms = self.topic.context.clock.wall_ms()
        return self.core.next_read(limit_entries, self._looked_ms)

    def _fetch(self, request: ReadRequest) -> None:
        self._begin_reading(partial(self._fetch_and_hand_out, request))

    def _begin_reading(self, reading: Callable[[], Awaitable[bool]]) -> None:
        self._reading = asyncio.create_task(self._read(reading), name=f"read {self.topic.name}")

    async def _read(self, reading: Callable[[], Awaitable[bool]]) -> None:
        """Deliver nothing else until `reading` has ended, which says whether to look for more."""
        try:
            progress = await reading()
        except Exception as error:
            progress = await self._pause(error)
        finally:
            self._reading = None
        # Whatever happened during the read (permits, a change of the active consumer, a seek) found
        # it under way and was put off.
        if progress or self._missed:
            self._missed = False
            self.schedule()
        else:
            self._arm_timer()

    async def _fetch_and_hand_out(self, request: ReadRequest) -> bool:
        """Read what is not in memory, then deliver it; False if nothing could be done with it."""
        if request.first < self.topic.core.ledgers.first:
            return True  # dropped before this task began: look again
        if self.read_compacted and self.topic.compacted_before(request.first):
            progress = await self._fetch_compacted(request)
        else:
            entries, message_counts = await self.topic.read(request)
            progress = self._hand_out(
                request.first,
                entries,
                message_counts,
                await self._facts(request.first, len(entries)),
            )
        self._read_succeeded()
        return progress

    async def _pause(self, error: Exception) -> bool:
        """Tell of a delivery that failed, and wait before the next try; True: there will be one.

        An entry that was acknowledged to its producer is never skipped, whatever is wrong with it.
        """
        foreseen = isinstance(error, StorageError | StoreError | FileNotFoundError)
        told = error if foreseen else StorageError(f"a delivery failed: {error!r}")
        names = {"topic": str(self.topic.name), "subscription": self.core.name, "error": str(told)}
        if isinstance(error, StoreError):
            # The file is gone, and the store is unavailable that knows the manifest with the one in
            # its place. Nothing is damaged.
            log.warning("subscription.read_delayed", **names)
            await asyncio.sleep(READ_RETRY_S)
            return True
        log.error("subscription.read_failed", **names)
        if not foreseen:
            self._surprise(error)
        self.topic.context.damage.note(
            "read",
            self._damage_name,
            told,
            bundle=str(self.topic.bundle.name),
            topic=str(self.topic.name),
        )
        self._read_failures += 1
        await asyncio.sleep(
            min(READ_RETRY_MAX_S, READ_RETRY_S * (1 << min(self._read_failures - 1, 10)))
        )
        return True

    def _read_succeeded(self) -> None:
        if self._read_failures:
            self._read_failures = 0
            self.topic.context.damage.clear("read", self._damage_name)

    @property
    def _damage_name(self) -> str:
        return f"{self.topic.name} {self.core.name}"

    async def _fetch_compacted(self, request: ReadRequest) -> bool:
        """Deliver the next surviving entry at or after the request; what compaction removed is
        passed over as acknowledged."""
        found = await self.topic.read_compacted(request)
        facts = await self._facts(found.first, len(found.entries))
        removed = ((request.first, found.first),) if found.first > request.first else ()
        # What compaction took out of a batch travels as an ack set: the one mark that every client
        # obeys.
        self.core.acknowledge(None, removed, found.partial)
        if not found.entries:
            return True
        if self._next_read(len(found.entries)) is None:
            return False  # moves delivery on to `first`; nobody takes it any more
        return self._hand_out(found.first, found.entries, found.message_counts, facts)

    def _metadata(self) -> EntryMetadata | None:
        """Index and broker time of entries, if any consumer takes them."""
        metadata = self._entry_metadata
        if metadata is None or not metadata.for_clients:
            return None
        return (
            metadata
            if any(session.connection.takes_entry_metadata for session in self.sessions())
            else None
        )

    async def _facts(self, first: int, count: int) -> Facts | None:
        """What those consumers get with these entries; None if there are none."""
        metadata = self._metadata() if count else None
        return await metadata.read(first, count) if metadata is not None else None

    def _hand_out(
        self,
        first: int,
        entries: Sequence[memoryview],
        message_counts: Sequence[int],
        facts: Facts | None = None,
    ) -> bool:
        """Send what dispatch decides; False if it could neither deliver anything nor put it aside.

        `facts` are sent along to those who take them.
        """
        if self.topic.frozen or self.disconnecting or self._seeking:
            return False
        deliveries = self.core.dispatch(
            first, message_counts, traits_of(entries, self.core.traits_wanted)
        )
        plain, described = entries, entries
        if facts is not None and self._entry_metadata is not None:
            heads = self._entry_metadata.of(facts, message_counts)
            described = [memoryview(b"".join(parts)) for parts in zip(heads, plain, strict=True)]
        for index, delivery in enumerate(deliveries):
            if facts is not None:
                connection = cast("AttachedConsumer", delivery.consumer).connection
                entries = described if connection.takes_entry_metadata else plain
            try:
                if delivery.scattered is None:
                    self._send(
                        delivery,
                        entries[delivery.first - first : delivery.first - first + delivery.entries],
                    )
                else:
                    self._send(
                        delivery, [entries[ordinal - first] for ordinal in delivery.scattered]
                    )
            except Exception:
                self._take_back(deliveries[index:])
                raise
        if deliveries:
            return True
        # By the time of that decision: what was put aside until later, and is due by now, would
        # look as if it had stayed where it was.
        again = self.core.next_read(READ_ENTRIES_MAX, self._looked_ms)
        return again is not None and again.first != first

    def _take_back(self, unsent: Sequence[Delivery]) -> None:
        """These consumers have been charged for what they did not get, and delivery has passed
        it by: with them all of that is undone."""
        self._expect_return()
        for delivery in unsent:
            cast("AttachedConsumer", delivery.consumer).close_by_broker(None)

    def _send(self, delivery: Delivery, entries: Sequence[memoryview]) -> None:
        session = cast("AttachedConsumer", delivery.consumer)
        self._queue(session, delivery, entries)
        metrics, counters = self.topic.context.metrics, self.topic.core.counters
        size = sum(map(len, entries))
        session.entries_out += delivery.entries
        session.bytes_out += size
        if delivery.redelivery_counts is not None:
            session.messages_redelivered += sum(map(bool, delivery.redelivery_counts))
        metrics.messages_out += delivery.messages
        metrics.bytes_out += size
        counters.messages_out += delivery.messages
        counters.bytes_out += size

    def _queue(
        self, session: AttachedConsumer, delivery: Delivery, entries: Sequence[memoryview]
    ) -> None:
        done, ordinals = 0, delivery.ordinals
        start = delivery.first
        for ledger, low, high in self.topic.core.ledgers.runs(start, ordinals[-1] + 1):
            entry_ids: Sequence[int] = range(low, high + 1)
            if delivery.scattered is not None:
                until = bisect_left(ordinals, start + high + 1 - low, done)
                entry_ids = [ordinal - start + low for ordinal in ordinals[done:until]]
                start += high + 1 - low
            count = len(entry_ids)
            if not count:
                continue
            session.connection.queue_messages(
                session,
                ledger,
                entry_ids,
                entries[done : done + count],
                delivery.redelivery_counts[done : done + count]
                if delivery.redelivery_counts is not None
                else None,
                delivery.ack_sets[done : done + count] if delivery.ack_sets is not None else None,
                delivery.epoch,
            )
            done += count

    def stop(self) -> None:
        """End deliveries for good."""
        if self._read_failures:
            self.topic.context.damage.clear("read", self._damage_name)
        if self._abandoned is not None:
            self._abandoned.cancel()
            self._abandoned = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reading is not None:
            self._reading.cancel()
