"""`python -m dev.bench.message_scan [--mib 256]`: how fast the data source `magnetar` reads messages,
beside native Parquet of the same rows in the same run.

Owns: the stores that name the data, processor time per message with and without opening entries
together, and the table. Imports: spark_inputs, magnetar_jobs. Invariants: the same messages
as log files, segments and Parquet; every figure is of this run; times fail nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dev.bench.report import table
from dev.bench.spark_inputs import (
    BUNDLE,
    ENTRY_BYTES,
    SEGMENT_BYTES,
    TOPIC,
    groups_of,
    measure,
    rows,
    write_level_one,
    write_level_zero,
    write_parquet,
)
from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.backends.embedded import EmbeddedStore
from magnetar.metadata.records import NamespaceRecord, PartitionedTopicRecord
from magnetar.storage import names
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.manifest import (
    LevelZero,
    Manifest,
    TopicSegments,
    commit_manifest,
)
from magnetar.storage.volumes.posix import PosixVolume
from magnetar_jobs import unfolding
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.group_reading import read_group
from magnetar_jobs.inputs import Group, pack
from magnetar_jobs.session import SessionSettings, spark_session
from magnetar_jobs.topic_source import MagnetarDataSource
from magnetar_jobs.unfolding import MESSAGE_COLUMNS, Chunks, Selection, Unfolding

BAR = 0.9
ROUNDS = 5
FEW = ("entry", "value")


async def write_stores(directory: Path, count: int) -> dict[str, tuple[Group, ...]]:
    """The data, and for each level a store that names it; what each level's tasks read."""
    data = list(rows(count, 20_000))
    volume = PosixVolume(directory / "volume")
    zero = await write_level_zero(volume, iter(data))
    one = await write_level_one(volume, iter(data))
    indexes = [
        name
        for name in await volume.list(names.logs_of("bench"))
        if name.endswith(names.INDEX_SUFFIX)
    ]
    read = [LevelZeroIndex.decode(await volume.read(name), name) for name in indexes]
    files = tuple(LevelZero("bench", found.number, found.length, (1,)) for found in read)
    listed = {
        "level-0": partial(replace, level0=files),
        "level-1": partial(replace, topics={str(TOPIC): TopicSegments(level1=tuple(one))}),
    }
    for level, edit in listed.items():
        await _write_store(directory / level, volume, edit)
    await volume.close()
    write_parquet(directory / "parquet", data)
    return {"level-0": pack(zero, SEGMENT_BYTES), "level-1": groups_of(one)}


async def _write_store(
    directory: Path, volume: PosixVolume, edit: Callable[[Manifest], Manifest]
) -> None:
    store = await EmbeddedStore.open(directory, SystemClock())
    boundaries = (BUNDLE.low, BUNDLE.high)
    namespace = NamespaceRecord(boundaries, {})
    await store.put(keys.namespace(TOPIC.namespace_name), namespace.encode())
    await store.put(keys.partitioned_topic(TOPIC), PartitionedTopicRecord(0, {}).encode())
    await commit_manifest(store, volume, SystemClock(), BUNDLE, edit)
    await store.close()


def processor_us(directory: Path, groups: tuple[Group, ...], columns: tuple[str, ...]) -> float:
    """Of this process, to make Arrow batches of all messages; per message."""
    begun, found = time.process_time(), 0
    opening = Unfolding(str(TOPIC), None, columns, Selection(), Chunks())
    for group in groups:
        stretches = read_group(directory / "volume", str(TOPIC), group, Bounds(), metadata=False)
        found += sum(batch.num_rows for batch in opening.batches(stretches))
    return (time.process_time() - begun) / found * 1e6


def opened(directory: Path, levels: dict[str, tuple[Group, ...]]) -> str:
    """Processor time one by one and together, by turns; the best of each."""
    lines = []
    for level, groups in levels.items():
        for columns in (FEW, tuple(MESSAGE_COLUMNS)):
            alone, together = [], []
            for _ in range(ROUNDS):
                with patch.object(unfolding, "UNLIKE_MAX", 0):
                    alone.append(processor_us(directory, groups, columns))
                together.append(processor_us(directory, groups, columns))
            ratio = min(alone) / min(together)
            lines.append(
                [f"{level}, {len(columns)} columns", "us per message", f"{min(alone):.2f}",
                 f"{min(together):.2f}", f"x{ratio:.1f}"]
            )  # fmt: skip
    return table(["opened", "", "one by one", "together", "ratio"], lines)


def scans(session: SparkSession, directory: Path, levels: Sequence[str], size: int) -> None:
    """Each level, with two and with all columns, beside native Parquet."""
    session.dataSource.register(MagnetarDataSource)

    def messages(level: str, columns: tuple[str, ...]) -> DataFrame:
        options = {
            "topic": str(TOPIC),
            "volume": str(directory / "volume"),
            "store": f"embedded://{directory / level}",
            "roll": "false",
            "columns": ",".join(columns),
        }
        return session.read.format("magnetar").options(**options).load()

    def scan_messages(frame: DataFrame) -> None:
        frame.agg(F.sum(F.length("value")), F.max("entry")).collect()

    def scan(frame: DataFrame) -> None:
        frame.agg(F.sum(F.length("payload")), F.max("entry")).collect()

    native = session.read.parquet(str(directory / "parquet"))
    scan(native)
    for level in levels:
        scan_messages(messages(level, FEW))
    base = measure("native Parquet", size, partial(scan, native))
    for level in levels:
        for columns in (FEW, tuple(MESSAGE_COLUMNS)):
            frame = messages(level, columns)
            label = f"messages, {level}, {len(columns)} columns"
            rate = measure(label, size, partial(scan_messages, frame))
            print(f"  {rate / base:.2f} of native Parquet (bar {BAR})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Reading messages beside native Parquet.")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--directory", type=Path, default=None)
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="magnetar-messages-", dir=chosen.directory))
    try:
        count = chosen.mib * (1 << 20) // ENTRY_BYTES
        levels = asyncio.run(write_stores(directory, count))
        print(opened(directory, levels), flush=True)
        settings = replace(
            SessionSettings(name="messages", master=chosen.master), executor_memory_mib=2048
        )
        with spark_session(settings) as session:
            scans(session, directory, list(levels), count * ENTRY_BYTES)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
