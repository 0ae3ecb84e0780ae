"""`python -m magnetar_jobs.compact`: topic compaction, the latest message per key.

Owns: the command line and the loop plan -> phases -> commit. Imports: driver, session, planning,
inputs, execution, commit, metadata; argparse, since typer has no exclusive options. Invariants:
each topic (partition) is committed alone, in one transaction; a conflict plans that topic again, at
most `ATTEMPTS_MAX` times; whatever happens, readers see the old view or the new one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from magnetar.clock import Clock, SystemClock
from magnetar.compaction.commit import Committer
from magnetar.compaction.intents import Conflict
from magnetar.errors import TopicNotFound
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.storage.volumes.opening import opened_at
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.cluster import bundle_of_topic, roll_owner, shown, until_reached
from magnetar_jobs.driver import (
    Done,
    add_arguments,
    add_topic_arguments,
    exit_code,
    named_partitions,
    recorded,
    session_of,
    session_settings,
)
from magnetar_jobs.execution import CompactionOptions, Written, compact_plan
from magnetar_jobs.inputs import BEFORE_ALL, Position
from magnetar_jobs.planning import CompactionPlan, plan_topic
from magnetar_jobs.progress import (
    COMMITTING,
    PLANNING,
    Publisher,
    RunProgress,
)
from magnetar_jobs.remote_store import TOKEN_FILE
from magnetar_jobs.reporting import Report
from magnetar_jobs.source import register_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

KIND = "compaction"
ATTEMPTS_MAX = 3


@dataclass(slots=True)
class Result:
    """What a run did, summed over its topics; `horizon` and `generation` are those of the last
    topic committed.

    `behind` topics have messages of transactions from before the run that no reader could see in
    time; the last of them is `complete` up to there.
    """

    topics: int = 0
    messages_in: int = 0
    keys: int = 0
    entries_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    horizon: str = ""
    generation: int = 0
    behind: int = 0
    complete: str = ""

    def leave_behind(self, complete: Position | None) -> None:
        """A topic was taken only up to this position (None: all of it was)."""
        if complete is not None:
            self.behind, self.complete = self.behind + 1, shown(complete)

    @property
    def message(self) -> str:
        """What else there is to say of a run that succeeded."""
        if not self.behind:
            return ""
        return (
            f"{self.behind} of its topics could not be compacted up to what was acknowledged when "
            "the run began, for their brokers have not "
            f"rewritten yet what transactions have published behind {self.complete}; the next run "
            "takes the rest"
        )


@dataclass(frozen=True, slots=True)
class Compactor:
    """Everything a run works with. `tasks_volume` is where Spark's tasks find the volume."""

    store: MetadataStore
    volume: Volume
    tasks_volume: str | Path
    committer: Committer
    session: SparkSession
    options: CompactionOptions
    progress: RunProgress = field(default_factory=lambda: RunProgress(SystemClock()))

    async def compact(
        self, topic: TopicName, result: Result, rolled: Position = BEFORE_ALL
    ) -> None:
        """Compact one topic up to what is sealed now, all of it up to `rolled` if its broker is as
        far within half a minute.

        Raises Conflict if others were faster `ATTEMPTS_MAX` times.
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            self.progress.enter(PLANNING)
            plan = await plan_up_to(self.store, self.volume, topic, rolled)
            self.progress.planned(plan.bytes)
            limits = {"complete": shown(plan.complete)} if plan.complete is not None else {}
            shape = {"groups": len(plan.groups), "bytes": plan.bytes}
            log.info(
                "compaction.planned",
                topic=str(topic),
                horizon=shown(plan.horizon),
                **shape,
                **limits,
            )
            late = plan.complete if not plan.reaches(rolled) else None
            if not plan.news:
                result.leave_behind(late)
                log.info("compaction.nothing_new", topic=str(topic), horizon=shown(plan.horizon))
                self.progress.topic_done()
                return
            try:
                committed = await self.committer.commit(plan, partial(self._write, plan))
            except Conflict as error:
                log.warning(
                    "compaction.conflict", topic=str(topic), attempt=attempt, error=str(error)
                )
                if attempt == ATTEMPTS_MAX:
                    raise
                continue
            self.progress.topic_done()
            written = committed.written
            result.leave_behind(late)
            result.topics += 1
            result.messages_in += written.messages_in
            result.keys += written.keys
            result.entries_out += written.entries_out
            result.bytes_in += plan.bytes
            result.bytes_out += written.bytes_out
            result.horizon, result.generation = shown(plan.horizon), committed.generation
            log.info(
                "compaction.committed",
                topic=str(topic),
                generation=committed.generation,
                entries=written.entries_out,
            )
            return

    async def compact_all(self, topics: Mapping[TopicName, Position], result: Result) -> None:
        """Compact each of them, up to that position. Raises Conflict as `compact`, once the
        others are compacted."""
        conflict = None
        for topic, rolled in topics.items():
            try:
                await self.compact(topic, result, rolled)
            except Conflict as error:
                conflict = error
        if conflict is not None:
            raise conflict

    async def _write(self, plan: CompactionPlan, intent: str) -> Written:
        """Both phases, off the event loop: they block for as long as Spark works."""
        written = await asyncio.to_thread(
            compact_plan,
            self.session,
            self.tasks_volume,
            plan,
            self.options,
            intent,
            self.progress.enter,
        )
        self.progress.enter(COMMITTING)
        return written


async def plan_up_to(
    store: MetadataStore, volume: Volume, topic: TopicName, rolled: Position
) -> CompactionPlan:
    """A plan of everything up to `rolled`; if that takes the broker too long, of what can be seen
    by then.

    Raises ServiceNotReady if nothing can, and what `plan_topic` raises.
    """

    async def plan() -> CompactionPlan:
        return await plan_topic(store, volume, await bundle_of_topic(store, topic), topic)

    return await until_reached(plan, topic, rolled)


# --- command line ---------------------------------------------------------------------------------


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="magnetar_jobs.compact",
        description="Topic compaction: keep the latest message per key.",
    )
    add_topic_arguments(parser)
    add_arguments(parser)
    parser.add_argument(
        "--no-roll",
        action="store_true",
        help="compact what is sealed already instead of asking the owner to roll",
    )
    parser.add_argument(
        "--retain-keyless",
        action="store_true",
        help="keep messages without a key instead of dropping them",
    )
    return parser.parse_args(arguments)


async def run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """One run, recorded. Raises as `recorded`."""

    async def work(store: MetadataStore, clock: Clock, publisher: Publisher) -> Done:
        result = await _compact_all(store, clock, options, environment, publisher)
        return Done(asdict(result), result.message)

    return await recorded(options, KIND, SystemClock(), work)


async def _compact_all(
    store: MetadataStore,
    clock: Clock,
    options: argparse.Namespace,
    environment: Mapping[str, str],
    publisher: Publisher,
) -> Result:
    topics = await named_partitions(store, options)
    result, settings = Result(), session_settings(options, "compact")
    async with opened_at(options.volume, clock) as volume:
        rolled = dict.fromkeys(topics, BEFORE_ALL)
        if not options.no_roll:
            url, token_file = options.broker_url or "", environment.get(TOKEN_FILE, "")
            for partition in topics:
                try:
                    rolled[partition] = await roll_owner(store, volume, partition, url, token_file)
                except TopicNotFound:
                    if len(topics) == 1:
                        raise
                    del rolled[partition]  # it was never used, or it has gone
        if not rolled:
            return result
        publisher.progress.begin_topics(len(rolled))
        async with session_of(settings, environment, publisher) as session:
            register_source(session)
            compactor = Compactor(
                store,
                volume,
                options.volume,
                Committer(store, volume, clock, options.job, options.run),
                session,
                CompactionOptions(options.retain_keyless, settings.parallelism),
                publisher.progress,
            )
            await compactor.compact_all(rolled, result)
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return exit_code(KIND, lambda: asyncio.run(run(options, os.environ)), Report(options.report))


if __name__ == "__main__":
    sys.exit(main())
