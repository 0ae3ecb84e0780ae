"""Key_Shared: each key in order at one consumer, others keep flowing; by example, and over any
course of events against a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from magnetar.errors import ConsumerAssignError, ConsumerBusy
from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import (
    ChunkTrait,
    Consumer,
    Delivery,
    DispatchLimits,
    EntryTraits,
    KeySharedMode,
    KeySharedPolicy,
    ReadRequest,
    SubscriptionType,
)
from magnetar.topics.dispatch.hash_ranges import SLOTS, ring_slot_of, slot_of
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription

KEY_SHARED = SubscriptionType.KEY_SHARED
STICKY, AUTO_SPLIT = KeySharedMode.STICKY, KeySharedMode.AUTO_SPLIT
LOW, HIGH = 1000, 60000  # with two halves: of the second consumer, of the first


def subscription_of(hashes: Sequence[int], **limits: int) -> Subscription:
    options = DispatchLimits(key_shared_consistent_hashing=False, **limits)
    return Subscription("s", True, Cursor(LedgerTable([(3, len(hashes))]), 0), limits=options)


def join(
    subscription: Subscription,
    *handles: str,
    permits: int = 1000,
    policy: KeySharedPolicy | None = None,
) -> None:
    for handle in handles:
        subscription.add_consumer(handle, KEY_SHARED, name=handle, key_shared=policy)
        if permits:
            subscription.flow(handle, permits)


def deliver(subscription: Subscription, hashes: Sequence[int]) -> list[tuple[object, int]]:
    """Run the host's loop to its end: (consumer, ordinal) of everything delivered."""
    given: list[tuple[object, int]] = []
    while (request := subscription.next_read(500)) is not None:
        high = request.first + request.entries
        traits = [EntryTraits(key_hash) for key_hash in hashes[request.first : high]]
        for delivery in subscription.dispatch(request.first, [1] * request.entries, traits):
            given += [(delivery.consumer, ordinal) for ordinal in delivery.ordinals]
    return given


def test_keys_go_to_their_owners() -> None:
    """Entries of one range go to one consumer, in order."""
    hashes = [LOW, HIGH, LOW, LOW, HIGH]
    subscription = subscription_of(hashes)
    join(subscription, "a", "b")
    assert deliver(subscription, hashes) == [("b", 0), ("b", 2), ("b", 3), ("a", 1), ("a", 4)]
    assert subscription.hash_ranges() == {"b": [(0, 32768)], "a": [(32769, 65535)]}


def test_other_keys_flow_past_a_consumer_without_permits() -> None:
    """What waits for it comes first when it asks again, in order with what is newer."""
    hashes = [LOW, HIGH] * 10
    subscription = subscription_of(hashes)
    join(subscription, "a", "b", permits=0)
    subscription.flow("a", 100)
    assert deliver(subscription, hashes) == [("a", ordinal) for ordinal in range(1, 20, 2)]
    subscription.flow("b", 3)
    assert deliver(subscription, hashes) == [("b", 0), ("b", 2), ("b", 4)]
    subscription.flow("b", 100)
    assert deliver(subscription, hashes) == [("b", ordinal) for ordinal in range(6, 20, 2)]


def test_reading_ahead_has_a_bound() -> None:
    """Beyond it new entries wait for everybody; whatever makes room lets reading go on."""
    hashes = [LOW] * 9 + [HIGH, LOW, LOW, HIGH, LOW]
    subscription = subscription_of(hashes, look_ahead_per_consumer_entries_max=4)
    join(subscription, "a", "b", permits=0)
    subscription.flow("a", 100)
    assert deliver(subscription, hashes) == []
    assert subscription.next_read(10) is None
    assert subscription.acknowledge(None, [(0, 5)]), (
        "the broker's own acknowledgement made room: look again"
    )
    assert deliver(subscription, hashes) == [("a", 9), ("a", 12)]


