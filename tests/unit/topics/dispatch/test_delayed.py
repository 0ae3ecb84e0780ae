"""Delayed entries: never too early, never forgotten, within the memory limit."""

from __future__ import annotations

import random

import pytest

from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import DispatchLimits, EntryTraits, SubscriptionType
from magnetar.topics.dispatch.delayed import DelayedEntries
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription

TICK = 100


def everything(start: int, end: int) -> list[tuple[int, int]]:
    return [(start, end)]


def ordinals(runs: list[tuple[int, int]]) -> set[int]:
    return {ordinal for start, end in runs for ordinal in range(start, end)}


def test_an_entry_alone_comes_exactly_at_its_time() -> None:
    delayed = DelayedEntries(TICK)
    delayed.add(5, 6, 1250, everything)
    assert delayed.next_ms() == 1250
    assert delayed.take_due(1249) == []
    assert ordinals(delayed.take_due(1250)) == {5}
    assert delayed.next_ms() is None
    assert not delayed


def test_those_of_one_tick_come_together_with_the_earliest() -> None:
    """That is what saves memory and timers; nobody comes more than a tick early."""
    delayed = DelayedEntries(TICK)
    for ordinal, at in ((1, 1290), (2, 1210), (3, 1300)):
        delayed.add(ordinal, ordinal + 1, at, everything)
    assert delayed.next_ms() == 1210
    assert ordinals(delayed.take_due(1210)) == {1, 2}
    assert ordinals(delayed.take_due(1300)) == {3}


@pytest.mark.parametrize("seed", range(20))
def test_random_delays_in_little_memory(seed: int) -> None:
    """Against a dict: whatever is due comes out; what comes out is early by a tick at most, or
    is put back; memory stays within the limit."""
    chance = random.Random(seed)
    delayed, model, acknowledged = DelayedEntries(TICK, runs_max=8), dict[int, int](), set[int]()
    now = next_ordinal = 0

    def wanted(start: int, end: int) -> list[tuple[int, int]]:
        return [
            (ordinal, ordinal + 1) for ordinal in range(start, end) if ordinal not in acknowledged
        ]

    for _ in range(600):
        if chance.random() < 0.6:
            next_ordinal += chance.randint(1, 2)
            model[next_ordinal] = now + chance.randint(1, 5000)
            delayed.add(next_ordinal, next_ordinal + 1, model[next_ordinal], wanted)
        elif model and chance.random() < 0.2:
            gone = chance.choice(sorted(model))
            acknowledged.add(gone)
            del model[gone]
        else:
            now += chance.randint(0, 300)
            for ordinal in sorted(ordinals(delayed.take_due(now)) - acknowledged):
                if not delayed.must_wait(model[ordinal], now, again=True):
                    del model[ordinal]
                else:
                    delayed.add(ordinal, ordinal + 1, model[ordinal], wanted)
            assert all(at > now for at in model.values()), "nothing that is due stays"
            assert not model or (
                (wakeup := delayed.next_ms()) is not None and wakeup <= min(model.values())
            )
        assert delayed.run_count <= 9
    assert ordinals(delayed.take_all()) >= set(model)


def test_alike_delays_take_no_memory() -> None:
    """A million entries that all wait an hour: as many runs as ticks."""
    delayed = DelayedEntries(1000)
    for second in range(100):
        for part in range(10):
            start = (second * 10 + part) * 1000
            delayed.add(start, start + 1000, 3_600_000 + second * 1000 + part * 100, everything)
    assert delayed.size == 1_000_000
    assert delayed.run_count == 100


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_what_is_acknowledged_when_its_time_comes_is_not_delivered(kind: SubscriptionType) -> None:
    """Neither while it waits, nor between its time and the read."""
    subscription = Subscription(
        "s", True, Cursor(LedgerTable([(3, 3)]), 0), limits=DispatchLimits()
    )
    subscription.add_consumer("a", kind)
    subscription.flow("a", 1)
    assert subscription.next_read(10, 1000) is not None
    traits = [EntryTraits(deliver_at_ms=5000)] * 3
    assert subscription.dispatch(0, [1] * 3, traits) == []
    assert subscription.next_wakeup_ms() == 5000
    assert subscription.postponed.delayed == 3
    subscription.acknowledge("a", [(0, 1)])
    assert subscription.next_read(10, 4999) is None
    found = subscription.next_read(10, 5000)
    assert found is not None
    assert found.first == 1
    subscription.acknowledge("a", [(1, 2)])
    found = subscription.next_read(10, 5000)
    assert found is not None
    deliveries = subscription.dispatch(0, [1] * 3, traits)
    assert [(delivery.first, delivery.entries) for delivery in deliveries] == [(2, 1)]


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_a_policy_that_switches_delays_off_releases_what_waits(kind: SubscriptionType) -> None:
    """And what comes later does not wait at all."""
    subscription = Subscription(
        "s", True, Cursor(LedgerTable([(3, 2)]), 0), limits=DispatchLimits()
    )
    subscription.add_consumer("a", kind)
    subscription.flow("a", 10)
    traits = [EntryTraits(deliver_at_ms=5000)] * 2
    assert subscription.next_read(10, 1000) is not None
    assert subscription.dispatch(0, [1], traits[:1]) == []
    subscription.limit(DispatchLimits(delayed_delivery=False))
    assert subscription.next_read(10, 1000) is not None
    deliveries = subscription.dispatch(0, [1] * 2, traits)
    assert sum(delivery.entries for delivery in deliveries) == 2


def test_what_is_discarded_does_not_come_out() -> None:
    """From the middle of a run, and from those whose times are not known one by one."""
    delayed = DelayedEntries(100, 2)
    for start, due in ((0, 1000), (10, 2000), (20, 3000), (30, 4000)):
        delayed.add(start, start + 5, due, lambda start, end: [(start, end)])
    for ordinal, due in ((2, 1000), (3, 1000), (31, 4000), (32, 4000), (50, 2000)):
        delayed.discard(ordinal, due)
    found = delayed.take_due(10_000)
    assert {number for start, end in found for number in range(start, end)} == {
        0,
        1,
        4,
        *range(10, 15),
        *range(20, 25),
        30,
        33,
        34,
    }
    assert not delayed
    assert delayed.run_count == 0
