"""The minimum of values that change.

Owns: `Minimum`. Imports: the standard library. Pure. Invariants: `least` is exact; a change costs
O(log n); stale elements of the heap are dropped when they surface, or when they outnumber the
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Any)

STALE_MAX = 64
"""Besides as many stale elements as there are values."""


class Minimum(Generic[Key]):
    """Values by key. Keys are comparable with each other."""

    __slots__ = ("_heap", "_values")

    def __init__(self, values: Mapping[Key, int] = MappingProxyType({})) -> None:
        self._values = dict(values)
        self._heap = [(value, key) for key, value in self._values.items()]
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    @property
    def values(self) -> Mapping[Key, int]:
        """By key; read only."""
        return self._values

    def get(self, key: Key) -> int | None:
        return self._values.get(key)

    def set(self, key: Key, value: int) -> None:
        """Add the key, or change its value."""
        values = self._values
        if values.get(key) != value:
            values[key] = value
            heappush(self._heap, (value, key))
            if len(self._heap) > 2 * len(values) + STALE_MAX:
                self._rebuild()

    def remove(self, key: Key) -> None:
        """Nothing if the key is not there."""
        self._values.pop(key, None)

    def least(self) -> tuple[int, Key] | None:
        """The least value and a key that has it; None if there is none."""
        heap, values = self._heap, self._values
        while heap:
            value, key = heap[0]
            if values.get(key) == value:
                return heap[0]
            heappop(heap)
        return None

    def _rebuild(self) -> None:
        self._heap = [(value, key) for key, value in self._values.items()]
        heapify(self._heap)
