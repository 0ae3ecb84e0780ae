"""Work that nobody waits for.

Owns: `watch_over`, for work whose failure is the end of something, and `again_and_again`, for work that has to go on. Imports: asyncio.
Invariant: a task that ends by an exception never does so silently: who could end a life is told, or it begins anew and the log says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger(__name__)

AGAIN_S = 1.0


def watch_over(task: asyncio.Task[Any], failed: Callable[[str], None]) -> None:
    """Have `failed` called with the reason if the task ends by an exception."""

    def ended(done: asyncio.Task[Any]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("background.failed", task=done.get_name(), exc_info=error)
            failed(f"{done.get_name()}: {error!r}")

    task.add_done_callback(ended)


async def again_and_again(name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run work that never ends by itself, until it is cancelled; whatever else ends it, it begins anew after `AGAIN_S`."""
    while True:
        try:
            await work()
        except Exception as error:  # who follows for ever must not stop at a surprise
            log.error("background.begins_anew", task=name, exc_info=error)
        await asyncio.sleep(AGAIN_S)
