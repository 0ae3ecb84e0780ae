"""What a shedding strategy answers, and what all strategies may choose from.

Owns: `Shed`, `Selection`, and the bundles of a broker that may leave. Imports: balance.cluster,
balance.filters, balance.top_k. Pure. Invariants: bundles that were moved within the grace period,
are pinned, belong to the system or to excluded namespaces, or have no traffic are never chosen; nor
is the only bundle of a broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from magnetar.balance.cluster import Bundle, Memory
from magnetar.balance.filters import Situation
from magnetar.balance.load import Rates
from magnetar.balance.top_k import is_excluded


@dataclass(frozen=True, slots=True)
class Shed:
    """A bundle that is to leave its broker; `destination` "" = placement chooses."""

    bundle: Bundle
    reason: str
    destination: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a strategy chose, why, and its memory."""

    sheds: tuple[Shed, ...]
    memory: Memory
    reason: str


Strategy = Callable[[Situation], Selection]
Amount = Callable[[Rates], float]
messages: Amount = attrgetter("messages")
throughput: Amount = attrgetter("throughput")


def serving(situation: Situation) -> list[str]:
    """Brokers with a fresh report that are not draining, by name."""
    cluster, settings = situation.cluster, situation.settings
    return sorted(
        broker.name
        for broker in cluster.brokers
        if not broker.draining and cluster.report(broker.name, settings) is not None
    )


def sheddable(situation: Situation, broker: str, amount: Amount) -> list[tuple[float, Bundle]]:
    """Bundles of a broker that may leave, with their short-term amounts, largest first."""
    owned = situation.cluster.owned[broker]
    if len(owned) < 2:
        return []
    found = [
        (amount(bundle.short), bundle)
        for bundle in owned
        if bundle.name not in situation.memory.moved
        and not bundle.pinned
        and not is_excluded(bundle.name, situation.settings)
    ]
    return sorted(
        (item for item in found if item[0] > 0), key=lambda item: (-item[0], item[1].name)
    )


def until(situation: Situation, broker: str, needed: float, reason: str) -> list[Shed]:
    """Bundles by descending throughput until their sum reaches what is needed; at least one."""
    found, total = list[Shed](), 0.0
    for amount, bundle in sheddable(situation, broker, throughput):
        if found and total >= needed:
            break
        found.append(Shed(bundle, reason))
        total += amount
    return found


def fitting(
    situation: Situation, broker: str, budget: float, amount: Amount, count_max: int = -1
) -> list[Bundle]:
    """Bundles by descending amount, each that still fits into the budget."""
    found: list[Bundle] = []
    for size, bundle in sheddable(situation, broker, amount):
        if len(found) == count_max:
            break
        if size <= budget:
            found.append(bundle)
            budget -= size
    return found
