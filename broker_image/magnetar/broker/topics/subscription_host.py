"""A subscription in service.

Owns: driving one `topics.Subscription`: fetch the entries it asks for, send what it dispatches,
write what it acknowledges. Imports: topics, ports. Invariants: at most one fetch is under way per
subscription; nothing is sent while the bundle is frozen; after `read_batch_entries_max` entries
other subscriptions get their turn; acknowledgements are confirmed only after their cursor record is
durable under this owner's claim; a failed delivery is reported and tried again after a pause:
consumers that were charged for messages which were not sent reconnect for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from magnetar.broker.ports import AttachedConsumer, ClientConnection, ServedTopic
from magnetar.broker.topics.awaited_return import AwaitedReturn
from magnetar.broker.topics.delivery_failures import DeliveryFailures
from magnetar.broker.topics.entry_metadata import EntryMetadata, Facts
from magnetar.broker.topics.traffic import SubscriptionTraffic
from magnetar.broker.topics.traits import traits_of
from magnetar.topics.dispatch.base import Delivery, ReadRequest
from magnetar.topics.subscription import Subscription

if TYPE_CHECKING:
    from magnetar.broker.topics.message_sender import MessageSender
    from magnetar.hosting.advertised import Successor

READ_ENTRIES_MAX = 500
READS_MAX = 50
"""Of one turn: redelivery of every second entry needs a read for each."""
WAKEUP_MIN_S, WAKEUP_MAX_S = 0.005, 60.0
"""Bounded, because the wall clock, by which deliveries fall due, may be set forward."""


class SubscriptionHost:
    """Cursor and delivery of one subscription of a topic that is served here."""

    def __init__(
        self,
        topic: ServedTopic,
        core: Subscription,
        sender: MessageSender,
        metadata: EntryMetadata | None,
    ) -> None:
        """`metadata`: what consumers that take entry metadata get, None if the settings disable
        it."""
        self.topic, self.core, self._sender = topic, core, sender
        self._entry_metadata = metadata if metadata is not None and metadata.for_clients else None
        self.recorded = False  # whether the log is known to have it
        self._failures = DeliveryFailures(topic, core.name)
        self._looked_ms = 0
        self._scheduled = False
        self._seeking, self.disconnecting = 0, False
        self._missed = False
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._return = AwaitedReturn(self.drop_if_unused)
        self.read_compacted = False  # as `core.reads_view`; looked at for every read
        self.traffic = SubscriptionTraffic(topic, core)
        self.unused_since_ms: int | None = None

    def sessions(self) -> list[AttachedConsumer]:
        """Consumers connected now, in order of arrival."""
        return cast("list[AttachedConsumer]", list(self.core.consumers))

    def detach(self, session: AttachedConsumer) -> None:
        """A consumer has left; the others get what it held. A reader's subscription is dropped
        with its last consumer."""
        self.core.remove_consumer(session)
        self.traffic.left(session)
        # both were in use until now, even if no expiry check ever saw it
        self.unused_since_ms = self.topic.unused_since_ms = None
        if not self.core.connected:
            self.read_compacted = self.core.reads_view = False
            self.drop_if_unused()
        self.schedule()

    def attached(self) -> None:
        self._return.cancel()
        self.end_of_topic()

    def send_away(self) -> None:
        """Close the consumers whose delivery is about to begin elsewhere (of Failover the active
        one); they reconnect at once.

        A reader's subscription waits for its consumer: a client that seeks by time does not know
        its new position.
        """
        self._expect_return()
        active = self.core.active
        for session in self.sessions():
            if active is None or active.handle is session:
                session.close_by_broker(None)

    def stop_delivery(self) -> None:
        """The consumers are about to be disconnected; their acknowledgements are still taken."""
        self.disconnecting = True

    def disconnect_consumers(self, successor: Successor | None) -> list[ClientConnection]:
        """Have the consumers reconnect; their acknowledgements are still taken. Returns their
        connections."""
        sessions = self.sessions()
        for session in sessions:
            session.part(successor)
        return [session.connection for session in sessions]

    def _expect_return(self) -> None:
        if not self.core.durable:
            self._return.expect(self.topic.context.settings.reader_return_s)

    def drop_if_unused(self) -> None:
        """A reader's subscription must not outlive a failed SUBSCRIBE, nor a seek after which its
        consumer does not reconnect."""
        if self.core.durable or self.core.connected or self._return.under_way:
            return
        self.topic.drop_subscription(self)

    def end_of_topic(self) -> None:
        """Notify the consumers of a terminated topic once they have acknowledged everything."""
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
        """Individual acknowledgements; `confirmed` runs when they are durable."""
        before = self.core.backlog
        unblocked = self.core.acknowledge(session, ranges, partial)
        self.traffic.acknowledging = session
        session.entries_acknowledged += before - self.core.backlog
        self._acknowledged(unblocked, confirmed)

    def acknowledge_cumulative(
        self,
        session: AttachedConsumer,
        ordinal: int,
        mask: int | None,
        confirmed: Callable[[], None] | None,
    ) -> None:
        """Everything up to `ordinal`; `confirmed` runs when that is durable."""
        before = self.core.backlog
        unblocked = self.core.acknowledge_cumulative(session, ordinal, mask)
        self.traffic.acknowledging = session
        session.entries_acknowledged += before - self.core.backlog
        self._acknowledged(unblocked, confirmed)

    def acknowledge_by_broker(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge what expired, was skipped or evicted."""
        self._acknowledged(self.core.acknowledge(None, ranges), None)

    def _acknowledged(self, unblocked: bool, confirmed: Callable[[], None] | None) -> None:
        if confirmed is not None:
            self.topic.bundle.confirm_cursor(self, confirmed)
        elif self.core.durable and self.core.cursor.dirty:
            self.topic.bundle.cursor_dirty(self)
        if self.topic.watermarks is not None:
            self.topic.watermarks.acknowledged(self)
        if unblocked:
            self.schedule()
        if self.topic.ended:
            self.end_of_topic()

    # --- delivery ---------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Deliver what can be delivered, once, in this turn of the loop."""
        if not self._scheduled and self.core.connected:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Deliver nothing during a SEEK: its client may take messages that leave before its
        consumer is closed for those behind the new position."""
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
            self._failures.surprise(error)
        if self._reading is not None:
            self._missed = True
        else:
            try:
                self._deliver_what_is_due()
            except Exception as error:
                self._begin_reading(partial(self._failures.pause, error))
        try:
            self._arm_timer()
        except Exception as error:
            self._failures.surprise(error)

    def _notify_active(self) -> None:
        for session, active in self.core.advance(self.topic.context.clock.wall_ms()):
            cast("AttachedConsumer", session).notify_active(active)

    def _arm_timer(self) -> None:
        """Wake up for the next entry that becomes due by time."""
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
        # One turn's messages are written at its end: only then a connection's buffer may be full.
        for _ in range(READS_MAX):
            if entries_left <= 0 or bytes_left <= 0:
                break
            request = self._next_read(min(entries_left, READ_ENTRIES_MAX))
            if request is None:
                return
            reader = self.topic.reader
            compacted = self.read_compacted and reader.compacted_before(request.first)
            found = None if compacted else reader.tail(request)
            if found is None:
                self._begin_reading(partial(self._fetch_and_hand_out, request))
                return
            entries, message_counts = found
            facts = None
            if self._entry_metadata is not None and (metadata := self._metadata()) is not None:
                facts = metadata.at_tail(request.first, len(entries))
            delivered = self._hand_out(request.first, entries, message_counts, facts)
            self._failures.clear()
            if not delivered:
                return
            entries_left -= len(entries)
            bytes_left -= sum(map(len, entries))
        self.schedule()

    def _next_read(self, limit_entries: int) -> ReadRequest | None:
        self._looked_ms = self.topic.context.clock.wall_ms()
        throttles = self.topic.throttles
        if throttles is not None and not (limit_entries := throttles.room(self, limit_entries)):
            return None
        return self.core.next_read(limit_entries, self._looked_ms)

    def _begin_reading(self, reading: Callable[[], Awaitable[bool]]) -> None:
        self._reading = asyncio.create_task(self._read(reading), name=f"read {self.topic.name}")

    async def _read(self, reading: Callable[[], Awaitable[bool]]) -> None:
        """Deliver nothing else until `reading` has ended; it returns whether to look for more."""
        try:
            progress = await reading()
        except Exception as error:
            progress = await self._failures.pause(error)
        finally:
            self._reading = None
        # Permits, a change of the active consumer or a seek during the read did not start another.
        if progress or self._missed:
            self._missed = False
            self.schedule()
        else:
            self._arm_timer()

    async def _fetch_and_hand_out(self, request: ReadRequest) -> bool:
        """Read entries that are not in memory, then deliver them; False if none was deliverable."""
        if request.first < self.topic.core.ledgers.start(self.read_compacted):
            return True  # dropped before this task began: look again
        if self.read_compacted and self.topic.reader.compacted_before(request.first):
            progress = await self._fetch_compacted(request)
        else:
            entries, message_counts = await self.topic.reader.read(request)
            progress = self._hand_out(
                request.first,
                entries,
                message_counts,
                await self._facts(request.first, len(entries)),
            )
        self._failures.clear()
        return progress

    async def _fetch_compacted(self, request: ReadRequest) -> bool:
        """Deliver the next surviving entry at or after the request; the entries that compaction
        removed are acknowledged."""
        found = await self.topic.reader.read_compacted(request)
        facts = await self._facts(found.first, len(found.entries), found.append_times)
        removed = ((request.first, found.first),) if found.first > request.first else ()
        # Messages that compaction removed from a batch are marked in its ack set, which every
        # client obeys.
        self._acknowledged(self.core.acknowledge(None, removed, found.partial), None)
        if not found.entries:
            return True
        if self._next_read(len(found.entries)) is None:
            return False  # `_next_read` moved delivery on to `first`; no consumer has permits now
        return self._hand_out(found.first, found.entries, found.message_counts, facts)

    def _metadata(self) -> EntryMetadata | None:
        """Index and broker time of entries, if any consumer takes them."""
        if self._entry_metadata is not None and any(
            session.connection.takes_entry_metadata for session in self.sessions()
        ):
            return self._entry_metadata
        return None

    async def _facts(self, first: int, count: int, taken: Sequence[int] = ()) -> Facts | None:
        """What those consumers get with these entries; None without such consumers."""
        metadata = self._metadata() if count else None
        return await metadata.read(first, count, taken) if metadata is not None else None

    def _hand_out(
        self,
        first: int,
        entries: Sequence[memoryview],
        message_counts: Sequence[int],
        facts: Facts | None = None,
    ) -> bool:
        """Send what dispatch decides; False if it neither delivered nor deferred anything.

        Consumers that take entry metadata get `facts` with the entries.
        """
        if self.topic.frozen or self.disconnecting or self._seeking:
            return False
        deliveries = self.core.dispatch(
            first, message_counts, traits_of(entries, self.core.traits_wanted)
        )
        described = entries
        if facts is not None and self._entry_metadata is not None:
            heads = self._entry_metadata.of(facts, message_counts)
            described = [memoryview(b"".join(parts)) for parts in zip(heads, entries, strict=True)]
        for index, delivery in enumerate(deliveries):
            session: AttachedConsumer = delivery.consumer  # type: ignore[assignment]
            session.sent_ms = self._looked_ms
            session.first_sent_ms = session.first_sent_ms or self._looked_ms
            sent = entries
            if facts is not None:
                sent = described if session.connection.takes_entry_metadata else entries
            try:
                self._sender.send(delivery, first, sent)
            except Exception:
                self._take_back(deliveries[index:])
                raise
        if deliveries:
            if (throttles := self.topic.throttles) is not None:
                throttles.delivered(self, deliveries, first, entries)
            return True
        # By the time of that decision: an entry that was deferred, and is due by now, would look as
        # if it had not been.
        again = self.core.next_read(READ_ENTRIES_MAX, self._looked_ms)
        return again is not None and again.first != first

    def _take_back(self, unsent: Sequence[Delivery]) -> None:
        """Close consumers that were charged for messages which were not sent: their redelivery
        undoes the charge."""
        self._expect_return()
        for delivery in unsent:
            cast("AttachedConsumer", delivery.consumer).close_by_broker(None)

    def stop(self) -> None:
        """End deliveries permanently."""
        self._failures.clear()
        self._return.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reading is not None:
            self._reading.cancel()
