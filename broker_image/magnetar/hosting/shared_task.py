"""Work that several requests wait for.

Owns: `outcome`, how a request waits for a task that is not its own; `SharedTasks`, one such task
per name. Imports: asyncio, errors. Invariant: a request that is cancelled leaves the task alone; a
task that is cancelled, because its broker stops, is an answer for those who wait for it and not the
end of their own tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, TypeVar

from magnetar.errors import ServiceNotReady

T = TypeVar("T")


async def outcome(task: asyncio.Task[T]) -> T:
    """What the task returns or raises. Raises ServiceNotReady if it was cancelled."""
    await asyncio.wait([task])
    if task.cancelled():
        raise ServiceNotReady("this broker stops; look the topic up again")
    return task.result()


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)


class SharedTasks(Generic[T]):
    """At most one task per name. `verb` names them."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._tasks: dict[str, asyncio.Task[T]] = {}

    def get(self, name: str) -> asyncio.Task[T] | None:
        """The task under way."""
        return self._tasks.get(name)

    def join(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """The task under way, or a new one that does `work`."""
        task = self._tasks.get(name)
        if task is None:
            task = asyncio.create_task(work(), name=f"{self._verb} {name}")
            self._tasks[name] = task
            task.add_done_callback(lambda done: self._ended(name, done))
        return task

    def _ended(self, name: str, task: asyncio.Task[T]) -> None:
        del self._tasks[name]
        if not task.cancelled():
            task.exception()  # callers have it; their clients may have left

    async def stop(self) -> None:
        """Cancel what is under way."""
        await cancel_all(self._tasks.values())
