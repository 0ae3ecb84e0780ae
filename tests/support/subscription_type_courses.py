"""Random courses of a subscription, by type.

Owns: what delivery owes the consumers of an Exclusive, Failover, Shared and Key_Shared
subscription. Imports: magnetar.topics, the course that all types share.
"""

from __future__ import annotations

from magnetar.topics.dispatch.base import (
    ChunkTrait,
    Delivery,
    ReadRequest,
    SubscriptionType,
    TraitsWanted,
)
from magnetar.topics.dispatch.hash_ranges import ring_slot_of
from tests.support.subscription_course import (
    BATCH_MAX,
    CONSUMER_MAX,
    PARTITION,
    SUBSCRIPTION_MAX,
    TICK_MS,
    TURN_MAX,
    Course,
)


class ExclusiveCourse(Course):
    """Exclusive: one consumer, order, nothing else."""

    kind = SubscriptionType.EXCLUSIVE


class FailoverCourse(Course):
    """Failover: order, to one of several consumers at a time, each of which begins at the
    mark-delete when its turn comes."""

    kind = SubscriptionType.FAILOVER
    consumers_max = 5

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.serving: int | None = None

    def active(self) -> int | None:
        """By Pulsar's rule for partitions."""
        best = min((self.priorities[handle] for handle in self.held), default=0)
        candidates = sorted(handle for handle in self.held if self.priorities[handle] == best)
        return candidates[PARTITION % len(candidates)] if candidates else None

    def notified(self, handle: int, active: bool) -> None:
        assert active == (handle == self.active())
        if active:
            self.serving = handle
            self.joined()

    def left(self, held: set[int]) -> None:
        del held
        if self.serving not in self.held:
            self.serving = None

    def disconnect_for_seek(self) -> None:
        """Only the active one is sent away."""
        active = self.active()
        if active is not None:
            self.subscription.remove_consumer(active)
            del self.permits[active]
            self.left(self.held.pop(active))

    def given_back(self, handle: int, ranges: list[tuple[int, int]] | None) -> None:
        if handle in (self.active(), self.serving):
            super().given_back(handle, ranges)

    def check_delivery(self, handle: int, delivery: Delivery) -> None:
        assert handle == self.active() == self.serving, (
            "only the active consumer is served, and only from the begin of its turn"
        )
        super().check_delivery(handle, delivery)


class SharedCourse(Course):
    """Shared: turns, replays, counted redeliveries, limits, delays, and chunks that stay
    together."""

    kind = SubscriptionType.SHARED
    traits_wanted = TraitsWanted.SPECIAL
    consumers_max = 5
    cumulative = False

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.redeliveries: dict[int, int] = {}
        self.replays: set[int] = set()
        # read once, and not delivered then: too early, or a chunk of a busy consumer
        self.aside: set[int] = set()
        self.fetched: set[int] = set()
        self.owners: dict[str, int] = {}  # message in chunks -> who must get the rest of it

    def joined(self) -> None:
        super().joined()
        self.forget_delivery()

    def sought(self, ordinal: int) -> None:
        super().sought(ordinal)
        self.forget_delivery()

    def forget_delivery(self) -> None:
        for known in (self.redeliveries, self.replays, self.aside, self.fetched, self.owners):
            known.clear()

    def left(self, held: set[int]) -> None:
        if not self.held:
            self.forget_delivery()
        self.replays |= held
        self.owners = {uuid: owner for uuid, owner in self.owners.items() if owner in self.held}

    def given_back(self, handle: int, ranges: list[tuple[int, int]] | None) -> None:
        held = self.held[handle]
        back = set(held) if ranges is None else held & set(range(*ranges[0]))
        held -= back
        self.replays |= back
        for ordinal in back:
            self.redeliveries[ordinal] = self.redeliveries.get(ordinal, 0) + 1

    def forgotten(self, ordinals: set[int]) -> None:
        self.replays -= ordinals
        self.aside -= ordinals
        for ordinal in ordinals:
            self.redeliveries.pop(ordinal, None)

    def check_read(self, request: ReadRequest) -> None:
        # a chunk may wait for its consumer
        due = {ordinal for ordinal in self.replays if self.traits[ordinal].chunk is None}
        if due:
            assert request.first <= min(due), "replays go first, lowest first"
            assert request.first in self.replays | self.aside

    def check_next(self, delivery: Delivery) -> None:
        """What new reads passed over is put aside for a reason."""
        first = delivery.first
        if first < self.read:
            assert first in self.replays | self.aside, (
                "what was read once comes again only if it was given back or had to wait"
            )
            return
        passed = {
            ordinal for ordinal in range(self.read, first) if ordinal not in self.acknowledged
        }
        for ordinal in passed:
            special = self.traits[ordinal]
            assert special.deliver_at_ms > self.now_ms or special.chunk is not None, (
                "new entries go out in order, none left out"
            )
        self.aside |= passed
        for ordinal in set(range(first, first + delivery.entries)) - self.fetched:
            assert self.traits[ordinal].deliver_at_ms <= self.now_ms, (
                "an entry is not early when it is read first"
            )

    def dispatch(self, request: ReadRequest) -> list[Delivery]:
        deliveries = super().dispatch(request)
        self.fetched.update(range(request.first, request.first + request.entries))
        return deliveries

    def check_delivery(self, handle: int, delivery: Delivery) -> None:
        assert delivery.entries <= TURN_MAX
        before_last = delivery.messages - self.cost(delivery.first + delivery.entries - 1)
        assert self.unacknowledged(handle) + before_last < CONSUMER_MAX, (
            "a consumer at its limit gets nothing"
        )
        assert sum(map(self.unacknowledged, self.held)) < SUBSCRIPTION_MAX
        ordinals = range(delivery.first, delivery.first + delivery.entries)
        assert set[int]().union(*self.held.values()).isdisjoint(ordinals), (
            "two consumers hold one entry"
        )
        self.check_next(delivery)
        self.read = max(self.read, ordinals.stop)
        for index, ordinal in enumerate(ordinals):
            special = self.traits[ordinal]
            count = (
                delivery.redelivery_counts[index] if delivery.redelivery_counts is not None else 0
            )
            assert count == self.redeliveries.get(ordinal, 0)
            assert special.deliver_at_ms <= self.now_ms + TICK_MS, "more than a tick early"
            if special.chunk is not None:
                self.check_chunk(handle, ordinal, special.chunk)
        if self.traits[delivery.first].chunk is None:
            self.check_priority(handle)
        self.replays -= set(ordinals)
        self.aside -= set(ordinals)
        self.held[handle].update(ordinals)

    def check_priority(self, handle: int) -> None:
        for other in self.held:
            if self.priorities[other] < self.priorities[handle]:
                assert self.permits[other] <= 0 or self.unacknowledged(other) > CONSUMER_MAX // 2, (
                    "lower priority number first"
                )

    def check_chunk(self, handle: int, ordinal: int, chunk: ChunkTrait) -> None:
        """The chunks of a message go to one consumer, each after those before it."""
        if chunk.id == 0:
            self.owners.pop(chunk.uuid, None)
        assert self.owners.get(chunk.uuid, handle) == handle, (
            "a message's chunks went to two consumers"
        )
        self.owners[chunk.uuid] = handle
        if chunk.id == chunk.count - 1:
            del self.owners[chunk.uuid]
        for earlier in range(max(0, ordinal - 100), ordinal):
            other = self.traits[earlier].chunk
            if other is not None and other.uuid == chunk.uuid and earlier not in self.acknowledged:
                assert earlier not in self.replays | self.aside, "a chunk overtook one before it"

    def check_consumer(self, handle: int) -> None:
        consumer = self.subscription.consumers[handle]
        assert {
            number for start, end in consumer.pending for number in range(start, end)
        } == self.held[handle]
        assert consumer.unacknowledged == self.unacknowledged(handle)

    def check_state(self) -> None:
        super().check_state()
        assert self.subscription.unacknowledged == sum(map(self.unacknowledged, self.held))


