"""Failover: who is active, when that changes, who is notified; and over any course of events
one consumer at a time, in order, nothing lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.hashes import murmur3
from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import DispatchLimits, ReadRequest, SubscriptionType
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription

FAILOVER = SubscriptionType.FAILOVER
DELAY_MS = 1000
PARTITION = "persistent://public/default/t-partition-{}"
PLAIN = "persistent://public/default/t"


def subscription_of(
    topic: str = PARTITION.format(0), entries: int = 10, delay_ms: int = DELAY_MS
) -> Subscription:
    limits = DispatchLimits(failover_delay_ms=delay_ms)
    return Subscription(
        "s", True, Cursor(LedgerTable([(3, entries)]), 0), topic=topic, limits=limits
    )


def join(subscription: Subscription, *names: str, priority: int = 0) -> None:
    for name in names:
        subscription.add_consumer(name, FAILOVER, name=name, priority=priority)
        subscription.flow(name, 1000)


def active(subscription: Subscription) -> str:
    assert subscription.active is not None
    return subscription.active.name


@pytest.mark.parametrize(
    ("partition", "expected"), [(0, "a"), (1, "b"), (2, "c"), (3, "a"), (7, "b")]
)
def test_partitions_are_spread_by_name(partition: int, expected: str) -> None:
    """Partition number modulo consumers in the order of their names, however they arrived."""
    subscription = subscription_of(PARTITION.format(partition))
    join(subscription, "c", "a", "b")
    assert active(subscription) == expected


def test_only_the_best_priority_counts() -> None:
    """Consumers of a higher number take part only when the better ones have left."""
    subscription = subscription_of(PARTITION.format(1))
    join(subscription, "a", "b", priority=5)
    join(subscription, "x", "y", "z", priority=1)
    assert active(subscription) == "y"
    for name in ("x", "y", "z"):
        subscription.remove_consumer(name)
    assert active(subscription) == "b"


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=8), st.sets(st.text(max_size=4), min_size=1, max_size=6))
def test_a_topic_without_partitions_picks_from_the_ring(topic: str, names: set[str]) -> None:
    """The same choice as a ring of 100 points per consumer, written down plainly: ceiling of the
    topic's hash, with wrap-around."""
    subscription = subscription_of(topic)
    join(subscription, *names)
    ring = {
        murmur3(f"{name}{number}".encode()): name for name in sorted(names) for number in range(100)
    }
    above = [point for point in ring if point >= murmur3(topic.encode())]
    assert active(subscription) == ring[min(above or ring)]


def test_a_turn_begins_after_the_delay_and_all_consumers_are_notified() -> None:
    """The first consumer waits as well: its predecessor on another connection may have
    acknowledgements on the way."""
    subscription = subscription_of()
    join(subscription, "b")
    assert subscription.advance(5000) == []
    assert subscription.next_read(10, 5000) is None
    assert subscription.next_wakeup_ms() == 6000
    join(subscription, "c")
    assert subscription.advance(5999) == [("c", False)], (
        "a newcomer that changes nothing is notified at once"
    )
    assert subscription.advance(6000) == [("b", True), ("c", False)]
    assert subscription.next_wakeup_ms() is None
    assert subscription.next_read(10, 6000) == ReadRequest(0, 10)
    join(subscription, "d")
    assert subscription.advance(6001) == [("d", False)]


def test_who_loses_its_turn_gets_nothing_more_and_its_successor_begins_at_the_mark_delete() -> None:
    """The change takes effect at once for the old one, after the delay for the new one;
    acknowledgements in between count."""
    subscription = subscription_of(entries=20)
    join(subscription, "b")
    subscription.advance(0)
    subscription.advance(DELAY_MS)
    assert subscription.dispatch(0, [1] * 10)[0].consumer == "b"
    join(subscription, "a")
    assert active(subscription) == "a"
    assert subscription.next_read(10, DELAY_MS) is None
    assert subscription.dispatch(10, [1] * 10) == [], "a read that was under way leads to nothing"
    assert subscription.advance(2000) == []
    subscription.acknowledge_cumulative("b", 3)
    assert subscription.advance(3000) == [("b", False), ("a", True)]
    assert subscription.next_read(100, 3000) == ReadRequest(4, 16)
    assert subscription.dispatch(4, [1])[0].consumer == "a"


