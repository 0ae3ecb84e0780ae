"""Writing an incarnation's log.

Owns: `LogWriter`: group commit, receipts, rolling and sealing. Imports: asyncio, errors, clock,
volume, storage formats. Works on any event loop. Invariants: a callback runs only after its record
was flushed and the claim was found after that flush, in the order of the appends; one append is
under way at a time; a failed write or flush is never tried again in its file: the file is
abandoned, sealed where the acknowledged part ends, and the same records go into the next one; if
that fails too, or the claim is gone, nothing is acknowledged any more; while no space is left, not
even of the reserve, everything waits (`space`); a file is sealed only where all of it was
acknowledged, so every length that a new owner can find covers every receipt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from magnetar.clock import Clock, elapsed_ms
from magnetar.errors import Fenced, LimitExceeded, StorageError, StorageFull
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.document import encode_document
from magnetar.storage.log.files import LogFile, LogFiles
from magnetar.storage.log.format import (
    BLOCK_BODY_BYTES_MAX,
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    RecordType,
    encode_block_header,
)
from magnetar.storage.log.framing import RECORD_HEADER_BYTES
from magnetar.storage.log.index import index_part
from magnetar.storage.log.pending import Block, Durable
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.sealer import finish_file
from magnetar.storage.log.seals import publish_seal
from magnetar.storage.log.space import Space, look_again_and_again
from magnetar.storage.volumes.volume import Buffer, Reserving, Volume

__all__ = ["Durable", "LogWriter", "RecordPlace", "Sealed"]

log = structlog.get_logger(__name__)

FILE_BYTES = 64 * 1024 * 1024
BLOCK_BYTES_MAX = 8 * 1024 * 1024
PENDING_BYTES_MAX = 64 * 1024 * 1024
LARGE_BUFFER_BYTES = 8 * 1024
HUNG_S = 0.8
"""A flush that has lasted so long may never end: who only tells what is there does not wait for
it any more."""
CREATE_ATTEMPTS_MAX = 3
CREATE_RETRY_S = 0.1
SPARE_FRACTION = 8  # of a file is written when the next one is prepared

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
        self._block_bytes_max = min(
            block_bytes_max, file_bytes - FILE_HEADER_BYTES - BLOCK_HEADER_BYTES
        )
        assert 0 < self._block_bytes_max <= BLOCK_BODY_BYTES_MAX, (block_bytes_max, file_bytes)
        self._volume, self._clock, self.incarnation = volume, clock, incarnation
        self._file_bytes, self.pending_bytes_max = file_bytes, pending_bytes_max
        self.space = Space(volume, incarnation, file_bytes)
        self._files = LogFiles(volume, clock, incarnation, self.space, file_bytes, spares_max)
        self._on_fenced, self.on_sealed = on_fenced, on_sealed
        self._claim = names.claim(incarnation)
        self._blocks: deque[Block] = deque()
        self._file: LogFile | None = None
        self._sequence = 0
        self._spare: asyncio.Task[LogFile] | None = None
        self._abandoned: set[int] = set()
        self._sealing: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._flush_began: float | None = None
        self._watching: asyncio.Task[None] | None = None
        self._work: asyncio.Future[None] | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._roll_requested = self._closing = False
        self._failure: StorageError | None = None
        self.pending_bytes = 0
        self._held_up: list[tuple[int, Callable[[], object]]] = []
        self.flushes = 0

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Create the claim and the first file; neither is left behind by a failure. Raises
        StorageError; an incarnation opens its log once."""
        assert self._file is None, "the log is open"
        claim = encode_document(
            "claim", 1, {"incarnation": self.incarnation, "created_ms": self._clock.wall_ms()}
        )
        if not await self._volume.put_if_absent(self._claim, claim):
            raise StorageError(
                f"incarnation {self.incarnation} has a claim already; start with a new incarnation"
            )
        try:
            self._file = await self._files.create(0)
        except StorageError:
            await self._give_up_claim()
            raise
        self._flushing = self._task(self._flush_blocks(), "log")
        if isinstance(self._volume, Reserving):
            self._watching = asyncio.get_running_loop().create_task(
                look_again_and_again(self.space, self._looked_at_space),
                name=f"log space {self.incarnation}",
            )

    async def close(self) -> None:
        """Flush, seal every file and give up the claim; after a failure only release the files.
        Failures go to `on_fenced`."""
        if self._file is None:
            return
        self._closing = True
        self._wake()
        assert self._flushing is not None
        await asyncio.wait([self._flushing])
        files = [self._file]
        if self._spare is not None:
            # a file that could not be created is no loss now
            with contextlib.suppress(StorageError):
                files.append(await self._take_spare())
        for file in files:
            self._seal_later(file, followed=False)
        if self._sealing is not None:
            await asyncio.wait([self._sealing])
        if self._watching is not None:
            self._watching.cancel()
        if self._failure is None:
            await self._files.give_back()
            await self._volume.remove(self._claim)
        elif isinstance(self._failure, StorageFull):
            await self._give_up_claim()  # there was no space for a seal: the next owner writes it

    async def _give_up_claim(self) -> None:
        """Nothing will be acknowledged under our claim any more, and nobody need find it. It
        stays if the disk does not let it go."""
        with contextlib.suppress(StorageError):
            await self._volume.remove(self._claim)

    async def _looked_at_space(self, missing: int) -> None:
        """While the reserve is used nothing is kept for later; once there is room again the next
        file is prepared as ever."""
        if missing:
            await self._files.give_back()
        elif (
            self.space.short is None
            and self._spare is not None
            and self._spare.done()
            and self._spare.exception() is not None
        ):
            self._spare = None

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
        if size > self._block_bytes_max or self.pending_bytes + size > self.pending_bytes_max:
            raise LimitExceeded(
                f"append of {size} bytes with {self.pending_bytes} pending; the limits are "
                f"block_bytes_max {self._block_bytes_max} and "
                f"pending_bytes_max {self.pending_bytes_max}"
            )
        block = self._blocks[-1] if self._blocks else None
        if block is None or block.size + size > self._block_bytes_max:
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
        """Call `go_on`, once and in a later turn of the loop, when no more than so many bytes
        wait for a flush, or will ever be flushed."""
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
        """Wait until everything appended before is durable and the claim was found after that, and
        after the call began.

        Many at once share one look. Raises Fenced or StorageError.
        """
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
        """Go on in the next file as soon as what is pending is written; the current one is
        sealed in the background."""
        await self.barrier()
        if self._file is not None and self._file.end > FILE_HEADER_BYTES:
            log.info(
                "log.roll", incarnation=self.incarnation, file=self._file.number, reason=reason
            )
            self._roll_requested = True
            await self.barrier()

    async def confirm(self) -> None:
        """For callers that report what is there and write nothing: the claim was found after the
        call began.

        Also while there is no space, or a flush hangs: what is told was durable before, so only the
        look matters. A former owner that has not learned of its end would tell the past. Raises
        Fenced or StorageError.
        """
        if self.space.stalled is None and not self.hangs:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HUNG_S):
                    await self.barrier()
                return
        await self.check_claim()

    @property
    def hangs(self) -> bool:
        """Whether the disk has not answered for so long that nobody who has nothing to write
        should wait for it."""
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
        # Read again: an append may have failed while we waited.
        failure: StorageError | None = self._failure
        if failure is not None:
            raise failure

    @property
    def append_bytes_max(self) -> int:
        """What one append may have: it goes into one block."""
        return self._block_bytes_max

    @property
    def position(self) -> LogPosition:
        """Just behind the last durable byte."""
        assert self._file is not None, "the log is not open"
        return LogPosition(self._file.number, self._file.end)

    @property
    def files_abandoned(self) -> int:
        """Files left after a failed write or flush."""
        return len(self._abandoned)

    async def set_aside(self, number: int, length: int) -> bool:
        """Keep a file of ours, sealed at `length`, that nobody needs any more for a later one,
        instead of its deletion.

        False if it is not fit for that, or there are enough: it is to be deleted. Raises
        StorageError.
        """
        fit = self._failure is None and not self._closing and number not in self._abandoned
        return fit and await self._files.set_aside(number, length)

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
            return  # check_claim or a seal found out while we wrote
        base = start + BLOCK_HEADER_BYTES + RECORD_HEADER_BYTES
        for at, head in block.heads:
            file.remember(base + at, index_part(head))
        number = file.number
        for at, callback in block.callbacks:
            callback(RecordPlace(number, base + at))

    async def _write(self, block: Block) -> tuple[LogFile, int]:
        """Bring a block to stable storage: its file, and where it begins. Raises StorageError:
        nothing may be acknowledged any more."""
        file = await self._file_for(block)
        if not block.records:
            # nothing to flush, yet who waits for this goes on to tell what is there
            await self.check_claim()
            return file, file.end
        file, start = await self._append_somewhere(file, block)
        self.pending_bytes -= block.size
        self._let_go_on()
        wants_next = (
            file.end > file.handle.capacity // SPARE_FRACTION
            and self._spare is None
            and self.space.short is None
        )
        if wants_next and not self._closing:
            self._prepare_spare(file.number + 1)
        return file, start

    async def _append_somewhere(self, file: LogFile, block: Block) -> tuple[LogFile, int]:
        """Append to the file, or else to the next one; while what keeps us from it is a lack of
        space, again and again. Raises StorageError."""
        failed: StorageError | None = None
        while True:
            try:
                start = await self._append(file, block)
            except Fenced:
                raise
            except StorageError as error:
                if failed is not None:
                    if not isinstance(error, StorageFull) or self._gives_up():
                        raise  # fails again: it is not the file
                    await self.space.wait(error)
                file, failed = await self._abandon(file, block, error), error
            else:
                self.space.go_on()
                return file, start

    async def _append(self, file: LogFile, block: Block) -> int:
        start = file.end
        # Large buffers are written from where they lie; many small ones cost more one by one than a
        # copy does.
        small = block.size < LARGE_BUFFER_BYTES * len(block.buffers)
        body = [b"".join(block.buffers)] if small else block.buffers
        header = encode_block_header(
            file.seed, start, self._sequence, elapsed_ms(self._clock), block.records, *body
        )
        await file.handle.append(start, (header, *body), self._claim)
        self._sequence += 1
        self.flushes += 1
        file.end = start + BLOCK_HEADER_BYTES + block.size
        return start

    async def _abandon(self, file: LogFile, block: Block, error: StorageError) -> LogFile:
        """Leave a file that failed us, for good. Before anything is acknowledged elsewhere it is
        sealed where its acknowledged part ends: nobody may find there what we write again in the
        next one. Raises StorageError."""
        self._abandoned.add(file.number)
        log.error(
            "log.file_abandoned",
            incarnation=self.incarnation,
            file=file.number,
            end=file.end,
            error=str(error),
        )
        if isinstance(error, StorageFull):
            self.space.begin_short(error)
        fresh = await self._next_file(file.number + 1, block)
        adopted = await self.space.until_there_is_room(
            lambda: publish_seal(
                self._volume, self.incarnation, file.number, file.end, followed=True
            ),
            self._gives_up,
        )
        if adopted != file.end:
            raise Fenced(
                f"{names.log_file(self.incarnation, file.number)} was sealed at {adopted} by "
                "another: it has taken over"
            )
        self._file = fresh
        self._seal_later(file, followed=True)
        return fresh

    async def _file_for(self, block: Block) -> LogFile:
        """The file this block goes to: the next one if it does not fit or a roll was requested."""
        file = self._file
        assert file is not None
        fits = (
            file.end + BLOCK_HEADER_BYTES + block.size <= file.handle.capacity
            and not file.handle.full
        )
        if (fits or not block.records) and not self._roll_requested:
            return file
        self._roll_requested = False
        self._file = await self._next_file(file.number + 1, block)
        self._seal_later(file, followed=True)
        return self._file

    async def _next_file(self, number: int, block: Block) -> LogFile:
        """The prepared file, or one created now that has room for the block; waits while no
        space is left. Raises StorageError."""
        if self._spare is not None:
            with contextlib.suppress(StorageError):
                return await self._take_spare()
        return await self.space.until_there_is_room(
            lambda: self._create_again(number, block.size), self._gives_up
        )

    async def _create_again(self, number: int, block_bytes: int) -> LogFile:
        """Create a file, a few times if need be: an attempt that failed leaves nothing behind."""
        for _ in range(CREATE_ATTEMPTS_MAX - 1):
            try:
                return await self._files.create(number, block_bytes)
            except (Fenced, StorageFull):
                raise
            except StorageError as error:
                log.warning(
                    "log.create_failed", incarnation=self.incarnation, file=number, error=str(error)
                )
            await asyncio.sleep(CREATE_RETRY_S)
        return await self._files.create(number, block_bytes)

    def _gives_up(self) -> bool:
        """Whether nobody waits for space any more."""
        return self._failure is not None or self._closing

    def _prepare_spare(self, number: int) -> None:
        """Create the next file ahead of need, if there is room for a whole one. If that fails it
        is tried again when it is needed."""
        self._spare = asyncio.get_running_loop().create_task(
            self._files.create_whole(number), name=f"log spare {self.incarnation}"
        )
        # if nobody takes it, its error is no news
        self._spare.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _take_spare(self) -> LogFile:
        assert self._spare is not None
        spare, self._spare = self._spare, None
        return await spare

    def _task(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=f"{name} {self.incarnation}")
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        """A task that failed, by the disk or by a programmer's error in a callback, must not
        leave a log that silently stands still."""
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

    # --- sealing ----------------------------------------------------------------------------------

    def _seal_later(self, file: LogFile, *, followed: bool) -> None:
        """Seal a finished file in the background, after those before it; appends go on
        concurrently."""
        self._sealing = self._task(self._seal(file, self._sealing, followed=followed), "log seal")

    async def _seal(
        self, file: LogFile, before: asyncio.Task[None] | None, *, followed: bool
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        await file.handle.close()
        if self._failure is not None:
            return  # the new owner seals; what it finds covers all that we acknowledged
        epochs = await finish_file(
            self._volume,
            self.incarnation,
            file,
            followed=followed,
            shrinks_below=self._file_bytes // 2,
            gives_up=self._gives_up,
        )
        if self.on_sealed is not None and self._failure is None:
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
