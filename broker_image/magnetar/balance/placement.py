"""Which broker gets a bundle.

Owns: Pulsar's placement strategies behind the filters. Imports: balance.cluster, balance.filters,
balance.planner, balance.settings. Pure. Invariants: a strategy chooses among its candidates only;
equal inputs and seeds give equal choices; what one decision placed counts in the next placement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from magnetar.balance.cluster import Bundle, Memory
from magnetar.balance.filters import Situation, candidates
from magnetar.balance.planner import least_loaded
from magnetar.balance.settings import PLANNER
from magnetar.balance.top_k import is_excluded

ROUND_ROBIN = "RoundRobinBrokerSelector"
Strategy = Callable[[Bundle, Sequence[str], Situation], str]


def least_long_term_rate(bundle: Bundle, names: Sequence[str], situation: Situation) -> str:
    """The lowest long-term message rate of what a broker has and is about to get; one above the
    overload threshold counts as infinite."""
    cluster = situation.cluster
    coming = dict.fromkeys(names, 0.0)
    for other, broker in situation.memory.preallocated.items():
        if broker in coming and other in cluster.bundle:
            coming[broker] += cluster.bundle[other].long.messages

    def score(name: str) -> float:
        if situation.overloaded(name):
            return float("inf")
        return coming[name] + cluster.long_rates[name]

    scores = {name: score(name) for name in names}
    lowest = min(scores.values())
    return situation.any_of([name for name in names if scores[name] == lowest], bundle.name)


def least_resource_usage(bundle: Bundle, names: Sequence[str], situation: Situation) -> str:
    """One of the brokers whose averaged usage is well below the mean of all candidates; without
    such a broker, any."""
    usage = {name: situation.memory.usage[name] for name in names if name in situation.memory.usage}
    if not usage:
        return situation.any_of(names, bundle.name)
    for name in usage:
        if not situation.cluster.owned[name]:
            usage[name] = situation.usage(name)
    limit = sum(usage.values()) / len(usage) - situation.settings.usage_gap_percent / 100
    best = [name for name in names if name in usage and usage[name] <= limit + 1e-9]
    return situation.any_of(best or names, bundle.name)


def round_robin(_bundle: Bundle, names: Sequence[str], situation: Situation) -> str:
    return names[situation.memory.turn % len(names)]


def planned(bundle: Bundle, names: Sequence[str], situation: Situation) -> str:
    """AvgShedder's own: the destination that it planned, unless that is overloaded by now (#26246),
    or any broker."""
    destination = situation.memory.planned.get(bundle.name, "")
    if destination in names and not situation.overloaded(destination):
        return destination
    return situation.any_of(names, bundle.name)


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        PLANNER: least_loaded,
        "LeastLongTermMessageRate": least_long_term_rate,
        "LeastResourceUsageWithWeight": least_resource_usage,
        ROUND_ROBIN: round_robin,
        "AvgShedder": planned,
    }
)


@dataclass(frozen=True, slots=True)
class Placed:
    """The broker ("" = none may have it), why, and the memory that knows of it."""

    broker: str
    reason: str
    memory: Memory


def place(bundle: Bundle, situation: Situation) -> Placed:
    """Choose a broker by `Settings.placement`. A request that is repeated before the bundle arrives
    gets the same answer."""
    memory = situation.memory
    found = candidates(situation, bundle)
    if not found.names:
        return Placed("", "no broker may have it: isolation, or all are draining", memory)
    former = memory.preallocated.get(bundle.name)
    if former in found.allowed:
        return Placed(former, "chosen before", memory)
    excluded = is_excluded(bundle.name, situation.settings)
    name = ROUND_ROBIN if excluded else situation.settings.placement
    chosen = STRATEGIES[name](bundle, found.names, situation)
    if situation.overloaded(chosen):
        calm = [other for other in found.allowed if not situation.overloaded(other)]
        chosen = STRATEGIES[name](bundle, calm or found.allowed, situation)
    after = replace(
        memory,
        preallocated={**memory.preallocated, bundle.name: chosen},
        turn=(memory.turn + 1) % (1 << 31),
    )
    return Placed(chosen, "; ".join((name, *found.notes)), after)
