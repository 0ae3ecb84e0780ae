"""Compaction of transaction logs without Spark: the same plan, the same writer, the same commit, task
by task in a thread of this process."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from magnetar.broker.incarnation import Broker
from magnetar.clock import SystemClock
from magnetar.compaction.intents import IntentWriter
from magnetar.names import TopicName
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.files import VolumeFiles
from magnetar_jobs.segment_rows import reference_of
from magnetar_jobs.transaction_log import KIND, LogCompactor, Result
from magnetar_jobs.transaction_log_plan import LogPlan
from magnetar_jobs.transaction_log_writing import PartWriter
from tests.support.brokers import TOPIC


@dataclass(frozen=True, slots=True)
class WritingHere:
    """In place of Spark's tasks."""

    directory: Path
    parallelism: int = 2

    def __call__(self, plan: LogPlan, intent: str) -> list[tuple[str, SegmentReference]]:
        writer = PartWriter(self.directory, str(plan.bundle), intent)
        found = []
        with VolumeFiles(self.directory) as files:
            ordered = plan.ordered(self.parallelism)
            for task, parts in itertools.groupby(ordered, lambda each: each.task):
                for batch in writer.write(files, list(parts), f"{task:05d}-0-0-0"):
                    rows = batch.to_pylist()
                    found += [(row["topic"], reference_of(row)) for row in rows]
        return found


def compactor_of(
    broker: Broker, directory: Path, volume: Volume | None = None, run: str = "run/1"
) -> LogCompactor:
    """One over the broker's store, and its volume unless another one is given."""
    store, files = broker.context.store, volume or broker.context.volume
    intents = IntentWriter(store, files, SystemClock(), KIND, "tests", run)
    return LogCompactor(store, files, intents, WritingHere(directory))


async def compact_log(broker: Broker, directory: Path, topic: str = TOPIC) -> Result:
    """One run over a topic, as the command makes it: roll, plan, write, commit, show."""
    name = TopicName.parse(topic)
    result = Result()
    await broker.service.roll(name, rewrite=False)
    bundle = await broker.ownership.bundle_of(name)
    if await compactor_of(broker, directory).compact(bundle, frozenset({topic}), result):
        await broker.service.roll(name, rewrite=False)
    return result
