"""TransferShedder: until the standard deviation of loads is below a target.

Owns: the strategy, with bundles that are swapped back. Imports: balance.cluster, balance.filters,
balance.top_k, shedding.selection. Pure. Invariant: what is swapped back counts in the loads of the
next pair.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from magnetar.balance.cluster import Bundle
from magnetar.balance.filters import Situation, allowed, kept
from magnetar.balance.shedding.selection import Selection, Shed, serving, sheddable, throughput

UNDERLOADED_MAX = 0.5
SWAP_DROP = 0.75
"""A swap must leave the donor with less than this share of its throughput."""


@dataclass(slots=True)
class _Loads:
    """Averaged loads and throughputs of brokers while pairs exchange bundles."""

    load: dict[str, float]
    traffic: dict[str, float]
    target: float
    overloaded: float

    def unbalanced(self) -> str | None:
        """Why the cluster is not balanced; None if it is."""
        values = self.load
        mean, deviation = statistics.fmean(values.values()), statistics.pstdev(values.values())
        if deviation > self.target:
            return f"standard deviation {deviation:.3f} is above {self.target:.3f}"
        low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
        share = min(UNDERLOADED_MAX, self.target / 2)
        if values[low] < mean * share or self.traffic[low] < self.traffic[high] * share:
            return f"broker {low} is underloaded"
        if values[high] > self.overloaded and values[high] > mean + self.target:
            return f"broker {high} is overloaded"
        return None

    def shift(self, high: str, low: str, amount: float) -> None:
        moved = amount * self.load[high] / self.traffic[high]
        self.load[high] -= moved
        self.load[low] += moved
        self.traffic[high] -= amount
        self.traffic[low] += amount


def transfer_shedder(situation: Situation) -> Selection:
    """Once the condition has held for some cycles, a few pairs exchange bundles."""
    settings, memory = situation.settings, situation.memory
    brokers = [name for name in serving(situation) if name in memory.usage]
    waiting = _waiting(situation, brokers)
    if waiting:
        return Selection((), memory, waiting)
    loads = _Loads(
        {name: memory.usage[name] for name in brokers},
        {name: memory.throughput.get(name, 0.0) for name in brokers},
        settings.target_std,
        settings.overloaded_percent / 100,
    )
    reason = loads.unbalanced()
    hits = memory.transfer_hits + 1 if reason else 0
    if not reason or hits <= settings.transfer_hits:
        after = replace(memory, transfer_hits=hits)
        return Selection((), after, reason or "balanced")
    sheds = _pairs(situation, loads, reason)
    touched = {name for shed in sheds for name in (shed.bundle.broker, shed.destination)}
    after = replace(
        memory,
        transfer_hits=0 if sheds else hits,
        usage={name: value for name, value in memory.usage.items() if name not in touched},
        throughput={
            name: value for name, value in memory.throughput.items() if name not in touched
        },
    )
    if not settings.transfer:
        sheds = [replace(shed, destination="") for shed in sheds]
    return Selection(tuple(sheds), after, reason)


def _waiting(situation: Situation, brokers: Sequence[str]) -> str | None:
    """Why nothing may be decided yet."""
    cluster, settings = situation.cluster, situation.settings
    if len(brokers) < 2:
        return "fewer than two brokers with a report"
    for broker in cluster.brokers:
        if broker.report is None and not broker.draining:
            return f"broker {broker.name} has not reported"
    for moved in situation.memory.moved.values():
        for name in moved.brokers:
            report = cluster.report(name, settings) if name in cluster.by_name else None
            since_ms = report.updated_ms - moved.at_ms if report is not None else 0
            if report is not None and since_ms < settings.transfer_delay_s * 1000:
                return f"broker {name} has not reported since its last move"
    return None


def _pairs(situation: Situation, loads: _Loads, reason: str) -> list[Shed]:
    order = sorted(loads.load, key=lambda name: (loads.load[name], name))
    sheds: list[Shed] = []
    low, high = 0, len(order) - 1
    why: str | None = reason
    for _ in range(situation.settings.transfer_pairs):
        if low >= high or why is None:
            break
        exchanged = _exchange(situation, loads, order[high], order[low], why)
        sheds += exchanged
        high -= 1
        if exchanged:
            low += 1
            why = loads.unbalanced()
    return sheds


def _exchange(situation: Situation, loads: _Loads, high: str, low: str, reason: str) -> list[Shed]:
    """The smallest of the top bundles first, as far as they bring the two to the same load."""
    ours = _movable(situation, high, low)
    if not ours or not loads.load[high] or not loads.traffic[high]:
        return []
    share = (loads.load[high] - loads.load[low]) / 2 / loads.load[high]
    wanted, sum_, sheds = loads.traffic[high] * share, 0.0, list[Shed]()
    spare = len(situation.cluster.owned[high]) - 1
    for amount, bundle in ours[:spare]:
        if sum_ + amount > wanted:
            back = _swap(situation, loads, high, low, sum_ + amount)
            if back:
                sheds.append(Shed(bundle, reason, low))
                sheds += (Shed(other, f"swapped: {reason}", high) for _, other in back)
                sum_ += amount - sum(size for size, _ in back)
            break
        sheds.append(Shed(bundle, reason, low))
        sum_ += amount
    loads.shift(high, low, sum_)
    return sheds


def _movable(situation: Situation, source: str, destination: str) -> list[tuple[float, Bundle]]:
    """Top bundles in ascending order that policies let go to the destination."""
    settings, policies = situation.settings, situation.policies
    found = [
        item
        for item in reversed(sheddable(situation, source, throughput))
        if item[1].history is not None
        and (settings.bundles_with_policies or not policies.bind(item[1].namespace))
        and kept(situation, item[1]) is None
        and destination in allowed(situation, item[1].namespace)
    ]
    limit = settings.top_max
    return found[-limit:] if limit > 0 else found


def _swap(
    situation: Situation, loads: _Loads, high: str, low: str, given: float
) -> list[tuple[float, Bundle]]:
    """Bundles of the receiver that go back so that it ends below the donor; none if that would
    leave the donor as it was."""
    if not situation.settings.transfer:
        return []
    before = loads.traffic[high]
    ours, theirs = before - given, loads.traffic[low] + given
    found = []
    for amount, bundle in _movable(situation, low, high):
        if ours + amount >= before or theirs - amount >= before:
            continue
        ours, theirs = ours + amount, theirs - amount
        found.append((amount, bundle))
        if theirs <= ours:
            return found if ours < SWAP_DROP * before else []
    return []
