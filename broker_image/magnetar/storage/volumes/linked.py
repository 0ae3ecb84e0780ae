"""Objects that are files, created by link(): for file systems that cache what other machines have
changed.

Owns: `LinkedObjects` and its start-up probe. Imports: asyncio, os, errors, coherence, objects,
posix. link() is decided by the server of a network file system, whatever its clients have cached; a
look at a name is not. So an object is created under a name of its own, flushed, and linked to its
key; a process that finds the key taken compares which file is there. Invariants: as of
`ObjectStore`; a list may lag behind other machines, and says so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from magnetar.errors import StorageError
from magnetar.storage.volumes.coherence import (
    check_linked_file_system,
    compact_left_behind,
    file_system_magic,
)
from magnetar.storage.volumes.objects import Listed
from magnetar.storage.volumes.posix import TEMPORARY, PosixVolume, files_below
from magnetar.storage.volumes.volume import Buffer


class LinkedObjects:
    """The `ObjectStore` below the directory `root`."""

    lists_at_once = False

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = PosixVolume(root)

    async def check(self) -> None:
        """Refuse a file system of which it is not known that link() is decided in one place. Raises
        StorageError.

        Creates the root, and drops what a crash has left there of objects that were never linked.
        """
        await asyncio.to_thread(self._check_file_system)

    def _check_file_system(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self._root} cannot be used: {error}; mount a volume that this user may write"
            ) from error
        check_linked_file_system(file_system_magic(self._root), self._root)
        try:
            if (temporary := self._root / TEMPORARY).is_dir():
                compact_left_behind(temporary)
        except OSError as error:
            raise StorageError(
                f"{self._root / TEMPORARY} cannot be cleaned: {error}; let this user write there"
            ) from error

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> bool:
        return await self._files.put_if_absent(key, b"".join(buffers))

    async def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        return await self._files.read(key, offset, length)

    async def exists(self, key: str) -> bool:
        """Whether the object can be opened: a look at its name alone might be answered from a
        cache."""
        try:
            await self._files.read(key, 0, 1)
        except FileNotFoundError:
            return False
        return True

    async def list(self, prefix: str) -> Listed:
        return await asyncio.to_thread(self._list, prefix)

    def _list(self, prefix: str) -> Listed:
        base = f"{self._root}/"
        found: Listed = []
        try:
            for path in files_below(
                f"{base}{prefix.rstrip('/')}".rstrip("/"), f"{base}{TEMPORARY}"
            ):
                try:
                    # A size is never out of date: a file gets its name when it is complete.
                    found.append((path.removeprefix(base), os.stat(path).st_size))
                except FileNotFoundError:
                    continue
        except OSError as error:
            raise StorageError(
                f"list of {prefix or 'the volume'} failed: {error}; see to the file system"
            ) from error
        return sorted(found)

    async def delete(self, key: str) -> bool:
        return await self._files.remove(key)

    async def close(self) -> None:
        await self._files.close()
