"""Space set aside on a file system for what must go on when there is none left.

Owns: `Reserve`: one file of allocated blocks that is cut, step by step, when a write meets a full
file system, and allocated again when there is space. Imports: os, errors. Several processes may
share the file: a cut by one serves any of them, and each tries again for itself. Invariants: its
blocks are really allocated, so that other users of the file system cannot take them; it is
allocated again only if a step more than that is free, so what was just released is not taken back.
All methods block: call them in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
STEPS = 8
RESERVE = "reserve"
"""The file's name. A volume has it in the directory of what is temporary, where no list shows
it."""


class Reserve:
    """The file `path` of `size` bytes; with `size` 0 there is none, and nothing is ever
    released."""

    def __init__(self, path: str, size: int) -> None:
        self._path, self._size = path, size
        self._step = max(1, size // STEPS)

    def spend(self, call: Callable[..., T], *arguments: object) -> T:
        """`call(*arguments)`, again and again while it finds no space and there is some of the
        reserve left. Raises OSError."""
        while True:
            try:
                return call(*arguments)
            except OSError as error:
                if error.errno not in NO_SPACE or not self.release():
                    raise

    def release(self) -> bool:
        """Give a step of the reserve back to the file system, for a caller that has met a full
        one; False if nothing is left. Raises OSError."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            size = os.fstat(descriptor).st_size
            if not size:
                return False
            os.ftruncate(descriptor, max(0, size - self._step))
            # a file system with a journal hands out freed blocks after the commit
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def refill(self) -> int:
        """Allocate what is missing, if there is space for all of it; how many bytes are missing
        afterwards. Raises OSError."""
        missing = self._size - self._allocated()
        if missing <= 0 or free_bytes(os.path.dirname(self._path)) < missing + self._step:
            return max(0, missing)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            before = os.fstat(descriptor).st_size
            try:
                os.posix_fallocate(descriptor, 0, self._size)
                os.fsync(descriptor)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, before)
                if error.errno not in NO_SPACE:
                    raise
                return missing
        finally:
            os.close(descriptor)
        return 0

    def _allocated(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0


def free_bytes(directory: str) -> int:
    """What the file system of `directory` has left for this user, without any reserve. Raises
    OSError."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
