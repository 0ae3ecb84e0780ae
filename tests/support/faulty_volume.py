"""A volume that misbehaves as its contract permits.

Owns: `FaultyVolume` and `VolumeFaults`. Imports: clock, errors, volume. Faults: a disk that is full
(before anything is written, or in the middle of an append), writes and flushes that fail, creations
that fail, reads that fail, files that are missing. Excluded: wrong bytes without an error (tests
damage files themselves), lost removals. Invariants: all chance comes from the clock; after a failed
append a handle refuses, as the contract says; what an operation had done before it failed stays
done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from magnetar.clock import Clock
from magnetar.errors import StorageError, StorageFull
from magnetar.storage.volumes.volume import Buffer, LogHandle, Volume


@dataclass(frozen=True, slots=True)
class VolumeFaults:
    """What goes wrong: probabilities per operation; `full`: nothing new can be written, and appends
    only into space that is reserved.

    `reserved` False: reserving space promises nothing, so that appends fail half-way on a full disk
    too.
    """

    write_error: float = 0.0
    flush_error: float = 0.0
    create_error: float = 0.0
    put_error: float = 0.0
    read_error: float = 0.0
    full: bool = False
    reserved: bool = True


class FaultyVolume:
    """`inner` on a bad disk. `faults` may be replaced at any time.

    `missing` says of which names nothing is there for readers, `worn` of which names reads may fail
    (all by default).
    """

    def __init__(self, inner: Volume, clock: Clock, faults: VolumeFaults | None = None) -> None:
        self.inner, self._clock = inner, clock
        self.faults = faults or VolumeFaults()
        self.missing: Callable[[str], bool] = lambda _name: False
        self.worn: Callable[[str], bool] = lambda _name: True
        self.struck = 0

    def strikes(self, probability: float) -> bool:
        """Whether a fault of this probability happens now."""
        happens = probability > 0 and self._clock.uniform(0, 1) < probability
        self.struck += happens
        return happens

    def check_space(self, what: str) -> None:
        """Raises StorageFull on a full disk."""
        if self.faults.full:
            self.struck += 1
            raise StorageFull(f"{what} failed: No space left on device (injected); free some")

    async def create_log(self, name: str, capacity: int, header: bytes) -> LogHandle:
        self.check_space(f"creation of log {name}")
        if self.strikes(self.faults.create_error):
            raise StorageError(f"creation of log {name} failed: Input/output error (injected)")
        return _FaultyHandle(self, await self.inner.create_log(name, capacity, header))

    async def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if self.missing(name):
            self.struck += 1
            raise FileNotFoundError(name)
        if self.worn(name) and self.strikes(self.faults.read_error):
            raise StorageError(f"read of {name} failed: Input/output error (injected)")
        return await self.inner.read(name, offset, length)

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        self.check_space(f"creation of {name}")
        if self.strikes(self.faults.put_error):
            raise StorageError(f"creation of {name} failed: Input/output error (injected)")
        return await self.inner.put_if_absent(name, data)

    async def make_durable(self, name: str, offset: int, data: Buffer) -> None:
        await self.inner.make_durable(name, offset, data)

    async def shrink(self, name: str, length: int) -> None:
        await self.inner.shrink(name, length)

    async def end_log(self, directory: str, lost: Collection[int] = ()) -> None:
        await self.inner.end_log(directory, lost)

    async def exists(self, name: str) -> bool:
        return not self.missing(name) and await self.inner.exists(name)

    async def remove(self, name: str) -> bool:
        return await self.inner.remove(name)

    async def list(self, prefix: str) -> list[str]:
        return [name for name in await self.inner.list(prefix) if not self.missing(name)]


class _FaultyHandle:
    """A log file on a bad disk."""

    def __init__(self, volume: FaultyVolume, inner: LogHandle) -> None:
        self._volume, self._inner = volume, inner
        self._failed = False

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def capacity(self) -> int:
        return self._inner.capacity

    @property
    def full(self) -> bool:
        return self._inner.full

    async def append(self, offset: int, buffers: Sequence[Buffer], claim: str) -> None:
        """As `LogHandle.append`; a failed write leaves a prefix, a failed flush leaves
        everything, and neither may be used again."""
        if self._failed:
            raise StorageError(f"log {self.name} failed before and is not written any more")
        volume, data = self._volume, b"".join(buffers)
        full = volume.faults.full and not volume.faults.reserved
        torn, unflushed = (
            volume.strikes(volume.faults.write_error),
            volume.strikes(volume.faults.flush_error),
        )
        if full or torn:
            self._failed = True
            await self._inner.append(offset, [data[: len(data) // 2]], claim)
            kind = StorageFull if full else StorageError
            raise kind(
                f"write of {len(data)} bytes to {self.name} at {offset} failed after "
                f"{len(data) // 2} (injected)"
            )
        await self._inner.append(offset, [data], claim)
        if unflushed:
            self._failed = True
            raise StorageError(
                f"flush of {self.name} failed: Input/output error (injected); the file is abandoned"
            )

    async def close(self) -> None:
        await self._inner.close()
