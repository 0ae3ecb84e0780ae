"""AvgShedder: pairs of brokers, the most loaded with the least loaded.

Owns: the strategy; its placement is `placement.planned`. Imports: balance.filters,
shedding.selection. Pure. Invariant: plans are known by bundle name (#26246).
"""

from __future__ import annotations

from dataclasses import replace

from magnetar.balance.cluster import Memory
from magnetar.balance.filters import Situation
from magnetar.balance.shedding.selection import (
    Selection,
    Shed,
    fitting,
    messages,
    serving,
    throughput,
)


def average_shedder(situation: Situation) -> Selection:
    """Each pair whose difference has lasted long enough evens out a share of it."""
    settings, memory = situation.settings, situation.memory
    scores = {name: 100 * situation.usage(name) for name in serving(situation)}
    order = sorted(scores, key=lambda name: (scores[name], name))
    low_hits, high_hits = dict(memory.low_hits), dict(memory.high_hits)
    sheds: list[Shed] = []
    for at in range((len(order) + 1) // 2):
        low, high = order[at], order[-1 - at]
        difference = scores[high] - scores[low]
        for name in {low, high}:
            _count(low_hits, high_hits, name, difference, situation)
        if any(
            high_hits.get(name, 0) >= settings.high_hits
            or low_hits.get(name, 0) >= settings.low_hits
            for name in (low, high)
        ):
            for name in (low, high):
                low_hits.pop(name, None)
                high_hits.pop(name, None)
            sheds += _even_out(situation, high, low, f"{difference:.0f} points apart")
    planned = {**memory.planned, **{shed.bundle.name: shed.destination for shed in sheds}}
    after = replace(memory, low_hits=low_hits, high_hits=high_hits, planned=planned)
    return Selection(tuple(sheds), after, _reason(after))


def _count(
    low_hits: dict[str, int],
    high_hits: dict[str, int],
    name: str,
    difference: float,
    situation: Situation,
) -> None:
    settings = situation.settings
    if difference < settings.low_points:
        low_hits.pop(name, None)
        high_hits.pop(name, None)
        return
    low_hits[name] = low_hits.get(name, 0) + 1
    if difference < settings.high_points:
        high_hits.pop(name, None)
    else:
        high_hits[name] = high_hits.get(name, 0) + 1


def _even_out(situation: Situation, high: str, low: str, reason: str) -> list[Shed]:
    settings = situation.settings
    above, below = situation.rates(high), situation.rates(low)
    for amount, least in (
        (messages, settings.unload_messages_min),
        (throughput, settings.unload_bytes_min),
    ):
        budget = (amount(above) - amount(below)) * settings.unload_share
        if budget > least:
            return [
                Shed(bundle, reason, low) for bundle in fitting(situation, high, budget, amount)
            ]
    return []


def _reason(memory: Memory) -> str:
    waiting = len(memory.low_hits.keys() | memory.high_hits.keys())
    return f"{waiting} brokers differ from their counterparts and wait"
