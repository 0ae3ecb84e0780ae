"""Topics that a pattern names, as they come and go.

Owns: `TopicPattern`, and `MatchingTopics`: the topics of one consumer, looked for periodically.
Imports: consumer's values, inbox, names, asyncio. Source: Pulsar's pattern subscriptions. Invariants:
a topic that fails, because it was deleted or the role may not consume it, ends nothing but itself,
and is tried again at a later look; a topic that comes later is read from its beginning.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from magnetar.client.consumer import Subscribed
from magnetar.client.inbox import Inbox, Source
from magnetar.client.messages import Message
from magnetar.clock import Clock
from magnetar.errors import InvalidRequest, MagnetarError
from magnetar.names import NamespaceName, TopicName

JITTER = 0.1
_log = logging.getLogger(__name__)


class TopicPattern(NamedTuple):
    """Which topics of one namespace: those whose last part matches as a whole."""

    namespace: NamespaceName
    local: re.Pattern[str]

    @staticmethod
    def parse(given: re.Pattern[str]) -> TopicPattern:
        """`persistent://tenant/namespace/REGEX`, `tenant/namespace/REGEX` or `REGEX`. Raises
        InvalidRequest, InvalidTopicName."""
        domain, found, rest = given.pattern.rpartition("://")
        if found and domain != "persistent":
            raise InvalidRequest(
                f"topic: the pattern {given.pattern[:200]!r} is of domain {domain[:40]!r}; patterns "
                "are of persistent topics"
            )
        parts = rest.split("/", 2)
        if len(parts) == 2:
            raise InvalidRequest(
                f"topic: the pattern {given.pattern[:200]!r} names no namespace; write "
                "tenant/namespace/REGEX, or REGEX alone for public/default"
            )
        namespace = "/".join(parts[:2]) if len(parts) == 3 else "public/default"
        return TopicPattern(NamespaceName.parse(namespace), re.compile(parts[-1], given.flags))

    def topics(self, listed: Sequence[str]) -> set[str]:
        """Topics, each once for all its partitions, out of a list of a namespace."""
        names = {TopicName.parse(name).base for name in listed}
        return {str(name) for name in names if self.local.fullmatch(name.local)}


class _OneTopic(Inbox):
    """What one topic puts into the inbox of all; its failure is its own."""

    def __init__(self, shared: Inbox, failed: Callable[[MagnetarError], None]) -> None:
        super().__init__(shared.watermarks)
        self._shared, self._failed = shared, failed

    def put(self, source: Source, copy: int, message: Message) -> None:
        self._shared.put(source, copy, message)

    def put_watermark(self, topic: str, event_ms: int | None, generation: tuple[int, int]) -> None:
        self._shared.put_watermark(topic, event_ms, generation)

    def fail(self, failure: MagnetarError) -> None:
        self._failed(failure)


class MatchingTopics:
    """The topics of one consumer; `subscribed` is the list that it works with."""

    def __init__(
        self,
        listed: Callable[[], Awaitable[set[str]]],
        subscribe: Callable[[str, Inbox, bool], Awaitable[Subscribed]],
        inbox: Inbox,
        clock: Clock,
        every_s: float | None,
    ) -> None:
        """`listed`: the topics that match now; `subscribe`: to a topic that puts into an inbox, and
        from its beginning or where the consumer begins. `every_s` None: only once."""
        self._listed, self._subscribe, self._inbox = listed, subscribe, inbox
        self._clock, self._every_s = clock, every_s
        self.subscribed: list[Subscribed] = []
        self._ended: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Subscribe to what there is, then follow. Raises the first refusal; nothing stays
        attached then."""
        try:
            for topic in sorted(await self._listed()):
                await self._add(topic, later=False)
        except BaseException:  # cancelled, too
            await asyncio.gather(*(_leave(found) for found in self.subscribed))
            raise
        if self._every_s is not None:
            self._task = asyncio.create_task(self._follow(self._every_s), name="topic pattern")

    async def look(self) -> None:
        """Subscribe to topics that have come, and leave those that have gone. Raises what the
        list is refused with."""
        wanted = await self._listed()
        for found in [one for one in self.subscribed if one.topic not in wanted - self._ended]:
            self.subscribed.remove(found)
            await _leave(found)
            _log.info("topic %s: left, it is gone or has failed", found.topic)
        self._ended.clear()
        for topic in sorted(wanted - {found.topic for found in self.subscribed}):
            try:
                await self._add(topic, later=True)
                _log.info("topic %s: subscribed, its name matches", topic)
            except MagnetarError as failure:
                _log.warning("topic %s: matches, but is refused: %s", topic, failure)

    async def stop(self) -> None:
        """Look no more; idempotent."""
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _add(self, topic: str, *, later: bool) -> None:
        inbox = _OneTopic(self._inbox, lambda _failure: self._ended.add(topic))
        self.subscribed.append(await self._subscribe(topic, inbox, later))
        self._ended.discard(topic)

    async def _follow(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s * self._clock.uniform(1 - JITTER, 1))
            try:
                await self.look()
            except MagnetarError as failure:
                _log.warning("topics that match a pattern could not be listed: %s", failure)


async def _leave(found: Subscribed) -> None:
    await found.growth.stop()
    await asyncio.gather(*(partition.close() for partition in found.partitions))
    if found.dead_letters is not None:
        await found.dead_letters.close()
