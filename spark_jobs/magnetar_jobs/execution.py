"""One compaction on Spark: phase 1 chooses, phase 2 writes.

Owns: wiring a plan through the source, the phases and the writer. Imports: pyspark, source, phases,
writing. Invariants: what phase 2 reads is exactly what phase 1 has read (the plan's groups, not
what has arrived since); nothing is committed here; the result depends on the plan alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from pyspark import StorageLevel
from pyspark.sql import Observation

from magnetar.storage.manifest import SegmentReference
from magnetar_jobs.inputs import Group
from magnetar_jobs.phases import (
    counts,
    in_writing_order,
    newest_per_key,
    newest_with_chunks,
    survivors,
    survivors_per_group,
)
from magnetar_jobs.planning import CompactionPlan
from magnetar_jobs.progress import READING, WRITING
from magnetar_jobs.segment_rows import SCHEMA, reference_of
from magnetar_jobs.source import MESSAGES, read_topic
from magnetar_jobs.writing import SEGMENT_BYTES_MAX, SurvivorWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = structlog.get_logger(__name__)

TASKS_PER_SLOT = 2


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """What the command line may choose. `parallelism` is the number of tasks that can run at
    once."""

    retain_keyless: bool = False
    parallelism: int = 2
    segment_bytes_max: int = SEGMENT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Written:
    """The new view as it lies in the volume, not committed yet, and what phase 1 counted."""

    segments: tuple[SegmentReference, ...]
    messages_in: int
    keys: int

    @property
    def entries_out(self) -> int:
        return sum(segment.entries for segment in self.segments)

    @property
    def bytes_out(self) -> int:
        return sum(segment.bytes for segment in self.segments)


def compact_plan(
    session: SparkSession,
    volume: str | Path,
    plan: CompactionPlan,
    options: CompactionOptions,
    intent: str,
    enter: Callable[[str], None] = lambda _phase: None,
) -> Written:
    """Run both phases; `enter` gets the name of each. Raises what Spark raises when a task failed
    four times."""
    enter(READING)
    messages = read_topic(session, volume, str(plan.topic), plan.groups, view=MESSAGES)
    observation = Observation("phase 1")
    observed = messages.observe(
        observation, *[column.alias(name) for name, column in counts(messages).items()]
    )
    newest = newest_per_key(observed, retain_keyless=options.retain_keyless).persist(
        StorageLevel.MEMORY_AND_DISK
    )
    try:
        groups = survivors_per_group(newest, None).collect()
        seen = observation.get
        log.info("compaction.counted", topic=str(plan.topic), **seen)
        if seen["chunks"]:
            # Rare enough to read the index rows again instead of carrying columns for chunks
            # through every other compaction.
            newest.unpersist()
            newest = newest_with_chunks(messages, retain_keyless=options.retain_keyless).persist(
                StorageLevel.MEMORY_AND_DISK
            )
        if seen["chunks"] or seen["first_commit"] is not None:
            groups = survivors_per_group(newest, seen["first_commit"]).collect()
        tasks = deal(
            plan.groups, {row["group"]: row["kept"] for row in groups}, seen["messages"], options
        )
        kept = survivors(newest, seen["first_commit"])
        enter(WRITING)
        segments = _write(session, volume, plan, kept, tasks, options, intent) if tasks else ()
        return Written(segments, seen["messages"], sum(row["keys"] for row in groups))
    finally:
        newest.unpersist()


def deal(
    groups: tuple[Group, ...], kept: Mapping[int, int], messages: int, options: CompactionOptions
) -> dict[int, int]:
    """The task that writes each group with survivors: neighbours together, as much as fills a
    segment, yet work for every slot."""
    size = sum(group.bytes for group in groups) / max(1, messages)
    expected = {
        group.number: kept[group.number] * size for group in groups if kept.get(group.number)
    }
    share = min(
        float(options.segment_bytes_max),
        sum(expected.values()) / (TASKS_PER_SLOT * options.parallelism),
    )
    tasks: dict[int, int] = {}
    task, filled = 0, 0.0
    for number, expected_bytes in expected.items():
        if filled and filled + expected_bytes > share:
            task, filled = task + 1, 0.0
        tasks[number] = task
        filled += expected_bytes
    return tasks


def _write(
    session: SparkSession,
    volume: str | Path,
    plan: CompactionPlan,
    kept: DataFrame,
    tasks: dict[int, int],
    options: CompactionOptions,
    intent: str,
) -> tuple[SegmentReference, ...]:
    description: dict[str, Any] = {
        "bundle": str(plan.bundle),
        "topic": str(plan.topic),
        "kind": "compacted",
        "generation": plan.generation + 1,
        "horizon": list(plan.horizon),
        "intent": intent,
    }
    groups = {group.number: group for group in plan.groups if group.number in tasks}
    writer = SurvivorWriter(
        volume,
        str(plan.topic),
        str(plan.bundle),
        intent,
        description,
        groups,
        options.segment_bytes_max,
    )
    dealt = session.createDataFrame(sorted(tasks.items()), "group int, task int")
    ordered = in_writing_order(kept, dealt, max(tasks.values()) + 1)
    # Sorted here and not by Spark, whose range partitioning would run the writer once more to take
    # samples.
    rows = sorted(
        ordered.mapInArrow(writer, SCHEMA).collect(),
        key=lambda row: (row["first_ledger"], row["first_entry"]),
    )
    return tuple(map(reference_of, rows))