def test_a_hash_that_moves_drains_first() -> None:
    """While the old consumer holds entries of it, the new one gets none of them; other hashes
    move at once."""
    hashes = [LOW, LOW + 1, LOW, LOW, LOW + 2, LOW]
    subscription = subscription_of(hashes)
    join(subscription, "a", permits=2)
    assert deliver(subscription, hashes) == [("a", 0), ("a", 1)]
    join(subscription, "b")
    assert deliver(subscription, hashes) == [("b", 4)]
    assert subscription.acknowledge("a", [(0, 1)])
    assert deliver(subscription, hashes) == [("b", 2), ("b", 3), ("b", 5)]


def test_a_hash_drains_when_its_holder_leaves() -> None:
    """What it held goes to the new owner with the rest, lowest first, uncounted."""
    hashes = [LOW] * 4
    subscription = subscription_of(hashes)
    join(subscription, "a", permits=2)
    deliver(subscription, hashes)
    join(subscription, "b")
    assert deliver(subscription, hashes) == []
    subscription.remove_consumer("a")
    assert deliver(subscription, hashes) == [("b", ordinal) for ordinal in range(4)]


def test_out_of_order_delivery_does_not_wait() -> None:
    """A consumer that allows it gets the moved hash at once."""
    hashes = [LOW] * 4
    subscription = subscription_of(hashes)
    policy = KeySharedPolicy(AUTO_SPLIT, out_of_order=True)
    join(subscription, "a", permits=2, policy=policy)
    deliver(subscription, hashes)
    join(subscription, "b", policy=policy)
    assert deliver(subscription, hashes) == [("b", 2), ("b", 3)]
    subscription.acknowledge("b", [(0, 4)])
    assert (subscription.unacknowledged, subscription.backlog) == (0, 0), (
        "acknowledging for others counts for the holder"
    )


def test_redelivery_comes_back_in_order_and_counted() -> None:
    """Before anything newer of that consumer; only what it holds."""
    hashes = [LOW] * 6
    subscription = subscription_of(hashes)
    join(subscription, "a", permits=4)
    deliver(subscription, hashes)
    subscription.redeliver("a", [(3, 4), (1, 2), (5, 6)])
    subscription.flow("a", 10)
    request = subscription.next_read(10)
    assert request == ReadRequest(1, 3)
    deliveries = subscription.dispatch(1, [1] * 3, [EntryTraits(LOW)] * 3)
    assert [(found.ordinals, found.redelivery_counts) for found in deliveries] == [([1, 3], [1, 1])]
    assert deliver(subscription, hashes) == [("a", 4), ("a", 5)]


def test_sticky_hashes_that_nobody_serves_wait() -> None:
    """They are never delivered to others, and go out when a consumer serves them."""
    hashes = [LOW, HIGH, LOW]
    subscription = subscription_of(hashes)
    join(subscription, "a", policy=KeySharedPolicy(STICKY, False, ((0, 9999),)))
    assert deliver(subscription, hashes) == [("a", 0), ("a", 2)]
    with pytest.raises(ConsumerAssignError):
        join(subscription, "b", policy=KeySharedPolicy(STICKY, False, ((9999, 65535),)))
    join(subscription, "c", policy=KeySharedPolicy(STICKY, False, ((10000, 65535),)))
    assert deliver(subscription, hashes) == [("c", 1)]


@pytest.mark.parametrize(
    "other",
    [KeySharedPolicy(STICKY, False, ((0, 1),)), KeySharedPolicy(AUTO_SPLIT, out_of_order=True)],
)
def test_all_consumers_must_agree(other: KeySharedPolicy) -> None:
    """Another mode or another attitude to order is refused; when all have left, anything goes."""
    subscription = subscription_of([])
    join(subscription, "a")
    with pytest.raises(ConsumerBusy, match="the same policy"):
        join(subscription, "b", policy=other)
    subscription.remove_consumer("a")
    join(subscription, "b", policy=other)


