"""Which entries of which files count, and how they are packed: no Spark needed."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData
from magnetar.storage.log.index import Run
from magnetar_jobs.execution import CompactionOptions, deal
from magnetar_jobs.inputs import SEGMENT, Group, Piece, Position, Span, pack, surviving_slices

positions = st.tuples(st.integers(1, 4), st.integers(-1, 12))


def piece(first: Position, last: Position, size: int = 10) -> Piece:
    return Piece(SEGMENT, f"segment {first}", 0, 1, first, last, 5, size)


@given(
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(1, 8),
    positions,
    st.lists(st.tuples(positions, positions).map(lambda pair: (min(pair), max(pair))), max_size=3),
)
def test_slices_hold_exactly_what_lies_after_and_outside(
    ledger: int, first: int, count: int, after: Position, covered: list[Span]
) -> None:
    run = Run(1, ledger, first, 0, 0, array("I", [1] * count), array("I", [1] * count))
    found = [
        row for begin, end in surviving_slices(run, after, covered) for row in range(begin, end)
    ]
    wanted = [
        row
        for row in range(count)
        if (ledger, first + row) > after
        and not any(low <= (ledger, first + row) <= high for low, high in covered)
    ]
    assert found == wanted


def test_groups_are_consecutive_and_bounded() -> None:
    pieces = [piece((1, number * 10), (1, number * 10 + 9)) for number in range(7)]
    random.Random(1).shuffle(pieces)
    groups = pack(pieces, 25)
    assert [len(group.pieces) for group in groups] == [2, 2, 2, 1]
    assert [group.number for group in groups] == [0, 1, 2, 3]
    firsts = [found.first for group in groups for found in group.pieces]
    assert firsts == sorted(firsts)


def test_two_files_that_claim_the_same_positions_stop_the_plan() -> None:
    """Compacting them anyway would let the older of two entries with one id win by accident."""
    with pytest.raises(CorruptData, match="both claim the same positions"):
        pack([piece((1, 0), (1, 9)), piece((1, 9), (1, 12))])


def test_neighbouring_groups_share_a_task_until_a_segment_is_full() -> None:
    groups = tuple(
        Group(number, (piece((1, number * 10), (1, number * 10 + 9), 100),)) for number in range(6)
    )
    kept = {0: 5, 1: 5, 3: 5, 5: 5}
    tasks = deal(
        groups, kept, messages=60, options=CompactionOptions(parallelism=1, segment_bytes_max=100)
    )
    assert set(tasks) == set(kept)
    assert list(tasks.values()) == sorted(tasks.values())
    assert set(tasks.values()) == {0, 1}
    assert deal(groups, {}, messages=60, options=CompactionOptions()) == {}
