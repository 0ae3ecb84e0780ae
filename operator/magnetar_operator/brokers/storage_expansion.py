"""The StorageClasses of a cluster's claims.

Owns: holding a claim at its size while it cannot be expanded, and what is said of classes. Imports:
world, conditions, quantities, resources. Invariants: a claim is enlarged only once it is bound and
its class was seen to allow that; where the operator may not read classes, the API server decides.
No class is read while no claim is to grow and none waits for its volume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.quantities import amount
from magnetar_operator import names
from magnetar_operator.brokers.desired import Identity, identity_of
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Problem, Reason
from magnetar_operator.engine.world import World
from magnetar_operator.kube.errors import ApiRefused
from magnetar_operator.kube.kinds import STORAGE_CLASS
from magnetar_operator.pods.pods import problem_of

log = structlog.get_logger(__name__)

_INFEASIBLE = ("ControllerResizeInfeasible", "NodeResizeInfeasible")


async def hold_claim(
    world: World,
    cluster: BrokerCluster,
    wanted: Sequence[Manifest],
    have: Mapping[Identity, Manifest],
) -> tuple[list[Manifest], list[Problem]]:
    """`wanted` with the claim as large as it is if it cannot grow, and why it cannot. Raises
    KubernetesError."""
    identity = ("PersistentVolumeClaim", names.storage_claim(cluster.name))
    claim = have.get(identity)
    manifest = next((found for found in wanted if identity_of(found) == identity), None)
    if claim is None or manifest is None:
        return list(wanted), []
    size, larger = _size(claim), _size(manifest)
    if (amount(larger) or 0) <= (amount(size) or 0):
        return list(wanted), _infeasible(claim)
    bound = claim.get("status", {}).get("phase") == "Bound"
    obstacle = (
        await _obstacle(world, claim) if bound else "it is not bound yet, and grows when it is"
    )
    if not obstacle:
        return list(wanted), []
    reason = Reason.STORAGE_NOT_EXPANDABLE if bound else Reason.STORAGE_PENDING
    text = f"claim {identity[1]} stays at {size} instead of {larger}: {obstacle}. {reason.remedy}"
    held = {**manifest, "spec": {**manifest["spec"], "resources": {"requests": {"storage": size}}}}
    return [held if found is manifest else found for found in wanted], [
        Problem(reason, text, identity[1])
    ]


def _size(claim: Manifest) -> str:
    return str(claim["spec"]["resources"]["requests"]["storage"])


def _infeasible(claim: Manifest) -> list[Problem]:
    """A growth that was asked for and that the volume's driver has given up."""
    status, name = claim.get("status", {}), claim["metadata"]["name"]
    if status.get("allocatedResourceStatuses", {}).get("storage") not in _INFEASIBLE:
        return []
    capacity = status.get("capacity", {}).get("storage")
    text = (
        f"claim {name} has {capacity} and cannot get {_size(claim)}: its driver refuses; kubectl "
        f"describe pvc {name} says why"
    )
    return [Problem(Reason.STORAGE_NOT_EXPANDABLE, text, name)]


async def _obstacle(world: World, claim: Manifest) -> str:
    """Why a bound claim cannot grow; "" = it can, or the operator does not know. Raises
    KubernetesError."""
    name = claim["spec"].get("storageClassName", "")
    if not name:
        return "it has no StorageClass, and only volumes that a class has made can grow"
    found, is_known = await _class(world, name)
    if not is_known:
        return ""
    if found is None:
        return f"its StorageClass {name} does not exist"
    return (
        ""
        if found.get("allowVolumeExpansion")
        else f"its StorageClass {name} has no allowVolumeExpansion: true"
    )


async def missing_classes(
    world: World,
    cluster: BrokerCluster,
    have: Mapping[Identity, Manifest],
    etcd_pods: Sequence[Manifest],
) -> list[Problem]:
    """Classes that do not exist, of claims that wait for a volume. Raises KubernetesError."""
    waiting = []
    claim = have.get(("PersistentVolumeClaim", names.storage_claim(cluster.name)))
    if claim is not None and claim.get("status", {}).get("phase", "Pending") == "Pending":
        waiting.append((claim["metadata"]["name"], claim["spec"].get("storageClassName", "")))
    managed = cluster.spec.etcd.managed
    for pod in etcd_pods:
        problem = problem_of(pod)
        if (
            managed is not None
            and problem is not None
            and problem.reason is Reason.POD_UNSCHEDULABLE
        ):
            waiting.append((f"data-{pod['metadata']['name']}", managed.storage.storage_class_name))
    classes = {
        name: await _class(world, name) for name in sorted({name for _, name in waiting if name})
    }
    return [
        Problem(
            Reason.STORAGE_CLASS_MISSING,
            f"StorageClass {name} of claim {about} does not exist. "
            f"{Reason.STORAGE_CLASS_MISSING.remedy}",
            about,
        )
        for about, name in waiting
        if name and classes[name] == (None, True)
    ]


async def _class(world: World, name: str) -> tuple[Manifest | None, bool]:
    """The StorageClass, and whether that is known. Raises KubernetesError."""
    try:
        return await world.api.get(STORAGE_CLASS, "", name), True
    except ApiRefused as error:
        # an installation without rights on classes
        log.warning("storage_class.unreadable", name=name, error=str(error))
        return None, False
