"""Walks over logs that recoveries share: everybody gets exactly its own, the log is read once,
and one's damage is not another's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from magnetar.broker.bundles.recovery import log_scans
from magnetar.broker.bundles.recovery.log_scans import LogScans
from magnetar.errors import CorruptData
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.fencing import SealedFile, fence
from magnetar.storage.log.format import EntriesRecord, encode_entries, encode_release
from magnetar.storage.log.recovery import ScannedRecord, scan
from magnetar.storage.log.seals import read_seal
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.volume import Volume
from tests.support.logs import INCARNATION, START, Failures, new_writer, open_writer, run_on_volume

TERMS = 20
ROUNDS = 12
SIZE = 2000


class CountingVolume(PosixVolume):
    """Counts the bytes that are read from log files."""

    bytes_read = 0

    async def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = await super().read(name, offset, length)
        if name.endswith(".log"):
            self.bytes_read += len(data)
        return bytes(data)


def record(term: int, number: int) -> tuple[list[bytes], int]:
    encoded = encode_entries(
        epoch=term,
        ledger=2 * term + 1,
        first_entry=number,
        append_ms=number,
        topic=f"persistent://public/default/t{term}".encode(),
        producer=b"p",
        message_counts=[1],
        sequences=[number],
        entries=[bytes(SIZE)],
    )
    return encoded.buffers, encoded.size  # type: ignore[return-value]


async def write_terms(
    volume: Volume, rounds: int = ROUNDS
) -> tuple[list[LogPosition], LogPosition]:
    """A log in which `TERMS` terms take turns; where each round begins, and where the log ends."""
    begins = []
    async with open_writer(volume) as writer:
        for number in range(rounds):
            begins.append(writer.position)
            for term in range(1, TERMS + 1):
                writer.append(*record(term, number), 1, None)
            await writer.barrier()
        end = writer.position
    return begins, end


def garbage_collector(found: list[int], term: int) -> log_scans.Take:
    def take(scanned: ScannedRecord) -> bool:
        assert isinstance(scanned.record, EntriesRecord)
        assert scanned.record.epoch == term
        found.append(scanned.record.first_entry)
        return False

    return take


def test_many_bundles_of_one_log_are_read_in_one_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody gets its term from its own start on; what is read from the volume does not grow
    with the number of readers."""
    monkeypatch.setattr(log_scans, "SHORT_BYTES_MAX", 0)

    async def script(_volume: PosixVolume) -> None:
        volume = CountingVolume(tmp_path)
        begins, end = await write_terms(volume)
        scans = LogScans(volume)
        await scans.read(INCARNATION, START, end, 1, lambda _scanned: False)
        once, volume.bytes_read = volume.bytes_read, 0
        found: dict[int, list[int]] = {term: [] for term in range(1, TERMS + 1)}
        starts = {term: begins[term % 5] for term in found}
        await asyncio.gather(
            *(
                scans.read(
                    INCARNATION, starts[term], end, term, garbage_collector(found[term], term)
                )
                for term in found
            )
        )
        assert found == {term: list(range(term % 5, ROUNDS)) for term in found}
        assert volume.bytes_read <= once
        await volume.close()

    run_on_volume(tmp_path, script)


def test_a_reader_that_leaves_does_not_disturb_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is cancelled, one has all of its term early: the third gets everything."""
    monkeypatch.setattr(log_scans, "SHORT_BYTES_MAX", 0)

    async def script(volume: PosixVolume) -> None:
        _, end = await write_terms(volume)
        scans, found, early = LogScans(volume), [], []  # type: ignore[var-annotated]

        def first_only(scanned: ScannedRecord) -> bool:
            early.append(scanned.record)
            return True

        leaving = asyncio.create_task(
            scans.read(INCARNATION, START, end, 1, lambda _scanned: leaving.cancel() and False)
        )
        await asyncio.gather(
            scans.read(INCARNATION, START, end, 2, first_only),
            scans.read(INCARNATION, START, end, 3, garbage_collector(found, 3)),
        )
        assert found == list(range(ROUNDS))
        assert len(early) == 1
        with pytest.raises(asyncio.CancelledError):
            await leaving

    run_on_volume(tmp_path, script)


def test_damage_before_a_bundle_begins_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two share a walk that meets a damaged block: only the one whose range holds it fails, the
    other is recovered."""
    monkeypatch.setattr(log_scans, "SHORT_BYTES_MAX", 0)

    async def script(volume: PosixVolume) -> None:
        begins, end = await write_terms(volume, rounds=4)
        assert end.file > 0, "the log has rolled"
        later = LogPosition(1, 0)
        expected: list[int] = []
        await LogScans(volume).read(INCARNATION, later, end, 2, garbage_collector(expected, 2))
        path = tmp_path / names.log_file(INCARNATION, 0)
        data = bytearray(path.read_bytes())
        data[begins[0].offset + 100] ^= 1
        path.write_bytes(data)
        scans, found = LogScans(volume), []  # type: ignore[var-annotated]
        outcomes = await asyncio.gather(
            scans.read(INCARNATION, START, end, 1, lambda _scanned: False),
            scans.read(INCARNATION, later, end, 2, garbage_collector(found, 2)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], CorruptData)
        assert outcomes[1] is None
        assert found == expected != []

    run_on_volume(tmp_path, script)


