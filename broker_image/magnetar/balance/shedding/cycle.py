"""One cycle of shedding.

Owns: the strategies by name, and the rules that all of them obey: policies, destinations, the
stamps of moved bundles. Imports: balance, shedding. Pure. Invariants: no bundle goes back to its
source (#20822); a destination that was chosen in this cycle counts for the next choice, so that
bundles do not pile up on one broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from magnetar.balance.cluster import NOTES_MAX, Move, Moved, Outcome
from magnetar.balance.filters import Situation, allowed, kept
from magnetar.balance.placement import Placed, place
from magnetar.balance.planner import cost, plan
from magnetar.balance.settings import PLANNER
from magnetar.balance.shedding.average import average_shedder
from magnetar.balance.shedding.overload import overload_shedder
from magnetar.balance.shedding.selection import Shed, Strategy
from magnetar.balance.shedding.threshold import threshold_shedder
from magnetar.balance.shedding.transfer import transfer_shedder
from magnetar.balance.shedding.uniform import uniform_shedder

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "OverloadShedder": overload_shedder,
        "ThresholdShedder": threshold_shedder,
        "UniformLoadShedder": uniform_shedder,
        "AvgShedder": average_shedder,
        "TransferShedder": transfer_shedder,
    }
)


def shed(situation: Situation) -> Outcome:
    """What leaves which broker now, by `Settings.shedder`."""
    cluster, settings = situation.cluster, situation.settings
    if settings.shedder == PLANNER:
        return plan(situation)
    if not (settings.enabled and settings.shedding):
        return Outcome(situation.memory, "shedding is off")
    memory = situation.memory.observe(cluster, settings)
    if sum(not broker.draining for broker in cluster.brokers) < 2:
        return Outcome(memory, "fewer than two brokers take bundles")
    now = replace(situation, memory=memory)
    selection = STRATEGIES[settings.shedder](now)
    now = replace(now, memory=selection.memory)
    moves: list[Move] = []
    notes: list[str] = []
    for chosen in selection.sheds:
        bundle, placed = chosen.bundle, _placed(now, chosen)
        if not placed.broker:
            notes.append(f"{bundle.name} stays: {placed.reason}")
            continue
        moves.append(Move(bundle.name, bundle.broker, placed.broker, chosen.reason))
        load = cost(bundle.level, settings)
        stamp = Moved(cluster.now_ms, load, (bundle.broker, placed.broker))
        after = placed.memory
        now = replace(now, memory=replace(after, moved={**after.moved, bundle.name: stamp}))
    return Outcome(now.memory, selection.reason, tuple(moves), notes=tuple(notes[:NOTES_MAX]))


def _placed(situation: Situation, chosen: Shed) -> Placed:
    """Where a bundle goes; broker "" if it stays."""
    bundle, memory = chosen.bundle, situation.memory
    refusal = kept(situation, bundle)
    if refusal is not None:
        return Placed("", refusal, memory)
    if not chosen.destination:
        placed = place(bundle, situation)
        if placed.broker != bundle.broker:
            return placed
        return Placed("", "placement chose the broker that it leaves", memory)
    if chosen.destination not in allowed(situation, bundle.namespace):
        return Placed("", f"isolation excludes broker {chosen.destination}", memory)
    preallocated = {**memory.preallocated, bundle.name: chosen.destination}
    return Placed(chosen.destination, "chosen", replace(memory, preallocated=preallocated))
