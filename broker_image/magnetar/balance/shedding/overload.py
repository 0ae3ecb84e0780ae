"""OverloadShedder: brokers above a fixed usage.

Owns: the strategy. Imports: balance.filters, shedding.selection. Pure.
"""

from __future__ import annotations

from magnetar.balance.filters import Situation
from magnetar.balance.shedding.selection import Selection, Shed, serving, until

MARGIN = 0.05
"""Usage by which a broker is brought below its threshold."""


def overload_shedder(situation: Situation) -> Selection:
    """Each broker at or above the threshold gives what is above it, and the margin."""
    limit = situation.settings.overloaded_percent / 100
    sheds: list[Shed] = []
    for broker in serving(situation):
        usage = situation.usage(broker)
        if usage >= limit:
            needed = situation.rates(broker).throughput * (usage - limit + MARGIN)
            reason = f"usage {usage:.2f} is at least {limit:.2f}"
            sheds += until(situation, broker, needed, reason)
    return Selection(tuple(sheds), situation.memory, f"brokers from usage {limit:.2f} on")
