"""What only the volume on a real file system can get wrong."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from magnetar.errors import StorageError
from magnetar.storage.volumes.coherence import LEFT_BEHIND_S, check_file_system, file_system_magic
from magnetar.storage.volumes.posix import READ_DIRECT_BYTES_MAX, TEMPORARY, PosixVolume
from magnetar.storage.volumes.posix_log import BUFFERS_PER_WRITE, ZERO_CHUNK_BYTES, write_fully
from magnetar.storage.volumes.worker import Worker
from tests.support.logs import run_on_volume


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a/", "a\0b", f"{TEMPORARY}/x"],
)
def test_no_name_leads_out_of_the_root(tmp_path: Path, name: str) -> None:
    async def script(volume: PosixVolume) -> None:
        for call in (
            volume.read(name),
            volume.put_if_absent(name, b""),
            volume.exists(name),
            volume.remove(name),
        ):
            with pytest.raises(StorageError, match="not valid"):
                await call
        with pytest.raises(StorageError, match="not valid"):
            await volume.create_log(name, 4096, b"")

    run_on_volume(tmp_path / "volume", script)


def test_zeros_never_cover_what_was_appended(tmp_path: Path) -> None:
    """Appends race with the filler over a whole file, also inside the chunk it is writing; the
    rest of the file is zeros."""
    capacity = 12 * ZERO_CHUNK_BYTES
    step = 150_000

    async def script(volume: PosixVolume) -> None:
        await volume.put_if_absent("claim", b"")
        handle = await volume.create_log("log", capacity, b"header")
        pattern = os.urandom(step)
        offset = 4096
        while offset + step <= capacity // 2:
            await handle.append(offset, [pattern], "claim")
            offset += step
        await handle.close()
        content = await volume.read("log")
        written = (offset - 4096) // step
        assert content == b"header".ljust(4096, b"\0") + pattern * written + bytes(
            capacity - offset
        )
        assert os.stat(tmp_path / "log").st_size == capacity

    run_on_volume(tmp_path, script)


async def test_a_log_that_is_collected_while_its_owner_creates_it_is_an_error_of_the_storage(
    tmp_path: Path,
) -> None:
    """The owner slept between two steps of it; what it gets is handled as any failed creation."""

    class Collected(PosixVolume):
        def _create_log(self, name: str, capacity: int, header: bytes) -> int:
            descriptor = super()._create_log(name, capacity, header)
            (tmp_path / name).unlink()
            return descriptor

    volume = Collected(tmp_path)
    with pytest.raises(StorageError, match="is gone"):
        await volume.create_log("log", 4096, b"header")
    await volume.close()


def test_large_reads_take_the_other_path_and_agree(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        data = os.urandom(READ_DIRECT_BYTES_MAX * 3)
        await volume.put_if_absent("f", data)
        assert await volume.read("f") == data
        assert (
            await volume.read("f", 5, READ_DIRECT_BYTES_MAX) == data[5 : 5 + READ_DIRECT_BYTES_MAX]
        )
        assert (
            await volume.read("f", 5, READ_DIRECT_BYTES_MAX + 1)
            == data[5 : 6 + READ_DIRECT_BYTES_MAX]
        )

    run_on_volume(tmp_path, script)


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    buffers = [bytes([number % 251]) * 200 for number in range(BUFFERS_PER_WRITE * 2 + 5)]
    write_fully(descriptor, 3, buffers)
    os.close(descriptor)
    assert (tmp_path / "f").read_bytes() == bytes(3) + b"".join(buffers)


def test_errors_of_the_disk_are_storage_errors(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        await volume.put_if_absent("file", b"")
        for call in (
            volume.put_if_absent("file/below", b""),
            volume.exists("file/below"),
            volume.read("file/below"),
        ):
            with pytest.raises(StorageError):
                await call

    run_on_volume(tmp_path, script)


def test_the_probe_accepts_this_disk_and_tidies_up(tmp_path: Path) -> None:
    volume = PosixVolume(tmp_path / "new")
    volume.probe_coherence()
    old, young = tmp_path / "new" / TEMPORARY / "1.2", tmp_path / "new" / TEMPORARY / "1.3"
    for path in (old, young):
        path.write_bytes(b"left behind")
    os.utime(old, (0, old.stat().st_mtime - LEFT_BEHIND_S - 60))
    volume.probe_coherence()
    assert list((tmp_path / "new" / TEMPORARY).iterdir()) == [young]


def test_file_systems_that_cache_attributes_are_refused() -> None:
    """NFS by name, and whatever is not known; the message says what to mount instead."""
    assert file_system_magic(Path("/proc")) == 0x9FA0
    for magic, name in ((0x6969, "NFS"), (0x9FA0, "unknown")):
        with pytest.raises(StorageError, match=rf"{name}.*ext4"):
            check_file_system(magic, Path("/data"))
    check_file_system(0x58465342, Path("/data"))


async def test_a_call_goes_on_when_its_caller_is_cancelled() -> None:
    """A flush that has begun must end before the next one begins, even if no caller waits."""

    worker = Worker("test")
    gate, entered, calls = threading.Event(), threading.Event(), []

    def first() -> None:
        entered.set()
        gate.wait()
        calls.append("first")

    cancelled = worker.submit(first)
    following = worker.submit(calls.append, "second")
    await asyncio.get_running_loop().run_in_executor(None, entered.wait)
    cancelled.cancel()
    gate.set()
    await following
    assert calls == ["first", "second"]
    with pytest.raises(ZeroDivisionError):
        await worker.submit(lambda: 1 // 0)
    worker.close()
