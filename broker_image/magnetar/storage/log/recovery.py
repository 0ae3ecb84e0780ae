"""Reading logs back.

Owns: `LogBlocks`, the walk over the blocks of one file that sealing and recovery share, and `scan`,
the walk over records of many files. Imports: asyncio, errors, metadata records, storage formats.
Invariants: a bad block below the sealed length is an error and never skipped; nothing beyond the
end asked for is returned; an intact block behind a bad one is an error too, since a writer never
starts a block before the one before it is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container
from typing import NamedTuple

from magnetar.errors import CorruptData
from magnetar.metadata.records import LogPosition
from magnetar.storage import names
from magnetar.storage.log.blocks import (
    BLOCK_BODY_BYTES_MAX,
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC_BYTES,
    FILE_HEADER_BYTES,
    BlockHeader,
    FileHeader,
    block_is_intact,
    block_seed,
    decode_block_header,
    decode_file_header,
)
from magnetar.storage.log.format import EntriesRecord, Record, decode_records
from magnetar.storage.log.index import IndexBuilder
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.seals import read_seal, read_whole_seal
from magnetar.storage.volumes.volume import Volume

READ_BYTES = 4 * 1024 * 1024
SEARCH_BYTES_MAX = BLOCK_BODY_BYTES_MAX + 2 * BLOCK_HEADER_BYTES
RECORDS_PER_TURN_MAX = 256


class ScannedRecord(NamedTuple):
    """A record, where its payload begins, and the `elapsed_ms` of its block."""

    place: RecordPlace
    record: Record
    elapsed_ms: int


class LogBlocks:
    """The blocks of one log file from `start` on, in order, up to `limit` bytes or the first one
    that is not intact.

    After each step `end` is the offset behind the last intact block, `last` that of its first byte
    (both `start` if there was none), and `elapsed_ms` its time.
    """

    def __init__(
        self, volume: Volume, incarnation: str, number: int, start: int, limit: int | None
    ) -> None:
        assert start >= FILE_HEADER_BYTES, start
        self.name = names.log_file(incarnation, number)
        self.end = self.last = start
        self.sequence = -1
        self.elapsed_ms = 0
        self._volume, self._limit = volume, limit
        self._seed = block_seed(incarnation, number)
        self._data = memoryview(b"")
        self._base = start

    async def __aiter__(self) -> AsyncIterator[tuple[int, memoryview]]:
        """(offset of the body in the file, body) of each block."""
        while (header := await self._next_header()) is not None:
            self.last, self.sequence, self.elapsed_ms = self.end, header.sequence, header.elapsed_ms
            self.end += BLOCK_HEADER_BYTES + header.body_bytes
            body_at = self.last + BLOCK_HEADER_BYTES
            yield body_at, self._data[body_at - self._base : self.end - self._base]

    async def _next_header(self) -> BlockHeader | None:
        """The header of the block at `end`, all of which is in memory and intact; None if there
        is none."""
        if self._limit is not None and self.end >= self._limit:
            return None
        await self._have(BLOCK_HEADER_BYTES)
        header = decode_block_header(self._data, self.end - self._base, self.end)
        if header is None or (self.sequence >= 0 and header.sequence != self.sequence + 1):
            return None
        await self._have(BLOCK_HEADER_BYTES + header.body_bytes)
        return (
            header
            if block_is_intact(self._data, self.end - self._base, header, self._seed)
            else None
        )

    async def _have(self, size: int) -> None:
        """Have `size` bytes from `end` in memory, if the file (below the limit) has them."""
        if self.end - self._base + size <= len(self._data):
            return
        length = max(size, READ_BYTES)
        if self._limit is not None:
            length = min(length, self._limit - self.end)
        self._data = memoryview(await self._volume.read(self.name, self.end, length))
        self._base = self.end

    async def check_nothing_follows(self) -> None:
        """Distinguish a torn tail from damage: raises CorruptData if an intact block lies behind
        the end of the intact ones.

        The next block begins within the longest a block can be; looking that far is what makes
        sealing safe against a flipped bit.
        """
        raw = await self._volume.read(self.name, self.end, SEARCH_BYTES_MAX)
        data = memoryview(raw)
        at = raw.find(BLOCK_MAGIC_BYTES, 1)
        while at >= 0:
            header = decode_block_header(data, at, self.end + at)
            if header is not None and header.sequence > self.sequence:
                block = data[at:]
                if len(block) < BLOCK_HEADER_BYTES + header.body_bytes:
                    block = memoryview(
                        await self._volume.read(
                            self.name, self.end + at, BLOCK_HEADER_BYTES + header.body_bytes
                        )
                    )
                if block_is_intact(block, 0, header, self._seed) and not await self._grew():
                    raise CorruptData(
                        f"{self.name}: the block at {self.end} is damaged, an intact one follows "
                        f"at {self.end + at}; restore this file",
                        file=self.name,
                        offset=self.end,
                    )
            at = raw.find(BLOCK_MAGIC_BYTES, at + 1)

    async def _grew(self) -> bool:
        """Whether there is an intact block at `end` by now: its writer is alive and continued."""
        self._data, self._base = memoryview(b""), self.end
        return await self._next_header() is not None


async def read_file_header(volume: Volume, incarnation: str, number: int) -> FileHeader:
    """The header of a log file. Raises CorruptData if it is damaged or not this file's,
    FileNotFoundError."""
    name = names.log_file(incarnation, number)
    try:
        header = decode_file_header(await volume.read(name, 0, FILE_HEADER_BYTES))
    except CorruptData as error:
        if error.file:
            raise
        raise CorruptData(f"{name}: {error}", file=name, offset=0) from error
    if (header.incarnation, header.number) != (incarnation, number):
        raise CorruptData(
            f"{name}: is file {header.number} of {header.incarnation}; the volume was tampered with"
        )
    return header


async def list_log_files(volume: Volume, incarnation: str) -> list[int]:
    """Numbers of an incarnation's log files, in order."""
    found = [names.log_number(name) for name in await volume.list(names.logs_of(incarnation))]
    return sorted(number for number in found if number is not None)


