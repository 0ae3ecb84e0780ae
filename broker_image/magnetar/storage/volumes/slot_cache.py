"""Small slots in memory.

Owns: `SlotCache`. Imports: nothing. Why: a takeover reads a log twice, to seal it and to replay it;
one that was written in small commits has one object per commit. Invariants: slots never change, so
a cached one is always valid; the cache is bounded in bytes.
"""

from __future__ import annotations

from collections import OrderedDict

SMALL_SLOT_BYTES = 64 * 1024
"""Larger ones are few for what they hold, and are read in part where a part is wanted."""
CACHED_BYTES_MAX = 16 * 1024 * 1024


class SlotCache:
    """Contents of small slots by key; those used last stay."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def takes(self, size: int) -> bool:
        """Whether a slot of `size` bytes is to be read whole and cached."""
        return size <= SMALL_SLOT_BYTES

    def get(self, key: str) -> bytes | None:
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: str, data: bytes) -> None:
        known = self._held.pop(key, b"")
        self._held[key] = data
        self._bytes += len(data) - len(known)
        while self._bytes > CACHED_BYTES_MAX:
            self._bytes -= len(self._held.popitem(last=False)[1])
