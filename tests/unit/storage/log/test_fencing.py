"""Takeover: whatever was acknowledged is below the seal; new owners agree; torn tails are cut and
damage is not."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from magnetar.clock import SystemClock
from magnetar.errors import CorruptData, Fenced, StorageError
from magnetar.metadata.records import LogPosition, LogRange
from magnetar.storage import names
from magnetar.storage.log.blocks import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FileHeader,
    block_seed,
    encode_block_header,
    encode_file_header,
)
from magnetar.storage.log.fencing import SealedFile, fence, lost_file, seal
from magnetar.storage.log.seals import publish_seal, read_seal
from magnetar.storage.log.writer import RecordPlace
from magnetar.storage.transactions.coordinator_log import read_changes
from magnetar.storage.volumes.posix import PosixVolume
from tests.support.logs import (
    INCARNATION,
    Failures,
    append_numbered,
    new_writer,
    open_writer,
    read_numbers,
    run_on_volume,
)

HEADER = encode_file_header(FileHeader(INCARNATION, 0, 0))


async def written_log(volume: PosixVolume, blocks: int) -> tuple[bytes, list[int]]:
    """The bytes of a log of single-record blocks up to its end, and where each block ends."""
    ends = [FILE_HEADER_BYTES]
    async with open_writer(volume) as writer:
        for number in range(blocks):
            append_numbered(writer, number, {})
            await writer.barrier()
            ends.append(writer.position.offset)
    return await volume.read(names.log_file(INCARNATION, 0), 0, ends[-1]), ends


def place_log(root: Path, data: bytes) -> None:
    """Put `data` where the incarnation's first log file is, without a seal."""
    path = root / names.log_file(INCARNATION, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    (root / names.sealed(INCARNATION, 0)).unlink(missing_ok=True)


def as_file_7(data: bytes, ends: list[int]) -> bytes:
    """Intact blocks at the same offsets, but written as the incarnation's file 7: what recycling
    leaves behind."""
    seed = block_seed(INCARNATION, 7)
    blocks = [
        (start, bytes(byte ^ 0xFF for byte in data[start + BLOCK_HEADER_BYTES : end]))
        for start, end in itertools.pairwise(ends)
    ]
    return HEADER + b"".join(
        encode_block_header(seed, start, 50 + start, 1, 1, body) + body for start, body in blocks
    )


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["cut", "zeros", "stale"])
def test_a_log_cut_at_any_byte_is_sealed_at_its_longest_valid_prefix(
    tmp_path: Path, tail: str
) -> None:
    """At every byte, followed by nothing, by zeros, or by what another log left there."""

    async def script(volume: PosixVolume) -> None:
        data, ends = await written_log(PosixVolume(tmp_path / "origin"), 3)
        stale = as_file_7(data, ends)
        for cut in range(FILE_HEADER_BYTES, len(data) + 1):
            place_log(
                tmp_path, data[:cut] + {"cut": b"", "zeros": bytes(500), "stale": stale[cut:]}[tail]
            )
            expected = max(end for end in ends if end <= cut)
            assert await seal(volume, INCARNATION, 0) == expected, cut
        assert list(await read_numbers(volume, None)) == [0, 1, 2]

    run_on_volume(tmp_path, script)


def test_blocks_of_another_incarnation_are_not_read(tmp_path: Path) -> None:
    """A recycled file that still holds an intact log of another incarnation is empty."""

    async def script(volume: PosixVolume) -> None:
        data, _ = await written_log(PosixVolume(tmp_path / "origin"), 3)
        other = "broker-9.0000000000000000"
        path = tmp_path / names.log_file(other, 0)
        path.parent.mkdir(parents=True)
        path.write_bytes(encode_file_header(FileHeader(other, 0, 0)) + data[FILE_HEADER_BYTES:])
        assert await seal(volume, other, 0) == FILE_HEADER_BYTES

    run_on_volume(tmp_path, script)


@pytest.mark.slow
def test_a_flipped_bit_is_an_error_and_never_a_shorter_log(tmp_path: Path) -> None:
    """Below a seal, and in an unsealed file wherever an intact block follows: acknowledged data
    is never quietly cut off."""

    async def script(volume: PosixVolume) -> None:
        data, ends = await written_log(PosixVolume(tmp_path / "origin"), 3)
        chance = random.Random(3)
        for at in range(FILE_HEADER_BYTES, ends[2]):
            damaged = bytearray(data)
            damaged[at] ^= 1 << chance.randrange(8)
            place_log(tmp_path, bytes(damaged) + bytes(100))
            with pytest.raises(CorruptData):
                await seal(volume, INCARNATION, 0)
            if at % 5 == 0:
                with pytest.raises(CorruptData):
                    await read_numbers(volume, LogPosition(0, len(data)))
                with pytest.raises(CorruptData):
                    await read_numbers(volume, None)

    run_on_volume(tmp_path, script)


@pytest.mark.parametrize(
    ("content", "length"),
    [(b"", 0), (HEADER[:100].ljust(8192, b"\0"), 0), (HEADER, 4096), (HEADER + bytes(9), 4096)],
)
def test_files_whose_owner_stopped_while_creating_them(
    tmp_path: Path, content: bytes, length: int
) -> None:
    """Without a whole header a file holds nothing; recovery passes over it."""

    async def script(volume: PosixVolume) -> None:
        place_log(tmp_path, content)
        assert await fence(volume, INCARNATION) == [SealedFile(0, length)]
        assert await read_numbers(volume, None) == {}

    run_on_volume(tmp_path, script)


