"""Log files made of dead ones: what an earlier incarnation left in them is never taken for
anything, and what cannot be recycled is created again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.blocks import FILE_HEADER_BYTES, block_seed
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.recovery import read_file_header
from magnetar.storage.log.writer import LogWriter, RecordPlace
from magnetar.storage.volumes.posix import PosixVolume
from tests.support.logs import (
    FILE_BYTES,
    INCARNATION,
    append_numbered,
    open_writer,
    read_numbers,
    run_on_volume,
)


async def fill(writer: LogWriter, done: dict[int, RecordPlace], file: int) -> None:
    """Append until `file` is behind us."""
    while writer.position.file <= file:
        append_numbered(writer, len(done), done, size=1500)
        await writer.barrier()


async def set_aside(volume: PosixVolume, writer: LogWriter, number: int) -> bool:
    """As the collector does with a file that nobody needs any more, once it is sealed."""
    await writer.roll("test")
    while not await volume.exists(names.index(INCARNATION, number)):
        await writer.barrier()
    aside = await writer.set_aside(number, FILE_BYTES)
    for name in (
        names.log_file(INCARNATION, number),
        names.index(INCARNATION, number),
        names.sealed(INCARNATION, number),
    ):
        await volume.remove(name)
    return aside


def test_a_file_made_of_a_dead_one_holds_nothing_but_what_was_written_to_it(tmp_path: Path) -> None:
    """The inode is the old one, full of intact blocks of an earlier file; scan and seal see only
    the new blocks, and where they end."""

    async def script(volume: PosixVolume) -> None:
        async with open_writer(volume, spares_max=1) as writer:
            done: dict[int, RecordPlace] = {}
            await fill(writer, done, 0)
            inode = (tmp_path / names.log_file(INCARNATION, 0)).stat().st_ino
            assert await set_aside(volume, writer, 0)
            assert not await volume.exists(names.log_file(INCARNATION, 0))
            first = writer.position.file
            while (
                tmp_path / names.log_file(INCARNATION, writer.position.file)
            ).stat().st_ino != inode:
                await fill(writer, done, writer.position.file)
            recycled = writer.position.file
            assert (await read_file_header(volume, INCARNATION, recycled)).number == recycled
            assert not await volume.exists(names.spare(INCARNATION, 0))
            append_numbered(writer, len(done), done)
            await writer.barrier()
            end = writer.position
            assert end.file == recycled
            expected = {number: place for number, place in done.items() if place.file >= first}
            assert await read_numbers(volume, None, LogPosition(first, 0)) == expected
            raw = await volume.read(names.log_file(INCARNATION, recycled), end.offset)
            assert any(raw), "there is something behind the end"
            await volume.remove(names.claim(INCARNATION))
            sealed = await fence(volume, INCARNATION)
            assert (sealed[-1].number, sealed[-1].length) in (
                (end.file, end.offset),
                (end.file + 1, FILE_HEADER_BYTES),
            )
            assert await read_numbers(volume, end, LogPosition(first, 0)) == expected
            await volume.put_if_absent(names.claim(INCARNATION), b"")

    run_on_volume(tmp_path, script)


def test_there_are_never_more_spares_than_allowed_and_a_planned_end_leaves_none(
    tmp_path: Path,
) -> None:
    async def script(volume: PosixVolume) -> None:
        async with open_writer(volume, spares_max=1) as writer:
            done: dict[int, RecordPlace] = {}
            await fill(writer, done, 3)
            assert [await set_aside(volume, writer, number) for number in (0, 1)] == [True, False]
            assert [name for name in await volume.list("logs") if name.endswith(".spare")] == [
                names.spare(INCARNATION, 0)
            ]
        assert not [name for name in await volume.list("logs") if name.endswith(".spare")]

    run_on_volume(tmp_path, script)


def test_a_file_that_was_left_early_is_not_worth_keeping(tmp_path: Path) -> None:
    """Sealing has given its space back."""

    async def script(volume: PosixVolume) -> None:
        async with open_writer(volume, spares_max=1) as writer:
            append_numbered(writer, 0, {})
            await writer.barrier()
            assert not await set_aside(volume, writer, 0)

    run_on_volume(tmp_path, script)


class Refusing(PosixVolume):
    """No file can be made of a spare one."""

    async def create_log_from(self, *_arguments: object) -> NoReturn:
        raise StorageError("creation failed: Input/output error")


@pytest.mark.parametrize("lost", [False, True], ids=["error", "spare gone"])
def test_what_cannot_be_recycled_is_created_as_a_new_file(tmp_path: Path, lost: bool) -> None:
    async def script(_volume: PosixVolume) -> None:
        volume = PosixVolume(tmp_path) if lost else Refusing(tmp_path)
        async with open_writer(volume, spares_max=1) as writer:
            done: dict[int, RecordPlace] = {}
            await fill(writer, done, 0)
            assert await set_aside(volume, writer, 0)
            if lost:
                await volume.remove(names.spare(INCARNATION, 0))
            first = writer.position.file
            await fill(writer, done, first + 2)
            expected = {number: place for number, place in done.items() if place.file >= first}
            assert await read_numbers(volume, None, LogPosition(first, 0)) == expected
            assert not await volume.exists(names.spare(INCARNATION, 0))
        await volume.close()

    run_on_volume(tmp_path, script)


@pytest.mark.parametrize(
    ("call", "length"),
    [("pread", 100_000), ("preadv", 1000)],
    ids=["in a thread", "from the page cache"],
)
def test_a_read_during_which_the_file_is_set_aside_finds_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, length: int
) -> None:
    """What it has in its hands may be of the file's next incarnation: it never gets out."""
    name, spare = names.log_file(INCARNATION, 0), names.spare(INCARNATION, 0)

    async def script(volume: PosixVolume) -> None:
        handle = await volume.create_log(name, FILE_BYTES, b"header")
        await handle.close()
        assert len(await volume.read(name, 0, 1000)) == 1000
        real: Callable[..., Any] = getattr(os, call)

        def late(*arguments: Any) -> Any:
            monkeypatch.setattr(os, call, real)
            os.rename(tmp_path / name, tmp_path / spare)
            (tmp_path / spare).write_bytes(b"another life" * 1000)
            return real(*arguments)

        monkeypatch.setattr(os, call, late)
        with pytest.raises(FileNotFoundError):
            await volume.read(name, 0, length if call == "preadv" else None)

    run_on_volume(tmp_path, script)


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_no_two_files_of_an_incarnation_share_the_start_of_their_checksums(
    first: int, second: int
) -> None:
    """CRC-32C maps the four bytes of the number one to one: it is no matter of luck that old
    blocks fail."""
    assert (block_seed(INCARNATION, first) == block_seed(INCARNATION, second)) == (first == second)
