"""Exclusive: one consumer, strict order.

Owns: `SingleActiveDispatcher`, the read position of a subscription that delivers to one consumer at
a time, and its simplest form. Imports: dispatch, cursor. Pure. Invariants: entries leave in order,
acknowledged ones excepted; redelivery means reading again from the mark-delete, with redelivery
counts 0 and the consumer's new epoch, by which a client tells old copies from new ones. Cost is per
run: nothing is tracked per entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

from magnetar.errors import ConsumerBusy
from magnetar.topics.dispatch.base import (
    Consumer,
    CursorView,
    Delivery,
    DispatchLimits,
    EntryTraits,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
    ack_sets_of,
    entries_within,
    read_span,
    remaining_costs,
)


class SingleActiveDispatcher:
    """Delivers to `_serving`, if there is one; who that is, subclasses say."""

    traits_wanted: ClassVar[TraitsWanted] = TraitsWanted.NONE

    def __init__(self, cursor: CursorView, limits: DispatchLimits, topic: str) -> None:
        self.cursor = cursor
        self._limits = limits
        self._topic = topic
        self._serving: Consumer | None = None
        self._read = cursor.mark_delete

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        return {}

    @property
    def unacknowledged(self) -> int:
        """Not tracked for this type."""
        return 0

    @property
    def delayed_entries(self) -> int:
        """This type delivers at once."""
        return 0

    @property
    def blocked(self) -> bool:
        return False

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits

    def limit(self, limits: DispatchLimits) -> None:
        self._limits = limits

    def acknowledged(self, consumer: Consumer | None, start: int, end: int) -> bool:
        """Nothing is held per entry; reads skip what is acknowledged by themselves."""
        del consumer, start, end
        return False

    deferred = acknowledged

    def returned(self, start: int, end: int) -> None:
        """Rewind to the first of them: everything from there on comes again, in order, as after
        a REDELIVER."""
        for first, _ in self.cursor.unacknowledged(start, end):
            self._read = min(self._read, first)
            break

    def acknowledged_partly(self, consumer: Consumer | None, ordinal: int, remaining: int) -> bool:
        del consumer, ordinal, remaining
        return False

    def redeliver(
        self, consumer: Consumer, ranges: Sequence[tuple[int, int]] | None, epoch: int
    ) -> None:
        """Rewind, whatever the ranges are: single entries cannot come back without breaking the
        order.

        The epoch counts in any case, even if somebody else is served.
        """
        del ranges
        consumer.epoch = max(consumer.epoch, epoch)
        if self._may_rewind(consumer):
            self._read = self.cursor.mark_delete

    def _may_rewind(self, consumer: Consumer) -> bool:
        return consumer is self._serving

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        del now_ms
        return ()

    def next_wakeup_ms(self) -> int | None:
        return None

    def next_read(self, limit_entries: int, now_ms: int) -> ReadRequest | None:
        del now_ms
        consumer, cursor = self._serving, self.cursor
        if consumer is None or not consumer.ready:
            return None
        self._read = read = cursor.first_unacknowledged(self._read)
        if read >= cursor.end or (cursor.saturated and read >= cursor.acknowledged_end):
            return None
        limit = min(limit_entries, consumer.permits)
        if read >= cursor.acknowledged_end:
            return ReadRequest(read, min(limit, cursor.end - read))
        return read_span(cursor.unacknowledged(read, min(read + limit, cursor.end)), limit)

    def dispatch(
        self,
        first: int,
        message_counts: Sequence[int],
        traits: Sequence[EntryTraits | None] | None = None,
    ) -> list[Delivery]:
        del traits
        consumer, cursor = self._serving, self.cursor
        end = first + len(message_counts)
        deliveries: list[Delivery] = []
        if consumer is None or not first <= self._read < end:
            return deliveries
        costs = remaining_costs(cursor, first, message_counts)
        for start, stop in cursor.unacknowledged(self._read, end):
            if not consumer.ready:
                return deliveries
            count, messages = entries_within(consumer.permits, costs, start - first, stop - first)
            ack_sets = ack_sets_of(cursor, start, count)
            deliveries.append(
                Delivery(consumer.handle, start, count, messages, None, ack_sets, consumer.epoch)
            )
            consumer.permits -= messages
            consumer.messages_out += messages
            self._read = start + count
        return deliveries


class ExclusiveDispatcher(SingleActiveDispatcher):
    """Delivers to the only consumer."""

    kind: ClassVar[SubscriptionType] = SubscriptionType.EXCLUSIVE

    @property
    def consumers(self) -> Sequence[Consumer]:
        return () if self._serving is None else (self._serving,)

    @property
    def active(self) -> Consumer | None:
        return self._serving

    def add(self, consumer: Consumer) -> None:
        if self._serving is not None:
            raise ConsumerBusy(
                "Exclusive consumer is already connected; close it first or subscribe as Shared or "
                "Failover"
            )
        self._serving = consumer
        self._read = self.cursor.mark_delete

    def remove(self, consumer: Consumer) -> None:
        assert consumer is self._serving
        self._serving = None

    def rewind(self) -> None:
        self._read = self.cursor.mark_delete
        if self._serving is not None:
            self._serving.permits = 0
