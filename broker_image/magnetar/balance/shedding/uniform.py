"""UniformLoadShedder: the most and the least loaded broker.

Owns: the strategy. Imports: balance.filters, shedding.selection. Pure.
"""

from __future__ import annotations

from magnetar.balance.filters import Situation
from magnetar.balance.shedding import selection
from magnetar.balance.shedding.selection import Amount, Selection, Shed, fitting, serving

NOTHING = 1e-6


def uniform_shedder(situation: Situation) -> Selection:
    """The broker with the highest message rate gives, or if rates are even the one with the highest
    throughput, a share of the difference to the lowest."""
    settings, brokers = situation.settings, serving(situation)
    for what, amount, least, fires in (
        ("message rate", selection.messages, settings.unload_messages_min, _rate_fires),
        ("throughput", selection.throughput, settings.unload_bytes_min, _throughput_fires),
    ):
        highest, high, low = _ends(situation, brokers, amount)
        if not fires(situation, high, low):
            continue
        budget = float(int((high - low) * settings.unload_share))
        if budget < least or len(situation.cluster.owned[highest]) < 2:
            return Selection((), situation.memory, f"{what}: the difference is not worth a move")
        reason = f"{what} {high:.0f} against {low:.0f}"
        chosen = fitting(situation, highest, budget, amount, settings.unload_bundles_max)
        sheds = tuple(Shed(bundle, reason) for bundle in chosen)
        return Selection(sheds, situation.memory, reason)
    return Selection((), situation.memory, "message rate and throughput are even")


def _ends(situation: Situation, brokers: list[str], amount: Amount) -> tuple[str, float, float]:
    found = {name: amount(situation.rates(name)) for name in brokers}
    highest = max(found, key=lambda name: (found[name], name), default="")
    low = min(found.values(), default=0.0)
    return highest, found.get(highest, 0.0), low if low > NOTHING else 1.0


def _rate_fires(situation: Situation, high: float, low: float) -> bool:
    limit = situation.settings.rate_gap_percent
    return limit > 0 and 100 * (high - low) / low > limit


def _throughput_fires(situation: Situation, high: float, low: float) -> bool:
    limit = situation.settings.flow_multiple
    return limit > 0 and high / low > limit
