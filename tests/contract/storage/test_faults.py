"""A log on a bad disk: nothing acknowledged is lost, nothing is acknowledged that could be, and
it goes on as soon as it can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import StorageError, StorageFull
from magnetar.storage.log import space, tail
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.seals import read_seal
from magnetar.storage.log.writer import LogWriter, RecordPlace
from magnetar.storage.volumes.posix import PosixVolume
from tests.simulation.kernel.world import World
from tests.support.faulty_volume import FaultyVolume, VolumeFaults
from tests.support.logs import (
    CLOCK,
    INCARNATION,
    Failures,
    append_numbered,
    new_writer,
    read_numbers,
)

WAIT_S = 120.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "FULL_RETRY_S", 0.01)
    monkeypatch.setattr(tail, "CREATE_RETRY_S", 0.01)


@asynccontextmanager
async def bad_disk(directory: Path) -> AsyncIterator[tuple[FaultyVolume, LogWriter, Failures]]:
    volume = PosixVolume(directory)
    faulty, failures = FaultyVolume(volume, CLOCK), Failures()
    writer = new_writer(faulty, failures)
    await writer.open()
    try:
        yield faulty, writer, failures
    finally:
        await writer.close()
        await volume.close()


async def all_read(volume: FaultyVolume) -> dict[int, RecordPlace]:
    """What a new owner finds."""
    volume.faults = VolumeFaults()
    await fence(volume, INCARNATION)
    return await read_numbers(volume, None)


@pytest.mark.parametrize(
    "faults",
    [VolumeFaults(write_error=1.0), VolumeFaults(flush_error=1.0)],
    ids=["short write", "failed flush"],
)
async def test_a_file_that_fails_is_left_and_everything_goes_into_the_next(
    tmp_path: Path, faults: VolumeFaults
) -> None:
    """No producer learns of it; the failed file ends, for everybody, where its acknowledged part
    does; it is never written again."""

    async with bad_disk(tmp_path) as (volume, writer, failures):
        done: dict[int, RecordPlace] = {}
        append_numbered(writer, 0, done)
        await writer.barrier()
        end = writer.position.offset
        volume.faults = faults
        append_numbered(writer, 1, done)
        append_numbered(writer, 2, done)
        while volume.struck == 0:
            await asyncio.sleep(0)
        volume.faults = VolumeFaults()
        await writer.barrier()
        assert (failures, writer.files_abandoned) == ([], 1)
        assert [place.file for place in done.values()] == [0, 1, 1]
        assert await read_seal(volume, INCARNATION, 0) == end
        assert await all_read(volume) == done


async def test_a_disk_that_fails_twice_in_a_row_ends_the_log(tmp_path: Path) -> None:
    """Nothing that was not acknowledged before is; what was is there."""

    async with bad_disk(tmp_path) as (volume, writer, failures):
        done: dict[int, RecordPlace] = {}
        append_numbered(writer, 0, done)
        await writer.barrier()
        volume.faults = VolumeFaults(flush_error=1.0)
        append_numbered(writer, 1, done)
        while not failures:
            await asyncio.sleep(0.001)
        assert writer.fenced
        assert list(done) == [0]
        assert done.items() <= (await all_read(volume)).items()


@pytest.mark.parametrize(
    "reserved", [True, False], ids=["before a block", "in the middle of a block"]
)
async def test_a_full_disk_is_waited_for(tmp_path: Path, reserved: bool) -> None:
    """The log says so, acknowledges nothing, and goes on where it was once there is space; it is
    not fenced."""

    async with bad_disk(tmp_path) as (volume, writer, failures):
        done: dict[int, RecordPlace] = {}
        append_numbered(writer, 0, done)
        await writer.barrier()
        volume.faults = VolumeFaults(full=True, reserved=reserved)
        number = 1
        while writer.space.stalled is None:
            append_numbered(writer, number, done, size=3000)
            number += 1
            await asyncio.sleep(0.002)
        with pytest.raises(StorageFull):
            writer.space.check_room()
        acknowledged = len(done)
        append_numbered(writer, number, done)
        await asyncio.sleep(0.05)
        assert len(done) == acknowledged
        volume.faults = VolumeFaults()
        await asyncio.wait_for(writer.barrier(), WAIT_S)
        writer.space.check_room()
        assert failures == []
        assert list(done) == list(range(number + 1))
        assert await all_read(volume) == done


class Promising(FaultyVolume):
    """A volume on which files can be created though there is no space to write into them (thin
    provisioning, say)."""

    def check_space(self, what: str) -> None:
        """Nobody looks."""


async def test_space_that_was_promised_and_is_not_there_is_waited_for_in_one_file_after_the_other(
    tmp_path: Path,
) -> None:
    """A block that finds no space in the next file either waits: nothing is acknowledged
    concurrently, nothing is lost, nothing comes twice."""

    inner, failures = PosixVolume(tmp_path), Failures()
    volume = Promising(inner, CLOCK)
    writer = new_writer(volume, failures)
    await writer.open()
    done: dict[int, RecordPlace] = {}
    append_numbered(writer, 0, done)
    await writer.barrier()
    volume.faults = VolumeFaults(full=True, reserved=False)
    append_numbered(writer, 1, done)
    while writer.space.stalled is None:
        await asyncio.sleep(0.001)
    assert (list(done), failures) == ([0], [])
    volume.faults = VolumeFaults()
    await asyncio.wait_for(writer.barrier(), WAIT_S)
    assert (list(done), failures, writer.space.short) == ([0, 1], [], None)
    assert await all_read(volume) == done
    await writer.close()
    await inner.close()


async def test_a_log_that_cannot_begin_leaves_no_claim_behind(tmp_path: Path) -> None:
    """Else each attempt of a broker that starts on a full disk would leave one."""

    inner = PosixVolume(tmp_path)
    volume = FaultyVolume(inner, CLOCK, VolumeFaults(create_error=1.0))
    for _ in range(3):
        with pytest.raises(StorageError):
            await new_writer(volume, Failures()).open()
    assert await inner.list("") == []
    await inner.close()


async def test_a_file_that_cannot_be_created_is_tried_again_and_leaves_no_gap(
    tmp_path: Path,
) -> None:
    async with bad_disk(tmp_path) as (volume, writer, failures):
        done: dict[int, RecordPlace] = {}
        # what comes next prepares a spare, which fails
        append_numbered(writer, 0, done, size=9000)
        await writer.barrier()
        volume.faults = VolumeFaults(create_error=1.0)
        number = 0
        while volume.struck < 2:
            number += 1
            append_numbered(writer, number, done, size=9000)
            await asyncio.sleep(0.001)
        volume.faults = VolumeFaults()
        await writer.barrier()
        assert failures == []
        assert await all_read(volume) == done
        assert sorted({place.file for place in done.values()}) == list(
            range(writer.position.file + 1)
        )


FAULTS = st.builds(
    VolumeFaults,
    write_error=st.sampled_from([0.0, 0.05, 0.3]),
    flush_error=st.sampled_from([0.0, 0.05, 0.3]),
    create_error=st.sampled_from([0.0, 0.3]),
    put_error=st.sampled_from([0.0, 0.2]),
    full=st.booleans(),
    reserved=st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32), st.lists(FAULTS, min_size=1, max_size=5))
def test_whatever_the_disk_does_what_was_acknowledged_is_read_back(
    seed: int, weather: list[VolumeFaults]
) -> None:
    """In virtual time, under changing weather, with a new owner at the end: everything acknowledged
    lies where it was said to."""
    done: dict[int, RecordPlace] = {}

    async def own(world: World) -> None:
        environment = world.outsider("owner")
        volume = FaultyVolume(environment.volume, environment.clock)
        writer = new_writer(volume, Failures())
        await writer.open()
        number = 0
        for faults in weather:
            volume.faults = faults
            for _ in range(12):
                append_numbered(writer, number, done, size=2500)
                number += 1
                await asyncio.sleep(0.01)
        volume.faults = VolumeFaults()
        await asyncio.sleep(1.0)
        new_owner = world.outsider("new owner").volume
        sealed = await fence(new_owner, INCARNATION)
        read = await read_numbers(new_owner, None)
        assert done.items() <= read.items()
        assert not sealed or sealed[0].length >= FILE_HEADER_BYTES

    with World(seed) as world:
        world.complete(own(world), within_s=600.0)
