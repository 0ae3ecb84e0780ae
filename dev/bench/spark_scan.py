"""How fast Spark reads and compacts what brokers store, against native Parquet of the same data in
the same run.

Owns: writing the data (level-0 log files, level-1 segments, Parquet), the queries, the table of
ratios. Imports: pyspark, pyarrow, magnetar_jobs. Run: python dev/bench/spark_scan.py [--mib 256]
[--keys 20000] [--master local[2]] [--directory DIR] Invariant: prints numbers of this run only;
compare rows with each other, not with other machines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from magnetar.clock import SystemClock
from magnetar.names import BundleName, TopicName
from magnetar.storage import names
from magnetar.storage.log.format import encode_entries
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.log.writer import LogWriter
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.format import Row
from magnetar.storage.segments.segment import SegmentWriter
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.wire.entries import encode_entry
from magnetar.wire.pulsar_api_pb2 import MessageMetadata
from magnetar_jobs.execution import CompactionOptions, compact_plan
from magnetar_jobs.inputs import BEFORE_ALL, LOG, Group, Piece, pack
from magnetar_jobs.phases import newest_per_key
from magnetar_jobs.planning import CompactionPlan, log_pieces, segment_pieces
from magnetar_jobs.session import SessionSettings, spark_session
from magnetar_jobs.source import MESSAGES, read_topic, register_source

TOPIC = TopicName.parse("persistent://public/default/bench")
BUNDLE = BundleName.parse("public/default/0x00000000_0xffffffff")
ENTRY_BYTES = 1024
RUN_ENTRIES = 128
SEGMENT_BYTES = 32 << 20
COLUMNS = ("ledger", "entry", "event_time", "publish_time", "append_time", "key", "payload")
ROUNDS = 3


def rows(count: int, keys: int) -> Iterator[Row]:
    """Entries of 1 KiB, keyed, with contents that do not compress."""
    noise = os.urandom(1 << 20)
    for number in range(count):
        key = f"key-{number * 2654435761 % keys:08d}"
        metadata = MessageMetadata(
            producer_name="bench",
            sequence_id=number,
            publish_time=1_700_000_000_000 + number,
            partition_key=key,
        )
        start = number * 37 % (len(noise) - ENTRY_BYTES)
        payload = encode_entry(metadata, noise[start : start + ENTRY_BYTES - 60])
        yield Row(
            3, number, 0, metadata.publish_time, metadata.publish_time, 1, 0, key.encode(), payload
        )


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


async def write_level_one(volume: PosixVolume, data: Iterator[Row]) -> list[Piece]:
    pieces: list[Piece] = []
    writer, parts, size, first, last = (
        SegmentWriter({"topic": str(TOPIC)}),
        list[bytes](),
        0,
        None,
        None,
    )

    async def finish() -> None:
        nonlocal writer, parts, size, first
        assert first is not None
        assert last is not None
        end, footer = writer.finish()
        segment = b"".join([*parts, *end])
        name = names.segment(BUNDLE, f"bench-{len(pieces):04d}")
        await volume.put_if_absent(name, segment)
        span = ((first.ledger, first.entry), (last.ledger, last.entry))
        pieces.extend(
            segment_pieces(
                SegmentReference(name, len(segment), footer.rows, size, *span), BEFORE_ALL
            )
        )
        writer, parts, size, first = SegmentWriter({"topic": str(TOPIC)}), [], 0, None

    for row in data:
        first, last = first or row, row
        writer.add(row)
        parts += writer.take()
        size += len(row.payload)
        if size >= SEGMENT_BYTES:
            await finish()
    if first is not None:
        await finish()
    return pieces


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


def scan(frame: DataFrame) -> None:
    """Touches every payload, returns two numbers."""
    frame.agg(F.sum(F.length("payload")), F.max("entry")).collect()


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


def by_payload_shuffle(frame: DataFrame, directory: Path) -> None:
    """What compaction would cost with payloads in the shuffle: the naive plan."""
    position = F.struct("ledger", "entry")
    newest = frame.groupBy("key").agg(
        F.max_by(F.struct("ledger", "entry", "payload"), position).alias("kept")
    )
    newest.select("kept.*").write.mode("overwrite").parquet(str(directory))


def phase_one(messages: DataFrame) -> None:
    newest = newest_per_key(messages).persist(StorageLevel.MEMORY_AND_DISK)
    newest.count()
    newest.unpersist(blocking=True)


def compact(session: SparkSession, directory: Path, groups: tuple[Group, ...], last: int) -> None:
    plan = CompactionPlan(
        bundle=BUNDLE,
        topic=TOPIC,
        groups=groups,
        horizon=(3, last),
        news=True,
        generation=0,
        previous_horizon=BEFORE_ALL,
        trimmed=None,
        manifest_generation=0,
    )
    written = compact_plan(
        session, directory, plan, CompactionOptions(), f"bench-{time.monotonic_ns()}"
    )
    for segment in written.segments:
        (directory / segment.object).unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", type=Path, default=None)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="magnetar-scan-", dir=options.directory))
    try:
        run(directory, options.mib * 1024, options.keys, options.master)
    finally:
        shutil.rmtree(directory)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The same messages as log files (level 0), segments (level 1) and Parquet."""

    directory: Path
    count: int
    size: int
    zero: tuple[Group, ...]
    one: tuple[Group, ...]

    @property
    def volume(self) -> Path:
        return self.directory / "volume"


