"""The simulated disk loses what it may lose and nothing else."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from magnetar.errors import Fenced, StorageError
from tests.simulation.kernel.disk import SECTOR_BYTES, Disk, Inode
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.world import Environment, World

OLD, NEW = b"o" * 4 * SECTOR_BYTES, b"n" * 4 * SECTOR_BYTES


def settled(seed: int, *, flushed: bool) -> bytes:
    """Content of a file of old bytes, overwritten with new ones, after a power loss."""
    disk, inode = Disk(seed), Inode()
    disk.link("f", inode)
    disk.sync_directory("f", 1)
    inode.write(0, OLD)
    inode.flushed(inode.mark(), inode.size)
    inode.write(0, NEW)
    if flushed:
        inode.flushed(inode.mark(), inode.size)
    disk.lose_power()
    return disk.names["f"].read(0, None)


def test_a_flushed_write_survives_every_power_loss() -> None:
    assert {settled(seed, flushed=True) for seed in range(50)} == {NEW}


def test_an_unsynced_write_is_kept_lost_or_torn_at_sectors() -> None:
    found = {settled(seed, flushed=False) for seed in range(100)}
    assert {OLD, NEW} < found
    for content in found:
        for start in range(0, len(content), SECTOR_BYTES):
            assert content[start : start + SECTOR_BYTES] in (OLD[:SECTOR_BYTES], NEW[:SECTOR_BYTES])


def test_a_flush_covers_only_what_was_written_before_it_started() -> None:
    inode = Inode()
    inode.write(0, b"early")
    covered, size = inode.mark(), inode.size
    inode.write(5, b" late")
    inode.flushed(covered, size)
    assert inode.read(0, None) == b"early late"
    assert inode.durable_bytes == b"early"
    assert inode.dirty


def test_what_a_failed_flush_left_is_readable_but_never_durable() -> None:
    inode = Inode()
    inode.write(0, b"poison")
    inode.flush_failed(inode.mark())
    inode.write(6, b" good")
    inode.flushed(inode.mark(), inode.size)
    assert inode.read(0, None) == b"poison good"
    assert inode.durable_bytes == bytes(6) + b" good"


def test_unsynced_names_may_be_undone_in_reverse_order_per_name() -> None:
    outcomes: set[tuple[str, ...]] = set()
    for seed in range(60):
        disk = Disk(seed)
        disk.link("d/kept", Inode())
        disk.sync_directory("d/kept", disk.unsynced("d/kept"))
        disk.link("d/new", Inode())
        disk.unlink("d/kept")
        disk.unlink("d/new")
        disk.link("d/new", Inode())
        disk.lose_power()
        outcomes.add(tuple(sorted(disk.names)))
    assert outcomes == {(), ("d/kept",), ("d/new",), ("d/kept", "d/new")}


def in_world(
    story: Callable[[Environment], Coroutine[Any, Any, None]],
    seed: int = 1,
    faults: Faults | None = None,
) -> None:
    with World(seed, faults) as world:
        world.complete(story(world.outsider("a")), within_s=60.0)


def test_an_append_without_its_claim_is_fenced_though_its_bytes_are_there() -> None:
    async def story(a: Environment) -> None:
        assert await a.volume.put_if_absent("claims/a", b"")
        assert not await a.volume.put_if_absent("claims/a", b"other")
        log = await a.volume.create_log("logs/a", 4096, b"header")
        await log.append(6, [b"one", memoryview(b"two")], "claims/a")
        assert await a.volume.remove("claims/a")
        assert not await a.volume.remove("claims/a")
        with pytest.raises(Fenced):
            await log.append(12, [b"three"], "claims/a")
        with pytest.raises(StorageError, match="failed before"):
            await log.append(12, [b"three"], "claims/a")
        assert await a.volume.read("logs/a", 0, 17) == b"headeronetwothree"
        assert await a.volume.exists("logs/a")
        assert not await a.volume.exists("claims/a")
        assert await a.volume.list("logs") == ["logs/a"]
        with pytest.raises(FileNotFoundError):
            await a.volume.read("claims/a")
        with pytest.raises(StorageError, match="exists already"):
            await a.volume.create_log("logs/a", 4096, b"")

    in_world(story)


@pytest.mark.parametrize(
    "fault", ["write_error_probability", "flush_error_probability", "lookup_error_probability"]
)
def test_every_disk_error_fails_the_append(fault: str) -> None:
    async def story(a: Environment) -> None:
        await a.volume.put_if_absent("claims/a", b"")
        log = await a.volume.create_log("logs/a", 1 << 20, b"")
        for number in range(1000):
            await log.append(number * 100, [b"x" * 100], "claims/a")

    with pytest.raises(StorageError):
        in_world(story, seed=4, faults=Faults.none().but(**{fault: 0.01}))


def test_an_append_that_was_cancelled_goes_on_as_a_thread_would() -> None:
    async def story(a: Environment) -> None:
        await a.volume.put_if_absent("claims/a", b"")
        log = await a.volume.create_log("logs/a", 4096, b"")
        append = asyncio.ensure_future(log.append(0, [b"written all the same"], "claims/a"))
        await asyncio.sleep(0)
        append.cancel()
        await asyncio.gather(append, return_exceptions=True)
        await asyncio.sleep(1.0)
        assert await a.volume.read("logs/a", 0, 7) == b"written"

    in_world(story)


def test_a_new_owner_makes_durable_what_its_predecessor_failed_to_flush() -> None:
    """A failed flush leaves pages that are marked clean: only writing them again helps, and then
    no power loss takes them."""

    async def fail(a: Environment) -> None:
        await a.volume.put_if_absent("claims/a", b"")
        log = await a.volume.create_log("logs/a", 4096, b"")
        world.set_faults(Faults.none().but(flush_error_probability=1.0))
        with pytest.raises(StorageError):
            await log.append(0, [b"seen by new owner"], "claims/a")
        world.set_faults(Faults.none())

    async def take(b: Environment) -> None:
        found = await b.volume.read("logs/a", 0, 17)
        assert found == b"seen by new owner"
        await b.volume.make_durable("logs/a", 0, found)
        with pytest.raises(FileNotFoundError):
            await b.volume.make_durable("logs/b", 0, found)

    for seed in range(20):
        with World(seed) as world:
            world.complete(fail(world.outsider("a")), within_s=5.0)
            world.complete(take(world.outsider("b")), within_s=5.0)
            world.power_loss()
            assert world.disk.names["logs/a"].read(0, 17) == b"seen by new owner"


def test_names_that_lead_elsewhere_are_refused() -> None:
    async def story(a: Environment) -> None:
        for name in ("", "/etc", "a//b", "a/../b", "./a"):
            with pytest.raises(StorageError, match="is not valid in a volume"):
                await a.volume.exists(name)

    in_world(story)


def test_a_process_can_be_stopped_between_any_two_steps_of_an_append() -> None:
    """Killed or paused inside `append`, the bytes are absent, partial, unsynced or durable: each
    state is met."""
    states: set[str] = set()
    payload = b"p" * 3000

    async def main(a: Environment) -> None:
        await a.volume.put_if_absent("claims/a", b"")
        log = await a.volume.create_log("logs/a", 4096, b"")
        await log.append(0, [payload], "claims/a")
        returned.append(True)
        await asyncio.sleep(1000.0)

    for seed in range(400):
        returned: list[bool] = []
        with World(
            seed, Faults.none().but(partial_write_probability=0.5, disk_step_s=(0.0001, 0.002))
        ) as world:
            world.node("a", main)
            world.run_until(partial(operator.contains, world.disk.names, "logs/a"), within_s=1.0)
            world.run(world.disk.chance.uniform(0.0, 0.03))
            world.crash("a")
            seen = world.disk.names["logs/a"].read(0, 3000).count(b"p")
            dirty = world.disk.names["logs/a"].dirty
            size = "none" if not seen else "all" if seen == 3000 else "part"
            states.add("returned" if returned else f"{size} {'unsynced' if dirty else 'durable'}")
    assert {"none durable", "part unsynced", "all unsynced", "all durable", "returned"} <= states


def test_what_was_acknowledged_survives_power_losses() -> None:
    async def main(a: Environment) -> None:
        await a.volume.put_if_absent("claims/a", b"")
        log = await a.volume.create_log("logs/a", 1 << 20, b"")
        for number in range(1, 200):
            await log.append((number - 1) * 8, [number.to_bytes(8, "big")], "claims/a")
            acknowledged.append(number)

    for seed in range(30):
        acknowledged: list[int] = []
        with World(seed) as world:
            world.node("a", main)
            world.run(0.05 + 0.01 * seed)
            world.power_loss()
            content = world.disk.names["logs/a"].read(0, 1600) if acknowledged else b""
            found = [
                int.from_bytes(content[start : start + 8], "big")
                for start in range(0, len(content), 8)
            ]
            assert found[: len(acknowledged)] == acknowledged
