"""Live mirrors of the store: list, watch, outage, compaction, and records read ahead of the
watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from magnetar.errors import StoreUnavailable
from magnetar.hosting.background import Surprises
from magnetar.hosting.views import StoreView
from magnetar.metadata.backends.core import StoreCore
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import CordonRecord
from magnetar.metadata.store import Delete, Put
from tests.support.faulty_store import FaultPlan, FaultyStore
from tests.support.virtual_time import VirtualClock, VirtualLoop, run_virtually

PREFIX = "cordons/"
HISTORY_REVISIONS = 20
UNREACHABLE = FaultPlan(unreachable=True)


class World:
    """A store, the same over a bad network, and a view of the latter with the changes it
    announced."""

    def __init__(self, clock: VirtualClock) -> None:
        self.store = MemoryStore(clock, StoreCore(history_revisions_max=HISTORY_REVISIONS))
        self.network = FaultyStore(self.store, clock, FaultPlan(), owns_inner=False)
        self.surprises = Surprises()
        self.view = StoreView(self.network, clock, PREFIX, CordonRecord, self.surprises)
        self.announced: list[list[str]] = []
        self.view.listen(self.announced.append)

    def reasons(self) -> dict[str, str]:
        return {name: viewed.record.reason for name, viewed in self.view.items.items()}

    async def until(self, reasons: dict[str, str]) -> None:
        """Wait until the view shows exactly this."""
        async with asyncio.timeout(60):
            while self.reasons() != reasons:
                await self.view.changed()


def value(reason: str) -> bytes:
    return CordonRecord(drain=False, reason=reason).encode()


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run `scenario` in virtual time."""
    loop = VirtualLoop()

    async def main() -> None:
        world = World(VirtualClock(loop))
        await scenario(world)
        await world.view.stop()
        await world.network.close()
        await world.store.close()

    run_virtually(main(), loop)


def test_it_lists_what_is_there_and_follows_changes() -> None:
    """Existing keys, new ones, changed ones, deleted ones; keys beside the prefix do not exist."""

    async def scenario(world: World) -> None:
        await world.store.put("cordons/a", value("1"))
        await world.store.put("cordon", value("outside"))
        await world.view.start()
        assert world.reasons() == {"a": "1"}
        await world.store.put("cordons/b", value("2"))
        revision = await world.store.put("cordons/a", value("3"))
        await world.until({"a": "3", "b": "2"})
        assert world.view.revision == revision
        viewed = world.view.get("a")
        assert viewed is not None
        assert viewed.mod_revision == revision
        await world.store.delete("cordons/b")
        await world.until({"a": "3"})
        assert world.view.get("b") is None

    play(scenario)


def test_changes_of_one_revision_are_announced_together() -> None:
    """A listener never sees half of a transaction."""

    async def scenario(world: World) -> None:
        await world.store.put("cordons/a", value("1"))
        await world.view.start()
        world.announced.clear()
        await world.store.transact(
            [], [Delete("cordons/a"), Put("cordons/b", value("2")), Put("cordons/c", value("3"))]
        )
        await world.until({"b": "2", "c": "3"})
        assert [sorted(names) for names in world.announced] == [["a", "b", "c"]]

    play(scenario)


def test_an_outage_freezes_the_view_and_loses_nothing() -> None:
    """While the store is unavailable the last state stays; afterwards everything is caught up,
    deletions included."""

    async def scenario(world: World) -> None:
        await world.store.put("cordons/a", value("1"))
        await world.view.start()
        world.network.plan = UNREACHABLE
        await world.store.put("cordons/b", value("2"))
        await world.store.delete("cordons/a")
        await asyncio.sleep(30)
        assert world.reasons() == {"a": "1"}
        world.network.plan = FaultPlan()
        await world.until({"b": "2"})

    play(scenario)


