"""Readers that were sent away and are about to come back.

Owns: `AwaitedReturn`, how long a subscription without storage is kept for its consumer. Imports:
asyncio. Invariant: it waits once at a time, and calls back once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class AwaitedReturn:
    """`over` is called when the client has not come in time."""

    __slots__ = ("_over", "_timer")

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over
        self._timer: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> bool:
        return self._timer is not None

    def expect(self, wait_s: float) -> None:
        """A consumer was sent away."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._end)

    def cancel(self) -> None:
        """It is back, or nothing is to be kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._over()
