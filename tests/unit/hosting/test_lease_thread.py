"""ThreadedLeaseKeeper: a busy main loop keeps its lease, a stuck one loses it. Real threads,
real time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import StoreUnavailable
from magnetar.hosting.lease_thread import ThreadedLeaseKeeper
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.store import MetadataStore

CLOCK = SystemClock()


class World:
    """A keeper whose store continues its thread's loop."""

    def __init__(self, ttl_s: float, stall_max_s: float) -> None:
        self.lost: list[tuple[str, threading.Thread]] = []
        self.stores: list[MemoryStore] = []
        self.keeper = ThreadedLeaseKeeper(self.connect, CLOCK, ttl_s, self.on_lost, stall_max_s)

    def connect(self) -> MetadataStore:
        assert threading.current_thread().name == "lease"
        self.stores.append(MemoryStore(CLOCK))
        return self.stores[-1]

    def on_lost(self, reason: str) -> None:
        self.lost.append((reason, threading.current_thread()))


async def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.wait_for(scenario(), 120)


@pytest.mark.slow
async def test_a_busy_main_loop_keeps_its_lease() -> None:
    async def scenario() -> None:
        world = World(ttl_s=4.0, stall_max_s=60)
        lease = await world.keeper.start()
        assert lease == world.keeper.lease != 0
        time.sleep(6.5)  # the main loop is busy for longer than the lease's time
        assert world.keeper.valid()
        await asyncio.sleep(0)
        assert world.lost == []
        await world.keeper.stop(revoke=True)
        assert not world.keeper.valid()

    await run(scenario)


@pytest.mark.slow
async def test_a_stuck_main_loop_loses_its_lease_and_learns_it_on_the_main_loop() -> None:
    async def scenario() -> None:
        world = World(ttl_s=1.5, stall_max_s=0.2)
        await world.keeper.start()
        while world.keeper.valid():
            time.sleep(0.05)
        assert world.lost == [], "nothing is delivered while the main loop is stuck"
        while not world.lost:
            await asyncio.sleep(0.01)
        [(reason, thread)] = world.lost
        assert "no progress" in reason
        assert thread is threading.main_thread()
        await world.keeper.stop(revoke=False)

    await run(scenario)


async def test_stopping_revokes_closes_the_store_and_ends_the_thread() -> None:
    async def scenario() -> None:
        world = World(ttl_s=5, stall_max_s=5)
        await world.keeper.start()
        await world.keeper.stop(revoke=True)
        await world.keeper.stop(revoke=True)
        with pytest.raises(StoreUnavailable):
            await world.stores[0].get("k")
        assert world.stores[0]._core.next_expiry() is None, "the lease was revoked"
        assert "lease" not in {thread.name for thread in threading.enumerate()}
        assert world.lost == []

    await run(scenario)


async def test_a_failing_connection_is_the_callers_error() -> None:
    async def scenario() -> None:
        def refuse() -> MetadataStore:
            raise StoreUnavailable("nobody there")

        lost: list[str] = []
        keeper = ThreadedLeaseKeeper(refuse, CLOCK, 1.0, lost.append, 1.0)
        with pytest.raises(StoreUnavailable, match="nobody there"):
            await keeper.start()
        assert not keeper.valid()
        await keeper.stop(revoke=True)
        assert lost == []

    await run(scenario)