def test_a_compaction_during_an_outage_makes_it_list_again() -> None:
    """The missed revisions are gone from the store: the view lists, and shows what vanished in
    between."""

    async def scenario(world: World) -> None:
        await world.store.put("cordons/gone", value("1"))
        await world.store.put("cordons/kept", value("1"))
        await world.view.start()
        world.network.plan = UNREACHABLE
        await world.store.delete("cordons/gone")
        for number in range(3 * HISTORY_REVISIONS):
            await world.store.put("cordons/new", value(str(number)))
        world.announced.clear()
        await asyncio.sleep(5)
        world.network.plan = FaultPlan()
        await world.until({"kept": "1", "new": str(3 * HISTORY_REVISIONS - 1)})
        assert sorted(name for names in world.announced for name in names) == ["gone", "new"]

    play(scenario)


def test_a_bad_network_does_not_lose_changes() -> None:
    """Cut watches, lost requests and delays: after every change the view ends up as the store
    is."""

    async def scenario(world: World) -> None:
        await world.view.start()
        world.network.plan = FaultPlan(lost_request=0.3, delay=0.5, delay_s_max=0.2, disconnect=0.3)
        for number in range(100):
            await world.store.put(f"cordons/{number % 7}", value(str(number)))
            await asyncio.sleep(0.01)
        await world.until({str(number % 7): str(number) for number in range(93, 100)})

    play(scenario)


def test_the_first_load_fails_loudly() -> None:
    """A broker does not start on a view that it could not load."""

    async def scenario(world: World) -> None:
        world.network.plan = UNREACHABLE
        with pytest.raises(StoreUnavailable):
            await world.view.start()

    play(scenario)


def test_observed_changes_are_shown_at_once_and_never_go_back() -> None:
    """What this process wrote or read counts before the watch brings it, which then repeats
    nothing and undoes nothing."""

    async def scenario(world: World) -> None:
        first = await world.store.put("cordons/a", value("1"))
        await world.view.start()
        world.network.plan = UNREACHABLE
        second = await world.store.put("cordons/a", value("2"))
        world.view.observe("a", value("2"), second)
        assert world.reasons() == {"a": "2"}
        world.view.observe("a", value("1"), first)
        assert world.reasons() == {"a": "2"}
        world.announced.clear()
        world.network.plan = FaultPlan()
        await world.store.put("cordons/b", value("3"))
        await world.until({"a": "2", "b": "3"})
        assert world.announced == [["b"]]

    play(scenario)


def test_an_old_reading_does_not_revive_a_deleted_key() -> None:
    """A value read before a deletion that the watch has shown already is too late."""

    async def scenario(world: World) -> None:
        first = await world.store.put("cordons/a", value("1"))
        await world.view.start()
        await world.store.delete("cordons/a")
        await world.until({})
        world.view.observe("a", value("1"), first)
        assert world.reasons() == {}

    play(scenario)


def test_a_deletion_ahead_of_the_watch_is_not_undone_by_older_events() -> None:
    """A deletion that this process saw itself stays, although the watch still has the put before
    it to tell."""

    async def scenario(world: World) -> None:
        await world.view.start()
        world.network.plan = UNREACHABLE
        first = await world.store.put("cordons/a", value("1"))
        world.view.observe("a", value("1"), first)
        await world.store.delete("cordons/a")
        world.network.plan = FaultPlan()
        await world.until({})

    play(scenario)


def test_a_record_of_another_version_is_left_out() -> None:
    """One undecodable value neither ends the view nor hides its neighbours; a good one that
    replaces it is shown."""

    async def scenario(world: World) -> None:
        await world.view.start()
        await world.store.put("cordons/a", b'{"schema":99}')
        await world.store.put("cordons/b", value("2"))
        await world.until({"b": "2"})
        await world.store.put("cordons/a", value("1"))
        await world.until({"a": "1", "b": "2"})

    play(scenario)


def test_a_listeners_bug_costs_that_listener_one_change() -> None:
    """The mirror goes on, the listeners behind it are called, and the error is counted."""

    async def scenario(world: World) -> None:
        await world.view.start()

        notified: list[list[str]] = []

        def broken(_names: list[str]) -> None:
            raise RuntimeError("a bug")

        world.view.listen(broken)
        world.view.listen(notified.append)
        for number in range(3):
            await world.store.put(PREFIX + "a", value(str(number)))
            await world.until({"a": str(number)})
        assert notified == [["a"]] * 3
        assert world.surprises.counts == {"views": 3}

    play(scenario)
