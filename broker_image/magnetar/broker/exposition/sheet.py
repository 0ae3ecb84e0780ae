"""Metrics of many objects of one kind, as of one scrape.

Owns: `Family`, one metric with its labels and how it is read; `Sheet`, the values of all families
for all objects, and their text in Prometheus' format. Imports: nothing of the broker. Invariants:
the lines of a metric follow each other, as the format wants; a sheet holds eight bytes per value,
and its text is made in pieces while it is sent; a value that is not a number has no line.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Generic, TypeVar

PIECE_LINES_MAX = 500
"""Lines that are made before others get their turn: less than a millisecond."""
ABSENT = nan
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Family(Generic[R]):
    """One metric. `read` has its value of one object; `ABSENT` if it has none. The type is that of
    its name's end: counters end in _total. `summary`: the summary that it is a part of; the parts
    follow each other."""

    name: str
    meaning: str
    read: Callable[[R], float]
    summary: str = ""

    @property
    def type(self) -> str:
        if self.summary:
            return "summary"
        return "counter" if self.name.endswith("_total") else "gauge"


class Sheet(Generic[R]):
    """A row per object, a column per family."""

    def __init__(self, families: Sequence[Family[R]]) -> None:
        self.families = families
        self._rows: list[str] = []
        self._columns = [array("d") for _ in families]

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, labels: str, subject: R) -> None:
        """A row for one object; `labels` as `labels_of` writes them."""
        self.add_values(labels, self.values(subject))

    def values(self, subject: R) -> list[float]:
        """The row of one object, without adding it."""
        return [family.read(subject) for family in self.families]

    def add_values(self, labels: str, values: Sequence[float]) -> None:
        self._rows.append(labels)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)

    def pieces(self) -> Iterator[bytes]:
        """The text, a piece at a time."""
        before = ""
        for family, column in zip(self.families, self._columns, strict=True):
            metric, lines = family.summary or family.name, list[str]()
            if metric != before:
                lines = [f"# HELP {metric} {family.meaning}\n# TYPE {metric} {family.type}\n"]
            before = metric
            for labels, value in zip(self._rows, column, strict=True):
                if not isnan(value):
                    lines.append(f"{family.name}{labels} {value!r}\n")
                if len(lines) >= PIECE_LINES_MAX:
                    yield "".join(lines).encode()
                    lines = []
            if lines:
                yield "".join(lines).encode()


def labels_of(**labels: str) -> str:
    """Labels as the format writes them."""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
