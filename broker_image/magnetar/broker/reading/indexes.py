"""Level-0 indexes as this broker reads them.

Owns: `IndexCache`, the indexes of sealed log files that were used lately, and their rebuilding from
the files. Imports: storage. Invariants: memory is bounded by the number of indexes and of the runs
decoded in them; an index that is missing or damaged is rebuilt, since its file holds all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

import structlog

from magnetar.errors import CorruptData
from magnetar.storage import names
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.log.recovery import build_index
from magnetar.storage.manifest import LevelZero
from magnetar.storage.volumes.volume import Volume

log = structlog.get_logger(__name__)

INDEXES_HELD_MAX = 64
INDEXED_RUNS_HELD_MAX = 100_000
"""Runs of indexes in memory, about half a kilobyte each, beyond those of the index that was used
last: a file of tiny runs has very many."""


class IndexCache:
    """Indexes, the least recently used dropped first."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._held: OrderedDict[str, LevelZeroIndex] = OrderedDict()
        self._runs = 0

    async def index(self, file: LevelZero) -> LevelZeroIndex:
        """The index of a sealed log file. Raises CorruptData, StorageError, FileNotFoundError."""
        name = names.index(file.incarnation, file.file)
        held = self._held.get(name)
        if held is None:
            held = await self._read(file, name)
            self._drop(name)  # another reader may have been faster
            self._held[name] = held
            held.on_decoded = self._count
        self._held.move_to_end(name)
        while len(self._held) > 1 and (
            len(self._held) > INDEXES_HELD_MAX or self._runs > INDEXED_RUNS_HELD_MAX
        ):
            self._drop(next(iter(self._held)))
        return held

    def keep_only(self, files: Collection[LevelZero]) -> None:
        """Drop the indexes of all other files."""
        for name in self._held.keys() - {
            names.index(file.incarnation, file.file) for file in files
        }:
            self._drop(name)

    def _count(self, runs: int) -> None:
        self._runs += runs

    def _drop(self, name: str) -> None:
        """Readers that use it still have it."""
        index = self._held.pop(name, None)
        if index is not None:
            self._runs -= index.runs_held
            index.on_decoded = None

    async def _read(self, file: LevelZero, name: str) -> LevelZeroIndex:
        try:
            return LevelZeroIndex.decode(await self._volume.read(name), name)
        except FileNotFoundError:
            log.warning("index.rebuilt", index=name, reason="missing")
        except CorruptData as error:
            log.error("index.rebuilt", index=name, reason=str(error))
            await self._volume.remove(name)
        return LevelZeroIndex.decode(await self.make_durable(file), name)

    async def make_durable(self, file: LevelZero) -> bytes:
        """Another broker's index on stable storage: its writer may have died before it wrote it,
        or before the name was synced."""
        name = names.index(file.incarnation, file.file)
        try:
            data = await self._volume.read(name)
        except FileNotFoundError:
            builder = await build_index(self._volume, file.incarnation, file.file, file.length)
            data = builder.encode(file.length)
        await self._volume.put_if_absent(name, data)
        return data
