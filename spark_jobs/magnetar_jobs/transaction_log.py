"""`python -m magnetar_jobs.transaction_log`: compaction of transaction logs (PIP-31).

Owns: the command line and the loop plan -> write -> commit over the bundles of a topic or a
namespace. Imports: driver, session, transaction_log_plan, transaction_log_writing, intents, metadata;
argparse, since typer has no exclusive options. Invariants: each bundle is committed alone, in one
transaction; a conflict plans that bundle again, at most `ATTEMPTS_MAX` times; whatever happens,
readers see the old layout or the new one, and the same messages in both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from magnetar.clock import Clock, SystemClock
from magnetar.compaction.intents import Conflict, IntentWriter
from magnetar.errors import MagnetarError, TopicNotFound
from magnetar.metadata.store import MetadataStore
from magnetar.names import BundleName, TopicName
from magnetar.storage.manifest import SegmentReference
from magnetar.storage.volumes.opening import opened_at
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.cluster import bundle_of_topic, roll_owner
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
from magnetar_jobs.progress import COMMITTING, PLANNING, WRITING, Publisher, RunProgress
from magnetar_jobs.remote_store import TOKEN_FILE
from magnetar_jobs.reporting import Report
from magnetar_jobs.segment_rows import SCHEMA, reference_of
from magnetar_jobs.transaction_log_plan import LogPlan, plan_bundle
from magnetar_jobs.transaction_log_writing import (
    PartWriter,
    parts_table,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

KIND = "transaction-log"
ATTEMPTS_MAX = 3


@dataclass(slots=True)
class Result:
    """What a run did, summed over its bundles.

    `files` have left the lists; `files_waiting` have not, for in them are messages of transactions
    that had not ended, of which `open_transaction` is the one that began first. `bytes_void` were
    of no use any more: aborted, or trimmed.
    """

    topics: int = 0
    bundles: int = 0
    files: int = 0
    files_waiting: int = 0
    entries_out: int = 0
    segments: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_void: int = 0
    open_transaction: str = ""

    def leave(self, plan: LogPlan) -> None:
        """Files that stay listed."""
        self.files_waiting += plan.waiting
        if plan.waiting and plan.oldest is not None and not self.open_transaction:
            self.open_transaction = f"{plan.oldest.txn} of {plan.oldest.topic}"

    @property
    def message(self) -> str:
        """What else there is to say of a run that succeeded."""
        if not self.files_waiting:
            return ""
        whose = f", such as {self.open_transaction}" if self.open_transaction else ""
        return (
            f"{self.files_waiting} log files stay listed for messages of transactions whose end is "
            f"not in sealed files yet{whose}; a run after their end takes the rest"
        )


@dataclass(frozen=True, slots=True)
class WrittenSegments:
    """New segments by topic, not committed yet."""

    by_topic: Mapping[str, tuple[SegmentReference, ...]]

    @property
    def all(self) -> list[SegmentReference]:
        return [segment for found in self.by_topic.values() for segment in found]

    @property
    def objects(self) -> set[str]:
        return {segment.object for segment in self.all}


class Writing(Protocol):
    """How the parts of a plan become segments; blocks until they are durable."""

    def __call__(self, plan: LogPlan, intent: str) -> list[tuple[str, SegmentReference]]: ...


@dataclass(frozen=True, slots=True)
class SparkWriting:
    """By Spark. `volume` is where its tasks find the volume."""

    session: SparkSession
    volume: str | Path
    parallelism: int

    def __call__(self, plan: LogPlan, intent: str) -> list[tuple[str, SegmentReference]]:
        parts = parts_table(plan.ordered(self.parallelism))
        tasks = int(parts["task"][-1].as_py()) + 1
        dealt = (
            self.session.createDataFrame(parts)
            .repartitionById(tasks, "task")
            .sortWithinPartitions("topic", "ledger", "entry")
        )
        writer = PartWriter(self.volume, str(plan.bundle), intent)
        rows = dealt.mapInArrow(writer, SCHEMA).collect()
        return [(row["topic"], reference_of(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class LogCompactor:
    """Everything a run works with."""

    store: MetadataStore
    volume: Volume
    intents: IntentWriter
    writing: Writing
    progress: RunProgress = field(default_factory=lambda: RunProgress(SystemClock()))

    async def compact(self, bundle: BundleName, topics: frozenset[str], result: Result) -> bool:
        """Compact the files of one bundle that have transactions of `topics`, as far as they are
        sealed now; whether that changed anything. Raises Conflict if others were faster
        `ATTEMPTS_MAX` times."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            self.progress.enter(PLANNING)
            plan = await plan_bundle(self.store, self.volume, bundle, topics)
            self.progress.planned(plan.bytes)
            log.info(
                "transaction_log.planned",
                bundle=str(bundle),
                files=len(plan.files),
                partly=len(plan.partly),
                parts=len(plan.parts),
                bytes=plan.bytes,
                void_bytes=plan.void_bytes,
            )
            if not plan.news:
                result.leave(plan)
                return False
            try:
                written = await self._commit(plan)
            except Conflict as error:
                log.warning(
                    "transaction_log.conflict",
                    bundle=str(bundle),
                    attempt=attempt,
                    error=str(error),
                )
                if attempt == ATTEMPTS_MAX:
                    raise
                continue
            result.leave(plan)
            result.bundles += 1
            result.topics += len(plan.touched)
            result.files += len(plan.files)
            result.segments += len(written.all)
            result.entries_out += sum(segment.entries for segment in written.all)
            result.bytes_in += plan.bytes
            result.bytes_out += sum(segment.bytes for segment in written.all)
            result.bytes_void += plan.void_bytes
            log.info(
                "transaction_log.committed",
                bundle=str(bundle),
                files=len(plan.files),
                segments=len(written.all),
            )
            return True
        raise AssertionError("the loop returns or raises")

    async def _commit(self, plan: LogPlan) -> WrittenSegments:
        async def write(intent: str) -> WrittenSegments:
            self.progress.enter(WRITING)
            found: dict[str, list[SegmentReference]] = {}
            if plan.parts:
                for topic, segment in await asyncio.to_thread(self.writing, plan, intent):
                    found.setdefault(topic, []).append(segment)
            self.progress.enter(COMMITTING)
            return WrittenSegments(
                {
                    topic: tuple(sorted(segments, key=lambda segment: segment.first))
                    for topic, segments in found.items()
                }
            )

        committed, _ = await self.intents.commit(
            plan.bundle,
            "",
            write,
            lambda intent, written: plan.edit(intent, written.by_topic if written else {}),
        )
        return committed


