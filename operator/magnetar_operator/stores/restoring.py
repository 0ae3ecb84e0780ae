"""Restoring a cluster's metadata store by request, within a pass.

Owns: the look that the plan is made on, and its effects. Imports: world, stores.restore, builders.
Invariants: the status is written before what it says is done; a cluster without a request, or whose
request has ended, costs no request to the API server.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.brokers.status import Observed
from magnetar_operator.builders.object import Manifest
from magnetar_operator.builders.restore_pod import restore_pod, restore_pod_name
from magnetar_operator.conditions import Reason
from magnetar_operator.engine.world import World
from magnetar_operator.kube.kinds import POD
from magnetar_operator.pods.pods import name_of, trouble_of
from magnetar_operator.stores.restore import (
    Etcd,
    Phase,
    RestorePlan,
    RestoreView,
    pause_s,
    plan_restore,
)


async def look(world: World, cluster: BrokerCluster, observed: Observed) -> RestorePlan:
    """What comes next of the restore that the spec asks for. Raises KubernetesError."""
    managed, status = cluster.spec.etcd.managed, cluster.status.restore
    asked = managed.restore if managed is not None else None
    ended = status.phase in (Phase.RESTORED, Phase.FAILED, Phase.REFUSED)
    if (asked is None and status.phase != Phase.FILLING) or (
        asked is not None and asked.request == status.request and ended
    ):
        return plan_restore(RestoreView(asked, status))
    name = restore_pod_name(cluster, asked.request if asked is not None else status.request)
    pod = next(
        (pod for pod in await _pods(world, cluster, names.RESTORE) if name_of(pod) == name), None
    )
    state = observed.state
    return plan_restore(
        RestoreView(
            asked,
            status,
            etcd=_etcd(observed),
            intact=state is not None and bool(state.storage_id),
            identity=cluster.status.etcd.cluster_id,
            pause_s=pause_s(broker.bundles for broker in cluster.status.brokers),
            filled_for=state.restored_for if state is not None else "",
            pod=pod.get("status", {}).get("phase", "Pending") if pod is not None else "",
            words=_words(pod),
        )
    )


def _etcd(observed: Observed) -> Etcd:
    life = observed.etcd
    if life is not None and life.plan.reason is Reason.ETCD_DATA_LOST:
        return Etcd.LOST
    return (
        Etcd.ANSWERS
        if observed.state is not None and life is not None and life.seen.members is not None
        else Etcd.UNREACHABLE
    )


def _words(pod: Manifest | None) -> str:
    """The pod's last ones, or what keeps it from starting."""
    if pod is None:
        return ""
    for item in pod.get("status", {}).get("containerStatuses", []):
        lines = (
            str(item.get("state", {}).get("terminated", {}).get("message", "")).strip().splitlines()
        )
        if lines:
            return lines[-1]
    return trouble_of(pod)


async def begin(world: World, cluster: BrokerCluster, plan: RestorePlan) -> BrokerCluster:
    """Say what is done next, durably; the cluster with that status. Raises KubernetesError."""
    before, now = cluster.status.restore, plan.status
    if now == before:
        return cluster
    if now.phase == Phase.RESTORED:
        await _end_back_off(world, cluster)
    status = cluster.status.model_copy(update={"restore": now})
    await world.write_status(cluster, status)
    if now.phase != before.phase and now.phase:
        reason = plan.problem.reason if plan.problem is not None else Reason.RESTORING
        if plan.problem is not None:
            await world.events.warning(cluster, reason.value, now.message)
        else:
            await world.events.normal(cluster, reason.value, f"{now.phase}: {now.message}")
    return cluster.model_copy(update={"status": status})


async def _end_back_off(world: World, cluster: BrokerCluster) -> None:
    """Replace pods that the empty store has refused: their kubelet may wait five minutes before
    another try. Raises KubernetesError."""
    for pod in [
        *await _pods(world, cluster, names.BROKER),
        *await _pods(world, cluster, names.COORDINATOR),
    ]:
        waiting = [
            item.get("state", {}).get("waiting", {})
            for item in pod.get("status", {}).get("containerStatuses", [])
        ]
        if any(
            found.get("reason") == "CrashLoopBackOff" for found in waiting
        ) and await world.api.delete(pod):
            await world.events.normal(
                cluster,
                "Restarting",
                f"{name_of(pod)} was refused before the metadata store was restored",
            )


async def _pods(world: World, cluster: BrokerCluster, component: str) -> list[Manifest]:
    """From the API server itself. Raises KubernetesError."""
    labels = {names.CLUSTER: cluster.name, names.COMPONENT: component}
    return await world.api.list(POD, cluster.namespace, names.selector_text(labels))


async def fill(world: World, cluster: BrokerCluster, plan: RestorePlan) -> None:
    """Make the pod that fills the store, if it is time. Raises KubernetesError."""
    managed = cluster.spec.etcd.managed
    if plan.makes_pod and managed is not None and managed.restore is not None:
        made = await world.api.create(POD, restore_pod(cluster, world.defaults, managed.restore))
        if made is not None:
            await world.events.normal(cluster, "Created", f"Pod {name_of(made)}")
