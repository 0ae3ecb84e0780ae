"""Reconciling a `BrokerCluster`.

Owns: the order of steps; cordons. Imports: world, desired, children, pod_care, scaling, cluster_status.
Invariants: decisions are pure functions of one look at the world, effects follow them; children are applied even while the metadata store is away;
a broker leaves only as `plan_scale` allows; the status is written last and only when it differs.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.errors import StoreError
from magnetar_operator import broker_pods, names
from magnetar_operator.builders.object import Manifest, etcd_endpoints
from magnetar_operator.children import apply_children
from magnetar_operator.cluster_state import ClusterState, read_cluster_state
from magnetar_operator.cluster_status import Observed, derive, findings_of
from magnetar_operator.conditions import Finding, Problem, Reason, Type
from magnetar_operator.desired import Identity, desired, identity_of
from magnetar_operator.etcd_access import ensure_users, secure
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.pod_care import delete_lost, lost_nodes, restart, roll_of
from magnetar_operator.resources import CHILDREN, POD, Resource
from magnetar_operator.rolling import RollPlan
from magnetar_operator.scaling import Fleet, ScalePlan, plan_scale
from magnetar_operator.work_queue import Key
from magnetar_operator.world import World, is_paused

log = structlog.get_logger(__name__)

LOOK_AGAIN_S = 30.0
"""Bundles move without any Kubernetes event."""
MOVING_S = 1.0
STORE_RETRY_S = 3.0


async def reconcile(world: World, key: Key) -> float | None:
    """One pass; the seconds after which to look again. Raises KubernetesError, InvalidResource."""
    cluster = await world.read(key, BrokerCluster)
    if cluster is None or cluster.metadata.deletion_timestamp:
        return None  # children go with their owner; volumes stay
    if is_paused(cluster):
        await _pause(world, cluster)
        return None
    secured = await secure(world, cluster)
    stored, cluster = cluster, secured.cluster
    observed = await observe(world, cluster)
    if _is_grave(cluster, observed):
        observed = await observe(world, cluster, live=True)
    scale = plan_scale(cluster.spec.replicas, _fleet(cluster, observed))
    problems = [*secured.problems, *await _apply_cordons(world, cluster, scale)]
    problems += await apply_children(
        world, cluster, desired(cluster, world.defaults, scale.replicas, observed.children), observed.children
    )
    roll = _plan_roll(cluster, observed, scale)
    await restart(world, cluster, observed.pods, roll)
    await delete_lost(world, cluster, observed.pods, observed.lost_nodes)
    if observed.state is not None:
        problems += await ensure_users(world, secured)
    await _write_status(world, stored, cluster, observed, scale, roll, problems)
    return _again_after_s(observed, scale)


async def _pause(world: World, cluster: BrokerCluster) -> None:
    await world.events.once(cluster, "Normal", Reason.PAUSED.word, f"{Reason.PAUSED.meaning} {Reason.PAUSED.remedy}")
    kept = [condition for condition in cluster.status.conditions if condition.type != Type.PROGRESSING.value]
    findings = [Finding(Type.PROGRESSING, False, Reason.PAUSED)]
    paused = world.conditions(cluster, cluster.status.conditions, findings)
    await world.write_status(cluster, cluster.status.model_copy(update={"conditions": (*kept, *paused)}))


# --- reading the world --------------------------------------------------------------------------------------------------------


async def observe(world: World, cluster: BrokerCluster, live: bool = False) -> Observed:
    """Everything that belongs to the cluster: from the caches, or `live` from the API server. Raises KubernetesError."""
    mine_all = {names.CLUSTER: cluster.name, names.MANAGED_BY: names.FIELD_MANAGER}
    brokers = names.selector(cluster.name, names.BROKER)

    async def listed(resource: Resource, labels: dict[str, str]) -> list[Manifest]:
        if live:
            return await world.api.list(resource, cluster.namespace, names.selector_text(labels))
        return world.labelled(resource.kind, cluster.namespace, labels)

    *lists, pods = await asyncio.gather(*(listed(resource, mine_all) for resource in CHILDREN), listed(POD, brokers))
    children = {identity_of(child): child for found in lists for child in found}
    mine = [pod for pod in pods if broker_pods.name_of(pod).startswith(f"{names.broker_set(cluster.name)}-")]
    state, problem = await _read_state(world, cluster, children)
    return Observed(children, tuple(mine), state, problem, await lost_nodes(world, mine))


def _is_grave(cluster: BrokerCluster, observed: Observed) -> bool:
    """Whether what would be done next cannot be taken back: the caches find such work, a look at the API server itself decides."""
    scale = plan_scale(cluster.spec.replicas, _fleet(cluster, observed))
    return scale.reason is not None or bool(_plan_roll(cluster, observed, scale).restart) or bool(observed.lost_nodes)


async def _read_state(world: World, cluster: BrokerCluster, children: dict[Identity, Manifest]) -> tuple[ClusterState | None, str]:
    """The store's picture, or why there is none."""
    etcd = children.get(("StatefulSet", names.etcd_set(cluster.name)))
    if cluster.spec.etcd.managed is not None and (etcd is None or not etcd.get("status", {}).get("readyReplicas")):
        return None, f"etcd pod {names.etcd_set(cluster.name)}-0 is not ready"
    try:
        return await read_cluster_state((await world.store_of(cluster)).reader), ""
    except (StoreError, TimeoutError) as error:
        log.warning("store.unreadable", cluster=cluster.reference, error=str(error))
        return None, f"etcd {', '.join(etcd_endpoints(cluster))}: {str(error) or 'no answer in time'}"