def test_an_incarnation_is_fenced_once_for_all_its_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same time and later; a fence that failed is tried again."""
    calls, failures = [], [OSError("the volume is unavailable")]

    async def counted(
        volume: Volume, incarnation: str, _known: Mapping[int, int]
    ) -> list[SealedFile]:
        calls.append(incarnation)
        if failures:
            raise failures.pop()
        return await fence(volume, incarnation)

    monkeypatch.setattr(log_scans, "fence", counted)

    async def script(volume: PosixVolume) -> None:
        _, end = await write_terms(volume)
        scans = LogScans(volume)
        with pytest.raises(OSError, match="unavailable"):
            await scans.fence(INCARNATION)
        sealed = await asyncio.gather(*(scans.fence(INCARNATION) for _ in range(100)))
        assert all(found == sealed[0] for found in [*sealed, await scans.fence(INCARNATION)])
        last = sealed[0].files[end.file]
        assert (last.number, last.length) == (end.file, end.offset)
        assert len(calls) == 2

    run_on_volume(tmp_path, script)


def test_of_a_live_log_only_what_is_durable_for_certain_is_read(tmp_path: Path) -> None:
    """The last block is deferred: its owner may not have flushed it, and may write it again
    elsewhere. The rest follows with the next read."""

    async def script(volume: PosixVolume) -> None:
        writer = new_writer(volume, Failures())
        await writer.open()
        ends = []
        for number in range(3):
            writer.append(*record(1, number), 1, None)
            await writer.barrier()
            ends.append(writer.position)
        scans, found = LogScans(volume), []  # type: ignore[var-annotated]
        reading = scans.read_live(INCARNATION, START, 1, garbage_collector(found, 1))
        assert await reading.reached() == ends[1]
        assert found == [0, 1]
        await scans.read(INCARNATION, ends[1], ends[2], 1, garbage_collector(found, 1))
        assert found == [0, 1, 2]
        await writer.close()

    run_on_volume(tmp_path, script)


def test_a_release_ends_a_live_read_at_the_end_of_its_block(tmp_path: Path) -> None:
    """What follows it in that term is void, and the position to go on from is one that a block
    begins at."""

    async def script(volume: PosixVolume) -> None:
        writer = new_writer(volume, Failures())
        await writer.open()
        writer.append(*record(1, 0), 1, None)
        released = encode_release(
            epoch=1, bundle="public/default/0x00000000_0x40000000", state=b"{}"
        )
        writer.append(released.buffers, released.size, 1, None)
        writer.append(*record(1, 1), 1, None)
        await writer.barrier()
        end = writer.position
        writer.append(*record(2, 0), 1, None)
        await writer.barrier()
        taken = []

        def take(scanned: ScannedRecord) -> bool:
            taken.append(scanned.record)
            return not isinstance(scanned.record, EntriesRecord)

        reading = LogScans(volume).read_live(INCARNATION, START, 1, take)
        assert (await reading.reached(), reading.over, len(taken)) == (end, True, 2)
        await writer.close()

    run_on_volume(tmp_path, script)


def test_a_read_that_is_cut_before_it_began_is_over_at_once(tmp_path: Path) -> None:
    """Nobody waits for a walk that others have under way."""

    async def script(volume: PosixVolume) -> None:
        await write_terms(volume)
        found: list[int] = []
        reading = LogScans(volume).read_live(INCARNATION, START, 1, garbage_collector(found, 1))
        reading.cut()
        assert await reading.reached() == START
        assert found == []

    run_on_volume(tmp_path, script)


def test_a_short_range_is_read_at_once_and_checked_all_the_same(tmp_path: Path) -> None:
    """What a move leaves to be read after RELEASE lies in one file: the same records as by a
    walk, and damage is named."""

    async def script(volume: PosixVolume) -> None:
        begins, end = await write_terms(volume, rounds=2)
        short, walked = [], []  # type: ignore[var-annotated]
        begin, part = begins[0], LogPosition(0, await read_seal(volume, INCARNATION, 0) or 0)
        assert end.file > 0
        scans = LogScans(volume)
        await scans.read(INCARNATION, begin, part, 3, garbage_collector(short, 3))
        async for scanned in scan(volume, INCARNATION, begin, part, {3}):
            assert isinstance(scanned.record, EntriesRecord)
            walked.append(scanned.record.first_entry)
        assert short == walked != []
        path = tmp_path / names.log_file(INCARNATION, 0)
        data = bytearray(path.read_bytes())
        data[begin.offset + 100] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptData, match="restore this file"):
            await scans.read(INCARNATION, begin, part, 3, lambda _scanned: False)

    run_on_volume(tmp_path, script)