def test_a_turn_that_comes_back_within_the_delay_was_never_lost() -> None:
    """Nothing is delivered again. Consumers not yet notified learn that nothing changed."""
    subscription = subscription_of(entries=20)
    join(subscription, "b")
    subscription.advance(0)
    subscription.advance(DELAY_MS)
    subscription.dispatch(0, [1] * 10)
    join(subscription, "a")
    subscription.advance(1500)
    subscription.remove_consumer("a")
    assert (subscription.advance(1600), subscription.next_wakeup_ms()) == ([], None)
    assert subscription.next_read(100, 1600) == ReadRequest(10, 10)
    join(subscription, "c", priority=-1)
    join(subscription, "a", priority=-2)
    subscription.remove_consumer("a")
    assert active(subscription) == "c"
    assert subscription.next_read(100, 1700) is None


def test_redelivery_asked_for_while_losing_the_turn_is_not_forgotten() -> None:
    """A client drops what has an older epoch than its request: the consumer that keeps the turn
    after all gets those entries again."""
    subscription = subscription_of()
    join(subscription, "b")
    subscription.advance(0)
    subscription.advance(DELAY_MS)
    subscription.dispatch(0, [1] * 10)
    join(subscription, "a")
    subscription.redeliver("b", epoch=1)
    subscription.remove_consumer("a")
    assert subscription.next_read(10, 1500) == ReadRequest(0, 10)
    assert subscription.dispatch(0, [1])[0].epoch == 1


def test_those_who_stand_by_cannot_rewind() -> None:
    """Their redelivery requests concern nothing; their epoch counts for later."""
    subscription = subscription_of()
    join(subscription, "a", "b")
    subscription.advance(0)
    subscription.advance(DELAY_MS)
    subscription.dispatch(0, [1] * 10)
    subscription.redeliver("b", epoch=3)
    assert subscription.next_read(10, DELAY_MS) is None
    assert subscription.consumers["b"].epoch == 3


def test_a_seek_leaves_those_who_stand_by_their_permits() -> None:
    """Only the active consumer is disconnected by a seek; the next one can go on with what it
    has."""
    subscription = subscription_of()
    join(subscription, "a", "b")
    subscription.advance(0)
    subscription.advance(DELAY_MS)
    subscription.dispatch(0, [1] * 10)
    subscription.remove_consumer("a")
    subscription.reset(7)
    subscription.advance(1500)
    subscription.advance(2500)
    assert subscription.next_read(10, 2500) == ReadRequest(7, 3)


def test_without_delay_a_change_is_immediate() -> None:
    """0 switches the wait off."""
    subscription = subscription_of(delay_ms=0)
    join(subscription, "a")
    assert subscription.advance(77) == [("a", True)]
    assert subscription.next_read(10, 77) == ReadRequest(0, 10)


def test_a_clock_that_is_set_back_does_not_prolong_the_wait() -> None:
    """The wait is never longer than the delay from now."""
    subscription = subscription_of()
    join(subscription, "a")
    subscription.advance(1_000_000)
    subscription.advance(5000)
    assert subscription.next_wakeup_ms() == 6000