def _fleet(cluster: BrokerCluster, observed: Observed) -> Fleet:
    brokers = observed.child("StatefulSet", names.broker_set(cluster.name))
    state = observed.state
    return Fleet(
        cluster=cluster.name,
        replicas=brokers["spec"]["replicas"] if brokers is not None else None,
        pods=frozenset(map(broker_pods.name_of, observed.pods)),
        bundles=state.bundles if state is not None else None,
        cordons=state.cordons if state is not None else None,
    )


def _plan_roll(cluster: BrokerCluster, observed: Observed, scale: ScalePlan) -> RollPlan:
    brokers = observed.child("StatefulSet", names.broker_set(cluster.name))
    return roll_of(observed.pods, brokers, scale.replicas, scaling=scale.reason is not None)


# --- effects ------------------------------------------------------------------------------------------------------------------


async def _apply_cordons(world: World, cluster: BrokerCluster, scale: ScalePlan) -> list[Problem]:
    """Lift what is to be lifted, then cordon. Raises NotLeading."""
    try:
        for broker in scale.uncordon:
            await (await world.store_of(cluster)).uncordon(broker)
            await world.events.normal(cluster, "Uncordoned", f"{broker} may take bundles again, or is gone")
        if scale.cordon:
            await (await world.store_of(cluster)).cordon(scale.cordon)
            await world.events.normal(cluster, "Cordoned", f"{scale.cordon} hands its bundles over before it is removed")
    except (StoreError, TimeoutError) as error:
        return [Problem(Reason.STORE_UNAVAILABLE, f"cordons could not be written: {str(error) or 'no answer in time'}")]
    if scale.reason is Reason.DRAINING:
        await world.events.once(cluster, "Normal", Reason.DRAINING.word, scale.message)
    return []


async def _write_status(
    world: World,
    stored: BrokerCluster,
    cluster: BrokerCluster,
    observed: Observed,
    scale: ScalePlan,
    roll: RollPlan,
    problems: list[Problem],
) -> None:
    """`stored` is the cluster with the status that is to be replaced."""
    findings = findings_of(cluster, observed, scale, roll, problems)
    conditions = world.conditions(cluster, cluster.status.conditions, findings)
    was_ready = any(condition.type == "Ready" and condition.status == "True" for condition in cluster.status.conditions)
    await world.write_status(stored, derive(cluster, observed, roll, conditions))
    if findings[-1].holds and not was_ready:
        await world.events.normal(cluster, "Ready", findings[-1].message)


def _again_after_s(observed: Observed, scale: ScalePlan) -> float:
    if observed.state is None:
        return STORE_RETRY_S
    if scale.reason is not None or observed.lost_nodes:
        return MOVING_S
    return LOOK_AGAIN_S
