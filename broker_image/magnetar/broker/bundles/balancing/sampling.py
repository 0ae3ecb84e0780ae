"""Samples of this broker's load.

Owns: `LoadSampler`: rates of bundles from their counters, of topics inside hot bundles, usage of
the process against its limits. Imports: balance, metrics, the process's usage. Invariants: rates
are differences of counters over the measured interval; a sample is taken in turns, in time
proportional to bundles and topics; the history of a bundle continues where its former owner's
reports ended, and that of a split's parts where its own did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from magnetar import __version__
from magnetar.balance.lineage import inherited
from magnetar.balance.load import (
    BundleLoad,
    History,
    LoadReport,
    Rates,
    Resource,
    TopicLoad,
)
from magnetar.balance.settings import Settings
from magnetar.balance.top_k import hot_topics, top_bundles
from magnetar.broker.bundles.balancing.reports import Reports
from magnetar.broker.bundles.balancing.trend import RecentMoves
from magnetar.broker.context import BrokerContext
from magnetar.broker.metrics import Traffic
from magnetar.broker.ports import ServedTopic
from magnetar.hosting.identity import Usage
from magnetar.names import BundleName
from magnetar.storage.turns import Turns
from magnetar.topics.topic import Counters

WORK_PER_TURN_MAX = 200
"""Topics and subscriptions counted in one turn of the loop: a millisecond or two."""
SAMPLED_WORK = 10
"""What taking up the rates of one bundle costs, in topics."""
SPAN_S_MIN = 0.05
"""What a sample covers at least: a bundle that is new here has none yet."""
GBPS_BYTES = 1e9 / 8
Counts = tuple[int, int, int, int]


class SampledBundle(Protocol):
    """A bundle in service, as it is sampled."""

    @property
    def traffic(self) -> Traffic: ...
    @property
    def topics(self) -> Mapping[str, ServedTopic]: ...
    @property
    def unstored(self) -> Mapping[str, ServedTopic]: ...


@dataclass(slots=True)
class _Sampled:
    """A bundle as of its last sample. While it is hot, `topics` are counts of its topics and
    `loads` their rates."""

    traffic: Traffic
    since: float
    counts: Counts = (0, 0, 0, 0)
    history: History | None = None
    topics: dict[str, Counts] = field(default_factory=dict)
    loads: list[TopicLoad] = field(default_factory=list)
    topics_since: float = 0.0


class LoadSampler:
    """Makes one report after another."""

    def __init__(
        self,
        context: BrokerContext,
        served: Mapping[str, SampledBundle],
        reports: Reports,
        usage: Usage,
        moves: RecentMoves,
    ) -> None:
        self._context, self._served, self._reports, self._usage = context, served, reports, usage
        self._moves = moves
        self._bundles: dict[str, _Sampled] = {}
        self.loads: Mapping[str, BundleLoad] = {}
        """Of every bundle served here, as of the last sample."""
        self._totals, self._since = self._counted(), context.clock.monotonic()
        self.latest: LoadReport | None = None

    def _counted(self) -> tuple[float, ...]:
        return (*self._context.metrics.traffic().counts(), self._usage.cpu_seconds())

    async def sample(self, settings: Settings) -> LoadReport:
        """The load since the last sample."""
        turns, served = Turns(WORK_PER_TURN_MAX), dict(self._served)
        self._bundles = {name: seen for name, seen in self._bundles.items() if name in served}
        await self._begin(served, turns)
        loads = [await self._load_of(name, owned, turns) for name, owned in served.items()]
        self.loads = {load.name: load for load in loads}
        top = [
            replace(load, hot=await self._hot(load.name, served[load.name], turns))
            for load in await self._context.compute(lambda: top_bundles(loads, settings))
        ]
        hot = {load.name for load in top}
        for name, seen in self._bundles.items():
            if name not in hot:
                seen.topics, seen.loads = {}, []
        self.latest = self._report(loads, tuple(top), settings)
        return self.latest

    @property
    def sampled(self) -> Collection[str]:
        """The bundles of the last sample."""
        return self._bundles.keys()

    def topics_of(self, bundle: str) -> list[TopicLoad]:
        """All topics of a bundle that was hot in the last sample."""
        return self._bundles[bundle].loads if bundle in self._bundles else []

    async def _begin(self, served: Mapping[str, SampledBundle], turns: Turns) -> None:
        """Take up bundles that are new here, with what their former owners reported."""
        new = [
            name
            for name, owned in served.items()
            if name not in self._bundles or self._bundles[name].traffic is not owned.traffic
        ]
        known = self._reports.loads() if new else {}
        former = (
            [load for load in self.latest.top if load.name not in served] if self.latest else []
        )
        for name in new:
            load = known.get(name) or inherited(BundleName.parse(name), former)
            history = load.history if load is not None else None
            traffic = served[name].traffic
            self._bundles[name] = _Sampled(
                traffic, self._context.clock.monotonic(), traffic.counts(), history
            )
            await turns.after(1)

    async def _load_of(self, name: str, owned: SampledBundle, turns: Turns) -> BundleLoad:
        seen, now = self._bundles[name], self._context.clock.monotonic()
        counts, seconds = owned.traffic.counts(), now - seen.since
        if seconds >= SPAN_S_MIN:
            rates = rates_of(seen.counts, counts, seconds)
            if seen.history is not None or rates.size:
                seen.history = (seen.history or History()).observe(rates)
                await turns.after(SAMPLED_WORK)
            seen.counts, seen.since = counts, now
        topics = producers = consumers = 0
        for topic in [*owned.topics.values(), *owned.unstored.values()]:
            topics += 1
            producers += len(topic.core.producers)
            consumers += sum(len(found.core.consumers) for found in topic.subscriptions.values())
            await turns.after(1 + len(topic.subscriptions))
        return BundleLoad(name, seen.history or _IDLE, topics, producers, consumers)

    async def _hot(self, name: str, owned: SampledBundle, turns: Turns) -> tuple[TopicLoad, ...]:
        """The hottest topics of a hot bundle since its last sample."""
        seen, now = self._bundles[name], self._context.clock.monotonic()
        before, seconds = seen.topics, now - seen.topics_since
        seen.topics, seen.topics_since = {}, now
        found = []
        for topic in [*owned.topics.values(), *owned.unstored.values()]:
            text, counts = str(topic.name), _counts(topic.core.counters)
            seen.topics[text] = counts
            rates = rates_of(before.get(text, counts), counts, seconds).rounded()
            found.append(TopicLoad(text, topic.name.hash, rates))
            await turns.after(1)
        seen.loads = found
        return hot_topics(load for load in found if load.rates.size)

    def _report(
        self, loads: Iterable[BundleLoad], top: tuple[BundleLoad, ...], settings: Settings
    ) -> LoadReport:
        context, usage = self._context, self._usage
        before, since = self._totals, self._since
        self._totals, self._since = self._counted(), context.clock.monotonic()
        seconds = max(self._since - since, 1e-3)
        *traffic, cpu = (
            (new - old) / seconds for new, old in zip(self._totals, before, strict=True)
        )
        rates, limit = Rates(*traffic).rounded(), settings.nic_gbps * GBPS_BYTES
        found, now_ms, moved = list(loads), context.clock.wall_ms(), self._moves.last
        return LoadReport(
            broker=context.broker,
            updated_ms=now_ms,
            cpu=Resource(round(100 * cpu, 2), 100 * usage.cores),
            memory=Resource(usage.memory_bytes(), usage.memory_limit_bytes),
            bandwidth_in=Resource(rates.bytes_in, limit),
            bandwidth_out=Resource(rates.bytes_out, limit),
            rates=rates,
            bundles=len(found),
            topics=sum(load.topics for load in found),
            producers=sum(load.producers for load in found),
            consumers=sum(load.consumers for load in found),
            version=__version__,
            moves=self._moves.count(self._since),
            moved_ms=now_ms - round(1000 * (self._since - moved)) if moved is not None else 0,
            top=top,
        )


_IDLE = History.steady(Rates(), 0)
"""Of a bundle that was never used here."""


def _counts(counters: Counters) -> Counts:
    return (
        counters.messages_in,
        counters.messages_out,
        counters.bytes_in,
        counters.bytes_out,
    )


def rates_of(before: Counts, now: Counts, seconds: float) -> Rates:
    """Per second. Counters of a topic that was deleted and created again went back: 0."""
    span = max(seconds, 1e-3)
    return Rates(*((new - old) / span for new, old in zip(now, before, strict=True)))
