"""Phase 2 on an executor: survivors into level-1 segments.

Owns: `SurvivorWriter`, which reads its groups once more, picks the surviving messages and writes
segments. Imports: pyarrow, numpy, storage formats, inputs, compaction. Invariants: a payload is read
and written once and never shuffled; rows leave in position order; an entry that loses nothing keeps
its bytes; a file's name carries the intent and the task attempt, so that attempts never meet; a
file is durable before its row is returned, and counts only if the driver commits it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from magnetar.compaction.orders import (
    INDEX_SHIFT,
    INDEXES_MAX,
    ROW_SHIFT,
    ROWS_MAX,
    group_of,
    order_of,
)
from magnetar.compaction.view_rows import view_row
from magnetar.errors import CorruptData
from magnetar.names import BundleName
from magnetar.storage import names
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.format import IS_DECIDED, Footer, Row
from magnetar.storage.segments.segment import SegmentWriter
from magnetar_jobs.bounds import Bounds
from magnetar_jobs.files import VolumeFiles
from magnetar_jobs.group_reading import read_group
from magnetar_jobs.inputs import Group
from magnetar_jobs.rows import Rows
from magnetar_jobs.segment_rows import segment_row

SEGMENT_BYTES_MAX = 64 << 20


class SurvivorStream:
    """Orders of survivors, rising, handed out up to a limit at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._arrays = (batch.column("order").to_numpy() for batch in batches if batch.num_rows)
        self._left: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(0, np.int64)
        self._fill()

    def _fill(self) -> None:
        if not len(self._left):
            self._left = next(self._arrays, self._left)

    @property
    def next_group(self) -> int | None:
        """The group of the next survivor, None at the end."""
        return group_of(int(self._left[0])) if len(self._left) else None

    def below(self, limit: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """All orders below `limit` that were not handed out yet."""
        parts = []
        while len(self._left) and self._left[0] < limit:
            cut = int(np.searchsorted(self._left, limit))
            parts.append(self._left[:cut])
            self._left = self._left[cut:]
            self._fill()
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class SurvivorWriter:
    """What phase 2 maps over each task's survivors: (group, order) batches in, one row per
    segment written out."""

    volume: str | Path
    topic: str
    bundle: str
    intent: str
    description: dict[str, Any]
    groups: dict[int, Group]
    segment_bytes_max: int = SEGMENT_BYTES_MAX

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        stem = f"{self.intent}-{context.partitionId():05d}-{context.stageId()}-{context.attemptNumber()}-{context.taskAttemptId()}"
        with VolumeFiles(self.volume) as files:
            for number, (pieces, footer) in enumerate(self.segments(batches)):
                name = names.segment(BundleName.parse(self.bundle), f"{stem}-{number:03d}")
                data = b"".join(pieces)
                if not files.put_if_absent(name, data):
                    raise CorruptData(
                        f"{name} is there already: two attempts have the same number; remove it "
                        "and run again"
                    )
                yield segment_row(self.topic, SegmentReference.written(name, len(data), footer))

    def segments(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[list[bytes], Footer]]:
        """The bytes of each segment, with its footer."""
        writer: SegmentWriter | None = None
        pieces: list[bytes] = []
        for row in self.rows(batches):
            if writer is None:
                writer = SegmentWriter(self.description)
            writer.add(row)
            pieces += writer.take()
            if writer.length >= self.segment_bytes_max:
                end, footer = writer.finish()
                yield pieces + end, footer
                writer, pieces = None, []
        if writer is not None:
            end, footer = writer.finish()
            yield pieces + end, footer

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Row]:
        """The surviving entries in position order."""
        survivors = SurvivorStream(batches)
        while (number := survivors.next_group) is not None:
            first = 0
            for rows in read_group(
                self.volume, self.topic, self.groups[number], Bounds(), metadata=False
            ):
                chosen = survivors.below(order_of(number, first + len(rows), 0, False))
                if len(chosen):
                    yield from _surviving_rows(
                        rows,
                        (chosen >> ROW_SHIFT & ROWS_MAX - 1) - first,
                        chosen >> INDEX_SHIFT & INDEXES_MAX - 1,
                    )
                first += len(rows)
            if survivors.next_group == number:
                raise CorruptData(
                    f"group {number} has {first} rows, fewer than phase 1 counted; its files "
                    "changed: plan again"
                )


def _surviving_rows(
    rows: Rows, places: np.ndarray[Any, Any], indexes: np.ndarray[Any, Any]
) -> Iterator[Row]:
    """Entries at `places` (rising, repeated for a batch) with the messages at `indexes`."""
    distinct, starts = np.unique(places, return_index=True)
    ends = np.append(starts[1:], len(places))
    chosen = indexes.tolist()
    for place, start, end in zip(distinct.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield surviving_row(rows, place, chosen[start:end])


def surviving_row(rows: Rows, place: int, keep: list[int]) -> Row:
    """One entry as the compacted view holds it."""
    flags = int(rows.flags[place])
    decided = flags & IS_DECIDED
    stored = Row(
        int(rows.ledgers[place]),
        int(rows.entries[place]),
        int(rows.event_times[place]) if decided else 0,
        int(rows.publish_times[place]) if decided else 0,
        int(rows.append_times[place]),
        int(rows.message_counts[place]),
        flags,
        rows.keys[place].as_py() if decided else None,
        rows.entry_bytes(place),
    )
    return view_row(stored, keep)