# --- command line ---------------------------------------------------------------------------------


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="magnetar_jobs.transaction_log",
        description="Compaction of transaction logs: committed messages in the order of commits, "
        "aborted ones dropped.",
    )
    add_topic_arguments(parser)
    add_arguments(parser)
    parser.add_argument(
        "--no-roll",
        action="store_true",
        help="compact what is sealed already instead of asking the owners to roll",
    )
    return parser.parse_args(arguments)


async def run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """One run, recorded. Raises as `recorded`."""

    async def work(store: MetadataStore, clock: Clock, publisher: Publisher) -> Done:
        topics = await named_partitions(store, options)
        result = await _compact_all(store, clock, topics, options, environment, publisher)
        return Done(asdict(result), result.message)

    return await recorded(options, KIND, SystemClock(), work)


async def by_bundle(
    store: MetadataStore, topics: list[TopicName]
) -> dict[BundleName, list[TopicName]]:
    """Partitions by the bundle that they are in. Raises NamespaceNotFound."""
    found: dict[BundleName, list[TopicName]] = {}
    for topic in topics:
        found.setdefault(await bundle_of_topic(store, topic), []).append(topic)
    return found


@dataclass(frozen=True, slots=True)
class Owners:
    """Asks the brokers that serve bundles to seal what they have acknowledged, and to read what was
    committed."""

    store: MetadataStore
    volume: Volume
    broker_url: str
    token_file: str

    async def roll(self, topics: list[TopicName]) -> None:
        """The owner of a bundle, by any of its topics that is in use: without one there is nothing
        to seal. Raises ServiceNotReady, InvalidRequest."""
        for topic in topics:
            with contextlib.suppress(TopicNotFound):
                await roll_owner(
                    self.store,
                    self.volume,
                    topic,
                    self.broker_url,
                    self.token_file,
                    rewrite=False,
                )
                return

    async def show(self, topics: list[TopicName]) -> None:
        """Have the owner serve what was committed at once; without that it does when files go."""
        try:
            await self.roll(topics)
        except MagnetarError as error:
            log.info("transaction_log.not_shown", topic=str(topics[0]), error=str(error))


async def _compact_all(
    store: MetadataStore,
    clock: Clock,
    topics: list[TopicName],
    options: argparse.Namespace,
    environment: Mapping[str, str],
    publisher: Publisher,
) -> Result:
    bundles = await by_bundle(store, topics)
    result, settings = Result(), session_settings(options, "transaction-log")
    if not bundles:
        return result
    async with opened_at(options.volume, clock) as volume:
        owners = Owners(store, volume, options.broker_url or "", environment.get(TOKEN_FILE, ""))
        if not options.no_roll:
            for topics in bundles.values():
                await owners.roll(topics)
        publisher.progress.begin_topics(len(bundles))
        async with session_of(settings, environment, publisher) as session:
            compactor = LogCompactor(
                store,
                volume,
                IntentWriter(store, volume, clock, KIND, options.job, options.run),
                SparkWriting(session, options.volume, settings.parallelism),
                publisher.progress,
            )
            for bundle, topics in bundles.items():
                changed = await compactor.compact(bundle, frozenset(map(str, topics)), result)
                if changed and not options.no_roll:
                    await owners.show(topics)
                publisher.progress.topic_done()
    return result


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return exit_code(KIND, lambda: asyncio.run(run(options, os.environ)), Report(options.report))


if __name__ == "__main__":
    sys.exit(main())
