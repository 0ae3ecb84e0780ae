"""Directories whose entries survive a crash.

Owns: `Directories`, which creates them below one root, and `sync_directory`. Imports: os,
threading. Blocking: for the threads of a volume. Invariant: a directory is used only after its name
was flushed in its parent, whichever process created it.
"""

from __future__ import annotations

import contextlib
import os
import threading

SYNCED_MAX = 65536


class Directories:
    """Remembers which directories below `root` it has found durable."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._synced: set[str] = set()
        self._lock = threading.Lock()

    def create(self, path: str) -> None:
        """Create a directory and its missing parents, each durable in its own parent. Raises
        OSError."""
        with self._lock:
            known = path in self._synced
        if known:
            return
        parent = os.path.dirname(path)
        if path != self._root:
            self.create(parent)
        else:
            os.makedirs(parent, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o750)
        # Also when it was there: another process may have made it and not flushed it yet.
        sync_directory(parent)
        with self._lock:
            if len(self._synced) >= SYNCED_MAX:
                self._synced.clear()
            self._synced.add(path)

    def remove_if_empty(self, path: str) -> None:
        """Remove a directory that holds nothing, so that repeated attempts do not use up what is
        left of a full disk."""
        if path == self._root:
            return
        with self._lock, contextlib.suppress(OSError):
            os.rmdir(path)
            self._synced.discard(path)


def sync_directory(path: str) -> None:
    """Make names created in or removed from a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