def test_fencing_is_idempotent_and_new_owners_agree(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        failures = Failures()
        writer = new_writer(volume, failures)
        await writer.open()
        done: dict[int, RecordPlace] = {}
        for number in range(100):
            append_numbered(writer, number, done, size=2000)
            await writer.barrier()
        sealed = await asyncio.gather(
            *(fence(PosixVolume(tmp_path), INCARNATION) for _ in range(4))
        )
        assert all(found == sealed[0] for found in sealed)
        assert await fence(volume, INCARNATION) == sealed[0]
        assert await read_numbers(volume, None) == done
        append_numbered(writer, 100, done)
        await writer.close()
        assert len(failures) == 1
        assert 100 not in done

    run_on_volume(tmp_path, script)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(25))
def test_new_owners_race_with_a_live_writer(tmp_path: Path, seed: int) -> None:
    """Rolling and sealing go on while new owners fence: all that was acknowledged is read, every
    file has one length that all adopt."""

    async def script(volume: PosixVolume) -> None:
        chance = random.Random(seed)
        failures = Failures()
        writer = new_writer(volume, failures)
        await writer.open()
        done: dict[int, RecordPlace] = {}
        moment = chance.randrange(1, 120)
        new_owners: list[asyncio.Future[list[SealedFile]]] = []
        for number in itertools.count():
            append_numbered(writer, number, done, size=chance.randrange(8, 6000))
            if number == moment:
                new_owners = [
                    asyncio.ensure_future(fence(PosixVolume(tmp_path), INCARNATION))
                    for _ in range(3)
                ]
            await asyncio.sleep(0 if chance.random() < 0.5 else 0.0003)
            if failures:
                break
        taken = await asyncio.gather(*new_owners)
        await writer.close()
        # A file that the writer created after one new owner had looked is found by a later one;
        # nothing in it was acknowledged.
        most = max(taken, key=len)
        final = [
            SealedFile(file.number, await read_seal(volume, INCARNATION, file.number) or 0)
            for file in most
        ]
        assert all(found == final[: len(found)] for found in taken)
        for found in taken:
            read = await read_numbers(volume, LogPosition(found[-1].number, found[-1].length))
            assert done.items() <= read.items()
        assert len(failures) == 1

    run_on_volume(tmp_path, script)


def test_fencing_an_incarnation_that_never_was_is_harmless(tmp_path: Path) -> None:
    async def script(volume: PosixVolume) -> None:
        assert await fence(volume, f"broker-7.{SystemClock().random_bits(64):016x}") == []

    run_on_volume(tmp_path, script)


def test_an_owner_that_seals_a_file_that_was_taken_over_and_deleted_is_fenced(
    tmp_path: Path,
) -> None:
    """It slept through its own end: between its attempt and its look the new owner's seal went with
    the file."""

    async def script(volume: PosixVolume) -> None:
        assert await publish_seal(volume, INCARNATION, 0, 4096) == 4096
        real = volume.put_if_absent

        async def late(name: str, data: bytes) -> bool:
            written = await real(name, data)
            await volume.remove(name)
            return written

        volume.put_if_absent = late  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            await publish_seal(volume, INCARNATION, 0, 8192)

    run_on_volume(tmp_path, script)


def test_a_file_that_was_begun_and_is_gone_is_known_by_the_seal_before_it(tmp_path: Path) -> None:
    """Its owner has said so. A file that a new owner has sealed, or its owner at its end, is the
    last one as far as anybody knows."""

    async def script(volume: PosixVolume) -> None:
        sealed = asyncio.Event()
        writer = new_writer(volume, Failures(), on_sealed=lambda *_: sealed.set())
        await writer.open()
        append_numbered(writer, 0, {})
        await writer.roll("test")
        await asyncio.wait_for(sealed.wait(), 120)
        append_numbered(writer, 1, {})
        await writer.barrier()
        found = await fence(volume, INCARNATION)
        assert [file.number for file in found] == [0, 1]
        assert await lost_file(volume, INCARNATION, found) is None
        assert await lost_file(volume, INCARNATION, []) is None
        with pytest.raises(StorageError, match="fence again"):
            await lost_file(volume, INCARNATION, found[:1])
        await volume.remove(names.log_file(INCARNATION, 1))
        left = await fence(volume, INCARNATION)
        assert [file.number for file in left] == [0]
        assert await lost_file(volume, INCARNATION, left) == 1
        span = LogRange(INCARNATION, LogPosition(0, FILE_HEADER_BYTES), None)
        with pytest.raises(CorruptData, match=r"00000001\.log is missing"):
            [change async for change in read_changes(volume, 0, [span])]
        await writer.close()

    run_on_volume(tmp_path, script)


def test_a_log_that_its_owner_has_ended_goes_on_nowhere(tmp_path: Path) -> None:
    """Whether or not a spare was sealed with it."""

    async def script(volume: PosixVolume) -> None:
        await written_log(volume, 2)
        found = await fence(volume, INCARNATION)
        assert await lost_file(volume, INCARNATION, found[:1]) is None

    run_on_volume(tmp_path, script)


def test_a_log_that_is_shorter_than_it_is_known_to_have_been_is_not_sealed(tmp_path: Path) -> None:
    """Cut short from outside, or overwritten with zeros: a seal would make the loss final."""

    async def script(volume: PosixVolume) -> None:
        data, ends = await written_log(PosixVolume(tmp_path / "origin"), 3)
        for tail in (b"", bytes(5000)):
            place_log(tmp_path, data[: ends[1]] + tail)
            with pytest.raises(CorruptData, match=f"ends before {ends[2]}"):
                await fence(volume, INCARNATION, {0: ends[2]})
            assert await read_seal(volume, INCARNATION, 0) is None
        place_log(tmp_path, data)
        assert await fence(volume, INCARNATION, {0: ends[2]}) == [SealedFile(0, ends[3])]

    run_on_volume(tmp_path, script)
