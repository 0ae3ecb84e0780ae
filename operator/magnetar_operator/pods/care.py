"""What is done to the pods of a StatefulSet that the operator rolls.

Owns: finding lost nodes, the restart whose turn it is, freeing the names of pods on lost nodes.
Imports: world, pods.pods, rolling, resources. Invariants: a healthy pod is only ever deleted by the
roll's plan; a pod is deleted by force only when its node has been silent for `NODE_LOST_S`, which
is safe for processes that fence their predecessors.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from magnetar.resources.base import CustomResource
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Reason
from magnetar_operator.engine.world import World
from magnetar_operator.kube.errors import ApiRefused
from magnetar_operator.kube.kinds import NODE
from magnetar_operator.pods import pods as broker_pods
from magnetar_operator.pods.pods import LostNodes
from magnetar_operator.pods.rolling import RollPlan, plan_roll

log = structlog.get_logger(__name__)


async def lost_nodes(world: World, pods: Sequence[Manifest]) -> LostNodes:
    """Nodes of these pods that are not ready. Nodes are read only when a pod of theirs is in
    trouble. Raises KubernetesError."""
    suspects = sorted(
        {broker_pods.node_of(pod) for pod in pods if not broker_pods.is_ready(pod)} - {""}
    )
    found = []
    for name in suspects:
        try:
            node = await world.api.get(NODE, "", name)
        except ApiRefused as error:
            # an installation without rights on nodes
            log.warning("node.unreadable", node=name, error=str(error))
            continue
        seconds = broker_pods.lost_for_s(node, world.clock.wall_ms()) if node is not None else 0.0
        if seconds:
            found.append((name, seconds))
    return tuple(found)


def roll_of(
    pods: Sequence[Manifest],
    stateful_set: Manifest | None,
    replicas: int,
    *,
    scaling: bool,
    what: str = "brokers",
    awaits: str = "",
) -> RollPlan:
    """The next restart among `pods`, by the newest template that the StatefulSet's controller
    has seen; `what` and `awaits` as in `plan_roll`."""
    status = stateful_set.get("status", {}) if stateful_set is not None else {}
    # Until then its update revision is that of an older template.
    seen = stateful_set is not None and status.get("observedGeneration") == stateful_set[
        "metadata"
    ].get("generation")
    view = broker_pods.rolling_view(pods, stateful_set)
    return plan_roll(
        view, status.get("updateRevision", "") if seen else "", replicas, scaling, what, awaits
    )


async def restart(
    world: World, owner: CustomResource, pods: Sequence[Manifest], roll: RollPlan
) -> None:
    """Delete the one pod whose turn it is: SIGTERM makes it transfer what it has. Raises
    KubernetesError."""
    for pod in pods:
        if broker_pods.name_of(pod) == roll.restart and await world.api.delete(pod):
            why = dict(roll.pending)[roll.restart]
            text = f"{roll.restart}: {why} has changed; {len(roll.pending) - 1} more follow"
            await world.events.normal(owner, "Restarting", text)


async def delete_lost(
    world: World, owner: CustomResource, pods: Sequence[Manifest], nodes: LostNodes
) -> None:
    """Free the names of pods whose node is gone: their successors fence them, so that nothing is
    lost or doubled. Raises KubernetesError."""
    lost = {node: seconds for node, seconds in nodes if seconds > broker_pods.NODE_LOST_S}
    for pod in pods:
        node = broker_pods.node_of(pod)
        if (
            node in lost
            and not broker_pods.is_ready(pod)
            and await world.api.delete(pod, grace_s=0)
        ):
            text = (
                f"{broker_pods.name_of(pod)} was deleted by force: node {node} has not answered "
                f"for {lost[node]:.0f} s"
            )
            await world.events.warning(owner, Reason.NODE_LOST.value, text)
