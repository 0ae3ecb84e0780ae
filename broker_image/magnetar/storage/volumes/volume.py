"""What durable storage promises to the log.

Owns: the `Volume` protocol: a directory tree shared by every broker, coordinator and job of one
cluster. Imports: nothing. Implementations: `posix` (one file system), `slots` (S3, or links on a
file system that caches), the simulation's seeded disk. Names are relative paths with "/" (no
leading "/", no ".."). Invariants: what a method promises durable survives process and machine
failure once it returned; a name that is created by `put_if_absent` never changes its bytes
afterwards; every failure raises StorageError (Fenced where named), never returns quietly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview


class LogHandle(Protocol):
    """An open log file that one incarnation appends to."""

    @property
    def name(self) -> str: ...

    @property
    def capacity(self) -> int:
        """Bytes preallocated; appends must stay below."""
        ...

    @property
    def full(self) -> bool:
        """Whether the file should not get any more appends, whatever room is left in it."""
        ...

    async def append(self, offset: int, buffers: Sequence[Buffer], claim: str) -> None:
        """Write `buffers` back to back at `offset`, make them durable, *then* look for the file
        named `claim`.

        Returns only if all three succeeded in this order. Raises Fenced if the claim is absent or
        cannot be looked up, StorageError if the write or flush failed: after either the handle must
        not be used again (a failed flush is never retried). A volume whose `end_log` itself stops
        appends needs no look at the claim. One call at a time per handle; `offset` is where the
        last one ended, or the header did.
        """
        ...

    async def close(self) -> None:
        """Release the descriptor; the file stays."""
        ...


class Volume(Protocol):
    """Durable storage with POSIX-like names."""

    async def create_log(self, name: str, capacity: int, header: bytes) -> LogHandle:
        """Create `name` exclusively, preallocated with zeros, its first bytes `header`; name and
        header durable on return."""
        ...

    async def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Up to `length` bytes (all if None) from `offset`; shorter at the end of the file.

        Raises FileNotFoundError if absent, or set aside (see `Recycling`) before all of it was
        read.
        """
        ...

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create `name` with exactly `data`, atomically and durably; False if the name exists
        (then nothing changed)."""
        ...

    async def make_durable(self, name: str, offset: int, data: Buffer) -> None:
        """Write `data`, which the caller has just read there, over itself at `offset` and flush the
        file: all of it is durable on return.

        For the new owner of a log, which may see what its writer never flushed. Writing it again
        matters: after a flush that failed in another process the cache holds pages that are marked
        clean and yet are not on the disk. Raises StorageError.
        """
        ...

    async def shrink(self, name: str, length: int) -> None:
        """Give back the space behind `length` of a file that is sealed there; perhaps not
        durably. A missing file is left alone."""
        ...

    async def end_log(self, directory: str, lost: Collection[int] = ()) -> None:
        """Once this has returned, no append that has not been acknowledged by then ever will be, to
        any log file in `directory`, nor to one created there later.

        Called after the removal of the incarnation's claim: where appends look for that there is
        nothing to do. `lost`: numbers of files of which an operator accepts that parts are missing.
        Raises StorageError, after which nothing is known and it must be called again; CorruptData,
        having changed nothing, if a part of another open file is missing.
        """
        ...

    async def exists(self, name: str) -> bool:
        """Whether the name exists now (no cached attributes)."""
        ...

    async def remove(self, name: str) -> bool:
        """Unlink `name` durably (directory synced) before returning; False if it was not there
        (synced all the same)."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """Names of all files below the directory `prefix`, recursively, sorted; [] if the
        directory is not there."""
        ...


@runtime_checkable
class Recycling(Protocol):
    """Optional: a new log file out of a dead one, which saves writing zeros."""

    async def set_aside(self, name: str, spare: str, capacity: int) -> bool:
        """Give the log file `name` the new name `spare`, durably; False and no change if it is
        absent or not `capacity` bytes long."""
        ...

    async def create_log_from(self, spare: str, name: str, used: int, header: bytes) -> LogHandle:
        """As `Volume.create_log`, out of the file `spare`: behind `header` there is anything, up to
        `used`, and zeros from there on.

        No other name leads to the file while it is changed. Raises FileNotFoundError if `spare` is
        absent; after a failure `name` is not there.
        """
        ...


@runtime_checkable
class Reserving(Protocol):
    """Optional, of a volume with a limited size: space kept for everything but whole log files,
    used when there is none left."""

    async def has_room(self, size: int) -> bool:
        """Whether so many bytes are free now, without the reserve. Raises StorageError."""
        ...

    async def create_short_log(self, name: str, capacity: int, header: bytes) -> LogHandle:
        """As `Volume.create_log`, out of the reserve if need be, which `create_log` never
        touches."""
        ...

    async def refill_reserve(self) -> int:
        """Fill the reserve if there is space for all of it; how many bytes of it are missing.
        Raises StorageError."""
        ...


@runtime_checkable
class WholeAppends(Protocol):
    """Optional: an append is stored as a whole or not at all, so the end of a log is known without
    reading it."""

    async def appended_length(self, name: str) -> int:
        """Where the last append to a log file ended. Raises FileNotFoundError, StorageError;
        CorruptData if one before is missing."""
        ...
