"""Ranges that a query asks for, from the filters Spark pushes down.

Owns: which filters are understood and when a stretch of rows cannot match. Imports: pyspark's
filter types only. Invariant: bounds only ever exclude what cannot match; Spark evaluates every
filter again, so a wider bound costs time, never a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

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

COLUMNS = ("ledger", "entry", "event_time", "publish_time", "append_time")
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

    def admits_span(self, first: tuple[int, int], last: tuple[int, int]) -> bool:
        """Whether entries from `first` to `last` (ledger, entry) may hold a match."""
        return self.admits("ledger", first[0], last[0]) and (
            first[0] != last[0] or self.admits("entry", first[1], last[1])
        )


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """The bounds that `filters`, which hold together, imply."""
    bounds = Bounds()
    for condition in filters:
        bounds = _narrow(bounds, condition)
    return bounds


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def _floor(value: object) -> int | None:
    """A literal in the unit of the columns, rounded down; times are milliseconds. None for what
    is no number."""
    if isinstance(value, datetime):
        return (value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) // MILLISECOND
    return value if isinstance(value, int) else None


def _ceiling(value: object) -> int | None:
    if isinstance(value, datetime):
        return -((EPOCH - value.replace(tzinfo=value.tzinfo or UTC)) // MILLISECOND)
    return value if isinstance(value, int) else None


def _narrow(bounds: Bounds, condition: Filter) -> Bounds:
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in COLUMNS:
        return bounds
    column = attribute[0]
    if isinstance(condition, In):
        lows = [low for value in condition.value if (low := _floor(value)) is not None]
        if len(lows) != len(condition.value) or not lows:
            return bounds
        return bounds.narrowed(column, min(lows), max(lows))
    value = getattr(condition, "value", None)
    low, high = _floor(value), _ceiling(value)
    if low is None or high is None:
        return bounds
    match condition:
        case EqualTo() | EqualNullSafe():
            return bounds.narrowed(column, low, low)
        case GreaterThan():
            return bounds.narrowed(column, low + 1, HIGHEST)
        case GreaterThanOrEqual():
            return bounds.narrowed(column, low, HIGHEST)
        case LessThan():
            return bounds.narrowed(column, LOWEST, high - 1)
        case LessThanOrEqual():
            return bounds.narrowed(column, LOWEST, low)
    return bounds


def keys_of(filters: Iterable[Filter]) -> frozenset[bytes] | None:
    """The keys to which `filters`, which hold together, limit the column `key`; None: to none."""
    found: frozenset[bytes] | None = None
    for condition in filters:
        if getattr(condition, "attribute", ()) != ("key",):
            continue
        match condition:
            case EqualTo() | EqualNullSafe():
                values = [condition.value]
            case In():
                values = list(condition.value)
            case _:
                continue
        if all(isinstance(value, bytes | bytearray) for value in values):
            wanted = frozenset(map(bytes, values))
            found = wanted if found is None else found & wanted
    return found
