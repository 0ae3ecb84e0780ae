"""The metadata store of a single process.

Owns: `EmbeddedStore`: durable, in-process, one directory, one owner. Imports: asyncio, fcntl, os,
structlog, clock, errors, core, journal, memory. Invariants: at most one process has a directory
open; a change is acknowledged, and shown to readers and watchers, only once it is on stable
storage; no call blocks the event loop on the disk; leases end with the process: all are expired at
open, one revision each.
"""

from __future__ import annotations

import asyncio
import collections
import fcntl
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from magnetar.clock import Clock
from magnetar.errors import StoreError, StoreUnavailable
from magnetar.metadata.backends.core import Change, StoreCore
from magnetar.metadata.backends.journal import JournalFile, JournalWriter, reserve_of
from magnetar.metadata.backends.memory import MemoryStore

JOURNAL_NAME = "metadata.journal"
LOCK_NAME = "lock"
JOURNAL_BYTES_MIN = 4 << 20
JOURNAL_GROWTH = 4
"""The journal is replaced by a snapshot at JOURNAL_GROWTH times the last snapshot's size, but
not below JOURNAL_BYTES_MIN."""

log = structlog.get_logger(__name__)


class EmbeddedStore(MemoryStore):
    """A store whose changes are journalled; make one with `open`, and use it on the event loop
    that was running then."""

    def __init__(
        self, directory: Path, clock: Clock, opened: _Opened, journal_bytes_min: int
    ) -> None:
        super().__init__(clock, opened.core)
        self._directory = directory
        self._lock = opened.lock
        self._loop = asyncio.get_running_loop()
        self._waiting: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()
        self._stopped = self._loop.create_future()
        self._journal_bytes_min = journal_bytes_min
        self._replace_at = max(journal_bytes_min, JOURNAL_GROWTH * opened.file.snapshot_bytes)
        self._replacing = False
        self._writer = JournalWriter(
            opened.file,
            on_durable=lambda revision, size: self._post(self._on_durable, revision, size),
            on_replaced=lambda size: self._post(self._on_replaced, size),
            on_failed=lambda error: self._post(self._on_failed, error),
            on_stopped=lambda: self._post(self._on_stopped),
        )

    @classmethod
    async def open(
        cls, directory: Path, clock: Clock, *, journal_bytes_min: int = JOURNAL_BYTES_MIN
    ) -> EmbeddedStore:
        """Open or create the store in `directory`; the keys of all leases are gone when this
        returns.

        Raises StoreError if another process has it open (naming its pid), CorruptData if
        acknowledged data is damaged.
        """
        salt = clock.random_bits(64)
        opened = await asyncio.to_thread(_open_files, directory, salt)
        return cls(directory, clock, opened, journal_bytes_min)

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        """From the writer's thread: call `callback` on the store's event loop."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop was closed without closing the store: no callers are left.
            log.warning("store not closed before its event loop", directory=str(self._directory))

    # --- durability -------------------------------------------------------------------------------

    def _record(self, change: Change) -> None:
        self._writer.append(change)

    async def _settle(self) -> None:
        if self._visible == self._core.revision:
            await super()._settle()
            return
        durable: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self._core.revision, durable))
        await durable

    def _on_durable(self, revision: int, file_bytes: int) -> None:
        if file_bytes >= self._replace_at and not self._replacing and not self._closed:
            self._replacing = True
            self._writer.replace(self._core.snapshot())
        self._show(revision)
        while self._waiting and self._waiting[0][0] <= revision:
            durable = self._waiting.popleft()[1]
            if not durable.done():
                durable.set_result(None)

    def _on_replaced(self, file_bytes: int) -> None:
        self._replacing = False
        self._replace_at = max(self._journal_bytes_min, JOURNAL_GROWTH * file_bytes)

    def _on_failed(self, error: OSError) -> None:
        """The disk refused: what is queued may or may not be on it, and nothing more will be."""
        reason = (
            f"{self._directory}: writing metadata failed: {error}; repair the disk or free space, "
            "then restart"
        )
        log.error("metadata journal failed", directory=str(self._directory), error=str(error))
        self._end(reason)
        while self._waiting:
            durable = self._waiting.popleft()[1]
            if not durable.done():
                durable.set_exception(StoreUnavailable(reason))

    async def close(self) -> None:
        """Finish pending changes, end all watches and unlock the directory."""
        if not self._closed:
            await super().close()
            self._writer.stop()
        await asyncio.shield(self._stopped)

    def _on_stopped(self) -> None:
        os.close(self._lock)
        self._stopped.set_result(None)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The locked directory: descriptor of the lock, recovered state, journal to append to."""

    lock: int
    core: StoreCore
    file: JournalFile


def _open_files(directory: Path, salt: int) -> _Opened:
    """Lock, recover, expire all leases durably."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = _take_lock(directory)
    try:
        core, file = _recover(directory / JOURNAL_NAME, salt)
        changes = [change for lease in core.orphaned_leases() if (change := core.revoke(lease))]
        if changes:
            file.append(changes, _AT_ONCE)
    except BaseException:
        os.close(lock)
        raise
    return _Opened(lock, core, file)


_AT_ONCE = threading.Event()
_AT_ONCE.set()


def _recover(path: Path, salt: int) -> tuple[StoreCore, JournalFile]:
    core = StoreCore()
    try:
        file, recovered = JournalFile.open(path)
    except FileNotFoundError:
        return core, JournalFile.create(path, salt, core.snapshot())
    core.restore(recovered.snapshot)
    for change in recovered.changes:
        core.apply(change)
    return core, file


def _take_lock(directory: Path) -> int:
    """The descriptor of the locked lock file; the lock ends with it, or with the process."""
    path = directory / LOCK_NAME
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.read(lock, 32).decode(errors="replace").strip() or "unknown"
        os.close(lock)
        raise StoreError(
            f"{directory} is in use by process {owner}; stop it or choose another directory"
        ) from error
    name = f"{os.getpid()}\n".encode()
    # over what stands there: a full disk has no room for what was cut off first
    reserve_of(path).spend(os.pwrite, lock, name, 0)
    os.ftruncate(lock, len(name))
    return lock
