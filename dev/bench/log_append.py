"""Speed of the log, of segments and of recovery on this machine.

Owns: the benchmark `python -m dev.bench.log_append [directory]`. Imports: the storage package,
uvloop. Prints, for runs of 1, 10 and 100 entries of 1 KiB with 128 entries in flight: throughput,
time from append to callback, processor time; the same bytes by bare pwrite + fdatasync in the same
run, so that ratios mean something on any disk. Nothing here passes or fails.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from magnetar.clock import SystemClock
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.format import encode_entries
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.log.recovery import scan
from magnetar.storage.log.writer import LogWriter, RecordPlace
from magnetar.storage.segments.format import Row
from magnetar.storage.segments.segment import SegmentReader, SegmentWriter
from magnetar.storage.volumes.posix import PosixVolume

ENTRY = memoryview(os.urandom(1024))
IN_FLIGHT = 128
SECONDS = 2.0
RAW_FLUSHES = 500
TOPIC = b"persistent://public/default/bench"
SEGMENT_ROWS = 20_000
POINT_READS = 20_000


class Load:
    """A closed loop of runs: each callback appends the next one until time is up."""

    def __init__(self, writer: LogWriter, run: int) -> None:
        self.writer, self.run = writer, run
        self.times: list[float] = []
        self.entry = 0
        self.left = max(1, IN_FLIGHT // run)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.deadline = time.perf_counter() + SECONDS

    def append(self) -> None:
        run, first, begun = self.run, self.entry, time.perf_counter()
        self.entry += run
        encoded = encode_entries(
            epoch=1,
            ledger=3,
            first_entry=first,
            append_ms=0,
            topic=TOPIC,
            producer=b"bench",
            message_counts=[1] * run,
            sequences=range(first, first + run),
            entries=[ENTRY] * run,
        )

        def durable(_place: RecordPlace) -> None:
            now = time.perf_counter()
            self.times.append(now - begun)
            if now < self.deadline:
                self.append()
                return
            self.left -= 1
            if not self.left:
                self.over.set_result(None)

        self.writer.append(encoded.buffers, encoded.size, 1, durable)


async def measure_appends(directory: Path, run: int) -> float:
    """Print one row; returns MB/s."""
    volume = PosixVolume(directory)
    incarnation = f"bench-{run}.0000000000000000"
    writer = LogWriter(volume, SystemClock(), incarnation, on_fenced=print)
    opening = time.perf_counter()
    await writer.open()
    opened = time.perf_counter() - opening
    load = Load(writer, run)
    begun, processor = time.perf_counter(), time.process_time()
    for _ in range(load.left):
        load.append()
    await load.over
    seconds, processor = time.perf_counter() - begun, time.process_time() - processor
    times = sorted(load.times)
    speed = load.entry * len(ENTRY) / seconds / 1e6
    print(
        f"runs of {run:3}: {load.entry / seconds:9.0f} entries/s {speed:6.0f} MB/s  p50 "
        f"{times[len(times) // 2] * 1e3:6.2f} ms  "
        f"p99 {times[len(times) * 99 // 100] * 1e3:6.2f} ms  {processor / load.entry * 1e6:5.2f} "
        "us of processor per entry  "
        f"{load.entry / writer.flushes:5.0f} entries per flush  open {opened * 1e3:.1f} ms"
    )
    await writer.close()
    await volume.close()
    return speed


def measure_raw(directory: Path) -> float:
    """MB/s of pwrite + fdatasync of 128 entries at a time into a file of zeros."""
    data = bytes(ENTRY) * IN_FLIGHT
    descriptor = os.open(directory / "raw", os.O_RDWR | os.O_CREAT)
    for number in range(RAW_FLUSHES):
        os.pwrite(descriptor, bytes(len(data)), number * len(data))
    os.fsync(descriptor)
    times = []
    begun = time.perf_counter()
    for number in range(RAW_FLUSHES):
        before = time.perf_counter()
        os.pwrite(descriptor, data, number * len(data))
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - before)
    seconds = time.perf_counter() - begun
    os.close(descriptor)
    speed = RAW_FLUSHES * len(data) / seconds / 1e6
    times.sort()
    print(
        f"bare pwrite + fdatasync of {IN_FLIGHT} KiB: {speed:.0f} MB/s  p50 "
        f"{times[len(times) // 2] * 1e3:.2f} ms"
    )
    return speed


async def measure_scan(directory: Path, run: int) -> None:
    volume = PosixVolume(directory)
    incarnation = f"bench-{run}.0000000000000000"
    sealed = await fence(volume, incarnation)
    begun = time.perf_counter()
    records = 0
    async for _ in scan(
        volume, incarnation, LogPosition(0, 0), LogPosition(sealed[-1].number, sealed[-1].length)
    ):
        records += 1
    seconds = time.perf_counter() - begun
    size = sum(file.length for file in sealed)
    index = LevelZeroIndex.decode(await volume.read(names.index(incarnation, 0)), "index")
    last = index.extent(TOPIC.decode()).last
    finding = time.perf_counter()
    for entry in range(0, last[1], max(1, last[1] // POINT_READS)):
        assert index.find(TOPIC.decode(), 3, entry) is not None
    found = (time.perf_counter() - finding) / len(range(0, last[1], max(1, last[1] // POINT_READS)))
    print(
        f"scan, runs of {run:3}: {size / seconds / 1e6:.0f} MB/s, {seconds / records * 1e6:.1f} us "
        f"per run; index look-up {found * 1e6:.1f} us"
    )
    await volume.close()


def measure_segments() -> None:
    writer = SegmentWriter({"topic": TOPIC.decode()})
    begun = time.perf_counter()
    for entry in range(SEGMENT_ROWS):
        writer.add(Row(3, entry * 2, entry, entry, entry, 1, 0, b"key-%d" % entry, ENTRY))
    parts, _ = writer.finish()
    data = memoryview(b"".join(parts))
    written = time.perf_counter() - begun
    reader = SegmentReader(
        lambda offset, length: data[offset : offset + length], len(data), "bench", 1024
    )
    begun = time.perf_counter()
    scanned = sum(block.count for block in reader.blocks())
    scanning = time.perf_counter() - begun
    assert scanned == SEGMENT_ROWS
    for number in range(len(reader.footer.blocks)):
        reader.block(number)
    begun = time.perf_counter()
    for number in range(POINT_READS):
        assert reader.find(3, number * 7919 % SEGMENT_ROWS * 2) is not None
    point = (time.perf_counter() - begun) / POINT_READS
    size = len(data) / 1e6
    print(
        f"segment: write {size / written:.0f} MB/s, scan {size / scanning:.0f} MB/s, point read "
        f"{point * 1e6:.1f} us from memory"
    )


def main() -> None:
    """Measure below the directory given, or below the system's temporary one."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        directory = Path(name)
        raw = measure_raw(directory)
        speeds = [uvloop.run(measure_appends(directory, run)) for run in (1, 10, 100)]
        print("ratio to bare: " + ", ".join(f"{speed / raw:.2f}" for speed in speeds))
        for run in (1, 100):
            uvloop.run(measure_scan(directory, run))
        measure_segments()


if __name__ == "__main__":
    main()
