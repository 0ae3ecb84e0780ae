"""Entries that wait for the consumer of their key.

Owns: `WaitingEntries`: which entries a Key_Shared subscription has read and not given to a
consumer yet. Imports: base, chunks, hash_ranges, turns, intervals. Pure. Source: Pulsar's draining
hashes (PIP-379). Invariants: an entry waits for its consumer, or is stuck: a previous owner still
holds entries of its slot, or the slot has no owner; chunks wait for the consumer of their message
as long as it holds entries of the slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from magnetar.topics.dispatch.base import ChunkTrait, Consumer
from magnetar.topics.dispatch.chunks import ChunkAssignments
from magnetar.topics.dispatch.hash_ranges import SlotOwners
from magnetar.topics.dispatch.turns import HeldSlot, Round, Turn
from magnetar.topics.intervals import IntervalSet


class WaitingEntries:
    """Ordinals per consumer (`Consumer.waiting`) and per stuck slot; `size` counts them."""

    def __init__(
        self, owners: SlotOwners, chunks: ChunkAssignments, slots: Mapping[int, HeldSlot]
    ) -> None:
        """`slots` are the held ones."""
        self._owners, self._chunks, self._slots = owners, chunks, slots
        self.size = 0
        # A superset of the consumers for which entries wait.
        self._consumers: dict[Consumer, None] = {}
        self._stuck: dict[int, IntervalSet] = {}  # by slot
        self._chunk_of: dict[int, ChunkTrait] = {}
        self._waits_for: dict[int, Consumer] = {}  # of chunks
        # Chunks by slot that wait for another consumer than the owner.
        self._strays: dict[int, list[int]] = {}

    def destination(self, slot: int, chunk: ChunkTrait | None) -> Consumer | None:
        """The consumer that must get an entry of the slot."""
        begun = self._chunks.consumer_of(chunk) if chunk is not None else None
        if begun is None:
            return self._owners.owner(slot)
        # A consumer that holds nothing of the slot any more acknowledged chunks one by one: the
        # key's order goes before its message.
        held = self._slots.get(slot)
        in_order = self._owners.policy.out_of_order or (held is not None and held.holder is begun)
        return begun if in_order else self._owners.owner(slot)

    def add(self, ordinal: int, slot: int, chunk: ChunkTrait | None = None) -> None:
        """No consumer holds the entry: it waits, or is stuck."""
        self.size += 1
        if chunk is None:
            chunk = self._chunk_of.get(ordinal)
        else:
            self._chunk_of[ordinal] = chunk
        owner, held = self.destination(slot, chunk), self._slots.get(slot)
        if owner is None or (held is not None and held.holder is not owner):
            self._stuck.setdefault(slot, IntervalSet()).add(ordinal, ordinal + 1)
            return
        owner.waiting.add(ordinal, ordinal + 1)
        self._consumers[owner] = None
        if chunk is not None:
            self._waits_for[ordinal] = owner
            if owner is not self._owners.owner(slot):
                self._strays.setdefault(slot, []).append(ordinal)

    def remove(self, ordinal: int, slot: int) -> None:
        """The entry is acknowledged before it could be delivered."""
        self.size -= 1
        chunk, stuck = self._chunk_of.pop(ordinal, None), self._stuck.get(slot)
        # The message of a chunk may have no consumer any more.
        owner = self._owners.owner(slot) if chunk is None else self._waits_for.pop(ordinal, None)
        if stuck is not None and stuck.remove(ordinal, ordinal + 1):
            if not stuck:
                del self._stuck[slot]
        elif owner is not None:
            owner.waiting.remove(ordinal, ordinal + 1)

    def slot_freed(self, holder: Consumer, slot: int) -> bool:
        """`holder` held the last entry of the slot: stuck ones wait for the owner now. True if
        there are any."""
        if holder.waiting and holder is not self._owners.owner(slot):
            for ordinal in self._strays.pop(slot, ()):
                if holder.waiting.remove(ordinal, ordinal + 1):
                    self._stuck.setdefault(slot, IntervalSet()).add(ordinal, ordinal + 1)
        stuck = self._stuck.pop(slot, None)
        if stuck is None:
            return False
        self.size -= stuck.size
        for start, end in stuck:
            for ordinal in range(start, end):
                self.add(ordinal, slot)
        return True

    def reassign(
        self,
        consumers: Iterable[Consumer],
        slot_of: Mapping[int, int],
        more: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Owners have changed: find the consumers of all waiting entries again, and of `more`,
        which waited for a consumer that has left."""
        runs = [*more]
        for consumer in consumers:
            runs += consumer.waiting
            consumer.waiting.clear()
        for stuck in self._stuck.values():
            runs += stuck
        self._stuck.clear()
        self._strays.clear()
        self.size = 0
        for start, end in sorted(runs):
            for ordinal in range(start, end):
                self.add(ordinal, slot_of[ordinal])

    def forget(self, consumer: Consumer) -> None:
        """The consumer has left."""
        self._consumers.pop(consumer, None)

    def deliverable(self) -> list[IntervalSet]:
        """Entries that wait for ready consumers, per consumer."""
        return [
            consumer.waiting for consumer in self._consumers if consumer.waiting and consumer.ready
        ]

    def served_by(self, fetched: Round) -> list[Consumer]:
        """Ready consumers whose first waiting entry was fetched. Lowest first: entries below that
        were not fetched may have the same key."""
        found = []
        for consumer in [*self._consumers]:
            if not consumer.waiting:
                del self._consumers[consumer]
            elif fetched.first <= consumer.waiting.start < fetched.end and consumer.ready:
                found.append(consumer)
        return found

    def give(
        self, consumer: Consumer, fetched: Round, slot_of: Mapping[int, int], room: int
    ) -> None:
        """Give the consumer its waiting entries among the fetched ones, up to `room` messages."""
        turn = fetched.turns[consumer] = Turn(room)
        for start, end in list(consumer.waiting.overlap(fetched.first, fetched.end)):
            stop = start
            while stop < end and turn.room > 0 < fetched.room:
                fetched.give(consumer, turn, stop, slot_of[stop])
                if (chunk := self._chunk_of.pop(stop, None)) is not None:
                    self._waits_for.pop(stop, None)
                    self._chunks.given(chunk, consumer)
                stop += 1
            self.size -= consumer.waiting.remove(start, stop)
            if stop < end:
                break

    def clear(self, consumers: Iterable[Consumer]) -> None:
        self.size = 0
        for entries in (self._stuck, self._chunk_of, self._waits_for, self._strays):
            entries.clear()
        for consumer in consumers:
            consumer.waiting.clear()
