"""What a bundle has in sealed files.

Owns: the bundle's manifest as this broker knows it, and reads through level-0 indexes, level-1
segments and compacted views. Imports: storage, topics.ledgers, siblings. Invariants: only committed
manifests are served, and never an older one after a newer one; a compacted view is used only up to
its horizon; a file that is missing is looked for in a fresh manifest first, and an entry that
cannot be found is an error, never a gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.broker.reading.coverage import commit_in_term, files_of_chain
from magnetar.broker.reading.entry_checks import PieceOfRun, checked_entries
from magnetar.broker.reading.indexes import IndexCache
from magnetar.broker.reading.segments import SegmentCache
from magnetar.errors import CorruptData, StoreError
from magnetar.metadata.records import BundleRecord, LogPosition
from magnetar.names import BundleName, TopicName, sidecar_of
from magnetar.storage import names
from magnetar.storage.log.index import Run
from magnetar.storage.manifest import (
    Compacted,
    Manifest,
    SegmentReference,
    committed_generation,
    load_manifest,
)
from magnetar.storage.segments.format import HAS_REMOVED, Block
from magnetar.topics.dispatch.base import ReadRequest
from magnetar.topics.ledger_ids import epoch_of
from magnetar.topics.ledgers import EARLIEST, LedgerTable, Position
from magnetar.wire.entries import readable_entry
from magnetar.wire.pulsar_api_pb2 import MessageMetadata

log = structlog.get_logger(__name__)

READ_BYTES_MAX = 4 << 20

F = TypeVar("F")
Sources = Callable[[tuple[int, int]], tuple[tuple[int, int], int] | None]
"""The place in the sidecar of an entry that a transaction has published, and how many follow it
on both sides; None for any other."""


class Located(NamedTuple):
    """Where entries lie: `entries` of them from number `low` of a run on, which the log file
    `name` has under `topic` (a sidecar has another)."""

    topic: str
    name: str
    run: Run
    low: int
    entries: int


class CompactedRead(NamedTuple):
    """Consecutive surviving entries; without any, `first` is the first ordinal behind the horizon.

    `partial` has (ordinal, mask of the messages that are left) of entries whose batch lost some.
    """

    first: int
    entries: list[memoryview]
    message_counts: list[int]
    partial: list[tuple[int, int]]
    append_times: list[int]


def surviving_messages(metadata: MessageMetadata) -> int:
    """Mask of the messages of an entry that compaction left: bit i is 1 for message i."""
    mask = (1 << max(1, metadata.num_messages_in_batch)) - 1
    for index in metadata.compacted_batch_indexes:
        mask &= ~(1 << index)
    return mask


def last_surviving_message(metadata: MessageMetadata) -> int:
    """Index of the last message of a batch that compaction left, -1 if none.

    Counts down instead of building a mask: a producer chose both fields, which must not size an
    integer.
    """
    removed = set(metadata.compacted_batch_indexes)
    index = max(1, metadata.num_messages_in_batch) - 1
    while index >= 0 and index in removed:
        index -= 1
    return index


def _consecutive(
    block: Block,
    row: int,
    ledgers: LedgerTable,
    entries_max: int,
    bytes_max: int = READ_BYTES_MAX,
) -> CompactedRead:
    """Rows of one block from `row` on whose ordinals follow each other, at least one."""
    first = ledgers.known((block.ledgers[row], block.entries[row]))
    assert first is not None, "an entry of a segment is one of the topic's"
    found = CompactedRead(first, [], [], [], [])
    size = 0
    for at in range(row, min(len(block.entries), row + entries_max)):
        ordinal = first + len(found.entries)
        if ledgers.known((block.ledgers[at], block.entries[at])) != ordinal:
            break
        entry = block.payload(at)
        size += len(entry)
        if found.entries and size > bytes_max:
            break
        if block.flags[at] & HAS_REMOVED:
            readable = readable_entry(entry)
            if readable is not None:
                found.partial.append((ordinal, surviving_messages(readable.metadata)))
        found.entries.append(entry)
        found.message_counts.append(block.message_counts[at])
        found.append_times.append(block.append_times[at])
    return found


class BundleCatalog:
    """Sealed data of one bundle."""

    def __init__(
        self, context: BrokerContext, bundle: BundleName, manifest: Manifest | None
    ) -> None:
        self._context, self._bundle, self._manifest = context, bundle, manifest
        self._indexes = IndexCache(context.volume)
        self.index = self._indexes.index
        self._segments = SegmentCache(context.volume)
        self._belongs: dict[str, bool] = {}

    @staticmethod
    async def open(context: BrokerContext, bundle: BundleName) -> BundleCatalog:
        """The catalog as committed now. Raises StoreError, StorageError."""
        catalog = BundleCatalog(context, bundle, None)
        await catalog.refresh()
        return catalog

    async def refresh(self) -> None:
        """Take the manifest that the store points to, if it is newer than ours: else it is not
        read."""
        known = self._manifest
        if (
            known is not None
            and await committed_generation(self._context.store, self._bundle) <= known.generation
        ):
            return
        manifest, _, _ = await load_manifest(
            self._context.store, self._context.volume, self._bundle
        )
        self.take(manifest)

    def take(self, manifest: Manifest) -> None:
        """Serve this committed manifest from now on, if it is newer than ours."""
        if self._manifest is None or manifest.generation > self._manifest.generation:
            self._manifest = manifest
            self._indexes.keep_only(manifest.level0)

    @property
    def manifest(self) -> Manifest:
        """The newest committed manifest this broker has seen."""
        return self._manifest if self._manifest is not None else Manifest(str(self._bundle), 0)

    # --- reading ----------------------------------------------------------------------------------

    async def read(
        self,
        topic: TopicName,
        ledgers: LedgerTable,
        request: ReadRequest,
        bytes_max: int,
        sources: Sources | None = None,
    ) -> tuple[list[memoryview], list[int]]:
        """Entries of the request from one run of a sealed file or one block of a segment, at least
        one. Raises StorageError.

        `sources` if the topic was used with transactions, whose entries lie in its sidecar until
        they are compacted.
        """
        position = ledgers.position(request.first)

        async def once() -> tuple[list[memoryview], list[int]] | None:
            if (place := await self._row(str(topic), position)) is not None:
                found = _consecutive(*place, ledgers, request.entries, bytes_max)
                return found.entries, found.message_counts
            located = await self._locate(str(topic), position, request.entries, sources)
            return None if located is None else await self._read_run(*located, bytes_max)

        return await self._looked_for(str(topic), position, once)

    async def facts(
        self,
        topic: TopicName,
        ledgers: LedgerTable,
        first: int,
        sources: Sources | None,
        entries_max: int,
    ) -> tuple[Sequence[int], Sequence[int]]:
        """(message counts, append times) of the entries from `first` on that lie in one place,
        at least one. Raises as `read`."""
        position = ledgers.position(first)

        async def once() -> tuple[Sequence[int], Sequence[int]] | None:
            if (place := await self._row(str(topic), position)) is not None:
                block, row = place
                found = _consecutive(block, row, ledgers, entries_max)
                return found.message_counts, block.append_times[row : row + len(found.entries)]
            located = await self._locate(str(topic), position, entries_max, sources)
            if located is None:
                return None
            _, _, run, low, entries = located
            counts = run.message_counts[low : low + entries]
            return counts, [run.append_ms] * len(counts)

        return await self._looked_for(str(topic), position, once)

    async def count(
        self,
        topic: TopicName,
        ledgers: LedgerTable,
        first: int,
        sources: Sources | None,
        entries_max: int,
    ) -> tuple[int, int]:
        """(entries, messages) from `first` on that lie in one place: whole blocks of segments
        are not read for it. Raises as `read`."""
        position = ledgers.position(first)

        async def whole_block() -> tuple[int, int]:
            reference = self._level_one(str(topic), position)
            if reference is not None:
                footer = (segment := await self._segments.segment(reference)).footer
                block = footer.blocks[segment.block_at_or_after(position)]
                last = ledgers.find((block.last_ledger, block.last_entry))
                if (
                    block.first_ledger,
                    block.first_entry,
                ) == position and last == first + block.rows - 1 < first + entries_max:
                    return block.rows, block.messages
            return 0, 0

        passed, messages = await self._looked_for(str(topic), position, whole_block)
        if passed:
            return passed, messages
        counts, _ = await self.facts(topic, ledgers, first, sources, entries_max)
        return len(counts), sum(counts)

    async def _looked_for(
        self, topic: str, position: Position, once: Callable[[], Awaitable[F | None]]
    ) -> F:
        """What `once` finds of an entry; called again if files were rewritten during the read.
        Raises StorageError."""
        for attempt in (1, 2):
            try:
                found = await once()
                if found is not None:
                    return found
                missing = ""
            except FileNotFoundError as error:
                missing = f": {error.filename or error} is missing"
            except CorruptData as error:
                if attempt == 2 or not error.file or await self._context.volume.exists(error.file):
                    raise
                missing = f": {error.file} is missing"  # with its index
            if attempt == 1:
                # A rewrite was committed, and its inputs were collected.
                await self.refresh()
        raise CorruptData(
            f"entry {tuple(position)} of {topic} is in no file of bundle {self._bundle}'s "
            f"manifest{missing}",
            topic=topic,
            first=(position.ledger, position.entry),
        )

    async def _locate(
        self, topic: str, position: Position, entries: int, sources: Sources | None
    ) -> Located | None:
        """The log file and run that hold an entry, and how many of those from it on may be taken
        from there."""
        linked = sources(position) if sources is not None else None
        if linked is not None:
            position, topic = Position(*linked[0]), sidecar_of(topic)
            entries = min(entries, linked[1])
        epoch = epoch_of(position.ledger)
        for file in self.manifest.level0:
            if epoch in file.epochs:
                run = (await self.index(file)).run_of(topic, *position)
                if run is not None:
                    name = names.log_file(file.incarnation, file.file)
                    return Located(topic, name, run, position.entry - run.first_entry, entries)
        return None

    async def _row(self, topic: str, position: Position) -> tuple[Block, int] | None:
        """The block of a level-1 segment and the row in it that hold an entry."""
        reference = self._level_one(topic, position)
        if reference is None:
            return None
        segment = await self._segments.segment(reference)
        block = await segment.block(segment.block_at_or_after(position))
        row = block.row_at_or_after(*position)
        return (block, row) if (block.ledgers[row], block.entries[row]) == position else None

    def _level_one(self, topic: str, position: Position) -> SegmentReference | None:
        """The level-1 segment whose span holds the position."""
        segments = self.manifest.topic(topic).level1
        at = bisect_right(segments, tuple(position), key=lambda segment: segment.first) - 1
        return segments[at] if at >= 0 and position <= segments[at].last else None

    async def _read_run(
        self, topic: str, name: str, run: Run, low: int, entries_max: int, bytes_max: int
    ) -> tuple[list[memoryview], list[int]]:
        offset = run.offset + sum(run.lengths[:low])
        high, size = low, 0
        while (
            high < len(run.lengths)
            and high - low < entries_max
            and (high == low or size + run.lengths[high] <= bytes_max)
        ):
            size += run.lengths[high]
            high += 1
        data = memoryview(await self._context.volume.read(name, offset, size))
        entries = checked_entries(
            data,
            run.lengths[low:high],
            PieceOfRun(name, offset, topic, run.ledger, run.first_entry + low),
        )
        return entries, list(run.message_counts[low:high])

    # --- compacted view ---------------------------------------------------------------------------

    def compacted(self, topic: str) -> Compacted | None:
        """The committed compacted view of a topic, if there is one."""
        if self._manifest is None:
            return None
        segments = self._manifest.topics.get(topic)
        return segments.compacted if segments is not None else None

    async def read_compacted(
        self, topic: str, ledgers: LedgerTable, request: ReadRequest
    ) -> CompactedRead:
        """The next surviving entry from the request on, with those that follow it without a gap.
        Raises StorageError."""
        try:
            return await self._read_compacted_once(topic, ledgers, request)
        except FileNotFoundError:
            # a later compaction replaced the view, and its segments were deleted
            await self.refresh()
        try:
            return await self._read_compacted_once(topic, ledgers, request)
        except FileNotFoundError as error:
            raise CorruptData(
                f"{error.filename or error}, a segment of the compacted view of {topic}, is "
                "missing; restore it or compact again"
            ) from error

    async def _read_compacted_once(
        self, topic: str, ledgers: LedgerTable, request: ReadRequest
    ) -> CompactedRead:
        view = self.compacted(topic)
        assert view is not None
        ordinal, behind = request.first, ledgers.ordinal_after(view.horizon)
        while ordinal < behind:
            place = await self._viewed_row(view, ledgers.position(ordinal))
            if place is None:
                break
            block, row = place
            position = block.ledgers[row], block.entries[row]
            if ledgers.known(position) is not None:
                return _consecutive(block, row, ledgers, request.entries)
            # The topic has lost this entry with a log file whose loss was accepted.
            ordinal = ledgers.clamp_known(position)
        return CompactedRead(behind, [], [], [], [])

    async def _viewed_row(self, view: Compacted, start: Position) -> tuple[Block, int] | None:
        """The block of a view and the row in it with its first entry from `start` on."""
        for reference in view.segments:
            if reference.last >= start:
                segment = await self._segments.segment(reference)
                block = await segment.block(segment.block_at_or_after(start))
                return block, block.row_at_or_after(*start)
        return None

    async def last_compacted(
        self, topic: str, ledgers: LedgerTable
    ) -> tuple[Position, memoryview | None]:
        """The last surviving entry of the compacted view; (EARLIEST, None) if it is empty, or the
        topic was truncated behind it.

        A view keeps entries that a truncation has dropped, which no reader may get.
        """
        view = self.compacted(topic)
        assert view is not None
        if not view.segments:
            return EARLIEST, None
        segment = await self._segments.segment(view.segments[-1])
        block = await segment.block(len(segment.footer.blocks) - 1)
        last = len(block.entries) - 1
        position = Position(block.ledgers[last], block.entries[last])
        return (
            (position, block.payload(last))
            if ledgers.known(position) is not None
            else (EARLIEST, None)
        )

    # --- bringing the manifest up to date ---------------------------------------------------------

    async def cover(self, record: BundleRecord, position: LogPosition) -> None:
        """List every log file of the bundle's chain before `position` of our log in the manifest.
        Raises as `files_of_chain`."""
        reached = (record.epochs[-1], position.file)
        before = self.manifest.covered
        if before is not None and reached <= before:
            return
        files = []
        for file in await files_of_chain(self._context, record, position):
            if before is not None and all((epoch, file.file) < before for epoch in file.epochs):
                continue
            # our own have been made durable before a roll returns
            if file.incarnation != self._context.incarnation:
                await self._indexes.make_durable(file)
            if any(self.holds(topic) for topic in (await self.index(file)).topics()):
                files.append(file)
        known = self.manifest.generation

        def edit(manifest: Manifest) -> Manifest | None:
            if manifest.generation < known:
                # It was split, or the store is lost: a restore would believe what is written
                # on top.
                raise StoreError(
                    f"manifest of {self._bundle}: the store has forgotten generation {known}"
                )
            covered = manifest.with_files(files, reached)
            return None if covered == manifest else covered

        self.take(await commit_in_term(self._context, self._bundle, record.epochs[-1], edit))

    def holds(self, topic: str) -> bool:
        """Whether a topic falls into this bundle."""
        known = self._belongs.get(topic)
        if known is None:
            known = self._belongs[topic] = self._bundle.contains(TopicName.parse(topic))
        return known
