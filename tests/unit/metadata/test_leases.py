"""LeaseKeeper in virtual time: when it renews, when it gives up, and that it says so once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.leases import LeaseKeeper
from tests.support.faulty_store import FaultPlan, FaultyStore
from tests.support.virtual_time import VirtualClock, VirtualLoop, run_virtually

TTL_S = 3.0


class World:
    """One keeper over a store that can be made slow or unreachable."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.lost: list[str] = []
        self.lost_at = 0.0
        self.renewals = 0
        self.reply_delay_s = 0.0
        self.permitted = True

    async def build(self) -> None:
        world = self

        class CountingStore(MemoryStore):
            async def renew_lease(self, lease: int) -> float:
                world.renewals += 1
                ttl_s = await super().renew_lease(lease)
                await asyncio.sleep(world.reply_delay_s)
                return ttl_s

        self.inner = CountingStore(self.clock)
        self.store = FaultyStore(self.inner, self.clock, FaultPlan())
        self.keeper = LeaseKeeper(
            self.store, self.clock, TTL_S, self.on_lost, lambda: self.permitted
        )

    def on_lost(self, reason: str) -> None:
        self.lost.append(reason)
        self.lost_at = self.clock.boottime()

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def body() -> None:
            await self.build()
            await scenario()
            await self.store.close()

        run_virtually(body(), self.loop)


def test_it_renews_every_third_and_stays_valid() -> None:
    world = World()

    async def scenario() -> None:
        lease = await world.keeper.start()
        await world.inner.put("k", b"v", lease)
        for _ in range(100):
            await asyncio.sleep(TTL_S / 10)
            assert world.keeper.valid()
        assert 28 <= world.renewals <= 30, "ten lease times, a renewal every third"
        assert await world.inner.get("k") is not None
        await world.keeper.stop(revoke=False)
        assert world.lost == []

    world.run(scenario)


def test_validity_counts_from_sending_not_from_the_answer() -> None:
    world = World()

    async def scenario() -> None:
        await world.keeper.start()
        world.reply_delay_s = 0.9
        sent = world.clock.boottime() + TTL_S / 3
        while world.renewals == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.95)
        world.store.plan = FaultPlan(unreachable=True)
        await asyncio.sleep(sent + TTL_S - 0.05 - world.clock.boottime())
        assert world.keeper.valid()
        await asyncio.sleep(0.1)
        assert not world.keeper.valid()
        assert len(world.lost) == 1

    world.run(scenario)


def test_an_unreachable_store_ends_the_lease_before_the_store_does() -> None:
    world = World()

    async def scenario() -> None:
        lease = await world.keeper.start()
        written = await world.inner.put("k", b"v", lease)
        await asyncio.sleep(10 * TTL_S)
        world.store.plan = FaultPlan(unreachable=True)
        watch = world.inner.watch("k", written + 1)
        assert (await anext(watch)).events[0].value is None
        expired_at = world.clock.boottime()
        await watch.aclose()
        await asyncio.sleep(5 * TTL_S)
        assert len(world.lost) == 1
        assert world.lost_at <= expired_at
        assert "request was lost" in world.lost[0]

    world.run(scenario)


def test_a_short_outage_is_survived() -> None:
    world = World()

    async def scenario() -> None:
        await world.keeper.start()
        await asyncio.sleep(TTL_S)
        world.store.plan = FaultPlan(unreachable=True)
        await asyncio.sleep(TTL_S / 2)
        world.store.plan = FaultPlan()
        await asyncio.sleep(3 * TTL_S)
        assert world.keeper.valid()
        assert world.lost == []
        await world.keeper.stop(revoke=False)

    world.run(scenario)


def test_renewals_that_hang_are_repeated_and_do_not_hide_the_end() -> None:
    world = World()

    async def scenario() -> None:
        started = world.clock.boottime()
        await world.keeper.start()
        world.reply_delay_s = 1e6
        while not world.lost:
            await asyncio.sleep(0.01)
        assert TTL_S <= world.clock.boottime() - started < TTL_S + 0.1
        assert world.renewals >= 2
        assert "did not answer" in world.lost[0]

    world.run(scenario)


def test_a_revoked_lease_is_noticed_at_the_next_renewal_and_reported_once() -> None:
    world = World()

    async def scenario() -> None:
        lease = await world.keeper.start()
        await world.inner.revoke_lease(lease)
        await asyncio.sleep(TTL_S / 2)
        assert not world.keeper.valid()
        await asyncio.sleep(5 * TTL_S)
        assert len(world.lost) == 1

    world.run(scenario)


def test_a_suspended_machine_wakes_up_without_its_lease() -> None:
    world = World()

    async def scenario() -> None:
        await world.keeper.start()
        await asyncio.sleep(TTL_S)
        world.clock.suspend(TTL_S)
        assert not world.keeper.valid(), "at once, before any task runs"
        await asyncio.sleep(TTL_S)
        assert not world.keeper.valid(), "and for good"
        assert len(world.lost) == 1

    world.run(scenario)


def test_a_closed_gate_lets_the_lease_run_out_and_an_open_one_resumes() -> None:
    world = World()

    async def scenario() -> None:
        await world.keeper.start()
        world.permitted = False
        await asyncio.sleep(TTL_S * 0.8)
        assert world.renewals == 0
        world.permitted = True
        await asyncio.sleep(TTL_S)
        assert world.keeper.valid()
        world.permitted = False
        await asyncio.sleep(TTL_S * 1.1)
        assert not world.keeper.valid()
        assert len(world.lost) == 1
        assert "no progress" in world.lost[0]

    world.run(scenario)


def test_stopping_ends_the_lease_quietly() -> None:
    world = World()

    async def scenario() -> None:
        lease = await world.keeper.start()
        await world.inner.put("k", b"v", lease)
        await world.keeper.stop(revoke=True)
        assert not world.keeper.valid()
        assert await world.inner.get("k") is None
        await asyncio.sleep(5 * TTL_S)
        assert world.lost == []

    world.run(scenario)


def test_stopping_does_not_fail_when_the_store_is_unavailable() -> None:
    world = World()

    async def scenario() -> None:
        await world.keeper.start()
        world.store.plan = FaultPlan(unreachable=True)
        await world.keeper.stop(revoke=True)
        await world.keeper.stop(revoke=True)
        assert world.lost == []

    world.run(scenario)


def test_a_keeper_with_a_bug_does_not_leave_a_lease_that_nobody_renews() -> None:
    """Callers that rely on it are notified at once, as of any other loss."""
    world = World()

    async def scenario() -> None:
        await world.keeper.start()

        async def renew_lease(_lease: int) -> float:
            raise RuntimeError("a bug")

        world.inner.renew_lease = renew_lease  # type: ignore[method-assign]
        await asyncio.sleep(TTL_S / 2)
        assert not world.keeper.valid()
        assert len(world.lost) == 1
        assert "RuntimeError('a bug')" in world.lost[0]
        await world.keeper.stop(revoke=False)

    world.run(scenario)
