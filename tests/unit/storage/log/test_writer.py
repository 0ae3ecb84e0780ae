"""The log writer: group commit, order, rolling, sealing, and what it does when anything fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from magnetar.errors import Fenced, LimitExceeded, StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.log.seals import publish_seal, read_seal
from magnetar.storage.log.writer import LogWriter, RecordPlace
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.posix_log import PosixLogHandle
from magnetar.storage.volumes.volume import Buffer
from tests.support.logs import (
    FILE_BYTES,
    INCARNATION,
    TOPIC,
    Failures,
    append_numbered,
    new_writer,
    numbered,
    open_writer,
    read_numbers,
    run_on_volume,
)


class GatedVolume(PosixVolume):
    """Appends wait for `gate`, then fail with `failure` if it is set; `appended` counts those
    that were started."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = asyncio.Event()
        self.gate.set()
        self.started = asyncio.Event()
        self.failure: StorageError | None = None
        self.appended = 0

    async def create_log(self, name: str, capacity: int, header: bytes) -> Any:
        return GatedHandle(self, await super().create_log(name, capacity, header))


class GatedHandle:
    def __init__(self, volume: GatedVolume, inner: PosixLogHandle) -> None:
        self._volume, self._inner = volume, inner

    name = property(lambda self: self._inner.name)
    capacity = property(lambda self: self._inner.capacity)
    full = property(lambda self: self._inner.full)

    async def append(self, offset: int, buffers: Sequence[Buffer], claim: str) -> None:
        self._volume.appended += 1
        self._volume.started.set()
        await self._volume.gate.wait()
        if self._volume.failure is not None:
            raise self._volume.failure
        await self._inner.append(offset, buffers, claim)

    async def close(self) -> None:
        await self._inner.close()


async def run_gated(directory: Path, script: Any) -> None:
    volume = GatedVolume(directory)
    try:
        await script(volume)
    finally:
        await volume.close()


async def test_everything_of_one_iteration_joins_one_flush(tmp_path: Path) -> None:
    """Group commit without linger: one flush for what was appended before it started, one for
    what came concurrently."""

    async def script(volume: GatedVolume) -> None:
        async with open_writer(volume) as writer:
            volume.gate.clear()
            done: dict[int, RecordPlace] = {}
            for number in range(10):
                append_numbered(writer, number, done)
            await volume.started.wait()
            for number in range(10, 30):
                append_numbered(writer, number, done)
            assert done == {}
            volume.gate.set()
            await writer.barrier()
            assert (writer.flushes, volume.appended) == (2, 2)
            assert list(done) == list(range(30))
            assert writer.pending_bytes == 0

    await run_gated(tmp_path, script)


def test_places_lead_back_to_the_records(tmp_path: Path) -> None:
    """The place given to a callback is where a scan finds that record, and where its bytes are."""

    async def script(volume: PosixVolume) -> None:
        async with open_writer(volume) as writer:
            done: dict[int, RecordPlace] = {}
            for number in range(200):
                append_numbered(writer, number, done, size=900)
                if number % 7 == 0:
                    await writer.barrier()
            await writer.barrier()
            assert await read_numbers(volume, writer.position) == done
            encoded = numbered(150, 900)
            place = done[150]
            raw = await volume.read(
                names.log_file(INCARNATION, place.file), place.offset + encoded.entries_offset, 900
            )
            assert raw == encoded.buffers[1]
            assert place.file > 0

    run_on_volume(tmp_path, script)


