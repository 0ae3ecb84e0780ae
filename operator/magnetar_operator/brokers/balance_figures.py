"""How even the load of a cluster's brokers is, for `status.balance`.

Owns: the figures, by the planner's own weights, and when newer ones replace those that are shown.
Imports: balance, brokers.state, resources. Pure. Invariants: the same observation gives the same
status; figures that differ by little wait for `KEPT_MS`, any for `SETTLED_MS`, so that load that
changes all the time is no write all the time.
"""

from __future__ import annotations

from magnetar.balance.cluster import Broker, Cluster, joined
from magnetar.balance.filters import Situation
from magnetar.balance.planner import filled
from magnetar.balance.settings import Settings
from magnetar.resources.load_balancing import BalanceStatus
from magnetar_operator.brokers.state import ClusterState
from magnetar_operator.conditions import timestamp, wall_ms_of

KEPT_MS, SETTLED_MS = 300_000, 10_000
LITTLE = 0.05
"""Difference of the imbalance that can wait."""
OFF = "Off"


def figures(
    previous: BalanceStatus, state: ClusterState | None, settings: Settings, wall_ms: int
) -> BalanceStatus:
    """What the status says now; without a look at the store what it said before."""
    if state is None:
        return previous
    now = measured(state, settings, wall_ms)
    age_ms = wall_ms - wall_ms_of(previous.time) if previous.time else KEPT_MS
    if previous.strategy != now.strategy:
        return now
    same = previous.model_copy(update={"time": now.time}) == now
    if same or 0 <= age_ms < (KEPT_MS if _differs_little(previous, now) else SETTLED_MS):
        return previous
    return now


def measured(state: ClusterState, settings: Settings, wall_ms: int) -> BalanceStatus:
    """The figures of this moment: of brokers that take bundles, by their reports."""
    strategy = settings.shedder if settings.enabled and settings.shedding else OFF
    serving = state.candidates("")
    brokers = tuple(Broker(name, state.loads.get(name)) for name in serving)
    cluster = Cluster(wall_ms, brokers, joined(state.owners, state.loads.values()))
    known = any(cluster.report(broker.name, settings) for broker in brokers)
    imbalance = filled(Situation(cluster, settings=settings)).imbalance if known else None
    last_ms = max((report.moved_ms for report in state.loads.values()), default=0)
    return BalanceStatus(
        strategy=strategy,
        imbalance=f"{imbalance:.2f}" if imbalance is not None else "",
        moves_under_way=len(state.moved),
        moves_last_hour=sum(report.moves for report in state.loads.values()),
        last_move_time=timestamp(last_ms) if last_ms else "",
        time=timestamp(wall_ms),
    )


def is_uneven(status: BalanceStatus) -> bool:
    """Whether the figures are likely to change soon."""
    return status.moves_under_way > 0 or float(status.imbalance or 1) > 1 + LITTLE


def _differs_little(previous: BalanceStatus, now: BalanceStatus) -> bool:
    """Whether no figure has come or gone, and the imbalance is about the same."""
    begun_or_ended = any(
        bool(getattr(previous, name)) != bool(getattr(now, name))
        for name in ("imbalance", "moves_under_way", "moves_last_hour")
    )
    change = abs(float(previous.imbalance or 1) - float(now.imbalance or 1))
    return change < LITTLE and not begun_or_ended
