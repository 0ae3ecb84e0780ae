"""Topics: ids, confirmation, registries, recovery."""

from __future__ import annotations

import pytest

from magnetar.errors import (
    ConsumerBusy,
    CorruptData,
    InvalidSubscriptionName,
    NotAllowed,
    ServiceNotReady,
    SubscriptionNotFound,
)
from magnetar.topics.dispatch.base import SubscriptionType
from magnetar.topics.ledger_ids import LedgerIds, ledger_of
from magnetar.topics.ledgers import EARLIEST, LATEST, Position
from magnetar.topics.state import CursorDelta, CursorState, TopicState
from magnetar.topics.topic import Topic

NAME = "persistent://public/default/t"
LEDGER = ledger_of(4, 0)


def topic_with(entries: int, epoch: int = 4) -> Topic:
    topic = Topic(NAME, LedgerIds(epoch), created_ms=17)
    if entries:
        topic.confirm(topic.publish(entries), entries)
    return topic


def test_ids_are_assigned_in_runs_of_the_terms_ledger() -> None:
    """The ledger of the first number, entries 0, 1, 2, ..."""
    topic = Topic(NAME, LedgerIds(4))
    assert topic.publish(3) == Position(LEDGER, 0)
    assert topic.publish(1) == Position(LEDGER, 3)
    assert topic.unconfirmed == 4


def test_only_confirmed_entries_can_be_delivered() -> None:
    """Dispatch and GET_LAST_MESSAGE_ID see an entry once it is durable, not before."""
    topic = Topic(NAME, LedgerIds(4))
    consumer = topic.subscribe("s", EARLIEST)
    consumer.add_consumer("a", SubscriptionType.EXCLUSIVE)
    consumer.flow("a", 10)
    first = topic.publish(3)
    assert (consumer.next_read(10), topic.last_message_position()) == (None, EARLIEST)
    topic.confirm(first, 2)
    assert consumer.next_read(10) == (0, 2)
    assert (topic.last_message_position(), topic.unconfirmed) == (Position(LEDGER, 1), 1)


def test_a_frozen_topic_refuses_publishing_until_it_thaws() -> None:
    """During a planned move no id is assigned; what was published before can still be confirmed."""
    topic = Topic(NAME, LedgerIds(4))
    first = topic.publish(1)
    topic.freeze()
    with pytest.raises(ServiceNotReady, match="being unloaded"):
        topic.publish(1)
    topic.confirm(first, 1)
    topic.thaw()
    assert topic.publish(1) == Position(LEDGER, 1)


def test_a_new_term_goes_on_in_a_greater_ledger_with_the_first_entry() -> None:
    """A topic without entries takes no ledger id; its partition and its sidecar share the
    number, whichever is first."""
    ids, later = LedgerIds(4), LedgerIds(6)
    topics = [Topic(NAME, ids) for _ in range(3)]
    assert topics[2].take_sidecar_ledger() == ledger_of(4, 0) - 1
    assert [topic.publish(2) for topic in reversed(topics)] == [
        Position(ledger_of(4, number), 0) for number in range(3)
    ]
    for topic in topics:
        topic.confirm((topic.ledger, 0), 2)
        topic.go_on_in(later)
        assert topic.last_published == (topic.ledgers.last_ledger, 1)
    assert topics[0].publish(1) == Position(ledger_of(6, 0), 0)
    assert [topic.ledger for topic in topics] == [ledger_of(6, 0), -1, -1]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (EARLIEST, 0),
        (LATEST, 5),
        ((LEDGER, 2), 2),
        ((LEDGER, 99), 5),
        ((1, 0), 0),
        ((ledger_of(5, 0), 0), 5),
        ((LEDGER, -1), 0),
    ],
)
def test_a_new_subscription_starts_where_it_was_asked_to(
    start: tuple[int, int], first: int
) -> None:
    """Inclusive; a position that does not exist means the next one that does."""
    assert topic_with(5).subscribe("s", start).cursor.mark_delete == first


def test_an_existing_subscription_ignores_the_start() -> None:
    """Subscribing again finds the same cursor."""
    topic = topic_with(5)
    assert topic.subscribe("s", LATEST) is topic.subscribe("s", EARLIEST)


def test_durable_and_reader_cannot_share_a_name() -> None:
    """Either way round it is NotAllowed."""
    topic = topic_with(5)
    topic.subscribe("s", LATEST)
    topic.subscribe("r", LATEST, durable=False)
    with pytest.raises(NotAllowed, match="'s' is durable"):
        topic.subscribe("s", LATEST, durable=False)
    with pytest.raises(NotAllowed, match="'r' is not durable"):
        topic.subscribe("r", LATEST)