def write_inputs(directory: Path, count: int, keys: int) -> Inputs:
    data = list(rows(count, keys))

    async def write() -> tuple[list[Piece], list[Piece]]:
        volume = PosixVolume(directory / "volume")
        zero = await write_level_zero(volume, iter(data))
        one = await write_level_one(volume, iter(data))
        await volume.close()
        return zero, one

    zero, one = (pack(pieces, SEGMENT_BYTES) for pieces in asyncio.run(write()))
    write_parquet(directory / "parquet", data)
    return Inputs(directory, count, sum(len(row.payload) for row in data), zero, one)


def scans(session: SparkSession, inputs: Inputs) -> None:
    """Each level, with two and with all columns, against native Parquet."""

    def level(groups: tuple[Group, ...], columns: tuple[str, ...]) -> DataFrame:
        return read_topic(session, inputs.volume, str(TOPIC), groups, columns=columns)

    few, size = ("entry", "payload"), inputs.size
    native = session.read.parquet(str(inputs.directory / "parquet"))
    frames = {
        "scan, level-1 (entry, payload)": level(inputs.one, few),
        "scan, level-1 (7 columns)": level(inputs.one, COLUMNS),
        "scan, level-0 (entry, payload)": level(inputs.zero, few),
        "scan, level-0 (7 columns, metadata parsed)": level(inputs.zero, COLUMNS),
    }
    scan(native)
    scan(level(inputs.one, few))  # warm: code generation, Python workers, page cache
    base = measure("scan, native Parquet (7 columns)", size, partial(scan, native))
    rates = {label: measure(label, size, partial(scan, found)) for label, found in frames.items()}
    for label, rate in rates.items():
        print(f"  {label}: {rate / base:.2f} of native Parquet")


def compactions(session: SparkSession, inputs: Inputs) -> None:
    """Each level, against the naive plan."""
    size, volume = inputs.size, inputs.volume
    every = read_topic(session, volume, str(TOPIC), inputs.one, columns=COLUMNS)
    shuffled = measure(
        "compact level-1, payloads in the shuffle",
        size,
        partial(by_payload_shuffle, every, inputs.directory / "out"),
    )
    for label, groups in (("level-1", inputs.one), ("level-0", inputs.zero)):
        messages = read_topic(session, volume, str(TOPIC), groups, view=MESSAGES)
        first = measure(f"compact {label}, phase 1 alone", size, partial(phase_one, messages))
        work = partial(compact, session, volume, groups, inputs.count - 1)
        whole = measure(f"compact {label}, whole", size, work)
        print(
            f"  {label}: phase 1 is {whole / first:.0%} of the time; {whole / shuffled:.2f} "
            "times the payload shuffle"
        )


def run(directory: Path, count: int, keys: int, master: str) -> None:
    inputs = write_inputs(directory, count, keys)
    print(
        f"{inputs.size / 1e6:.0f} MB, {count} entries, {keys} keys, {master}; level-0 "
        f"{len(inputs.zero)} groups, level-1 {len(inputs.one)} groups"
    )
    settings = replace(SessionSettings(name="scan", master=master), executor_memory_mib=2048)
    with spark_session(settings) as session:
        register_source(session)
        scans(session, inputs)
        compactions(session, inputs)


if __name__ == "__main__":
    main()
