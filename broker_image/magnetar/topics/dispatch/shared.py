"""Shared: any number of consumers, each entry held by one of them.

Owns: who holds which entry, the replay set, redelivery counts, limits on unacknowledged messages.
Imports: dispatch, rotation, delayed, chunks, intervals. Source: Pulsar's Shared dispatcher
(permits, turns, redelivery, unacknowledged limits, delayed delivery, chunks). Invariants: an
unacknowledged entry below the read position is in exactly one place: pending at one consumer, in
the replay set, waiting for its time, or (a chunk) waiting for the consumer that has the chunks
before it; an acknowledged one is not delivered; replays go before new entries, lowest first; a
redelivery count grows only by an explicit redelivery; what waits holds up nothing behind it and
costs no permits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import ClassVar

from magnetar.topics.dispatch.base import (
    ChunkTrait,
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
    stretches,
)
from magnetar.topics.dispatch.chunks import ChunkAssignments
from magnetar.topics.dispatch.delayed import DelayedEntries
from magnetar.topics.dispatch.rotation import Rotation
from magnetar.topics.intervals import IntervalSet, known_within

BUCKET_BITS = 7
"""Of 128 entries in a row it is known together who holds how many."""
LOOK_AHEAD_ENTRIES = 32
"""Entries to fetch at least where some may have to wait: with few permits every one of those
would cost a read of its own."""


class SharedDispatcher:
    """Delivers in turns of up to `turn_entries_max` entries."""

    kind: ClassVar[SubscriptionType] = SubscriptionType.SHARED
    traits_wanted: ClassVar[TraitsWanted] = TraitsWanted.SPECIAL

    def __init__(self, cursor: CursorView, limits: DispatchLimits, _topic: str) -> None:
        self.cursor = cursor
        self._limits = limits
        self._consumers: list[Consumer] = []
        self._rotation = Rotation()
        self._replay = IntervalSet()
        self._read = cursor.mark_delete
        self._unacknowledged = 0
        self._blocked = False
        # Messages held per pending entry, where that is not 1: the unacknowledged limits count
        # messages, and batches are the exception.
        self._held: dict[int, int] = {}
        self._redeliveries: dict[int, int] = {}
        self._now_ms = 0
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        self._chunks = ChunkAssignments(limits.chunked_messages_max)
        # How many entries of so many that follow each other each consumer holds: who holds one is
        # asked for each that another acknowledges.
        self._holders: dict[int, dict[Consumer, int]] = {}
        # Chunks that only one consumer may get, which has no permits: kept apart so that they are
        # not fetched in vain.
        self._waiting: dict[Consumer, IntervalSet] = {}
        self._waits_for: dict[int, Consumer] = {}

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self._consumers

    @property
    def active(self) -> Consumer | None:
        return None

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        return {}

    @property
    def unacknowledged(self) -> int:
        return self._unacknowledged

    @property
    def delayed_entries(self) -> int:
        return self._delayed.size

    @property
    def blocked(self) -> bool:
        return self._blocked

    def add(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Its pending entries go to the replay set; that is no redelivery in the sense of the
        count."""
        for start, end in list(consumer.pending):
            self._give_back(consumer, start, end)
        assert consumer.unacknowledged == 0, consumer.unacknowledged
        self._chunks.forget(consumer)
        self._stop_waiting(consumer)
        # Last, because giving back may lift its block and queue it again.
        self._rotation.withdraw(consumer)
        self._consumers.remove(consumer)

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        self._offer(consumer)

    def limit(self, limits: DispatchLimits) -> None:
        """Other limits from now on; what waits for its time goes out if delays are not honoured
        any more."""
        self._limits = limits
        for start, end in self._delayed.take_all():
            self._replay_unacknowledged(start, end)
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        for consumer in self._consumers:
            consumer.blocked = (
                0 < limits.unacknowledged_per_consumer_messages_max <= consumer.unacknowledged
            )
            self._offer(consumer)
        self._blocked = (
            0 < limits.unacknowledged_per_subscription_messages_max <= self._unacknowledged
        )

    def _offer(self, consumer: Consumer) -> None:
        """The consumer may be ready now."""
        self._rotation.offer(consumer)
        if self._waiting and consumer.ready:
            self._stop_waiting(consumer)

    def _stop_waiting(self, consumer: Consumer) -> None:
        """Chunks that waited for the consumer are to be delivered: it is ready, or it has left."""
        for start, end in self._waiting.pop(consumer, ()):
            self._replay.add(start, end)
            for ordinal in range(start, end):
                del self._waits_for[ordinal]

    # --- what comes back --------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer | None, start: int, end: int) -> bool:
        if self._replay:
            self._replay.remove(start, end)
        if self._redeliveries:
            for ordinal in known_within(self._redeliveries, start, end):
                del self._redeliveries[ordinal]
        if self._waits_for:
            self._wait_no_more(start, end)
        left = end - start
        unblocked = False
        # Usually the one that acknowledges holds the entry; otherwise whoever does (acknowledging
        # for others is allowed).
        if consumer is not None:
            removed, unblocked = self._settle(consumer, start, end)
            left -= removed
        if left > 0:
            for other in self._holders_of(start, end):
                unblocked |= self._settle(other, start, end)[1]
        return unblocked

    def deferred(self, consumer: Consumer | None, start: int, end: int) -> bool:
        """What a consumer holds of them counts as delivered once, should it come back."""
        redeliveries = self._redeliveries
        counts = {
            ordinal: redeliveries[ordinal] for ordinal in known_within(redeliveries, start, end)
        }
        for other in self._holders_of(start, end):
            for first, last in other.pending.overlap(start, end):
                counts |= {
                    ordinal: redeliveries.get(ordinal, 0) + 1 for ordinal in range(first, last)
                }
        unblocked = self.acknowledged(consumer, start, end)
        redeliveries.update(counts)
        return unblocked

    def returned(self, start: int, end: int) -> None:
        end = min(end, self._read)
        for consumer in self._holders_of(start, end):
            self.redeliver(consumer, [(start, end)], 0)
        self._wait_no_more(start, end)
        self._replay_unacknowledged(start, end)

    def _wait_no_more(self, start: int, end: int) -> None:
        """Chunks among these entries do not wait for their consumer any more."""
        for ordinal in known_within(self._waits_for, start, end):
            consumer = self._waits_for.pop(ordinal)
            self._waiting[consumer].remove(ordinal, ordinal + 1)

    def _holders_of(self, start: int, end: int) -> list[Consumer]:
        """Consumers that hold any of the entries [start, end), and perhaps some that hold none
        of them."""
        if start >= end:
            return []
        buckets = known_within(self._holders, start >> BUCKET_BITS, (end - 1 >> BUCKET_BITS) + 1)
        return list(
            dict.fromkeys(consumer for bucket in buckets for consumer in self._holders[bucket])
        )

    def _count_held(self, consumer: Consumer, start: int, end: int, sign: int) -> None:
        """The consumer holds the entries [start, end) from now on (`sign` 1), or does not any
        more (-1)."""
        holders = self._holders
        while start < end:
            bucket = start >> BUCKET_BITS
            stop = bucket + 1 << BUCKET_BITS
            if stop > end:
                stop = end
            held = holders.get(bucket)
            if held is None:
                holders[bucket] = {consumer: stop - start}
            elif count := held.get(consumer, 0) + sign * (stop - start):
                held[consumer] = count
            else:
                del held[consumer]
                if not held:
                    del holders[bucket]
            start = stop

    def acknowledged_partly(self, consumer: Consumer | None, ordinal: int, remaining: int) -> bool:
        holder = (
            consumer
            if consumer is not None and ordinal in consumer.pending
            else self._holder(ordinal)
        )
        if holder is None:
            return False
        held = self._held.get(ordinal, 1)
        if remaining >= held:
            return False
        self._held[ordinal] = remaining
        return self._release(holder, held - remaining)

    def redeliver(
        self, consumer: Consumer, ranges: Sequence[tuple[int, int]] | None, epoch: int
    ) -> None:
        """Only entries that this consumer holds come back; each is counted."""
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
        self._replay.clear()
        self._held.clear()
        self._redeliveries.clear()
        self._delayed.clear()
        self._chunks.clear()
        self._holders.clear()
        self._waiting.clear()
        self._waits_for.clear()
        self._unacknowledged, self._blocked = 0, False
        for consumer in self._consumers:
            self._rotation.withdraw(consumer)
            consumer.pending.clear()
            consumer.permits, consumer.unacknowledged, consumer.blocked = 0, 0, False

    def _holder(self, ordinal: int) -> Consumer | None:
        return next(
            (
                consumer
                for consumer in self._holders_of(ordinal, ordinal + 1)
                if ordinal in consumer.pending
            ),
            None,
        )

    def _settle(self, consumer: Consumer, start: int, end: int) -> tuple[int, bool]:
        """Take what the consumer holds of [start, end) away from it: (entries, whether that
        unblocked delivery)."""
        pending = consumer.pending
        if end - start == 1:
            if not pending.remove(start, end):
                return 0, False
            self._count_held(consumer, start, end, -1)
            return 1, self._release(consumer, self._held.pop(start, 1) if self._held else 1)
        messages = 0
        for first, last in pending.overlap(start, end):
            messages += self._take_held(first, last)
            self._count_held(consumer, first, last, -1)
        if not messages:
            return 0, False
        return pending.remove(start, end), self._release(consumer, messages)

    def _give_back(self, consumer: Consumer, start: int, end: int) -> None:
        self._settle(consumer, start, end)
        self._replay.add(start, end)

    def _take_held(self, start: int, end: int) -> int:
        """Messages held in the entries [start, end), all pending; they are not held any more."""
        held = self._held
        if not held:
            return end - start
        return sum([held.pop(ordinal, 1) for ordinal in range(start, end)])

    def _release(self, consumer: Consumer, messages: int) -> bool:
        """Lower the counts and lift blocks at half their limits; True if a block was lifted."""
        limits = self._limits
        consumer.unacknowledged -= messages
        self._unacknowledged -= messages
        unblocked = False
        if (
            consumer.blocked
            and consumer.unacknowledged <= limits.unacknowledged_per_consumer_messages_max // 2
        ):
            consumer.blocked, unblocked = False, True
            self._offer(consumer)
        if (
            self._blocked
            and self._unacknowledged <= limits.unacknowledged_per_subscription_messages_max // 2
        ):
            self._blocked, unblocked = False, True
        return unblocked

    # --- what goes out ----------------------------------------------------------------------------

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        del now_ms
        return ()

    def next_read(self, limit_entries: int, now_ms: int) -> ReadRequest | None:
        self._now_ms = now_ms
        if self._delayed:
            for start, end in self._delayed.take_due(now_ms):
                self._replay_unacknowledged(start, end)
        limit = 0 if self._blocked else min(limit_entries, self._rotation.permits(limit_entries))
        if limit <= 0:
            return None
        if self._delayed or self._waiting:
            limit = max(limit, min(limit_entries, LOOK_AHEAD_ENTRIES))
        if self._replay:
            return read_span(self._replay, limit)
        cursor = self.cursor
        self._read = read = cursor.first_unacknowledged(self._read)
        if read >= cursor.end or (cursor.saturated and read >= cursor.acknowledged_end):
            return None
        if read >= cursor.acknowledged_end:
            return ReadRequest(read, min(limit, cursor.end - read))
        return read_span(cursor.unacknowledged(read, min(read + limit, cursor.end)), limit)

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
        """Give the entries [start, end) to whose turn it is; False if nobody takes any more."""
        turn, low = self._limits.turn_entries_max, start
        while start < end:
            consumer = None if self._blocked else self._rotation.next()
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
        """Give one delayed or chunked entry to whom it belongs, or put it aside; False if
        nothing behind it may go now."""
        deliver_at_ms, again = traits.deliver_at_ms, ordinal < self._read
        if self._limits.delayed_delivery and self._delayed.must_wait(
            deliver_at_ms, self._now_ms, again=again
        ):
            self._take_from_due(ordinal, ordinal + 1)
            self._delayed.add(ordinal, ordinal + 1, deliver_at_ms, self.cursor.unacknowledged)
            return True
        if deliver_at_ms and again:
            # a transaction may have let go of it while it waited
            self._delayed.discard(ordinal, deliver_at_ms)
        chunk = traits.chunk
        if chunk is None:
            return self._hand_out(ordinal, ordinal + 1, costs, deliveries)
        return self._hand_out_chunk(ordinal, costs, chunk, deliveries)

    def _hand_out_chunk(
        self, ordinal: int, costs: Sequence[int], chunk: ChunkTrait, deliveries: list[Delivery]
    ) -> bool:
        if self._replay and self._replay.start < ordinal:
            # a chunk before this one may have come back while this one was fetched: replays first
            return False
        if self._blocked:
            return False
        consumer = self._chunks.consumer_of(chunk)
        if consumer is None:
            consumer = self._rotation.next()
            if consumer is None:
                return False
            if ordinal < self._read:
                # Delivered again, perhaps to another one: later chunks of it must not wait for the
                # one that had it before.
                for other in list(self._waiting):
                    self._stop_waiting(other)
        elif not consumer.ready:
            self._take_from_due(ordinal, ordinal + 1)
            self._waiting.setdefault(consumer, IntervalSet()).add(ordinal, ordinal + 1)
            self._waits_for[ordinal] = consumer
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
        count = len(costs)
        self._hold(consumer, start, costs, messages)
        counts, ack_sets = (
            self._redelivery_counts(start, count),
            ack_sets_of(self.cursor, start, count),
        )
        deliveries.append(
            Delivery(consumer.handle, start, count, messages, counts, ack_sets, consumer.epoch)
        )

    def _take_from_due(self, start: int, end: int) -> None:
        """The entries leave the replay set, or are read for the first time."""
        if start >= self._read:
            self._read = end
        else:
            self._replay.remove(start, end)

    def _replay_unacknowledged(self, start: int, end: int) -> None:
        for first, last in self.cursor.unacknowledged(start, end):
            self._replay.add(first, last)

    def _due(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """What of [first, end) is to be delivered now: replays, then entries not read yet.

        Decided before anything of it is handed out.
        """
        read = self._read
        runs = list(self._replay.overlap(first, min(end, read))) if self._replay else []
        if first <= read < end:
            runs += self.cursor.unacknowledged(read, end)
        return iter(runs)

    def _hold(self, consumer: Consumer, start: int, costs: Sequence[int], messages: int) -> None:
        """Record that the consumer holds the entries from `start` on."""
        limits, end = self._limits, start + len(costs)
        self._take_from_due(start, end)
        consumer.pending.add(start, end)
        self._count_held(consumer, start, end, 1)
        if messages != len(costs):
            self._held.update(
                (start + index, cost) for index, cost in enumerate(costs) if cost != 1
            )
        consumer.permits -= messages
        consumer.messages_out += messages
        consumer.unacknowledged += messages
        self._unacknowledged += messages
        if 0 < limits.unacknowledged_per_consumer_messages_max <= consumer.unacknowledged:
            consumer.blocked = True
        if 0 < limits.unacknowledged_per_subscription_messages_max <= self._unacknowledged:
            self._blocked = True

    def _redelivery_counts(self, start: int, count: int) -> list[int] | None:
        redeliveries = self._redeliveries
        if not redeliveries:
            return None
        counts = [redeliveries.get(ordinal, 0) for ordinal in range(start, start + count)]
        return counts if any(counts) else None
