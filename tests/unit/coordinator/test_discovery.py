"""How brokers lead clients to coordinators, and how waiting clients are answered once there are
none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.coordinator.discovery import CoordinatorDiscovery
from magnetar.errors import ServiceNotReady
from magnetar.hosting.settings import BrokerSettings
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import CoordinatorClaimRecord, CoordinatorSetRecord
from magnetar.metadata.store import Delete
from magnetar.names import COORDINATOR_TOPIC, TopicName

Script = Callable[["Stage"], Coroutine[Any, Any, None]]


class Stage:
    """A store, and the answers from it."""

    def __init__(self, park_timeout_s: float) -> None:
        clock = SystemClock()
        self.store = MemoryStore(clock)
        self._discovery = CoordinatorDiscovery(
            self.store, clock, BrokerSettings(park_timeout_s=park_timeout_s)
        )

    async def announce(self, announced: int) -> None:
        await self.store.put(
            keys.COORDINATOR_SET, CoordinatorSetRecord(announced, announced, "shop/tx").encode()
        )

    async def claim(self, tcid: int) -> None:
        name = f"tx-coordinator-{tcid}"
        record = CoordinatorClaimRecord(
            f"{name}.0", 1, name, f"pulsar://{name}:6650", "http://x:8080", 0, "1"
        )
        await self.store.put(keys.coordinator_claim(tcid), record.encode())

    async def holder(self, tcid: int) -> str | None:
        found = await self._discovery.holder_of(COORDINATOR_TOPIC.with_partition(tcid))
        return found.name if found is not None else None

    def waiting(self, tcid: int) -> asyncio.Task[str | None]:
        return asyncio.create_task(self.holder(tcid))

    async def announced(self, topic: TopicName = COORDINATOR_TOPIC) -> int:
        return await self._discovery.announced(topic)


async def play(script: Script, park_timeout_s: float = 60.0) -> None:
    stage = Stage(park_timeout_s)
    async with asyncio.timeout(120):
        await script(stage)
    await stage.store.close()


async def test_without_a_set_its_topic_is_one_like_any_other() -> None:
    async def script(stage: Stage) -> None:
        assert (await stage.announced(), await stage.holder(0)) == (0, None)
        await stage.announce(2)
        assert (
            await stage.announced(),
            await stage.announced(TopicName.parse("persistent://a/b/c")),
        ) == (2, 0)

    await play(script)


async def test_a_coordinator_that_restarts_is_waited_for_and_one_that_is_retired_is_answered_for_by_the_first() -> (
    None
):
    async def script(stage: Stage) -> None:
        await stage.announce(2)
        await stage.claim(0)
        assert await stage.holder(0) == await stage.holder(5) == "tx-coordinator-0"
        waiting = stage.waiting(1)
        await asyncio.sleep(0)
        assert not waiting.done()
        await stage.claim(1)
        assert await waiting == "tx-coordinator-1"

    await play(script)


async def test_waiting_clients_learn_at_once_that_the_set_was_withdrawn() -> None:
    """Not after the time that look-ups may wait: two times as long as this test may last."""

    async def script(stage: Stage) -> None:
        await stage.announce(2)
        waiting = [stage.waiting(0), stage.waiting(1)]
        for _ in range(10):
            await asyncio.sleep(0)  # they have read, and watch from there on
        assert not any(task.done() for task in waiting)
        await stage.store.transact((), (Delete(keys.COORDINATOR_SET),))
        assert await asyncio.gather(*waiting) == [None, None]

    await play(script)


async def test_a_coordinator_that_does_not_come_is_refused_with_what_to_look_at() -> None:
    async def script(stage: Stage) -> None:
        await stage.announce(1)
        with pytest.raises(
            ServiceNotReady, match="transaction coordinator 0 of 1 is not there; look at its pod"
        ):
            await stage.holder(0)

    await play(script, park_timeout_s=0.2)
