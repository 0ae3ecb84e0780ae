"""Any course of events: every entry is delivered until it is acknowledged, to one consumer at a time, within permits.

Each test is a long random course from one seed: a subscription runs beside sets and dicts that say what it must do. Failures name the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch import Delivery, DispatchLimits, SubscriptionType
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.state import CursorDelta
from magnetar.topics.subscription import Subscription

RANGES_MAX = 12
CONSUMER_MAX, SUBSCRIPTION_MAX, TURN_MAX = 16, 30, 3
LIMITS = DispatchLimits(
    unacknowledged_per_consumer_messages_max=CONSUMER_MAX,
    unacknowledged_per_subscription_messages_max=SUBSCRIPTION_MAX,
    turn_entries_max=TURN_MAX,
    acknowledged_ranges_max=RANGES_MAX,
)
BATCH_MAX = 4
STEPS = 400


class Course:
    """One random course."""

    def __init__(self, seed: int, kind: SubscriptionType) -> None:
        self.random, self.kind = random.Random(seed), kind
        self.shared = kind is SubscriptionType.SHARED
        self.ledgers = LedgerTable()
        self.subscription = self.new_subscription()
        self.batch_sizes: list[int] = []
        self.acknowledged: set[int] = set()
        self.masks: dict[int, int] = {}
        self.held: dict[int, set[int]] = {}  # by consumer: what it was given and has not given back
        self.permits: dict[int, int] = {}
        self.priorities: dict[int, int] = {}
        self.redeliveries: dict[int, int] = {}
        self.given_back: set[int] = set()
        self.deltas: list[CursorDelta] = []
        self.read = 0  # everything below has been delivered once, in this connection's or seek's time
        self.delivered = 0
        self.events: list[tuple[int, Callable[[], None]]] = [
            (16, self.publish),
            (12, self.connect),
            (3, self.disconnect),
            (20, self.flow),
            (50, self.deliver),
            (30, self.acknowledge_held),
            (4, self.acknowledge_anything),
            (10, self.acknowledge_partly),
            (3, self.acknowledge_cumulatively),
            (8, self.redeliver),
            (1, self.seek),
            (8, self.write_log),
        ]

    def new_subscription(self) -> Subscription:
        return Subscription("s", True, Cursor(self.ledgers, 0, acknowledged_ranges_max=RANGES_MAX), limits=LIMITS)

    def run(self) -> None:
        weights = [weight for weight, _ in self.events]
        for _ in range(STEPS):
            self.random.choices(self.events, weights)[0][1]()
            self.check_state()
        self.check_restart()
        self.check_everything_is_delivered()

    # --- chance ---------------------------------------------------------------------------------------------------------------

    def any_ordinal(self) -> int:
        """Mostly near where something is going on, sometimes out of bounds."""
        return self.random.randint(max(0, self.subscription.cursor.mark_delete - 5), self.ledgers.end + 2)

    def any_consumer(self) -> int:
        """Mostly a connected one."""
        return self.random.choice(sorted(self.held)) if self.held and self.random.random() < 0.9 else self.random.randint(0, 4)

    # --- events ---------------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        sizes = [self.random.choice((1, 1, 1, self.random.randint(2, BATCH_MAX))) for _ in range(self.random.randint(1, 12))]
        ledger = self.ledgers.last_ledger
        if ledger < 0 or self.random.random() < 0.2:
            ledger, first = ledger + 2, 0
        else:
            first = self.ledgers.last_position.entry + 1
        self.ledgers.append(ledger, first, len(sizes))
        self.batch_sizes += sizes

    def connect(self) -> None:
        handle = self.random.randint(0, 4)
        if handle in self.held or (self.held and not self.shared):
            return
        if not self.held:
            self.read = self.subscription.cursor.mark_delete
        priority = self.random.choice((0, 0, 1))
        self.subscription.add_consumer(handle, self.kind, priority=priority)
        self.held[handle], self.permits[handle], self.priorities[handle] = set(), 0, priority

    def disconnect(self) -> None:
        handle = self.any_consumer()
        self.subscription.remove_consumer(handle)
        self.given_back |= self.held.pop(handle, set())
        self.permits.pop(handle, None)
        if not self.held:
            self.redeliveries.clear()
            self.given_back.clear()

    def flow(self) -> None:
        handle, permits = self.any_consumer(), self.random.randint(1, 12)
        self.subscription.flow(handle, permits)
        if handle in self.permits:
            self.permits[handle] += permits

    def deliver(self) -> None:
        """One read and its dispatch; sometimes something else happens while the read is under way."""
        limit = self.random.randint(1, 15)
        request = self.subscription.next_read(limit)
        if request is None:
            return
        assert 1 <= request.entries <= limit
        assert self.ledgers.first <= request.first <= request.first + request.entries <= self.ledgers.end
        if self.given_back:
            assert request.first == min(self.given_back), "replays go first, lowest first"
        if self.random.random() < 0.2:
            self.random.choice([self.redeliver, self.acknowledge_anything, self.acknowledge_partly, self.disconnect, self.seek])()
            self.flow()
        sizes = self.batch_sizes[request.first : request.first + request.entries]
        for delivery in self.subscription.dispatch(request.first, sizes):
            self.take(delivery)

    def take(self, delivery: Delivery) -> None:
        handle = delivery.consumer
        assert isinstance(handle, int)
        ordinals = range(delivery.first, delivery.first + delivery.entries)
        costs = [self.cost(ordinal) for ordinal in ordinals]
        assert delivery.messages == sum(costs)
        assert self.permits[handle] - sum(costs[:-1]) > 0, "only the last entry may overdraw the permits"
        if self.shared:
            self.check_turn(handle, delivery)
        self.permits[handle] -= delivery.messages
        self.delivered += delivery.entries
        if delivery.first not in self.given_back:
            due = next(ordinal for ordinal in range(self.read, self.ledgers.end) if ordinal not in self.acknowledged)
            assert delivery.first == due, "new entries go out in order, none left out"
            self.read = ordinals.stop
        for index, ordinal in enumerate(ordinals):
            assert ordinal not in self.acknowledged, "an acknowledged entry is never delivered"
            words = delivery.ack_sets[index] if delivery.ack_sets is not None else ()
            assert words == ((self.masks[ordinal],) if ordinal in self.masks else ())
            count = delivery.redelivery_counts[index] if delivery.redelivery_counts is not None else 0
            assert count == (self.redeliveries.get(ordinal, 0) if self.shared else 0)
            self.held[handle].add(ordinal)
            self.given_back.discard(ordinal)

    def check_turn(self, handle: int, delivery: Delivery) -> None:
        assert delivery.entries <= TURN_MAX
        assert self.unacknowledged(handle) < CONSUMER_MAX, "a consumer at its limit gets nothing"
        assert sum(map(self.unacknowledged, self.held)) < SUBSCRIPTION_MAX
        everyone = set[int]().union(*self.held.values())
        assert everyone.isdisjoint(range(delivery.first, delivery.first + delivery.entries)), "two consumers hold one entry"
        for other in self.held:
            if self.priorities[other] < self.priorities[handle]:
                assert self.permits[other] <= 0 or self.unacknowledged(other) > CONSUMER_MAX // 2, "lower priority number first"

    def acknowledge_held(self) -> None:
        """What a well-behaved client does: acknowledge what it was given, often the oldest first."""
        handle = self.any_consumer()
        held = sorted(self.held.get(handle, ()))
        if held:
            ordinal = held[0] if self.random.random() < 0.6 else self.random.choice(held)
            self.acknowledge(handle, ordinal, ordinal + self.random.randint(1, 3))

    def acknowledge_anything(self) -> None:
        start = self.any_ordinal()
        self.acknowledge(self.any_consumer(), start, start + self.random.randint(1, 6))

    def acknowledge(self, handle: int, start: int, end: int) -> None:
        self.subscription.acknowledge(handle, [(start, end)])
        self.settle(range(start, min(end, self.ledgers.end)))

    def acknowledge_partly(self) -> None:
        if not self.batch_sizes:
            return
        ordinal = self.random.randint(self.subscription.cursor.mark_delete, self.ledgers.end)
        size = self.batch_sizes[ordinal] if ordinal < self.ledgers.end else 1
        mask = self.random.getrandbits(size)
        self.subscription.acknowledge(self.any_consumer(), [], [(ordinal, mask)])
        if ordinal in self.acknowledged or ordinal >= self.ledgers.end:
            return
        self.masks[ordinal] = self.masks.get(ordinal, mask) & mask
        if not self.masks[ordinal]:
            self.settle(range(ordinal, ordinal + 1))

    def acknowledge_cumulatively(self) -> None:
        handle, ordinal = self.any_consumer(), self.any_ordinal()
        self.subscription.acknowledge_cumulative(handle, ordinal)
        if not self.shared and handle in self.held:
            self.settle(range(min(ordinal + 1, self.ledgers.end)))

    def settle(self, ordinals: range) -> None:
        gone = set(ordinals)
        self.acknowledged |= gone
        self.given_back -= gone
        for ordinal in ordinals:
            self.masks.pop(ordinal, None)
            self.redeliveries.pop(ordinal, None)
        for held in self.held.values():
            held -= gone

    def redeliver(self) -> None:
        handle, start = self.any_consumer(), self.any_ordinal()
        ranges = None if self.random.random() < 0.4 else [(start, start + self.random.randint(1, 9))]
        self.subscription.redeliver(handle, ranges)
        held = self.held.get(handle, set())
        back = set(held) if ranges is None or not self.shared else held & set(range(*ranges[0]))
        held -= back
        if not self.shared and handle in self.held:
            self.read = self.subscription.cursor.mark_delete
        if self.shared:
            self.given_back |= back
            for ordinal in back:
                self.redeliveries[ordinal] = self.redeliveries.get(ordinal, 0) + 1

    def seek(self) -> None:
        ordinal = self.random.randint(0, self.ledgers.end)
        size = self.batch_sizes[ordinal] if ordinal < self.ledgers.end else 1
        mask = self.random.randint(1, (1 << size) - 1) if self.random.random() < 0.5 else None
        self.subscription.reset(ordinal, mask)
        self.acknowledged, self.read = set(range(ordinal)), ordinal
        self.masks = {ordinal: mask} if mask is not None and ordinal < self.ledgers.end else {}
        self.redeliveries.clear()
        self.given_back.clear()
        for handle in self.held:
            self.held[handle], self.permits[handle] = set(), 0

    def write_log(self) -> None:
        delta = self.subscription.take_delta()
        if delta is not None:
            self.deltas.append(delta)

    # --- what must hold -------------------------------------------------------------------------------------------------------

    def cost(self, ordinal: int) -> int:
        return self.masks[ordinal].bit_count() if ordinal in self.masks else self.batch_sizes[ordinal]

    def unacknowledged(self, handle: int) -> int:
        return sum(map(self.cost, self.held[handle]))

    def check_state(self) -> None:
        cursor = self.subscription.cursor
        gap = next((ordinal for ordinal in range(self.ledgers.end) if ordinal not in self.acknowledged), self.ledgers.end)
        assert cursor.mark_delete == gap, "mark-delete never passes an unacknowledged entry"
        assert cursor.backlog == self.ledgers.end - len(self.acknowledged)
        assert set(self.subscription.consumers) == set(self.held)
        for handle, held in self.held.items():
            consumer = self.subscription.consumers[handle]
            assert consumer.permits == self.permits[handle]
            if self.shared:
                assert {number for start, end in consumer.pending for number in range(start, end)} == held
                assert consumer.unacknowledged == self.unacknowledged(handle)
        if self.shared:
            assert self.subscription.unacknowledged == sum(map(self.unacknowledged, self.held))

    def check_restart(self) -> None:
        """The log alone rebuilds the cursor."""
        self.write_log()
        restored = self.new_subscription()
        for delta in self.deltas:
            restored.apply_delta(delta)
        assert restored.to_state() == self.subscription.to_state()

    def check_everything_is_delivered(self) -> None:
        """When all obstacles go, acknowledging whatever comes empties the backlog: no entry is lost or stuck."""
        while not self.held:
            self.connect()
        for handle in list(self.held):
            self.subscription.redeliver(handle, None)
            self.given_back |= self.held[handle] if self.shared else set()
            for ordinal in self.held[handle]:
                self.redeliveries[ordinal] = self.redeliveries.get(ordinal, 0) + 1
            self.held[handle] = set()
            self.read = self.read if self.shared else self.subscription.cursor.mark_delete
            self.subscription.flow(handle, 10_000)
            self.permits[handle] += 10_000
        while (request := self.subscription.next_read(7)) is not None:
            sizes = self.batch_sizes[request.first : request.first + request.entries]
            deliveries = self.subscription.dispatch(request.first, sizes)
            assert deliveries, "a read that leads to nothing would be repeated for ever"
            for delivery in deliveries:
                self.take(delivery)
            for delivery in deliveries:
                assert isinstance(delivery.consumer, int)
                self.acknowledge(delivery.consumer, delivery.first, delivery.first + delivery.entries)
        assert self.subscription.backlog == 0


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE], ids=["shared", "exclusive"])
@pytest.mark.parametrize("seed", range(12))
def test_random_course(seed: int, kind: SubscriptionType) -> None:
    """The subscription agrees with the model after every step, survives a restart, and delivers everything in the end."""
    course = Course(seed, kind)
    course.run()
    assert course.delivered > 50, "the course must really deliver, or it proves nothing"
