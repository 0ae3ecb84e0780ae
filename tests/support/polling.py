"""Waiting for what has no event.

Owns: `until`, which polls a condition and fails after two minutes. Imports: asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(reached: Callable[[], bool]) -> None:
    """Poll what has no event."""
    async with asyncio.timeout(120):
        while not reached():
            await asyncio.sleep(0.002)
