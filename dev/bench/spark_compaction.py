"""`python -m dev.bench.spark_compaction [--mib 256]`: topic compaction on Spark, beside the plan that
carries payloads through the shuffle, on S3 beside a directory, and with keys that do not fit.

Owns: what is run, and the lines that compare. Imports: spark_inputs, dev.s3, magnetar_jobs.
Invariants: what is compared runs by turns in one process; the S3 server runs on the loopback;
times fail nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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
)
from dev.s3.server import CREDENTIALS, S3Server
from magnetar.clock import SystemClock
from magnetar.storage.volumes.opening import opened_at
from magnetar.storage.volumes.posix import PosixVolume
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.execution import CompactionOptions, compact_plan
from magnetar_jobs.group_reading import read_group
from magnetar_jobs.inputs import BEFORE_ALL, Group, pack
from magnetar_jobs.phases import newest_per_key
from magnetar_jobs.planning import CompactionPlan
from magnetar_jobs.session import SessionSettings, spark_session
from magnetar_jobs.source import MESSAGES, read_topic, register_source

COLUMNS = ("ledger", "entry", "key", "payload")
KEYS = 20_000
TURNS = 3
LARGE_KEY_BYTES, LARGE_ENTRY_BYTES = 4096, 128
HEAP_MIB, HEAPS = 512, 10
"""Keys of so many heaps' bytes."""


@dataclass(frozen=True, slots=True)
class Input:
    """A topic as a job reads it."""

    volume: str
    groups: tuple[Group, ...]
    entries: int
    size: int


async def write_directory(directory: Path, count: int) -> tuple[Input, Input]:
    """The topic as a view, and as log files."""
    data = list(rows(count, KEYS))
    size = sum(len(row.payload) for row in data)
    volume = PosixVolume(directory)
    zero, one = await write_level_zero(volume, iter(data)), await write_level_one(volume, data)
    await volume.close()
    view, logs = (
        Input(str(directory), groups, count, size)
        for groups in (groups_of(one), pack(zero, SEGMENT_BYTES))
    )
    return view, logs


async def write_view(location: str, count: int, keys: int, entry: int, key: int) -> Input:
    """A view only, in any volume; nothing is held in memory but a segment."""
    async with opened_at(location, SystemClock()) as volume:
        written = await write_level_one(volume, rows(count, keys, entry, key))
    return Input(location, groups_of(written), count, count * (entry + key))


def phase_one(messages: DataFrame) -> None:
    newest = newest_per_key(messages).persist(StorageLevel.MEMORY_AND_DISK)
    newest.count()
    newest.unpersist(blocking=True)


def by_payload_shuffle(session: SparkSession, topic: Input, directory: Path) -> None:
    """What compaction would cost with payloads in the shuffle: the naive plan."""
    frame = read_topic(session, topic.volume, str(TOPIC), topic.groups, columns=COLUMNS)
    position = F.struct("ledger", "entry")
    newest = frame.groupBy("key").agg(
        F.max_by(F.struct("ledger", "entry", "payload"), position).alias("kept")
    )
    newest.select("kept.*").write.mode("overwrite").parquet(str(directory))


def compact(session: SparkSession, topic: Input) -> None:
    """Both phases; what they wrote is removed."""
    plan = CompactionPlan(
        bundle=BUNDLE,
        topic=TOPIC,
        groups=topic.groups,
        horizon=(3, topic.entries - 1),
        news=True,
        generation=0,
        previous_horizon=BEFORE_ALL,
        trimmed=None,
        manifest_generation=0,
    )
    intent = f"bench-{time.monotonic_ns()}"
    written = compact_plan(session, topic.volume, plan, CompactionOptions(), intent)

    async def remove() -> None:
        async with opened_at(topic.volume, SystemClock()) as volume:
            for segment in written.segments:
                await volume.remove(segment.object)

    asyncio.run(remove())


def bytes_of_phase_one(topic: Input) -> int:
    """What phase 1 reads from the volume."""
    read = 0
    plain = PosixVolume.read

    async def counted(
        volume: PosixVolume, name: str, offset: int = 0, length: int | None = None
    ) -> bytes:
        nonlocal read
        found = await plain(volume, name, offset, length)
        read += len(found)
        return found

    with patch.object(PosixVolume, "read", counted):
        for group in topic.groups:
            for _ in read_group(
                topic.volume, str(TOPIC), group, Bounds(), metadata=False, deciding=True
            ):
                pass
    return read