def test_limits_on_unacknowledged_messages() -> None:
    """Per consumer and per subscription, lifted at half; the others go on while one is blocked."""
    hashes = [LOW, HIGH] * 20
    subscription = subscription_of(
        hashes,
        unacknowledged_per_consumer_messages_max=4,
        unacknowledged_per_subscription_messages_max=6,
    )
    join(subscription, "a", "b")
    assert deliver(subscription, hashes) == [
        ("b", 0),
        ("b", 2),
        ("b", 4),
        ("a", 1),
        ("a", 3),
        ("a", 5),
    ]
    assert not subscription.acknowledge("a", [(1, 2)])
    subscription.acknowledge("b", [(0, 1)])
    assert subscription.acknowledge("a", [(3, 4)]), "the subscription holds half of its limit"
    assert len(deliver(subscription, hashes)) == 3


def test_a_blocked_consumer_that_leaves_takes_its_permits_along() -> None:
    """What it gives back lifts its block, but nobody is there to take anything."""
    hashes = [LOW, HIGH] * 20
    subscription = subscription_of(hashes, unacknowledged_per_consumer_messages_max=4)
    join(subscription, "a")
    deliver(subscription, hashes)
    join(subscription, "b", permits=0)
    subscription.remove_consumer("a")
    assert subscription.next_read(10) is None


def test_a_seek_forgets_everything() -> None:
    """Held and waiting entries, counts and permits."""
    hashes = [LOW, HIGH] * 5
    subscription = subscription_of(hashes)
    join(subscription, "a", "b", permits=2)
    deliver(subscription, hashes)
    subscription.reset(8)
    assert (subscription.unacknowledged, subscription.next_read(10)) == (0, None)
    subscription.flow("a", 10)
    assert deliver(subscription, hashes) == [("a", 9)]


class Clock:
    """The host's loop over entries with any traits, at a time that the test sets."""

    def __init__(self, subscription: Subscription, traits: Sequence[EntryTraits]) -> None:
        self.subscription, self.traits, self.now_ms = subscription, traits, 10_000

    def deliver(self) -> list[tuple[object, int]]:
        given: list[tuple[object, int]] = []
        while (request := self.subscription.next_read(500, self.now_ms)) is not None:
            high = request.first + request.entries
            for found in self.subscription.dispatch(
                request.first, [1] * request.entries, self.traits[request.first : high]
            ):
                given += [(found.consumer, ordinal) for ordinal in found.ordinals]
        return given


def test_delayed_entries_wait_for_their_time_and_hold_nobody_up() -> None:
    """Later entries of the same key go out concurrently; when the time comes the owner of that
    moment gets them."""
    traits = [
        EntryTraits(LOW, 60_000),
        EntryTraits(LOW),
        EntryTraits(HIGH, 90_000),
        EntryTraits(HIGH),
    ]
    subscription = subscription_of([0] * 4)
    clock = Clock(subscription, traits)
    join(subscription, "a")
    assert clock.deliver() == [("a", 1), ("a", 3)]
    assert subscription.next_wakeup_ms() == 60_000
    join(subscription, "b")
    clock.now_ms = 60_000
    assert clock.deliver() == [], "its hash is still held by the previous owner"
    subscription.acknowledge("a", [(1, 2)])
    assert clock.deliver() == [("b", 0)]
    subscription.acknowledge(None, [(2, 3)])
    clock.now_ms = 90_000
    assert clock.deliver() == []
    assert subscription.next_wakeup_ms() is None


def test_delays_can_be_switched_off_while_entries_wait() -> None:
    """Whatever waits goes out then."""
    subscription = subscription_of([0] * 2)
    clock = Clock(subscription, [EntryTraits(LOW, 60_000), EntryTraits(LOW)])
    join(subscription, "a")
    assert clock.deliver() == [("a", 1)]
    subscription.limit(DispatchLimits(delayed_delivery=False, key_shared_consistent_hashing=False))
    assert clock.deliver() == [("a", 0)]


