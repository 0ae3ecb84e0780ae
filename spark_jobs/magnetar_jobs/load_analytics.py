"""`python -m magnetar_jobs.load_analytics`: advice on load from the history that brokers keep.

Owns: the command line and the steps of a run: choose objects, measure, advise, write the report, then
publish the advice. Imports: driver, session, load samples, measuring, analysis; metadata. Invariants:
the document is replaced in one write, and never by an older one; a report is in storage before
the document is published; a run that fails changes neither.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog

from magnetar.balance.advice import DOCUMENT, VALID_MS_MAX, LoadAdvice
from magnetar.balance.settings import BALANCE, Settings, followed
from magnetar.clock import Clock, SystemClock
from magnetar.errors import InvalidRequest, ServiceNotReady, StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import BROKER_CONFIGURATION, DocumentsRecord
from magnetar.metadata.store import Compare, MetadataStore, Put
from magnetar.storage import names
from magnetar.storage.volumes.opening import opened_at
from magnetar.storage.volumes.volume import Volume
from magnetar_jobs.analysis.advising import Purpose, advise
from magnetar_jobs.analysis.measured import Measured
from magnetar_jobs.analysis.report import report
from magnetar_jobs.driver import (
    Done,
    add_arguments,
    exit_code,
    recorded,
    session_of,
    session_settings,
)
from magnetar_jobs.load_measuring import measure
from magnetar_jobs.load_samples import chosen, read_samples
from magnetar_jobs.progress import COMMITTING, READING, WRITING, Publisher
from magnetar_jobs.reporting import Report
from magnetar_jobs.source import register_source
from magnetar_jobs.stored_topics import stored_topics, with_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

KIND = "load-analytics"
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
PUBLISH_ATTEMPTS_MAX = 5
JOB_LENGTH_MAX = 150
DAYS_MAX, WINDOW_S_MIN, WINDOW_S_MAX, TOPICS_MAX = 90.0, 10, 86_400, 50
WINDOWS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked for."""

    days: float = 14.0
    window_s: int = 600
    valid_hours: float = 24.0
    topics: int = 5

    def check(self) -> Options:
        """Raises InvalidRequest."""
        for name, value, low, high in (
            ("days", self.days, 0.01, DAYS_MAX),
            ("window-seconds", self.window_s, WINDOW_S_MIN, WINDOW_S_MAX),
            ("valid-hours", self.valid_hours, 0.01, VALID_MS_MAX / HOUR_MS),
            ("sample-topics", self.topics, 0, TOPICS_MAX),
        ):
            if not low <= value <= high:
                raise InvalidRequest(f"{name}: {value:g} is out of range; use {low:g} to {high:g}")
        if self.days * 86_400 / self.window_s > WINDOWS_MAX:
            raise InvalidRequest(
                f"window-seconds: {self.window_s} makes more than {WINDOWS_MAX} windows of "
                f"{self.days:g} days; use wider ones"
            )
        return self


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run reads and writes. `tasks_volume` is where Spark's tasks find the volume."""

    store: MetadataStore
    volume: Volume
    tasks_volume: str | Path
    clock: Clock
    job: str
    run: str


async def settings_of(store: MetadataStore) -> Settings:
    """Those of load balancing that brokers follow. Raises StoreError."""
    item = await store.get(keys.documents(BROKER_CONFIGURATION))
    given = DocumentsRecord.decode(item.value).documents if item is not None else {}
    return followed(BALANCE, given)[0]


async def analyse(
    session: SparkSession, place: Place, options: Options, parallelism: int
) -> tuple[Measured, LoadAdvice]:
    """Measure and advise; nothing is written. Raises ServiceNotReady without a history."""
    now_ms = place.clock.wall_ms()
    since_ms = now_ms - round(options.days * DAY_MS)
    settings = await settings_of(place.store)
    objects = chosen(await place.volume.list(names.LOAD_HISTORY), since_ms, now_ms + HOUR_MS)

    def work() -> Measured | None:
        samples = read_samples(session, place.tasks_volume, objects, settings, parallelism)
        recent = samples.where(
            f"kind = 'damaged' or at_ms between {since_ms} and {now_ms + HOUR_MS}"
        )
        return measure(recent, options.window_s, settings)

    measured = await asyncio.to_thread(work) if objects else None
    if measured is None:
        raise ServiceNotReady(
            f"storage has no samples of load of the last {options.days:g} days: brokers write some "
            "every loadHistoryWriteSeconds unless loadHistorySampleSeconds is 0; try again later"
        )
    bundles = [bundle.name for bundle in measured.bundles]
    stored = await stored_topics(place.store, place.volume, bundles)
    stored = await with_keys(
        session, place.store, place.volume, place.tasks_volume, stored, options.topics
    )
    measured = replace(measured, stored=stored)
    purpose = Purpose(now_ms, round(options.valid_hours * HOUR_MS), place.job, place.run)
    return measured, advise(measured, settings, purpose)


