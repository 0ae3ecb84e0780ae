"""One subscription of a topic.

Owns: its cursor, its consumers and the dispatcher of their type. Imports: acknowledgements,
attachment, cursor, dispatch, errors. Pure. Source: Pulsar's SUBSCRIBE, FLOW, ACK, REDELIVER and
SEEK. Invariants: consumers attach as `attachment` allows; without consumers nothing is read, and
delivery begins at the mark-delete again. Consumers are known by an opaque handle.

The host's loop: after every event that may make delivery possible, `next_read` -> fetch ->
`dispatch` -> send, until `next_read` is None. Anything may happen between `next_read` and
`dispatch`: entries that are not due any more are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from magnetar.errors import ConsumerBusy, InvalidRequest, NotAllowed
from magnetar.topics.acknowledgements import Acknowledgements
from magnetar.topics.attachment import ATTACHMENTS, Attachment, AttachmentEvent
from magnetar.topics.cursor import DELTA_BYTES_MAX, Cursor
from magnetar.topics.dispatch.base import (
    Consumer,
    CursorView,
    Delivery,
    DispatchLimits,
    EntryTraits,
    KeySharedPolicy,
    Postponed,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
)
from magnetar.topics.dispatch.deferred import DeliveryView
from magnetar.topics.dispatch.dispatcher import Dispatcher
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
    """Raises NotAllowed if they do not fit into a record of the log, in any encoding of it."""
    size = len(json.dumps(dict(properties)))
    if size > PROPERTIES_BYTES_MAX:
        raise NotAllowed(
            f"properties of subscription {subscription!r} have {size} bytes; at most "
            f"{PROPERTIES_BYTES_MAX} are kept: make them smaller"
        )


def _busy(subscription: str, kind: SubscriptionType, wanted: SubscriptionType) -> ConsumerBusy:
    if wanted is kind:
        return ConsumerBusy(
            "Exclusive consumer is already connected; close it first or subscribe as Shared or "
            "Failover"
        )
    return ConsumerBusy(
        f"subscription {subscription!r} has {kind.name} consumers; subscribe with that type, not "
        f"{wanted.name}"
    )


class Subscription:
    """Cursor and delivery of one subscription. A non-durable one is a reader's."""

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
        self._attachment = ATTACHMENTS.initial
        self._dispatcher: Dispatcher = ExclusiveDispatcher(cursor, self._limits, topic)
        self._acknowledgements = Acknowledgements(cursor, self._dispatcher, self._consumers)
        self._properties_changed = True
        self.messages_out = 0
        self.reads_view = False  # the compacted view, which has entries that the topic has dropped

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
        return self._dispatcher.kind if self._consumers else None

    @property
    def active(self) -> Consumer | None:
        """The consumer that is served, of an Exclusive or Failover subscription."""
        return self._dispatcher.active

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        """Hashes by consumer's handle, as inclusive ranges, of a Key_Shared subscription."""
        return self._dispatcher.hash_ranges()

    @property
    def unacknowledged(self) -> int:
        """Messages delivered and not acknowledged (Shared and Key_Shared; else 0)."""
        return self._dispatcher.unacknowledged.messages

    @property
    def outstanding(self) -> bool:
        """Whether a consumer was given something that is not acknowledged."""
        return self._dispatcher.outstanding

    @property
    def postponed(self) -> Postponed:
        """How many entries were read and are to be delivered later."""
        return self._dispatcher.postponed

    @property
    def blocked(self) -> bool:
        """Whether no consumer gets anything, because too much is unacknowledged."""
        return self._dispatcher.unacknowledged.blocked

    @property
    def dirty(self) -> bool:
        """Whether `take_delta` would return something (of a durable subscription)."""
        return self.durable and (self._properties_changed or self.cursor.dirty)

    @property
    def placed(self) -> bool:
        """Whether the log has its start (creation, or the last seek) and its properties."""
        return not (self._properties_changed or self.cursor.reset_unwritten)

    def limit(self, limits: DispatchLimits) -> None:
        """Apply other limits: a policy has changed."""
        if limits != self._limits:
            self._limits = limits
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
        attachment = ATTACHMENTS.after(self._attachment, AttachmentEvent[kind.name])
        if attachment is None:
            raise _busy(self.name, self._dispatcher.kind, kind)
        dispatcher = self._dispatcher if self._consumers else self._dispatcher_of(kind)
        consumer = Consumer(handle, name, priority, epoch, key_shared or KeySharedPolicy())
        dispatcher.add(consumer)
        self._attach(attachment, dispatcher)
        self._consumers[handle] = consumer
        return consumer

    def _dispatcher_of(self, kind: SubscriptionType) -> Dispatcher:
        return _DISPATCHERS[kind](self._acknowledgements.visible, self._limits, self._topic)

    def _attach(self, attachment: Attachment, dispatcher: Dispatcher) -> None:
        self._attachment = attachment
        self._dispatcher = self._acknowledgements.dispatcher = dispatcher

    def remove_consumer(self, handle: Hashable) -> None:
        """Disconnect a consumer; its entries are delivered again. An unknown handle is ignored: its
        connection may close twice."""
        consumer = self._consumers.pop(handle, None)
        if consumer is None:
            return
        left = AttachmentEvent.LEFT if self._consumers else AttachmentEvent.LAST_LEFT
        attachment = ATTACHMENTS.after(self._attachment, left)
        assert attachment is not None, (self._attachment, left)
        self._dispatcher.remove(consumer)
        dispatcher = self._dispatcher
        if attachment is Attachment.DETACHED:
            # Without a consumer it reads nothing.
            dispatcher = self._dispatcher_of(SubscriptionType.EXCLUSIVE)
        self._attach(attachment, dispatcher)

    def flow(self, handle: Hashable, permits: int) -> None:
        """FLOW: `permits` more messages. Raises InvalidRequest for fewer than 1. An unknown handle
        is ignored."""
        if permits < 1:
            raise InvalidRequest(f"messagePermits: {permits} is out of range; send at least 1")
        consumer = self._consumers.get(handle)
        if consumer is not None:
            self._dispatcher.flow(consumer, permits)

    def pause(self, handle: Hashable) -> None:
        """The consumer's connection takes no more; other consumers are still served."""
        consumer = self._consumers.get(handle)
        if consumer is not None:
            consumer.paused = True

    def resume(self, handle: Hashable) -> None:
        """The consumer's connection takes more again."""
        consumer = self._consumers.get(handle)
        if consumer is not None:
            consumer.paused = False
            self._dispatcher.flow(consumer, 0)

    # --- acknowledgements -------------------------------------------------------------------------

    def crowded_out(self, ranges: Iterable[tuple[int, int]], batches: Iterable[int]) -> str | None:
        """Why it refuses acknowledgements of these `ranges` of ordinals [start, end), and of
        messages of these `batches`; None if it takes them.

        It refuses while it has far more holes than delivery can have caused. Ask for individual
        acknowledgements, pending ones too, before anything changes; a cumulative one only fills
        holes.
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
            f"ranges and {len(cursor.partial)} partly acknowledged batches, more than can come of "
            "what was delivered: acknowledge the oldest messages first"
        )

    def acknowledge(
        self,
        handle: Hashable | None,
        ranges: Iterable[tuple[int, int]],
        partial: Iterable[tuple[int, int]] = (),
    ) -> bool:
        """Acknowledge entries: `ranges` of ordinals [start, end), and `partial` (ordinal, mask of
        messages still unacknowledged).

        `handle` None is the broker itself (markers, expiry, eviction). Entries that do not exist,
        or that a transaction holds, are ignored. True if a lifted block made delivery possible: ask
        `next_read` again.
        """
        view = self._acknowledgements.view
        if view is not None:
            ranges, partial = view.acknowledgeable(ranges, partial)
            view.changed(ranges, partial)
        return self._acknowledgements.acknowledge(handle, ranges, partial)

    def acknowledge_cumulative(
        self, handle: Hashable, ordinal: int, mask: int | None = None
    ) -> bool:
        """Acknowledge everything up to and including `ordinal`; with `mask`, of that entry only the
        messages whose bit is 0.

        Ignored on Shared and Key_Shared (the request still succeeds, as in Pulsar), and from a
        consumer that has left. Returns as `acknowledge`.
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
        """REDELIVER: the entries in `ranges`, or all that the consumer holds (None). Exclusive
        rewinds and takes a higher `epoch`."""
        consumer = self._consumers.get(handle)
        if consumer is not None:
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
        consumers, which reconnect.
        """
        self.cursor.reset(ordinal, mask)
        if self.deferred is not None:
            self.deferred.moved()
        self._dispatcher.rewind()

    def trim(self, ordinal: int) -> None:
        """The entries below `ordinal` are about to be dropped, also those that are held."""
        self._acknowledgements.trim(ordinal)
        self.acknowledge(None, ((self.cursor.mark_delete, ordinal),))

    @property
    def deferred(self) -> DeliveryView | None:
        """What transactions hold, if anything; read only."""
        return self._acknowledgements.view

    @property
    def pending(self) -> Acknowledgements:
        """Where transactions defer acknowledgements, release and settle them."""
        return self._acknowledgements

    # --- delivery ---------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        """Let time pass (`now_ms`: wall clock); the handles to notify now whether they are
        active."""
        return self._dispatcher.advance(now_ms)

    @property
    def traits_wanted(self) -> TraitsWanted:
        """Of which entries `dispatch` wants the traits."""
        return self._dispatcher.traits_wanted

    def next_read(self, limit_entries: int, now_ms: int = 0) -> ReadRequest | None:
        """Entries to fetch for delivery now, at most `limit_entries`; None if there are none, or no
        consumer may take them. `now_ms` (wall clock) decides which are due."""
        return self._dispatcher.next_read(limit_entries, now_ms)

    def next_wakeup_ms(self) -> int | None:
        """When to ask `next_read` again although nothing happened; None if never."""
        return self._dispatcher.next_wakeup_ms()

    def dispatch(
        self,
        first: int,
        message_counts: Sequence[int],
        traits: Sequence[EntryTraits | None] | None = None,
    ) -> list[Delivery]:
        """Give entries first, first+1, ... to consumers.

        `message_counts` has the messages of each (>= 1), `traits` what `traits_wanted` asks for.
        Entries that are left are read again.
        """
        deliveries = self._dispatcher.dispatch(first, message_counts, traits)
        for delivery in deliveries:
            self.messages_out += delivery.messages
        return deliveries

    # --- the log ----------------------------------------------------------------------------------

    def take_delta(self, room_bytes: int = DELTA_BYTES_MAX) -> CursorDelta | None:
        """What the log lacks of a durable subscription, as `Cursor.take_delta`; None if nothing,
        or if it is not durable."""
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
        if self.deferred is not None:
            self.deferred.moved()
        if delta.properties is not None:
            self._properties = dict(delta.properties)
        self._properties_changed = False

    def to_state(self) -> CursorState:
        """Everything, for a checkpoint."""
        state = self.cursor.to_state()
        return CursorState(state.mark_delete, state.ranges, state.partial, dict(self._properties))
