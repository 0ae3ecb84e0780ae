"""Rolling the log on purpose.

Owns: when this broker's log is rolled before it is full, and how long a recovery chain is. Imports:
storage, metadata records. Invariants: concurrent requests share one roll; a roll that would leave
an almost empty file is not done; positions returned are starts of files, so everything before them
is in sealed, indexed files.
"""

from __future__ import annotations

import asyncio

from magnetar.broker.context import BrokerContext
from magnetar.errors import ServiceNotReady
from magnetar.hosting.shared_task import outcome
from magnetar.metadata.records import BundleRecord, LogPosition, LogRange
from magnetar.storage.log.blocks import FILE_HEADER_BYTES

SMALL_FILE_BYTES_MAX = 256 << 10
AFTER_RELEASE_S = 0.5
SEAL_LOOK_S = 1.0
LENGTHS_HELD_MAX = 4096


class LogRoller:
    """Rolls one incarnation's log."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._rolling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self._sealed = -1
        self._lengths: dict[int, int] = {}
        self._progress = asyncio.Event()

    def file_sealed(self, number: int, length: int) -> None:
        """The log has sealed and indexed its file `number` of `length` bytes (they come in
        order)."""
        self._sealed = max(self._sealed, number)
        self._lengths[number] = length
        while len(self._lengths) > LENGTHS_HELD_MAX:
            del self._lengths[min(self._lengths)]
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()

    async def roll(self, reason: str, *, always: bool = False) -> LogPosition:
        """The start of a file with everything written so far before it, sealed and indexed. Raises
        StorageError, ServiceNotReady.

        Without `always` a small current file is left as it is: its start is returned.
        """
        if self._stopped:
            raise ServiceNotReady("this broker stops; look the topic up again")
        log = self._context.log
        small = FILE_HEADER_BYTES if always else SMALL_FILE_BYTES_MAX
        if log.position.offset <= small:
            await log.barrier()
            number = log.position.file
            if log.position.offset <= small:
                await self._until_sealed(number - 1)
                return LogPosition(number, FILE_HEADER_BYTES)
        written = log.position.file
        # A roll under way may have left its file before what we were asked for was written, and the
        # log leaves a full file by itself.
        while log.position.file <= written:
            if self._rolling is None:
                self._rolling = asyncio.create_task(self._roll(reason), name="roll")
                self._rolling.add_done_callback(lambda _task: setattr(self, "_rolling", None))
            await outcome(self._rolling)
        await self._until_sealed(written)
        return LogPosition(written + 1, FILE_HEADER_BYTES)

    async def _roll(self, reason: str) -> None:
        log = self._context.log
        await log.roll(reason)
        await self._until_sealed(log.position.file - 1)  # an empty file is not left
        self._context.metrics.log_rolls.inc()

    async def _until_sealed(self, number: int) -> None:
        """Wait for the seal of a file that has been left; a log that fails before it ends the wait
        with its error."""
        while self._sealed < number:
            progress = self._progress
            await self._context.log.barrier()
            try:
                async with asyncio.timeout(SEAL_LOOK_S):
                    await progress.wait()
            except TimeoutError:
                continue

    def roll_soon(self) -> None:
        """A bundle left: its entries in the current file must be in a sealed one before long."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                AFTER_RELEASE_S, self._roll_after_release
            )

    def _roll_after_release(self) -> None:
        self._timer = None
        task = asyncio.ensure_future(self.roll("bundles left", always=True))
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # a failed roll fences the log, which ends the broker

    def chain_bytes(self, record: BundleRecord) -> int:
        """About how much of logs a successor of this bundle would scan."""
        return sum(map(self._range_bytes, record.chain))

    def _range_bytes(self, span: LogRange) -> int:
        """Our own files count by their length: those that were rolled early are short. Others count
        as full."""
        end = span.end if span.end is not None else self._context.log.position
        known = self._lengths if span.incarnation == self._context.incarnation else {}
        full = self._context.settings.log_file_bytes
        lengths = sum(known.get(number, full) for number in range(span.start.file, end.file))
        return max(0, lengths + end.offset - span.start.offset)

    def stop(self) -> None:
        """No roll begins any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._rolling is not None:
            self._rolling.cancel()
