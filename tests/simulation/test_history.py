"""Every check accuses a history that breaks its promise, and none accuses what a correct system
may do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from magnetar.topics.ledger_ids import ledger_of
from tests.simulation.kernel import checks
from tests.simulation.kernel.checks import HistoryViolated
from tests.simulation.kernel.history import History, LogEntry, Position, Session

TOPIC = "persistent://public/default/t"
OLD, NEW = ledger_of(5, 1), ledger_of(10, 1)


def entry(
    ledger: int, number: int, sequence: int, payload: bytes | None = None, producer: str = "p"
) -> LogEntry:
    return LogEntry(
        Position(ledger, number),
        producer,
        sequence,
        payload if payload is not None else b"%d" % sequence,
    )


def sent(
    history: History,
    sequence: int,
    position: Position | None,
    producer: str = "p",
    payload: bytes | None = None,
) -> None:
    send = history.send(
        TOPIC, producer, sequence, payload if payload is not None else b"%d" % sequence
    )
    send.acknowledged(position)


def healthy() -> History:
    """Two terms of one bundle, a resend that deduplication answered, an unknown outcome, and
    acknowledgements."""
    history = History()
    sent(history, 0, Position(OLD, 0))
    history.receipt(TOPIC, Position(OLD, 0), "a")
    # no answer: the connection was lost, and the answer to the resend below names the first copy
    history.send(TOPIC, "p", 1, b"1")
    sent(history, 1, Position(OLD, 1))
    history.send(TOPIC, "q", 0, b"q0").failed()
    history.takeover("a", 5, [TOPIC], {TOPIC: Position(OLD, 1)})
    sent(history, 2, Position(NEW, 0))
    sent(history, 2, None)  # a duplicate whose receipt does not say where
    history.receipt(TOPIC, Position(NEW, 0), "b")
    first = history.session("c", "s", TOPIC)
    first.received(Position(OLD, 0), b"0")
    first.received(Position(OLD, 1), b"1")
    first.ack(Position(OLD, 0)).confirmed()
    first.ack(Position(OLD, 1))  # never confirmed: may come again
    first.received(Position(OLD, 0), b"0")  # was on its way already
    second = history.session("c", "s", TOPIC)
    second.received(Position(OLD, 1), b"1")
    reader = history.session("r", "reader", TOPIC, durable=False)
    reader.ack(Position(OLD, 0)).confirmed()
    history.session("r", "reader", TOPIC, durable=False).received(Position(OLD, 0), b"0")
    history.final_log(
        TOPIC, [entry(OLD, 0, 0), entry(OLD, 1, 1), entry(NEW, 0, 2), entry(NEW, 1, 0, b"q0", "q")]
    )
    return history


def test_a_correct_history_is_not_accused() -> None:
    history = healthy()
    history.check(deduplicated=True)
    assert history.acknowledged == 4


def test_a_trimmed_topic_may_lack_what_was_acknowledged_and_nothing_else() -> None:
    """An ack need not be confirmed: the broker may have it. What nobody acknowledged must be
    there."""
    history = History()
    history.trimmed.add(TOPIC)
    for number in range(3):
        sent(history, number, Position(OLD, number))
    session = history.session("c", "s", TOPIC)
    for number in range(3):
        session.received(Position(OLD, number), b"%d" % number)
    session.ack(Position(OLD, 0)).confirmed()
    session.ack(Position(OLD, 1))
    history.final_log(TOPIC, [entry(OLD, 2, 2)])
    history.check(deduplicated=True)
    history.final_log(TOPIC, [entry(OLD, 1, 1)])
    with pytest.raises(HistoryViolated) as raised:
        history.check(deduplicated=True)
    assert [violation.invariant for violation in raised.value.violations] == [1, 1]


def test_a_resent_sequence_is_a_duplicate_but_not_out_of_order() -> None:
    history = History()
    history.final_log(
        TOPIC,
        [entry(OLD, 0, 0), entry(OLD, 1, 1), entry(OLD, 2, 0), entry(OLD, 3, 1), entry(OLD, 4, 2)],
    )
    assert checks.check_order(history) == []
    assert [violation.text for violation in checks.duplicates(history)] == [
        "p #0 is in the log 2 times",
        "p #1 is in the log 2 times",
    ]
    history.check(deduplicated=False)
    with pytest.raises(HistoryViolated, match="2 violations"):
        history.check(deduplicated=True)


def lost_message(history: History) -> None:
    history.logs[TOPIC] = [
        found for found in history.logs[TOPIC] if found.position != Position(OLD, 1)
    ]


def changed_bytes(history: History) -> None:
    history.logs[TOPIC][0] = entry(OLD, 0, 0, b"other")


def lost_duplicate(history: History) -> None:
    history.send(TOPIC, "p", 77, b"77").acknowledged(None)


def no_final_log(history: History) -> None:
    del history.logs[TOPIC]


def vanished_delivery(history: History) -> None:
    history.session("c", "s", TOPIC).received(Position(NEW, 9), b"dirty")


def shared_epoch(history: History) -> None:
    history.receipt(TOPIC, Position(NEW, 1), "a")


def receipt_beyond_the_takeover(history: History) -> None:
    history.receipt(TOPIC, Position(OLD, 2), "a")


def receipt_where_nothing_was_recovered(history: History) -> None:
    history.takeover("b", 10, [TOPIC], {})


def position_that_goes_back_in_real_time(history: History) -> None:
    history.logs[TOPIC].insert(2, entry(OLD, 2, 3))
    sent(history, 3, Position(OLD, 2))


def swapped_order(history: History) -> None:
    history.logs[TOPIC] = [entry(OLD, 0, 1), entry(OLD, 1, 0)]


def undone_acknowledgement(history: History) -> None:
    history.session("c", "s", TOPIC).received(Position(OLD, 0), b"0")


def undone_cumulative_acknowledgement(history: History) -> None:
    history.session("c", "s", TOPIC).ack(Position(NEW, 0), cumulative=True).confirmed()
    history.session("d", "s", TOPIC).received(Position(OLD, 1), b"1")


def repeated_id(history: History) -> None:
    history.logs[TOPIC].append(entry(NEW, 1, 5))


def id_with_two_payloads(history: History) -> None:
    history.session("d", "s", TOPIC).received(Position(NEW, 0), b"something else")


def ledger_of_another_topic(history: History) -> None:
    history.session("e", "s", "persistent://public/default/u").received(Position(NEW, 7), b"of u")


def sidecar_of_another_topic(history: History) -> None:
    for topic in (TOPIC, "persistent://public/default/u"):
        history.receipt(topic, Position(NEW - 1, 0), "b")


@pytest.mark.parametrize(
    ("breach", "invariant", "text"),
    [
        (lost_message, 1, f"p #1 b'1' was acknowledged at {OLD}:1, where nothing is"),
        (changed_bytes, 1, f"p #0 b'0' was acknowledged at {OLD}:0, where b'other' is"),
        (lost_duplicate, 1, "p #77 b'77' was acknowledged as a duplicate, but is not in the log"),
        (no_final_log, 1, "final log of the topic was not recorded"),
        (vanished_delivery, 1, f"b'dirty' was delivered to c at {NEW}:9, but is not in the log"),
        (shared_epoch, 2, "b and a both acknowledged in epoch 10"),
        (
            receipt_beyond_the_takeover,
            2,
            f"a acknowledged {OLD}:2 after the takeover, which found {OLD}:1",
        ),
        (
            receipt_where_nothing_was_recovered,
            2,
            f"b acknowledged {NEW}:0 before the takeover, which found nothing",
        ),
        (
            position_that_goes_back_in_real_time,
            2,
            f"p #3 b'3' got {OLD}:2 though it was sent after the receipt of p #2 b'2' at {NEW}:0",
        ),
        (swapped_order, 3, f"p #0 at {OLD}:1 follows #1"),
        (undone_acknowledgement, 3, f"{OLD}:0 was delivered again to c on s"),
        (undone_cumulative_acknowledgement, 3, f"{OLD}:1 was delivered again to d on s"),
        (repeated_id, 4, f"{NEW}:1 follows {NEW}:1 in the log"),
        (id_with_two_payloads, 4, f"{NEW}:0 named b'2' and b'something else'"),
        (ledger_of_another_topic, 4, f"ledger {NEW} is that of {TOPIC} as well"),
        (sidecar_of_another_topic, 4, f"ledger {NEW - 1} is that of {TOPIC} as well"),
    ],
)
def test_each_breach_is_accused(
    breach: Callable[[History], None], invariant: int, text: str
) -> None:
    history = healthy()
    breach(history)
    with pytest.raises(HistoryViolated) as caught:
        history.check(deduplicated=True)
    assert any(
        violation.invariant == invariant and text in violation.text
        for violation in caught.value.violations
    ), caught.value


def test_batch_indexes_order_the_messages_of_one_entry() -> None:
    history = History()
    positions = [Position(OLD, 0, index) for index in range(3)]
    history.final_log(
        TOPIC, [LogEntry(position, "p", number, b"m") for number, position in enumerate(positions)]
    )
    history.check(deduplicated=True)
    session: Session = history.session("c", "s", TOPIC)
    session.ack(positions[0]).confirmed()
    history.session("c", "s", TOPIC).received(positions[1], b"m")
    history.check(deduplicated=True)
    assert Position(OLD, 0, 2).epoch == 5
