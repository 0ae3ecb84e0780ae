"""ThresholdShedder: brokers above the average.

Owns: the strategy, with its lower boundary. Imports: balance.filters, balance.settings,
shedding.selection. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.balance.filters import Situation
from magnetar.balance.settings import MIB
from magnetar.balance.shedding.selection import Selection, Shed, serving, until

MARGIN = 0.05
LOWER_SHARE = 0.5
EPSILON = 1e-9


def threshold_shedder(situation: Situation) -> Selection:
    """Each broker whose averaged usage is above the mean by the threshold gives the excess, and the
    margin, as a share of its throughput. If none does and the lower boundary is on, the busiest
    gives for one that is far below."""
    settings, memory = situation.settings, situation.memory
    usage = {name: memory.usage[name] for name in serving(situation) if name in memory.usage}
    mean = sum(usage.values()) / len(usage) if usage else 0.0
    if not mean:
        return Selection((), memory, "no usage")
    points = settings.threshold_percent / 100
    sheds: list[Shed] = []
    for broker, value in usage.items():
        if value >= mean + points - EPSILON:
            needed = situation.rates(broker).throughput * (value - mean - points + MARGIN)
            if needed >= settings.unload_mib_min * MIB:
                reason = f"usage {value:.2f} is above the mean {mean:.2f} by {points:.2f} or more"
                sheds += until(situation, broker, needed, reason)
    if not sheds and settings.lower_boundary:
        sheds = _lower(situation, usage, mean, points)
    return Selection(tuple(sheds), memory, f"mean usage {mean:.2f}")


def _lower(
    situation: Situation, usage: Mapping[str, float], mean: float, points: float
) -> list[Shed]:
    lowest = min(usage.values())
    busy = [name for name in usage if len(situation.cluster.owned[name]) > 1]
    if lowest >= mean - points or not busy:
        return []
    donor = max(busy, key=lambda name: (usage[name], name))
    needed = situation.rates(donor).throughput * points * LOWER_SHARE
    if needed < situation.settings.unload_mib_min * MIB:
        return []
    return until(situation, donor, needed, f"a broker at {lowest:.2f} is below {mean - points:.2f}")