def test_a_message_in_chunks_stays_where_it_began() -> None:
    """A consumer that has lost the hash gets the rest of what it began, for it cannot
    acknowledge it otherwise; then the hash moves on."""
    chunks = [EntryTraits(LOW, 0, ChunkTrait("m", number, 3)) for number in range(3)]
    traits = [chunks[0], chunks[1], EntryTraits(LOW), chunks[2], EntryTraits(LOW)]
    subscription = subscription_of([0] * 5)
    clock = Clock(subscription, traits)
    join(subscription, "a", permits=1)
    assert clock.deliver() == [("a", 0)]
    join(subscription, "b")
    assert clock.deliver() == []
    subscription.flow("a", 10)
    assert clock.deliver() == [("a", 1), ("a", 3)]
    subscription.acknowledge("a", [(0, 2), (3, 4)])
    assert clock.deliver() == [("b", 2), ("b", 4)]
    subscription.remove_consumer("b")
    assert clock.deliver() == [("a", 2), ("a", 4)]


def test_chunks_begin_again_when_their_consumer_leaves() -> None:
    """What it held and what waited for it goes to the next consumer, from the first chunk on."""
    traits = [EntryTraits(LOW, 0, ChunkTrait("m", number, 3)) for number in range(3)]
    subscription = subscription_of([0] * 3)
    clock = Clock(subscription, traits)
    join(subscription, "a", permits=1)
    join(subscription, "b", permits=1)
    assert clock.deliver() == [("b", 0)]
    subscription.flow("a", 10)
    subscription.remove_consumer("b")
    assert clock.deliver() == [("a", 0), ("a", 1), ("a", 2)]


