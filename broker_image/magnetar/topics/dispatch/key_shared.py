"""Key_Shared: any number of consumers, each key in order at one of them.

Owns: who holds which entry, what waits for whom, redelivery counts, limits on unacknowledged
messages. Imports: dispatch, hash_ranges, delayed, chunks, intervals. Pure. Source: Pulsar's
Key_Shared dispatcher with draining hashes (PIP-379) Invariants: all entries of one slot (hash of
keys) that are held are held by one consumer, unless out-of-order delivery is allowed; an
unacknowledged entry below the read position is held, waits for its slot's owner, is stuck (its slot
is still held by a previous owner, or has none), or waits for its time; what waits for an owner goes
out lowest first and before anything newer of that owner; reading goes on past what waits, up to a
bound, so that other keys keep flowing. A message in chunks stays with the consumer that got its
first chunk, who could not acknowledge it otherwise. Cost: per entry some dictionary operations and
a bisection; a consumer that joins or leaves costs the entries that wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import ClassVar

from magnetar.errors import ConsumerBusy
from magnetar.topics.dispatch.base import (
    ChunkTrait,
    Consumer,
    CursorView,
    Delivery,
    DispatchLimits,
    EntryTraits,
    KeySharedPolicy,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
    read_span,
    remaining_costs,
)
from magnetar.topics.dispatch.chunks import ChunkAssignments
from magnetar.topics.dispatch.delayed import DelayedEntries
from magnetar.topics.dispatch.hash_ranges import HashRanges, hash_ranges, slot_of
from magnetar.topics.dispatch.turns import HeldSlot, Round, Turn, ready_permits
from magnetar.topics.intervals import IntervalSet, known_within

LOOK_AHEAD_ENTRIES_MIN = 32
"""Read at least so many at once: with few permits the next entry of the one who has them may be
some way ahead."""

NO_TRAITS = EntryTraits()
_UNLIMITED = 1 << 62


class KeySharedDispatcher:
    """Delivers every entry to the owner of its key's slot."""

    kind: ClassVar[SubscriptionType] = SubscriptionType.KEY_SHARED
    traits_wanted: ClassVar[TraitsWanted] = TraitsWanted.ALL

    def __init__(self, cursor: CursorView, limits: DispatchLimits, _topic: str) -> None:
        self.cursor = cursor
        self._limits = limits
        self._consumers: list[Consumer] = []
        # All that are ready, and those that have something waiting; both may hold some more, found
        # out when they are looked at.
        self._ready: dict[Consumer, None] = {}
        self._awaiting: dict[Consumer, None] = {}
        self._policy = KeySharedPolicy()
        self._ranges: HashRanges | None = None
        self._owners: dict[int, Consumer | None] = {}  # by slot, as far as it was asked for
        self._read = cursor.mark_delete
        self._unacknowledged = 0
        self._blocked = False
        self._redeliveries: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}  # of entries that are held, wait or are stuck
        self._deferred: dict[int, int] = {}  # slots of entries that transactions hold
        self._slots: dict[int, HeldSlot] = {}  # empty where out-of-order delivery is allowed
        self._stuck: dict[int, IntervalSet] = {}  # by slot
        self._waiting = 0  # entries that wait or are stuck
        self._chunk_of: dict[int, ChunkTrait] = {}  # of those among them that are chunks
        # of chunks, and by slot those that wait for another than the owner
        self._waits_for: dict[int, Consumer] = {}
        self._strays: dict[int, list[int]] = {}
        # where out-of-order delivery is allowed: elsewhere the slot says it
        self._held_by: dict[int, Consumer] = {}
        self._chunks = ChunkAssignments(limits.chunked_messages_max)
        self._now_ms = 0
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        # their time has come; whose they are is known when they are read again
        self._due = IntervalSet()

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
    def delayed_entries(self) -> int:
        return self._delayed.size

    @property
    def blocked(self) -> bool:
        return self._blocked

    def hash_ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        """Slots by consumer's handle, as inclusive ranges."""
        return (
            {consumer.handle: found for consumer, found in self._ranges.ranges().items()}
            if self._ranges is not None
            else {}
        )

    # --- consumers --------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if the others follow another policy, ConsumerAssignError if it can
        be given no slots."""
        policy = consumer.key_shared
        if self._ranges is None:
            self._ranges = hash_ranges(
                policy, consistent_hashing=self._limits.key_shared_consistent_hashing
            )
            self._policy = policy
        elif (policy.mode, policy.out_of_order) != (self._policy.mode, self._policy.out_of_order):
            raise ConsumerBusy(
                f"Key_Shared consumers here use {self._policy.mode.name} with "
                f"allowOutOfOrderDelivery={self._policy.out_of_order}; "
                "subscribe with the same policy"
            )
        self._ranges.add(consumer)
        self._consumers.append(consumer)
        self._assign_again()

    def remove(self, consumer: Consumer) -> None:
        """What it held or was to get goes to the new owners; that is no redelivery in the sense
        of the count."""
        assert self._ranges is not None
        self._ranges.remove(consumer)
        self._owners.clear()
        self._consumers.remove(consumer)
        self._chunks.forget(consumer)
        waited = list(consumer.waiting)
        consumer.waiting.clear()
        for ordinal in sorted(consumer.held):
            self._give_back(consumer, ordinal)
        assert consumer.unacknowledged == 0, consumer.unacknowledged
        # Last, because giving back may lift its block.
        self._ready.pop(consumer, None)
        self._awaiting.pop(consumer, None)
        self._assign_again(waited)

    def flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        if consumer.ready:
            self._ready[consumer] = None

    def limit(self, limits: DispatchLimits) -> None:
        """Other limits from now on; how slots are divided stays until the last consumer has left.

        What waits for its time goes out if delays are not honoured any more.
        """
        self._limits = limits
        self._take_due(self._delayed.take_all())
        self._delayed = DelayedEntries(limits.delay_tick_ms, limits.delayed_runs_max)
        for consumer in self._consumers:
            consumer.blocked = (
                0 < limits.unacknowledged_per_consumer_messages_max <= consumer.unacknowledged
            )
            self.flow(consumer, 0)
        self._blocked = (
            0 < limits.unacknowledged_per_subscription_messages_max <= self._unacknowledged
        )

    def _owner(self, slot: int) -> Consumer | None:
        try:
            return self._owners[slot]
        except KeyError:
            owner = self._owners[slot] = (
                self._ranges.owner(slot) if self._ranges is not None else None
            )
            return owner

    def _destination(self, slot: int, chunk: ChunkTrait | None) -> Consumer | None:
        """Who must get an entry of the slot."""
        begun = self._chunks.consumer_of(chunk) if chunk is not None else None
        if begun is None:
            return self._owner(slot)
        # Whoever holds nothing of the slot any more has acknowledged chunks one by one: the order
        # of the key goes before its message.
        held = self._slots.get(slot)
        in_turn = self._policy.out_of_order or (held is not None and held.holder is begun)
        return begun if in_turn else self._owner(slot)

    def _assign_again(self, more: Iterable[tuple[int, int]] = ()) -> None:
        """Owners have changed: look again who gets what waits (and `more`, which waited for one
        that has left)."""
        self._owners.clear()
        runs = [*more]
        for consumer in self._consumers:
            runs += consumer.waiting
            consumer.waiting.clear()
        for stuck in self._stuck.values():
            runs += stuck
        self._stuck.clear()
        self._strays.clear()
        self._waiting = 0
        for start, end in sorted(runs):
            for ordinal in range(start, end):
                self._put_aside(ordinal, self._slot_of[ordinal])

    def _put_aside(self, ordinal: int, slot: int) -> None:
        """The entry is not held by anybody: it waits for its owner, or is stuck."""
        self._slot_of[ordinal] = slot
        self._waiting += 1
        chunk = self._chunk_of.get(ordinal)
        owner, held = self._destination(slot, chunk), self._slots.get(slot)
        if owner is None or (held is not None and held.holder is not owner):
            self._stuck.setdefault(slot, IntervalSet()).add(ordinal, ordinal + 1)
            return
        owner.waiting.add(ordinal, ordinal + 1)
        self._awaiting[owner] = None
        if chunk is not None:
            self._waits_for[ordinal] = owner
            if owner is not self._owner(slot):
                self._strays.setdefault(slot, []).append(ordinal)

    # --- what comes back --------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer | None, start: int, end: int) -> bool:
        slots = self._slot_of
        full = self._waiting >= self._limits.look_ahead_max(len(self._consumers))
        unblocked = False
        for ordinal in known_within(slots, start, end):
            slot = slots[ordinal]
            holder = self._holder(consumer, ordinal, slot)
            if holder is not None:
                unblocked |= self._let_go(holder, ordinal, slot)
            else:
                self._stop_waiting(ordinal, slot)
            del slots[ordinal]
            self._redeliveries.pop(ordinal, None)
        if self._due:
            self._due.remove(start, end)
        if self._deferred:
            for ordinal in known_within(self._deferred, start, end):
                del self._deferred[ordinal]
                self._redeliveries.pop(ordinal, None)
        return unblocked or (
            full and self._waiting < self._limits.look_ahead_max(len(self._consumers))
        )

    def deferred(self, consumer: Consumer | None, start: int, end: int) -> bool:
        """They keep their key, and what a consumer holds of them counts as delivered once,
        should it come back."""
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
                    self._put_aside(ordinal, self._deferred.pop(ordinal))
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
        return self._release(holder, held - remaining)

    def redeliver(
        self, consumer: Consumer, ranges: Sequence[tuple[int, int]] | None, epoch: int
    ) -> None:
        """Only entries that this consumer holds come back; each is counted."""
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
            self._chunk_of,
            self._waits_for,
            self._held_by,
        ):
            entries.clear()
        for others in (
            self._slots,
            self._stuck,
            self._strays,
            self._chunks,
            self._delayed,
            self._due,
        ):
            others.clear()
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
        return self._held_by.get(ordinal)

    def _let_go(self, holder: Consumer, ordinal: int, slot: int) -> bool:
        """Take the entry away from its holder; True if that unblocked delivery."""
        unblocked = self._release(holder, holder.held.pop(ordinal))
        held = self._slots.get(slot)
        if held is None:
            self._held_by.pop(ordinal, None)
            return unblocked
        held.entries -= 1
        if held.entries:
            return unblocked
        del self._slots[slot]
        if holder.waiting and holder is not self._owner(slot):
            self._take_from_waiting(holder, slot)
        return self._unstick(slot) or unblocked

    def _take_from_waiting(self, consumer: Consumer, slot: int) -> None:
        """Chunks wait for a consumer that holds nothing of their key any more, and is not its
        owner: they go with the others of the key."""
        for ordinal in self._strays.pop(slot, ()):
            if consumer.waiting.remove(ordinal, ordinal + 1):
                self._stuck.setdefault(slot, IntervalSet()).add(ordinal, ordinal + 1)

    def _unstick(self, slot: int) -> bool:
        """Nobody holds anything of the slot any more: its owner may get what is stuck. True if
        there is something."""
        stuck = self._stuck.pop(slot, None)
        if stuck is None:
            return False
        self._waiting -= stuck.size
        for start, end in stuck:
            for ordinal in range(start, end):
                self._put_aside(ordinal, slot)
        return True

    def _give_back(self, consumer: Consumer, ordinal: int) -> None:
        slot = self._slot_of[ordinal]
        self._let_go(consumer, ordinal, slot)
        self._put_aside(ordinal, slot)

    def _stop_waiting(self, ordinal: int, slot: int) -> None:
        """The entry is acknowledged before it could be delivered."""
        self._waiting -= 1
        chunk, stuck = self._chunk_of.pop(ordinal, None), self._stuck.get(slot)
        # The message that a chunk belongs to may not be assigned any more.
        owner = self._owner(slot) if chunk is None else self._waits_for.pop(ordinal, None)
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
        if (
            consumer.blocked
            and consumer.unacknowledged <= limits.unacknowledged_per_consumer_messages_max // 2
        ):
            consumer.blocked, unblocked = False, True
            self.flow(consumer, 0)
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
        permits = 0 if self._blocked else ready_permits(self._ready, limit_entries)
        if permits <= 0:
            return None
        waiting = [
            consumer.waiting for consumer in self._awaiting if consumer.waiting and consumer.ready
        ]
        if waiting:
            return read_span(heapq.merge(*waiting), min(limit_entries, permits))
        cursor, room = (
            self.cursor,
            self._limits.look_ahead_max(len(self._consumers)) - self._waiting,
        )
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
        self,
        first: int,
        message_counts: Sequence[int],
        traits: Sequence[EntryTraits | None] | None = None,
    ) -> list[Delivery]:
        if self._blocked:
            return []
        limit = self._limits.unacknowledged_per_subscription_messages_max
        costs = remaining_costs(self.cursor, first, message_counts)
        fetched = Round(
            first, costs, traits, limit - self._unacknowledged if limit > 0 else _UNLIMITED
        )
        for consumer in [*self._awaiting]:
            # Lowest first: what was not fetched may be of the same key as what was.
            if not consumer.waiting:
                del self._awaiting[consumer]
            elif first <= consumer.waiting.start < fetched.end and consumer.ready:
                self._give_waiting(consumer, fetched)
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

    def _give_waiting(self, consumer: Consumer, fetched: Round) -> None:
        """Give the consumer what was fetched of that which waits for it, as far as its permits
        go."""
        turn = fetched.turns[consumer] = Turn(self._limits.room_of(consumer))
        for start, end in list(consumer.waiting.overlap(fetched.first, fetched.end)):
            stop = start
            while stop < end and turn.room > 0 < fetched.room:
                self._give(consumer, turn, stop, self._slot_of[stop], fetched)
                if (chunk := self._chunk_of.pop(stop, None)) is not None:
                    self._waits_for.pop(stop, None)
                    self._chunks.given(chunk, consumer)
                stop += 1
            self._waiting -= consumer.waiting.remove(start, stop)
            if stop < end:
                break

    def _give_read(self, start: int, end: int, fetched: Round) -> int:
        """Give the entries [start, end), which nobody knows yet, to their owners, or put them
        aside; where that had to stop."""
        turns, slots = fetched.turns, self._slots
        takers = len(self._ready) - sum(turn.room <= 0 for turn in turns.values())
        space = self._limits.look_ahead_max(len(self._consumers)) - self._waiting
        delays, again = self._limits.delayed_delivery, start < self._read
        for ordinal in range(start, end):
            if takers <= 0 or fetched.room <= 0:
                return ordinal
            key_hash, deliver_at_ms, chunk = fetched.traits[ordinal - fetched.first] or NO_TRAITS
            if (
                deliver_at_ms
                and delays
                and self._delayed.must_wait(deliver_at_ms, self._now_ms, again=again)
            ):
                self._delayed.add(ordinal, ordinal + 1, deliver_at_ms, self.cursor.unacknowledged)
                continue
            if deliver_at_ms and again:
                # a transaction may have let go of it while it waited
                self._delayed.discard(ordinal, deliver_at_ms)
            slot = slot_of(key_hash)
            owner = self._owner(slot) if chunk is None else self._destination(slot, chunk)
            if owner is not None:
                turn = turns.get(owner)
                if turn is None:
                    turn = turns[owner] = Turn(0 if owner.waiting else self._limits.room_of(owner))
                if turn.room > 0 and ((held := slots.get(slot)) is None or held.holder is owner):
                    # Nothing of the slot is held by somebody else, hence nothing of it is stuck
                    # either.
                    self._give(owner, turn, ordinal, slot, fetched)
                    if chunk is not None:
                        self._chunks.given(chunk, owner)
                    takers -= turn.room <= 0
                    continue
            if space <= 0:
                return ordinal
            space -= 1
            if chunk is not None:
                self._chunk_of[ordinal] = chunk
            self._put_aside(ordinal, slot)
        return end

    def _give(
        self, consumer: Consumer, turn: Turn, ordinal: int, slot: int, fetched: Round
    ) -> None:
        cost = fetched.costs[ordinal - fetched.first]
        turn.add(ordinal, slot, cost)
        fetched.room -= cost
        if not self._policy.out_of_order:
            held = self._slots.get(slot)
            if held is None:
                held = self._slots[slot] = HeldSlot(consumer)
            held.entries += 1

    def _deliver(self, consumer: Consumer, turn: Turn) -> Delivery:
        """Record that the consumer holds what it was given."""
        limits, delivery = self._limits, turn.delivery(consumer, self.cursor, self._redeliveries)
        consumer.held.update(zip(turn.ordinals, turn.costs, strict=True))
        self._slot_of.update(zip(turn.ordinals, turn.slots, strict=True))
        if self._policy.out_of_order:
            self._held_by.update(dict.fromkeys(turn.ordinals, consumer))
        consumer.permits -= delivery.messages
        consumer.messages_out += delivery.messages
        consumer.unacknowledged += delivery.messages
        self._unacknowledged += delivery.messages
        if 0 < limits.unacknowledged_per_consumer_messages_max <= consumer.unacknowledged:
            consumer.blocked = True
        if 0 < limits.unacknowledged_per_subscription_messages_max <= self._unacknowledged:
            self._blocked = True
        return delivery
