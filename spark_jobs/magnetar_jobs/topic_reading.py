"""What a task of the data source `magnetar` does.

Owns: the columns that options ask for, and `TaskReading`, which turns the files of a task into
Arrow batches, for batch queries and streams alike. Imports: pyspark's partitions, topic_options,
topic_plan's tasks, unfolding, inputs, bounds. Invariants: it reads the volume only; the same task
gives the same messages in the same order, each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from magnetar_jobs.bounds import Bounds
from magnetar_jobs.group_reading import read_group
from magnetar_jobs.inputs import Group
from magnetar_jobs.rows import Rows
from magnetar_jobs.topic_options import ENTRIES, SKIP, ReadOptions, refusal
from magnetar_jobs.topic_plan import TopicTask
from magnetar_jobs.unfolding import (
    MESSAGE_COLUMNS,
    STORED_COLUMNS,
    WATERMARK,
    Chunks,
    Selection,
    Unfolding,
    stored_batch,
)
from magnetar_jobs.value_schemas import NEEDED, ValueDecoder

if TYPE_CHECKING:
    import pyarrow as pa

METADATA_COLUMNS = frozenset({"key", "event_time", "publish_time"})
"""Of stored entries: what only their bytes say, where they were not compacted."""


def columns_of(options: ReadOptions) -> dict[str, str]:
    """The columns that are read, with their types in SQL. Raises InvalidRequest."""
    offered = STORED_COLUMNS if options.rows == ENTRIES else MESSAGE_COLUMNS
    if options.watermarks:
        offered = {**offered, WATERMARK: "timestamp"}
    unknown = [column for column in options.columns if column not in offered]
    if unknown:
        raise refusal("columns", unknown[0], f"choose from {', '.join(offered)}")
    chosen = options.columns or tuple(offered)
    return {column: offered[column] for column in chosen}


class TaskPartition(InputPartition):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """One task of Spark's."""

    def __init__(self, task: TopicTask) -> None:
        super().__init__(task.group.number)
        self.task = task


@dataclass(frozen=True, slots=True)
class TaskReading:
    """How a task reads: the same for batch queries and streams."""

    volume: str
    rows: str
    columns: tuple[str, ...]
    selection: Selection
    skip_undecodable: bool
    by_schema: bool

    @staticmethod
    def of(options: ReadOptions) -> TaskReading:
        return TaskReading(
            options.volume,
            options.rows,
            tuple(columns_of(options)),
            Selection(publish_ms=(options.starting_ms, options.ending_ms)),
            options.undecodable == SKIP,
            options.by_schema,
        )

    def batches(self, task: TopicTask) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        bounds = self.selection.bounds
        if self.rows == ENTRIES:
            timed = self.selection.publish_ms != (None, None)
            metadata = timed or not METADATA_COLUMNS.isdisjoint(self.columns)
            for rows in self._stretches(task, task.group, bounds, metadata=metadata):
                wanted = self._published(rows)
                if len(wanted):
                    yield stored_batch(wanted, task.topic, task.partition, self.columns, task.steps)
            return
        before, pruned = task.before, bounds != Bounds()

        def earlier() -> Iterator[Rows]:
            if before is not None:
                yield from self._stretches(task, before, Bounds())
            if pruned:
                yield from self._stretches(task, task.group, Bounds())

        chunks = Chunks(earlier, complete=task.first, pruned=pruned)
        decoded = self.by_schema and "value" in self.columns
        unfolding = Unfolding(
            task.topic,
            task.partition,
            tuple(dict.fromkeys((*self.columns, *NEEDED))) if decoded else self.columns,
            self.selection,
            chunks,
            task.steps,
            skip_undecodable=self.skip_undecodable,
        )
        batches = unfolding.batches(self._stretches(task, task.group, bounds))
        if not decoded:
            yield from batches
            return
        assert task.values is not None, "a plan has the schemas of what it reads by them"
        decoder = ValueDecoder(task.values, skip=self.skip_undecodable)
        for batch in batches:
            yield decoder.decoded(batch).select(list(self.columns))

    def _stretches(
        self, task: TopicTask, group: Group, bounds: Bounds, *, metadata: bool = False
    ) -> Iterator[Rows]:
        return read_group(self.volume, task.name, group, bounds, metadata=metadata)

    def _published(self, rows: Rows) -> Rows:
        """Those rows that were published in the time that is asked for."""
        low, high = self.selection.publish_ms
        if low is None and high is None:
            return rows
        return rows.where(
            (rows.publish_times >= (low or 0))
            & (rows.publish_times < (high if high is not None else 1 << 62))
        )
