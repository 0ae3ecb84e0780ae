"""AvgShedder: pairs of brokers, the most loaded with the least loaded.

Owns: the strategy; its placement is `placement.planned`. Imports: balance.filters,
shedding.selection. Pure. Invariant: plans are known by bundle name (#26246).
"""

from __future__ import annotations

from dataclasses import replace

from magnetar.balance.filters import Situation
from magnetar.balance.settings import Settings
from magnetar.balance.shedding import selection
from magnetar.balance.shedding.selection import Selection, Shed, fitting, serving


def average_shedder(situation: Situation) -> Selection:
    """Each pair whose difference has lasted long enough moves a share of it. Cycles are counted
    by broker, not by pair."""
    settings, memory = situation.settings, situation.memory
    scores = {name: 100 * situation.usage(name) for name in serving(situation)}
    order = sorted(scores, key=lambda name: (scores[name], name))
    hits, sheds = dict(memory.hits), list[Shed]()
    for at in range((len(order) + 1) // 2):
        low, high = order[at], order[-1 - at]
        difference = scores[high] - scores[low]
        for name in {low, high}:
            hits[name] = _counted(hits.get(name, (0, 0)), difference, settings)
        if any(
            hits[name][0] >= settings.low_hits or hits[name][1] >= settings.high_hits
            for name in (low, high)
        ):
            hits[low] = hits[high] = (0, 0)
            sheds += _even_out(situation, high, low, f"{difference:.0f} points apart")
    planned = {**memory.planned, **{shed.bundle.name: shed.destination for shed in sheds}}
    hits = {name: counts for name, counts in hits.items() if any(counts)}
    after = replace(memory, hits=hits, planned=planned)
    return Selection(tuple(sheds), after, f"{len(hits)} brokers differ from their counterparts")


def _counted(hits: tuple[int, int], difference: float, settings: Settings) -> tuple[int, int]:
    """Successive cycles at or above the low and the high threshold."""
    low, high = hits
    if difference < settings.low_points:
        return 0, 0
    return low + 1, high + 1 if difference >= settings.high_points else 0


def _even_out(situation: Situation, high: str, low: str, reason: str) -> list[Shed]:
    settings = situation.settings
    above, below = situation.rates(high), situation.rates(low)
    for amount, least in (
        (selection.messages, settings.unload_messages_min),
        (selection.throughput, settings.unload_bytes_min),
    ):
        budget = (amount(above) - amount(below)) * settings.unload_share
        if budget > least:
            return [
                Shed(bundle, reason, low) for bundle in fitting(situation, high, budget, amount)
            ]
    return []
