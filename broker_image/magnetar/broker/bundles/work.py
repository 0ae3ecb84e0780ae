"""Work on bundles.

Owns: `BundleWork`, at most one task per bundle that acquires, releases, divides or checkpoints it.
Imports: events. Invariants: an error of such a task means that memory and log disagree, and ends
this incarnation; after a task the bundle's record is read again, since it may have changed during
the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog

from magnetar.broker.bundles.events import BundleEvents
from magnetar.broker.context import BrokerContext
from magnetar.hosting.shared_task import cancel_all

log = structlog.get_logger(__name__)


class BundleWork:
    """Tasks by bundle; `follow` begins what a bundle's record asks for."""

    def __init__(
        self, context: BrokerContext, events: BundleEvents, follow: Callable[[str], None]
    ) -> None:
        self._context, self._events, self._follow = context, events, follow
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def busy(self, name: str) -> bool:
        """Whether a task works on this bundle."""
        return name in self._tasks

    @property
    def stopped(self) -> bool:
        """Whether no work begins any more."""
        return self._stopped

    @property
    def tasks(self) -> Mapping[str, asyncio.Task[None]]:
        """What is under way, by bundle."""
        return self._tasks

    def begin(self, name: str, work: Coroutine[Any, Any, None], *others: str) -> asyncio.Task[None]:
        """Work on a bundle, and on others with it, that no task works on."""
        task = asyncio.create_task(work, name=f"bundle {name}")
        names = (name, *others)
        self._tasks.update(dict.fromkeys(names, task))
        task.add_done_callback(lambda done: self._ended(names, done))
        return task

    def cancel(self, name: str) -> None:
        """Give up the work on a bundle."""
        self._tasks[name].cancel()

    def _ended(self, names: tuple[str, ...], task: asyncio.Task[None]) -> None:
        for name in names:
            self._tasks.pop(name, None)
            self._events.changed(name)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("bundle.work_failed", bundle=names[0], error=repr(error))
            self._context.fail(f"bundle {names[0]}: {error!r}")
            return
        for name in names:
            self._follow(name)

    def close(self) -> None:
        """No work begins any more because of a record."""
        self._stopped = True

    async def stop(self) -> None:
        """Cancel what is under way."""
        await cancel_all(self._tasks.values())