class KeySharedCourse(SharedCourse):
    """Key_Shared: as Shared, but each key in order at one consumer, while others flow past it."""

    kind = SubscriptionType.KEY_SHARED
    traits_wanted = TraitsWanted.ALL

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.begun: dict[str, int] = {}  # who was given chunks of a message last

    def check_read(self, request: ReadRequest) -> None:
        """Who has no permits keeps its replays back, and nobody else."""

    def check_delivery(self, handle: int, delivery: Delivery) -> None:
        assert self.unacknowledged(handle) < CONSUMER_MAX, "a consumer at its limit gets nothing"
        ordinals = delivery.ordinals
        assert set[int]().union(*self.held.values()).isdisjoint(ordinals), (
            "two consumers hold one entry"
        )
        for index, ordinal in enumerate(ordinals):
            deliver_at = self.traits[ordinal].deliver_at_ms
            assert deliver_at <= self.now_ms + (TICK_MS if ordinal in self.fetched else 0), (
                "too early"
            )
            count = (
                delivery.redelivery_counts[index] if delivery.redelivery_counts is not None else 0
            )
            assert count == self.redeliveries.get(ordinal, 0)
            self.check_key(handle, ordinal)
            self.held[handle].add(ordinal)
        assert sum(map(self.unacknowledged, self.held)) < SUBSCRIPTION_MAX + BATCH_MAX
        self.replays -= set(ordinals)

    def check_key(self, handle: int, ordinal: int) -> None:
        """Nothing before it of the same key is with another consumer, or not delivered yet.

        Delays are outside of that order, and a message in chunks has its place where it began: its
        consumer gets the rest of it.
        """
        slot, chunk = ring_slot_of(self.traits[ordinal].key_hash), self.traits[ordinal].chunk
        if chunk is not None and self.has_begun(handle, chunk):
            return
        for earlier in range(self.subscription.cursor.mark_delete, ordinal):
            known = self.traits[earlier]
            if (
                ring_slot_of(known.key_hash) == slot
                and not known.deliver_at_ms
                and earlier not in self.acknowledged
            ):
                assert earlier in self.held[handle], "the order of a key is broken"

    def has_begun(self, handle: int, chunk: ChunkTrait) -> bool:
        """Whether the consumer was given chunks of this message before this one."""
        begun = (
            self.begun.pop(chunk.uuid, None)
            if chunk.id == 0 or chunk.id == chunk.count - 1
            else self.begun.get(chunk.uuid)
        )
        if chunk.id < chunk.count - 1:
            self.begun[chunk.uuid] = handle
        return chunk.id > 0 and begun == handle

    def check_consumer(self, handle: int) -> None:
        consumer = self.subscription.consumers[handle]
        assert set(consumer.held) == self.held[handle]
        assert consumer.unacknowledged == self.unacknowledged(handle)
