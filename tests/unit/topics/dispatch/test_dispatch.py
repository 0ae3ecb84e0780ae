"""Dispatch by example: turns, priorities, permits, limits, redelivery, types."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.errors import ConsumerBusy, InvalidRequest
from magnetar.topics.cursor import Cursor
from magnetar.topics.dispatch.base import (
    Delivery,
    DispatchLimits,
    ReadRequest,
    SubscriptionType,
    entries_within,
    read_span,
)
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED


def subscription_over(entries: int, **limits: Any) -> Subscription:
    return Subscription(
        "s", True, Cursor(LedgerTable([(3, entries)]), 0), limits=DispatchLimits(**limits)
    )


def connected(
    entries: int, kind: SubscriptionType, *handles: str, permits: int = 1000, **limits: Any
) -> Subscription:
    subscription = subscription_over(entries, **limits)
    for handle in handles:
        subscription.add_consumer(handle, kind)
        subscription.flow(handle, permits)
    return subscription


def runs(deliveries: list[Delivery]) -> list[tuple[object, int, int]]:
    return [(delivery.consumer, delivery.first, delivery.entries) for delivery in deliveries]


def test_shared_takes_turns_of_twenty_entries() -> None:
    """Round robin over the ready consumers, continued across calls."""
    subscription = connected(100, SHARED, "a", "b", "c")
    assert runs(subscription.dispatch(0, [1] * 50)) == [("a", 0, 20), ("b", 20, 20), ("c", 40, 10)]
    assert runs(subscription.dispatch(50, [1] * 50)) == [
        ("a", 50, 20),
        ("b", 70, 20),
        ("c", 90, 10),
    ]
    assert subscription.next_read(100) is None


def test_lower_priority_number_goes_first() -> None:
    """Consumers of a higher number get entries only when those before them are out of permits."""
    subscription = subscription_over(30)
    for handle, priority in (("late", 1), ("first", 0), ("second", 0)):
        subscription.add_consumer(handle, SHARED, priority=priority)
        subscription.flow(handle, 5)
    assert runs(subscription.dispatch(0, [1] * 12)) == [
        ("first", 0, 5),
        ("second", 5, 5),
        ("late", 10, 2),
    ]


def test_permits_count_messages_and_may_go_negative() -> None:
    """A batch is never split: it overdraws, and the debt is worked off by later permits."""
    subscription = connected(10, EXCLUSIVE, "a", permits=5)
    assert runs(subscription.dispatch(0, [3, 3, 3])) == [("a", 0, 2)]
    assert subscription.consumers["a"].permits == -1
    subscription.flow("a", 1)
    assert subscription.next_read(10) is None
    subscription.flow("a", 1)
    assert subscription.next_read(10) == ReadRequest(2, 1)


def test_acknowledged_entries_are_skipped_and_cost_nothing() -> None:
    """Holes left by acknowledgements split the run, not the permits."""
    subscription = connected(10, EXCLUSIVE, "a", permits=4)
    subscription.acknowledge("a", [(0, 2), (4, 6)])
    assert subscription.next_read(10) == ReadRequest(2, 2)
    assert runs(subscription.dispatch(2, [1] * 8)) == [("a", 2, 2), ("a", 6, 2)]


def test_a_partly_acknowledged_batch_costs_what_remains_and_shows_its_ack_set() -> None:
    """The ack set goes out with the entry; permits pay for unacknowledged messages only."""
    subscription = connected(3, EXCLUSIVE, "a")
    subscription.acknowledge("a", [], [(1, 0b1001)])
    (delivery,) = subscription.dispatch(0, [1, 4, 1])
    assert (delivery.messages, delivery.ack_sets) == (4, [(), (0b1001,), ()])
    assert subscription.consumers["a"].permits == 996


def test_a_consumer_is_blocked_at_its_limit_and_resumes_at_half() -> None:
    """FLOW while blocked is banked; acknowledging down to half lifts the block and says so."""
    subscription = connected(100, SHARED, "a", unacknowledged_per_consumer_messages_max=20)
    assert runs(subscription.dispatch(0, [1] * 60)) == [("a", 0, 20)]
    subscription.flow("a", 7)
    assert subscription.next_read(60) is None
    assert not subscription.acknowledge("a", [(0, 9)])
    assert subscription.next_read(60) is None
    assert subscription.acknowledge("a", [(9, 10)])
    assert subscription.next_read(60) == ReadRequest(20, 60)
    assert subscription.consumers["a"].permits == 987


def test_a_subscription_is_blocked_as_a_whole() -> None:
    """The limit over all consumers counts messages of batches, and lifts at half."""
    subscription = connected(100, SHARED, "a", "b", unacknowledged_per_subscription_messages_max=40)
    assert runs(subscription.dispatch(0, [2] * 60)) == [("a", 0, 20)]
    assert subscription.unacknowledged == 40
    assert subscription.next_read(10) is None
    assert subscription.acknowledge("b", [(0, 10)]), (
        "acknowledging for another consumer counts for the holder"
    )
    assert subscription.next_read(10) == ReadRequest(20, 10)


def test_limits_can_be_switched_off() -> None:
    """0 means no limit on unacknowledged messages."""
    off = {
        "unacknowledged_per_consumer_messages_max": 0,
        "unacknowledged_per_subscription_messages_max": 0,
    }
    subscription = connected(100, SHARED, "a", **off)
    assert sum(delivery.entries for delivery in subscription.dispatch(0, [1] * 100)) == 100


def test_saturation_stops_new_entries_only() -> None:
    """With too many holes, what is given back still goes out; new entries wait until holes
    close."""
    subscription = Subscription(
        "s", True, Cursor(LedgerTable([(3, 20)]), 0, acknowledged_ranges_max=2)
    )
    subscription.add_consumer("a", SHARED)
    subscription.flow("a", 100)
    subscription.dispatch(0, [1] * 10)
    subscription.acknowledge("a", [(2, 3), (5, 10)])
    assert subscription.next_read(10) is None
    subscription.redeliver("a", [(4, 5)])
    assert subscription.next_read(10) == ReadRequest(4, 1)
    assert subscription.acknowledge("a", [(0, 2)]), "delivery became possible again"
    subscription.dispatch(4, [1])
    assert subscription.next_read(10) == ReadRequest(10, 10)


def test_redelivery_is_counted_only_when_asked_for() -> None:
    """A disconnect brings entries back with count 0; a redelivery request adds 1 each time; an
    acknowledgement ends it."""
    subscription = connected(10, SHARED, "a", "b", turn_entries_max=5)
    subscription.dispatch(0, [1] * 10)
    subscription.redeliver("a", [(3, 8)])
    assert subscription.next_read(10) == ReadRequest(3, 2), (
        "entries of another consumer stay where they are"
    )
    subscription.remove_consumer("b")
    assert subscription.next_read(10) == ReadRequest(3, 7)
    first, second = subscription.dispatch(3, [1] * 7)
    assert (first.first, first.entries, first.redelivery_counts) == (3, 5, [1, 1, 0, 0, 0])
    assert (second.first, second.entries, second.redelivery_counts) == (8, 2, None)
    subscription.redeliver("a")
    assert subscription.dispatch(0, [1] * 5)[0].redelivery_counts == [1, 1, 1, 2, 2]


def test_exclusive_redelivery_rewinds_and_takes_the_new_epoch() -> None:
    """Redelivery reads again from the mark-delete, counts stay 0, an older epoch changes
    nothing."""
    subscription = connected(10, EXCLUSIVE, "a")
    subscription.dispatch(0, [1] * 10)
    subscription.acknowledge_cumulative("a", 3)
    subscription.redeliver("a", [(7, 8)], epoch=5)
    assert subscription.next_read(10) == ReadRequest(4, 6)
    (delivery,) = subscription.dispatch(4, [1] * 6)
    assert (delivery.epoch, delivery.redelivery_counts) == (5, None)
    subscription.redeliver("a", epoch=4)
    assert subscription.dispatch(4, [1])[0].epoch == 5


def test_cumulative_acknowledgement_with_an_ack_set() -> None:
    """Everything below is acknowledged, of the entry itself only the cleared bits."""
    subscription = connected(10, EXCLUSIVE, "a")
    subscription.acknowledge_cumulative("a", 4, 0b10)
    assert (subscription.cursor.mark_delete, subscription.cursor.partial) == (4, {4: 0b10})


def test_cumulative_acknowledgement_is_ignored_on_shared() -> None:
    """So it is from a consumer that has left, whatever type it had."""
    subscription = connected(10, SHARED, "a")
    subscription.acknowledge_cumulative("a", 4)
    subscription.remove_consumer("a")
    subscription.acknowledge_cumulative("a", 4)
    assert subscription.cursor.mark_delete == 0


def test_exclusive_is_taken_by_the_first() -> None:
    """The second gets ConsumerBusy and leaves no trace."""
    subscription = connected(10, EXCLUSIVE, "a")
    with pytest.raises(ConsumerBusy, match="already connected"):
        subscription.add_consumer("b", EXCLUSIVE)
    assert list(subscription.consumers) == ["a"]


def test_type_changes_only_when_nobody_is_connected() -> None:
    """While connected the type is fixed; afterwards the next consumer chooses, and delivery
    begins at the mark-delete."""
    subscription = connected(10, SHARED, "a")
    subscription.dispatch(0, [1] * 10)
    subscription.acknowledge("a", [(0, 3)])
    with pytest.raises(ConsumerBusy, match="SHARED consumers"):
        subscription.add_consumer("b", EXCLUSIVE)
    subscription.remove_consumer("a")
    assert subscription.kind is None
    subscription.add_consumer("b", EXCLUSIVE)
    subscription.flow("b", 100)
    assert subscription.next_read(100) == ReadRequest(3, 7)


def test_flow_needs_permits() -> None:
    """FLOW(0) is a broken client."""
    with pytest.raises(InvalidRequest, match="messagePermits: 0"):
        connected(1, SHARED, "a").flow("a", 0)


def test_seek_drops_permits_and_pending_entries() -> None:
    """After a seek nothing goes out before the consumers ask again; then delivery begins there."""
    subscription = connected(10, SHARED, "a")
    subscription.dispatch(0, [1] * 10)
    subscription.redeliver("a", [(0, 2)])
    subscription.reset(6)
    assert (subscription.next_read(10), subscription.unacknowledged) == (None, 0)
    subscription.flow("a", 10)
    assert subscription.next_read(10) == ReadRequest(6, 4)
    assert subscription.dispatch(6, [1] * 4)[0].redelivery_counts is None


def test_one_read_covers_near_runs() -> None:
    """Small gaps are read across, large ones are not, and the limit holds."""
    assert read_span([(5, 6), (8, 10), (40, 41)], 100) == ReadRequest(5, 5)
    assert read_span([(5, 6), (8, 10)], 4) == ReadRequest(5, 4)
    assert read_span([(5, 50)], 4) == ReadRequest(5, 4)
    assert read_span([], 4) is None


def test_entries_within_permits() -> None:
    """As many whole entries as begin while permits last."""
    assert entries_within(3, [1, 1, 1, 1], 0, 4) == (3, 3)
    assert entries_within(1, [9, 1], 0, 2) == (1, 9)
    assert entries_within(9, [1, 2, 3, 4], 1, 3) == (2, 5)


def test_seeking_into_a_held_batch_counts_only_what_remains() -> None:
    """What the batch cost before the seek is forgotten with the seek."""
    subscription = connected(1, SHARED, "a")
    subscription.dispatch(0, [4])
    subscription.reset(0, 0b0010)
    subscription.flow("a", 10)
    assert subscription.dispatch(0, [4])[0].messages == 1
    assert subscription.unacknowledged == 1
    subscription.acknowledge("a", [(0, 1)])
    assert subscription.unacknowledged == 0
