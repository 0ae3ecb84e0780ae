"""A topic in a real volume, written by the real log writer and listed in a real manifest.

Owns: `StoredTopic`, which does what a broker does with entries, and reads back what compaction has
made of them. Imports: storage, metadata.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from magnetar.clock import SystemClock
from magnetar.compaction.commit import Committer
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    LogFileRecord,
    LogRange,
    NamespaceRecord,
    PartitionedTopicRecord,
)
from magnetar.names import BundleName, TopicName, bundle_of, initial_boundaries
from magnetar.storage import names
from magnetar.storage.log.format import encode_entries
from magnetar.storage.log.index import LevelZeroIndex
from magnetar.storage.log.writer import LogWriter
from magnetar.storage.manifest import (
    LevelZero,
    Manifest,
    SegmentReference,
    TopicSegments,
    commit_manifest,
    load_manifest,
)
from magnetar.storage.segments.format import Row, RunColumns
from magnetar.storage.segments.segment import RunSegmentWriter, SegmentReader
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.topics.ledger_ids import epoch_of
from magnetar.wire.entries import parse_entry
from magnetar_jobs.compact import Compactor, Result
from magnetar_jobs.execution import CompactionOptions
from tests.spark.histories import Described

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
CLOCK = SystemClock()
TOPIC = TopicName.parse("persistent://public/default/history")
OTHER = "persistent://public/default/other"
APPEND_MS = 5_000


class StoredTopic:
    """One topic, one store, one volume, for the length of a `with` block."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._runner = asyncio.Runner()
        self._incarnations = 0

    def __enter__(self) -> Self:
        self.run(self._open())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.run(self.volume.close())
        self.run(self.store.close())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _open(self) -> None:
        self.volume, self.store = PosixVolume(self.directory), MemoryStore(CLOCK)
        boundaries = initial_boundaries(4)
        self.bundle: BundleName = bundle_of(TOPIC.namespace_name, boundaries, TOPIC.hash)
        await self.store.put(
            keys.namespace(TOPIC.namespace_name), NamespaceRecord(boundaries, {}).encode()
        )
        await self.store.put(keys.partitioned_topic(TOPIC), PartitionedTopicRecord(0, {}).encode())

    # --- what a broker does -----------------------------------------------------------------------

    def write(
        self, *files: Sequence[Described], listed: str = "manifest", run_entries_max: int = 3
    ) -> str:
        """Append entries to the log of a new incarnation, file by file, and seal it; its id.

        `listed` says what names the files by now: the `manifest`, or the bundle's `chain` and their
        keys in `logs`, or only these `keys`.
        """
        return self.run(self._write(files, listed, run_entries_max))

    async def _write(
        self,
        files: Sequence[Sequence[Described]],
        listed: str = "manifest",
        run_entries_max: int = 3,
    ) -> str:
        self._incarnations += 1
        incarnation = f"broker-0.{self._incarnations:016x}"
        sealed: list[tuple[int, int, dict[str, list[int]]]] = []
        writer = LogWriter(
            self.volume,
            CLOCK,
            incarnation,
            file_bytes=1 << 20,
            on_fenced=lambda _error: None,
            on_sealed=lambda number, length, epochs: sealed.append((number, length, epochs)),
        )
        await writer.open()
        terms: list[tuple[int, LogRange]] = []
        for number, entries in enumerate(files):
            if number:
                await writer.roll("test")
            for run in runs_of(entries, run_entries_max):
                epoch, start = epoch_of(run[0].ledger), writer.position
                for encoded in (encode_run(run, str(TOPIC)), encode_run([run[0]], OTHER)):
                    writer.append(encoded.buffers, encoded.size, 1, None)
                await writer.barrier()
                if terms and terms[-1][0] == epoch:
                    start = terms.pop()[1].start
                terms.append((epoch, LogRange(incarnation, start, writer.position)))
        await writer.close()
        for number, length, epochs in sealed:
            valid = tuple(sorted(epochs.get(str(TOPIC), ())))
            if listed == "manifest" and valid:
                await self._list(LevelZero(incarnation, number, length, valid))
            elif valid:
                record = LogFileRecord(length, {str(self.bundle): valid})
                await self.store.put(keys.log_file(incarnation, number), record.encode())
        if listed == "chain":
            await self.extend_chain(terms)
        return incarnation

    async def _list(self, entry: LevelZero) -> None:
        await commit_manifest(
            self.store,
            self.volume,
            CLOCK,
            self.bundle,
            lambda manifest: dataclasses.replace(manifest, level0=(*manifest.level0, entry)),
        )

    async def extend_chain(self, terms: Sequence[tuple[int, LogRange]]) -> None:
        """These terms, by epoch, have come after those in the bundle's record."""
        item = await self.store.get(keys.bundle(self.bundle))
        known = (
            BundleRecord.decode(item.value)
            if item is not None
            else BundleRecord(BundleState.FREE, 0)
        )
        chain = (*known.chain, *(part for _, part in terms))
        epochs = (*known.epochs, *(epoch for epoch, _ in terms))
        record = dataclasses.replace(known, epoch=epochs[-1], chain=chain, epochs=epochs)
        await self.store.put(keys.bundle(self.bundle), record.encode())

    def rewrite(self, incarnation: str) -> None:
        """Background work: the topic's part of a log file becomes a level-1 segment in a shared
        object; the file stays listed for others."""
        self.run(self._rewrite(incarnation))

    async def _rewrite(self, incarnation: str) -> None:
        index = LevelZeroIndex.decode(await self.volume.read(names.index(incarnation, 0)), "index")
        data = await self.volume.read(names.log_file(incarnation, 0))
        writer = RunSegmentWriter({"topic": str(TOPIC), "bundle": str(self.bundle)})
        for run in index.runs(str(TOPIC)):
            length = sum(run.lengths)
            payload = data[run.offset : run.offset + length]
            writer.add(
                RunColumns(
                    run.ledger,
                    run.first_entry,
                    run.append_ms,
                    run.lengths,
                    run.message_counts,
                    payload,
                )
            )
        pieces, footer = writer.finish()
        name = names.segment(self.bundle, f"level1-{incarnation}")
        before = b"the segment of another topic of this bundle"
        await self.volume.put_if_absent(name, before + b"".join(pieces))
        reference = SegmentReference.written(name, writer.length, footer, len(before))
        await self.edit(lambda found: dataclasses.replace(found, level1=(*found.level1, reference)))

    async def edit(self, change: Any) -> None:
        """Replace what the manifest says of the topic."""
        await commit_manifest(
            self.store,
            self.volume,
            CLOCK,
            self.bundle,
            lambda manifest: manifest.with_topic(str(TOPIC), change(manifest.topic(str(TOPIC)))),
        )

    def trim_everything(self, upto: tuple[int, int]) -> None:
        """Retention: the originals go, from the manifest and from the volume."""

        async def work() -> None:
            manifest = (await load_manifest(self.store, self.volume, self.bundle))[0]
            await self.edit(lambda found: dataclasses.replace(found, level1=(), trimmed=upto))
            await commit_manifest(
                self.store,
                self.volume,
                CLOCK,
                self.bundle,
                lambda manifest: dataclasses.replace(manifest, level0=()),
            )
            for entry in manifest.level0:
                await self.volume.remove(names.log_file(entry.incarnation, entry.file))
                await self.volume.remove(names.index(entry.incarnation, entry.file))

        self.run(work())

    # --- compaction -------------------------------------------------------------------------------

    def compactor(self, spark: SparkSession, options: CompactionOptions | None = None) -> Compactor:
        committer = Committer(self.store, self.volume, CLOCK, "tests", "run/1")
        return Compactor(
            self.store,
            self.volume,
            self.directory,
            committer,
            spark,
            options or CompactionOptions(),
        )

    def compact(self, spark: SparkSession, options: CompactionOptions | None = None) -> Result:
        result = Result()
        self.run(self.compactor(spark, options).compact(TOPIC, result))
        return result

    # --- what readers see -------------------------------------------------------------------------

    def manifest(self) -> Manifest:
        return self.run(load_manifest(self.store, self.volume, self.bundle))[0]

    def segments(self) -> TopicSegments:
        return self.manifest().topic(str(TOPIC))

    def view(self) -> list[tuple[int, int, bytes]]:
        """(ledger, entry, bytes) of the committed compacted view, read as a broker reads it."""
        return [(row.ledger, row.entry, bytes(row.payload)) for row in self.rows()]

    def rows(self) -> list[Row]:
        compacted = self.segments().compacted
        return [
            row
            for reference in (compacted.segments if compacted else ())
            for row in self._rows_of(reference)
        ]

    def _rows_of(self, reference: SegmentReference) -> Iterator[Row]:
        data = self.run(self.volume.read(reference.object))
        assert len(data) == reference.length
        reader = SegmentReader(
            lambda offset, length: data[offset : offset + length], len(data), reference.object
        )
        for block in reader.blocks():
            for row in range(block.count):
                position = (block.ledgers[row], block.entries[row])
                times = (block.event_times[row], block.publish_times[row], block.append_times[row])
                numbers = (block.message_counts[row], block.flags[row])
                assert bytes(reader.find(*position) or b"") == bytes(block.payload(row))
                yield Row(*position, *times, *numbers, block.key(row), block.payload(row))

    def files(self) -> list[str]:
        """Segments of the bundle that lie in the volume."""
        return self.run(self.volume.list(names.segments_of(self.bundle)))


def runs_of(entries: Sequence[Described], run_entries_max: int) -> Iterator[list[Described]]:
    """Consecutive entries of one ledger, as a broker would append them."""
    chance = random.Random(len(entries))
    run: list[Described] = []
    for described in entries:
        if run and (
            run[0].ledger != described.ledger or len(run) >= chance.randint(1, run_entries_max)
        ):
            yield run
            run = []
        run.append(described)
    if run:
        yield run


def encode_run(run: Sequence[Described], topic: str) -> Any:
    """The run as a record of the log; the epoch is that of its ledger."""
    counts = [
        max(1, parse_entry(described.data).metadata.num_messages_in_batch) for described in run
    ]
    return encode_entries(
        epoch=epoch_of(run[0].ledger),
        ledger=run[0].ledger,
        first_entry=run[0].entry,
        append_ms=APPEND_MS,
        topic=topic.encode(),
        producer=b"producer",
        message_counts=counts,
        sequences=[described.publish_time for described in run],
        entries=[described.data for described in run],
    )
