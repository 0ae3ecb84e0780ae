"""Entries of one read, chosen for consumers one by one.

Owns: `HeldSlot` (the holder of a slot), `Turn` (one consumer's share) and `Round` (all of one
read). Imports: base, acksets. Pure. Invariant: a turn becomes one delivery; its ordinals rise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.topics.acksets import words_of_mask
from magnetar.topics.dispatch.base import (
    Consumer,
    CursorView,
    Delivery,
    EntryTraits,
    redelivery_counts,
)


class HeldSlot:
    """A slot some of whose entries are held, all of them by one consumer."""

    __slots__ = ("entries", "holder")

    def __init__(self, holder: Consumer) -> None:
        self.holder = holder
        self.entries = 0


class Turn:
    """One consumer's share; `room` is how many more messages it may be given (the last entry may
    exceed it)."""

    __slots__ = ("costs", "ordinals", "room", "slots")

    def __init__(self, room: int) -> None:
        self.room = room
        self.ordinals: list[int] = []
        self.slots: list[int] = []
        self.costs: list[int] = []

    def delivery(
        self, consumer: Consumer, cursor: CursorView, redeliveries: Mapping[int, int]
    ) -> Delivery:
        """The turn must not be empty."""
        ordinals = self.ordinals
        first, count = ordinals[0], len(ordinals)
        counts = redelivery_counts(redeliveries, ordinals) if redeliveries else None
        ack_sets = None
        if cursor.partial:
            masks = [cursor.partial.get(ordinal, 0) for ordinal in ordinals]
            ack_sets = (
                [words_of_mask(mask) if mask else () for mask in masks] if any(masks) else None
            )
        scattered = ordinals if ordinals[-1] - first >= count else None
        return Delivery(
            consumer.handle,
            first,
            count,
            sum(self.costs),
            counts,
            ack_sets,
            consumer.epoch,
            scattered,
        )


class Round:
    """Entries first, first+1, ... of one read, the cost of each, and the turns of consumers."""

    __slots__ = ("_slots", "costs", "end", "first", "room", "traits", "turns")

    def __init__(
        self,
        first: int,
        costs: Sequence[int],
        traits: Sequence[EntryTraits | None] | None,
        room: int,
        slots: dict[int, HeldSlot] | None,
    ) -> None:
        """`room` is how many messages the subscription may be given. `slots` are the held ones;
        None where out-of-order delivery is allowed."""
        self.first, self.costs, self.end = first, costs, first + len(costs)
        self.traits: Sequence[EntryTraits | None] = (
            traits if traits is not None else [None] * len(costs)
        )
        self.room = room
        self.turns: dict[Consumer, Turn] = {}
        self._slots = slots

    def give(self, consumer: Consumer, turn: Turn, ordinal: int, slot: int) -> None:
        """One entry goes to the consumer, whose turn it is."""
        cost = self.costs[ordinal - self.first]
        turn.ordinals.append(ordinal)
        turn.slots.append(slot)
        turn.costs.append(cost)
        turn.room -= cost
        self.room -= cost
        slots = self._slots
        if slots is not None:
            held = slots.get(slot)
            if held is None:
                held = slots[slot] = HeldSlot(consumer)
            held.entries += 1


def ready_permits(ready: dict[Consumer, None], enough: int) -> int:
    """Permits of the ready consumers, counted no further than `enough`; a consumer that is not
    ready leaves `ready`."""
    total, gone = 0, []
    for consumer in ready:
        if not consumer.ready:
            gone.append(consumer)
            continue
        total += consumer.permits
        if total >= enough:
            break
    for consumer in gone:
        del ready[consumer]
    return total
