"""What is read of segments and log files, and that damage is noticed: no Spark needed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from magnetar.errors import CorruptData
from magnetar.storage.segments.format import IS_BATCH, IS_DECIDED, Row
from magnetar.storage.segments.segment import SegmentWriter
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.slots import SlotVolume
from magnetar_jobs import files
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.group_reading import read_group
from magnetar_jobs.inputs import LOG, SEGMENT, Group, Piece
from magnetar_jobs.planning import plan_topic
from magnetar_jobs.rows import message_batches
from tests.spark.histories import History, Sent
from tests.spark.topics import TOPIC, StoredTopic


@pytest.mark.slow
@pytest.mark.parametrize("where", ["log", "segment"])
def test_a_flipped_bit_is_an_error_and_never_a_message(tmp_path: Path, where: str) -> None:
    """Entries of log files are held against their client's checksum, blocks of segments against
    their own."""
    history = History(random.Random(2))
    for number in range(20):
        history.single(f"k{number}", b"payload" * 5)
    with StoredTopic(tmp_path / "volume") as topic:
        incarnation = topic.write(history.entries)
        if where == "segment":
            topic.rewrite(incarnation)
        (group,) = topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC)).groups
        assert {found.kind for found in group.pieces} == {LOG if where == "log" else SEGMENT}
        assert (
            sum(len(rows) for rows in read_group(topic.directory, str(TOPIC), group, Bounds()))
            == 20
        )
        path = topic.directory / group.pieces[0].object
        data = bytearray(path.read_bytes())
        data[data.index(history.entries[7].data) + 40] ^= 1
        path.chmod(0o640)
        path.write_bytes(data)
        with pytest.raises(CorruptData, match="checksum"):
            list(read_group(topic.directory, str(TOPIC), group, Bounds()))


@pytest.mark.parametrize("undecided", [False, True])
def test_phase_one_reads_the_key_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undecided: bool
) -> None:
    """The same messages as whole blocks hold, from at most a twentieth of their bytes. A block with
    an entry that the index does not decide is read as a whole, and so is one of which not every row
    counts."""
    history = History(random.Random(5))
    entries = [history.single(f"key-{number % 300}", b"v" * 1000) for number in range(4000)]
    if undecided:
        entries[1200] = history.batch([Sent("a", b"1"), Sent("b", b"2")])
    writer = SegmentWriter({})
    for number, entry in enumerate(entries):
        key = f"key-{number % 300}".encode()
        batched = undecided and number == 1200
        flags = IS_BATCH if batched else IS_DECIDED
        row_key = None if batched else key
        writer.add(Row(7, number, 0, 0, 0, 1, flags, row_key, bytes(entry.data)))
    pieces, footer = writer.finish()
    data = b"".join(pieces)
    (tmp_path / "segment").write_bytes(data)
    span = ((7, 10), (7, len(entries) - 1))
    whole = Piece(SEGMENT, "segment", 0, len(footer.blocks), *span, 1, 1, len(data), (7, 9))
    read: list[int] = []

    async def counted(
        volume: PosixVolume, name: str, offset: int = 0, length: int | None = None
    ) -> bytes:
        found = await reading(volume, name, offset, length)
        read.append(len(found))
        return found

    reading = PosixVolume.read
    monkeypatch.setattr(PosixVolume, "read", counted)

    def messages(*, deciding: bool) -> tuple[list[dict[str, Any]], int]:
        read.clear()
        group = Group(0, (whole,))
        stretches = read_group(
            tmp_path, str(TOPIC), group, Bounds(), metadata=False, deciding=deciding
        )
        found = [row for batch in message_batches(stretches, 0) for row in batch.to_pylist()]
        return found, sum(read)

    (expected, every_byte), (found, few) = messages(deciding=False), messages(deciding=True)
    assert found == expected
    whole_blocks = 2 if undecided else 1
    assert few - whole_blocks * footer.blocks[0].length < every_byte / 20


def test_ranges_come_in_order_and_a_reader_may_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store is asked for neighbours at once and for a bounded number of ranges ahead;
    what is under way when the reader stops is cancelled."""
    monkeypatch.setattr(files, "REQUEST_BYTES_MAX", 5)
    running = most = 0
    lengths: list[int | None] = []

    async def slow(volume: SlotVolume, name: str, offset: int, length: int | None) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        lengths.append(length)
        try:
            await asyncio.sleep(0.002 * (offset % 3))
            return await reading(volume, name, offset, length)
        finally:
            running -= 1

    reading = SlotVolume.read
    monkeypatch.setattr(SlotVolume, "read", slow)
    with files.VolumeFiles(f"link://{tmp_path}/objects") as found:
        assert found.put_if_absent("data", bytes(range(100)))
        ranges = [(at, 2) for at in range(0, 100, 2)]
        assert [bytes(part) for part in found.read_each("data", ranges)] == [
            bytes((at, at + 1)) for at in range(0, 100, 2)
        ]
        assert lengths == [4] * 25
        assert (most, running) == (files.REQUESTS_AHEAD + 1, 0)
        apart = [(0, 2), (3, 2), (5, 9), (1, 1)]
        lengths.clear()
        assert [part[0] for part in found.read_each("data", apart)] == [0, 3, 5, 1]
        assert lengths == [2, 2, 9, 1]
        some = found.read_each("data", ranges)
        assert next(some) == b"\0\1"
        some.close()
        assert running == 0
