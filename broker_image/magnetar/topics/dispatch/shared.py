"""Shared: any number of consumers, each entry held by one of them.

Owns: which entries are pending, in the replay set, or wait. Imports: base, chunks, delayed,
holders, rotation, unacknowledged, intervals. Pure. Source: Pulsar's Shared dispatcher (permits,
turns, redelivery, unacknowledged limits, delayed delivery, chunks). Invariants: an unacknowledged
entry below the read position is in exactly one place: pending at one consumer, in the replay set,
waiting for its time, or (a chunk) waiting for its message's consumer; an acknowledged one is not
delivered; replays go before new entries, lowest first; a redelivery count grows only by an explicit
redelivery; a waiting entry delays no other and costs no permits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from magnetar.topics.dispatch.base import (
    ChunkTrait,
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
    read_span,
    redelivery_counts,
    remaining_costs,
    stretches,
)
from magnetar.topics.dispatch.chunks import ChunkAssignments, WaitingChunks
from magnetar.topics.dispatch.delayed import DelayedEntries
from magnetar.topics.dispatch.holders import Holders
from magnetar.topics.dispatch.rotation import Rotation
from magnetar.topics.dispatch.unacknowledged import Unacknowledged
from magnetar.topics.intervals import IntervalSet, known_within

LOOK_AHEAD_ENTRIES = 32
"""Minimum of a read while entries wait: with few permits each of them would cost a read."""


class SharedDispatcher:
    """Delivers in turns of up to `turn_entries_max` entries."""

    kind: ClassVar[SubscriptionType] = SubscriptionType.SHARED
    traits_wanted: ClassVar[TraitsWanted] = TraitsWanted.SPECIAL

    active: Consumer | None = None

    def __init__(self, cursor: CursorView, limits: DispatchLimits, _topic: str) -> None:
        self.cursor = cursor
        self._limits = limits
        self.unacknowledged = Unacknowledged(limits, self._offer)
        self._consumers: list[Consumer] = []
        self._rotation = Rotation()
        self._replay = IntervalSet()
        self._read = cursor.mark_delete
        # Messages per pending entry, where that is not 1: batches are the exception.
        self._held: dict[int, int] = {}
        self._holders = Holders()
        self._redeliveries: dict[int, int] = {}
        self._now_ms = 0
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        self._chunks = ChunkAssignments(limits.chunked_messages_max)
        self._waiting = WaitingChunks()

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        return {}

    @property
    def outstanding(self) -> bool:
        return self.unacknowledged.messages > 0

    @property
    def postponed(self) -> Postponed:
        return Postponed(self._delayed.size, self._replay.size)

    def add(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Its pending entries are replayed; redelivery counts do not grow."""
        for start, end in list(consumer.pending):
            self._give_back(consumer, start, end)
        assert consumer.unacknowledged == 0, consumer.unacknowledged
        self._chunks.forget(consumer)
        self._replay_all(self._waiting.take(consumer))
        # Last: giving back may lift its block and queue it again.
        self._rotation.withdraw(consumer)
        self._consumers.remove(consumer)

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        self._offer(consumer)

    def limit(self, limits: DispatchLimits) -> None:
        """Delayed entries are read again: delays may be off now."""
        self._limits = limits
        self._replay_unacknowledged(self._delayed.take_all())
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        self.unacknowledged.limit(limits, self._consumers)

    def _offer(self, consumer: Consumer) -> None:
        """The consumer may be ready now."""
        self._rotation.offer(consumer)
        if self._waiting and consumer.ready:
            self._replay_all(self._waiting.take(consumer))

    # --- what comes back --------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer | None, start: int, end: int) -> bool:
        if self._replay:
            self._replay.remove(start, end)
        if self._redeliveries:
            for ordinal in known_within(self._redeliveries, start, end):
                del self._redeliveries[ordinal]
        if self._waiting:
            self._waiting.discard(start, end)
        left = end - start
        unblocked = False
        # Usually the acknowledging consumer holds the entry; acknowledging for others is allowed.
        if consumer is not None:
            removed, unblocked = self._settle(consumer, start, end)
            left -= removed
        if left > 0:
            for other in self._holders.near(start, end):
                unblocked |= self._settle(other, start, end)[1]
        return unblocked

    def deferred(self, consumer: Consumer | None, start: int, end: int) -> bool:
        """Pending ones count as delivered once if the transaction releases them."""
        redeliveries = self._redeliveries
        counts = {
            ordinal: redeliveries[ordinal] for ordinal in known_within(redeliveries, start, end)
        }
        for other in self._holders.near(start, end):
            for first, last in other.pending.overlap(start, end):
                counts |= {
                    ordinal: redeliveries.get(ordinal, 0) + 1 for ordinal in range(first, last)
                }
        unblocked = self.acknowledged(consumer, start, end)
        redeliveries.update(counts)
        return unblocked

    def returned(self, start: int, end: int) -> None:
        end = min(end, self._read)
        for consumer in self._holders.near(start, end):
            self.redeliver(consumer, [(start, end)], 0)
        self._waiting.discard(start, end)
        self._replay_unacknowledged(((start, end),))

    def acknowledged_partly(self, consumer: Consumer | None, ordinal: int, remaining: int) -> bool:
        holder = (
            consumer
            if consumer is not None and ordinal in consumer.pending
            else self._holders.of(ordinal)
        )
        if holder is None:
            return False
        held = self._held.get(ordinal, 1)
        if remaining >= held:
            return False
        self._held[ordinal] = remaining
        return self.unacknowledged.release(holder, held - remaining)

    def redeliver(
        self, consumer: Consumer, ranges: Sequence[tuple[int, int]] | None, epoch: int
    ) -> None:
        """Only entries that this consumer holds are redelivered; each is counted."""
        del epoch
        wanted = list(consumer.pending) if ranges is None else ranges
        redeliveries = self._redeliveries
        for start, end in wanted:
            for first, last in list(consumer.pending.overlap(start, end)):
                self._give_back(consumer, first, last)
                for ordinal in range(first, last):
                    redeliveries[ordinal] = redeliveries.get(ordinal, 0) + 1

    def rewind(self) -> None:
        self._read = self.cursor.mark_delete
        for entries in (
            self._replay,
            self._held,
            self._holders,
            self._redeliveries,
            self._delayed,
            self._chunks,
            self._waiting,
        ):
            entries.clear()
        self.unacknowledged.clear(self._consumers)
        for consumer in self._consumers:
            self._rotation.withdraw(consumer)
            consumer.pending.clear()

    def _settle(self, consumer: Consumer, start: int, end: int) -> tuple[int, bool]:
        """The consumer holds nothing of [start, end) any more: (entries, whether that unblocked
        delivery)."""
        pending = consumer.pending
        if end - start == 1:
            if not pending.remove(start, end):
                return 0, False
            self._holders.count(consumer, start, end, -1)
            messages = self._held.pop(start, 1) if self._held else 1
            return 1, self.unacknowledged.release(consumer, messages)
        messages = 0
        for first, last in pending.overlap(start, end):
            messages += self._take_held(first, last)
            self._holders.count(consumer, first, last, -1)
        if not messages:
            return 0, False
        return pending.remove(start, end), self.unacknowledged.release(consumer, messages)

    def _give_back(self, consumer: Consumer, start: int, end: int) -> None:
        self._settle(consumer, start, end)
        self._replay.add(start, end)

    def _take_held(self, start: int, end: int) -> int:
        """Messages of the entries [start, end), which cease to be pending."""
        held = self._held
        if not held:
            return end - start
        return sum([held.pop(ordinal, 1) for ordinal in range(start, end)])

    # --- what goes out ----------------------------------------------------------------------------

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        del now_ms
        return ()

    def next_read(self, limit_entries: int, now_ms: int) -> ReadRequest | None:
        self._now_ms = now_ms
        if self._delayed:
            self._replay_unacknowledged(self._delayed.take_due(now_ms))
        if self.unacknowledged.blocked:
            return None
        limit = min(limit_entries, self._rotation.permits(limit_entries))
        if limit <= 0:
            return None
        if self._delayed or self._waiting:
            limit = max(limit, min(limit_entries, LOOK_AHEAD_ENTRIES))
        if self._replay:
            return read_span(self._replay, limit)
        self._read = self.cursor.first_unacknowledged(self._read)
        return read_from(self.cursor, self._read, limit)

    def next_wakeup_ms(self) -> int | None:
        return self._delayed.next_ms()

    def dispatch(
        self,
        first: int,
        message_counts: Sequence[int],
        traits: Sequence[EntryTraits | None] | None = None,
    ) -> list[Delivery]:
        deliveries: list[Delivery] = []
        costs = remaining_costs(self.cursor, first, message_counts)
        for start, end in self._due(first, first + len(costs)):
            for low, high, special in stretches(traits, start - first, end - first):
                if special is None:
                    more = self._hand_out(first + low, first + high, costs[low:high], deliveries)
                else:
                    more = self._hand_out_special(first + low, costs[low:high], special, deliveries)
                if not more:
                    return deliveries
        return deliveries

    def _hand_out(
        self, start: int, end: int, costs: Sequence[int], deliveries: list[Delivery]
    ) -> bool:
        """Give the entries [start, end) to consumers in turn; False if no consumer takes more."""
        turn, low = self._limits.turn_entries_max, start
        while start < end:
            consumer = None if self.unacknowledged.blocked else self._rotation.next()
            if consumer is None:
                return False
            count, messages = entries_within(
                self._limits.room_of(consumer), costs, start - low, min(start + turn, end) - low
            )
            self._give(
                consumer, start, costs[start - low : start - low + count], messages, deliveries
            )
            start += count
        return True

    def _hand_out_special(
        self, ordinal: int, costs: Sequence[int], traits: EntryTraits, deliveries: list[Delivery]
    ) -> bool:
        """Give or defer one delayed or chunked entry; False if no entry behind it may go now."""
        deliver_at_ms, again = traits.deliver_at_ms, ordinal < self._read
        if (
            deliver_at_ms
            and self._limits.delayed_delivery
            and self._delayed.defers(
                ordinal, deliver_at_ms, self._now_ms, self.cursor.unacknowledged, again=again
            )
        ):
            self._take_from_due(ordinal, ordinal + 1)
            return True
        chunk = traits.chunk
        if chunk is None:
            return self._hand_out(ordinal, ordinal + 1, costs, deliveries)
        return self._hand_out_chunk(ordinal, costs, chunk, deliveries)

    def _hand_out_chunk(
        self, ordinal: int, costs: Sequence[int], chunk: ChunkTrait, deliveries: list[Delivery]
    ) -> bool:
        if self._replay and self._replay.start < ordinal:
            # A chunk before this one may have returned while this one was fetched: replays first.
            return False
        if self.unacknowledged.blocked:
            return False
        consumer = self._chunks.consumer_of(chunk)
        if consumer is None:
            consumer = self._rotation.next()
            if consumer is None:
                return False
            if ordinal < self._read:
                # Delivered again, perhaps to another consumer: its later chunks must not wait for
                # the previous one.
                self._replay_all(self._waiting.take_all())
        elif not consumer.ready:
            self._take_from_due(ordinal, ordinal + 1)
            self._waiting.add(ordinal, consumer)
            return True
        self._chunks.given(chunk, consumer)
        self._give(consumer, ordinal, costs, sum(costs), deliveries)
        return True

    def _give(
        self,
        consumer: Consumer,
        start: int,
        costs: Sequence[int],
        messages: int,
        deliveries: list[Delivery],
    ) -> None:
        """The consumer holds the entries from `start` on."""
        count = len(costs)
        end = start + count
        self._take_from_due(start, end)
        consumer.pending.add(start, end)
        self._holders.count(consumer, start, end, 1)
        if messages != count:
            held = self._held
            for ordinal, cost in zip(range(start, end), costs, strict=True):
                if cost != 1:
                    held[ordinal] = cost
        self.unacknowledged.hold(consumer, messages)
        redeliveries = self._redeliveries
        counts = redelivery_counts(redeliveries, range(start, end)) if redeliveries else None
        ack_sets = ack_sets_of(self.cursor, start, count)
        deliveries.append(
            Delivery(consumer.handle, start, count, messages, counts, ack_sets, consumer.epoch)
        )

    def _take_from_due(self, start: int, end: int) -> None:
        """The entries leave the replay set, or are read for the first time."""
        if start >= self._read:
            self._read = end
        else:
            self._replay.remove(start, end)

    def _replay_unacknowledged(self, runs: Iterable[tuple[int, int]]) -> None:
        for start, end in runs:
            self._replay_all(self.cursor.unacknowledged(start, end))

    def _replay_all(self, runs: Iterable[tuple[int, int]]) -> None:
        for start, end in runs:
            self._replay.add(start, end)

    def _due(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Replays, then unread entries of [first, end); decided before any of it is given."""
        read = self._read
        runs = list(self._replay.overlap(first, min(end, read))) if self._replay else []
        if first <= read < end:
            runs += self.cursor.unacknowledged(read, end)
        return iter(runs)