@pytest.mark.parametrize("name", ["", "  ", "pulsar.dedup", "pulsar.repl.west"])
def test_reserved_subscription_names_are_refused(name: str) -> None:
    """Pulsar keeps them for itself."""
    with pytest.raises(InvalidSubscriptionName, match="reserved"):
        topic_with(0).subscribe(name, LATEST)


def test_unsubscribing_needs_an_empty_subscription() -> None:
    """Connected consumers keep it alive."""
    topic = topic_with(1)
    topic.subscribe("s", LATEST).add_consumer("a", SubscriptionType.SHARED)
    with pytest.raises(ConsumerBusy):
        topic.remove_subscription("s")
    topic.subscription("s").remove_consumer("a")
    topic.remove_subscription("s")
    with pytest.raises(SubscriptionNotFound):
        topic.subscription("s")


def test_a_checkpoint_restores_topic_and_cursors() -> None:
    """State out, state in, into a later term: the same state, new ids above the old ones."""
    topic = topic_with(6)
    topic.properties = {"k": "v"}
    topic.subscribe("s", EARLIEST, properties={"a": "b"}).acknowledge(
        None, [(0, 2), (4, 5)], [(3, 0b10)]
    )
    topic.subscribe("reader", EARLIEST, durable=False)
    state = topic.to_state()
    assert state == TopicState(
        17,
        ((LEDGER, 6),),
        {"s": CursorState((LEDGER, 1), ((LEDGER, 4, 4),), ((LEDGER, 3, (2,)),), {"a": "b"})},
        {"k": "v"},
    )
    restored = Topic.from_state(NAME, LedgerIds(5), state)
    assert restored.to_state() == state
    assert restored.publish(1) == Position(ledger_of(5, 0), 0)


def test_an_empty_topic_survives_a_checkpoint() -> None:
    """A subscription made before the first message sees that message after recovery."""
    topic = topic_with(0)
    topic.subscribe("s", LATEST)
    restored = Topic.from_state(NAME, LedgerIds(5), topic.to_state())
    restored.confirm(restored.publish(1), 1)
    assert restored.subscription("s").backlog == 1


def test_replay_is_idempotent_from_any_earlier_record() -> None:
    """A checkpoint may cover records that are replayed again: nothing changes, whichever record
    replay begins with."""
    topic = topic_with(0)
    records: list[tuple[str, tuple[object, ...]]] = []

    def log_cursor(name: str) -> None:
        records.append(("apply_cursor", (name, topic.subscription(name).take_delta())))

    records.append(("apply_topic", (17, {})))
    for changes in ({"a": "1", "b": "2"}, {"a": ""}, {"b": "3", "c": "4"}):
        topic.apply_update(changes)
        records.append(("apply_update", (changes,)))
    topic.created_ms = 17
    topic.subscribe("s", LATEST, properties={"a": "b"})
    log_cursor("s")
    for count in (3, 2, 4):
        first = topic.publish(count)
        topic.confirm(first, count)
        records.append(("apply_entries", (*first, count)))
    topic.subscription("s").acknowledge(None, [(1, 3), (5, 6)])
    log_cursor("s")
    topic.subscription("s").reset(2)
    log_cursor("s")
    topic.remove_subscription("s")
    records.append(("apply_subscription_removed", ("s",)))
    topic.subscribe("s", LATEST)
    log_cursor("s")
    topic.confirm(topic.publish(1), 1)
    records.append(("apply_entries", (LEDGER, 9, 1)))
    topic.subscription("s").replace_properties({"c": "d"})
    log_cursor("s")
    final = topic.to_state()
    for covered in range(len(records) + 1):
        checkpoint = Topic(NAME, LedgerIds(8))
        for method, arguments in records[:covered]:
            getattr(checkpoint, method)(*arguments)
        state = checkpoint.to_state()
        for replayed_from in range(covered + 1):
            restored = Topic.from_state(NAME, LedgerIds(8), state)
            for method, arguments in records[replayed_from:]:
                getattr(restored, method)(*arguments)
            assert restored.to_state() == final, (covered, replayed_from)


def test_replay_reports_corruption() -> None:
    """A hole in the entries, or a ledger that cannot be older than this term, stops recovery."""
    topic = Topic.from_state(NAME, LedgerIds(5), TopicState(0, ((LEDGER, 6),)))
    with pytest.raises(CorruptData):
        topic.apply_entries(LEDGER, 7, 1)
    with pytest.raises(CorruptData, match="not older"):
        topic.apply_entries(ledger_of(5, 0), 0, 1)


def test_a_cursor_record_of_a_removed_subscription_is_ignored() -> None:
    """Only a record that creates it brings a subscription back."""
    topic = topic_with(1)
    topic.apply_cursor("gone", CursorDelta(Position(LEDGER, 0)))
    assert not topic.subscriptions
