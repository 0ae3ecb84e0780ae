"""What a decision reads and what it answers.

Owns: the values between the balancer and its host: brokers, bundles, policies, memory of earlier
decisions, moves. Imports: metadata.codec, names, balance. Pure.
Invariants: all values are frozen; a bundle is known by its name everywhere; a stale report counts
as none.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from magnetar.balance.lineage import inherited
from magnetar.balance.load import BundleLoad, History, LoadReport, Rates, TopicLoad
from magnetar.balance.settings import Settings
from magnetar.balance.top_k import namespace_of
from magnetar.metadata.codec import Record
from magnetar.names import BundleName

MOVE_REASON = "load balancing: "
"""How the reason of a bundle's record begins if a decision moved it."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker. `draining` ones take no bundle and lose those they have."""

    name: str
    report: LoadReport | None = None
    host: str = ""
    domain: str = ""
    version: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle and its owner ("" = an orphan). `history` is None until it is measured; a
    `pinned` bundle is not moved."""

    name: str
    broker: str = ""
    history: History | None = None
    topics: int = 0
    sessions: int = 0
    pinned: bool = False
    hot: tuple[TopicLoad, ...] = ()

    @property
    def short(self) -> Rates:
        return (self.history or History()).short.rates

    @property
    def long(self) -> Rates:
        return (self.history or History()).long.rates

    @property
    def level(self) -> Rates:
        return (self.history or History()).level.mean.rates

    @property
    def namespace(self) -> str:
        return namespace_of(self.name)


@dataclass(frozen=True)
class Cluster:
    """All brokers and bundles at one moment. The properties are computed once."""

    now_ms: int
    brokers: tuple[Broker, ...]
    bundles: tuple[Bundle, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Broker]:
        return {broker.name: broker for broker in self.brokers}

    @cached_property
    def bundle(self) -> dict[str, Bundle]:
        return {bundle.name: bundle for bundle in self.bundles}

    @cached_property
    def owned(self) -> dict[str, list[Bundle]]:
        """Bundles by broker; what an unknown broker owns is left out."""
        found: dict[str, list[Bundle]] = {broker.name: [] for broker in self.brokers}
        for bundle in self.bundles:
            if bundle.broker in found:
                found[bundle.broker].append(bundle)
        return found

    @cached_property
    def long_rates(self) -> dict[str, float]:
        """Long-term messages/s by broker."""
        return {
            name: sum(bundle.long.messages for bundle in bundles)
            for name, bundles in self.owned.items()
        }

    @cached_property
    def namespace_counts(self) -> Counter[tuple[str, str]]:
        """Bundles by namespace and broker."""
        return Counter((bundle.namespace, bundle.broker) for bundle in self.bundles)

    @cached_property
    def derived(self) -> dict[tuple[str, Settings], Any]:
        """What was computed of this cluster under some settings, to be used again."""
        return {}

    def report(self, broker: str, settings: Settings) -> LoadReport | None:
        """Its report, unless it is stale."""
        report = self.by_name[broker].report
        return report if report is not None and report.fresh(self.now_ms, settings) else None


def joined(
    owners: Mapping[str, str], reports: Iterable[LoadReport], pinned: Iterable[str] = ()
) -> tuple[Bundle, ...]:
    """The bundles of a cluster by their owners ("" = none), each with what its owner reported, or
    else with the newest that another broker did: its rates survive its move. A bundle that is
    newer than its owner's report has its part of what it was made from."""
    loads: dict[str, tuple[tuple[bool, int, str], BundleLoad]] = {}
    gone: dict[str, tuple[int, list[BundleLoad]]] = {}
    for report in reports:
        before: list[BundleLoad] = []
        for load in report.top:
            if load.name not in owners:
                before.append(load)
                continue
            rank = (owners[load.name] == report.broker, report.updated_ms, report.broker)
            if load.name not in loads or loads[load.name][0] < rank:
                loads[load.name] = rank, load
        if gone.get(report.broker, (-1, []))[0] < report.updated_ms:
            gone[report.broker] = report.updated_ms, before
    fixed = frozenset(pinned)

    def known(name: str, owner: str) -> BundleLoad | None:
        if name in loads:
            return loads[name][1]
        _, before = gone.get(owner, (0, []))
        return inherited(BundleName.parse(name), before) if before else None

    return tuple(
        Bundle(
            name,
            owner,
            load.history if load else None,
            load.topics if load else 0,
            load.producers + load.consumers if load else 0,
            name in fixed,
            load.hot if load else (),
        )
        for name, owner in sorted(owners.items())
        for load in (known(name, owner),)
    )


