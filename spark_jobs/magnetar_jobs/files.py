"""Synchronous reading and writing of a volume, for Spark's tasks.

Owns: `VolumeFiles`, which drives a volume of any kind from code without an event loop. Imports:
asyncio, clock, storage. Invariant: one event loop per task, ended with it; the volume's promises (durable on
return, errors typed) are passed through unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from magnetar.clock import SystemClock
from magnetar.storage.volumes.opening import volume_at


class VolumeFiles:
    """A volume for the length of a `with` block."""

    def __init__(self, location: str | Path) -> None:
        """`location`: a directory, or as `volumes.opening` spells others."""
        self._volume = volume_at(str(location), SystemClock())
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

    def range_of(self, name: str) -> Callable[[int, int], bytes]:
        """`read` bound to one file, as `SegmentReader` wants it."""
        return lambda offset, length: self.read(name, offset, length)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """As `Volume.put_if_absent`."""
        return self._loop.run_until_complete(self._volume.put_if_absent(name, data))