class Course:
    """One random course beside a model that knows, for every entry, its slot and who may have
    it."""

    def __init__(
        self, seed: int, mode: KeySharedMode, out_of_order: bool, consistent: bool
    ) -> None:
        self.random, self.mode, self.out_of_order = random.Random(seed), mode, out_of_order
        ring = consistent and mode is not STICKY
        self.slot_of, self.slots = (ring_slot_of, SLOTS - 1) if ring else (slot_of, SLOTS)
        self.ledgers = LedgerTable()
        limits = DispatchLimits(
            unacknowledged_per_consumer_messages_max=16,
            unacknowledged_per_subscription_messages_max=40,
            acknowledged_ranges_max=40,
            key_shared_consistent_hashing=consistent,
            look_ahead_per_consumer_entries_max=6,
            look_ahead_per_subscription_entries_max=15,
        )
        self.subscription = Subscription(
            "s", True, Cursor(self.ledgers, 0, acknowledged_ranges_max=40), limits=limits
        )
        self.keys = [self.random.randrange(SLOTS) for _ in range(12)]
        self.hashes: list[int] = []
        self.sizes: list[int] = []
        self.acknowledged: set[int] = set()
        self.held: dict[int, dict[int, int]] = {}  # by consumer: messages by ordinal
        self.permits: dict[int, int] = {}
        # delivered at least once since the last seek, and not given back
        self.sent: set[int] = set()
        self.redeliveries: dict[int, int] = {}
        self.number = self.delivered = self.moved = 0

    def run(self, steps: int) -> None:
        events: tuple[Callable[[], None], ...] = (
            self.publish, self.join, self.leave, self.flow, self.deliver, self.acknowledge, self.acknowledge_any, self.nack, self.seek,
            self.pause,
        )  # fmt: skip
        for _ in range(steps):
            self.random.choices(events, (12, 5, 3, 22, 50, 34, 3, 8, 1, 4))[0]()
            self.check()
        self.finish()

    def any_consumer(self) -> int | None:
        return self.random.choice(sorted(self.held)) if self.held else None

    def publish(self) -> None:
        count = self.random.randint(1, 12)
        self.ledgers.append(1, len(self.hashes), count)
        for _ in range(count):
            self.hashes.append(
                self.random.choice(self.keys) + self.slots * self.random.randint(0, 3)
            )
            self.sizes.append(self.random.choice((1, 1, 1, 3)))

    def join(self) -> None:
        if len(self.held) == 5:
            return
        self.number += 1
        ranges: tuple[tuple[int, int], ...] = ()
        if self.mode is STICKY:
            start = self.random.randrange(SLOTS)
            ranges = ((start, min(SLOTS - 1, start + self.random.choice((5_000, 20_000, 65_535)))),)
        policy = KeySharedPolicy(self.mode, self.out_of_order, ranges)
        try:
            self.subscription.add_consumer(
                self.number, KEY_SHARED, name=self.random.choice("ab"), key_shared=policy
            )
        except ConsumerAssignError:
            assert self.mode is STICKY
            taken = list(self.subscription.hash_ranges().values())
            assert any(
                low <= ranges[0][1] and ranges[0][0] <= high
                for found in taken
                for low, high in found
            )
            return
        self.held[self.number], self.permits[self.number] = {}, 0

    def leave(self) -> None:
        handle = self.any_consumer()
        if handle is not None:
            self.subscription.remove_consumer(handle)
            self.sent -= set(self.held.pop(handle))
            del self.permits[handle]
            if not self.held:
                self.redeliveries.clear()

    def flow(self) -> None:
        handle = self.any_consumer()
        if handle is not None:
            permits = self.random.randint(1, 10)
            self.subscription.flow(handle, permits)
            self.permits[handle] += permits

    def pause(self) -> None:
        for handle in self.held:
            (self.subscription.pause if self.random.random() < 0.3 else self.subscription.resume)(
                handle
            )

    def read(self, *, disturbed: bool = False) -> tuple[ReadRequest | None, list[Delivery]]:
        request = self.subscription.next_read(self.random.randint(1, 12))
        if request is None:
            return None, []
        high = request.first + request.entries
        traits = [EntryTraits(key_hash) for key_hash in self.hashes[request.first : high]]
        sizes = self.sizes[request.first : high]
        if disturbed:
            # the world changes during a fetch
            self.random.choice((self.leave, self.acknowledge, self.nack, self.join))()
        return request, self.subscription.dispatch(request.first, sizes, traits)

    def deliver(self) -> None:
        _, deliveries = self.read(disturbed=self.random.random() < 0.3)
        for delivery in deliveries:
            self.take(delivery)

    def owner(self, ordinal: int) -> int | None:
        slot = self.slot_of(self.hashes[ordinal])
        found = [
            handle
            for handle, ranges in self.subscription.hash_ranges().items()
            if any(low <= slot <= high for low, high in ranges)
        ]
        assert len(found) <= 1
        return found[0] if found else None  # type: ignore[return-value]

    def take(self, delivery: Delivery) -> None:
        handle = delivery.consumer
        assert isinstance(handle, int)
        assert self.permits[handle] > 0, "nobody gets anything without permits"
        assert len(delivery.ordinals) == delivery.entries
        for index, ordinal in enumerate(delivery.ordinals):
            slot = self.slot_of(self.hashes[ordinal])
            assert ordinal not in self.acknowledged, "an acknowledged entry is never delivered"
            assert ordinal not in self.sent, "an entry is at one consumer at a time"
            assert self.owner(ordinal) == handle, "an entry goes to the owner of its hash"
            if not self.out_of_order:
                others = [
                    other
                    for other in self.held
                    if other != handle
                    for held in self.held[other]
                    if self.slot_of(self.hashes[held]) == slot
                ]
                assert not others, "no consumer gets entries of a hash that another still holds"
            earlier = [
                before
                for before in range(self.subscription.cursor.mark_delete, ordinal)
                if self.slot_of(self.hashes[before]) == slot
                and before not in self.acknowledged
                and before not in self.sent
            ]
            assert not earlier, "no entry overtakes an earlier one of its hash"
            count = (
                delivery.redelivery_counts[index] if delivery.redelivery_counts is not None else 0
            )
            assert count == self.redeliveries.get(ordinal, 0)
            self.held[handle][ordinal] = self.sizes[ordinal]
            self.sent.add(ordinal)
            self.permits[handle] -= self.sizes[ordinal]
            self.delivered += 1

    def acknowledge(self) -> None:
        handle = self.any_consumer()
        if handle is not None and self.held[handle]:
            held = sorted(self.held[handle])
            ordinal = held[0] if self.random.random() < 0.6 else self.random.choice(held)
            self.settle(handle, ordinal, ordinal + self.random.randint(1, 2))

    def acknowledge_any(self) -> None:
        start = self.random.randint(0, len(self.hashes) + 1)
        self.settle(
            self.random.choice((None, self.any_consumer())),
            start,
            start + self.random.randint(1, 20),
        )

    def settle(self, handle: int | None, start: int, end: int) -> None:
        self.subscription.acknowledge(handle, [(start, end)])
        gone = set(range(start, min(end, len(self.hashes))))
        self.acknowledged |= gone
        for held in self.held.values():
            for ordinal in gone & set(held):
                del held[ordinal]
        for ordinal in gone:
            self.redeliveries.pop(ordinal, None)

    def nack(self) -> None:
        handle = self.any_consumer()
        if handle is None:
            return
        start = self.random.randint(0, len(self.hashes))
        ranges = (
            None if self.random.random() < 0.3 else [(start, start + self.random.randint(1, 10))]
        )
        self.subscription.redeliver(handle, ranges)
        back = [
            ordinal
            for ordinal in self.held[handle]
            if ranges is None or ranges[0][0] <= ordinal < ranges[0][1]
        ]
        for ordinal in back:
            del self.held[handle][ordinal]
            self.sent.discard(ordinal)
            self.redeliveries[ordinal] = self.redeliveries.get(ordinal, 0) + 1

    def seek(self) -> None:
        ordinal = self.random.randint(0, len(self.hashes))
        self.subscription.reset(ordinal)
        self.acknowledged = set(range(ordinal))
        self.sent.clear()
        self.redeliveries.clear()
        for handle in self.held:
            self.held[handle], self.permits[handle] = {}, 0

    def check(self) -> None:
        consumers = self.subscription.consumers
        assert set(consumers) == set(self.held)
        for handle, held in self.held.items():
            consumer: Consumer = consumers[handle]
            assert consumer.held == held
            assert consumer.permits == self.permits[handle]
            assert consumer.unacknowledged == sum(held.values())
        assert self.subscription.unacknowledged == sum(
            sum(held.values()) for held in self.held.values()
        )

    def finish(self) -> None:
        """When all obstacles go, acknowledging whatever comes empties the backlog: no entry is
        lost or stuck."""
        for handle in list(self.held):
            self.subscription.remove_consumer(handle)
        self.sent.clear()
        self.redeliveries.clear()
        self.held.clear()
        self.permits.clear()
        for start, end in ((0, 30_000), (30_001, 65_535)):
            self.number += 1
            policy = KeySharedPolicy(self.mode, self.out_of_order, ((start, end),))
            self.subscription.add_consumer(self.number, KEY_SHARED, key_shared=policy)
            self.subscription.flow(self.number, 100_000)
            self.held[self.number], self.permits[self.number] = {}, 100_000
        idle = 0
        while self.subscription.backlog:
            request, deliveries = self.read()
            for delivery in deliveries:
                self.take(delivery)
            if request is None:
                for handle, held in list(self.held.items()):
                    for ordinal in sorted(held):
                        self.settle(handle, ordinal, ordinal + 1)
            idle = idle + 1 if not deliveries else 0
            assert idle < 50, "delivery must go on"


@pytest.mark.parametrize("consistent", [True, False], ids=["ring", "halves"])
@pytest.mark.parametrize("out_of_order", [False, True], ids=["ordered", "unordered"])
@pytest.mark.parametrize("mode", [AUTO_SPLIT, STICKY], ids=["split", "sticky"])
@pytest.mark.parametrize("seed", range(6))
def test_random_course(
    seed: int, mode: KeySharedMode, out_of_order: bool, consistent: bool
) -> None:
    """Order per key, one consumer at a time, ranges respected, nothing lost, within permits,
    through any course."""
    course = Course(seed, mode, out_of_order, consistent)
    course.run(500)
    assert course.delivered > 50, "the course must really deliver, or it proves nothing"
