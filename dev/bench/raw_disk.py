"""What the disk itself can do: the denominator of every figure.

Owns: measuring pwrite + fdatasync into a pre-zeroed file, as the log writes. Imports: the standard
library. Invariants: bounded in bytes and time; the file is removed; call it in the directory and at
the time of what it is compared with, because disks of shared machines change by the minute.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FILE_BYTES = 256 << 20
LARGE_WRITE_BYTES = 1 << 20
SMALL_WRITE_BYTES = 4 << 10
SECONDS_EACH = 1.5
WRITES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class RawDisk:
    """Bytes per second of 1 MiB writes, each flushed; milliseconds of a flushed 4 KiB write."""

    large_bytes_per_s: float
    small_p50_ms: float
    small_p99_ms: float


def measure(
    directory: Path, seconds: float = SECONDS_EACH, file_bytes: int = FILE_BYTES
) -> RawDisk:
    """Measure below `directory`: about twice `seconds` and the time to zero `file_bytes`."""
    path = directory / "raw-disk.bench"
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
    try:
        _zero(descriptor, file_bytes)
        large = _flushed_writes(descriptor, LARGE_WRITE_BYTES, file_bytes, seconds)
        small = sorted(_flushed_writes(descriptor, SMALL_WRITE_BYTES, file_bytes, seconds))
    finally:
        os.close(descriptor)
        path.unlink()
    return RawDisk(
        large_bytes_per_s=len(large) * LARGE_WRITE_BYTES / sum(large),
        small_p50_ms=percentile(small, 0.5) * 1000,
        small_p99_ms=percentile(small, 0.99) * 1000,
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the ascending values do not exceed."""
    assert ordered, "nothing was measured"
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def median_of(samples: Sequence[RawDisk]) -> RawDisk:
    """The median of each figure."""
    return RawDisk(
        statistics.median(sample.large_bytes_per_s for sample in samples),
        statistics.median(sample.small_p50_ms for sample in samples),
        statistics.median(sample.small_p99_ms for sample in samples),
    )


def _zero(descriptor: int, file_bytes: int) -> None:
    block = bytes(LARGE_WRITE_BYTES)
    for offset in range(0, file_bytes, LARGE_WRITE_BYTES):
        os.pwrite(descriptor, block, offset)
    os.fsync(descriptor)


def _flushed_writes(descriptor: int, size: int, file_bytes: int, seconds: float) -> list[float]:
    """Seconds of each write with its flush, one after another through the file and around."""
    block = os.urandom(size)
    durations: list[float] = []
    offset, now = 0, time.perf_counter()
    deadline = now + seconds
    while not durations or (now < deadline and len(durations) < WRITES_MAX):
        os.pwrite(descriptor, block, offset)
        os.fdatasync(descriptor)
        finished = time.perf_counter()
        durations.append(finished - now)
        offset = (offset + size) % file_bytes
        now = finished
    return durations
