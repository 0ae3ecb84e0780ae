"""The zones of the brokers' nodes, which are their failure domains.

Owns: finding the zone of each broker's pod, and the record in which brokers look it up. Imports:
world, brokers.state, pods.pods. Invariants: a node is read once per pod, with `get` alone, and not
at all where Kubernetes has put the zone on the pod; without a right to read nodes there are no
zones, and everything else goes on; failure domains that administrators have registered are another
record, which wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from magnetar.errors import StoreError
from magnetar.metadata.records import NODE_ZONES
from magnetar.names import CLUSTER_NAME
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.brokers.state import NO_DOCUMENTS, ClusterState
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.engine.world import World
from magnetar_operator.kube.errors import ApiRefused
from magnetar_operator.kube.kinds import NODE
from magnetar_operator.pods import pods as broker_pods

log = structlog.get_logger(__name__)

ZONE = "topology.kubernetes.io/zone"
GROUP = f"{NODE_ZONES}/{CLUSTER_NAME}"


async def write_zones(
    world: World, cluster: BrokerCluster, state: ClusterState, pods: Sequence[Manifest]
) -> list[Problem]:
    """Have the store say where brokers run. Raises NotLeading, KubernetesError."""
    stored = state.documents.get(GROUP, NO_DOCUMENTS)
    wanted = still_known(stored.documents, pods, cluster.spec.replicas)
    for pod in unknown(wanted, pods):
        entry = {"pod": pod["metadata"]["uid"], "zone": await _zone_of(world, pod)}
        wanted[broker_pods.name_of(pod)] = entry
    compare, operation = stored.change(GROUP, wanted)
    if operation is None:
        return []
    try:
        # Should another write have come first, the next pass sees it.
        await (await world.store_of(cluster)).write([compare], [operation])
    except (StoreError, TimeoutError) as error:
        words = str(error) or "no answer in time"
        return [
            Problem(Reason.STORE_UNAVAILABLE, f"the brokers' zones could not be written: {words}")
        ]
    return []


def still_known(
    stored: Mapping[str, Any], pods: Sequence[Manifest], replicas: int
) -> dict[str, Any]:
    """Entries of brokers that exist, or will again."""
    present = set(map(broker_pods.name_of, pods))
    return {
        broker: entry
        for broker, entry in stored.items()
        if broker in present or names.ordinal_of(broker) < replicas
    }


def unknown(known: Mapping[str, Any], pods: Sequence[Manifest]) -> list[Manifest]:
    """Pods that have a node since they were last looked at."""
    return [
        pod
        for pod in pods
        if broker_pods.node_of(pod)
        and known.get(broker_pods.name_of(pod), {}).get("pod") != pod["metadata"]["uid"]
    ]


async def _zone_of(world: World, pod: Manifest) -> str:
    """Of the pod's own label, which newer Kubernetes sets, or of its node; "" = none is known.
    Raises KubernetesError."""
    labels = pod["metadata"].get("labels", {})
    if ZONE in labels:
        return str(labels[ZONE])
    name = broker_pods.node_of(pod)
    try:
        node = await world.api.get(NODE, "", name)
    except ApiRefused as error:
        # an installation without rights on nodes
        log.warning("zone.unreadable", node=name, error=str(error))
        return ""
    return str(node["metadata"].get("labels", {}).get(ZONE, "")) if node is not None else ""