async def scan(
    volume: Volume,
    incarnation: str,
    start: LogPosition,
    end: LogPosition | None,
    terms: Container[int] | None = None,
) -> AsyncIterator[ScannedRecord]:
    """Records of an incarnation's log in [start, end), in order; `end` None means up to the last
    durable record, `terms` None those of all epochs.

    `start` and `end` are ends of blocks (or offset 0: the file's first). Views point into the bytes
    that were read. Raises CorruptData for any damage below a seal or below `end`, StorageError.
    """
    async for number, body_at, body, elapsed_ms in scan_blocks(volume, incarnation, start, end):
        found = _decoded(names.log_file(incarnation, number), body_at, body, terms)
        for decoded, (payload_at, record) in enumerate(found, 1):
            yield ScannedRecord(RecordPlace(number, body_at + payload_at), record, elapsed_ms)
            if decoded % RECORDS_PER_TURN_MAX == 0:
                await asyncio.sleep(0)


async def scan_blocks(
    volume: Volume, incarnation: str, start: LogPosition, end: LogPosition | None
) -> AsyncIterator[tuple[int, int, memoryview, int]]:
    """(file, offset of the body in it, body, its `elapsed_ms`) of every block in a range, as
    `scan`."""
    for number in await _files_between(volume, incarnation, start, end):
        begin = max(FILE_HEADER_BYTES, start.offset if number == start.file else 0)
        seal = await read_whole_seal(volume, incarnation, number)
        limit = None if seal is None else seal.length
        cut = seal is not None and seal.accepted
        if end is not None and number == end.file:
            if limit is not None and limit < end.offset and not cut:
                raise CorruptData(
                    f"{names.log_file(incarnation, number)}: sealed at {limit}, but {end.offset} "
                    "was acknowledged"
                )
            limit = end.offset if limit is None else min(limit, end.offset)
        if limit is not None and limit <= begin:
            if cut:
                return
            continue
        await read_file_header(volume, incarnation, number)
        blocks = LogBlocks(volume, incarnation, number, begin, limit)
        async for body_at, body in blocks:
            yield number, body_at, body, blocks.elapsed_ms
            await asyncio.sleep(0)
        if limit is None:
            await blocks.check_nothing_follows()
        elif blocks.end != limit:
            raise CorruptData(
                f"{blocks.name}: damaged at {blocks.end}, below its sealed length {limit}; restore "
                "this file",
                file=blocks.name,
                offset=blocks.end,
            )
        if cut:
            return  # what follows is lost, and that is accepted


