"""Pushed-down filters become bounds that exclude nothing that could match."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from magnetar_jobs.bounds import Bounds, bounds_of

KINDS: dict[Any, Any] = {
    EqualTo: lambda value, bound: value == bound,
    GreaterThan: lambda value, bound: value > bound,
    GreaterThanOrEqual: lambda value, bound: value >= bound,
    LessThan: lambda value, bound: value < bound,
    LessThanOrEqual: lambda value, bound: value <= bound,
}
numbers = st.integers(-50, 50)


@given(
    st.lists(st.tuples(st.sampled_from(list(KINDS)), numbers), max_size=4),
    st.lists(numbers, min_size=1, max_size=5),
)
def test_a_stretch_with_a_matching_value_is_admitted(
    conditions: list[tuple[Any, int]], values: list[int]
) -> None:
    bounds = bounds_of([kind(("ledger",), bound) for kind, bound in conditions])
    matching = [
        value for value in values if all(KINDS[kind](value, bound) for kind, bound in conditions)
    ]
    if matching:
        assert bounds.admits("ledger", min(values), max(values))
    for value in values:
        assert bounds.admits("ledger", value, value) == (value in matching)


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("topic",), "x"),
        EqualTo(("ledger", "inner"), 3),
        EqualTo(("ledger",), "3"),
        Not(EqualTo(("ledger",), 3)),
        IsNotNull(("ledger",)),
        In(("ledger",), (1, None)),
        In(("ledger",), ()),
    ],
)
def test_what_is_not_understood_excludes_nothing(condition: Filter) -> None:
    assert bounds_of([condition]) == Bounds()


def test_in_spans_its_values() -> None:
    assert bounds_of([In(("entry",), (7, 3, 5))]).of("entry") == (3, 7)
