"""The soak's judge: a good history passes, and each planted violation is found, alone and by its
name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dev.soak.history import SubscriptionHistory, TopicHistory, violations

P, Q = "p", "q"


def good(deduplicated: bool = True) -> TopicHistory:
    """Two producers, two partitions, one batch, a receipt of a repetition, and two subscriptions
    that got everything."""
    topic = TopicHistory("t", deduplicated, (0, 1))
    topic.stored = {
        0: [((3, 0, 0), (P, 0)), ((3, 0, 1), (P, 2)), ((3, 1, -1), (Q, 0)), ((5, 0, -1), (P, 3))],
        1: [((9, 0, -1), (P, 1)), ((9, 1, -1), (Q, 1))],
    }
    topic.sent.update({P: 4, Q: 2})
    for partition, entries in topic.stored.items():
        for place, message in entries:
            topic.receipt(message, (partition, place), 1.0)
    topic.receipts[(Q, 1)] = None
    for name, ordered in (("exclusive", True), ("shared", False)):
        subscription = SubscriptionHistory(name, name, ordered)
        topic.subscriptions.append(subscription)
        for partition, entries in topic.stored.items():
            for place, message in entries:
                subscription.deliver((partition, place), message, 0.0)
                subscription.confirmed[(partition, place)] = 2.0
    return topic


def test_a_good_history_has_no_violation() -> None:
    """Also one with repeated deliveries, before the acknowledgement was confirmed or in a
    session that had begun before."""
    topic = good()
    for subscription in topic.subscriptions:
        subscription.deliver((0, (3, 1, -1)), (Q, 0), 1.5)
    assert violations([topic]) == []


def test_without_deduplication_a_repetition_is_no_violation() -> None:
    topic = good(deduplicated=False)
    topic.stored[0].append(((5, 1, -1), (P, 3)))
    assert violations([topic]) == []


def lose(topic: TopicHistory) -> None:
    topic.stored[0].pop()
    for subscription in topic.subscriptions:
        subscription.distinct.discard((P, 3))
        subscription.delivered = [
            delivery for delivery in subscription.delivered if delivery[1] != (P, 3)
        ]


def misplace(topic: TopicHistory) -> None:
    topic.receipts[(Q, 0)] = (0, (3, 7, -1))


def duplicate(topic: TopicHistory) -> None:
    topic.stored[0].append(((5, 1, -1), (P, 3)))


def duplicate_in_another_partition(topic: TopicHistory) -> None:
    topic.stored[1].append(((9, 2, -1), (P, 3)))


def reuse_an_id(topic: TopicHistory) -> None:
    topic.sent[P] = 5
    topic.stored[0].append(((5, 0, -1), (P, 4)))
    for subscription in topic.subscriptions:
        subscription.deliver((0, (5, 0, -1)), (P, 4), 0.0)
    topic.receipts[(P, 4)] = topic.receipts[(P, 3)] = None


def let_ids_fall(topic: TopicHistory) -> None:
    entries = topic.stored[0]
    entries[2], entries[3] = entries[3], entries[2]


def swap(topic: TopicHistory) -> None:
    (first, (_, one)), (second, (_, two)) = ((n, topic.stored[0][n]) for n in (0, 1))
    topic.stored[0][first], topic.stored[0][second] = ((3, 0, 0), two), ((3, 0, 1), one)
    topic.receipts[one], topic.receipts[two] = (0, (3, 0, 1)), (0, (3, 0, 0))


def invent(topic: TopicHistory) -> None:
    topic.stored[1].append(((9, 2, -1), ("nobody", 0)))
    for subscription in topic.subscriptions:
        subscription.deliver((1, (9, 2, -1)), ("nobody", 0), 0.0)


def fail_a_send(topic: TopicHistory) -> None:
    topic.sent[P] = 5
    topic.failed.append("p 4: TimeOut")


def leave_a_send_unanswered(topic: TopicHistory) -> None:
    topic.sent[P] = 5


def defer(topic: TopicHistory) -> None:
    topic.subscriptions[1].distinct.discard((Q, 0))


def deliver_what_is_not_stored(topic: TopicHistory) -> None:
    topic.sent[P] = 5
    topic.failed.append("p 4: TimeOut")
    topic.subscriptions[0].deliver((0, (5, 1, -1)), (P, 4), 0.0)


def deliver_out_of_order(topic: TopicHistory) -> None:
    delivered = topic.subscriptions[0].delivered
    delivered[0], delivered[1] = delivered[1], delivered[0]


def undo_an_acknowledgement(topic: TopicHistory) -> None:
    topic.subscriptions[1].deliver((0, (3, 1, -1)), (Q, 0), 2.5)


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (lose, {"lost"}),
        (misplace, {"misplaced"}),
        (duplicate, {"duplicate"}),
        (duplicate_in_another_partition, {"duplicate"}),
        (reuse_an_id, {"id used twice"}),
        (let_ids_fall, {"ids fall"}),
        (swap, {"order"}),
        (invent, {"invented"}),
        (fail_a_send, {"send failed"}),
        (leave_a_send_unanswered, {"send unanswered"}),
        (defer, {"undelivered"}),
        (deliver_what_is_not_stored, {"send failed", "delivered and not in the log"}),
        (deliver_out_of_order, {"delivery order"}),
        (undo_an_acknowledgement, {"acknowledgement undone"}),
    ],
)
def test_each_planted_violation_is_found(
    plant: Callable[[TopicHistory], None], kinds: set[str]
) -> None:
    topic = good()
    plant(topic)
    assert {violation.kind for violation in violations([topic])} == kinds


def test_the_longest_gap_overlaps_the_span() -> None:
    """A gap counts whole, though it began before the span or ends after it; a topic without any
    receipt is silent for all of it."""
    topic = TopicHistory("t", True)
    assert topic.longest_gap(10.0, 12.0) == 2.0
    topic.times = [1.0, 9.0, 11.0, 11.5, 20.0]
    assert topic.longest_gap(10.0, 11.8) == 8.5
    assert topic.longest_gap(9.5, 11.2) == 2.0
