"""Reading runs that lie near one another at once.

Owns: `LogSpan`, the bytes of one log file that a read has fetched, and how far ahead to fetch.
Imports: entry_index, storage. Why: a topic with a message now and then has one run per message,
between those of other topics. Read one by one, each costs a hop to a thread, 0.1 ms; read together,
1 ms per thousand. Invariants: no more than the asked number of bytes is held, unless one entry is
larger; a file that ends too early shows as too few bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from magnetar.broker.reading.entry_index import Run
from magnetar.storage.names import log_file
from magnetar.storage.volumes.volume import Volume

GAP_BYTES_MAX = 64 * 1024
"""Bytes of other topics between two runs that are read along."""


class LogSpan:
    """What has been fetched of one file, for one read of one topic."""

    __slots__ = ("_end", "_file", "_start", "_view", "_volume")

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._file = ("", -1)
        self._start = self._end = 0
        self._view = memoryview(b"")

    async def bytes_of(
        self, run: Run, start: int, end: int, ahead: Callable[[], int]
    ) -> memoryview:
        """The bytes [start, end) of a run's entries, fewer if the file ends before them; if they
        must be fetched, `ahead` says how many more.

        Raises StorageError, FileNotFoundError.
        """
        low, high = run.offset + start, run.offset + end
        if self._file != (run.incarnation, run.file) or not self._start <= low <= high <= self._end:
            data = await self._volume.read(
                log_file(run.incarnation, run.file), low, high - low + ahead()
            )
            self._file, self._view = (run.incarnation, run.file), memoryview(data)
            self._start, self._end = low, low + len(data)
        return self._view[low - self._start : high - self._start]


def bytes_ahead(runs: Sequence[Run], at: int, entries: int, bytes_max: int) -> int:
    """How much behind runs[at] in its file belongs to the `entries` that are wanted after it, or
    to others in between; at most `bytes_max`."""
    run = runs[at]
    begin = end = run.offset + run.bytes
    for index in range(at + 1, len(runs)):
        following = runs[index]
        if (
            entries <= 0
            or following.payload is not None
            or (following.incarnation, following.file) != (run.incarnation, run.file)
        ):
            break
        if following.offset < end:
            break  # a transaction's entries, sent before earlier ones of the partition
        if (
            following.offset - end > GAP_BYTES_MAX
            or following.offset + following.bytes - begin > bytes_max
        ):
            break
        end = following.offset + following.bytes
        entries -= following.count
    return end - begin
