"""Reading other brokers' logs for recoveries.

Owns: `LogScans`: recoveries that want the same log at about the same time share one walk over it,
one fence and one sealing. Imports: storage. A broker that dies leaves hundreds of bundles behind,
whose records lie mixed in one log: read once per bundle, that log would be read hundreds of times.
Invariants: each reader gets the records of its term and range in their order, up to that term's
RELEASE; nothing that was read is kept (memory is that of one walk); damage outside of a reader's
range never fails that reader; what a walk over a living owner's log yields is durable.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.errors import StorageError
from magnetar.hosting.shared_task import SharedTasks, cancel_all
from magnetar.metadata.records import LogPosition
from magnetar.storage.log.fencing import SealedFile, fence, lost_file
from magnetar.storage.log.recovery import ScannedRecord, scan, scan_durable, scan_part
from magnetar.storage.volumes.volume import Volume

SHORT_BYTES_MAX = 1 << 20
"""So little is read at once, rather than wait for a walk that is under way."""
FENCED_HELD_MAX = 64
"""Incarnations whose sealed files are remembered: a fence holds permanently."""

Scan = Callable[
    [Volume, str, LogPosition, LogPosition, Container[int]], AsyncIterator[ScannedRecord]
]
Take = Callable[[ScannedRecord], bool]
"""Gets one record of its term; True: nothing of that term follows in this log."""


class Fenced(NamedTuple):
    """The sealed files of a fenced incarnation, and the known lengths of its files by number."""

    files: list[SealedFile]
    noted: Mapping[int, int]


async def _none_noted(_incarnation: str) -> Mapping[int, int]:
    return {}


@dataclass(slots=True, eq=False)
class _Reader:
    """One recovery's part in a walk; `end` None reads a log whose owner lives."""

    term: int
    start: LogPosition
    end: LogPosition | None
    take: Take
    reached: asyncio.Future[LogPosition]
    cut: bool = False
    over: bool = False
    shared: bool = False
    begin: tuple[int, int] = field(init=False)
    limit: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        self.begin, self.limit = (self.start.file, self.start.offset), None
        if self.end is not None:
            self.limit = self.end.file, self.end.offset


@dataclass(slots=True)
class _Walks:
    """The readers of the next walk over a log, and the task that walks."""

    waiting: list[_Reader] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class LiveRead:
    """A walk over a living owner's log for one term."""

    def __init__(self, reader: _Reader, walks: _Walks) -> None:
        self._reader, self._walks = reader, walks

    def cut(self) -> None:
        """Let the walk end at the next block, or not begin."""
        self._reader.cut = True
        if self._reader in self._walks.waiting:
            self._walks.waiting.remove(self._reader)
            self._reader.reached.set_result(self._reader.start)

    async def reached(self) -> LogPosition:
        """When the walk is over: the end of a block before which everything of the term has been
        handed out. Raises StorageError."""
        return await self._reader.reached

    @property
    def over(self) -> bool:
        """Whether the term has ended: nothing of it follows."""
        return self._reader.over


