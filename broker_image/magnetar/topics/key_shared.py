"""Key_Shared: any number of consumers, each key in order at one of them.

Owns: who holds which entry, what waits for whom, redelivery counts, limits on unacknowledged messages. Imports: dispatch, hash_ranges,
delayed, intervals. Pure.
Source: Pulsar's Key_Shared dispatcher with draining hashes (PIP-379), facts on protocol semantics 2.4.
Invariants: all entries of one slot (hash of keys) that are held are held by one consumer, unless out-of-order delivery is allowed; an
unacknowledged entry below the read position is held, waits for its slot's owner, is stuck (its slot is still held by a previous owner, or
has none), or is delayed: it waits for its time, and then to be read again, outside the order of its key; what waits for an owner goes out
lowest first and before anything newer of that owner; reading goes on past what waits, up to a bound, so that other keys keep flowing.
Cost: per entry some dictionary operations and a bisection; a consumer that joins or leaves costs the entries that wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import ClassVar

from magnetar.errors import ConsumerBusy
from magnetar.topics.cursor import Cursor
from magnetar.topics.delayed import DelayedEntries
from magnetar.topics.dispatch import (
    Consumer,
    Delivery,
    DispatchLimits,
    EntryTraits,
    KeySharedPolicy,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
    ack_sets_of,
    read_span,
    remaining_costs,
)
from magnetar.topics.hash_ranges import HashRanges, hash_ranges, slot_of
from magnetar.topics.intervals import IntervalSet

LOOK_AHEAD_ENTRIES_MIN = 32
"""Read at least so many at once: with few permits the next entry of the one who has them may be some way ahead."""


class _Slot:
    """A slot some of whose entries are held."""

    __slots__ = ("entries", "holder")

    def __init__(self, holder: Consumer) -> None:
        self.holder = holder
        self.entries = 0


class KeySharedDispatcher:
    """Delivers every entry to the owner of its key's slot."""

    kind: ClassVar[SubscriptionType] = SubscriptionType.KEY_SHARED
    traits_wanted: ClassVar[TraitsWanted] = TraitsWanted.ALL

    def __init__(self, cursor: Cursor, limits: DispatchLimits, _topic: str) -> None:
        self._cursor = cursor
        self._limits = limits
        self._consumers: list[Consumer] = []
        self._policy = KeySharedPolicy()
        self._ranges: HashRanges | None = None
        self._read = cursor.mark_delete
        self._unacknowledged = 0
        self._blocked = False
        self._redeliveries: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}  # of entries that are held, wait or are stuck
        self._slots: dict[int, _Slot] = {}  # empty where out-of-order delivery is allowed
        self._stuck: dict[int, IntervalSet] = {}  # by slot
        self._waiting = 0  # entries that wait or are stuck
        self._now_ms = 0
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        self._due = IntervalSet()  # delayed entries whose time has come

    @property
    def consumers(self) -> Sequence[Consumer]:
        return self._consumers

    @property
    def active(self) -> Consumer | None:
        return None

    @property
    def unacknowledged(self) -> int:
        return self._unacknowledged

    @property
    def waiting_entries(self) -> int:
        """Entries that were read and could not be delivered yet."""
        return self._waiting

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        """Slots by consumer's handle, as inclusive ranges."""
        return {consumer.handle: found for consumer, found in self._ranges.ranges().items()} if self._ranges is not None else {}

    # --- consumers --------------------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if the others follow another policy, ConsumerAssignError if it can be given no slots."""
        policy = consumer.key_shared
        if self._ranges is None:
            self._ranges = hash_ranges(policy, consistent_hashing=self._limits.key_shared_consistent_hashing)
            self._policy = policy
        elif (policy.mode, policy.out_of_order) != (self._policy.mode, self._policy.out_of_order):
            raise ConsumerBusy(
                f"Key_Shared consumers here use {self._policy.mode.name} with allowOutOfOrderDelivery={self._policy.out_of_order}; "
                "subscribe with the same policy"
            )
        self._ranges.add(consumer)
        self._consumers.append(consumer)
        self._assign_anew()

    def remove(self, consumer: Consumer) -> None:
        """What it held or was to get goes to the new owners; that is no redelivery in the sense of the count."""
        assert self._ranges is not None
        self._ranges.remove(consumer)
        self._consumers.remove(consumer)
        waited = list(consumer.waiting)
        consumer.waiting.clear()
        for ordinal in sorted(consumer.held):
            self._give_back(consumer, ordinal)
        assert consumer.unacknowledged == 0, consumer.unacknowledged
        self._assign_anew(waited)

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits

    def limit(self, limits: DispatchLimits) -> None:
        """Other limits from now on; how slots are divided stays until the last consumer has left."""
        self._limits = limits
        self._look_again_at(self._delayed.take_all())
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        for consumer in self._consumers:
            consumer.blocked = 0 < limits.unacknowledged_per_consumer_messages_max <= consumer.unacknowledged
        self._blocked = 0 < limits.unacknowledged_per_subscription_messages_max <= self._unacknowledged

    def _owner(self, slot: int) -> Consumer | None:
        return self._ranges.owner(slot) if self._ranges is not None else None

    def _assign_anew(self, more: Iterable[tuple[int, int]] = ()) -> None:
        """Owners have changed: look again who gets what waits (and `more`, which waited for one that has left)."""
        runs = [*more]
        for consumer in self._consumers:
            runs += consumer.waiting
            consumer.waiting.clear()
        for stuck in self._stuck.values():
            runs += stuck
        self._stuck.clear()
        self._waiting = 0
        for start, end in sorted(runs):
            for ordinal in range(start, end):
                self._put_aside(ordinal, self._slot_of[ordinal])

    def _put_aside(self, ordinal: int, slot: int) -> None:
        """The entry is not held by anybody: it waits for its owner, or is stuck."""
        self._slot_of[ordinal] = slot
        self._waiting += 1
        owner, held = self._owner(slot), self._slots.get(slot)
        if owner is None or (held is not None and held.holder is not owner):
            self._stuck.setdefault(slot, IntervalSet()).add(ordinal, ordinal + 1)
        else:
            owner.waiting.add(ordinal, ordinal + 1)

    # --- what comes back --------------------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer | None, start: int, end: int) -> bool:
        self._due.remove(start, end)
        slots = self._slot_of
        ordinals = range(start, end) if end - start <= len(slots) else [known for known in slots if start <= known < end]
        full = self._waiting >= self._look_ahead_max()
        unblocked = False
        for ordinal in ordinals:
            slot = slots.get(ordinal)
            if slot is None:
                continue
            holder = self._holder(consumer, ordinal, slot)
            if holder is not None:
                unblocked |= self._let_go(holder, ordinal, slot)
            else:
                self._stop_waiting(ordinal, slot)
            del slots[ordinal]
            self._redeliveries.pop(ordinal, None)
        return unblocked or (full and self._waiting < self._look_ahead_max())

    def acknowledged_partly(self, consumer: Consumer | None, ordinal: int, remaining: int) -> bool:
        slot = self._slot_of.get(ordinal)
        holder = self._holder(consumer, ordinal, slot) if slot is not None else None
        if holder is None:
            return False
        held = holder.held[ordinal]
        if remaining >= held:
            return False
        holder.held[ordinal] = remaining
        return self._release(holder, held - remaining)

    def redeliver(self, consumer: Consumer, ranges: Sequence[tuple[int, int]] | None, epoch: int) -> None:
        """Only entries that this consumer holds come back; each is counted."""
        del epoch
        held, redeliveries = consumer.held, self._redeliveries
        for start, end in [(0, self._cursor.end)] if ranges is None else ranges:
            few = end - start <= len(held)
            for ordinal in range(start, end) if few else sorted(known for known in held if start <= known < end):
                if ordinal in held:
                    self._give_back(consumer, ordinal)
                    redeliveries[ordinal] = redeliveries.get(ordinal, 0) + 1

    def rewind(self) -> None:
        self._read = self._cursor.mark_delete
        self._redeliveries.clear()
        self._slot_of.clear()
        self._slots.clear()
        self._stuck.clear()
        self._delayed.clear()
        self._due.clear()
        self._waiting = self._unacknowledged = 0
        self._blocked = False
        for consumer in self._consumers:
            consumer.held.clear()
            consumer.waiting.clear()
            consumer.permits, consumer.unacknowledged, consumer.blocked = 0, 0, False

    def _holder(self, consumer: Consumer | None, ordinal: int, slot: int) -> Consumer | None:
        """Who holds the entry: usually the one that acknowledges it."""
        if consumer is not None and ordinal in consumer.held:
            return consumer
        if not self._policy.out_of_order:
            held = self._slots.get(slot)
            return held.holder if held is not None and ordinal in held.holder.held else None
        return next((other for other in self._consumers if ordinal in other.held), None)

    def _let_go(self, holder: Consumer, ordinal: int, slot: int) -> bool:
        """Take the entry away from its holder; True if that unblocked delivery."""
        unblocked = self._release(holder, holder.held.pop(ordinal))
        held = self._slots.get(slot)
        if held is None:
            return unblocked
        held.entries -= 1
        if held.entries:
            return unblocked
        del self._slots[slot]
        return self._unstick(slot) or unblocked

    def _unstick(self, slot: int) -> bool:
        """Nobody holds anything of the slot any more: its owner may get what is stuck. True if there is something, and an owner."""
        owner = self._owner(slot)
        if owner is None or slot not in self._stuck:
            return False
        for start, end in self._stuck.pop(slot):
            owner.waiting.add(start, end)
        return True

    def _give_back(self, consumer: Consumer, ordinal: int) -> None:
        slot = self._slot_of[ordinal]
        self._let_go(consumer, ordinal, slot)
        self._put_aside(ordinal, slot)

    def _stop_waiting(self, ordinal: int, slot: int) -> None:
        """The entry is acknowledged before it could be delivered."""
        self._waiting -= 1
        stuck, owner = self._stuck.get(slot), self._owner(slot)
        if stuck is not None and stuck.remove(ordinal, ordinal + 1):
            if not stuck:
                del self._stuck[slot]
        elif owner is not None:
            owner.waiting.remove(ordinal, ordinal + 1)

    def _release(self, consumer: Consumer, messages: int) -> bool:
        """Lower the counts and lift blocks at half their limits; True if a block was lifted."""
        limits = self._limits
        consumer.unacknowledged -= messages
        self._unacknowledged -= messages
        unblocked = False
        if consumer.blocked and consumer.unacknowledged <= limits.unacknowledged_per_consumer_messages_max // 2:
            consumer.blocked, unblocked = False, True
        if self._blocked and self._unacknowledged <= limits.unacknowledged_per_subscription_messages_max // 2:
            self._blocked, unblocked = False, True
        return unblocked

    # --- what goes out ----------------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        del now_ms
        return ()

    def next_wakeup_ms(self) -> int | None:
        return self._delayed.next_ms()

    def _look_ahead_max(self) -> int:
        """How many entries may wait before nothing new is read."""
        limits = self._limits
        per_consumer = limits.look_ahead_per_consumer_entries_max * len(self._consumers)
        return min(per_consumer, limits.look_ahead_per_subscription_entries_max)

    def next_read(self, limit_entries: int, now_ms: int) -> ReadRequest | None:
        self._now_ms = now_ms
        if self._delayed:
            self._look_again_at(self._delayed.take_due(now_ms))
        ready = [consumer for consumer in self._consumers if consumer.ready]
        if self._blocked or not ready:
            return None
        permits = sum(consumer.permits for consumer in ready)
        waiting = [consumer.waiting for consumer in ready if consumer.waiting]
        if waiting:
            return read_span(heapq.merge(*waiting), min(limit_entries, permits))
        cursor, room = self._cursor, self._look_ahead_max() - self._waiting
        limit = min(limit_entries, room, max(permits, LOOK_AHEAD_ENTRIES_MIN))
        if limit <= 0:
            return None
        if self._due:
            return read_span(self._due, limit)
        self._read = read = cursor.first_unacknowledged(self._read)
        if read >= cursor.end or (cursor.saturated and read >= cursor.acknowledged_end):
            return None
        if read >= cursor.acknowledged_end:
            return ReadRequest(read, min(limit, cursor.end - read))
        return read_span(cursor.unacknowledged(read, min(read + limit, cursor.end)), limit)

    def dispatch(
        self, first: int, message_counts: Sequence[int], traits: Sequence[EntryTraits | None] | None = None
    ) -> list[Delivery]:
        if self._blocked:
            return []
        costs = remaining_costs(self._cursor, first, message_counts)
        end = first + len(costs)
        given: dict[Consumer, list[int]] = {}
        for consumer in self._consumers:
            # Lowest first: what was not fetched may be of the same key as what was.
            if consumer.waiting and first <= consumer.waiting.start < end and consumer.ready:
                self._give_waiting(consumer, first, costs, given.setdefault(consumer, []))
        if traits is not None:
            for start, stop in list(self._due.overlap(first, min(end, self._read))):
                reached = self._give_read(start, stop, first, costs, traits, given)
                self._due.remove(start, reached)
                if reached < stop:
                    break
            if first <= self._read < end:
                for start, stop in list(self._cursor.unacknowledged(self._read, end)):
                    self._read = self._give_read(start, stop, first, costs, traits, given)
                    if self._read < stop:
                        break
        return [delivery for consumer, ordinals in given.items() for delivery in self._deliveries(consumer, ordinals, first, costs)]

    def _give_waiting(self, consumer: Consumer, first: int, costs: Sequence[int], given: list[int]) -> None:
        """Give the consumer what was fetched of that which waits for it, as far as its permits go."""
        for start, end in list(consumer.waiting.overlap(first, first + len(costs))):
            stop = start
            while stop < end and consumer.ready and not self._blocked:
                self._hold(consumer, stop, self._slot_of[stop], costs[stop - first])
                given.append(stop)
                stop += 1
            self._waiting -= consumer.waiting.remove(start, stop)
            if stop < end:
                return

    def _look_again_at(self, runs: Iterable[tuple[int, int]]) -> None:
        """Delayed entries whose time has come are to be read again, for their keys."""
        for start, end in runs:
            for first, last in self._cursor.unacknowledged(start, end):
                self._due.add(first, last)

    def _too_early(self, ordinal: int, deliver_at_ms: int) -> bool:
        """Whether the entry must wait for its time; one that has waited may come with those of its tick."""
        if deliver_at_ms <= self._now_ms or not self._limits.delayed_delivery:
            return False
        return ordinal >= self._read or not self._delayed.early_enough(deliver_at_ms, self._now_ms)

    def _give_read(
        self,
        start: int,
        end: int,
        first: int,
        costs: Sequence[int],
        traits: Sequence[EntryTraits | None],
        given: dict[Consumer, list[int]],
    ) -> int:
        """Give the entries [start, end), just read, to their owners, or put them aside; where that had to stop."""
        ready = sum(consumer.ready for consumer in self._consumers)
        room = self._look_ahead_max() - self._waiting
        for ordinal in range(start, end):
            if ready <= 0 or self._blocked:
                return ordinal
            known = traits[ordinal - first]
            if known is not None and known.deliver_at_ms and self._too_early(ordinal, known.deliver_at_ms):
                self._delayed.add(ordinal, ordinal + 1, known.deliver_at_ms, self._cursor.unacknowledged)
                continue
            slot = slot_of(known.key_hash) if known is not None else 1
            owner = self._owner(slot)
            if owner is None or owner.waiting or not owner.ready or not self._may_hold(owner, slot):
                if room <= 0:
                    return ordinal
                room -= 1
                self._put_aside(ordinal, slot)
                continue
            self._hold(owner, ordinal, slot, costs[ordinal - first])
            ready -= not owner.ready
            found = given.get(owner)
            if found is None:
                given[owner] = [ordinal]
            else:
                found.append(ordinal)
        return end

    def _may_hold(self, owner: Consumer, slot: int) -> bool:
        """Whether order allows it: nothing of the slot is held by somebody else, hence nothing of it is stuck either."""
        held = self._slots.get(slot)
        return held is None or held.holder is owner

    def _hold(self, consumer: Consumer, ordinal: int, slot: int, cost: int) -> None:
        """Record that the consumer holds the entry."""
        limits = self._limits
        self._slot_of[ordinal] = slot
        consumer.held[ordinal] = cost
        if not self._policy.out_of_order:
            held = self._slots.get(slot)
            if held is None:
                held = self._slots[slot] = _Slot(consumer)
            held.entries += 1
        consumer.permits -= cost
        consumer.messages_out += cost
        consumer.unacknowledged += cost
        self._unacknowledged += cost
        if 0 < limits.unacknowledged_per_consumer_messages_max <= consumer.unacknowledged:
            consumer.blocked = True
        if 0 < limits.unacknowledged_per_subscription_messages_max <= self._unacknowledged:
            self._blocked = True

    def _deliveries(self, consumer: Consumer, ordinals: Sequence[int], first: int, costs: Sequence[int]) -> Iterable[Delivery]:
        """What one consumer was given, in order and in runs."""
        at = 0
        while at < len(ordinals):
            start, end = ordinals[at], ordinals[at] + 1
            at += 1
            while at < len(ordinals) and ordinals[at] == end:
                at += 1
                end += 1
            messages, count = sum(costs[start - first : end - first]), end - start
            counts, ack_sets = self._redelivery_counts(start, count), ack_sets_of(self._cursor, start, count)
            yield Delivery(consumer.handle, start, count, messages, counts, ack_sets, consumer.epoch)

    def _redelivery_counts(self, start: int, count: int) -> list[int] | None:
        redeliveries = self._redeliveries
        if not redeliveries:
            return None
        counts = [redeliveries.get(ordinal, 0) for ordinal in range(start, start + count)]
        return counts if any(counts) else None
