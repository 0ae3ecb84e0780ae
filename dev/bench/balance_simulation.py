"""Synthetic clusters that one strategy of load balancing balances.

Owns: the strategies by name, `Start` (loads, owners, capacities), `Simulation` and its `Result`.
Imports: magnetar.balance. Deterministic: loads come from seeds, time is simulated. Statistics are
perfect unless a case has noise; a move takes effect at once.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from magnetar.balance.cluster import Broker, Bundle, Cluster, Memory
from magnetar.balance.filters import Situation
from magnetar.balance.load import History, LoadReport, Rates, Resource
from magnetar.balance.placement import place
from magnetar.balance.rebalance import Problem, rebalance
from magnetar.balance.settings import MIB, PLANNER, Settings
from magnetar.balance.shedding.cycle import shed

EVENLY = "loadBalancerDistributeBundlesEvenlyEnabled"
SHEDDER, PLACEMENT = "loadBalancerLoadSheddingStrategy", "loadBalancerLoadPlacementStrategy"
STRATEGIES: Mapping[str, Mapping[str, object]] = {
    "ThresholdShedder, LeastLongTermMessageRate": {EVENLY: False},
    "ThresholdShedder, LeastResourceUsageWithWeight": {
        EVENLY: False,
        PLACEMENT: "LeastResourceUsageWithWeight",
    },
    "UniformLoadShedder": {SHEDDER: "UniformLoadShedder", EVENLY: False},
    "AvgShedder": {SHEDDER: "AvgShedder", PLACEMENT: "AvgShedder", "maxUnloadPercentage": 0.5},
    "TransferShedder": {SHEDDER: "TransferShedder", EVENLY: False},
    PLANNER: {SHEDDER: PLANNER, PLACEMENT: PLANNER},
}
CAPACITY = 1000 * MIB
UTILISATION = 0.5
MESSAGE_BYTES = 1024
DEVIATION = 0.8
MINUTE_MS = 60_000
QUIET_MINUTES = 45
"""Longer than the grace period: what has not moved since then does not move again."""
HOURS_MAX = 4


@dataclass(frozen=True)
class Start:
    """A cluster before balancing: loads of bundles as shares of a mean broker's load, owners (-1 =
    orphan), relative capacities."""

    loads: tuple[float, ...]
    owners: tuple[int, ...]
    capacities: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.loads) / sum(self.capacities)

    def fills(self, owners: Sequence[int]) -> list[float]:
        """Load for capacity, 1 = the mean."""
        totals = [0.0] * len(self.capacities)
        for load, owner in zip(self.loads, owners, strict=True):
            if owner >= 0:
                totals[owner] += load
        return [
            total / capacity / self.mean
            for total, capacity in zip(totals, self.capacities, strict=True)
        ]

    def least(self, band: float = 0.02) -> float:
        """The least load that must move for every broker to be within the band."""
        fills = self.fills(self.owners)
        sized = list(zip(fills, self.capacities, strict=True))
        orphans = sum(
            load for load, owner in zip(self.loads, self.owners, strict=True) if owner < 0
        )
        over = sum(max(0.0, fill - 1 - band) * size for fill, size in sized) * self.mean
        under = sum(max(0.0, 1 - band - fill) * size for fill, size in sized) * self.mean
        return max(over + orphans, under)


def random_start(brokers: int, each: int, seed: int, capacities: Sequence[float] = ()) -> Start:
    """Lognormal loads on random brokers."""
    chance, count = random.Random(seed), brokers * each
    loads = tuple(chance.lognormvariate(0, DEVIATION) for _ in range(count))
    owners = tuple(chance.randrange(brokers) for _ in range(count))
    return Start(loads, owners, tuple(capacities) or (1.0,) * brokers)


def even_start(brokers: int, each: int, seed: int) -> Start:
    """The same, brought into the band."""
    start = random_start(brokers, each, seed)
    owners = list(start.owners)
    for step in rebalance(Problem(start.loads, owners, start.capacities, trigger=0.02)).steps:
        owners[step.bundle] = step.destination
    return replace(start, owners=tuple(owners))


def with_new(start: Start, count: int) -> Start:
    return replace(start, capacities=(*start.capacities, *(1.0,) * count))


def without_last(start: Start, seed: int, orphans: bool) -> Start:
    """The last broker is gone; its bundles are orphans, or were placed at random."""
    chance, last = random.Random(seed), len(start.capacities) - 1
    owners = tuple(
        owner if owner != last else -1 if orphans else chance.randrange(last)
        for owner in start.owners
    )
    return Start(start.loads, owners, start.capacities[:-1])


@dataclass(frozen=True)
class Result:
    """How a run ended; `settled_s` is the time of the last move."""

    max_over_lb: float
    cv: float
    moves: int
    moved: float
    moved_over_least: float
    settled_s: float


class Simulation:
    """A cluster that one strategy balances."""

    def __init__(self, start: Start, settings: Mapping[str, object]) -> None:
        self.start = start
        self.settings = Settings.read(settings)
        self.memory = Memory()
        self.now_ms = MINUTE_MS
        self.moves = 0
        self.moved = 0.0
        self.last_move_ms = self.now_ms
        self._scale = CAPACITY * UTILISATION / start.mean
        self.bundles = [
            Bundle(
                f"bench/ns{at // 64}/0x{at:08x}_0x{at + 1:08x}",
                self._name(owner),
                History.steady(self._rates(load)),
                topics=2,
            )
            for at, (load, owner) in enumerate(zip(start.loads, start.owners, strict=True))
        ]
        self._number = {bundle.name: at for at, bundle in enumerate(self.bundles)}

    def _name(self, owner: int) -> str:
        return f"broker-{owner:04d}" if owner >= 0 else ""

    def _rates(self, load: float) -> Rates:
        half = load * self._scale / 2
        return Rates(half / MESSAGE_BYTES, half / MESSAGE_BYTES, half, half)

    @property
    def owners(self) -> list[int]:
        return [int(bundle.broker[7:]) if bundle.broker else -1 for bundle in self.bundles]

    def situation(self) -> Situation:
        """The cluster now, by what the bundles have shown."""
        totals = {self._name(at): Rates() for at in range(len(self.start.capacities))}
        for bundle in self.bundles:
            if bundle.broker:
                totals[bundle.broker] += bundle.short
        brokers = []
        for at, (name, rates) in enumerate(totals.items()):
            limit = CAPACITY * self.start.capacities[at]
            report = LoadReport(
                name,
                self.now_ms,
                cpu=Resource(100 * rates.throughput / CAPACITY, 100 * self.start.capacities[at]),
                bandwidth_in=Resource(rates.bytes_in, limit / 2),
                bandwidth_out=Resource(rates.bytes_out, limit / 2),
                rates=rates,
            )
            brokers.append(Broker(name, report))
        cluster = Cluster(self.now_ms, tuple(brokers), tuple(self.bundles))
        return Situation(cluster, self.memory, settings=self.settings, seed=self.now_ms)

    def observe(self, loads: Sequence[float]) -> None:
        """One more sample of every bundle."""
        self.bundles = [
            replace(bundle, history=(bundle.history or History()).observe(self._rates(load)))
            for bundle, load in zip(self.bundles, loads, strict=True)
        ]

    def step(self, interval_ms: int) -> int:
        """One round of the strategy; orphans that it leaves are placed. Returns moves."""
        self.now_ms += interval_ms
        now = self.situation()
        outcome = shed(now)
        self.memory = outcome.memory
        moves = [(move.bundle, move.destination) for move in outcome.moves]
        if self.settings.shedder != PLANNER:
            for bundle in now.cluster.bundles:
                if not bundle.broker:
                    placed = place(bundle, replace(now, memory=self.memory))
                    self.memory = placed.memory
                    moves.append((bundle.name, placed.broker))
        for name, destination in moves:
            at = self._number[name]
            self.bundles[at] = replace(self.bundles[at], broker=destination)
            self.moved += self.start.loads[at]
        self.moves += len(moves)
        if moves:
            self.last_move_ms = self.now_ms
        return len(moves)

    def run(self) -> Result:
        """Until nothing has moved for long."""
        planning = self.settings.shedder == PLANNER
        interval_ms = int(1000 * self.settings.plan_interval_s) if planning else MINUTE_MS
        began = self.now_ms
        while self.now_ms - began < HOURS_MAX * 60 * MINUTE_MS:
            if self.now_ms - self.last_move_ms > (3 if planning else QUIET_MINUTES) * MINUTE_MS:
                break
            self.step(interval_ms)
        fills, mean = self.start.fills(self.owners), self.start.mean
        largest = max(self.start.loads) / max(self.start.capacities)
        return Result(
            max(fills) / max(1.0, largest / mean),
            statistics.pstdev(fills) / statistics.fmean(fills),
            self.moves,
            self.moved / sum(self.start.loads),
            self.moved / self.start.least(),
            (self.last_move_ms - began) / 1000,
        )
