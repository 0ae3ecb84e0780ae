"""Synchronous reading and writing of a volume, for Spark's tasks.

Owns: `VolumeFiles`, which drives a volume of any kind from code without an event loop. Imports:
asyncio, clock, storage. Invariants: one event loop per task, ended with it; the volume's promises
(durable on return, errors typed) are passed through unchanged; what is read ahead is bounded, and
comes in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterable
from pathlib import Path
from types import TracebackType

from magnetar.clock import SystemClock
from magnetar.storage.volumes.opening import volume_at
from magnetar.storage.volumes.posix import PosixVolume

REQUEST_BYTES_MAX = 4 << 20
REQUESTS_AHEAD = 3
"""An object store answers each request after some time, whatever its size."""

_Range = tuple[int, int]


class VolumeFiles:
    """A volume for the length of a `with` block."""

    def __init__(self, location: str | Path) -> None:
        """`location`: a directory, or as `volumes.opening` spells others."""
        self._volume = volume_at(str(location), SystemClock())
        self._remote = not isinstance(self._volume, PosixVolume)
        # Not asyncio.Runner: its handling of SIGINT formats the finished task, result included, on
        # every call: 7 ms per MiB read.
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> VolumeFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run_until_complete(self._volume.close())
        self._loop.close()

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """As `Volume.read`."""
        return self._loop.run_until_complete(self._volume.read(name, offset, length))

    def read_each(self, name: str, ranges: Iterable[_Range]) -> Generator[memoryview, None, None]:
        """As `read`, for one (offset, length) after the other. An object store is asked for
        neighbours at once, and ahead of what is taken."""
        requests = _joined(ranges, REQUEST_BYTES_MAX if self._remote else 0)
        ahead = REQUESTS_AHEAD if self._remote else 0
        under_way: deque[tuple[list[_Range], asyncio.Task[bytes]]] = deque()
        try:
            for request in requests:
                start, stop = request[0][0], sum(request[-1])
                reading = self._loop.create_task(self._volume.read(name, start, stop - start))
                under_way.append((request, reading))
                if len(under_way) > ahead:
                    yield from self._parts(*under_way.popleft())
            while under_way:
                yield from self._parts(*under_way.popleft())
        finally:
            left = [reading for _, reading in under_way]
            for reading in left:
                reading.cancel()
            self._loop.run_until_complete(_ended(left))

    def _parts(
        self, request: list[_Range], reading: asyncio.Task[bytes]
    ) -> Generator[memoryview, None, None]:
        data = memoryview(self._loop.run_until_complete(reading))
        start = request[0][0]
        for offset, length in request:
            yield data[offset - start :][:length]

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """As `Volume.put_if_absent`."""
        return self._loop.run_until_complete(self._volume.put_if_absent(name, data))


def _joined(ranges: Iterable[_Range], bytes_max: int) -> Iterable[list[_Range]]:
    """Ranges that follow each other without a gap, up to `bytes_max` together."""
    joined: list[_Range] = []
    for offset, length in ranges:
        if joined and (offset != sum(joined[-1]) or offset + length - joined[0][0] > bytes_max):
            yield joined
            joined = []
        joined.append((offset, length))
    if joined:
        yield joined


async def _ended(tasks: Iterable[asyncio.Task[bytes]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
