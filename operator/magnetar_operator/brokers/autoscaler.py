"""Acting on the load.

Owns: what the autoscaler is shown of a cluster, who else writes `spec.replicas`, and writing it
through `/scale`. Imports: autoscaling, forecasting, world. Invariants: nothing is read or written for a cluster
that does not ask for it; the write carries the resourceVersion that the decision was made on; the
status says what was done only after it was done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from magnetar.balance.advice import DOCUMENT
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.scaling import AutoscalingStatus
from magnetar_operator import names
from magnetar_operator.brokers.autoscaling import (
    Decision,
    Report,
    Sight,
    decide,
    inputs_of,
    reports_that_count,
    window_ends_ms,
)
from magnetar_operator.brokers.autoscaling_metrics import Look
from magnetar_operator.brokers.followed_settings import settings_in_force
from magnetar_operator.brokers.forecasting import Outlook, outlook_of
from magnetar_operator.brokers.moves import Moves
from magnetar_operator.brokers.status import Observed
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Finding, Problem, Reason, Type
from magnetar_operator.engine.world import World
from magnetar_operator.kube.kinds import BROKER_CLUSTER
from magnetar_operator.pods import pods as broker_pods
from magnetar_operator.pods.rolling import RollPlan

log = structlog.get_logger(__name__)

LOOK_S = 10.0
STALE_S = 1.0
REPORTS_MISSED_MAX = 3
"""A broker reports at least every `loadBalancerReportUpdateMaxIntervalMinutes`, whatever its load
does."""


@dataclass(frozen=True, slots=True)
class Autoscaled:
    """What the cluster's status says of it, and when to look again."""

    status: AutoscalingStatus = field(default_factory=AutoscalingStatus)
    findings: tuple[Finding, ...] = ()
    again_s: float = float("inf")


def busy_with(observed: Observed, moves: Moves, roll: RollPlan, problems: Sequence[Problem]) -> str:
    """What keeps load from meaning anything now, "" = nothing. Without numbers that change by
    themselves."""
    if problems:
        return f"the cluster is degraded: {problems[0].reason.value}"
    if moves.shown.reason is not None:
        return f"brokers come or go: {moves.shown.reason.value}"
    if roll.pending:
        return "brokers are restarted one at a time, because their template changed"
    if observed.state is None or observed.lost_nodes:
        return "the cluster is degraded: the metadata store or a node does not answer"
    unready = [broker_pods.name_of(pod) for pod in observed.pods if not broker_pods.is_ready(pod)]
    if unready or len(observed.pods) != moves.scale.replicas:
        return f"{unready[0] if unready else 'a broker'} is not ready"
    cordoned = sorted(set(observed.state.cordons) & set(map(broker_pods.name_of, observed.pods)))
    return f"{cordoned[0]} is cordoned, so that the others carry its load" if cordoned else ""


async def autoscale(
    world: World, cluster: BrokerCluster, observed: Observed, busy: str
) -> Autoscaled:
    """Decide, and write what was decided. Raises KubernetesError."""
    spec, name = cluster.spec.autoscaling, f"{cluster.namespace}/{cluster.name}"
    if not spec.enabled:
        world.autoscaling.forget(name)
        return Autoscaled()
    current = await world.api.get(BROKER_CLUSTER, cluster.namespace, cluster.name)
    if current is None or current["metadata"].get("generation") != cluster.metadata.generation:
        # decided on an old spec: the next pass sees the new one
        return Autoscaled(cluster.status.autoscaling, again_s=STALE_S)
    owner = owner_of_replicas(current, written=bool(cluster.status.autoscaling.last_scale_time))
    sight = _sight(cluster, observed, busy, owner, world.clock.wall_ms())
    decision = decide(spec, cluster.status.autoscaling, sight, world.clock.wall_ms())
    inputs = inputs_of(spec, reports_that_count(sight))
    status = _with_forecast(cluster, decision.status, sight.outlook)
    look = Look(status, inputs, window_ends_ms(spec, status), sight.outlook.used)
    world.autoscaling.note(name, look, world.clock)
    if decision.replicas is not None:
        await world.api.scale(current, decision.replicas)
    if decision.news:
        warns = decision.reason is Reason.REPLICAS_OWNED
        await (world.events.warning if warns else world.events.normal)(
            cluster, "AutoscalingDecision", f"{decision.status.decision}: {decision.status.message}"
        )
    return Autoscaled(status, (_finding(decision),), LOOK_S)


def _with_forecast(
    cluster: BrokerCluster, status: AutoscalingStatus, outlook: Outlook
) -> AutoscalingStatus:
    """The status with what is to be said of the forecast; a change to one that is ignored is
    logged."""
    if outlook.sentence == cluster.status.autoscaling.forecast == status.forecast:
        return status
    if outlook.sentence and not outlook.used:
        log.warning(
            "autoscaling.forecast_ignored",
            cluster=f"{cluster.namespace}/{cluster.name}",
            error=outlook.sentence,
        )
    return status.model_copy(update={"forecast": outlook.sentence})


def _finding(decision: Decision) -> Finding:
    holds = decision.reason is Reason.AUTOSCALING_ACTIVE
    return Finding(
        Type.AUTOSCALING,
        holds,
        decision.reason,
        f"{decision.status.decision}: {decision.status.message}",
    )


def _sight(
    cluster: BrokerCluster, observed: Observed, busy: str, owner: str, wall_ms: int
) -> Sight:
    loads = observed.state.loads if observed.state is not None else {}
    interval_s = 60 * settings_in_force(cluster, observed.state).report_max_minutes
    reports = [
        Report(
            broker=broker,
            age_s=(wall_ms - load.updated_ms) / 1000,
            bundles=load.bundles,
            cpu=load.cpu.share,
            memory=load.memory.share,
            messages=load.rates.messages,
            bytes=load.rates.throughput,
        )
        for broker, load in sorted(loads.items())
    ]
    serving = tuple(
        broker_pods.name_of(pod)
        for pod in broker_pods.sorted_by_ordinal(observed.pods)
        if broker_pods.is_ready(pod)
    )
    timeout_s = REPORTS_MISSED_MAX * interval_s
    stored = observed.state.documents.get(DOCUMENT) if observed.state is not None else None
    cores = [load.cpu.limit / 100 for load in loads.values() if load.cpu.limit]
    outlook = outlook_of(
        stored.documents if stored is not None else None,
        cluster.spec.autoscaling.forecast,
        cores,
        wall_ms,
    )
    return Sight(cluster.spec.replicas, serving, tuple(reports), timeout_s, busy, owner, outlook)


def owner_of_replicas(found: Manifest, written: bool) -> str:
    """Which other writer keeps setting `spec.replicas`, "" = none. `written`: whether the
    autoscaler has ever written it.

    A client that applies the field server-side will apply it again; one that writes `/scale` is an
    autoscaler, unless it is kubectl. Any other program that owns the field counts once we have
    written it, because then it has taken it back; before, it merely made the object. A person's
    kubectl says once what is wanted, and the autoscaler goes on from there.
    """
    for entry in found["metadata"].get("managedFields", []):
        manager = str(entry.get("manager", ""))
        if manager == names.FIELD_MANAGER or "f:replicas" not in entry.get("fieldsV1", {}).get(
            "f:spec", {}
        ):
            continue
        if entry.get("operation") == "Apply":
            return f"{manager} (server-side apply)"
        if manager.startswith("kubectl"):
            continue
        if entry.get("subresource") == "scale":
            return f"{manager} (scale)"
        if written:
            return manager
    return ""
