"""Which consumer of a Key_Shared subscription serves which hashes.

Owns: the 65536 slots that hashes of keys fall into, three ways to divide them (a ring of points,
halving, ranges that the consumers name), and `SlotOwners`. Imports: base, errors, hashes. Pure. Source:
Pulsar's key-shared selectors. Invariants: a slot has one owner or none (none only where consumers
name their ranges); with the ring a consumer that joins or leaves moves only slots of its own, with
halving only those of one neighbour; looking an owner up costs a bisection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from magnetar.errors import ConsumerAssignError, ConsumerBusy
from magnetar.hashes import murmur3
from magnetar.topics.dispatch.base import Consumer, KeySharedMode, KeySharedPolicy

SLOTS = 1 << 16
POINTS_PER_CONSUMER = 100

Ranges = dict[Consumer, list[tuple[int, int]]]


def slot_of(key_hash: int) -> int:
    """The slot of a key's hash where ranges are halved or named, 1..65535: slot 0 is never used,
    as its number means "none" to Pulsar."""
    return key_hash % SLOTS or 1


def ring_slot_of(key_hash: int) -> int:
    """The slot of a hash on the ring, of a key or of a point: 1..65535, all equally likely."""
    return key_hash % (SLOTS - 1) + 1


class HashRanges(Protocol):
    """A division of the slots among consumers."""

    @property
    def slot_of(self) -> Callable[[int], int]:
        """The slot of a key's hash."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerAssignError if it cannot be given any slots."""
        ...

    def remove(self, consumer: Consumer) -> None:
        """Its slots go to others, unless consumers name their ranges."""
        ...

    def owner(self, slot: int) -> Consumer | None:
        """The consumer that serves the slot."""
        ...

    def ranges(self) -> Ranges:
        """Slots by consumer, as inclusive ranges in order."""
        ...


def hash_ranges(policy: KeySharedPolicy, *, consistent_hashing: bool) -> HashRanges:
    """The division that a policy asks for."""
    if policy.mode is KeySharedMode.STICKY:
        return StickyRanges()
    return HashRing() if consistent_hashing else SplitRanges()


class HashRing:
    """Every consumer has points on a ring of slots, and serves those up to each of its points."""

    slot_of = staticmethod(ring_slot_of)

    def __init__(self) -> None:
        self._points: list[int] = []
        self._owners: dict[int, Consumer] = {}
        self._points_of: dict[Consumer, list[int]] = {}
        # Consumers of one name get numbers, so that their points differ; numbers are used again.
        self._numbers: dict[str, dict[int, Consumer]] = {}

    def add(self, consumer: Consumer) -> None:
        numbers = self._numbers.setdefault(consumer.name, {})
        number = next(free for free in range(len(numbers) + 1) if free not in numbers)
        numbers[number] = consumer
        own = self._points_of[consumer] = []
        for index in range(POINTS_PER_CONSUMER):
            point = ring_slot_of(murmur3(f"{consumer.name}\0{number}\0{index}".encode()))
            if point not in self._owners:
                self._owners[point] = consumer
                insort(self._points, point)
                own.append(point)

    def remove(self, consumer: Consumer) -> None:
        for point in self._points_of.pop(consumer):
            del self._owners[point]
            del self._points[bisect_left(self._points, point)]
        numbers = self._numbers[consumer.name]
        for number in [number for number, known in numbers.items() if known is consumer]:
            del numbers[number]
        if not numbers:
            del self._numbers[consumer.name]

    def owner(self, slot: int) -> Consumer | None:
        points = self._points
        if not points:
            return None
        at = bisect_left(points, slot)
        return self._owners[points[at] if at < len(points) else points[0]]

    def ranges(self) -> Ranges:
        found: Ranges = {consumer: [] for consumer in self._points_of}
        start = 0
        for point in self._points:
            found[self._owners[point]].append((start, point))
            start = point + 1
        if self._points and start < SLOTS:
            found[self._owners[self._points[0]]].append((start, SLOTS - 1))
        return found


class SplitRanges:
    """Every consumer has one range; a newcomer gets the lower half of the biggest."""

    slot_of = staticmethod(slot_of)

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        if not self._ends:
            self._ends.append(SLOTS)
            self._owners.append(consumer)
            return
        sizes = [end - start for start, end in zip([0, *self._ends], self._ends, strict=False)]
        biggest = max(sizes)
        if biggest <= 1:
            raise ConsumerAssignError(
                f"no range of hashes is left to split between {len(self._ends)} consumers; close "
                "some first"
            )
        at = sizes.index(biggest)
        self._ends.insert(at, self._ends[at] - (biggest >> 1))
        self._owners.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        at = self._owners.index(consumer)
        del self._owners[at]
        # Its range falls to the one above it; that of the uppermost to the one below.
        del self._ends[at if at < len(self._owners) else at - 1 if at else 0]

    def owner(self, slot: int) -> Consumer | None:
        return self._owners[bisect_left(self._ends, slot)] if self._ends else None

    def ranges(self) -> Ranges:
        starts = [0, *(end + 1 for end in self._ends)]
        return {
            owner: [(start, min(end, SLOTS - 1))]
            for owner, start, end in zip(self._owners, starts, self._ends, strict=False)
        }


