"""The loop, the nodes and the world: reproducible, and true to what crashes and pauses do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from functools import partial

import pytest

from magnetar.errors import Fenced, LeaseLost, StoreUnavailable
from magnetar.metadata.store import Put
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.loop import Deadlock, Runaway, SimLoop, SimulationError, UnhandledError
from tests.simulation.kernel.nemesis import Nemesis
from tests.simulation.kernel.store import STORE_HOST
from tests.simulation.kernel.world import Environment, World
from tests.simulation.scenarios import toy_cluster, toy_fence


def test_the_same_seed_gives_the_same_trace_and_another_seed_another() -> None:
    first, again, other = (toy_cluster.play(seed).loop for seed in (7, 7, 8))
    assert (first.trace_hash, first.steps) == (again.trace_hash, again.steps)
    assert first.trace_hash != other.trace_hash


@pytest.mark.slow
def test_the_trace_is_the_same_in_another_process() -> None:
    """Nothing depends on object addresses or on the salt of string hashes."""
    program = (
        "from tests.simulation.scenarios import toy_cluster; "
        "print(toy_cluster.play(7).loop.trace_hash)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == toy_cluster.play(7).loop.trace_hash


def test_steps_of_one_node_keep_their_order_while_nodes_interleave() -> None:
    orders: set[str] = set()
    for seed in range(20):
        loop, ran = SimLoop(seed), list[str]()
        for name in "ab":
            node = loop.new_node(name)
            for number in range(3):
                loop.post(node, ran.append, f"{name}{number}")
        loop.run_until(1.0)
        assert [item for item in ran if item[0] == "a"] == ["a0", "a1", "a2"]
        assert [item for item in ran if item[0] == "b"] == ["b0", "b1", "b2"]
        orders.add(" ".join(ran))
    assert len(orders) > 3


def test_time_jumps_to_the_next_timer() -> None:
    loop, seen = SimLoop(1), list[float]()

    async def sleeper() -> None:
        for delay in (0.5, 1000.0):
            await asyncio.sleep(delay)
            seen.append(loop.time())

    loop.run_until_complete(sleeper())
    assert seen == [0.5, 1000.5]


def test_a_wait_that_nothing_can_end_is_a_deadlock() -> None:
    loop = SimLoop(1)
    waiting = loop.create_future()
    with pytest.raises(Deadlock):
        loop.run_until_complete(waiting)


@pytest.mark.slow
def test_a_loop_that_lets_no_time_pass_is_a_runaway() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Runaway), World(1) as world:
        world.complete(spin(), within_s=1.0)


def test_threads_and_sockets_are_refused() -> None:
    async def thread() -> None:
        await asyncio.to_thread(threading.get_ident)

    async def socket() -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    for attempt in (thread, socket):
        with pytest.raises(SimulationError), World(1) as world:
            world.complete(attempt(), within_s=1.0)


def test_a_failing_main_ends_the_run_with_seed_time_and_events() -> None:
    async def fail(_: Environment) -> None:
        await asyncio.sleep(2.0)
        raise ValueError("broken")

    world = World(41)
    world.node("a", fail)
    with pytest.raises(UnhandledError, match="broken") as caught, world:
        world.run(5.0)
    note = "".join(caught.value.__notes__)
    assert "seed 41, virtual time 2.0" in note
    assert "a              start 1" in note


def test_a_crash_runs_no_finally_and_no_except() -> None:
    recorded: list[str] = []

    async def main(environment: Environment) -> None:
        recorded.append(f"life {environment.life}")
        try:
            await asyncio.gather(asyncio.sleep(100.0), nested())
        except BaseException:
            recorded.append("except")
            raise
        finally:
            recorded.append("finally")

    async def nested() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            recorded.append("nested finally")

    with World(1) as world:
        world.node("a", main)
        world.at(1.0, world.crash, "a")
        world.at(2.0, world.restart, "a")
        world.run(50.0)
        assert recorded == ["life 1", "life 2"]


def test_a_crash_at_any_step_stops_the_node_at_that_step() -> None:
    """The step hook can kill a node before each of its steps: nothing of it runs from then on."""
    ran: list[int] = []

    async def main(_: Environment) -> None:
        for number in range(100):
            ran.append(number)
            await asyncio.sleep(0.1)

    with World(1) as world:
        node = world.node("a", main)
        world.loop.on_step = lambda running: (
            world.crash("a") if running is node and world.loop.steps == 41 else None
        )
        world.run(20.0)
    assert ran == list(range(len(ran)))
    assert 0 < len(ran) < 41


def test_a_node_that_dies_in_its_own_step_changes_nothing_any_more() -> None:
    async def main(environment: Environment) -> None:
        world.crash("a")
        await environment.volume.put_if_absent("never", b"")

    async def write_first(environment: Environment) -> None:
        write = asyncio.ensure_future(environment.volume.put_if_absent("never", b""))
        await asyncio.sleep(0)
        world.crash("b")
        await write

    with World(1) as world:
        world.node("a", main)
        world.node("b", write_first)
        world.run(5.0)
        assert world.disk.names == {}


def test_a_node_ends_with_its_main_and_comes_back_if_it_restarts() -> None:
    lives: list[int] = []

    async def main(environment: Environment) -> None:
        lives.append(environment.life)
        await asyncio.sleep(1.0)
        raise Fenced("taken over")

    with World(1, Faults.none().but(down_s=(0.5, 0.5))) as world:
        world.node("a", main, restarts=True, tolerated=(Fenced,))
        world.run(4.0)
    assert lives == [1, 2, 3]


def test_a_paused_node_runs_nothing_and_finds_its_clocks_moved_on() -> None:
    seen: list[tuple[float, float, int]] = []

    async def main(environment: Environment) -> None:
        while True:
            clock = environment.clock
            seen.append((clock.monotonic(), clock.boottime(), clock.wall_ms()))
            await asyncio.sleep(0.1)

    with World(1, Faults.none().but(wall_skew_max_s=5.0)) as world:
        world.node("a", main)
        world.run(1.0)
        world.pause("a")
        before = len(seen)
        world.run(10.0)
        assert len(seen) == before
        world.resume("a")
        world.run(0.05)
    gaps = [later - earlier for later, earlier in zip(seen[-1], seen[before - 1], strict=True)]
    assert gaps[0] == pytest.approx(10.0, abs=0.2)
    assert gaps[1] == pytest.approx(10.0, abs=0.2)
    assert gaps[2] == pytest.approx(10_000, abs=200)


def test_clocks_differ_between_nodes_and_chance_between_lives() -> None:
    world = World(1, Faults.none().but(wall_skew_max_s=5.0, drift_max=0.001))
    a, b = world.outsider("a").clock, world.outsider("b").clock
    assert a.wall_ms() != b.wall_ms()
    assert abs(a.monotonic() - b.monotonic()) > 1.0
    assert [a.random_bits(64) for _ in range(3)] != [b.random_bits(64) for _ in range(3)]
    before = a.wall_ms()
    a.jump_wall(-30.0)
    assert a.wall_ms() - before == pytest.approx(-30_000, abs=1)
    assert World(1).outsider("a").clock.random_bits(64) == World(1).outsider("a").clock.random_bits(
        64
    )
    world.close()


async def _hold_lease(environment: Environment, lost_at: list[float], clock_s: float = 1.0) -> None:
    store = environment.store
    lease = await store.grant_lease(4.0)
    await store.put("incarnations/a", b"alive", lease)
    while True:
        await asyncio.sleep(clock_s)
        try:
            await store.renew_lease(lease)
        except StoreUnavailable:
            continue
        except LeaseLost:
            lost_at.append(environment.clock.monotonic())
            return


@pytest.mark.parametrize("fault", ["crash", "pause", "partition", "early"])
def test_a_lease_ends_when_its_holder_cannot_renew_it(fault: str) -> None:
    lost: list[float] = []
    with World(3) as world:
        world.node("a", partial(_hold_lease, lost_at=lost))
        world.run(10.0)
        assert world.store.core.get("incarnations/a") is not None
        match fault:
            case "crash":
                world.crash("a")
            case "pause":
                world.pause("a")
            case "partition":
                world.fabric.partition("a", STORE_HOST)
            case _:
                world.store.expire_leases_of("a")
        world.run(5.5)
        assert world.store.core.get("incarnations/a") is None
        world.calm()
        world.run(5.0)
    assert len(lost) == (0 if fault == "crash" else 1), (
        "who comes back learns that it has lost its lease"
    )


def test_a_watch_over_outages_partitions_and_disconnects_loses_and_repeats_nothing() -> None:
    seen: list[bytes | None] = []

    async def follow(environment: Environment) -> None:
        async for batch in environment.store.watch("k/", 1 + 1):
            seen.extend(event.value for event in batch.events)

    async def write(environment: Environment) -> None:
        for number in range(100):
            while True:
                try:
                    await environment.store.transact(
                        (), (Put("k/a", b"%d" % number), Put("x", b""))
                    )
                    break
                except StoreUnavailable:
                    continue
            await asyncio.sleep(0.2)

    with World(5, Faults.none().but(watch_disconnect_probability=0.3)) as world:
        world.node("follower", follow)
        world.node("writer", write)
        world.at(3.0, world.fabric.partition, "follower", STORE_HOST)
        world.at(8.0, world.fabric.heal)
        world.at(10.0, world.store.set_available, False)
        world.at(12.0, world.store.set_available, True)
        world.run(60.0)
    # A held request may be executed after its repetition, so a value may occur twice in a row; none
    # is missing and none goes back.
    numbers = [int(value or b"-1") for value in seen]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(100))
    assert len(seen) == world.store.core.get("k/a").version  # type: ignore[union-attr]  # the key is there


def test_the_nemesis_ends_what_it_began() -> None:
    faults = Faults.all().but(
        crash_every_s=3.0, pause_every_s=3.0, partition_every_s=3.0, power_loss_every_s=20.0
    )

    async def idle(_: Environment) -> None:
        await asyncio.sleep(1000.0)

    with World(2, faults) as world:
        for name in ("a", "b", "c"):
            world.node(name, idle, restarts=True)
        Nemesis(world, ["a", "b", "c"]).start(until_s=60.0)
        world.run(61.0)
        kinds = {kind for _, _, kind, _ in world.loop.ring}
        assert {"crash", "pause", "resume", "partition", "heal", "power loss"} <= kinds
        assert all(world.alive(name) and not world.current(name).paused for name in "abc")
        assert world.store.available
        assert all(
            world.fabric.blocked(first, second) is None
            for first in "abc"
            for second in ("a", "b", "c", STORE_HOST)
        )
        assert world.faults.flush_error_probability == 0.0


@pytest.mark.slow
def test_the_toy_fence_holds_for_200_seeds() -> None:
    for seed in range(200):
        toy_fence.run(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        {"look": toy_fence.Look.NEVER},
        {"look": toy_fence.Look.BEFORE_WRITE},
        {"removes_first": False},
    ],
    ids=["never looks", "looks too early", "reads before it removes"],
)
def test_every_broken_toy_fence_is_caught_within_50_seeds(broken: dict[str, object]) -> None:
    def campaign() -> None:
        for seed in range(50):
            toy_fence.play(seed, **broken)  # type: ignore[arg-type]  # one of the three sets of keywords above

    with pytest.raises(AssertionError, match="beyond the seal"):
        campaign()
