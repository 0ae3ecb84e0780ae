"""Reconciling a `BrokerCluster`.

Owns: the order of steps and their effects. Imports: world, desired, planning, scaling, rolling, cluster_status.
Invariants: decisions are pure functions of one look at the world, effects follow them; children are applied even while the metadata store is away;
a broker leaves only as `plan_scale` allows; the status is written last and only when it differs.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.errors import StoreError
from magnetar_operator import broker_pods, names
from magnetar_operator.builders.object import Manifest, etcd_endpoints
from magnetar_operator.cluster_state import ClusterState, read_cluster_state
from magnetar_operator.cluster_status import Observed, Problem, derive, findings_of
from magnetar_operator.conditions import Finding, Reason, Type
from magnetar_operator.desired import Identity, desired, identity_of
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.planning import Create, Remove, Step, Taken, describe, plan
from magnetar_operator.refusals import ApiRefused
from magnetar_operator.resources import BY_KIND, CHILDREN, NODE, POD
from magnetar_operator.rolling import RollPlan, plan_roll
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
    observed = await observe(world, cluster)
    scale = plan_scale(cluster.spec.replicas, _fleet(cluster, observed))
    problems = await _apply_cordons(world, cluster, scale)
    problems += await _apply_children(world, cluster, observed, scale.replicas)
    roll = _plan_roll(cluster, observed, scale)
    await _restart(world, cluster, observed, roll)
    await _delete_lost(world, cluster, observed)
    await _write_status(world, cluster, observed, scale, roll, problems)
    return _again_after_s(observed, scale)


async def _pause(world: World, cluster: BrokerCluster) -> None:
    await world.events.once(cluster, "Normal", Reason.PAUSED.word, f"{Reason.PAUSED.meaning} {Reason.PAUSED.remedy}")
    kept = [condition for condition in cluster.status.conditions if condition.type != Type.PROGRESSING.value]
    findings = [Finding(Type.PROGRESSING, False, Reason.PAUSED)]
    paused = world.conditions(cluster, cluster.status.conditions, findings)
    await world.write_status(cluster, cluster.status.model_copy(update={"conditions": (*kept, *paused)}))


# --- reading the world --------------------------------------------------------------------------------------------------------


async def observe(world: World, cluster: BrokerCluster) -> Observed:
    """Everything that belongs to the cluster. Raises KubernetesError."""
    selector = names.selector_text({names.CLUSTER: cluster.name, names.MANAGED_BY: names.FIELD_MANAGER})
    pods_wanted = names.selector_text(names.selector(cluster.name, names.BROKER))
    *lists, pods = await asyncio.gather(
        *(world.api.list(resource, cluster.namespace, selector) for resource in CHILDREN),
        world.api.list(POD, cluster.namespace, pods_wanted),
    )
    children = {identity_of(child): child for found in lists for child in found}
    mine = [pod for pod in pods if broker_pods.name_of(pod).startswith(f"{names.broker_set(cluster.name)}-")]
    state, problem = await _read_state(world, cluster, children)
    return Observed(children, tuple(mine), state, problem, await _lost_nodes(world, mine))


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


async def _lost_nodes(world: World, pods: list[Manifest]) -> tuple[tuple[str, float], ...]:
    """Nodes of broker pods that are not ready, and for how long. Nodes are read only when a pod of theirs is in trouble."""
    suspects = sorted({broker_pods.node_of(pod) for pod in pods if not broker_pods.is_ready(pod)} - {""})
    found = []
    for name in suspects:
        try:
            node = await world.api.get(NODE, "", name)
        except ApiRefused as error:
            log.warning("node.unreadable", node=name, error=str(error))  # an installation without rights on nodes
            continue
        seconds = broker_pods.lost_for_s(node, world.clock.wall_ms()) if node is not None else 0.0
        if seconds:
            found.append((name, seconds))
    return tuple(found)


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
    status = brokers.get("status", {}) if brokers is not None else {}
    # Until the StatefulSet's controller has seen the newest template, its update revision is that of an older one.
    seen = brokers is not None and status.get("observedGeneration") == brokers["metadata"].get("generation")
    view = broker_pods.rolling_view(observed.pods, brokers)
    return plan_roll(view, status.get("updateRevision", "") if seen else "", scale.replicas, scale.reason is not None)


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


async def _apply_children(world: World, cluster: BrokerCluster, observed: Observed, replicas: int) -> list[Problem]:
    """Make the children what they should be; what the API server refuses becomes a problem, and the others are still applied."""
    wanted = desired(cluster, world.defaults, replicas, observed.children)
    have = dict(observed.children)
    for manifest in wanted:
        kind, name = identity_of(manifest)
        if (kind, name) not in have:
            # Somebody else's object of that name carries none of our labels, so that the list did not show it.
            found = await world.api.get(BY_KIND[kind], cluster.namespace, name)
            if found is not None:
                have[kind, name] = found
    problems = []
    for step in plan(wanted, have, cluster.metadata.uid):
        try:
            problem = await _perform(world, cluster, step)
        except ApiRefused as error:
            problem = Problem(Reason.REFUSED, str(error))
            await world.events.once(cluster, "Warning", Reason.REFUSED.word, str(error))
        if problem is not None:
            problems.append(problem)
    return problems


async def _perform(world: World, cluster: BrokerCluster, step: Step) -> Problem | None:
    """One step of the plan. Raises KubernetesError."""
    if isinstance(step, Taken):
        kind, name = step.identity
        message = f"{kind} {name} exists and belongs to {step.owner or 'somebody else'}"
        await world.events.once(cluster, "Warning", Reason.NAME_TAKEN.word, f"{message}. {Reason.NAME_TAKEN.remedy}")
        return Problem(Reason.NAME_TAKEN, message)
    if isinstance(step, Remove):
        kind, name = identity_of(step.observed)
        if await world.api.delete(step.observed):
            await world.events.normal(cluster, "Removed", f"{kind} {name} is not wanted any more")
        return None
    kind, name = identity_of(step.manifest)
    await world.api.apply(step.manifest)
    if isinstance(step, Create):
        await world.events.normal(cluster, "Created", f"{kind} {name}")
    elif step.drift:
        await world.events.warning(
            cluster, "DriftCorrected", f"{kind} {name} was changed by somebody else: {describe(step.changes)}"
        )
    else:
        await world.events.normal(cluster, "Updated", f"{kind} {name}: {describe(step.changes)}")
    return None


async def _restart(world: World, cluster: BrokerCluster, observed: Observed, roll: RollPlan) -> None:
    """Delete the one pod whose turn it is: SIGTERM makes it hand its bundles over."""
    for pod in observed.pods:
        if broker_pods.name_of(pod) == roll.restart and await world.api.delete(pod):
            why = dict(roll.pending)[roll.restart]
            await world.events.normal(
                cluster, "Restarting", f"{roll.restart}: {why} has changed; {len(roll.pending) - 1} more follow"
            )


async def _delete_lost(world: World, cluster: BrokerCluster, observed: Observed) -> None:
    """Free the names of pods whose node is gone: their successors fence them, so that no message is lost or doubled."""
    lost = {node: seconds for node, seconds in observed.lost_nodes if seconds > broker_pods.NODE_LOST_S}
    for pod in observed.pods:
        node = broker_pods.node_of(pod)
        if node in lost and not broker_pods.is_ready(pod) and await world.api.delete(pod, grace_s=0):
            text = f"{broker_pods.name_of(pod)} was deleted by force: node {node} has not answered for {lost[node]:.0f} s"
            await world.events.warning(cluster, Reason.NODE_LOST.word, text)


async def _write_status(
    world: World, cluster: BrokerCluster, observed: Observed, scale: ScalePlan, roll: RollPlan, problems: list[Problem]
) -> None:
    findings = findings_of(cluster, observed, scale, roll, problems)
    conditions = world.conditions(cluster, cluster.status.conditions, findings)
    was_ready = any(condition.type == "Ready" and condition.status == "True" for condition in cluster.status.conditions)
    await world.write_status(cluster, derive(cluster, observed, roll, conditions))
    if findings[-1].holds and not was_ready:
        await world.events.normal(cluster, "Ready", findings[-1].message)


def _again_after_s(observed: Observed, scale: ScalePlan) -> float:
    if observed.state is None:
        return STORE_RETRY_S
    if scale.reason is not None or observed.lost_nodes:
        return MOVING_S
    return LOOK_AGAIN_S
