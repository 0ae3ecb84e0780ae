"""One subscription of a topic.

Owns: its cursor, its consumers and the dispatcher of its current type. Imports: cursor, dispatch
and the dispatchers, errors. Pure. Source: Pulsar's SUBSCRIBE, FLOW, ACK, REDELIVER and SEEK.
Invariants: all connected consumers have one type; with nobody connected there is no dispatcher, so
that the next consumer may bring another type and delivery begins at the mark-delete again.
Consumers are known by an opaque handle.

The host's loop: after every event that may make delivery possible, `next_read` -> fetch ->
`dispatch` -> send, until `next_read` is None. Anything may happen between `next_read` and
`dispatch`: what is not due any more is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from magnetar.errors import ConsumerBusy, InvalidRequest, NotAllowed
from magnetar.topics.cursor import DELTA_BYTES_MAX, Cursor
from magnetar.topics.dispatch.base import (
    Consumer,
    CursorView,
    Delivery,
    Dispatcher,
    DispatchLimits,
    EntryTraits,
    KeySharedPolicy,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
)
from magnetar.topics.dispatch.deferred import DeliveryView
from magnetar.topics.dispatch.exclusive import ExclusiveDispatcher
from magnetar.topics.dispatch.failover import FailoverDispatcher
from magnetar.topics.dispatch.key_shared import KeySharedDispatcher
from magnetar.topics.dispatch.shared import SharedDispatcher
from magnetar.topics.state import CursorDelta, CursorState

PROPERTIES_BYTES_MAX = 128 << 10
"""A subscription's properties as JSON, which is how the log has them."""

_DISPATCHERS: Mapping[SubscriptionType, Callable[[CursorView, DispatchLimits, str], Dispatcher]] = (
    MappingProxyType(
        {
            dispatcher.kind: dispatcher
            for dispatcher in (
                ExclusiveDispatcher,
                SharedDispatcher,
                FailoverDispatcher,
                KeySharedDispatcher,
            )
        }
    )
)


def check_properties(subscription: str, properties: Mapping[str, str]) -> None:
    """Raises NotAllowed if they would not fit into a record of the log, however they are written
    there."""
    size = len(json.dumps(dict(properties)))
    if size > PROPERTIES_BYTES_MAX:
        raise NotAllowed(
            f"properties of subscription {subscription!r} have {size} bytes; at most "
            f"{PROPERTIES_BYTES_MAX} are kept: make them smaller"
        )


