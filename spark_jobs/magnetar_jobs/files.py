"""Synchronous reading and writing of a volume, for Spark's tasks.

Owns: `VolumeFiles`, which drives a `PosixVolume` from code without an event loop. Imports: asyncio,
storage. Invariant: one event loop per task, ended with it; the volume's promises (durable on
return, errors typed) are passed through unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from magnetar.storage.volumes.posix import PosixVolume


class VolumeFiles:
    """A volume for the length of a `with` block."""

    def __init__(self, root: Path) -> None:
        self._volume = PosixVolume(root)
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