class Course:
    """One random course: clients that hold what they were given, and how each was notified."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ledgers = LedgerTable([(1, 5)])
        topic = (
            PARTITION.format(self.random.randint(0, 3))
            if self.random.random() < 0.5
            else f"{PLAIN}-{seed}"
        )
        limits = DispatchLimits(failover_delay_ms=DELAY_MS, acknowledged_ranges_max=12)
        self.subscription = Subscription(
            "s", True, Cursor(self.ledgers, 0), topic=topic, limits=limits
        )
        self.now = 1_000_000
        self.notified: dict[int, bool] = {}
        self.received: dict[int, int] = {}  # by consumer: the last ordinal of its turn
        self.delivered: set[int] = set()
        self.turns = self.number = self.lost_turn_at = 0
        self.serving: int | None = None

    def run(self, steps: int) -> None:
        events = (
            self.publish,
            self.join,
            self.leave,
            self.flow,
            self.acknowledge,
            self.redeliver,
            self.wait,
            self.deliver,
        )
        for _ in range(steps):
            self.random.choices(events, (10, 4, 3, 10, 12, 2, 25, 40))[0]()

    def publish(self) -> None:
        self.ledgers.append(1, self.ledgers.end, self.random.randint(1, 8))

    def join(self) -> None:
        if len(self.subscription.consumers) < 5:
            self.number += 1
            name, priority = self.random.choice("abcdef"), self.random.choice((0, 0, 1))
            self.subscription.add_consumer(self.number, FAILOVER, name=name, priority=priority)

    def any_consumer(self) -> int | None:
        return (
            self.random.choice(list(self.subscription.consumers))
            if self.subscription.consumers
            else None
        )  # type: ignore[return-value]

    def leave(self) -> None:
        handle = self.any_consumer()
        if handle is not None:
            self.subscription.remove_consumer(handle)
            self.notified.pop(handle, None)

    def flow(self) -> None:
        handle = self.any_consumer()
        if handle is not None:
            self.subscription.flow(handle, self.random.randint(1, 10))

    def acknowledge(self) -> None:
        handle = self.any_consumer()
        if handle is None or not self.delivered:
            return
        ordinal = self.random.choice(sorted(self.delivered))
        if self.random.random() < 0.5:
            self.subscription.acknowledge_cumulative(handle, ordinal)
        else:
            self.subscription.acknowledge(handle, [(ordinal, ordinal + 1)])

    def redeliver(self) -> None:
        handle = self.any_consumer()
        if handle is not None:
            self.subscription.redeliver(handle)
            self.received.pop(handle, None)

    def wait(self) -> None:
        self.now += self.random.choice((1, 100, 600, 1000))
        self.advance()

    def advance(self) -> None:
        changes = self.subscription.advance(self.now)
        for handle, is_active in changes:
            assert isinstance(handle, int)
            self.notified[handle] = is_active
        actives = [handle for handle, is_active in self.notified.items() if is_active]
        assert len(actives) <= 1, "never two consumers that think they are active"
        for handle, is_active in changes:
            if is_active and handle != self.serving:
                self.serving = handle  # type: ignore[assignment]
                self.received.clear()
                self.turns += 1

    def deliver(self) -> None:
        self.advance()
        request = self.subscription.next_read(self.random.randint(1, 10), self.now)
        if request is None:
            return
        deliveries = self.subscription.dispatch(request.first, [1] * request.entries)
        assert deliveries, "a read that leads to nothing would be repeated permanently"
        cursor = self.subscription.cursor
        for delivery in deliveries:
            handle = delivery.consumer
            assert isinstance(handle, int)
            assert self.notified.get(handle), (
                "only the consumer that was notified as active gets anything"
            )
            assert delivery.redelivery_counts is None
            last = self.received.get(handle, cursor.mark_delete - 1)
            assert delivery.first == cursor.first_unacknowledged(last + 1), (
                "in order, none left out, from the mark-delete on"
            )
            self.received[handle] = delivery.first + delivery.entries - 1
            self.delivered.update(range(delivery.first, delivery.first + delivery.entries))

    def finish(self) -> None:
        while not self.subscription.consumers:
            self.join()
        self.subscription.redeliver(next(iter(self.subscription.consumers)))
        self.received.clear()
        self.now += DELAY_MS
        self.advance()
        self.now += DELAY_MS
        self.advance()
        for handle in self.subscription.consumers:
            self.subscription.redeliver(handle)
            self.subscription.flow(handle, 10_000)
        while self.subscription.backlog:
            self.deliver()
            self.subscription.acknowledge(None, [(0, max(self.received.values()) + 1)])


@pytest.mark.parametrize("seed", range(20))
def test_random_course(seed: int) -> None:
    """Joins, leaves, acknowledgements, redeliveries and time in any order: one at a time, in
    order, everything in the end."""
    course = Course(seed)
    course.run(600)
    course.finish()
    assert course.turns > 1, "the turn must really change, or it proves nothing"
    assert len(course.delivered) > 20
