"""Cursors: what is acknowledged, and that the log carries it."""

from __future__ import annotations

from dataclasses import dataclass, field
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from magnetar.topics import cursor as cursors
from magnetar.topics.cursor import RANGE_BYTES, Cursor
from magnetar.topics.ledgers import LedgerTable, Position
from magnetar.topics.state import CursorDelta

LEDGERS = [(3, 7), (5, 1), (9, 12)]
ENTRIES = 20
FULL = 0b1111

ORDINALS = st.integers(0, ENTRIES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("range"), ORDINALS, ORDINALS),
        st.tuples(st.just("cumulative"), ORDINALS, st.just(0)),
        st.tuples(st.just("partial"), ORDINALS, st.integers(0, FULL)),
        st.tuples(st.just("reset"), ORDINALS, st.just(0)),
        st.tuples(st.just("seek inside a batch"), ORDINALS, st.integers(1, FULL)),
        st.tuples(st.just("log"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@dataclass
class Model:
    """Acknowledged entries as a set, and masks of the others."""

    acknowledged: set[int] = field(default_factory=set)
    partial: dict[int, int] = field(default_factory=dict)

    def acknowledge(self, ordinals: range) -> None:
        self.acknowledged |= {ordinal for ordinal in ordinals if ordinal < ENTRIES}
        self.partial = {
            ordinal: mask
            for ordinal, mask in self.partial.items()
            if ordinal not in self.acknowledged
        }

    def acknowledge_partial(self, ordinal: int, mask: int) -> None:
        if ordinal < ENTRIES and ordinal not in self.acknowledged:
            self.partial[ordinal] = self.partial.get(ordinal, mask) & mask
            if not self.partial[ordinal]:
                self.acknowledge(range(ordinal, ordinal + 1))

    def reset(self, ordinal: int) -> None:
        self.acknowledged, self.partial = set(range(min(ordinal, ENTRIES))), {}


def apply(cursor: Cursor, model: Model, step: tuple[str, int, int]) -> None:
    name, one, other = step
    if name == "range":
        cursor.acknowledge(min(one, other), max(one, other))
        model.acknowledge(range(min(one, other), max(one, other)))
    elif name == "cumulative":
        cursor.acknowledge_cumulative(one)
        model.acknowledge(range(one + 1))
    elif name == "partial":
        cursor.acknowledge_partial(one, other)
        model.acknowledge_partial(one, other)
    elif name == "reset":
        cursor.reset(one)
        model.reset(one)
    elif name == "seek inside a batch":
        cursor.reset(one, other)
        model.reset(one)
        model.acknowledge_partial(one, other)


def check_equal(cursor: Cursor, model: Model) -> None:
    assert {
        ordinal for ordinal in range(ENTRIES) if cursor.is_acknowledged(ordinal)
    } == model.acknowledged
    assert cursor.partial == model.partial
    assert cursor.backlog == ENTRIES - len(model.acknowledged)
    gap = next(
        (ordinal for ordinal in range(ENTRIES) if ordinal not in model.acknowledged), ENTRIES
    )
    assert cursor.mark_delete == gap, "mark-delete is exactly at the first unacknowledged entry"
    touched = model.acknowledged | set(model.partial)
    assert cursor.acknowledged_end >= max((ordinal + 1 for ordinal in touched), default=0)
    assert cursor.acknowledged_end <= ENTRIES


@given(STEPS)
def test_agrees_with_a_set(steps: list[tuple[str, int, int]]) -> None:
    """After any steps the cursor knows what a plain set knows, and mark-delete never passes an
    unacknowledged entry."""
    cursor, model = Cursor(LedgerTable(LEDGERS), 0), Model()
    for step in steps:
        apply(cursor, model, step)
        check_equal(cursor, model)


@given(STEPS, st.data())
def test_deltas_and_checkpoints_restore_the_same_cursor(
    steps: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """A checkpoint plus the deltas since, replayed from any earlier moment on, equals the live
    cursor."""
    live, model = Cursor(LedgerTable(LEDGERS), 0), Model()
    deltas: list[CursorDelta] = []
    states = []
    for step in [*steps, ("log", 0, 0)]:
        apply(live, model, step)
        if step[0] == "log":
            delta = live.take_delta()
            if delta is not None:
                deltas.append(delta)
            states.append((len(deltas), live.to_state()))
    covered, state = data.draw(st.sampled_from(states))
    replay_from = data.draw(st.integers(0, covered))
    restored = Cursor(LedgerTable(LEDGERS), ENTRIES)
    restored.apply_delta(state.as_delta())
    for delta in deltas[replay_from:]:
        restored.apply_delta(delta)
    check_equal(restored, model)
    assert restored.to_state() == live.to_state()
    assert not restored.dirty, "what came from the log need not be written again"
    assert live.take_delta() is None


@given(STEPS, st.lists(st.booleans(), max_size=40))
def test_a_delta_has_a_size_and_may_fail_to_be_written(
    steps: list[tuple[str, int, int]], fails: list[bool]
) -> None:
    """Whatever was acknowledged between two writes comes in pieces of two ranges or two masks; a
    piece that is put back comes again."""
    live, model, restored = (
        Cursor(LedgerTable(LEDGERS), 0),
        Model(),
        Cursor(LedgerTable(LEDGERS), ENTRIES),
    )
    outcomes = iter(fails)
    for step in [*steps, ("log", 0, 0)]:
        apply(live, model, step)
        while step[0] == "log" and live.dirty:
            delta = live.take_delta(2 * RANGE_BYTES)
            assert delta is not None
            assert len(delta.partial) <= 2
            assert len(delta.ranges) <= 2 + len(LEDGERS)
            if next(outcomes, False):
                live.put_back(delta)
                assert live.dirty
            else:
                restored.apply_delta(delta)
        if step[0] == "log":
            assert restored.to_state() == live.to_state()
    check_equal(restored, model)
    assert live.take_delta() is None


def test_ranges_of_a_delta_are_counted() -> None:
    """A record of the log has a greatest size, and a consumer may open holes faster than they
    are written."""
    cursor = Cursor(LedgerTable([(9, 20)]), 0)
    for ordinal in (2, 4, 6, 8, 10):
        cursor.acknowledge(ordinal, ordinal + 1)
    cursor.acknowledge_partial(12, 0b10)
    taken = [cursor.take_delta(2 * RANGE_BYTES) for _ in range(3)]
    assert [[span[1] for span in delta.ranges] for delta in taken if delta is not None] == [
        [2, 4],
        [6, 8],
        [10],
    ]
    assert [(delta.reset, len(delta.partial)) for delta in taken if delta is not None] == [
        (True, 0),
        (False, 0),
        (False, 1),
    ]
    assert not cursor.dirty


def test_a_crowded_cursor_takes_what_fills_holes() -> None:
    """Beyond twice the bound of holes nothing is taken that opens one more; the oldest, and
    neighbours of what is acknowledged, always are."""
    cursor = Cursor(LedgerTable([(9, 40)]), 0, acknowledged_ranges_max=2)
    for ordinal in (2, 4, 6):
        cursor.acknowledge(ordinal, ordinal + 1)
    assert (cursor.saturated, cursor.crowded) == (True, False)
    cursor.acknowledge(8, 9)
    assert cursor.crowded
    assert [cursor.admits(ordinal, ordinal + 1) for ordinal in (0, 3, 6, 9, 11)] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert cursor.admits(0, 30)
    cursor.acknowledge(0, 1)
    cursor.acknowledge(1, 2)
    assert not cursor.crowded


def test_masks_take_so_much_memory() -> None:
    """A peer says how long they are; what was taken is given back when the batch is
    acknowledged, or forgotten by a seek."""
    with mock.patch.multiple(cursors, MASK_BITS_MAX=100):
        cursor = Cursor(LedgerTable([(9, 40)]), 0)
        cursor.acknowledge_partial(3, 1 << 59)
        assert not cursor.crowded
        cursor.acknowledge_partial(4, 1 << 59)
        assert (cursor.crowded, cursor.admits_partial(4), cursor.admits_partial(5)) == (
            True,
            True,
            False,
        )
        cursor.acknowledge(4, 5)
        assert not cursor.crowded
        cursor.acknowledge_partial(3, 0)
        cursor.acknowledge_partial(5, 1 << 99)
        cursor.acknowledge_partial(5, 1 << 2 | 1)
        assert not cursor.crowded
        cursor.acknowledge_partial(6, 1 << 99)
        assert cursor.crowded
        cursor.reset(0)
        assert not cursor.crowded


def test_a_cursor_crowded_by_masks_takes_what_frees_one() -> None:
    """Clients acknowledge the whole entry with the last message of a batch, wherever it lies;
    but not beyond the bound of holes."""
    cursor = Cursor(LedgerTable([(9, 40)]), 0, acknowledged_ranges_max=2)
    for ordinal in (10, 20, 21, 30):
        cursor.acknowledge_partial(ordinal, 0b10)
    assert cursor.crowded
    spans = ((10, 11), (20, 22), (20, 23), (25, 26), (11, 11 + 10**9))
    assert [cursor.admits(*span) for span in spans] == [True, True, False, False, False]
    cursor.acknowledge(30, 31)
    assert not cursor.crowded
    for ordinal in (2, 4, 6):
        cursor.acknowledge(ordinal, ordinal + 1)
    assert (cursor.range_count, cursor.admits(10, 11), cursor.admits_partial(10)) == (
        4,
        False,
        True,
    )


def test_a_delta_carries_only_what_changed() -> None:
    """The log's record holds new ranges per ledger; a contiguous acknowledgement is just a new
    mark-delete."""
    cursor = Cursor(LedgerTable(LEDGERS), 0)
    assert cursor.take_delta() == CursorDelta(Position(3, -1), reset=True)
    cursor.acknowledge(5, 10)
    assert cursor.take_delta() == CursorDelta(Position(3, -1), ((3, 5, 6), (5, 0, 0), (9, 0, 1)))
    cursor.acknowledge(12, 13)
    cursor.acknowledge_partial(11, 0b10)
    assert cursor.take_delta() == CursorDelta(Position(3, -1), ((9, 4, 4),), ((9, 3, (2,)),))
    cursor.acknowledge(0, 5)
    assert cursor.take_delta() == CursorDelta(Position(9, 1))
    assert cursor.take_delta() is None


def test_a_partly_acknowledged_batch_is_done_when_no_bit_is_left() -> None:
    """Ack sets are ANDed, and a later wider ack set brings nothing back."""
    cursor = Cursor(LedgerTable(LEDGERS), 0)
    assert cursor.acknowledge_partial(0, 0b0111) == 0b0111
    assert cursor.acknowledge_partial(0, 0b1110) == 0b0110
    assert cursor.acknowledge_partial(0, 0b1111) == 0b0110
    assert cursor.acknowledge_partial(0, 0b1001) == 0
    assert (cursor.mark_delete, cursor.partial) == (1, {})


def test_holes_are_limited_without_forgetting_any() -> None:
    """At the limit the cursor says so; ranges already acknowledged stay acknowledged."""
    cursor = Cursor(LedgerTable([(3, 100)]), 0, acknowledged_ranges_max=3)
    for ordinal in (2, 4, 6):
        assert not cursor.saturated
        cursor.acknowledge(ordinal, ordinal + 1)
    assert cursor.saturated
    cursor.acknowledge(8, 9)
    assert cursor.is_acknowledged(8)
    cursor.acknowledge(3, 6)
    assert cursor.range_count == 2
    assert not cursor.saturated


def test_acknowledging_beyond_the_end_is_ignored() -> None:
    """A client cannot acknowledge what has not been published."""
    cursor = Cursor(LedgerTable([(3, 4)]), 0)
    assert cursor.acknowledge(2, 100) == 2
    assert cursor.acknowledge_partial(4, 0b1) == 0
    assert (cursor.mark_delete, cursor.acknowledged_end, cursor.backlog) == (0, 4, 2)
