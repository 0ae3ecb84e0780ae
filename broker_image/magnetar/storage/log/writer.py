"""Writing an incarnation's log.

Owns: `LogWriter`: group commit, receipts and the end of a log. Imports: asyncio, errors, clock,
volume, tail. Works on any event loop. Invariants: a callback runs only after its record was flushed
and the claim was found after that flush, in the order of the appends; after a failure that `tail`
cannot mend, or once the claim is gone, nothing is acknowledged any more; while no space is left,
not even of the reserve, everything waits (`space`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from magnetar.clock import Clock
from magnetar.errors import Fenced, LimitExceeded, StorageError, StorageFull
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.document import encode_document
from magnetar.storage.log.blocks import (
    BLOCK_BODY_BYTES_MAX,
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
)
from magnetar.storage.log.files import LogFile, LogFiles
from magnetar.storage.log.format import RecordType
from magnetar.storage.log.framing import RECORD_HEADER_BYTES
from magnetar.storage.log.index import index_part
from magnetar.storage.log.pending import Block, Durable
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.space import Space, look_again_and_again
from magnetar.storage.log.tail import LogTail
from magnetar.storage.volumes.volume import Buffer, Reserving, Volume

__all__ = ["Durable", "LogWriter", "RecordPlace", "Sealed"]

log = structlog.get_logger(__name__)

FILE_BYTES = 64 * 1024 * 1024
BLOCK_BYTES_MAX = 8 * 1024 * 1024
PENDING_BYTES_MAX = 64 * 1024 * 1024
HUNG_S = 0.8
"""A flush that has lasted so long may never end: callers that write nothing stop waiting for it."""

Sealed = Callable[[int, int, dict[str, list[int]]], object]


class LogWriter:
    """The log of one incarnation.

    `on_fenced` is called once, with the reason, when this incarnation must not acknowledge anything
    any more. `on_sealed`, which may be set later, is called with (file number, length, {topic:
    epochs}) after each finished file got its seal and index.
    """

    def __init__(
        self,
        volume: Volume,
        clock: Clock,
        incarnation: str,
        *,
        file_bytes: int = FILE_BYTES,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        spares_max: int = 0,
        on_fenced: Callable[[StorageError], object],
        on_sealed: Sealed | None = None,
    ) -> None:
        self.append_bytes_max = min(
            block_bytes_max, file_bytes - FILE_HEADER_BYTES - BLOCK_HEADER_BYTES
        )
        """What one append may have: it goes into one block."""
        assert 0 < self.append_bytes_max <= BLOCK_BODY_BYTES_MAX, (block_bytes_max, file_bytes)
        self._volume, self._clock, self.incarnation = volume, clock, incarnation
        self.pending_bytes_max = pending_bytes_max
        self.space = Space(volume, incarnation, file_bytes)
        self._files = LogFiles(volume, clock, incarnation, self.space, file_bytes, spares_max)
        self._tail = LogTail(
            volume,
            clock,
            incarnation,
            self.space,
            self._files,
            failed=lambda: self._failure is not None,
            gives_up=self._gives_up,
            start=self._task,
            on_sealed=self._sealed,
        )
        self._on_fenced, self.on_sealed = on_fenced, on_sealed
        self._claim = names.claim(incarnation)
        self._blocks: deque[Block] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._flush_began: float | None = None
        self._watching: asyncio.Task[None] | None = None
        self._work: asyncio.Future[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._closing = False
        self._failure: StorageError | None = None
        self.pending_bytes = 0
        self._held_up: list[tuple[int, Callable[[], object]]] = []

    # --- opening and closing ----------------------------------------------------------------------

    async def open(self) -> None:
        """Create the claim and the first file; neither is left behind by a failure. Raises
        StorageError; an incarnation opens its log once."""
        assert self._tail.file is None, "the log is open"
        claim = encode_document(
            "claim", 1, {"incarnation": self.incarnation, "created_ms": self._clock.wall_ms()}
        )
        if not await self._volume.put_if_absent(self._claim, claim):
            raise StorageError(
                f"incarnation {self.incarnation} has a claim already; start with a new incarnation"
            )
        try:
            await self._tail.open()
        except StorageError:
            await self._give_up_claim()
            raise
        self._flushing = self._task(self._flush_blocks(), "log")
        if isinstance(self._volume, Reserving):
            self._watching = asyncio.get_running_loop().create_task(
                look_again_and_again(self.space, self._tail.looked_at_space),
                name=f"log space {self.incarnation}",
            )

    async def close(self) -> None:
        """Flush, seal every file and give up the claim; after a failure only release the files.
        Failures go to `on_fenced`."""
        if self._flushing is None:
            return
        self._closing = True
        self._wake()
        await asyncio.wait([self._flushing])
        await self._tail.close()
        if self._watching is not None:
            self._watching.cancel()
        if self._failure is None:
            await self._files.give_back()
            await self._volume.remove(self._claim)
        elif isinstance(self._failure, StorageFull):
            await self._give_up_claim()  # there was no space for a seal: the next owner writes it

    async def _give_up_claim(self) -> None:
        """Remove the claim, if the disk allows it: nothing is acknowledged under it any more."""
        with contextlib.suppress(StorageError):
            await self._volume.remove(self._claim)

    # --- appending --------------------------------------------------------------------------------

    def append(
        self, buffers: Sequence[Buffer], size: int, record_count: int, on_durable: Durable | None
    ) -> None:
        """Add `record_count` encoded records of `size` bytes in all to the next group commit;
        `on_durable` gets the place of the first.

        ENTRIES records come one at a time, as `encode_entries` made them. The buffers must not
        change until then. Without any records `on_durable` runs behind everything appended before,
        once the claim was found. After a failure appends are dropped: their callbacks never run.
        Raises LimitExceeded when `pending_bytes_max` would be exceeded or one append does not fit
        into a block.
        """
        if self._failure is not None:
            return
        assert not self._closing, "append to a closed log"
        if size > self.append_bytes_max or self.pending_bytes + size > self.pending_bytes_max:
            raise LimitExceeded(
                f"append of {size} bytes with {self.pending_bytes} pending; the limits are "
                f"block_bytes_max {self.append_bytes_max} and "
                f"pending_bytes_max {self.pending_bytes_max}"
            )
        block = self._blocks[-1] if self._blocks else None
        if block is None or block.size + size > self.append_bytes_max:
            block = Block()
            self._blocks.append(block)
        at = block.size
        if record_count:
            head = buffers[0]
            if head[0] == RecordType.ENTRIES:
                assert record_count == 1, "ENTRIES records are appended one at a time"
                block.heads.append((at, bytes(head)))
            block.buffers += buffers
            block.size = at + size
            block.records += record_count
            self.pending_bytes += size
        if on_durable is not None:
            block.callbacks.append((at, on_durable))
        self._wake()

    def when_at_most(self, pending_bytes: int, go_on: Callable[[], object]) -> None:
        """Call `go_on` once, in a later turn of the loop, when no more than so many bytes wait for
        a flush, or the log has failed."""
        self._held_up.append((pending_bytes, go_on))
        self._let_go_on()

    def _let_go_on(self) -> None:
        pending, held_up = self.pending_bytes, self._held_up
        if held_up:
            self._held_up = [(most, go_on) for most, go_on in held_up if pending > most]
            for most, go_on in held_up:
                if pending <= most:
                    asyncio.get_running_loop().call_soon(go_on)

    async def barrier(self) -> None:
        """Wait until everything appended before is durable and the claim was found after that and
        after the call began; concurrent calls share one look. Raises Fenced or StorageError."""
        if self._failure is not None:
            raise self._failure
        reached = asyncio.get_running_loop().create_future()
        self._waiting.add(reached)
        try:
            self.append((), 0, 0, lambda _place: _reach(reached))
            await reached
        finally:
            self._waiting.discard(reached)

    async def roll(self, reason: str) -> None:
        """Continue in the next file once what is pending is written; the current one is sealed in
        the background."""
        await self.barrier()
        if self._tail.roll():
            log.info(
                "log.roll", incarnation=self.incarnation, file=self.position.file, reason=reason
            )
            await self.barrier()

    async def confirm(self) -> None:
        """For callers that report durable state and write nothing: find the claim after the call
        began, also while there is no space or a flush hangs. Without it a fenced owner would report
        the past. Raises Fenced or StorageError."""
        if self.space.stalled is None and not self.hangs:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HUNG_S):
                    await self.barrier()
                return
        await self.check_claim()

    @property
    def hangs(self) -> bool:
        """Whether the disk has not answered for so long that callers that write nothing should
        not wait for it."""
        return self.flush_age_s >= HUNG_S

    @property
    def flush_age_s(self) -> float:
        """How long the flush under way has lasted; 0 if there is none."""
        return 0.0 if self._flush_began is None else self._clock.monotonic() - self._flush_began

    async def check_claim(self) -> None:
        """For an owner that has nothing to write. Raises Fenced, having failed the log, if the
        claim is absent or cannot be looked up."""
        if self._failure is not None:
            raise self._failure
        try:
            found = await self._volume.exists(self._claim)
        except StorageError as error:
            self._fail(Fenced(f"claim {self._claim} cannot be looked up: {error}"))
        else:
            if not found:
                self._fail(
                    Fenced(f"claim {self._claim} is gone: another incarnation has taken over")
                )
        failure: StorageError | None = self._failure  # an append may have failed during the wait
        if failure is not None:
            raise failure

    @property
    def position(self) -> LogPosition:
        """Just behind the last durable byte."""
        file = self._tail.file
        assert file is not None, "the log is not open"
        return LogPosition(file.number, file.end)

    @property
    def files_abandoned(self) -> int:
        """Files left after a failed write or flush."""
        return self._tail.files_abandoned

    @property
    def flushes(self) -> int:
        """Blocks written and flushed."""
        return self._tail.blocks

    async def set_aside(self, number: int, length: int) -> bool:
        """Keep a dead file of this log, sealed at `length`, to be used again; False if the caller
        is to delete it. Raises StorageError."""
        return await self._tail.set_aside(number, length)

    @property
    def fenced(self) -> bool:
        """Whether this writer acknowledges nothing any more."""
        return self._failure is not None

    # --- flushing ---------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Start a flush in the next iteration of the loop; until then everything joins it."""
        if self._work is not None and not self._work.done():
            self._work.set_result(None)

    async def _flush_blocks(self) -> None:
        while self._failure is None:
            if self._blocks:
                await self._flush(self._blocks.popleft())
            elif self._closing:
                return
            else:
                self._work = asyncio.get_running_loop().create_future()
                await self._work

    async def _flush(self, block: Block) -> None:
        """One group commit: write, flush, find the claim, then call back."""
        self._flush_began = self._clock.monotonic()
        try:
            file, start = await self._write(block)
        except StorageError as error:
            self._fail(error)
            return
        finally:
            self._flush_began = None
        if self._failure is not None:
            return  # check_claim or a seal failed during the write
        base = start + BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES
        for at, head in block.heads:
            file.remember(base + at, index_part(head))
        number = file.number
        for at, callback in block.callbacks:
            callback(RecordPlace(number, base + at))

    async def _write(self, block: Block) -> tuple[LogFile, int]:
        """Bring a block to stable storage: its file, and where it begins. Raises StorageError:
        nothing may be acknowledged any more."""
        file = await self._tail.file_for(block)
        if not block.records:
            # nothing to flush, but the caller reports what is there
            await self.check_claim()
            return file, file.end
        file, start = await self._tail.append(file, block)
        self.pending_bytes -= block.size
        self._let_go_on()
        self._tail.prepare_next()
        return file, start

    def _gives_up(self) -> bool:
        """Whether nothing waits for space any more."""
        return self._failure is not None or self._closing

    def _task(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=f"{name} {self.incarnation}")
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        """Fail the log with a task that failed, by the disk or by a bug in a callback: it must not
        stop silently."""
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        if isinstance(error, StorageError):
            self._fail(error)
            return
        self._fail(StorageError(f"{task.get_name()} ended: {error!r}"))
        if error is not None:
            task.get_loop().call_exception_handler(
                {"message": f"{task.get_name()} failed", "exception": error, "task": task}
            )

    def _sealed(self, file: LogFile, epochs: dict[str, list[int]]) -> None:
        if self.on_sealed is not None:
            self.on_sealed(file.number, file.end, epochs)

    def _fail(self, error: StorageError) -> None:
        """Acknowledge nothing from now on; once."""
        if self._failure is not None:
            return
        self._failure = error
        log.warning("log.fenced", incarnation=self.incarnation, error=str(error))
        self._blocks.clear()
        self.pending_bytes = 0
        self._let_go_on()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(error)
        self._wake()
        self._on_fenced(error)


def _reach(reached: asyncio.Future[None]) -> None:
    if not reached.done():
        reached.set_result(None)