class StickyRanges:
    """Every consumer names its ranges; entries of other slots wait."""

    slot_of = staticmethod(slot_of)

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._owners: list[Consumer] = []

    def add(self, consumer: Consumer) -> None:
        wanted = sorted(consumer.key_shared.ranges)
        self._check(wanted)
        rival = self.rival(wanted)
        if rival is not None:
            raise ConsumerAssignError(
                f"a range of {wanted} is taken by consumer {rival.name!r}; choose others"
            )
        for start, end in wanted:
            at = bisect_left(self._starts, start)
            self._starts.insert(at, start)
            self._ends.insert(at, end)
            self._owners.insert(at, consumer)

    def _check(self, wanted: Sequence[tuple[int, int]]) -> None:
        if not wanted:
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        last = -1
        for start, end in wanted:
            if not 0 <= start <= end < SLOTS:
                raise ConsumerAssignError(
                    f"hashRanges: [{start}, {end}] is no range within 0..{SLOTS - 1}"
                )
            if start <= last:
                raise ConsumerAssignError(
                    f"hashRanges: [{start}, {end}] overlaps another range of this consumer"
                )
            last = end

    def rival(self, wanted: Sequence[tuple[int, int]]) -> Consumer | None:
        """A consumer that serves part of the wanted ranges."""
        for start, end in wanted:
            at = bisect_left(self._ends, start)
            if at < len(self._starts) and self._starts[at] <= end:
                return self._owners[at]
        return None

    def remove(self, consumer: Consumer) -> None:
        kept = [at for at, owner in enumerate(self._owners) if owner is not consumer]
        self._starts = [self._starts[at] for at in kept]
        self._ends = [self._ends[at] for at in kept]
        self._owners = [self._owners[at] for at in kept]

    def owner(self, slot: int) -> Consumer | None:
        at = bisect_right(self._starts, slot) - 1
        return self._owners[at] if at >= 0 and slot <= self._ends[at] else None

    def ranges(self) -> Ranges:
        found: Ranges = {}
        for owner, start, end in zip(self._owners, self._starts, self._ends, strict=True):
            found.setdefault(owner, []).append((start, end))
        return found


class SlotOwners:
    """The consumer of each slot, by the policy of the first consumer."""

    __slots__ = ("_consistent_hashing", "_owners", "_ranges", "policy", "slot_of")

    def __init__(self, *, consistent_hashing: bool) -> None:
        self._consistent_hashing = consistent_hashing
        self.policy = KeySharedPolicy()
        self._ranges: HashRanges | None = None
        self._owners: dict[int, Consumer | None] = {}  # those that were asked for
        self.slot_of: Callable[[int], int] = slot_of
        """The slot of a key's hash, once there is a consumer."""

    def add(self, consumer: Consumer) -> None:
        """Raises ConsumerBusy if the others follow another policy, ConsumerAssignError if no
        slots are left for it."""
        policy, first = consumer.key_shared, self.policy
        if self._ranges is None:
            self.policy = policy
            self._ranges = hash_ranges(policy, consistent_hashing=self._consistent_hashing)
            self.slot_of = self._ranges.slot_of
        elif (policy.mode, policy.out_of_order) != (first.mode, first.out_of_order):
            raise ConsumerBusy(
                f"Key_Shared consumers here use {first.mode.name} with "
                f"allowOutOfOrderDelivery={first.out_of_order}; subscribe with the same policy"
            )
        self._ranges.add(consumer)
        self._owners.clear()

    def remove(self, consumer: Consumer) -> None:
        assert self._ranges is not None
        self._ranges.remove(consumer)
        self._owners.clear()

    def owner(self, slot: int) -> Consumer | None:
        try:
            return self._owners[slot]
        except KeyError:
            owner = self._ranges.owner(slot) if self._ranges is not None else None
            self._owners[slot] = owner
            return owner

    def ranges(self) -> Mapping[Hashable, Sequence[tuple[int, int]]]:
        """Slots by consumer's handle, as inclusive ranges."""
        found = self._ranges.ranges() if self._ranges is not None else {}
        return {consumer.handle: ranges for consumer, ranges in found.items()}
