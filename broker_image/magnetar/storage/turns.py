"""Long work on the event loop that pauses for other tasks.

Owns: `Turns`. Imports: asyncio. Invariant: between two pauses at most the limit is done, plus the
last step.
"""

from __future__ import annotations

import asyncio


class Turns:
    """One piece of work, which pauses whenever `limit` has been done."""

    def __init__(self, limit: int) -> None:
        self._limit, self._done = limit, 0

    async def after(self, done: int) -> None:
        """Count what was done, and pause if it is enough."""
        self._done += done
        if self._done >= self._limit:
            self._done = 0
            await asyncio.sleep(0)
