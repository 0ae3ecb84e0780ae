"""The file at the end of an incarnation's log.

Owns: `LogTail`: which file takes the next block, the file that is prepared behind it, and the seals
of files that were left. Imports: asyncio, errors, clock, volume, storage formats. Invariants: one
append is under way at a time; a failed write or flush is never tried again in its file: the file is
abandoned, sealed where its acknowledged part ends, and the same block goes into the next one; if
that fails too, the caller fails the log; a file is sealed only where all of it was acknowledged, so
every length that a new owner can find covers every receipt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from magnetar.clock import Clock, elapsed_ms
from magnetar.errors import Fenced, StorageError, StorageFull
from magnetar.storage import names
from magnetar.storage.log.blocks import BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, encode_block_header
from magnetar.storage.log.files import LogFile, LogFiles
from magnetar.storage.log.pending import Block
from magnetar.storage.log.sealer import finish_file
from magnetar.storage.log.seals import publish_seal
from magnetar.storage.log.space import Space
from magnetar.storage.volumes.volume import Volume

log = structlog.get_logger(__name__)

LARGE_BUFFER_BYTES = 8 * 1024
CREATE_ATTEMPTS_MAX = 3
CREATE_RETRY_S = 0.1
SPARE_FRACTION = 8  # of a file is written when the next one is prepared

StartTask = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]


class LogTail:
    """`failed`: whether the log acknowledges nothing any more. `gives_up`: whether it does not wait
    for space either. `start` runs a seal in the background and fails the log with it."""

    def __init__(
        self,
        volume: Volume,
        clock: Clock,
        incarnation: str,
        space: Space,
        files: LogFiles,
        *,
        failed: Callable[[], bool],
        gives_up: Callable[[], bool],
        start: StartTask,
        on_sealed: Callable[[LogFile, dict[str, list[int]]], object],
    ) -> None:
        self._volume, self._clock, self._incarnation = volume, clock, incarnation
        self._space, self._files = space, files
        self._claim = names.claim(incarnation)
        self._failed, self._gives_up, self._start = failed, gives_up, start
        self._on_sealed = on_sealed
        self.file: LogFile | None = None
        self.blocks = 0
        self._spare: asyncio.Task[LogFile] | None = None
        self._abandoned: set[int] = set()
        self._sealing: asyncio.Task[None] | None = None
        self._roll_requested = False

    async def open(self) -> None:
        """Create the first file. Raises StorageError."""
        self.file = await self._files.create(0)

    async def close(self) -> None:
        """Seal the last file and the prepared one; wait for all seals."""
        assert self.file is not None, "the log is not open"
        files = [self.file]
        if self._spare is not None:
            # a file that could not be created is no loss now
            with contextlib.suppress(StorageError):
                files.append(await self._take_spare())
        for file in files:
            self._seal_later(file, followed=False)
        if self._sealing is not None:
            await asyncio.wait([self._sealing])

    @property
    def files_abandoned(self) -> int:
        """Files left after a failed write or flush."""
        return len(self._abandoned)

    def roll(self) -> bool:
        """Let the next block go into the next file; False if the current one is empty."""
        if self.file is None or self.file.end <= FILE_HEADER_BYTES:
            return False
        self._roll_requested = True
        return True

    async def set_aside(self, number: int, length: int) -> bool:
        """As `LogFiles.set_aside`; False for a file that was abandoned, or once the log ends."""
        fit = not self._gives_up() and number not in self._abandoned
        return fit and await self._files.set_aside(number, length)

    async def looked_at_space(self, missing: int) -> None:
        """While `missing` bytes of the reserve are used, keep no file for later; once there is room
        again, prepare the next file as before."""
        if missing:
            await self._files.give_back()
        elif (
            self._space.short is None
            and self._spare is not None
            and self._spare.done()
            and self._spare.exception() is not None
        ):
            self._spare = None

    async def file_for(self, block: Block) -> LogFile:
        """The file this block goes to: the next one if it does not fit or a roll was requested."""
        file = self.file
        assert file is not None
        fits = (
            file.end + BLOCK_HEADER_BYTES + block.size <= file.handle.capacity
            and not file.handle.full
        )
        if (fits or not block.records) and not self._roll_requested:
            return file
        self._roll_requested = False
        self.file = await self._next_file(file.number + 1, block)
        self._seal_later(file, followed=True)
        return self.file

    async def append(self, file: LogFile, block: Block) -> tuple[LogFile, int]:
        """Append to the file, or else to the next one: where the block lies. Waits while there is
        no space. Raises StorageError."""
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
                    await self._space.wait(error)
                file, failed = await self._abandon(file, block, error), error
            else:
                self._space.go_on()
                return file, start

    def prepare_next(self) -> None:
        """Create the next file ahead of need, if the current one fills and there is room for a
        whole one. A failed attempt is repeated when the file is needed."""
        file = self.file
        assert file is not None
        if (
            file.end <= file.handle.capacity // SPARE_FRACTION
            or self._spare is not None
            or self._space.short is not None
            or self._gives_up()
        ):
            return
        self._spare = asyncio.get_running_loop().create_task(
            self._files.create_whole(file.number + 1), name=f"log spare {self._incarnation}"
        )
        # retrieve its error, which counts only if the file is needed
        self._spare.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _append(self, file: LogFile, block: Block) -> int:
        start = file.end
        # Large buffers are written from where they lie; many small ones cost more one by one than a
        # copy does.
        small = block.size < LARGE_BUFFER_BYTES * len(block.buffers)
        body = [b"".join(block.buffers)] if small else block.buffers
        header = encode_block_header(
            file.seed, start, self.blocks, elapsed_ms(self._clock), block.records, *body
        )
        await file.handle.append(start, (header, *body), self._claim)
        self.blocks += 1
        file.end = start + BLOCK_HEADER_BYTES + block.size
        return start

    async def _abandon(self, file: LogFile, block: Block, error: StorageError) -> LogFile:
        """Leave a file that failed, permanently. It is sealed where its acknowledged part ends
        before anything is acknowledged elsewhere: no reader may find there what is written again
        in the next one. Raises StorageError."""
        self._abandoned.add(file.number)
        log.error(
            "log.file_abandoned",
            incarnation=self._incarnation,
            file=file.number,
            end=file.end,
            error=str(error),
        )
        if isinstance(error, StorageFull):
            self._space.begin_short(error)
        fresh = await self._next_file(file.number + 1, block)
        adopted = await self._space.until_there_is_room(
            lambda: publish_seal(
                self._volume, self._incarnation, file.number, file.end, followed=True
            ),
            self._gives_up,
        )
        if adopted != file.end:
            raise Fenced(
                f"{names.log_file(self._incarnation, file.number)} was sealed at {adopted} by "
                "another: it has taken over"
            )
        self.file = fresh
        self._seal_later(file, followed=True)
        return fresh

    async def _next_file(self, number: int, block: Block) -> LogFile:
        """The prepared file, or one created now that has room for the block; waits while no
        space is left. Raises StorageError."""
        if self._spare is not None:
            with contextlib.suppress(StorageError):
                return await self._take_spare()
        return await self._space.until_there_is_room(
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
                    "log.create_failed",
                    incarnation=self._incarnation,
                    file=number,
                    error=str(error),
                )
            await asyncio.sleep(CREATE_RETRY_S)
        return await self._files.create(number, block_bytes)

    async def _take_spare(self) -> LogFile:
        assert self._spare is not None
        spare, self._spare = self._spare, None
        return await spare

    def _seal_later(self, file: LogFile, *, followed: bool) -> None:
        """Seal a finished file in the background, after those before it; appends
        continue."""
        self._sealing = self._start(self._seal(file, self._sealing, followed=followed), "log seal")

    async def _seal(
        self, file: LogFile, before: asyncio.Task[None] | None, *, followed: bool
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        await file.handle.close()
        if self._failed():
            return  # the new owner seals; what it finds covers all that was acknowledged
        epochs = await finish_file(
            self._volume,
            self._incarnation,
            file,
            followed=followed,
            shrinks_below=self._files.file_bytes // 2,
            gives_up=self._gives_up,
        )
        if not self._failed():
            self._on_sealed(file, epochs)
