"""Topics as streams.

Owns: `TopicStreamReader`, the reader of Structured Streaming: offsets, micro-batches and their
watermarks. Imports: pyspark, topic_options, topic_plan, topic_source's tasks, event_watermarks.
Invariants: an offset is the last position read of each partition; the messages between two offsets
are always the same, whatever was compacted or restarted; no entry is passed over silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from magnetar.clock import SystemClock
from magnetar.errors import CorruptData, ServiceNotReady
from magnetar.names import TopicName
from magnetar_jobs.cluster import shown
from magnetar_jobs.history import History
from magnetar_jobs.inputs import BEFORE_ALL, UNBOUNDED, Position
from magnetar_jobs.topic_options import BYTES_MIN, LATEST, ReadOptions, refusal
from magnetar_jobs.topic_plan import TopicPlanner, TopicTask, open_planner, tasks_of
from magnetar_jobs.topic_reading import TaskPartition, TaskReading

if TYPE_CHECKING:
    import pyarrow as pa

log = structlog.get_logger(__name__)

Offset = dict[str, str]
"""By partition: the last position read, as ledger:entry."""


def position_of(text: str) -> Position:
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark's own annotations stop at Any
    """Lives in a process of the driver's for as long as the query does."""

    def __init__(self, options: ReadOptions, value_type: str = "") -> None:
        """`value_type`: that of values by a schema, as the query has it."""
        if options.has_ending:
            raise refusal("endingPosition", "set", "a stream has no end: leave it out")
        if options.compacted:
            raise refusal("readCompacted", "true", "a stream reads every message: leave it out")
        self._options, self._value_type = options, value_type
        if options.bytes_per_trigger:
            smallest = max(BYTES_MIN, min(options.bytes_per_task, options.bytes_per_trigger))
            self._options = replace(options, bytes_per_task=smallest)
        self._reading = TaskReading.of(options)
        self._rolled_s: float | None = None
        self._target: dict[str, Position] | None = None

    # --- offsets ----------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        return asyncio.run(self._initial())

    async def _initial(self) -> Offset:
        async with open_planner(self._options) as planner:
            partitions = await planner.partitions()
            starts = {name: self._options.after(str(name)) for name in partitions}
            rolled: Mapping[TopicName, Position] = {}
            if LATEST in starts.values():
                rolled = await self._roll(planner, partitions, at_once=True)
            found = {}
            for name, after in starts.items():
                if isinstance(after, str):
                    everything = await planner.whole_history(
                        name, BEFORE_ALL, UNBOUNDED, rolled.get(name, BEFORE_ALL)
                    )
                    after = everything.end
                found[str(name)] = shown(after)
            return found

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.bytes_per_trigger
        return ReadMaxBytes(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = asyncio.run(self._ends())

    async def _ends(self) -> dict[str, Position]:
        async with open_planner(self._options) as planner:
            partitions = await planner.partitions()
            rolled = await self._roll(planner, partitions, at_once=True)
            return {
                str(name): (
                    await planner.whole_history(
                        name, BEFORE_ALL, UNBOUNDED, rolled.get(name, BEFORE_ALL)
                    )
                ).end
                for name in partitions
            }

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else 0
        return asyncio.run(self._latest(start, bytes_max))

    async def _latest(self, start: Offset, bytes_max: int) -> Offset:
        async with open_planner(self._options) as planner:
            partitions = await planner.partitions()
            if self._target is None:
                await self._roll(planner, partitions)
            found = dict(start)
            for name in partitions:
                after = position_of(start.get(str(name), shown(BEFORE_ALL)))
                until = UNBOUNDED
                if self._target is not None:
                    until = self._target.get(str(name), BEFORE_ALL)
                if until > after:
                    history = await self._history(planner, name, after, until)
                    found[str(name)] = shown(_end(history, bytes_max))
            return found

    async def _history(
        self, planner: TopicPlanner, name: TopicName, after: Position, until: Position
    ) -> History:
        """All of it up to the target, if there is one; else what there is now."""
        if self._target is not None:
            return await planner.whole_history(name, after, until, until)
        try:
            return await planner.history(name, after, until)
        except ServiceNotReady as error:
            log.info("stream.waits", topic=str(name), reason=str(error))
            return History(after, (), after)

    async def _roll(
        self, planner: TopicPlanner, partitions: list[TopicName], *, at_once: bool = False
    ) -> Mapping[TopicName, Position]:
        """Have brokers seal what they have acknowledged, unless that was asked for just now."""
        now_s = SystemClock().monotonic()
        due = self._rolled_s is None or now_s >= self._rolled_s + self._options.roll_interval_s
        if not self._options.roll or not (due or at_once):
            return {}
        self._rolled_s = now_s
        return await planner.roll(partitions)

    # --- micro-batches ----------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [TaskPartition(task) for task in asyncio.run(self._tasks(start, end))]

    async def _tasks(self, start: Offset, end: Offset) -> list[TopicTask]:
        spans = {
            TopicName.parse(name): (position_of(start.get(name, "-1:-1")), position_of(last))
            for name, last in end.items()
        }
        async with open_planner(self._options) as planner:
            tasks = list[TopicTask]()
            for name, (after, until) in spans.items():
                if until > after:
                    history = await planner.whole_history(name, after, until, until)
                    self._check_loss(name, history)
                    tasks += tasks_of(name, history)
            if self._options.watermarks:
                tasks = await planner.with_watermarks(tasks, spans)
            return await planner.with_values(tasks, self._value_type)

    def _check_loss(self, name: TopicName, history: History) -> None:
        if history.lost and history.after > BEFORE_ALL and self._options.fail_on_data_loss:
            assert history.trimmed is not None
            raise CorruptData(
                f"topic {name}: retention has dropped entries up to {shown(history.trimmed)}, and "
                f"the stream is at {shown(history.after)}; keep entries for longer (retention, or "
                "a subscription), or go on with option failOnDataLoss=false"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        return self._reading.batches(partition.task)


def _end(history: History, bytes_max: int) -> Position:
    """Where a micro-batch of about `bytes_max` ends (0: no limit)."""
    taken = 0
    for number, group in enumerate(history.groups):
        taken += group.bytes
        if bytes_max and number and taken > bytes_max:
            return history.groups[number - 1].pieces[-1].last
    return history.end