class Subscription:
    """Cursor and delivery of one subscription. A non-durable one (a reader's) lives in memory,
    until its last consumer leaves."""

    def __init__(
        self,
        name: str,
        durable: bool,
        cursor: Cursor,
        *,
        topic: str = "",
        limits: DispatchLimits | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.durable = durable
        self._topic = topic
        self.cursor = cursor
        self._properties = dict(properties or {})
        self._limits = limits or DispatchLimits()
        self._consumers: dict[Hashable, Consumer] = {}
        self._dispatcher: Dispatcher | None = None
        self._view: DeliveryView | None = None
        self._properties_changed = True
        self.messages_out = 0

    # --- consumers --------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether any consumer is connected."""
        return bool(self._consumers)

    @property
    def consumers(self) -> Mapping[Hashable, Consumer]:
        """Connected consumers by handle; read only."""
        return MappingProxyType(self._consumers)

    @property
    def kind(self) -> SubscriptionType | None:
        """Type of the connected consumers, or None."""
        return self._dispatcher.kind if self._dispatcher is not None else None

    @property
    def active(self) -> Consumer | None:
        """The consumer that is served, of an Exclusive or Failover subscription."""
        return self._dispatcher.active if self._dispatcher is not None else None

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        """Hashes by consumer's handle, as inclusive ranges, of a Key_Shared subscription."""
        return self._dispatcher.hash_ranges() if self._dispatcher is not None else {}

    @property
    def unacknowledged(self) -> int:
        """Messages delivered and not acknowledged (Shared and Key_Shared; else 0)."""
        return self._dispatcher.unacknowledged if self._dispatcher is not None else 0

    @property
    def delayed_entries(self) -> int:
        """Entries that were read and wait for their time."""
        return self._dispatcher.delayed_entries if self._dispatcher is not None else 0

    @property
    def blocked(self) -> bool:
        """Whether nobody gets anything, because too much is unacknowledged."""
        return self._dispatcher is not None and self._dispatcher.blocked

    @property
    def dirty(self) -> bool:
        """Whether `take_delta` would return something (of a durable subscription)."""
        return self.durable and (self._properties_changed or self.cursor.dirty)

    @property
    def placed(self) -> bool:
        """Whether the log has where it begins (its creation, or the last seek), and its
        properties; acknowledgements since may be on their way."""
        return not (self._properties_changed or self.cursor.reset_unwritten)

    def limit(self, limits: DispatchLimits) -> None:
        """Other limits from now on (a policy has changed)."""
        if limits != self._limits:
            self._limits = limits
            if self._dispatcher is not None:
                self._dispatcher.limit(limits)

    @property
    def backlog(self) -> int:
        """Entries not acknowledged."""
        return self.cursor.backlog

    @property
    def properties(self) -> Mapping[str, str]:
        """User's properties of the subscription; read only."""
        return MappingProxyType(self._properties)

    def replace_properties(self, properties: Mapping[str, str]) -> None:
        """Set the properties; the next delta carries them. Raises NotAllowed if they are too
        large."""
        check_properties(self.name, properties)
        self._properties = dict(properties)
        self._properties_changed = True

    def add_consumer(
        self,
        handle: Hashable,
        kind: SubscriptionType,
        *,
        name: str = "",
        priority: int = 0,
        epoch: int = 0,
        key_shared: KeySharedPolicy | None = None,
    ) -> Consumer:
        """Connect a consumer, with 0 permits.

        Raises ConsumerBusy if the subscription is taken or has consumers of another type,
        ConsumerAssignError if there are no hashes for it.
        """
        assert handle not in self._consumers, handle
        if self._dispatcher is not None and self._dispatcher.kind is not kind:
            raise ConsumerBusy(
                f"subscription {self.name!r} has {self._dispatcher.kind.name} consumers; subscribe "
                f"with that type, not {kind.name}"
            )
        dispatcher = (
            self._dispatcher
            if self._dispatcher is not None
            else _DISPATCHERS[kind](
                self.cursor if self._view is None else self._view, self._limits, self._topic
            )
        )
        consumer = Consumer(handle, name, priority, epoch, key_shared or KeySharedPolicy())
        dispatcher.add(consumer)
        self._dispatcher = dispatcher
        self._consumers[handle] = consumer
        return consumer

    def remove_consumer(self, handle: Hashable) -> None:
        """Disconnect a consumer.

        What it held is delivered again. An unknown handle is ignored (its connection may be closing
        twice).
        """
        consumer = self._consumers.pop(handle, None)
        if consumer is None:
            return
        assert self._dispatcher is not None
        self._dispatcher.remove(consumer)
        if not self._consumers:
            self._dispatcher = None

    def flow(self, handle: Hashable, permits: int) -> None:
        """FLOW: so many messages more. Raises InvalidRequest for fewer than 1. An unknown handle
        is ignored."""
        if permits < 1:
            raise InvalidRequest(f"messagePermits: {permits} is out of range; send at least 1")
        consumer = self._consumers.get(handle)
        if consumer is not None and self._dispatcher is not None:
            self._dispatcher.flow(consumer, permits)

    def pause(self, handle: Hashable) -> None:
        """The consumer's connection takes no more: others get their entries concurrently."""
        consumer = self._consumers.get(handle)
        if consumer is not None:
            consumer.paused = True

    def resume(self, handle: Hashable) -> None:
        """The consumer's connection takes more again."""
        consumer = self._consumers.get(handle)
        if consumer is not None and self._dispatcher is not None:
            consumer.paused = False
            self._dispatcher.flow(consumer, 0)

    # --- acknowledgements -------------------------------------------------------------------------

    def crowded_out(self, ranges: Iterable[tuple[int, int]], batches: Iterable[int]) -> str | None:
        """Why it does not take acknowledgements of these `ranges` of ordinals [start, end), and of
        messages of these `batches`; None if it does.

        It has far more holes than its consumers can have made by what they were given. Asked of
        individual acknowledgements, in a transaction too, before anything changes; a cumulative one
        only fills holes.
        """
        cursor = self.cursor
        if not cursor.crowded:
            return None
        if all(cursor.admits(*span) for span in ranges) and all(
            map(cursor.admits_partial, batches)
        ):
            return None
        return (
            f"subscription {self.name!r} of {self._topic} has {cursor.range_count} acknowledged "
            f"ranges and {len(cursor.partial)} partly "
            "acknowledged batches, more than can come of what was delivered: acknowledge the "
            "oldest messages first"
        )

    def acknowledge(
        self,
        handle: Hashable | None,
        ranges: Iterable[tuple[int, int]],
        partial: Iterable[tuple[int, int]] = (),
    ) -> bool:
        """Acknowledge entries: `ranges` of ordinals [start, end), and `partial` (ordinal, mask of
        messages still unacknowledged).

        `handle` None is the broker itself (markers, expiry, eviction). What does not exist is
        ignored, and what a transaction holds. True if delivery became possible by a lifted block:
        look at `next_read` again.
        """
        if self._view is not None:
            ranges, partial = self._view.acknowledgeable(ranges, partial)
            self._view.changed(ranges, partial)
        return self._acknowledge(handle, ranges, partial)

    def _acknowledge(
        self,
        handle: Hashable | None,
        ranges: Iterable[tuple[int, int]],
        partial: Iterable[tuple[int, int]],
    ) -> bool:
        cursor, dispatcher = self.cursor, self._dispatcher
        consumer = self._consumers.get(handle) if handle is not None else None
        saturated = cursor.saturated
        unblocked = False
        for start, end in ranges:
            start, end = max(start, cursor.mark_delete), min(end, cursor.end)
            if start < end and cursor.acknowledge(start, end) and dispatcher is not None:
                unblocked |= dispatcher.acknowledged(consumer, start, end)
        for ordinal, mask in partial:
            if cursor.is_acknowledged(ordinal) or ordinal >= cursor.end:
                continue
            remaining = cursor.acknowledge_partial(ordinal, mask)
            if self._view is not None and ordinal in self._view.messages:
                remaining = self._view.remaining(ordinal)
            if dispatcher is None:
                continue
            if remaining:
                unblocked |= dispatcher.acknowledged_partly(
                    consumer, ordinal, remaining.bit_count()
                )
            elif not cursor.is_acknowledged(ordinal):
                unblocked |= dispatcher.deferred(consumer, ordinal, ordinal + 1)
            else:
                unblocked |= dispatcher.acknowledged(consumer, ordinal, ordinal + 1)
        return unblocked or (saturated and not cursor.saturated)

    def acknowledge_cumulative(
        self, handle: Hashable, ordinal: int, mask: int | None = None
    ) -> bool:
        """Acknowledge everything up to and including `ordinal`; with `mask`, of that entry only the
        messages whose bit is 0.

        Ignored on Shared and Key_Shared, as the protocol has it (the request still succeeds), and
        from a consumer that has left. Returns as `acknowledge`.
        """
        if (
            self.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
            or handle not in self._consumers
        ):
            return False
        if mask is None:
            return self.acknowledge(handle, ((self.cursor.mark_delete, ordinal + 1),))
        return self.acknowledge(handle, ((self.cursor.mark_delete, ordinal),), ((ordinal, mask),))

    def redeliver(
        self, handle: Hashable, ranges: Sequence[tuple[int, int]] | None = None, epoch: int = 0
    ) -> None:
        """REDELIVER: the entries in `ranges`, or all that the consumer holds (None).

        Exclusive rewinds and takes over a higher `epoch`.
        """
        consumer = self._consumers.get(handle)
        if consumer is not None and self._dispatcher is not None:
            self._dispatcher.redeliver(consumer, ranges, epoch)

    def held(self, handle: Hashable) -> list[int]:
        """Ordinals of the entries that a consumer of a Shared or Key_Shared subscription holds,
        in order."""
        consumer = self._consumers[handle]
        return [
            *sorted(consumer.held),
            *(ordinal for start, end in consumer.pending for ordinal in range(start, end)),
        ]

    def reset(self, ordinal: int, mask: int | None = None) -> None:
        """SEEK: `ordinal` is the next entry to deliver (`mask`: which of its messages are).

        Permits, pending entries and redelivery counts are dropped; the host disconnects the
        consumers, and they come back.
        """
        self.cursor.reset(ordinal, mask)
        if self._view is not None:
            self._view.moved()
        if self._dispatcher is not None:
            self._dispatcher.rewind()

    def trim(self, ordinal: int) -> None:
        """The entries below `ordinal` are about to be dropped, whoever holds them."""
        if self._view is not None:
            self._view.forget_below(ordinal)
            self._look_through(self._view or None)
        self.acknowledge(None, ((self.cursor.mark_delete, ordinal),))

    # --- pending acknowledgements -----------------------------------------------------------------

    @property
    def deferred(self) -> DeliveryView | None:
        """What transactions hold, if anything; read only."""
        return self._view

    def defer(
        self,
        handle: Hashable | None,
        ranges: Iterable[tuple[int, int]],
        messages: Iterable[tuple[int, int, int]] = (),
    ) -> bool:
        """A transaction of `handle` holds these entries, and these `messages` (ordinal, mask,
        messages in the batch): nobody gets them.

        Neither must be acknowledged. Returns as `acknowledge`.
        """
        view = self._view if self._view is not None else DeliveryView(self.cursor)
        self._look_through(view)
        dispatcher, unblocked = self._dispatcher, False
        consumer = self._consumers.get(handle) if handle is not None else None
        for start, end in ranges:
            view.defer(start, end)
            if dispatcher is not None:
                unblocked |= dispatcher.deferred(consumer, start, end)
        for ordinal, mask, size in messages:
            view.defer_messages(ordinal, mask, size)
            remaining = view.remaining(ordinal)
            if dispatcher is not None and remaining:
                unblocked |= dispatcher.acknowledged_partly(
                    consumer, ordinal, remaining.bit_count()
                )
            elif dispatcher is not None:
                unblocked |= dispatcher.deferred(consumer, ordinal, ordinal + 1)
        return unblocked

    def release(
        self,
        ranges: Sequence[tuple[int, int]],
        messages: Sequence[tuple[int, int]] = (),
        *,
        again: bool = True,
    ) -> None:
        """The transaction lets go of what it held: `again` delivers it again. What has been
        dropped concurrently is passed over."""
        view = self._view
        if view is None:
            return
        for start, end in ranges:
            view.release(start, end)
        found = [(ordinal, mask) for ordinal, mask in messages if ordinal in view.messages]
        for ordinal, mask in found:
            view.release_messages(ordinal, mask)
        self._look_through(view or None)
        if again and self._dispatcher is not None:
            for start, end in (*ranges, *((ordinal, ordinal + 1) for ordinal, _ in found)):
                self._dispatcher.returned(start, end)

    def settle(
        self, ranges: Sequence[tuple[int, int]], partial: Sequence[tuple[int, int]] = ()
    ) -> bool:
        """The transaction has committed: what it held, and has let go of, is acknowledged.
        Arguments and result as of `acknowledge`."""
        if self._view is not None:
            self._view.changed(ranges, partial)
        return self._acknowledge(None, ranges, partial)

    def _look_through(self, view: DeliveryView | None) -> None:
        self._view = view
        if self._dispatcher is not None:
            self._dispatcher.cursor = view if view is not None else self.cursor

    # --- delivery ---------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        """Let time pass (`now_ms`: wall clock); the handles to be told now whether they are
        active."""
        return self._dispatcher.advance(now_ms) if self._dispatcher is not None else ()

    @property
    def traits_wanted(self) -> TraitsWanted:
        """Of which entries `dispatch` wants the traits."""
        return self._dispatcher.traits_wanted if self._dispatcher is not None else TraitsWanted.NONE

    def next_read(self, limit_entries: int, now_ms: int = 0) -> ReadRequest | None:
        """Entries to fetch for delivery now, at most `limit_entries`; None if there are none or
        nobody may take them.

        `now_ms` is wall-clock time; it decides what is due.
        """
        return (
            self._dispatcher.next_read(limit_entries, now_ms)
            if self._dispatcher is not None
            else None
        )

    def next_wakeup_ms(self) -> int | None:
        """When to look at `next_read` again although nothing happened; None if never."""
        return self._dispatcher.next_wakeup_ms() if self._dispatcher is not None else None

    def dispatch(
        self,
        first: int,
        message_counts: Sequence[int],
        traits: Sequence[EntryTraits | None] | None = None,
    ) -> list[Delivery]:
        """Hand out entries first, first+1, ....

        `message_counts` has the messages of each (>= 1), `traits` what `traits_wanted` asks for.
        What is left over is read again.
        """
        if self._dispatcher is None:
            return []
        deliveries = self._dispatcher.dispatch(first, message_counts, traits)
        for delivery in deliveries:
            self.messages_out += delivery.messages
        return deliveries

    # --- the log ----------------------------------------------------------------------------------

    def take_delta(self, room_bytes: int = DELTA_BYTES_MAX) -> CursorDelta | None:
        """What the log does not hold yet of a durable subscription, as `Cursor.take_delta`; None
        if nothing, or if it is not durable."""
        if not self.durable:
            return None
        delta = self.cursor.take_delta(room_bytes)
        if self._properties_changed:
            delta = replace(
                delta or CursorDelta(self.cursor.mark_delete_position),
                properties=dict(self._properties),
            )
            self._properties_changed = False
        return delta

    def put_back(self, delta: CursorDelta) -> None:
        """The delta that was taken last could not be written."""
        self.cursor.put_back(delta)
        self._properties_changed = self._properties_changed or delta.properties is not None

    def apply_delta(self, delta: CursorDelta) -> None:
        """Replay one record of the log."""
        self.cursor.apply_delta(delta)
        if self._view is not None:
            self._view.moved()
        if delta.properties is not None:
            self._properties = dict(delta.properties)
        self._properties_changed = False

    def to_state(self) -> CursorState:
        """Everything, for a checkpoint."""
        state = self.cursor.to_state()
        return CursorState(state.mark_delete, state.ranges, state.partial, dict(self._properties))