async def publish(store: MetadataStore, advice: LoadAdvice) -> bool:
    """Make it the advice in force; False if a younger one is. Raises StoreError."""
    key = keys.documents(DOCUMENT)
    document = json.loads(advice.encode())
    LoadAdvice.read(document, advice.made_ms)
    for _ in range(PUBLISH_ATTEMPTS_MAX):
        item = await store.get(key)
        revision = item.mod_revision if item is not None else 0
        if item is not None and _made_ms(item.value, advice.made_ms) > advice.made_ms:
            return False
        value = DocumentsRecord({DOCUMENT: document}).encode()
        result = await store.transact([Compare(key, "mod", "=", revision)], [Put(key, value)])
        if result.succeeded:
            return True
    raise StoreError(f"{key}: it changed {PUBLISH_ATTEMPTS_MAX} times while it was written")


def _made_ms(value: bytes, now_ms: int) -> int:
    """When the stored advice was made; 0 if it is not usable."""
    try:
        found = DocumentsRecord.decode(value).documents.get(DOCUMENT)
        return LoadAdvice.read(found, now_ms).made_ms
    except StoreError:
        return 0


async def run_once(
    session: SparkSession, place: Place, options: Options, parallelism: int, publisher: Publisher
) -> Done:
    """The steps of a run within a session."""
    progress = publisher.progress
    progress.enter(READING)
    measured, advice = await analyse(session, place, options, parallelism)
    progress.enter(WRITING)
    page = report(measured, advice).encode()
    where = names.LoadReportPlace(advice.made_ms, len(page), place.job)
    await place.volume.put_if_absent(names.load_report(where), page)
    progress.enter(COMMITTING)
    published = await publish(place.store, advice)
    progress.topic_done()
    return Done(
        {
            "samples": measured.samples,
            "damaged": measured.damaged,
            "brokers": len(measured.brokers),
            "bundles": len(measured.bundles),
            "splits": len(advice.splits),
            "merges": len(advice.merges),
            "hot_topics": len(advice.hot_topics),
            "compactions": len(advice.compactions),
            "forecasts": len(advice.forecasts),
            "valid_until_ms": advice.valid_until_ms,
            "report": where.identifier,
        },
        "" if published else "a younger run has published its advice; only the report was kept",
    )


# --- command line ---------------------------------------------------------------------------------


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    defaults = Options()
    parser = argparse.ArgumentParser(
        prog="magnetar_jobs.load_analytics", description="Advice on load from its history."
    )
    add_arguments(parser)
    parser.add_argument("--days", type=float, default=defaults.days, help="history that is read")
    parser.add_argument(
        "--window-seconds", type=int, default=defaults.window_s, help="width of a window"
    )
    parser.add_argument(
        "--valid-hours", type=float, default=defaults.valid_hours, help="how long advice holds"
    )
    parser.add_argument(
        "--sample-topics",
        type=int,
        default=defaults.topics,
        help="topics whose keys are looked at, the largest first",
    )
    return parser.parse_args(arguments)


async def run(options: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """One run, recorded. Raises as `recorded`."""
    wanted = Options(
        options.days, options.window_seconds, options.valid_hours, options.sample_topics
    ).check()
    if len(quote(options.job, safe="")) > JOB_LENGTH_MAX:
        raise InvalidRequest(f"job: a name has at most {JOB_LENGTH_MAX} characters once quoted")
    settings = session_settings(options, KIND)

    async def work(store: MetadataStore, clock: Clock, publisher: Publisher) -> Done:
        publisher.progress.begin_topics(1)
        async with (
            opened_at(options.volume, clock) as volume,
            session_of(settings, environment, publisher) as session,
        ):
            register_source(session)
            place = Place(store, volume, options.volume, clock, options.job, options.run)
            return await run_once(session, place, wanted, settings.parallelism, publisher)

    return await recorded(options, KIND, SystemClock(), work)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    return exit_code(KIND, lambda: asyncio.run(run(options, os.environ)), Report(options.report))


if __name__ == "__main__":
    sys.exit(main())
