"""Ranges that a query asks for, from the filters Spark pushes down.

Owns: which filters are understood and when a stretch of rows cannot match. Imports: pyspark's
filter types only. Invariant: bounds only ever exclude what cannot match; Spark evaluates every
filter again, so a wider bound costs time, never a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

COLUMNS = ("ledger", "entry", "event_time", "publish_time")
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
Range = tuple[int, int]
"""Lowest and highest value, both included."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range per column; a column that is not named is unbounded."""

    ranges: Mapping[str, Range] = field(default_factory=dict)

    def of(self, column: str) -> Range:
        return self.ranges.get(column, (LOWEST, HIGHEST))

    def narrowed(self, column: str, low: int, high: int) -> Bounds:
        """These bounds and low <= column <= high."""
        was = self.of(column)
        return Bounds({**self.ranges, column: (max(was[0], low), min(was[1], high))})

    def admits(self, column: str, low: int, high: int) -> bool:
        """Whether a stretch of rows whose `column` lies in [low, high] may hold a match."""
        wanted = self.of(column)
        return low <= wanted[1] and high >= wanted[0]


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The bounds that `filters`, which hold together, imply."""
    bounds = Bounds()
    for condition in filters:
        bounds = _narrow(bounds, condition)
    return bounds


def _narrow(bounds: Bounds, condition: Filter) -> Bounds:
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in COLUMNS:
        return bounds
    column = attribute[0]
    if isinstance(condition, In):
        values = [value for value in condition.value if isinstance(value, int)]
        if len(values) != len(condition.value) or not values:
            return bounds
        return bounds.narrowed(column, min(values), max(values))
    value = getattr(condition, "value", None)
    if not isinstance(value, int):
        return bounds
    match condition:
        case EqualTo() | EqualNullSafe():
            return bounds.narrowed(column, value, value)
        case GreaterThan():
            return bounds.narrowed(column, value + 1, HIGHEST)
        case GreaterThanOrEqual():
            return bounds.narrowed(column, value, HIGHEST)
        case LessThan():
            return bounds.narrowed(column, LOWEST, value - 1)
        case LessThanOrEqual():
            return bounds.narrowed(column, LOWEST, value)
    return bounds
