"""The broker and the Spark job compact one topic: the same view of the same input, and each goes on
from the view of the other."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from magnetar.compaction.commit import Committer
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.segments.format import Row
from magnetar.storage.segments.segment import SegmentReader
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.execution import CompactionOptions, Written, compact_plan
from magnetar_jobs.planning import CompactionPlan, plan_topic
from tests.spark.histories import reference, visible
from tests.support.brokers import CLOCK
from tests.support.compacted_topics import NAME, Keyed, keyed_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]


async def rows_of(volume: Volume, segments: tuple[SegmentReference, ...]) -> list[Row]:
    """Every row of a view, without its times of appending."""
    rows: list[Row] = []
    for found in segments:
        data = await volume.read(found.object)
        reader = SegmentReader(
            lambda offset, length, data=data: data[offset : offset + length],  # type: ignore[misc]
            len(data),
            found.object,
        )
        for block in reader.blocks():
            for at in range(block.count):
                times = block.event_times[at], block.publish_times[at], 0
                numbers = block.message_counts[at], block.flags[at]
                rows.append(
                    Row(
                        block.ledgers[at],
                        block.entries[at],
                        *times,
                        *numbers,
                        block.key(at),
                        bytes(block.payload(at)),
                    )
                )
    return rows


async def planned(topic: Keyed) -> CompactionPlan:
    """What a job finds of the topic once its broker has rolled its log."""
    context, host = topic.broker.context, await topic.host()
    await topic.broker.service.roll(NAME)
    return await plan_topic(context.store, context.volume, host.bundle.name, NAME)


async def by_spark(
    spark: SparkSession, directory: Path, plan: CompactionPlan, intent: str
) -> Written:
    return await asyncio.to_thread(
        compact_plan, spark, directory, plan, CompactionOptions(), intent
    )


async def test_both_make_the_same_view_and_go_on_from_each_others(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Bytes, flags and keys of every entry; #12429: input of run n+1 = output of run n + tail,
    whichever engine made that."""
    async with keyed_topic(tmp_path, keep_alive_s=600.0) as topic:
        context = topic.broker.context
        committer = Committer(context.store, context.volume, CLOCK, "tests", "run/1")
        published = topic.history.entries
        sent = 0
        for engine in ("broker", "job", "broker"):
            topic.history.grow(80, keys=25)
            await topic.publish(*published[sent:])
            sent = len(published)
            plan = await planned(topic)
            compared = await by_spark(spark, tmp_path, plan, f"compact-compared-{engine}")
            if engine == "broker":
                await topic.compact()
            else:
                await committer.commit(plan, partial(by_spark, spark, tmp_path, plan))
            view = await topic.view()
            assert view.horizon == plan.horizon
            made = await rows_of(context.volume, view.segments)
            assert made == await rows_of(context.volume, compared.segments)
            shown = visible((row.ledger, row.entry, bytes(row.payload)) for row in made)
            assert [item[1:] for item in shown] == [item[1:] for item in reference(published)]
            await topic.trim()