async def scan_part(
    volume: Volume, incarnation: str, start: LogPosition, end: LogPosition, terms: Container[int]
) -> AsyncIterator[ScannedRecord]:
    """As `scan`, of a range within one file that is known to be durable up to `end`: it is read,
    and nothing else is asked of the volume."""
    assert start.file == end.file, (start, end)
    begin = max(FILE_HEADER_BYTES, start.offset)
    if end.offset <= begin:
        return
    blocks = LogBlocks(volume, incarnation, start.file, begin, end.offset)
    async for body_at, body in blocks:
        for at, record in _decoded(blocks.name, body_at, body, terms):
            yield ScannedRecord(RecordPlace(start.file, body_at + at), record, blocks.elapsed_ms)
    if blocks.end != end.offset:
        seal = await read_whole_seal(volume, incarnation, start.file)
        if seal is not None and seal.accepted and blocks.end >= seal.length:
            return
        raise CorruptData(
            f"{blocks.name}: damaged at {blocks.end}, below {end.offset} which was acknowledged; "
            "restore this file",
            file=blocks.name,
            offset=blocks.end,
        )


async def scan_durable(
    volume: Volume, incarnation: str, start: LogPosition, terms: Container[int]
) -> AsyncIterator[tuple[LogPosition, list[ScannedRecord]]]:
    """Blocks (where each ends, and its records of `terms`) from `start` on of a log whose owner may
    live, as far as they are durable for certain.

    Of a file that is not sealed that is all but the last block: a writer starts none before the one
    before is on stable storage, and a block that it could not flush stays the last one. Ends
    without an error where nothing more can be said; damage is for recovery to name. Raises
    StorageError.
    """
    numbers = [
        number for number in await list_log_files(volume, incarnation) if number >= start.file
    ]
    for expected, number in enumerate(numbers, start.file):
        limit = await read_seal(volume, incarnation, number)
        begin = max(FILE_HEADER_BYTES, start.offset if number == start.file else 0)
        if number != expected:
            return
        if limit is not None and limit <= begin:
            continue
        blocks = LogBlocks(volume, incarnation, number, begin, limit)
        held: tuple[LogPosition, list[ScannedRecord]] | None = None
        async for body_at, body in blocks:
            if held is not None:
                yield held
            found = _decoded(blocks.name, body_at, body, terms)
            records = [
                ScannedRecord(RecordPlace(number, body_at + at), record, blocks.elapsed_ms)
                for at, record in found
            ]
            held = LogPosition(number, blocks.end), records
            await asyncio.sleep(0)
        if limit is None or blocks.end != limit:
            return
        if held is not None:
            yield held


async def build_index(volume: Volume, incarnation: str, number: int, length: int) -> IndexBuilder:
    """The index of a file sealed at `length`, from the file itself: everything in an index is in
    its file as well. Raises as `scan`."""
    builder = IndexBuilder(incarnation, number)
    async for scanned in scan(
        volume, incarnation, LogPosition(number, FILE_HEADER_BYTES), LogPosition(number, length)
    ):
        if isinstance(scanned.record, EntriesRecord):
            builder.add(scanned.record, scanned.place.offset)
    return builder


def _decoded(
    name: str, body_at: int, body: memoryview, terms: Container[int] | None
) -> list[tuple[int, Record]]:
    try:
        return list(decode_records(body, terms))
    except CorruptData as error:
        raise CorruptData(f"{name}: block at {body_at - BLOCK_HEADER_BYTES}: {error}") from error


async def _files_between(
    volume: Volume, incarnation: str, start: LogPosition, end: LogPosition | None
) -> list[int]:
    """The files to read, up to one whose loss was accepted. Raises CorruptData if one that must
    be there is missing."""
    numbers = [
        number
        for number in await list_log_files(volume, incarnation)
        if start.file <= number and (end is None or number <= end.file)
    ]
    last = (
        end.file
        if end is not None and end.offset > FILE_HEADER_BYTES
        else numbers[-1]
        if numbers
        else start.file - 1
    )
    missing = sorted(set(range(start.file, last + 1)) - set(numbers))
    if missing:
        seal = await read_whole_seal(volume, incarnation, missing[0])
        if seal is not None and seal.accepted:
            return [number for number in numbers if number < missing[0]]
        name = names.log_file(incarnation, missing[0])
        raise CorruptData(
            f"{name} is missing; the chain needs it: restore it from a backup", file=name
        )
    return numbers
