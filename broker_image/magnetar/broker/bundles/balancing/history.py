"""Samples of this broker's load, kept in storage for analytics.

Owns: `LoadHistory`: a sample each `loadHistorySampleSeconds` of what the sampler has measured, and the
object that a few of them become. Imports: balance, siblings, the volume. Invariants: rates of
bundles are differences of their counters over the sample, CPU is the mean of it, and rates of topics
are the last that were measured; memory for samples that wait is bounded, the oldest are dropped and counted; one object is
written at a time, however many bundles there are; a volume that fails costs samples, never a report.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import deque
from collections.abc import Mapping, Sequence

import structlog

from magnetar.balance.load import BundleLoad, LoadReport, Rates, TopicLoad
from magnetar.balance.load_history import BundleSample, LoadSample, hottest, most_loaded
from magnetar.balance.settings import Settings
from magnetar.broker.bundles.balancing.sampling import (
    Counts,
    LoadSampler,
    SampledBundle,
    rates_of,
)
from magnetar.broker.context import BrokerContext
from magnetar.broker.metrics import Traffic
from magnetar.errors import StorageError
from magnetar.storage.names import LoadHistoryPlace, load_history
from magnetar.storage.turns import Turns

log = structlog.get_logger(__name__)

UNSAVED_BYTES_MAX = 32 << 20
"""Of samples that wait for storage."""
BUNDLES_PER_TURN = 500
GZIP_LEVEL = 6
LAST_S = 2.0
"""What a stop waits for the last samples."""


class LoadHistory:
    """What one broker writes down."""

    def __init__(
        self, context: BrokerContext, served: Mapping[str, SampledBundle], sampler: LoadSampler
    ) -> None:
        self._context, self._served, self._sampler = context, served, sampler
        now = context.clock.monotonic()
        self._since, self._written_at = now, now
        self._cores, self._reports = 0.0, 0
        self._counts: dict[str, tuple[Traffic, Counts]] = {}
        self._unsaved: deque[tuple[int, bytes]] = deque()

    async def observe(self, report: LoadReport, settings: Settings) -> None:
        """Take a sample if it is time, and write those that wait if it is."""
        now = self._context.clock.monotonic()
        if not settings.history_sample_s:
            return
        self._cores, self._reports = self._cores + report.cpu.usage / 100, self._reports + 1
        if now - self._since >= settings.history_sample_s:
            seconds, cores = now - self._since, self._cores / self._reports
            self._since, self._cores, self._reports = now, 0.0, 0
            await self._take(report, seconds, cores)
        if self._unsaved and now - self._written_at >= settings.history_write_s:
            self._written_at = now
            await self.save()

    async def save(self) -> None:
        """Write the samples that wait as one object."""
        context, samples = self._context, list(self._unsaved)
        if not samples or context.log.space.short is not None:
            return
        lines = [line for _, line in samples]
        packed = await context.compute(lambda: _packed(lines))
        place = LoadHistoryPlace(samples[0][0], samples[-1][0], len(packed), context.broker)
        try:
            await context.volume.put_if_absent(load_history(place), packed)
        except StorageError as error:
            log.warning("load_history.not_written", samples=len(samples), error=str(error))
            return
        for _ in samples:
            self._unsaved.popleft()
        context.metrics.balance.samples.labels("written").inc(len(samples))

    async def save_last(self) -> None:
        """Write what waits, if storage takes it soon: the broker stops."""
        try:
            async with asyncio.timeout(LAST_S):
                await self.save()
        except TimeoutError:
            log.warning("load_history.not_written", samples=len(self._unsaved), error="too slow")

    async def _take(self, report: LoadReport, seconds: float, cores: float) -> None:
        turns, found = Turns(BUNDLES_PER_TURN), list[tuple[BundleLoad, Rates]]()
        before, self._counts = self._counts, {}
        for name, owned in list(self._served.items()):
            counts = owned.traffic.counts()
            self._counts[name] = owned.traffic, counts
            load, (traffic, earlier) = self._sampler.loads.get(name), before.get(name, _NOTHING)
            if load is not None and traffic is owned.traffic:
                found.append((load, rates_of(earlier, counts, seconds).rounded()))
            await turns.after(1)
        topics = {load.name: self._sampler.topics_of(load.name) for load in report.top}
        line = await self._context.compute(
            lambda: _sample(report, seconds, cores, found, topics).encode()
        )
        self._unsaved.append((report.updated_ms, line))
        dropped = 0
        while sum(len(waiting) for _, waiting in self._unsaved) > UNSAVED_BYTES_MAX:
            self._unsaved.popleft()
            dropped += 1
        if dropped:
            self._context.metrics.balance.samples.labels("dropped").inc(dropped)


_NOTHING: tuple[Traffic | None, Counts] = (None, (0, 0, 0, 0))
"""Of a bundle that was not served here when the sample began: it is in the next one."""


def _sample(
    report: LoadReport,
    seconds: float,
    cores: float,
    found: Sequence[tuple[BundleLoad, Rates]],
    topics: Mapping[str, Sequence[TopicLoad]],
) -> LoadSample:
    bundles = most_loaded(
        BundleSample(
            load.name,
            rates,
            load.topics,
            load.producers,
            load.consumers,
            hottest(topics.get(load.name, ())),
        )
        for load, rates in found
    )
    return LoadSample(
        report.updated_ms,
        round(seconds, 3),
        report.broker,
        round(cores, 4),
        report.cpu.limit / 100,
        report.memory.usage,
        report.memory.limit,
        sum((rates for _, rates in found), Rates()).rounded(),
        bundles,
        len(found) - len(bundles),
    )


def _packed(lines: Sequence[bytes]) -> bytes:
    return gzip.compress(b"".join(line + b"\n" for line in lines), GZIP_LEVEL, mtime=0)
