"""A volume on a POSIX file system.

Owns: `PosixVolume`: durable creation, removal and reading of files below one directory. Imports:
asyncio, os, errors, reserve, siblings. Invariants: a name appears complete or not at all (temporary
file, flush, link), and a change of a directory is flushed before it is reported; no name leads out
of the root; no call blocks the event loop on the disk; reads do not wait for writes that hang;
every OSError but a missing file becomes a StorageError; on a full disk whatever is created, except
for whole log files, takes its space from the reserve.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from magnetar.errors import StorageError, StorageFull
from magnetar.reserve import NO_SPACE, RESERVE, Reserve, free_bytes
from magnetar.storage.names import LOG_SUFFIX
from magnetar.storage.volumes.coherence import probe_coherence
from magnetar.storage.volumes.directories import Directories, sync_directory
from magnetar.storage.volumes.posix_log import (
    ZERO_START_BYTES,
    PosixLogHandle,
    ZeroFiller,
    write_fully,
)
from magnetar.storage.volumes.volume import Buffer

T = TypeVar("T")

TEMPORARY = ".temporary"
READ_THREADS = 4
WRITE_THREADS = 4
READ_DIRECT_BYTES_MAX = 256 * 1024


class PosixVolume:
    """The `Volume` below the directory `root`, which must be on a coherent file system (see
    `probe_coherence`).

    `reserve_bytes` of it are kept for what must continue when it is full; a process that gives none
    (a job) uses none either.
    """

    def __init__(self, root: Path, reserve_bytes: int = 0) -> None:
        self._root = root
        self._base = f"{root}/"
        self._reserve = Reserve(f"{root}/{TEMPORARY}/{RESERVE}", reserve_bytes)
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="volume")
        self._writers = ThreadPoolExecutor(WRITE_THREADS, thread_name_prefix="volume write")
        self._filler = ZeroFiller()
        self._temporary_numbers = itertools.count()
        self._directories = Directories(str(root))
        self._written_directories: set[str] = set()  # one per incarnation of this process

    def probe_coherence(self) -> None:
        """Refuse a file system on which the fence would not hold. Creates the root. Raises
        StorageError saying what to do."""
        with _translated(f"probe of {self._root}"):
            self._reserve.spend(probe_coherence, self._root, self._root / TEMPORARY)

    async def close(self) -> None:
        """Stop the threads; open log handles must be closed first."""
        self._filler.close()
        self._readers.shutdown(wait=False)
        self._writers.shutdown(wait=False)

    # --- the interface ----------------------------------------------------------------------------

    async def create_log(self, name: str, capacity: int, header: bytes) -> PosixLogHandle:
        """As `Volume.create_log`; zeros are written in the background, ahead of the appends."""
        assert len(header) <= capacity, (name, len(header), capacity)
        descriptor = await self._in_pool(self._create_log, name, capacity, header)
        return self._opened(name, descriptor, capacity, header)

    async def create_short_log(self, name: str, capacity: int, header: bytes) -> PosixLogHandle:
        """As `Reserving.create_short_log`."""
        descriptor = await self._in_pool(self._create_short_log, name, capacity, header)
        return self._opened(name, descriptor, capacity, header)

    async def has_room(self, size: int) -> bool:
        return await self._in_pool(self._free) >= size

    async def refill_reserve(self) -> int:
        return await self._in_pool(self._refill)

    def _opened(self, name: str, descriptor: int, capacity: int, header: bytes) -> PosixLogHandle:
        # Who writes a second log beside the first has need of it: zero all of it before the appends
        # come, in an inode they do not flush yet.
        directory = os.path.dirname(name)
        zero_bytes = capacity if directory in self._written_directories else ZERO_START_BYTES
        self._written_directories.add(directory)
        try:
            return PosixLogHandle(
                name, descriptor, capacity, len(header), self._base, self._filler, zero_bytes
            )
        except OSError as error:
            os.close(descriptor)
            # An owner that was suspended finds its file fenced, sealed and collected.
            raise StorageError(
                f"log {name} is gone while it was created ({error.strerror}); start with a new "
                "incarnation"
            ) from error

    async def set_aside(self, name: str, spare: str, capacity: int) -> bool:
        return await self._in_pool(self._set_aside, name, spare, capacity)

    async def create_log_from(
        self, spare: str, name: str, used: int, header: bytes
    ) -> PosixLogHandle:
        """As `Recycling.create_log_from`; the rest gets its zeros in the background."""
        descriptor, capacity = await self._in_pool(self._create_log_from, spare, name, header)
        return PosixLogHandle(
            name, descriptor, capacity, len(header), self._base, self._filler, capacity, used
        )

    async def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """As `Volume.read`; what is in the page cache comes without a hop to a thread."""
        if length is not None and length <= READ_DIRECT_BYTES_MAX:
            found = self._read_cached(name, offset, length)
            if found is not None:
                return found
        return await self._in_pool(self._read, name, offset, length, pool=self._readers)

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        return await self._in_pool(self._put_if_absent, name, data)

    async def make_durable(self, name: str, offset: int, data: Buffer) -> None:
        await self._in_pool(self._make_durable, name, offset, data)

    async def shrink(self, name: str, length: int) -> None:
        await self._in_pool(self._shrink, name, length)

    async def end_log(self, directory: str, lost: Collection[int] = ()) -> None:
        """Nothing to do: every append looks for its claim."""

    async def exists(self, name: str) -> bool:
        path = self._path(name)
        with _translated(f"look-up of {name}"):
            try:
                os.stat(path)
            except FileNotFoundError:
                return False
        return True

    async def remove(self, name: str) -> bool:
        return await self._in_pool(self._remove, name)

    async def list(self, prefix: str) -> list[str]:
        return await self._in_pool(self._list, prefix, pool=self._readers)

    # --- in threads -------------------------------------------------------------------------------

    async def _in_pool(
        self, call: Callable[..., T], *arguments: Any, pool: ThreadPoolExecutor | None = None
    ) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            pool or self._writers, call, *arguments
        )

    def _path(self, name: str) -> str:
        parts = name.split("/")
        if (
            not name
            or "\0" in name
            or not {"", ".", ".."}.isdisjoint(parts)
            or parts[0] == TEMPORARY
        ):
            raise StorageError(
                f"name {name!r} is not valid in a volume; use relative names without empty, . and "
                ".. parts"
            )
        return self._base + name

    def _create_log(self, name: str, capacity: int, header: bytes) -> int:
        path = self._path(name)
        with _translated(f"creation of log {name}"):
            return self._create_allocated(path, capacity, header)

    def _create_short_log(self, name: str, capacity: int, header: bytes) -> int:
        path = self._path(name)
        with _translated(f"creation of log {name}"):
            return self._reserve.spend(self._create_allocated, path, capacity, header)

    def _create_allocated(self, path: str, capacity: int, header: bytes) -> int:
        """A new file with its space and its header; after a failure neither it nor a directory
        that was made for it is there."""
        directory = os.path.dirname(path)
        self._directories.create(directory)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            try:
                os.posix_fallocate(descriptor, 0, capacity)
                write_fully(descriptor, 0, [header])
                os.fdatasync(descriptor)
                sync_directory(directory)
            except OSError:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(path)  # else the next attempt would find the name taken
                raise
        except OSError:
            self._directories.remove_if_empty(directory)
            raise
        return descriptor

    def _free(self) -> int:
        with _translated("look at the free space"):
            return free_bytes(self._base)

    def _refill(self) -> int:
        with _translated("filling of the reserve"):
            self._directories.create(f"{self._base}{TEMPORARY}")
            return self._reserve.refill()

    def _set_aside(self, name: str, spare: str, capacity: int) -> bool:
        path, aside = self._path(name), self._path(spare)
        with _translated(f"setting aside of {name}"):
            try:
                if os.stat(path).st_size != capacity:
                    return False
            except FileNotFoundError:
                return False
            os.rename(path, aside)
            sync_directory(os.path.dirname(path))
        return True

    def _create_log_from(self, spare: str, name: str, header: bytes) -> tuple[int, int]:
        path, aside = self._path(name), self._path(spare)
        with _translated(f"creation of log {name} from {spare}"):
            descriptor = os.open(aside, os.O_RDWR | os.O_CLOEXEC)
            linked = False
            try:
                # before it is a log: a new owner that finds one shortens it
                capacity = os.fstat(descriptor).st_size
                write_fully(descriptor, 0, [header])
                os.fdatasync(descriptor)
                os.link(aside, path)  # a name is never taken over, as a rename would
                linked = True
                os.unlink(aside)
                sync_directory(os.path.dirname(path))
            except OSError:
                os.close(descriptor)
                if linked:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                raise
            return descriptor, capacity

    def _read_cached(self, name: str, offset: int, length: int) -> bytes | None:
        """The bytes if all of them are in the page cache, else None."""
        path = self._path(name)
        buffer = bytearray(length)
        with _translated(f"read of {name}"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT)
                # Short means the end of the file or the end of what is cached; only the latter
                # needs a thread.
                if found < length and os.fstat(descriptor).st_size > offset + found:
                    return None
                _check_name(descriptor, path)
            except FileNotFoundError:
                raise
            except OSError:  # not cached, or a file system without non-blocking reads
                return None
            finally:
                os.close(descriptor)
        return bytes(memoryview(buffer)[:found])

    def _read(self, name: str, offset: int, length: int | None) -> bytes:
        path = self._path(name)
        with _translated(f"read of {name}"), open(path, "rb", buffering=0) as file:
            left = max(0, os.fstat(file.fileno()).st_size - offset)
            left = left if length is None else min(left, length)
            parts = []
            while left > 0:
                part = os.pread(file.fileno(), left, offset)
                if not part:
                    break
                parts.append(part)
                offset += len(part)
                left -= len(part)
            _check_name(file.fileno(), path)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._path(name)
        directory = os.path.dirname(path)
        with _translated(f"creation of {name}"):
            created = self._reserve.spend(self._link_new, path, data)
            # Also when the name was there: its creator may not have flushed the directory yet, and
            # the caller is about to rely on it.
            sync_directory(directory)
        return created

    def _link_new(self, path: str, data: bytes) -> bool:
        """Write a new file and give it a name that is free; False if it was not. An OSError
        leaves nothing under the name."""
        self._directories.create(os.path.dirname(path))
        temporary, descriptor = self._open_temporary()
        try:
            try:
                write_fully(descriptor, 0, [data])
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            try:
                os.link(temporary, path)
            except FileExistsError:
                # A network file system may have repeated a request whose answer was lost: then it
                # is the own file that is there.
                return _identity(temporary) == _identity(path)
        finally:
            os.unlink(temporary)
        return True

    def _open_temporary(self) -> tuple[str, int]:
        """A new file that no list shows. Exclusive creation keeps it apart, whatever other
        processes number theirs."""
        directory = f"{self._base}{TEMPORARY}"
        self._directories.create(directory)
        while True:
            path = f"{directory}/{os.getpid()}.{next(self._temporary_numbers)}"
            with contextlib.suppress(FileExistsError):
                return path, os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640
                )

    def _make_durable(self, name: str, offset: int, data: Buffer) -> None:
        with _translated(f"flush of {name}"):
            self._reserve.spend(self._write_again, self._path(name), offset, data)

    @staticmethod
    def _write_again(path: str, offset: int, data: Buffer) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            write_fully(descriptor, offset, [data])
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def _shrink(self, name: str, length: int) -> None:
        path = self._path(name)
        with _translated(f"shrinking of {name}"), contextlib.suppress(FileNotFoundError):
            os.truncate(path, length)

    def _remove(self, name: str) -> bool:
        path = self._path(name)
        with _translated(f"removal of {name}"):
            try:
                os.unlink(path)
                removed = True
            except FileNotFoundError:
                removed = False
            with contextlib.suppress(FileNotFoundError):
                sync_directory(os.path.dirname(path))
        return removed

    def _list(self, prefix: str) -> builtins.list[str]:
        directory = self._path(prefix.rstrip("/")) if prefix else str(self._root)
        with _translated(f"list of {prefix or 'the volume'}"):
            return sorted(
                path.removeprefix(self._base)
                for path in files_below(directory, f"{self._base}{TEMPORARY}")
            )


def _check_name(descriptor: int, path: str) -> None:
    """Of a log file, after it was read: it still has its name. Else it was set aside, and what
    was read may be of its next incarnation."""
    if path.endswith(LOG_SUFFIX) and os.stat(path).st_ino != os.fstat(descriptor).st_ino:
        raise FileNotFoundError(errno.ENOENT, "the log file was set aside while it was read", path)


def _identity(path: str) -> tuple[int, int] | None:
    """Which file the name means; it is opened, because that is what makes a network file system
    ask the server."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return found.st_dev, found.st_ino


def files_below(directory: str, left_out: str) -> Iterator[str]:
    """Paths of all files below a directory; what vanishes during the walk is left out."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.path != left_out:
                yield from files_below(entry.path, left_out)
        else:
            yield entry.path


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """OSError becomes StorageError, except for a missing file, which the interface names."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = StorageFull if error.errno in NO_SPACE else StorageError
        raise kind(
            f"{what} failed: {error.strerror} ({error.filename or error.errno}); see to the disk"
        ) from error
