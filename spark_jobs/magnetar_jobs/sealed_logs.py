"""The sealed part of a bundle's recovery chain, record by record.

Owns: `SealedChain`: how far the chain lies in sealed files, and its records in the order in which
they were written. Imports: metadata records, storage formats. Invariants: only sealed files are
read, up to the first that is not sealed, and nothing behind that one; of a term nothing counts
behind its RELEASE; what a job learns from these records its bundle's next owner would learn as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from magnetar.metadata.records import BundleRecord, LogPosition, LogRange
from magnetar.names import BundleName
from magnetar.storage.log.format import Record, ReleaseRecord
from magnetar.storage.log.recovery import scan
from magnetar.storage.log.seals import read_seal
from magnetar.storage.manifest import LevelZero
from magnetar.storage.volumes.volume import Volume

NO_TERM = 1 << 63
"""Greater than any epoch."""


@dataclass(frozen=True, slots=True)
class SealedChain:
    """`parts` are the terms of a chain with the ranges of logs that are sealed. The term `rest`
    goes on in files that are not sealed, behind its file `file` (NO_TERM: there are none)."""

    parts: tuple[tuple[int, LogRange], ...] = ()
    rest: int = NO_TERM
    file: int = -1

    @staticmethod
    async def of(volume: Volume, record: BundleRecord) -> SealedChain:
        """That of a bundle. Raises StorageError."""
        parts: list[tuple[int, LogRange]] = []
        for term, part in zip(record.epochs, record.chain, strict=True):
            end, whole = await _sealed_end(volume, part)
            if end > part.start:
                parts.append((term, LogRange(part.incarnation, part.start, end)))
            if not whole:
                last = end.file if end > part.start else part.start.file - 1
                return SealedChain(tuple(parts), term, last)
        return SealedChain(tuple(parts))

    def holds(self, file: LevelZero) -> bool:
        """Whether all that the bundle has in this listed file was written before the end of the
        chain's sealed part."""
        return all((epoch, file.file) <= (self.rest, self.file) for epoch in file.epochs)

    async def records(self, volume: Volume, bundle: BundleName) -> AsyncIterator[Record]:
        """What the terms have written, of all bundles that share the logs. Raises CorruptData,
        StorageError, FileNotFoundError."""
        for term, part in self.parts:
            assert part.end is not None
            async for _, record, _ in scan(volume, part.incarnation, part.start, part.end, (term,)):
                if not isinstance(record, ReleaseRecord):
                    yield record
                elif BundleName.parse(record.bundle).includes(bundle):
                    break


async def _sealed_end(volume: Volume, part: LogRange) -> tuple[LogPosition, bool]:
    """Up to where a range lies in sealed files, one after another, and whether that is all of
    it."""
    number, reached = part.start.file, part.start
    while part.end is None or number <= part.end.file:
        if part.end is not None and part.end <= LogPosition(number, 0):
            break
        length = await read_seal(volume, part.incarnation, number)
        if length is None:
            return reached, False
        if part.end is not None and number == part.end.file:
            return part.end, True
        reached = max(reached, LogPosition(number, length))
        number += 1
    return reached, True
