"""Moving entries of log files into level-1 segments, on an executor.

Owns: `PartWriter`, which fetches the parts of its tasks and writes them in the order of their
topics, and the rows by which parts and segments travel. Imports: pyarrow, storage formats, plan,
files. Invariants: a log file is read forward, once per task; every entry is compared with its
client's checksum, so damage is never copied; an entry keeps its bytes; memory is bounded by one
task; a file's name carries the intent and the task attempt, so that attempts never meet; a file is
durable before its row is returned, and counts only if the driver commits it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from magnetar.errors import CorruptData
from magnetar.names import BundleName
from magnetar.storage import names
from magnetar.storage.log.index import LevelZeroIndex, Run
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.format import Footer, RunColumns
from magnetar.storage.segments.level_one import SHARED_TOPIC_BYTES_MAX
from magnetar.storage.segments.segment import RunSegmentWriter
from magnetar.wire.checksum import entry_checksum_ok
from magnetar_jobs.files import VolumeFiles
from magnetar_jobs.segment_rows import segment_row
from magnetar_jobs.transaction_log_plan import Ordered, Part

GAP_BYTES_MAX = 64 << 10
WINDOW_BYTES_MAX = 4 << 20
"""Bytes of a log file that are read at once, with what lies between the parts."""
SEGMENT_BYTES_MAX = 64 << 20

PART_COLUMNS = ("task", "segment", *Part._fields)
_TEXTS = ("topic", "incarnation", "name")
_ARROW = {**dict.fromkeys(_TEXTS, pa.string()), "task": pa.int32()}
PARTS_ARROW = pa.schema([(column, _ARROW.get(column, pa.int64())) for column in PART_COLUMNS])


def parts_table(ordered: Iterable[Ordered]) -> pa.Table:
    """Parts as rows."""
    rows = [(found.task, found.segment, *found.part) for found in ordered]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(PART_COLUMNS)
    return pa.table(dict(zip(PART_COLUMNS, columns, strict=True)), schema=PARTS_ARROW)


class Written(NamedTuple):
    """A segment that is not in a file yet."""

    topic: str
    data: bytes
    footer: Footer


@dataclass(slots=True)
class _Shared:
    """Small segments that lie in one object."""

    written: list[Written] = field(default_factory=list)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartWriter:
    """What the job maps over each partition's parts, which are sorted by task and position: a row
    per segment written."""

    volume: str | Path
    bundle: str
    intent: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = f"{context.stageId()}-{context.attemptNumber()}-{context.taskAttemptId()}"
        with VolumeFiles(self.volume) as files:
            for task, parts in itertools.groupby(_ordered(batches), lambda found: found.task):
                yield from self.write(files, list(parts), f"{task:05d}-{attempt}")

    def write(
        self, files: VolumeFiles, parts: Sequence[Ordered], stem: str
    ) -> Iterator[pa.RecordBatch]:
        """One task. Raises CorruptData, StorageError, FileNotFoundError (plan again)."""
        number, shared = 0, _Shared()

        def put(written: Sequence[Written]) -> Iterator[pa.RecordBatch]:
            nonlocal number
            yield from self._put(files, written, f"{stem}-{number:03d}")
            number += 1

        for found in self._segments(parts, fetched(files, [each.part for each in parts])):
            if len(found.data) >= SHARED_TOPIC_BYTES_MAX:
                yield from put([found])
                continue
            if shared.written and shared.bytes + len(found.data) > SEGMENT_BYTES_MAX:
                yield from put(shared.written)
                shared = _Shared()
            shared.written.append(found)
            shared.bytes += len(found.data)
        if shared.written:
            yield from put(shared.written)

    def _segments(self, parts: Sequence[Ordered], runs: Sequence[RunColumns]) -> Iterator[Written]:
        writer: RunSegmentWriter | None = None
        segment, topic = -1, ""
        for found, run in zip(parts, runs, strict=True):
            if writer is not None and (
                found.segment != segment or writer.length >= SEGMENT_BYTES_MAX
            ):
                yield _finished(topic, writer)
                writer = None
            if writer is None:
                segment, topic = found.segment, found.part.topic
                writer = RunSegmentWriter(
                    {"topic": topic, "bundle": self.bundle, "made_by": "transaction log compaction"}
                )
            writer.add(run)
        if writer is not None:
            yield _finished(topic, writer)

    def _put(
        self, files: VolumeFiles, written: Sequence[Written], stem: str
    ) -> Iterator[pa.RecordBatch]:
        name = names.segment(BundleName.parse(self.bundle), f"{self.intent}-{stem}")
        if not files.put_if_absent(name, b"".join(found.data for found in written)):
            raise CorruptData(
                f"{name} is there already: two attempts have the same number; remove it and run "
                "again"
            )
        offset = 0
        for found in written:
            segment = SegmentReference.written(name, len(found.data), found.footer, offset)
            yield segment_row(found.topic, segment)
            offset += len(found.data)


def _ordered(batches: Iterator[pa.RecordBatch]) -> Iterator[Ordered]:
    for batch in batches:
        columns = [batch.column(column).to_pylist() for column in PART_COLUMNS]
        for task, segment, *part in zip(*columns, strict=True):
            yield Ordered(task, segment, Part(*part))


def _finished(topic: str, writer: RunSegmentWriter) -> Written:
    pieces, footer = writer.finish()
    return Written(topic, b"".join(pieces), footer)


# --- reading --------------------------------------------------------------------------------------


class _Slice(NamedTuple):
    """The bytes of a part in its file, and which part that is."""

    offset: int
    length: int
    number: int


def fetched(files: VolumeFiles, parts: Sequence[Part]) -> list[RunColumns]:
    """The entries of parts, verified, in the order of `parts`; each file is read forward.

    Raises CorruptData, StorageError, FileNotFoundError.
    """
    found: list[RunColumns | None] = [None] * len(parts)
    by_file: dict[tuple[str, int], list[int]] = {}
    for number, part in enumerate(parts):
        by_file.setdefault((part.incarnation, part.file), []).append(number)
    for (incarnation, file), numbers in sorted(by_file.items()):
        index_name, name = names.index(incarnation, file), names.log_file(incarnation, file)
        index = LevelZeroIndex.decode(files.read(index_name), index_name)
        slices = sorted(_slice(index, parts[number], number) for number in numbers)
        for window in _windows(slices):
            start = window[0].offset
            size = max(each.offset + each.length for each in window) - start
            data = memoryview(files.read(name, start, size))
            for each in window:
                part, at = parts[each.number], each.offset - start
                # a copy, so that the window can go
                payload = bytes(data[at : at + each.length])
                found[each.number] = _columns(name, part, _run(index, part), payload)
    return [run for run in found if run is not None]


def _run(index: LevelZeroIndex, part: Part) -> Run:
    return index.runs(part.name)[part.run]


def _slice(index: LevelZeroIndex, part: Part, number: int) -> _Slice:
    run = _run(index, part)
    lengths = run.lengths
    return _Slice(run.offset + sum(lengths[: part.low]), sum(lengths[part.low : part.high]), number)


def _windows(slices: Sequence[_Slice]) -> Iterator[list[_Slice]]:
    """Slices that are read at once: near one another, and not too much together."""
    window: list[_Slice] = []
    end = 0
    for found in slices:
        far = found.offset - end > GAP_BYTES_MAX
        if window and (far or found.offset + found.length - window[0].offset > WINDOW_BYTES_MAX):
            yield window
            window = []
        window.append(found)
        end = found.offset + found.length
    if window:
        yield window


def _columns(name: str, part: Part, run: Run, payload: bytes) -> RunColumns:
    """Raises CorruptData for an entry that is not what its client sent, or not there."""
    lengths = run.lengths[part.low : part.high]
    view, at = memoryview(payload), 0
    if sum(lengths) != len(payload):
        raise CorruptData(
            f"{name}: ends before entry ({run.ledger}, {run.last_entry}); restore this file",
            file=name,
        )
    for number, length in enumerate(lengths, run.first_entry + part.low):
        if not entry_checksum_ok(view[at : at + length]):
            raise CorruptData(
                f"{name}: entry ({run.ledger}, {number}) of {part.name} fails its checksum; "
                "restore this file",
                file=name,
            )
        at += length
    return RunColumns(
        part.ledger,
        part.entry,
        part.append_ms,
        lengths,
        run.message_counts[part.low : part.high],
        payload,
    )
