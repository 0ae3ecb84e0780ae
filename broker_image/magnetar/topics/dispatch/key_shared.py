"""Key_Shared: any number of consumers, each key in order at one of them.

Owns: which entries are held, redelivery counts, the read position. Imports: base, chunks, delayed,
hash_ranges, key_waiting, turns, unacknowledged, intervals. Pure. Source: Pulsar's Key_Shared
dispatcher with draining hashes (PIP-379). Invariants: one consumer holds all held entries of a slot
(hash of keys), unless out-of-order delivery is allowed; an unacknowledged entry below the read
position is held, waits for its slot's owner, is stuck (see `key_waiting`), or waits for its time;
the waiting entries of an owner go out lowest first and before newer ones; reading goes on past
waiting entries, up to a bound, so that other keys flow. All chunks of a message go to one consumer,
which could not acknowledge it otherwise. Cost: some dictionary operations and a bisection per
entry; a consumer that joins or leaves costs all waiting entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
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
    read_from,
    read_span,
    remaining_costs,
)
from magnetar.topics.dispatch.chunks import ChunkAssignments
from magnetar.topics.dispatch.delayed import DelayedEntries
from magnetar.topics.dispatch.hash_ranges import SlotOwners
from magnetar.topics.dispatch.key_waiting import WaitingEntries
from magnetar.topics.dispatch.turns import HeldSlot, Round, Turn, ready_permits
from magnetar.topics.dispatch.unacknowledged import Unacknowledged
from magnetar.topics.intervals import IntervalSet, known_within

LOOK_AHEAD_ENTRIES_MIN = 32
"""Minimum of a read: with few permits the next entry of their consumer may be some way ahead."""

NO_TRAITS = EntryTraits()


class KeySharedDispatcher:
    """Delivers every entry to the owner of its key's slot."""

    kind: ClassVar[SubscriptionType] = SubscriptionType.KEY_SHARED
    traits_wanted: ClassVar[TraitsWanted] = TraitsWanted.ALL

    active: Consumer | None = None

    def __init__(self, cursor: CursorView, limits: DispatchLimits, _topic: str) -> None:
        self.cursor = cursor
        self._limits = limits
        self.unacknowledged = Unacknowledged(limits, self._offer)
        self._consumers: list[Consumer] = []
        self._ready: dict[Consumer, None] = {}  # a superset of the ready ones
        self._owners = SlotOwners(consistent_hashing=limits.key_shared_consistent_hashing)
        self._read = cursor.mark_delete
        self._redeliveries: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}  # of entries that are held, wait or are stuck
        self._deferred: dict[int, int] = {}  # slots of entries that transactions hold
        self._slots: dict[int, HeldSlot] = {}  # empty where out-of-order delivery is allowed
        self._held_by: dict[int, Consumer] = {}  # empty elsewhere: the slot has the holder
        self._chunks = ChunkAssignments(limits.chunked_messages_max)
        self._waiting = WaitingEntries(self._owners, self._chunks, self._slots)
        self._now_ms = 0
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        self._due = IntervalSet()  # delayed entries, to be read again

    @property
    def outstanding(self) -> bool:
        return self.unacknowledged.messages > 0

    @property
    def postponed(self) -> Postponed:
        return Postponed(self._delayed.size, self._waiting.size + self._due.size)

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        return self._owners.ranges()

    # --- consumers --------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        self._owners.add(consumer)
        self._consumers.append(consumer)
        self._waiting.reassign(self._consumers, self._slot_of)

    def remove(self, consumer: Consumer) -> None:
        """Its entries, held or waiting, go to the new owners; redelivery counts do not grow."""
        self._owners.remove(consumer)
        self._consumers.remove(consumer)
        self._chunks.forget(consumer)
        waited = list(consumer.waiting)
        consumer.waiting.clear()
        for ordinal in sorted(consumer.held):
            self._give_back(consumer, ordinal)
        assert consumer.unacknowledged == 0, consumer.unacknowledged
        # Last: giving back may lift its block.
        self._ready.pop(consumer, None)
        self._waiting.forget(consumer)
        self._waiting.reassign(self._consumers, self._slot_of, waited)

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        self._offer(consumer)

    def _offer(self, consumer: Consumer) -> None:
        """The consumer may be ready now."""
        if consumer.ready:
            self._ready[consumer] = None

    def limit(self, limits: DispatchLimits) -> None:
        """Delayed entries are read again: delays may be off now. The division of slots stays until
        the last consumer has left."""
        self._limits = limits
        self._take_due(self._delayed.take_all())
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        self.unacknowledged.limit(limits, self._consumers)

    # --- what comes back --------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer | None, start: int, end: int) -> bool:
        slots = self._slot_of
        full = self._waiting.size >= self._limits.look_ahead_max(len(self._consumers))
        unblocked = False
        for ordinal in known_within(slots, start, end):
            slot = slots[ordinal]
            holder = self._holder(consumer, ordinal, slot)
            if holder is not None:
                unblocked |= self._let_go(holder, ordinal, slot)
            else:
                self._waiting.remove(ordinal, slot)
            del slots[ordinal]
            self._redeliveries.pop(ordinal, None)
        if self._due:
            self._due.remove(start, end)
        if self._deferred:
            for ordinal in known_within(self._deferred, start, end):
                del self._deferred[ordinal]
                self._redeliveries.pop(ordinal, None)
        return unblocked or (
            full and self._waiting.size < self._limits.look_ahead_max(len(self._consumers))
        )

    def deferred(self, consumer: Consumer | None, start: int, end: int) -> bool:
        """They keep their slot, and held ones count as delivered once if the transaction releases
        them."""
        slots, redeliveries = self._slot_of, self._redeliveries
        known = {ordinal: slots[ordinal] for ordinal in known_within(slots, start, end)}
        known |= {
            ordinal: self._deferred[ordinal] for ordinal in known_within(self._deferred, start, end)
        }
        counts = {
            ordinal: redeliveries.get(ordinal, 0)
            + (self._holder(consumer, ordinal, slot) is not None)
            for ordinal, slot in known.items()
        }
        unblocked = self.acknowledged(consumer, start, end)
        self._deferred.update(known)
        redeliveries.update({ordinal: count for ordinal, count in counts.items() if count})
        return unblocked

    def returned(self, start: int, end: int) -> None:
        end = min(end, self._read)
        for ordinal in known_within(self._slot_of, start, end):
            holder = self._holder(None, ordinal, self._slot_of[ordinal])
            if holder is not None:
                self._redeliver(holder, ordinal)
        for first, last in list(self.cursor.unacknowledged(start, end)):
            for ordinal in range(first, last):
                if ordinal in self._deferred:
                    self._slot_of[ordinal] = slot = self._deferred.pop(ordinal)
                    self._waiting.add(ordinal, slot)
                elif ordinal not in self._slot_of:
                    self._due.add(ordinal, ordinal + 1)

    def acknowledged_partly(self, consumer: Consumer | None, ordinal: int, remaining: int) -> bool:
        slot = self._slot_of.get(ordinal)
        holder = self._holder(consumer, ordinal, slot) if slot is not None else None
        if holder is None:
            return False
        held = holder.held[ordinal]
        if remaining >= held:
            return False
        holder.held[ordinal] = remaining
        return self.unacknowledged.release(holder, held - remaining)

    def redeliver(
        self, consumer: Consumer, ranges: Sequence[tuple[int, int]] | None, epoch: int
    ) -> None:
        """Only entries that this consumer holds are redelivered; each is counted."""
        del epoch
        for start, end in [(0, self.cursor.end)] if ranges is None else ranges:
            for ordinal in known_within(consumer.held, start, end):
                self._redeliver(consumer, ordinal)

    def _redeliver(self, consumer: Consumer, ordinal: int) -> None:
        self._give_back(consumer, ordinal)
        self._redeliveries[ordinal] = self._redeliveries.get(ordinal, 0) + 1

    def rewind(self) -> None:
        self._read = self.cursor.mark_delete
        for entries in (
            self._redeliveries,
            self._slot_of,
            self._deferred,
            self._held_by,
            self._slots,
            self._chunks,
            self._delayed,
            self._due,
        ):
            entries.clear()
        self.unacknowledged.clear(self._consumers)
        self._waiting.clear(self._consumers)
        for consumer in self._consumers:
            consumer.held.clear()

    def _holder(self, consumer: Consumer | None, ordinal: int, slot: int) -> Consumer | None:
        """The holder of the entry, usually the consumer that acknowledges it."""
        if consumer is not None and ordinal in consumer.held:
            return consumer
        if not self._owners.policy.out_of_order:
            held = self._slots.get(slot)
            return held.holder if held is not None and ordinal in held.holder.held else None
        return self._held_by.get(ordinal)

    def _let_go(self, holder: Consumer, ordinal: int, slot: int) -> bool:
        """The consumer does not hold the entry any more; True if that unblocked delivery."""
        unblocked = self.unacknowledged.release(holder, holder.held.pop(ordinal))
        held = self._slots.get(slot)
        if held is None:
            self._held_by.pop(ordinal, None)
            return unblocked
        held.entries -= 1
        if held.entries:
            return unblocked
        del self._slots[slot]
        return self._waiting.slot_freed(holder, slot) or unblocked

    def _give_back(self, consumer: Consumer, ordinal: int) -> None:
        slot = self._slot_of[ordinal]
        self._let_go(consumer, ordinal, slot)
        self._waiting.add(ordinal, slot)

    # --- what goes out ----------------------------------------------------------------------------

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        del now_ms
        return ()

    def next_wakeup_ms(self) -> int | None:
        return self._delayed.next_ms()

    def _take_due(self, runs: Iterable[tuple[int, int]]) -> None:
        for start, end in runs:
            for first, last in self.cursor.unacknowledged(start, end):
                self._due.add(first, last)

    def next_read(self, limit_entries: int, now_ms: int) -> ReadRequest | None:
        self._now_ms = now_ms
        if self._delayed:
            self._take_due(self._delayed.take_due(now_ms))
        if self.unacknowledged.blocked:
            return None
        permits = ready_permits(self._ready, limit_entries)
        if permits <= 0:
            return None
        if waiting := self._waiting.deliverable():
            return read_span(heapq.merge(*waiting), min(limit_entries, permits))
        room = self._limits.look_ahead_max(len(self._consumers)) - self._waiting.size
        limit = min(limit_entries, room, max(permits, LOOK_AHEAD_ENTRIES_MIN))
        if limit <= 0:
            return None
        if self._due:
            return read_span(self._due, limit)
        self._read = self.cursor.first_unacknowledged(self._read)
        return read_from(self.cursor, self._read, limit)

    def dispatch(
        self,
        first: int,
        message_counts: Sequence[int],
        traits: Sequence[EntryTraits | None] | None = None,
    ) -> list[Delivery]:
        if self.unacknowledged.blocked:
            return []
        slots = None if self._owners.policy.out_of_order else self._slots
        costs = remaining_costs(self.cursor, first, message_counts)
        fetched = Round(first, costs, traits, self.unacknowledged.room, slots)
        for consumer in self._waiting.served_by(fetched):
            room = self._limits.room_of(consumer)
            self._waiting.give(consumer, fetched, self._slot_of, room)
        if not fetched.turns:
            for start, end in list(self._due.overlap(first, min(fetched.end, self._read))):
                self._due.remove(start, self._give_read(start, end, fetched))
            if first <= self._read < fetched.end:
                for start, end in list(self.cursor.unacknowledged(self._read, fetched.end)):
                    self._read = self._give_read(start, end, fetched)
                    if self._read < end:
                        break
        return [
            self._deliver(consumer, turn)
            for consumer, turn in fetched.turns.items()
            if turn.ordinals
        ]

    def _give_read(self, start: int, end: int, fetched: Round) -> int:
        """Give the entries [start, end), read for the first time or again, to their owners, or
        defer them; the ordinal at which that had to stop."""
        turns, slots, owner_of = fetched.turns, self._slots, self._owners.owner
        receivers = len(self._ready) - sum(turn.room <= 0 for turn in turns.values())
        space = self._limits.look_ahead_max(len(self._consumers)) - self._waiting.size
        delays, again = self._limits.delayed_delivery, start < self._read
        slot_of = self._owners.slot_of
        for ordinal in range(start, end):
            if receivers <= 0 or fetched.room <= 0:
                return ordinal
            key_hash, deliver_at_ms, chunk = fetched.traits[ordinal - fetched.first] or NO_TRAITS
            if (
                deliver_at_ms
                and delays
                and self._delayed.defers(
                    ordinal, deliver_at_ms, self._now_ms, self.cursor.unacknowledged, again=again
                )
            ):
                continue
            slot = slot_of(key_hash)
            owner = owner_of(slot) if chunk is None else self._waiting.destination(slot, chunk)
            if owner is not None:
                turn = turns.get(owner)
                if turn is None:
                    turn = turns[owner] = Turn(0 if owner.waiting else self._limits.room_of(owner))
                if turn.room > 0 and ((held := slots.get(slot)) is None or held.holder is owner):
                    # No other consumer holds entries of the slot, so none of it is stuck.
                    fetched.give(owner, turn, ordinal, slot)
                    if chunk is not None:
                        self._chunks.given(chunk, owner)
                    receivers -= turn.room <= 0
                    continue
            if space <= 0:
                return ordinal
            space -= 1
            self._slot_of[ordinal] = slot
            self._waiting.add(ordinal, slot, chunk)
        return end

    def _deliver(self, consumer: Consumer, turn: Turn) -> Delivery:
        """The consumer holds the entries of its turn."""
        delivery = turn.delivery(consumer, self.cursor, self._redeliveries)
        consumer.held.update(zip(turn.ordinals, turn.costs, strict=True))
        self._slot_of.update(zip(turn.ordinals, turn.slots, strict=True))
        if self._owners.policy.out_of_order:
            self._held_by.update(dict.fromkeys(turn.ordinals, consumer))
        self.unacknowledged.hold(consumer, delivery.messages)
        return delivery
