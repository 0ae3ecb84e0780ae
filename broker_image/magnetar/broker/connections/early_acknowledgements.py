"""Acknowledgements that come while their consumer subscribes.

Owns: `EarlyAcknowledgements` of one connection: a client that groups acknowledgements sends a group
as soon as it has reconnected, which may be before its SUBSCRIBE is answered. Imports: nothing.
Invariants: they are carried out in order, before anything is delivered to that consumer; memory is
bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

EARLY_BYTES_MAX = 32 << 10
"""Of the commands of one connection that are held; commands beyond that are answered as if
their consumer had not subscribed."""


class EarlyAcknowledgements:
    """By consumer id."""

    __slots__ = ("_bytes", "_held", "_subscribing")

    def __init__(self) -> None:
        self._bytes = 0
        self._held: dict[int, list[tuple[int, Callable[[], None]]]] = {}
        self._subscribing: Counter[int] = Counter()

    def expect(self, consumer_id: int) -> None:
        """A SUBSCRIBE has arrived; a `release` follows."""
        self._subscribing[consumer_id] += 1

    def hold(self, consumer_id: int, size: int, act: Callable[[], None]) -> bool:
        """Keep a command of `size` bytes until its consumer has subscribed; False if that does
        not, or if there is no room."""
        if consumer_id not in self._subscribing or self._bytes + size > EARLY_BYTES_MAX:
            return False
        self._bytes += size
        self._held.setdefault(consumer_id, []).append((size, act))
        return True

    def release(self, consumer_id: int) -> None:
        """A SUBSCRIBE has ended: if it was the only one, carry out what was held. The consumer
        is there, or will not be."""
        self._subscribing[consumer_id] -= 1
        if self._subscribing[consumer_id] > 0:
            return
        del self._subscribing[consumer_id]
        for size, act in self._held.pop(consumer_id, ()):
            self._bytes -= size
            act()
