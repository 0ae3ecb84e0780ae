"""The files of an incarnation's log, from their creation on.

Owns: `LogFile`, one that is or was written, and `LogFiles`, which creates them: new, out of dead
ones that were set aside, or short ones where there is no room for a whole one. Imports: clock,
errors, space, volume, storage formats. Invariants: a file is changed only while no name but its own
spare one leads to it; what an earlier incarnation left in it fails every CRC, whose start differs
between any two files; where no file can be recycled one is created, so recycling never blocks the
log; while space is short nothing is kept for later.
"""

from __future__ import annotations

import contextlib
from collections import deque

import structlog

from magnetar.clock import Clock
from magnetar.errors import StorageError, StorageFull
from magnetar.storage import names
from magnetar.storage.log.blocks import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FileHeader,
    block_seed,
    encode_file_header,
)
from magnetar.storage.log.space import Space
from magnetar.storage.volumes.volume import LogHandle, Recycling, Reserving, Volume

log = structlog.get_logger(__name__)

SHORT_FILE_BYTES = 1 << 20
"""Of a log file that is made while there is no room for a whole one: some thousand records of
cursors."""


class LogFile:
    """A log file that is or was written: `end` is where the next block goes, `heads` holds what
    precedes the entries of each run, back to back, and `head_places` (payload offset, head
    bytes) of each: a few bytes per entry for the index."""

    __slots__ = ("end", "handle", "head_places", "heads", "number", "seed")

    def __init__(self, handle: LogHandle, incarnation: str, number: int) -> None:
        self.handle, self.number = handle, number
        self.end = FILE_HEADER_BYTES
        self.seed = block_seed(incarnation, number)
        self.heads = bytearray()
        self.head_places: list[int] = []

    def remember(self, payload_offset: int, head: bytes) -> None:
        self.heads += head
        self.head_places += (payload_offset, len(head))


class LogFiles:
    """Creates the log files of one incarnation. Up to `spares_max` dead ones are kept to be used
    again, if the volume can do that."""

    def __init__(
        self,
        volume: Volume,
        clock: Clock,
        incarnation: str,
        space: Space,
        file_bytes: int,
        spares_max: int,
    ) -> None:
        self._volume, self._clock, self._incarnation, self._space = (
            volume,
            clock,
            incarnation,
            space,
        )
        self.file_bytes, self._spares_max = file_bytes, spares_max
        self._spares: deque[tuple[str, int]] = deque()

    async def create(self, number: int, block_bytes: int = 0) -> LogFile:
        """A file with nothing but its header: a whole one, else a short one that has room for a
        block of `block_bytes`. Raises StorageError."""
        volume = self._volume
        try:
            return await self.create_whole(number)
        except StorageFull:
            if not isinstance(volume, Reserving):
                raise
        room = BLOCK_HEADER_BYTES + block_bytes
        capacity = min(
            FILE_HEADER_BYTES + max(SHORT_FILE_BYTES, room),
            max(self.file_bytes, FILE_HEADER_BYTES + room),
        )
        name, header = self._named(number)
        handle = await volume.create_short_log(name, capacity, header)
        return LogFile(handle, self._incarnation, number)

    async def create_whole(self, number: int) -> LogFile:
        """A file of the full size. Raises StorageError; StorageFull, and space is short from
        then on, if there is no room for it."""
        name, header = self._named(number)
        handle = await self._recycle(name, header)
        if handle is None:
            await self._space.check_whole_file()
            try:
                handle = await self._volume.create_log(name, self.file_bytes, header)
            except StorageFull as error:  # another user of the volume was quicker
                self._space.begin_short(error)
                raise
        return LogFile(handle, self._incarnation, number)

    def _named(self, number: int) -> tuple[str, bytes]:
        """Name and header of a file."""
        header = encode_file_header(FileHeader(self._incarnation, number, self._clock.wall_ms()))
        return names.log_file(self._incarnation, number), header

    async def set_aside(self, number: int, length: int) -> bool:
        """Keep a dead file that was sealed at `length`; False if there are enough, it is not
        whole, or space is short. Raises StorageError."""
        volume = self._volume
        if (
            len(self._spares) >= self._spares_max
            or self._space.short is not None
            or not isinstance(volume, Recycling)
        ):
            return False
        spare = names.spare(self._incarnation, number)
        if not await volume.set_aside(
            names.log_file(self._incarnation, number), spare, self.file_bytes
        ):
            return False
        self._spares.append((spare, length))
        return True

    async def give_back(self) -> None:
        """Delete the spares. Raises StorageError."""
        while self._spares:
            await self._volume.remove(self._spares.popleft()[0])

    async def _recycle(self, name: str, header: bytes) -> LogHandle | None:
        """A file out of one that was set aside; None if there is none. One that fails is
        dropped."""
        while self._spares and isinstance(self._volume, Recycling):
            spare, used = self._spares.popleft()
            try:
                handle = await self._volume.create_log_from(spare, name, used, header)
            except (StorageError, FileNotFoundError) as error:
                log.warning(
                    "log.recycling_failed",
                    incarnation=self._incarnation,
                    spare=spare,
                    error=str(error),
                )
                with contextlib.suppress(StorageError):
                    await self._volume.remove(spare)
            else:
                log.info("log.recycled", incarnation=self._incarnation, spare=spare, file=name)
                return handle
        return None
