"""Exclusive: one consumer, strict order.

Owns: `SingleActiveDispatcher`, the read position of a subscription that delivers to one consumer at
a time, and its simplest form. Imports: base, unacknowledged. Pure. Invariants: entries leave in
order, acknowledged ones excepted; redelivery reads again from the mark-delete, with redelivery
counts 0 and the consumer's new epoch, by which a client recognizes old copies. Cost is per
run: nothing is tracked per entry.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

from magnetar.topics.dispatch.base import (
    Consumer,
    CursorView,
    Delivery,
    DispatchLimits,
    EntryTraits,
    Postponed,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
    ack_sets_of,
    entries_within,
    read_from,
    remaining_costs,
)
from magnetar.topics.dispatch.unacknowledged import Unacknowledged


class SingleActiveDispatcher:
    """Delivers to `_serving`, if there is one; subclasses choose it."""

    unacknowledged = Unacknowledged(DispatchLimits(), lambda _: None)
    """Not counted for these types."""
    traits_wanted: ClassVar[TraitsWanted] = TraitsWanted.NONE

    def __init__(self, cursor: CursorView, limits: DispatchLimits, _topic: str) -> None:
        self.cursor = cursor
        self._limits = limits
        self._serving: Consumer | None = None
        self._read = cursor.mark_delete

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        return {}

    @property
    def outstanding(self) -> bool:
        return self.cursor.mark_delete < self._read

    @property
    def postponed(self) -> Postponed:
        return Postponed()  # redelivery reads again from the mark-delete

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits

    def limit(self, limits: DispatchLimits) -> None:
        self._limits = limits

    def acknowledged(self, consumer: Consumer | None, start: int, end: int) -> bool:
        """Nothing to do: reads skip acknowledged entries."""
        del consumer, start, end
        return False

    deferred = acknowledged

    def returned(self, start: int, end: int) -> None:
        """Rewind to the first of them: delivery begins there again, as after a REDELIVER."""
        for first, _ in self.cursor.unacknowledged(start, end):
            self._read = min(self._read, first)
            break

    def acknowledged_partly(self, consumer: Consumer | None, ordinal: int, remaining: int) -> bool:
        del consumer, ordinal, remaining
        return False

    def redeliver(
        self, consumer: Consumer, ranges: Sequence[tuple[int, int]] | None, epoch: int
    ) -> None:
        """Rewind, whatever the ranges are: single entries would break the order. The epoch counts
        even if another consumer is served."""
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
        return read_from(cursor, read, min(limit_entries, consumer.permits))

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
    def active(self) -> Consumer | None:
        return self._serving

    def add(self, consumer: Consumer) -> None:
        assert self._serving is None, self._serving
        self._serving = consumer
        self._read = self.cursor.mark_delete

    def remove(self, consumer: Consumer) -> None:
        assert consumer is self._serving
        self._serving = None

    def rewind(self) -> None:
        self._read = self.cursor.mark_delete
        if self._serving is not None:
            self._serving.permits = 0
