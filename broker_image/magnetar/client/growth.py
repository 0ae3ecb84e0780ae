"""Partitions that are added while a topic is in use.

Owns: `Growth`, which polls for them. Imports: backoff's randomness through the clock,
asyncio. Invariants: partitions are only ever added, in the order of their numbers; a look or an
attachment that fails is repeated at the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from magnetar.clock import Clock
from magnetar.errors import MagnetarError
from magnetar.names import TopicName

PARTITIONS_CHECK_S = 60.0
JITTER = 0.1
_log = logging.getLogger(__name__)


class Growth:
    """The partitions of one producer's, consumer's or reader's topic."""

    def __init__(
        self,
        clock: Clock,
        every_s: float | None,
        partitions: Callable[[str], Awaitable[int]],
        topic: str,
        known: int,
    ) -> None:
        self._clock = clock
        self._every_s = every_s
        self._partitions = partitions
        self._topic = TopicName.parse(topic)
        self._known = known
        self._task: asyncio.Task[None] | None = None

    def watch(self, attach: Callable[[Sequence[str]], Awaitable[None]]) -> None:
        """Call `attach` with the names of new partitions, periodically. A topic without partitions
        never gets any."""
        if self._every_s is not None and self._known > 0:
            self._task = asyncio.create_task(self._watch(self._every_s, attach))

    async def _watch(
        self, every_s: float, attach: Callable[[Sequence[str]], Awaitable[None]]
    ) -> None:
        while True:
            await asyncio.sleep(every_s * self._clock.uniform(1 - JITTER, 1))
            try:
                count = await self._partitions(str(self._topic))
                if count > self._known:
                    await attach(
                        [
                            str(self._topic.with_partition(index))
                            for index in range(self._known, count)
                        ]
                    )
                    _log.info(
                        "topic %s: %d partitions have become %d", self._topic, self._known, count
                    )
                    self._known = count
            except MagnetarError as failure:
                _log.warning(
                    "topic %s: new partitions could not be looked for: %s", self._topic, failure
                )

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
