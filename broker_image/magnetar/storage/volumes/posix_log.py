"""Append-only log files on a POSIX file system.

Owns: `PosixLogHandle`, the step that every receipt waits for: write, flush, look for the claim; and
`ZeroFiller`, which writes zeros ahead of it. Imports: os, threading, errors, reserve, worker.
Invariants: write, flush and check happen in this order in one thread; after any failure the handle
refuses to write; zeros are never written over appended bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from magnetar.errors import Fenced, StorageError, StorageFull
from magnetar.reserve import NO_SPACE
from magnetar.storage.volumes.volume import Buffer
from magnetar.storage.volumes.worker import Worker

BUFFERS_PER_WRITE = 1024  # IOV_MAX of Linux
JOINED_BYTES_MAX = 64 * 1024
ZERO_CHUNK_BYTES = 1024 * 1024
ZERO_CHUNKS_PER_FLUSH = 8
ZERO_START_BYTES = 8 * 1024 * 1024
LARGE_APPEND_BYTES = 256 * 1024
"""Appends of this size on average take as long as the disk takes to write them, zeros before or
not: the zeros would only cost its bandwidth."""

_ZEROS = memoryview(bytes(ZERO_CHUNK_BYTES))


def write_fully(descriptor: int, offset: int, buffers: Sequence[Buffer]) -> None:
    """Write all buffers back to back at `offset`. Raises OSError."""
    if len(buffers) > BUFFERS_PER_WRITE or (
        len(buffers) > 1 and sum(map(len, buffers)) <= JOINED_BYTES_MAX
    ):
        buffers = [b"".join(buffers)]  # one copy is cheaper than many vectors
    left = sum(map(len, buffers))
    written = os.pwritev(descriptor, buffers, offset) if left else 0
    if written == left:
        return
    rest = memoryview(b"".join(buffers))
    while written < left:
        written += os.pwrite(descriptor, rest[written:], offset + written)


class PosixLogHandle:
    """An open log file with a flush thread of its own, so that two logs of one process do not
    wait for each other."""

    def __init__(
        self,
        name: str,
        descriptor: int,
        capacity: int,
        start: int,
        base: str,
        filler: ZeroFiller,
        zero_bytes: int,
        used: int = 0,
    ) -> None:
        self._name, self._descriptor, self._capacity, self._base = name, descriptor, capacity, base
        self._worker = Worker(f"flush {name}")
        self._failed: str | None = None
        self._closed = self._busy = False
        self._zeros = _Zeros(base + name, descriptor, capacity, start, zero_bytes, used)
        self._filler = filler
        filler.fill(self._zeros)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def full(self) -> bool:
        """Never before its capacity is reached."""
        return False

    async def append(self, offset: int, buffers: Sequence[Buffer], claim: str) -> None:
        """As `LogHandle.append`. Cancelling the caller does not stop what has begun."""
        size = sum(map(len, buffers))
        assert not self._closed, f"append to closed log {self._name}"
        assert 0 <= offset <= self._capacity - size, (self._name, offset, size, self._capacity)
        if self._failed is not None:
            raise StorageError(
                f"log {self._name} failed before ({self._failed}) and is not written any more"
            )
        assert not self._busy, f"two appends to {self._name} at once"
        self._busy = True
        await self._worker.submit(self._append, offset, size, buffers, claim)

    async def close(self) -> None:
        """Release the descriptor once the thread is done with it; the file stays."""
        if self._closed:
            return
        closed = self._worker.submit(self._zeros.close)
        self._closed = True
        self._worker.close()
        await closed

    # --- in the flush thread ----------------------------------------------------------------------

    def _append(self, offset: int, size: int, buffers: Sequence[Buffer], claim: str) -> None:
        """The three steps; only the filler writes the descriptor too, and keeps ahead."""
        try:
            if self._zeros.take(offset, offset + size):
                self._filler.fill(self._zeros)
            self._write(offset, buffers)
            self._flush()
        except OSError as error:
            self._failed = str(error)
            kind = StorageFull if error.errno in NO_SPACE else StorageError
            raise kind(
                f"write of {size} bytes to {self._name} at {offset} failed: {error}; the file is "
                "abandoned, see to the disk"
            ) from error
        try:
            self._look_for(claim)
        except OSError as error:
            self._failed = str(error)
            raise Fenced(
                f"claim {claim} is not there ({error.strerror}): another incarnation has taken over"
            ) from error
        self._busy = False

    def _write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        write_fully(self._descriptor, offset, buffers)

    def _flush(self) -> None:
        os.fdatasync(self._descriptor)

    def _look_for(self, claim: str) -> None:
        os.stat(self._base + claim)


class _Zeros:
    """How far a log file has been filled with zeros, and how far it is written: shared by flush
    thread and filler.

    Writing into blocks that were written before flushes several times faster than into blocks that
    are only reserved, since the file system has nothing to record; in a recycled file `used` bytes
    were. `zero_bytes` are zeroed at once, then up to four times what is written: a file that stays
    small costs little.
    """

    def __init__(
        self, path: str, descriptor: int, capacity: int, start: int, zero_bytes: int, used: int
    ) -> None:
        # A descriptor of its own: the kernel reports a failed write-back once to each, and the
        # filler must not use up the appends' report.
        self._own_descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._descriptor, self._capacity, self._zero_bytes = descriptor, capacity, zero_bytes
        self._chunks = self._mean_append = 0
        self._written = start
        self._zeroed = max(start, used)
        self._filling: tuple[int, int] | None = None
        self._changed = threading.Condition()
        self._closed = False

    def take(self, low: int, high: int) -> bool:
        """Reserve [low, high) for an append; waits while the filler writes there. True if the
        filler should continue."""
        with self._changed:
            self._written = max(self._written, high)
            self._mean_append += (high - low - self._mean_append) >> 3
            while self._filling is not None and self._filling[0] < high and low < self._filling[1]:
                self._changed.wait()
            return self._zeroed < self._target() and self._filling is None

    def fill_chunk(self) -> bool:
        """Write the next zeros and flush them; False when there is nothing to do."""
        with self._changed:
            low = max(self._zeroed, self._written)
            high = min(low + ZERO_CHUNK_BYTES, self._target())
            if self._closed or high <= low:
                return False
            self._zeroed, self._filling = high, (low, high)
        try:
            os.pwrite(self._own_descriptor, _ZEROS[: high - low], low)
        finally:
            with self._changed:
                self._filling = None
                self._changed.notify_all()
        return True

    def flush(self) -> None:
        """Now and then, flush the zeros apart from the appends, whose own flush then finds
        little left to do."""
        with self._changed:
            self._chunks += 1
            if self._closed or (
                self._chunks % ZERO_CHUNKS_PER_FLUSH and self._zeroed < self._target()
            ):
                return
            self._filling = (self._capacity, self._capacity)
        try:
            os.fdatasync(self._own_descriptor)
        finally:
            with self._changed:
                self._filling = None
                self._changed.notify_all()

    def close(self) -> None:
        """Close the descriptors once no thread uses them."""
        with self._changed:
            self._closed = True
            while self._filling is not None:
                self._changed.wait()
            os.close(self._own_descriptor)
            os.close(self._descriptor)

    def _target(self) -> int:
        if self._mean_append > LARGE_APPEND_BYTES:
            return self._zeroed
        return min(self._capacity, max(self._zero_bytes, 4 * self._written))


class ZeroFiller:
    """The background thread that fills log files with zeros, one chunk of each at a time."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Zeros | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def fill(self, zeros: _Zeros) -> None:
        """Bring `zeros` to its target; from any thread."""
        self._queue.put(zeros)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="zeros", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Let the thread end after the chunk it writes."""
        self._closed = True
        self._queue.put(None)

    def _run(self) -> None:
        while (zeros := self._queue.get()) is not None and not self._closed:
            try:
                if zeros.fill_chunk():
                    zeros.flush()
                    self._queue.put(zeros)
            except OSError:
                # Zeros are only for speed: a disk that refuses them refuses the next append too,
                # and that one is reported.
                continue
