"""Whether a log has space.

Owns: `Space`, the two states of a log on a disk that fills up, and how both end. Imports: asyncio,
structlog, errors, volume.
  short    there is no room for a whole log file, or the reserve is not whole: nothing may be
           published. Everything else continues: cursors, trims, deletions, checkpoints, seals and a
           start use what is left and then the reserve.
  stalled  even the reserve is used up: appends wait until there is space.
Invariants: stalled implies short; `short` ends only once the reserve is whole and there is room for
more than one whole file, so it does not come and go with every file that is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from magnetar.errors import StorageError, StorageFull
from magnetar.storage.volumes.volume import Reserving, Volume

log = structlog.get_logger(__name__)

T = TypeVar("T")

FULL_RETRY_S = 1.0
SPACE_LOOK_S = 1.0
ROOM_FRACTION = 4
"""To publish again takes so large a part of a log file beyond a whole one."""


class Space:
    """Of one log. `short` and `stalled` say why, or are None."""

    def __init__(self, volume: Volume, incarnation: str, file_bytes: int) -> None:
        self._volume = volume if isinstance(volume, Reserving) else None
        self._incarnation, self._file_bytes = incarnation, file_bytes
        self._wanted_bytes = file_bytes + file_bytes // ROOM_FRACTION
        self.short: StorageFull | None = None
        self.stalled: StorageFull | None = None

    def check_publishing(self) -> None:
        """Raises StorageFull while nothing may be published."""
        if self.short is not None:
            raise self.short

    def check_room(self) -> None:
        """Raises StorageFull while what is appended would wait for space, for callers that
        can be asked to retry."""
        if self.stalled is not None:
            raise self.stalled

    async def check_whole_file(self) -> None:
        """Raises StorageFull, and is short from then on, unless a whole log file can be had.
        Raises StorageError."""
        if self._volume is None:
            return  # it says so itself
        self.check_publishing()
        if not await self._volume.has_room(self._file_bytes):
            self.begin_short(
                StorageFull(
                    f"no room for another log file of {self._file_bytes} bytes: nothing is "
                    "published until there is; free space on the volume, "
                    "or have less kept (acknowledge, skip, delete, shorten retention or TTL)"
                )
            )
            self.check_publishing()

    def begin_short(self, error: StorageFull) -> None:
        """Nothing may be published from now on."""
        if self.short is None:
            log.error("log.space_short", incarnation=self._incarnation, error=str(error))
            self.short = error

    async def until_there_is_room(
        self, attempt: Callable[[], Awaitable[T]], gives_up: Callable[[], bool]
    ) -> T:
        """Try until there is space. Until then the log is `stalled`: nothing is acknowledged,
        nothing lost. Raises any other StorageError."""
        while True:
            try:
                found = await attempt()
            except StorageFull as error:
                if gives_up():
                    raise
                await self.wait(error)
                continue
            self.go_on()
            return found

    async def wait(self, error: StorageFull) -> None:
        """There is no space for what is to be written next: stalled until `go_on`."""
        if self.stalled is None:
            log.error("log.stalled", incarnation=self._incarnation, error=str(error))
        self.stalled = error
        self.begin_short(error)
        await asyncio.sleep(FULL_RETRY_S)

    def go_on(self) -> None:
        """What waited for space has been written."""
        if self.short is None:
            return
        if self.stalled is not None:
            self.stalled = None
            log.info("log.goes_on", incarnation=self._incarnation)
        if self._volume is None:
            self._end_short()  # there is no reserve to be filled first

    async def look(self) -> int:
        """Fill the reserve, and be short or not; how many bytes of the reserve are missing.
        Raises StorageError."""
        volume = self._volume
        if volume is None:
            return 0
        missing = await volume.refill_reserve()
        if missing:
            self.begin_short(
                StorageFull(
                    f"{missing} bytes of the volume's reserve are used or cannot be had: nothing "
                    "is published until it is whole; "
                    "free space on the volume, or have less kept (acknowledge, skip, delete, "
                    "shorten retention or TTL)"
                )
            )
        elif (
            self.short is not None
            and self.stalled is None
            and await volume.has_room(self._wanted_bytes)
        ):
            self._end_short()
        return missing

    def _end_short(self) -> None:
        if self.short is not None:
            self.short = None
            log.info("log.space_again", incarnation=self._incarnation)


async def look_again_and_again(space: Space, after: Callable[[int], Awaitable[None]]) -> None:
    """Look now and every SPACE_LOOK_S, and call `after` with the missing bytes of the reserve;
    until cancelled."""
    while True:
        try:
            await after(await space.look())
        except StorageError as error:
            log.warning("log.space_unknown", error=str(error))
        await asyncio.sleep(SPACE_LOOK_S)