def test_an_empty_append_runs_behind_what_was_appended_before(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        async with open_writer(volume) as writer:
            order: list[str] = []
            encoded = numbered(1)
            writer.append(encoded.buffers, encoded.size, 1, lambda _: order.append("record"))
            writer.append((), 0, 0, lambda _: order.append("empty"))
            assert order == []
            await writer.barrier()
            assert order == ["record", "empty"]
            position = writer.position
            await writer.barrier()
            assert writer.position == position, "a barrier writes nothing"

    run_on_volume(tmp_path, script)


def test_rolled_files_get_seal_and_index(tmp_path: Path) -> None:
    """Every file that was left is sealed at its end, indexed, and reported; closing seals the
    last and gives up the claim."""
    sealed: list[tuple[int, int, dict[str, list[int]]]] = []

    async def script(volume: PosixVolume) -> None:
        done: dict[int, RecordPlace] = {}
        async with open_writer(volume, on_sealed=lambda *file: sealed.append(file)) as writer:
            for number in range(0, 400, 4):
                append_numbered(writer, number, done, size=500, count=4)
                await writer.barrier()
            last = writer.position
        assert [file for file, _, _ in sealed if file <= last.file] == list(range(last.file + 1))
        for file, length, epochs in sealed:
            assert await read_seal(volume, INCARNATION, file) == length
            index = LevelZeroIndex.decode(
                await volume.read(names.index(INCARNATION, file)), "index"
            )
            assert (index.length, index.number, index.incarnation) == (length, file, INCARNATION)
            assert index.topics() == list(epochs)
            for number, place in done.items():
                found = index.find(TOPIC, 3, number + 2)
                assert (found is not None) == (place.file == file)
                if found is not None:
                    raw = await volume.read(names.log_file(INCARNATION, file), *found)
                    assert int.from_bytes(raw[:8], "little") == number + 2
                    assert len(raw) == 500
        assert not await volume.exists(names.claim(INCARNATION))
        assert await read_numbers(volume, None) == done

    run_on_volume(tmp_path, script)


def test_roll_goes_on_in_the_next_file(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        async with open_writer(volume) as writer:
            await writer.roll("nothing written yet")
            assert writer.position == LogPosition(0, FILE_HEADER_BYTES)
            done: dict[int, RecordPlace] = {}
            append_numbered(writer, 0, done)
            await writer.roll("test")
            assert writer.position == LogPosition(1, FILE_HEADER_BYTES)
            append_numbered(writer, 1, done)
            await writer.barrier()
            assert [place.file for place in done.values()] == [0, 1]

    run_on_volume(tmp_path, script)


@pytest.mark.parametrize(
    ("failure", "appends", "seal"),
    [(StorageError("EIO"), 2, FILE_HEADER_BYTES), (Fenced("claim gone"), 1, None)],
)
async def test_after_a_failure_nothing_is_acknowledged_any_more(
    tmp_path: Path, failure: StorageError, appends: int, seal: int | None
) -> None:
    """Neither what was under way, nor what waited, nor what comes later; the owner learns of it
    once.

    After a failed flush the same records are tried once more, in a file of their own; after a lost
    claim nothing is.
    """

    async def script(volume: GatedVolume) -> None:
        failures = Failures()
        writer = new_writer(volume, failures)
        await writer.open()
        done: dict[int, RecordPlace] = {}
        volume.gate.clear()
        append_numbered(writer, 0, done)
        await volume.started.wait()
        append_numbered(writer, 1, done)
        waiting = asyncio.ensure_future(writer.barrier())
        await asyncio.sleep(0)
        volume.failure = failure
        volume.gate.set()
        with pytest.raises(type(failure)):
            await waiting
        append_numbered(writer, 2, done)
        with pytest.raises(type(failure)):
            await writer.barrier()
        with pytest.raises(type(failure)):
            await writer.check_claim()
        await writer.close()
        assert (done, failures, volume.appended, writer.fenced) == ({}, [failure], appends, True)
        assert await read_seal(volume, INCARNATION, 0) == seal, (
            "a file that was not abandoned is sealed by the new owner"
        )

    await run_gated(tmp_path, script)


def test_an_idle_owner_finds_out_that_its_claim_is_gone(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        failures = Failures()
        writer = new_writer(volume, failures)
        await writer.open()
        await writer.check_claim()
        await volume.remove(names.claim(INCARNATION))
        with pytest.raises(Fenced):
            await writer.check_claim()
        assert len(failures) == 1
        await writer.close()

    run_on_volume(tmp_path, script)


@pytest.mark.parametrize("ask", [LogWriter.barrier, LogWriter.confirm])
def test_a_caller_that_waits_only_for_the_claim_gets_no_success_once_it_is_gone(
    tmp_path: Path, ask: Callable[[LogWriter], Awaitable[None]]
) -> None:
    """A former owner with nothing to write must not go on to report what it knows: neither a
    waiter nor an empty append gets through."""

    async def script(volume: PosixVolume) -> None:
        failures = Failures()
        writer = new_writer(volume, failures)
        await writer.open()
        await ask(writer)
        await volume.remove(names.claim(INCARNATION))
        through: list[RecordPlace] = []
        writer.append((), 0, 0, through.append)
        with pytest.raises(Fenced):
            await ask(writer)
        await writer.close()
        assert (through, len(failures)) == ([], 1)

    run_on_volume(tmp_path, script)


async def test_what_check_claim_finds_out_holds_for_a_write_under_way(tmp_path: Path) -> None:
    """An append that succeeds after the owner was found fenced is not acknowledged."""

    async def script(volume: GatedVolume) -> None:
        failures = Failures()
        writer = new_writer(volume, failures)
        await writer.open()
        done: dict[int, RecordPlace] = {}
        volume.gate.clear()
        append_numbered(writer, 0, done)
        await volume.started.wait()
        await volume.remove(names.claim(INCARNATION))
        with pytest.raises(Fenced):
            await writer.check_claim()
        await volume.put_if_absent(names.claim(INCARNATION), b"")
        volume.gate.set()
        await writer.close()
        assert done == {}

    await run_gated(tmp_path, script)


def test_an_incarnation_opens_its_log_once(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        async with open_writer(volume):
            with pytest.raises(StorageError, match="claim already"):
                await new_writer(volume, Failures()).open()

    run_on_volume(tmp_path, script)


def test_an_owner_whose_file_was_sealed_at_another_length_stops(tmp_path: Path) -> None:
    """Everybody adopts the first seal; an owner that wrote beyond it must not go on."""

    async def script(volume: PosixVolume) -> None:
        failures = Failures()
        writer = new_writer(volume, failures)
        await writer.open()
        done: dict[int, RecordPlace] = {}
        append_numbered(writer, 0, done)
        await writer.barrier()
        await publish_seal(volume, INCARNATION, 0, FILE_HEADER_BYTES)
        await writer.roll("test")
        await writer.close()
        assert len(failures) == 1
        assert "sealed at 4096" in str(failures[0])

    run_on_volume(tmp_path, script)


def test_an_owner_adopts_an_equal_seal(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        async with open_writer(volume) as writer:
            append_numbered(writer, 0, {})
            await writer.barrier()
            assert (
                await publish_seal(volume, INCARNATION, 0, writer.position.offset)
                == writer.position.offset
            )
            await writer.roll("test")

    run_on_volume(tmp_path, script)


async def test_limits_are_kept(tmp_path: Path) -> None:
    async def script(volume: GatedVolume) -> None:
        async with open_writer(volume, pending_bytes_max=10_000) as writer:
            volume.gate.clear()
            append_numbered(writer, 0, {}, size=6000)
            with pytest.raises(LimitExceeded, match="pending_bytes_max"):
                append_numbered(writer, 1, {}, size=6000)
            volume.gate.set()
            await writer.barrier()
            append_numbered(writer, 1, {}, size=6000)
        async with open_writer(PosixVolume(tmp_path / "other")) as writer:
            with pytest.raises(LimitExceeded, match="block_bytes_max"):
                append_numbered(writer, 0, {}, size=FILE_BYTES)

    await run_gated(tmp_path, script)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_caller_that_waits_for_the_disk_is_notified_once_it_has_caught_up(
    tmp_path: Path, fails: bool
) -> None:
    """Nobody has to look: at the flush that brings what is pending to the bound, or at the log's
    failure, after which nothing is flushed."""

    async def script(volume: GatedVolume) -> None:
        failures, notified = Failures(), list[int]()
        writer = new_writer(volume, failures)
        await writer.open()
        writer.when_at_most(0, lambda: notified.append(-1))
        assert notified == [], "nobody is called within its own call"
        await asyncio.sleep(0)
        assert notified == [-1]
        volume.gate.clear()
        append_numbered(writer, 0, {}, size=6000)
        await volume.started.wait()
        append_numbered(writer, 1, {}, size=6000)
        for most in (20_000, 7000, 0):
            writer.when_at_most(most, partial(notified.append, most))
        await asyncio.sleep(0)
        assert notified == [-1, 20_000]
        volume.failure = StorageError("no such disk") if fails else None
        volume.gate.set()
        with pytest.raises(StorageError) if fails else nullcontext():
            await writer.barrier()
        await asyncio.sleep(0)
        assert notified == [-1, 20_000, 7000, 0]
        await writer.close()
        assert bool(failures) == fails

    await run_gated(tmp_path, script)


def test_a_callback_that_raises_stops_the_log(tmp_path: Path) -> None:
    """A programmer's error must not leave a log that silently stands still."""

    async def script(volume: PosixVolume) -> None:
        failures = Failures()
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: reported.append(context)
        )
        writer = new_writer(volume, failures)
        await writer.open()
        encoded = numbered(0)
        writer.append(encoded.buffers, encoded.size, 1, lambda _: [][1])
        with pytest.raises(StorageError):
            await writer.barrier()
        await writer.close()
        assert len(failures) == len(reported) == 1

    run_on_volume(tmp_path, script)
