"""Where the slots of a log file end.

Owns: `SlotMap`. Imports: slot_format. Pure. Invariant: slots never change, so a map only grows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping

from magnetar.storage.volumes.slot_format import SLOT_HEADER_BYTES


class SlotMap:
    """`final`: only the writer that holds this very map puts further slots, or no writer does
    (fence, seal)."""

    __slots__ = ("ends", "final")

    def __init__(self) -> None:
        self.ends = array("Q")
        self.final = False

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    def take(self, sizes: Mapping[int, int]) -> None:
        """Add the data slots of these sizes, up to the first that is missing."""
        while (size := sizes.get(len(self.ends), 0)) > SLOT_HEADER_BYTES:
            self.ends.append(self.end + size - SLOT_HEADER_BYTES)

    def covering(self, low: int, high: int) -> list[tuple[int, int, int, int]]:
        """(slot, its bytes, offset in it, length) of the parts that make up [low, high)."""
        parts = []
        slot = bisect_right(self.ends, low)
        while low < high:
            start = self.ends[slot - 1] if slot else 0
            end = min(high, self.ends[slot])
            parts.append((slot, self.ends[slot] - start, low - start, end - low))
            low, slot = end, slot + 1
        return parts