class LogScans:
    """Shared walks over logs on a volume. `noted` reads the known lengths of an incarnation's files
    by number."""

    def __init__(
        self, volume: Volume, noted: Callable[[str], Awaitable[Mapping[int, int]]] = _none_noted
    ) -> None:
        self._volume = volume
        self._walks: dict[tuple[str, bool], _Walks] = {}
        self._noted = noted
        self._fencing = SharedTasks[Fenced]("fence")
        self._fenced: OrderedDict[str, Fenced] = OrderedDict()

    # --- fencing ----------------------------------------------------------------------------------

    async def fence(self, incarnation: str) -> Fenced:
        """As `storage.log.fencing.fence`, once for all callers: what an incarnation has
        acknowledged when it is fenced is all it ever will.

        Raises StoreError as well, if what was noted cannot be read.
        """
        held = self._fenced.get(incarnation)
        if held is not None:
            return held
        return await asyncio.shield(
            self._fencing.join(incarnation, lambda: self._fence(incarnation))
        )

    async def _fence(self, incarnation: str) -> Fenced:
        # first: what is noted later may be of a file that was made later
        noted = await self._noted(incarnation)
        sealed = await fence(self._volume, incarnation, noted)
        lost = await lost_file(self._volume, incarnation, sealed)
        fenced = Fenced(sealed, noted if lost is None else {lost: 0, **noted})
        self._fenced[incarnation] = fenced
        while len(self._fenced) > FENCED_HELD_MAX:
            self._fenced.popitem(last=False)
        return fenced

    def look_again(self, incarnation: str) -> None:
        """What was found when it was fenced is not all of it: the next caller lists its files
        again."""
        self._fenced.pop(incarnation, None)

    async def stop(self) -> None:
        """Cancel what is under way."""
        await self._fencing.stop()
        await cancel_all(walks.task for walks in self._walks.values() if walks.task is not None)

    # --- reading ----------------------------------------------------------------------------------

    async def read(
        self, incarnation: str, start: LogPosition, end: LogPosition, term: int, take: Take
    ) -> None:
        """Hand the records of `term` in [start, end) to `take`. Raises StorageError, CorruptData.

        Where a walk that others shared meets damage, the range is read again from its start, alone:
        `take` gets records a second time, which must change nothing.
        """
        if end.file == start.file and end.offset - start.offset <= SHORT_BYTES_MAX:
            await self._read_alone(incarnation, start, end, term, take)
            return
        reader, _ = self._join(incarnation, start, end, term, take)
        try:
            await reader.reached
        except (StorageError, OSError):
            if not reader.shared:
                raise
            await self._read_alone(incarnation, start, end, term, take)
        finally:
            reader.cut = True

    async def _read_alone(
        self, incarnation: str, start: LogPosition, end: LogPosition, term: int, take: Take
    ) -> None:
        """As `read`, without waiting for a walk of others."""
        alone = _Reader(term, start, end, take, asyncio.get_running_loop().create_future())
        await self._walk(incarnation, [alone], scan_part if start.file == end.file else scan)
        await alone.reached

    def read_live(self, incarnation: str, start: LogPosition, term: int, take: Take) -> LiveRead:
        """Hand the records of `term` from `start` on to `take`, as far as they are known to be
        durable while their owner may be writing."""
        return LiveRead(*self._join(incarnation, start, None, term, take))

    def _join(
        self, incarnation: str, start: LogPosition, end: LogPosition | None, term: int, take: Take
    ) -> tuple[_Reader, _Walks]:
        """Take part in the next walk over this log."""
        reader = _Reader(term, start, end, take, asyncio.get_running_loop().create_future())
        walks = self._walks.setdefault((incarnation, end is None), _Walks())
        walks.waiting.append(reader)
        if walks.task is None:
            walks.task = asyncio.create_task(
                self._walk_all(incarnation, walks, live=end is None), name=f"scan {incarnation}"
            )
        return reader, walks

    async def _walk_all(self, incarnation: str, walks: _Walks, *, live: bool) -> None:
        """One walk after another until no reader waits; one that comes during a walk joins the
        next."""
        try:
            while walks.waiting:
                await asyncio.sleep(0)  # readers that this turn of the loop brings take part
                readers, walks.waiting = walks.waiting, []
                await (self._walk_live if live else self._walk)(incarnation, readers)
        finally:
            self._walks.pop((incarnation, live), None)
            for reader in walks.waiting:
                reader.reached.cancel()

    async def _walk(self, incarnation: str, readers: list[_Reader], scan: Scan = scan) -> None:
        """One pass over a log that has ended, for these readers."""
        with _Group(readers) as group:
            async for scanned in scan(
                self._volume, incarnation, group.start, group.end, group.by_term
            ):
                group.give(scanned)
                if not group.by_term:
                    break
            group.finish(group.end)

    async def _walk_live(self, incarnation: str, readers: list[_Reader]) -> None:
        """As `_walk`, over a log that is being written."""
        with _Group(readers) as group:
            reached = group.start
            async for reached, records in scan_durable(
                self._volume, incarnation, group.start, group.by_term
            ):
                for scanned in records:
                    group.give(scanned)
                group.end_cut(reached)
                if not group.by_term:
                    break
            group.finish(reached)


class _Group:
    """The readers of one walk. Each has its outcome when the walk ends, by success or failure."""

    def __init__(self, readers: list[_Reader]) -> None:
        self.start = min(reader.start for reader in readers)
        self.end = max(reader.end or reader.start for reader in readers)
        self.by_term: dict[int, list[_Reader]] = {}
        for reader in readers:
            reader.shared = len(readers) > 1
            self.by_term.setdefault(reader.term, []).append(reader)

    def give(self, scanned: ScannedRecord) -> None:
        """Give a record to the readers of its term; one that has all of its range, or has left,
        takes no further part."""
        at, record = scanned.place, scanned.record
        readers = self.by_term.get(record.epoch)
        if readers is None:
            return
        for reader in list(readers):
            if reader.reached.done() or (reader.limit is not None and at >= reader.limit):
                self._settle(reader, reader.end or reader.start)
            elif not reader.over and at >= reader.begin:
                self._take(reader, scanned)

    def _take(self, reader: _Reader, scanned: ScannedRecord) -> None:
        """A record that one reader cannot apply fails that reader alone."""
        try:
            reader.over = reader.take(scanned)
        except Exception as error:  # it concerns this reader alone
            reader.shared = False
            reader.reached.set_exception(error)
            self._leave(reader)
            return
        if reader.over and reader.end is not None:
            self._settle(reader, reader.end)

    def end_cut(self, reached: LogPosition) -> None:
        """At the end of a block: settle readers that were cut, or have all of their term."""
        for reader in self._all():
            if reader.cut or reader.over:
                self._settle(reader, max(reached, reader.start))

    def finish(self, reached: LogPosition) -> None:
        """The walk is over: every reader has what there is."""
        for reader in self._all():
            self._settle(reader, max(reached, reader.start))

    def __enter__(self) -> _Group:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        """The readers report the error of a walk; one that was cancelled leaves none waiting."""
        for reader in self._all():
            if isinstance(error, Exception) and not reader.reached.done():
                reader.reached.set_exception(error)
            reader.reached.cancel()
        return isinstance(error, Exception)

    def _settle(self, reader: _Reader, reached: LogPosition) -> None:
        if not reader.reached.done():
            reader.reached.set_result(reached)
        self._leave(reader)

    def _leave(self, reader: _Reader) -> None:
        readers = self.by_term.get(reader.term, [])
        if reader in readers:
            readers.remove(reader)
        if not readers:
            self.by_term.pop(reader.term, None)

    def _all(self) -> Iterable[_Reader]:
        return [reader for readers in self.by_term.values() for reader in readers]