def beside_the_payload_shuffle(session: SparkSession, view: Input, logs: Input) -> None:
    compact(session, view)  # warm: code generation, Python workers, page cache
    scratch = Path(view.volume).with_name("out")
    for label, topic in (("view", view), ("log files", logs)):
        naive = measure(
            f"{label}, payloads in the shuffle",
            topic.size,
            partial(by_payload_shuffle, session, topic, scratch),
        )
        messages = read_topic(session, topic.volume, str(TOPIC), topic.groups, view=MESSAGES)
        measure(f"{label}, phase 1 alone", topic.size, partial(phase_one, messages))
        whole = measure(f"{label}, whole", topic.size, partial(compact, session, topic))
        print(
            f"  {label}: x{whole / naive:.1f} of the payload shuffle (bar 2); phase 1 reads "
            f"{bytes_of_phase_one(topic) / topic.size:.1%} of the bytes (bar 5 % of a view)",
            flush=True,
        )


def beside_s3(session: SparkSession, directory: Path, count: int) -> None:
    """The same view on S3 and in a directory, by turns."""
    server = S3Server(directory)
    server.start()
    try:
        places = {"directory": str(directory / "beside-s3"), "S3": server.url("bench")}
        topics = {
            place: asyncio.run(write_view(location, count, KEYS, ENTRY_BYTES, 12))
            for place, location in places.items()
        }
        took: dict[str, list[float]] = {place: [] for place in topics}
        for _ in range(TURNS):
            for place, topic in topics.items():
                begun = time.monotonic()
                compact(session, topic)
                took[place].append(time.monotonic() - begun)
    finally:
        server.stop()
    for place, seconds in took.items():
        print(f"compacted, {place:34} {min(seconds):8.2f} s", flush=True)
    print(f"  S3: x{min(took['S3']) / min(took['directory']):.2f} of a directory (bar 1.3)")


def with_keys_that_do_not_fit(session: SparkSession, directory: Path) -> None:
    """Every key is kept, so nothing gets smaller on the way."""
    count = HEAPS * HEAP_MIB * (1 << 20) // LARGE_KEY_BYTES
    topic = asyncio.run(
        write_view(str(directory / "large"), count, count, LARGE_ENTRY_BYTES, LARGE_KEY_BYTES)
    )
    begun = time.monotonic()
    with resident_of_children() as peak:
        compact(session, topic)
    print(
        f"{count} keys, {count * LARGE_KEY_BYTES >> 20} MiB of them, heap {HEAP_MIB} MiB: "
        f"{time.monotonic() - begun:.0f} s, at most {peak[0] >> 20} MiB resident in all processes",
        flush=True,
    )


@contextmanager
def resident_of_children(every_s: float = 0.2) -> Iterator[list[int]]:
    """The greatest sum of resident bytes of all descendants, in a list of one."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(every_s):
            peak[0] = max(peak[0], sum(map(_resident, _descendants(os.getpid()))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _descendants(process: int) -> Iterator[int]:
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue  # it has ended
        for child in map(int, children):
            yield child
            if Path(f"/proc/{child}/task").exists():
                yield from _descendants(child)


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGESIZE"
        )
    except (OSError, IndexError):
        return 0


@contextmanager
def session_of(memory_mib: int) -> Iterator[SparkSession]:
    settings = replace(SessionSettings(name="compaction"), executor_memory_mib=memory_mib)
    with spark_session(settings) as session:
        register_source(session)
        yield session


def main() -> None:
    parser = argparse.ArgumentParser(description="Topic compaction on Spark.")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument(
        "--large-keys", action="store_true", help="only keys that do not fit (12 GiB of disk)"
    )
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="magnetar-compaction-", dir=chosen.directory))
    count = chosen.mib * (1 << 20) // ENTRY_BYTES
    os.environ.update(CREDENTIALS)  # before the session: its workers inherit them
    try:
        if chosen.large_keys:
            with session_of(HEAP_MIB) as session:
                with_keys_that_do_not_fit(session, directory)
            return
        view, logs = asyncio.run(write_directory(directory / "volume", count))
        with session_of(2048) as session:
            beside_the_payload_shuffle(session, view, logs)
            beside_s3(session, directory, count)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
