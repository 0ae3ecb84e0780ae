"""Work that several requests wait for.

Owns: `outcome`, how a request waits for a task that is not its own. Imports: asyncio, errors.
Invariant: a request that is cancelled leaves the task alone; a task that is cancelled, because its
broker stops, is an answer for those who wait for it and not the end of their own tasks.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from magnetar.errors import ServiceNotReady

T = TypeVar("T")


async def outcome(task: asyncio.Task[T]) -> T:
    """What the task returns or raises. Raises ServiceNotReady if it was cancelled."""
    await asyncio.wait([task])
    if task.cancelled():
        raise ServiceNotReady("this broker stops; look the topic up again")
    return task.result()
