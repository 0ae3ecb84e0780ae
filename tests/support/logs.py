"""Logs for tests.

Owns: records with numbers in them, a volume in a temporary directory, and ways to write and read
such logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from magnetar.clock import SystemClock
from magnetar.errors import StorageError
from magnetar.metadata.records import LogPosition
from magnetar.storage.log.format import EntriesRecord, encode_entries
from magnetar.storage.log.framing import Encoded
from magnetar.storage.log.recovery import scan
from magnetar.storage.log.writer import LogWriter, RecordPlace, Sealed
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.volume import Volume

INCARNATION = "broker-0.0123456789abcdef"
TOPIC = "persistent://public/default/t"
FILE_BYTES = 64 * 1024
CLOCK = SystemClock()
START = LogPosition(0, 0)


def run_on_volume(
    directory: Path, script: Callable[[PosixVolume], Coroutine[Any, Any, None]]
) -> None:
    """Run `script` with a volume in `directory`."""

    async def main() -> None:
        volume = PosixVolume(directory)
        try:
            await script(volume)
        finally:
            await volume.close()

    asyncio.run(main())


def numbered(
    number: int, size: int = 40, *, topic: str = TOPIC, ledger: int = 3, count: int = 1
) -> Encoded:
    """A run of `count` entries of `size` bytes, whose first eight are their numbers, from
    `number` on."""
    return encode_entries(
        epoch=1,
        ledger=ledger,
        first_entry=number,
        append_ms=1000 + number,
        topic=topic.encode(),
        producer=b"p",
        message_counts=[1] * count,
        sequences=list(range(number, number + count)),
        entries=[(number + i).to_bytes(8, "little").ljust(size, b".") for i in range(count)],
    )


class Failures(list[StorageError]):
    """What `on_fenced` was called with."""


def new_writer(
    volume: Volume, failures: Failures, *, on_sealed: Sealed | None = None, **options: int
) -> LogWriter:
    """A writer of small files."""
    options = {"file_bytes": FILE_BYTES, "block_bytes_max": FILE_BYTES // 4, **options}
    return LogWriter(
        volume, CLOCK, INCARNATION, on_fenced=failures.append, on_sealed=on_sealed, **options
    )


@asynccontextmanager
async def open_writer(
    volume: Volume, *, on_sealed: Sealed | None = None, **options: int
) -> AsyncIterator[LogWriter]:
    """A writer that must not fail."""
    failures = Failures()
    writer = new_writer(volume, failures, on_sealed=on_sealed, **options)
    await writer.open()
    yield writer
    await writer.close()
    assert failures == []


def append_numbered(
    writer: LogWriter, number: int, done: dict[int, RecordPlace], **shape: Any
) -> None:
    """Append a run; `done` gets its place once it is acknowledged."""
    encoded = numbered(number, **shape)
    writer.append(encoded.buffers, encoded.size, 1, lambda place: done.__setitem__(number, place))


async def read_numbers(
    volume: Volume, end: LogPosition | None, start: LogPosition = START
) -> dict[int, RecordPlace]:
    """Numbers of all runs in the log with their places; their order is checked."""
    found: dict[int, RecordPlace] = {}
    async for scanned in scan(volume, INCARNATION, start, end):
        record = scanned.record
        assert isinstance(record, EntriesRecord)
        found[int.from_bytes(record.data[:8], "little")] = scanned.place
    assert list(found) == sorted(found)
    return found