@dataclass(frozen=True, slots=True)
class Move:
    """One bundle and its next owner; `source` "" = it was an orphan."""

    bundle: str
    source: str
    destination: str
    reason: str


@dataclass(frozen=True, slots=True)
class Moved:
    """When a bundle moved last, its load then, and between which brokers; how often it moved
    within the grace period."""

    at_ms: int
    load: float
    brokers: tuple[str, ...] = ()
    times: int = 1


@dataclass(frozen=True, slots=True)
class Memory(Record):
    """What one decision leaves to the next. Averages are by broker, the rest as named.

    `hits`: cycles of AvgShedder (low, high). `merge_hits`: checks in a row in which the two parts of
    a merged bundle were cold. `planned`: its destinations by bundle. `preallocated`:
    destinations chosen whose bundles have not arrived. `turn`: of round robin.
    """

    usage: dict[str, float] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)
    hits: dict[str, tuple[int, int]] = field(default_factory=dict)
    transfer_hits: int = 0
    split_hits: dict[str, int] = field(default_factory=dict)
    merge_hits: dict[str, int] = field(default_factory=dict)
    planned: dict[str, str] = field(default_factory=dict)
    preallocated: dict[str, str] = field(default_factory=dict)
    moved: dict[str, Moved] = field(default_factory=dict)
    turn: int = 0

    def forget(self, bundles: Iterable[str]) -> Memory:
        """Without moves that failed: the bundles count where they are, and may move again."""
        failed = frozenset(bundles)
        if not failed:
            return self
        return replace(
            self,
            planned={name: to for name, to in self.planned.items() if name not in failed},
            preallocated={name: to for name, to in self.preallocated.items() if name not in failed},
            moved={name: moved for name, moved in self.moved.items() if name not in failed},
        )

    def observe(self, cluster: Cluster, settings: Settings) -> Memory:
        """Take up the usage of this cycle, and drop what is over: brokers and bundles that are
        gone, arrivals, grace periods, moves that did not arrive in time."""
        fresh = {
            broker.name: report
            for broker in cluster.brokers
            if (report := cluster.report(broker.name, settings)) is not None
        }
        usage = {name: report.weighted_usage(settings) for name, report in fresh.items()}
        throughput = {name: report.rates.throughput for name, report in fresh.items()}
        since_ms = cluster.now_ms - settings.grace_minutes * 60_000
        coming = {
            name: to
            for name, to in self.preallocated.items()
            if name in cluster.bundle
            and cluster.bundle[name].broker != to
            and to in cluster.by_name
        }
        failed = {
            name
            for name in coming
            if name in self.moved and self.moved[name].at_ms < cluster.now_ms - ARRIVAL_MS
        }
        return replace(
            self,
            usage=_averaged(self.usage, usage, settings.history),
            throughput=_averaged(self.throughput, throughput, settings.history),
            hits={name: hits for name, hits in self.hits.items() if name in fresh},
            planned={name: to for name, to in self.planned.items() if name in coming},
            preallocated=coming,
            moved={
                name: moved
                for name, moved in self.moved.items()
                if moved.at_ms > since_ms and name in cluster.bundle
            },
        ).forget(failed)


def _averaged(
    former: Mapping[str, float], now: Mapping[str, float], keep: float
) -> dict[str, float]:
    return {
        name: keep * former[name] + (1 - keep) * value if name in former else value
        for name, value in now.items()
    }


ARRIVAL_MS = 120_000
"""A move that takes longer has failed."""


@dataclass(frozen=True, slots=True)
class Split:
    """A bundle to be split; its owner finds the boundaries if there are none here. With `part_max`
    no part should have more load, in messages/s."""

    bundle: str
    algorithm: str
    reason: str
    boundaries: tuple[int, ...] = ()
    part_max: float = 0.0


@dataclass(frozen=True, slots=True)
class Merge:
    """Two neighbours that become one bundle."""

    bundles: tuple[str, str]
    merged: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome(Record):
    """What was decided (moves in the order in which they help), why, what was passed over
    (bounded), and the memory for the next decision."""

    memory: Memory
    reason: str
    moves: tuple[Move, ...] = ()
    splits: tuple[Split, ...] = ()
    merges: tuple[Merge, ...] = ()
    notes: tuple[str, ...] = ()


NOTES_MAX = 50
"""Notes of one outcome: a log of every bundle would be as large as the cluster."""


def pick(seed: int, key: str, count: int) -> int:
    """0..count-1 by chance: the same for the same seed and key, whatever else is decided."""
    return zlib.crc32(f"{seed}/{key}".encode()) % count
