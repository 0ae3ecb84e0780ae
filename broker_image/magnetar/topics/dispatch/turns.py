"""What consumers are given out of one read, where entries are chosen one by one.

Owns: `HeldSlot` (who holds entries of a slot), `Turn` (one consumer's share) and `Round` (all of
one read). Imports: dispatch, cursor, acksets. Pure. Invariant: what a turn holds becomes one
delivery; ordinals are added in rising order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.topics.acksets import words_of_mask
from magnetar.topics.dispatch.base import Consumer, CursorView, Delivery, EntryTraits


class HeldSlot:
    """A slot some of whose entries are held."""

    __slots__ = ("entries", "holder")

    def __init__(self, holder: Consumer) -> None:
        self.holder = holder
        self.entries = 0


class Turn:
    """One consumer's share; `room` is how many messages more it may be given (the last entry may
    exceed it)."""

    __slots__ = ("costs", "ordinals", "room", "slots")

    def __init__(self, room: int) -> None:
        self.room = room
        self.ordinals: list[int] = []
        self.slots: list[int] = []
        self.costs: list[int] = []

    def add(self, ordinal: int, slot: int, cost: int) -> None:
        self.ordinals.append(ordinal)
        self.slots.append(slot)
        self.costs.append(cost)
        self.room -= cost

    def delivery(
        self, consumer: Consumer, cursor: CursorView, redeliveries: Mapping[int, int]
    ) -> Delivery:
        """As it is sent; the turn must not be empty."""
        ordinals = self.ordinals
        first, count = ordinals[0], len(ordinals)
        counts = ack_sets = None
        if redeliveries:
            found = [redeliveries.get(ordinal, 0) for ordinal in ordinals]
            counts = found if any(found) else None
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
    """Entries first, first+1, ... that were fetched, what each costs, and who is given which."""

    __slots__ = ("costs", "end", "first", "room", "traits", "turns")

    def __init__(
        self,
        first: int,
        costs: Sequence[int],
        traits: Sequence[EntryTraits | None] | None,
        room: int,
    ) -> None:
        """`room` is how many messages the subscription may be given."""
        self.first, self.costs, self.end = first, costs, first + len(costs)
        self.traits: Sequence[EntryTraits | None] = (
            traits if traits is not None else [None] * len(costs)
        )
        self.room = room
        self.turns: dict[Consumer, Turn] = {}


def ready_permits(ready: dict[Consumer, None], enough: int) -> int:
    """Permits of those that are ready together, counted no further than `enough`; who is not
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
