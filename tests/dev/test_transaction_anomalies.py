"""The checker of transaction histories accuses every naive broker of its fault, and a right one
of nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dev.histories.anomalies import Kind, anomalies
from dev.histories.transactions import Fate, History, Input
from tests.dev.transaction_model import NAIVE, ModelBroker, play

COURSES, STEPS = 60, 300


def course(seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(1 << 16) for _ in range(STEPS)]


@given(st.lists(st.integers(0, 1 << 16), max_size=STEPS))
@settings(max_examples=150, deadline=None)
def test_a_right_broker_is_accused_of_nothing(numbers: list[int]) -> None:
    """Whatever clients do, and whichever requests and answers are lost."""
    assert anomalies(play(ModelBroker(), iter(numbers))) == []


def test_a_right_broker_is_accused_of_nothing_over_long_courses_that_reach_everything() -> None:
    """The courses in which naive brokers are found are no proof if nothing happens in them."""
    fates: set[Fate] = set()
    for seed in range(COURSES):
        history = play(ModelBroker(), iter(course(seed)))
        assert anomalies(history) == []
        fates |= {txn.fate for txn in history.transactions if txn.sends and txn.acknowledgements}
    assert fates == set(Fate)


@pytest.mark.parametrize(
    ("broker", "kind"),
    NAIVE,
    ids=lambda value: value.name if isinstance(value, Kind) else value.__name__,
)
def test_a_naive_broker_is_found(broker: Callable[[], ModelBroker], kind: Kind) -> None:
    """In most of the courses, not by luck in one."""
    found = [
        {anomaly.kind for anomaly in anomalies(play(broker(), iter(course(seed))))}
        for seed in range(COURSES)
    ]
    assert sum(kind in kinds for kinds in found) >= COURSES / 3


def test_every_kind_has_a_naive_broker() -> None:
    """No check is there that nothing has ever failed."""
    assert {kind for _, kind in NAIVE} == set(Kind)


# --- what nobody knows ----------------------------------------------------------------------------


def moved(*, answered: Fate, there: tuple[str, ...], remaining: tuple[str, ...]) -> History:
    """One transaction that acknowledges i1 and i2 and publishes o1 and o2; what a reader and a
    new consumer find in the end."""
    history = History()
    for value in ("i1", "i2"):
        history.publish("in", value).confirm()
    txn = history.begin((0, 0))
    for number in "12":
        source = Input("in", "s", f"i{number}")
        txn.acknowledge(*source).confirm()
        txn.send("out", f"o{number}", [source]).confirm()
    txn.ask_commit()
    txn.answer(answered)
    history.final_read("in", [((1, 0, -1), "i1"), ((1, 1, -1), "i2")])
    history.final_read("out", [((3, number, -1), value) for number, value in enumerate(there)])
    history.final_cursor("in", "s", remaining)
    return history


@pytest.mark.parametrize(
    ("there", "remaining", "expected"),
    [
        (("o1", "o2"), (), []),
        ((), ("i1", "i2"), []),
        (("o1",), (), [Kind.TORN]),
        (("o1", "o2"), ("i2",), [Kind.TORN]),
        (("o1", "o2"), ("i1", "i2"), [Kind.SPLIT]),
        ((), (), [Kind.SPLIT]),
        (("o2", "o1"), (), [Kind.SEND_ORDER]),
    ],
)
def test_an_unknown_outcome_may_be_either_but_as_a_whole(
    there: tuple[str, ...], remaining: tuple[str, ...], expected: list[Kind]
) -> None:
    """All or nothing is right; anything between is named."""
    history = moved(answered=Fate.UNKNOWN, there=there, remaining=remaining)
    assert [anomaly.kind for anomaly in anomalies(history)] == expected


def test_what_an_unknown_transaction_left_another_one_may_take() -> None:
    """The retry of a transaction that did not take place is its explanation, not a second
    processing."""
    history = moved(answered=Fate.UNKNOWN, there=("p1", "p2"), remaining=())
    retry = history.begin((0, 1))
    for number in "12":
        source = Input("in", "s", f"i{number}")
        retry.acknowledge(*source).confirm()
        retry.send("out", f"p{number}", [source]).confirm()
    retry.ask_commit()
    retry.answer(Fate.COMMITTED)
    assert anomalies(history) == []
    history.final_read(
        "out", [((3, number, -1), value) for number, value in enumerate(("p1", "p2", "o1", "o2"))]
    )
    assert {anomaly.kind for anomaly in anomalies(history)} == {Kind.DOUBLE_PROCESSING}


def test_messages_of_two_producers_may_lie_in_any_order() -> None:
    """Only what one producer sent to one topic has an order."""
    history = History()
    txn = history.begin((0, 0))
    txn.send("out", "a", producer="p").confirm()
    txn.send("out", "b", producer="q").confirm()
    txn.ask_commit()
    txn.answer(Fate.COMMITTED)
    history.final_read("out", [((3, 0, -1), "b"), ((3, 1, -1), "a")])
    assert anomalies(history) == []


def test_what_lay_in_a_trimmed_topic_may_be_gone_once_it_was_received() -> None:
    """Trimming takes away what was read; what was never read is lost."""
    history = moved(answered=Fate.COMMITTED, there=(), remaining=())
    history.trimmed.add("out")
    assert {anomaly.kind for anomaly in anomalies(history)} == {Kind.SPLIT}
    reader = history.subscribe("out", "reader", whole=True)
    for number, value in enumerate(("o1", "o2")):
        reader.receive((3, number, -1), value)
    assert anomalies(history) == []


def test_what_was_trimmed_without_an_acknowledgement_is_missed() -> None:
    """A topic may only lose what every subscription is rid of: what an aborted transaction had
    acknowledged is to come again."""
    history = moved(answered=Fate.ABORTED, there=(), remaining=("i1", "i2"))
    consumer = history.subscribe("in", "s")
    consumer.receive((1, 0, -1), "i1")
    assert anomalies(history) == []
    history.trimmed.add("in")
    history.final_read("in", [((1, 1, -1), "i2")])
    assert anomalies(history) == []
    history.final_cursor("in", "s", ["i2"])
    assert {anomaly.kind for anomaly in anomalies(history)} == {Kind.PENDING_LEAK}


def test_an_acknowledgement_of_an_unknown_outcome_is_not_undone() -> None:
    """Its messages show that it took place; then what it had confirmed comes to nobody who
    subscribes later."""
    history = moved(answered=Fate.UNKNOWN, there=("o1", "o2"), remaining=())
    history.subscribe("in", "s").receive((1, 0, -1), "i1")
    assert {anomaly.kind for anomaly in anomalies(history)} == {Kind.ACK_UNDONE}
