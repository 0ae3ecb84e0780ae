"""IntervalSet behaves as a set of integers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.topics import intervals as module
from magnetar.topics.intervals import IntervalSet


@pytest.fixture(
    autouse=True, scope="module", params=[module.BLOCK_MAX, 4], ids=["one block", "many blocks"]
)
def _block_size(request: pytest.FixtureRequest) -> Iterator[None]:
    """Blocks of a few intervals show on few numbers what large sets do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_MAX", request.param)
        yield


NUMBERS = st.integers(0, 40)
SHORT = st.builds(
    lambda name, start, length: (name, start, min(start + length, 40)),
    st.sampled_from(["add", "remove"]),
    NUMBERS,
    st.integers(0, 2),
)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "remove_below"]), NUMBERS, NUMBERS) | SHORT,
    max_size=80,
)


def apply(operations: list[tuple[str, int, int]]) -> tuple[IntervalSet, set[int]]:
    """Run the operations on both; every return value must agree on the way."""
    intervals, model = IntervalSet(), set[int]()
    for name, one, other in operations:
        start, end = min(one, other), max(one, other)
        before = len(model)
        if name == "add":
            model |= set(range(start, end))
            assert intervals.add(start, end) == len(model) - before
        elif name == "remove":
            model -= set(range(start, end))
            assert intervals.remove(start, end) == before - len(model)
        else:
            model -= set(range(start))
            assert intervals.remove_below(start) == before - len(model)
    return intervals, model


@given(OPERATIONS)
def test_holds_the_same_integers_as_a_set(operations: list[tuple[str, int, int]]) -> None:
    """Content, size and return values agree with the model after any sequence of operations."""
    intervals, model = apply(operations)
    assert {number for start, end in intervals for number in range(start, end)} == model
    assert intervals.size == len(model)
    assert bool(intervals) == bool(model)
    assert [number in intervals for number in range(-1, 45)] == [
        number in model for number in range(-1, 45)
    ]


@given(OPERATIONS)
def test_intervals_are_sorted_and_apart(operations: list[tuple[str, int, int]]) -> None:
    """Neighbouring intervals are merged: the cost really follows the number of holes."""
    intervals, model = apply(operations)
    listed = list(intervals)
    assert all(start < end for start, end in listed)
    assert all(left[1] < right[0] for left, right in pairwise(listed))
    assert intervals.interval_count == len(listed)
    assert intervals._firsts == [starts[0] for starts in intervals._starts]
    assert all(0 < len(starts) <= 2 * module.BLOCK_MAX for starts in intervals._starts)
    if model:
        assert (intervals.start, intervals.end) == (min(model), max(model) + 1)


@given(OPERATIONS, NUMBERS, NUMBERS)
def test_questions_agree_with_the_model(
    operations: list[tuple[str, int, int]], one: int, other: int
) -> None:
    """first_gap, missing and overlap answer what the model answers."""
    intervals, model = apply(operations)
    start, end = min(one, other), max(one, other)
    assert intervals.first_gap(start) == next(
        number for number in range(start, 100) if number not in model
    )
    missing = [number for low, high in intervals.missing(start, end) for number in range(low, high)]
    overlap = [number for low, high in intervals.overlap(start, end) for number in range(low, high)]
    assert missing == [number for number in range(start, end) if number not in model]
    assert overlap == [number for number in range(start, end) if number in model]


def test_clear_empties_it() -> None:
    """A cleared set can be used again."""
    intervals = IntervalSet([(1, 5), (7, 9)])
    intervals.clear()
    assert (list(intervals), intervals.size) == ([], 0)
    assert intervals.add(2, 3) == 1
