"""What one connection has under way without storage.

Owns: the count of non-persistent messages that a connection had handled in the current turn of the
loop. Imports: asyncio. Invariant: the count goes back to 0 at the end of the turn, when their
receipts are on their way.
"""

from __future__ import annotations

import asyncio


class InFlight:
    """Admits messages up to a limit per turn."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def admit(self, count: int, limit: int) -> int:
        """How many of `count` more messages may be handled now."""
        if not self._count:
            asyncio.get_running_loop().call_soon(self._end_of_turn)
        admitted = min(count, limit - self._count)
        self._count += admitted
        return admitted

    def _end_of_turn(self) -> None:
        self._count = 0
