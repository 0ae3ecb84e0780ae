"""One pass over a cluster's managed etcd.

Owns: the order: look, plan, then (after the children were applied) one step. Imports: world,
etcd.view, etcd.members, etcd.steps, etcd.upkeep. Invariants: decisions are pure functions of one
look; a pod is deleted only with its grace period, never by force; a step is taken only after the
ConfigMap and the set that belong to it were applied; what etcd refuses is decided again at the next
look.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.errors import StoreError
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.brokers.desired import Identity
from magnetar_operator.builders.etcd_set import peer_urls
from magnetar_operator.builders.object import Manifest
from magnetar_operator.engine.world import World
from magnetar_operator.etcd.admin import EtcdAdmin
from magnetar_operator.etcd.figures import Sighting
from magnetar_operator.etcd.members import plan_members
from magnetar_operator.etcd.membership import MEMBERS_MAX, Restart
from magnetar_operator.etcd.steps import change_members, keep_up
from magnetar_operator.etcd.upkeep import plan_upkeep
from magnetar_operator.etcd.view import (
    EtcdLifecycle,
    is_claim,
    is_known,
    is_mine,
    shape_of,
    status_of,
    view_of,
)
from magnetar_operator.kube.kinds import PERSISTENT_VOLUME_CLAIM, POD
from magnetar_operator.pods import pods as broker_pods
from magnetar_operator.stores.connections import ClusterStore

log = structlog.get_logger(__name__)

LOOK_TIMEOUT_S = 10.0


async def look(
    world: World, cluster: BrokerCluster, children: dict[Identity, Manifest], live: bool
) -> EtcdLifecycle | None:
    """What is, and what comes next; None for an external etcd. Pods come from the caches, or
    `live`. Raises KubernetesError."""
    managed = cluster.spec.etcd.managed
    if managed is None:
        return None
    name = names.etcd_set(cluster.name)
    stateful_set = children.get(("StatefulSet", name))
    labels = names.selector(cluster.name, names.ETCD)
    selector = names.selector_text(labels)
    found = (
        await world.api.list(POD, cluster.namespace, selector)
        if live
        else world.labelled(POD.kind, cluster.namespace, labels)
    )
    pods = [pod for pod in found if is_mine(cluster, pod)]
    seen = await _sight(world, cluster, pods)
    claims: list[Manifest] = []
    if seen.members is None and (stateful_set is None or not is_known(cluster)):
        # They say whether a cluster may be begun, and how many members a set that is gone had.
        found = await world.api.list(PERSISTENT_VOLUME_CLAIM, cluster.namespace, selector)
        claims = [claim for claim in found if is_claim(cluster, claim)]
    view = view_of(
        cluster, managed, stateful_set, children.get(("ConfigMap", name)), pods, claims, seen
    )
    plan = plan_members(view)
    shape, refused = shape_of(
        cluster, managed, world.defaults, plan, stateful_set, pods, seen.figures
    )
    at_rest = plan.step is None and plan.reason is None
    upkeep = plan_upkeep(seen, managed.quota_mib << 20, at_rest)
    status = status_of(cluster, managed, plan, seen, view.pods)
    return EtcdLifecycle(plan, upkeep, shape, status, seen, tuple(pods), refused)


async def _sight(world: World, cluster: BrokerCluster, pods: list[Manifest]) -> Sighting:
    """What the members say; nothing while no pod runs."""
    if not any(pod.get("status", {}).get("podIP") for pod in pods):
        return Sighting(None, {})
    try:
        async with asyncio.timeout(LOOK_TIMEOUT_S):
            return await _admin(await world.store_of(cluster), cluster).look()
    except (StoreError, TimeoutError, OSError) as error:
        log.warning("etcd.unseen", cluster=cluster.reference, error=str(error))
        return Sighting(None, {})


def _admin(store: ClusterStore, cluster: BrokerCluster) -> EtcdAdmin:
    hosts = {
        ordinal: names.etcd_member_host(cluster.name, cluster.namespace, ordinal)
        for ordinal in range(MEMBERS_MAX)
    }
    return store.admin(
        {ordinal: f"{host}:{names.ETCD_CLIENT_PORT}" for ordinal, host in hosts.items()},
        peer_urls(cluster),
    )


async def act(world: World, cluster: BrokerCluster, life: EtcdLifecycle | None) -> None:
    """Take the step that was planned, or tidy up. Raises KubernetesError."""
    if life is None:
        return
    for problem in life.problems:
        await world.events.once(
            cluster, "Warning", problem.reason.value, f"{problem.message}. {problem.reason.remedy}"
        )
    step = life.plan.step
    if isinstance(step, Restart):
        await _restart(world, cluster, life, step)
        return
    if step is None and life.upkeep.is_idle:
        return
    try:
        store = await world.store_of(cluster)
        store.before_change()
        if step is not None:
            await change_members(_admin(store, cluster), life.seen, step)
            await world.events.normal(
                cluster, life.plan.reason.value if life.plan.reason else "Etcd", life.plan.message
            )
        else:
            await keep_up(_admin(store, cluster), life.seen, life.upkeep)
            if life.upkeep.defragment is not None:
                member = names.etcd_member(cluster.name, life.upkeep.defragment)
                await world.events.normal(
                    cluster, "EtcdDefragmented", f"{member} gave back the space that it did not use"
                )
    except (StoreError, TimeoutError) as error:
        # Too early for etcd (it wants its members connected for some seconds), or no answer: the
        # next look decides again.
        log.info(
            "etcd.again", cluster=cluster.reference, step=type(step).__name__, error=str(error)
        )


async def _restart(
    world: World, cluster: BrokerCluster, life: EtcdLifecycle, step: Restart
) -> None:
    for pod in life.pods:
        if names.ordinal_of(broker_pods.name_of(pod)) == step.ordinal and await world.api.delete(
            pod
        ):
            await world.events.normal(cluster, "Restarting", life.plan.message)
