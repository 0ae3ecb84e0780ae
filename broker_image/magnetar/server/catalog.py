"""What a bundle has in sealed files.

Owns: the bundle's manifest as this broker knows it, reads through level-0 indexes and compacted segments, and bringing the manifest up to date.
Imports: storage, topics.ledgers, metadata.
Invariants: only committed manifests are served, and never an older one after a newer one; a compacted view is used only up to its horizon; a file
that is missing is looked for in a fresh manifest first, and an entry that cannot be found is an error, never a gap.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import replace
from typing import NamedTuple

import structlog

from magnetar.errors import CorruptData, ServiceNotReady
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, LogPosition
from magnetar.names import BundleName, TopicName
from magnetar.server.context import BrokerContext
from magnetar.storage import names
from magnetar.storage.fencing import fence
from magnetar.storage.index import IndexBuilder, LevelZeroIndex, Run
from magnetar.storage.log_format import FILE_HEADER_BYTES, EntriesRecord
from magnetar.storage.manifest import Compacted, LevelZero, Manifest, SegmentReference, commit_manifest, load_manifest
from magnetar.storage.recovery import scan
from magnetar.storage.seals import read_seal
from magnetar.storage.segment import read_footer
from magnetar.storage.segment_format import HAS_REMOVED, TRAILER_BYTES, Block, Footer, decode_trailer
from magnetar.topics.dispatch import ReadRequest
from magnetar.topics.ledgers import EARLIEST, LedgerTable, Position
from magnetar.wire.checksum import verify_entry
from magnetar.wire.entries import parse_metadata
from magnetar.wire.pulsar_api_pb2 import MessageMetadata

log = structlog.get_logger(__name__)

INDEXES_HELD_MAX = 64
SEGMENTS_HELD_MAX = 32
BLOCKS_HELD_MAX = 8
FOOTER_READ_BYTES = 256 << 10
SEAL_WAIT_S = 5.0
SEAL_LOOK_S = 0.1


class CompactedRead(NamedTuple):
    """Consecutive surviving entries; without any, `first` is the first ordinal behind the horizon.

    `partial` has (ordinal, mask of the messages that are left) of entries whose batch lost some.
    """

    first: int
    entries: list[memoryview]
    message_counts: list[int]
    partial: list[tuple[int, int]]


def surviving_messages(metadata: MessageMetadata) -> int:
    """Mask of the messages of an entry that compaction left: bit i is 1 for message i."""
    mask = (1 << max(1, metadata.num_messages_in_batch)) - 1
    for index in metadata.compacted_batch_indexes:
        mask &= ~(1 << index)
    return mask


def last_surviving_message(metadata: MessageMetadata) -> int:
    """Index of the last message of a batch that compaction left, -1 if none.

    Counts down instead of building a mask: both fields are whatever a producer sent, and must not size an integer.
    """
    removed = set(metadata.compacted_batch_indexes)
    index = max(1, metadata.num_messages_in_batch) - 1
    while index >= 0 and index in removed:
        index -= 1
    return index


class _Segment:
    """A level-1 segment read through the volume, with the blocks read last."""

    def __init__(self, context: BrokerContext, reference: SegmentReference, footer: Footer) -> None:
        self._context, self._reference, self.footer = context, reference, footer
        self._lasts = [(block.last_ledger, block.last_entry) for block in footer.blocks]
        self._blocks: OrderedDict[int, Block] = OrderedDict()

    @staticmethod
    async def open(context: BrokerContext, reference: SegmentReference) -> _Segment:
        """Read the footer. Raises CorruptData, StorageError."""
        base = max(0, reference.length - FOOTER_READ_BYTES)
        tail = await context.volume.read(reference.object, base)
        start, _ = decode_trailer(tail[-TRAILER_BYTES:], reference.object)
        if start < base:
            base = start
            tail = await context.volume.read(reference.object, base)

        def read_range(offset: int, length: int) -> bytes:
            return tail[offset - base : offset - base + length]

        return _Segment(context, reference, read_footer(read_range, reference.length, reference.object))

    def block_at_or_after(self, position: tuple[int, ...]) -> int:
        """Number of the first block that ends at or after `position`, which must not lie behind the segment."""
        number = bisect_left(self._lasts, position)
        assert number < len(self._lasts), (position, self._reference)
        return number

    async def block(self, number: int) -> Block:
        """One block. Raises CorruptData, StorageError."""
        held = self._blocks.get(number)
        if held is None:
            entry = self.footer.blocks[number]
            data = await self._context.volume.read(self._reference.object, entry.offset, entry.length)
            held = self._blocks[number] = Block.decode(data, self._reference.object)
            while len(self._blocks) > BLOCKS_HELD_MAX:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return held


class BundleCatalog:
    """Sealed data of one bundle."""

    def __init__(self, context: BrokerContext, bundle: BundleName, manifest: Manifest | None) -> None:
        self._context, self._bundle, self._manifest = context, bundle, manifest
        self._indexes: OrderedDict[str, LevelZeroIndex] = OrderedDict()
        self._segments: OrderedDict[str, _Segment] = OrderedDict()

    @staticmethod
    async def open(context: BrokerContext, bundle: BundleName) -> BundleCatalog:
        """The catalog as committed now. Raises StoreError, StorageError."""
        catalog = BundleCatalog(context, bundle, None)
        await catalog.refresh()
        return catalog

    async def refresh(self) -> None:
        """Take over the manifest that the store points to, if it is newer than ours."""
        manifest, _, _ = await load_manifest(self._context.store, self._context.volume, self._bundle)
        if self._manifest is None or manifest.generation > self._manifest.generation:
            self._manifest = manifest

    # --- level 0 ---------------------------------------------------------------------------------------------------------------

    async def read(
        self, topic: TopicName, ledgers: LedgerTable, request: ReadRequest, bytes_max: int
    ) -> tuple[list[memoryview], list[int]]:
        """Entries of the request from one run of a sealed file, at least one. Raises StorageError."""
        position = ledgers.position(request.first)
        found = await self._find(str(topic), position)
        if found is None:
            await self.refresh()
            found = await self._find(str(topic), position)
        if found is None:
            raise CorruptData(f"entry {tuple(position)} of {topic} is in no file of bundle {self._bundle}'s manifest")
        name, run = found
        low = position.entry - run.first_entry
        offset = run.offset + sum(run.lengths[:low])
        high, size = low, 0
        while high < len(run.lengths) and high - low < request.entries and (high == low or size + run.lengths[high] <= bytes_max):
            size += run.lengths[high]
            high += 1
        data = memoryview(await self._context.volume.read(name, offset, size))
        if len(data) != size:
            raise CorruptData(f"{name} ends inside entry {tuple(position)} of {topic}")
        entries, at = [], 0
        for length in run.lengths[low:high]:
            entry = data[at : at + length]
            verify_entry(entry)
            entries.append(entry)
            at += length
        return entries, list(run.message_counts[low:high])

    async def _find(self, topic: str, position: Position) -> tuple[str, Run] | None:
        """The log file and run that hold an entry."""
        if self._manifest is None:
            return None
        epoch = position.ledger // 2
        for file in self._manifest.level0:
            if epoch not in file.epochs:
                continue
            index = await self._index(file)
            for run in index.runs(topic):
                if run.ledger == position.ledger and run.first_entry <= position.entry <= run.last_entry:
                    return names.log_file(file.incarnation, file.file), run
        return None

    async def _index(self, file: LevelZero) -> LevelZeroIndex:
        name = names.index(file.incarnation, file.file)
        held = self._indexes.get(name)
        if held is None:
            held = self._indexes[name] = LevelZeroIndex.decode(await self._read_index(file), name)
            while len(self._indexes) > INDEXES_HELD_MAX:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(name)
        return held

    async def _read_index(self, file: LevelZero) -> bytes:
        try:
            return await self._context.volume.read(names.index(file.incarnation, file.file))
        except FileNotFoundError:
            return await self._durable_index(file)  # lost, but everything in it is in the file as well

    # --- compacted view --------------------------------------------------------------------------------------------------------

    def compacted(self, topic: str) -> Compacted | None:
        """The committed compacted view of a topic, if there is one."""
        if self._manifest is None:
            return None
        segments = self._manifest.topics.get(topic)
        return segments.compacted if segments is not None else None

    async def read_compacted(self, topic: str, ledgers: LedgerTable, request: ReadRequest) -> CompactedRead:
        """The next surviving entry from the request on, with those that follow it without a gap. Raises StorageError."""
        view = self.compacted(topic)
        assert view is not None
        start = tuple(ledgers.position(request.first))
        for reference in view.segments:
            if reference.last < start:
                continue
            segment = await self._segment(reference)
            number = segment.block_at_or_after(start)
            block = await segment.block(number)
            row = block.row_at_or_after(*start)
            return self._consecutive(block, row, ledgers, request.entries)
        return CompactedRead(ledgers.ordinal_after(view.horizon), [], [], [])

    @staticmethod
    def _consecutive(block: Block, row: int, ledgers: LedgerTable, limit: int) -> CompactedRead:
        """Rows of one block from `row` on whose ordinals follow each other."""
        first = ledgers.find((block.ledgers[row], block.entries[row]))
        assert first is not None, "a compacted entry is one of the topic's"
        found = CompactedRead(first, [], [], [])
        for at in range(row, min(len(block.entries), row + limit)):
            ordinal = first + len(found.entries)
            if ledgers.find((block.ledgers[at], block.entries[at])) != ordinal:
                break
            entry = block.payload(at)
            if block.flags[at] & HAS_REMOVED:
                found.partial.append((ordinal, surviving_messages(parse_metadata(entry))))
            found.entries.append(entry)
            found.message_counts.append(block.message_counts[at])
        return found

    async def last_compacted(self, topic: str) -> tuple[Position, memoryview | None]:
        """The last surviving entry of the compacted view; (EARLIEST, None) if it is empty."""
        view = self.compacted(topic)
        assert view is not None
        if not view.segments:
            return EARLIEST, None
        segment = await self._segment(view.segments[-1])
        block = await segment.block(len(segment.footer.blocks) - 1)
        last = len(block.entries) - 1
        return Position(block.ledgers[last], block.entries[last]), block.payload(last)

    async def _segment(self, reference: SegmentReference) -> _Segment:
        held = self._segments.get(reference.object)
        if held is None:
            held = self._segments[reference.object] = await _Segment.open(self._context, reference)
            while len(self._segments) > SEGMENTS_HELD_MAX:
                self._segments.popitem(last=False)
        self._segments.move_to_end(reference.object)
        return held

    # --- bringing the manifest up to date --------------------------------------------------------------------------------------

    async def cover(self, record: BundleRecord, position: LogPosition) -> None:
        """List every log file of the bundle's chain before `position` of our log in the manifest.

        Raises StoreError, StorageError; ServiceNotReady while a broker that gave us the bundle has not sealed its file yet.
        """
        files = [file for file in await self._files(record, position) if not self._listed(file)]
        if not files:
            return
        for file in files:
            if file.incarnation != self._context.incarnation:  # our own have been made durable before a roll returns
                await self._durable_index(file)

        def edit(manifest: Manifest) -> Manifest | None:
            known = {(entry.incarnation, entry.file): entry for entry in manifest.level0}
            for file in files:
                before = known.get((file.incarnation, file.file))
                epochs = set(file.epochs) | set(before.epochs if before is not None else ())
                known[file.incarnation, file.file] = replace(file, epochs=tuple(sorted(epochs)))
            merged = tuple(known.values())
            return None if merged == manifest.level0 else replace(manifest, level0=merged)

        committed = await commit_manifest(self._context.store, self._context.volume, self._context.clock, self._bundle, edit)
        self._manifest = committed.manifest

    async def _durable_index(self, file: LevelZero) -> bytes:
        """The index of somebody else's file, on stable storage: its writer may have died before it wrote one, or before the name was synced."""
        name = names.index(file.incarnation, file.file)
        try:
            data = await self._context.volume.read(name)
        except FileNotFoundError:
            data = await self._build_index(file)
        await self._context.volume.put_if_absent(name, data)
        return data

    async def _build_index(self, file: LevelZero) -> bytes:
        builder = IndexBuilder(file.incarnation, file.file)
        start, end = LogPosition(file.file, FILE_HEADER_BYTES), LogPosition(file.file, file.length)
        async for scanned in scan(self._context.volume, file.incarnation, start, end):
            if isinstance(scanned.record, EntriesRecord):
                builder.add(scanned.record, scanned.place.offset)
        return builder.encode(file.length)

    def _listed(self, file: LevelZero) -> bool:
        listed = self._manifest.level0 if self._manifest is not None else ()
        return any(
            (known.incarnation, known.file) == (file.incarnation, file.file) and set(file.epochs) <= set(known.epochs)
            for known in listed
        )

    async def _files(self, record: BundleRecord, position: LogPosition) -> list[LevelZero]:
        """The chain as files. A file that a living broker shares with us is listed only once it is sealed."""
        epochs: dict[tuple[str, int], set[int]] = {}
        for term, span in zip(record.epochs, record.chain, strict=True):
            own = span.end is None
            end = position if span.end is None else span.end
            last = end.file - 1 if own or end.offset <= 0 else end.file
            for number in range(span.start.file, last + 1):
                epochs.setdefault((span.incarnation, number), set()).add(term)
        found = []
        for (incarnation, number), terms in epochs.items():
            length = await self._sealed_length(incarnation, number)
            if length:
                found.append(LevelZero(incarnation=incarnation, file=number, length=length, epochs=tuple(sorted(terms))))
        return found

    async def _sealed_length(self, incarnation: str, number: int) -> int:
        clock = self._context.clock
        deadline = clock.monotonic() + SEAL_WAIT_S
        while True:
            length = await read_seal(self._context.volume, incarnation, number)
            if length is not None:
                return length
            if clock.monotonic() > deadline:
                if await self._context.store.get(keys.incarnation(incarnation)) is None:
                    # It gave us the bundle and died before it sealed; if it had no other bundle, nobody else will ever fence it.
                    await fence(self._context.volume, incarnation)
                    continue
                raise ServiceNotReady(f"log file {number} of {incarnation} is not sealed yet; try again in a moment")
            await asyncio.sleep(SEAL_LOOK_S)
