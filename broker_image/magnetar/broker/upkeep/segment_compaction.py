"""Segment compaction: from log files that many topics share to level-1 segments.

Owns: reading the inputs of one round, writing its outputs. Imports: storage, siblings. The choice
is `storage.segments.level_one`, the commit `manifest_compaction`. Invariants: an entry keeps its
bytes, its position and its append time; every entry taken from a log file is compared with its
client's checksum, so damage is never copied; segments span no gap; memory is bounded by one
segment; no more than `rewrite_bytes_per_s` are read; of all objects that a round writes at most the
last shared one is small.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.reading.entry_checks import PieceOfRun, checked_entries
from magnetar.broker.reading.segments import OpenSegment
from magnetar.errors import CorruptData, StorageError
from magnetar.storage import names
from magnetar.storage.log.index import Run
from magnetar.storage.manifest import LevelZero, SegmentReference
from magnetar.storage.segments.format import Block, RunColumns
from magnetar.storage.segments.level_one import SHARED_TOPIC_BYTES_MAX, Place
from magnetar.storage.segments.segment import RunSegmentWriter
from magnetar.topics.ledgers import LedgerTable

SEGMENT_BYTES_MAX = 16 << 20
READ_BYTES_MAX = 256 << 10


class LogPart(NamedTuple):
    """Part of a listed log file: one run of a topic."""

    file: LevelZero
    run: Run

    @property
    def first(self) -> tuple[int, int]:
        return self.run.ledger, self.run.first_entry


class SegmentPart(NamedTuple):
    """A small segment that is merged with others."""

    reference: SegmentReference

    @property
    def first(self) -> tuple[int, int]:
        return self.reference.first


Part = LogPart | SegmentPart


@dataclass(slots=True)
class Written:
    """Outputs of a round: references by topic, the segments that went into them, and names of
    all objects."""

    added: dict[str, list[SegmentReference]] = field(default_factory=dict)
    merged: dict[str, set[Place]] = field(default_factory=dict)
    objects: list[str] = field(default_factory=list)


class DamagedInput(StorageError):
    """A log file or a segment object, `file` on the volume, whose entries do not pass or that is
    missing: it stays as it is."""

    def __init__(self, file: str, error: CorruptData) -> None:
        super().__init__(str(error))
        self.file, self.error = file, error


class RoundWriter:
    """Writes one round of one bundle under one intent."""

    def __init__(self, bundle: OwnedBundle, intent: str) -> None:
        self._bundle, self._intent = bundle, intent
        self._context = bundle.context
        self._shared: list[bytes] = []
        self._shared_references: list[tuple[str, int, SegmentReference]] = []
        self._shared_bytes = 0
        self.written = Written()

    async def write_topic(self, topic: str, parts: Sequence[Part]) -> None:
        """Everything of `parts` that still exists. Raises DamagedInput, StorageError."""
        host = self._bundle.topics.get(topic)
        merged = {
            (part.reference.object, part.reference.offset)
            for part in parts
            if isinstance(part, SegmentPart)
        }
        if merged:
            self.written.merged[topic] = merged
        if host is None:
            return
        ledgers = host.core.ledgers
        writer: RunSegmentWriter | None = None
        expected, append_ms = -1, 0
        for part in sorted(parts, key=lambda found: found.first):
            async for run in self._runs(topic, part):
                for alive in _existing(run, ledgers):
                    ordinal = ledgers.find((alive.ledger, alive.first_entry))
                    if ordinal is None:
                        continue  # trimmed while we read it
                    if writer is not None and (
                        ordinal != expected or writer.length >= SEGMENT_BYTES_MAX
                    ):
                        await self._finish(topic, writer)
                        writer = None
                    if writer is None:
                        writer = RunSegmentWriter(
                            {"topic": topic, "bundle": str(self._bundle.name), "made_by": "rewrite"}
                        )
                    # A transaction's entries may have been sent before earlier ones of the
                    # partition.
                    append_ms = max(append_ms, alive.append_ms)
                    writer.add(alive._replace(append_ms=append_ms))
                    expected = ordinal + len(alive.lengths)
        if writer is not None:
            await self._finish(topic, writer)

    async def finish(self) -> Written:
        """Write what is left; everything is durable on return."""
        await self._flush_shared()
        return self.written

    # --- outputs ----------------------------------------------------------------------------------

    async def _finish(self, topic: str, writer: RunSegmentWriter) -> None:
        """A segment that would be small as an object (`level_one.shared_objects`) shares one,
        whatever else its topic has: so merging ends."""
        pieces, footer = writer.finish()
        reference = SegmentReference.written("", writer.length, footer)
        if writer.length >= SHARED_TOPIC_BYTES_MAX:
            await self._put(pieces, [(topic, 0, reference)])
            return
        if self._shared_bytes + writer.length > SEGMENT_BYTES_MAX:
            await self._flush_shared()
        self._shared_references.append((topic, self._shared_bytes, reference))
        self._shared += pieces
        self._shared_bytes += writer.length

    async def _flush_shared(self) -> None:
        if self._shared:
            pieces, references = self._shared, self._shared_references
            self._shared, self._shared_references, self._shared_bytes = [], [], 0
            await self._put(pieces, references)

    async def _put(
        self, pieces: list[bytes], references: list[tuple[str, int, SegmentReference]]
    ) -> None:
        name = names.segment(self._bundle.name, f"{self._intent}-{len(self.written.objects):05d}")
        self.written.objects.append(name)
        data = b"".join(pieces)
        pieces.clear()
        if not await self._context.volume.put_if_absent(name, data):
            raise StorageError(
                f"{name} exists already: two writers drew the same intent; the next round draws "
                "another"
            )
        self._context.metrics.bytes_rewritten.inc(len(data))
        for topic, offset, found in references:
            reference = SegmentReference(
                name, found.length, found.entries, found.bytes, found.first, found.last, offset
            )
            self.written.added.setdefault(topic, []).append(reference)

    # --- inputs -----------------------------------------------------------------------------------

    async def _runs(self, topic: str, part: Part) -> AsyncIterator[RunColumns]:
        name = (
            names.log_file(part.file.incarnation, part.file.file)
            if isinstance(part, LogPart)
            else part.reference.object
        )
        try:
            runs = (
                self._log_runs(topic, name, part)
                if isinstance(part, LogPart)
                else self._segment_runs(part.reference)
            )
            async for run in runs:
                yield run
        except FileNotFoundError as error:
            missing = CorruptData(
                f"{name} is missing; restore it from a backup", file=name, topic=topic
            )
            raise DamagedInput(name, missing) from error
        except CorruptData as error:
            damage = error if error.file else CorruptData(str(error), file=name, topic=topic)
            raise DamagedInput(name, damage) from error

    async def _segment_runs(self, reference: SegmentReference) -> AsyncIterator[RunColumns]:
        segment = await OpenSegment.open(self._context.volume, reference)
        for number, entry in enumerate(segment.footer.blocks):
            await self._pace(entry.length)
            for run in runs_of(await segment.block(number)):
                yield run

    async def _log_runs(self, topic: str, name: str, part: LogPart) -> AsyncIterator[RunColumns]:
        """A run in pieces of up to READ_BYTES_MAX (at least one entry), verified."""
        run = part.run
        low, at = 0, run.offset
        while low < len(run.lengths):
            high, size = low + 1, run.lengths[low]
            while high < len(run.lengths) and size + run.lengths[high] <= READ_BYTES_MAX:
                size += run.lengths[high]
                high += 1
            await self._pace(size)
            data = memoryview(await self._context.volume.read(name, at, size))
            checked_entries(
                data,
                run.lengths[low:high],
                PieceOfRun(name, at, topic, run.ledger, run.first_entry + low),
            )
            yield _part(run, low, high, data)
            low, at = high, at + size

    async def _pace(self, size: int) -> None:
        """Let the loop serve others, and keep to the rate."""
        await asyncio.sleep(size / self._context.settings.rewrite_bytes_per_s)


def _part(run: Run | RunColumns, low: int, high: int, payload: memoryview) -> RunColumns:
    """The entries low..high-1 of a run, whose bytes are `payload`."""
    return RunColumns(
        run.ledger,
        run.first_entry + low,
        run.append_ms,
        run.lengths[low:high],
        run.message_counts[low:high],
        payload,
    )


def _existing(run: RunColumns, ledgers: LedgerTable) -> list[RunColumns]:
    """The part of a run that was not trimmed: [] or one run."""
    last = run.first_entry + len(run.lengths) - 1
    start, end = ledgers.span(run.ledger, run.first_entry, last)
    if start >= end:
        return []
    low = ledgers.position(start).entry - run.first_entry
    high = low + end - start
    if (low, high) == (0, len(run.lengths)):
        return [run]
    at = sum(run.lengths[:low])
    size = sum(run.lengths[low:high])
    return [_part(run, low, high, memoryview(run.payload)[at : at + size])]


def runs_of(block: Block) -> list[RunColumns]:
    """A block as runs: rows that follow each other in one ledger and were appended together."""
    runs = []
    ledgers, entries, appends, offsets = (
        block.ledgers,
        block.entries,
        block.append_times,
        block.payload_offsets,
    )
    low = 0
    for row in range(1, block.count + 1):
        if row < block.count and (ledgers[row], entries[row], appends[row]) == (
            ledgers[low],
            entries[low] + row - low,
            appends[low],
        ):
            continue
        lengths = [offsets[at + 1] - offsets[at] for at in range(low, row)]
        payload = block.payloads[offsets[low] : offsets[row]]
        runs.append(
            RunColumns(
                ledgers[low],
                entries[low],
                appends[low],
                lengths,
                list(block.message_counts[low:row]),
                payload,
            )
        )
        low = row
    return runs
