"""Topics in files for benchmarks of Spark, and how a query is timed.

Owns: the same messages as log files (level 0), segments (level 1) and Parquet, written without a
broker; `measure`. Imports: pyarrow, magnetar_jobs. Invariants: contents do not compress; segments
say of every row what decides about compaction, as a view does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from magnetar.clock import SystemClock
from magnetar.names import BundleName, TopicName
from magnetar.storage import names
from magnetar.storage.log.format import encode_entries
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.log.writer import LogWriter
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.format import IS_DECIDED, Row
from magnetar.storage.segments.segment import SegmentWriter
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.storage.volumes.volume import Volume
from magnetar.wire.entries import encode_entry
from magnetar.wire.pulsar_api_pb2 import MessageMetadata
from magnetar_jobs.inputs import BEFORE_ALL, LOG, Group, Piece, pack
from magnetar_jobs.planning import log_pieces, segment_pieces

TOPIC = TopicName.parse("persistent://public/default/bench")
BUNDLE = BundleName.parse("public/default/0x00000000_0xffffffff")
ENTRY_BYTES = 1024
RUN_ENTRIES = 128
SEGMENT_BYTES = 32 << 20
ROUNDS = 3


def rows(
    count: int, keys: int, entry_bytes: int = ENTRY_BYTES, key_bytes: int = 12
) -> Iterator[Row]:
    """Keyed entries with contents that do not compress."""
    noise = os.urandom(1 << 20)
    for number in range(count):
        key = f"key-{number * 2654435761 % keys:08d}".rjust(key_bytes, ".")
        metadata = MessageMetadata(
            producer_name="bench",
            sequence_id=number,
            publish_time=1_700_000_000_000 + number,
            partition_key=key,
        )
        start = number * 37 % (len(noise) - entry_bytes)
        payload = encode_entry(metadata, noise[start : start + entry_bytes - 60])
        at = metadata.publish_time
        yield Row(3, number, 0, at, at, 1, IS_DECIDED, key.encode(), payload)


async def write_level_zero(volume: PosixVolume, data: Iterator[Row]) -> list[Piece]:
    writer = LogWriter(
        volume, SystemClock(), "bench", on_fenced=lambda error: print(f"fenced: {error}")
    )
    await writer.open()
    run: list[Row] = []

    async def append() -> None:
        if run:
            encoded = encode_entries(
                epoch=1,
                ledger=3,
                first_entry=run[0].entry,
                append_ms=run[0].append_time,
                topic=str(TOPIC).encode(),
                producer=b"bench",
                message_counts=[1] * len(run),
                sequences=[row.entry for row in run],
                entries=[row.payload for row in run],
            )
            writer.append(encoded.buffers, encoded.size, 1, None)
            run.clear()
            if writer.pending_bytes > writer.pending_bytes_max // 2:
                await writer.barrier()

    for row in data:
        run.append(row)
        if len(run) == RUN_ENTRIES:
            await append()
    await append()
    await writer.barrier()
    await writer.close()
    pieces: list[Piece] = []
    for name in await volume.list(names.logs_of("bench")):
        if name.endswith(names.INDEX_SUFFIX):
            index = LevelZeroIndex.decode(await volume.read(name), name)
            file = names.log_file("bench", index.number)
            pieces += log_pieces(
                Piece(LOG, file, 0, 0, BEFORE_ALL, BEFORE_ALL, 0, 0),
                index,
                str(TOPIC),
                SEGMENT_BYTES,
            )
    return pieces


async def write_level_one(volume: Volume, data: Iterable[Row]) -> list[SegmentReference]:
    written = []
    for number, part in enumerate(_parts(data)):
        writer = SegmentWriter({"topic": str(TOPIC)})
        for row in part:
            writer.add(row)
        found, footer = writer.finish()
        name = names.segment(BUNDLE, f"bench-{number:04d}")
        await volume.put_if_absent(name, b"".join(found))
        written.append(SegmentReference.written(name, writer.length, footer))
    return written


def groups_of(references: Iterable[SegmentReference]) -> tuple[Group, ...]:
    """What the tasks of a job read of whole segments."""
    pieces = (piece for found in references for piece in segment_pieces(found, BEFORE_ALL))
    return pack(pieces, SEGMENT_BYTES)


def _parts(data: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows of a segment each."""
    part, size = list[Row](), 0
    for row in data:
        part.append(row)
        size += len(row.payload)
        if size >= SEGMENT_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def write_parquet(directory: Path, data: list[Row]) -> None:
    directory.mkdir()
    step = SEGMENT_BYTES // ENTRY_BYTES
    for number, start in enumerate(range(0, len(data), step)):
        part = data[start : start + step]
        columns = {
            "ledger": [row.ledger for row in part],
            "entry": [row.entry for row in part],
            "event_time": [row.event_time for row in part],
            "publish_time": [row.publish_time for row in part],
            "append_time": [row.append_time for row in part],
            "key": [row.key for row in part],
            "payload": [bytes(row.payload) for row in part],
        }
        pq.write_table(
            pa.table(columns),
            directory / f"{number:04d}.parquet",
            compression="none",
            use_dictionary=False,
        )


def measure(label: str, size: int, work: Callable[[], object]) -> float:
    """Best of ROUNDS, in MB/s of input."""
    best = min(_timed(work) for _ in range(ROUNDS))
    rate = size / best / 1e6
    print(f"{label:44} {best:8.2f} s {rate:8.0f} MB/s", flush=True)
    return rate


def _timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started
