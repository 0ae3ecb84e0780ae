"""What is left of a `TransactionCoordinator` that is gone, or was made again for another cluster:
clients still learn of its coordinators.

Owns: finding such announcements, and taking them back. Imports: world, coordinators.state,
magnetar.metadata. Invariants: the set's record goes only in a transaction that finds no coordinator
holding a number: clients that know of a coordinator are led to it for as long as it runs (to end
their transactions), and one that only restarts, or was left running on purpose, is never forgotten;
the records and logs of numbers stay, so that a resource that is made again goes on.
"""

from __future__ import annotations

import math

import structlog

from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import COORDINATORS_MAX
from magnetar.metadata.store import Compare, Delete
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.transaction_coordinator import TransactionCoordinator
from magnetar_operator.builders.object import etcd_endpoints
from magnetar_operator.coordinators.state import CoordinatorsState, read_coordinators
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import InvalidResource, World
from magnetar_operator.kube.errors import KubernetesError, NotLeading
from magnetar_operator.kube.kinds import BROKER_CLUSTER
from magnetar_operator.stores.connections import ClusterStore

log = structlog.get_logger(__name__)

KIND = "TransactionCoordinator"
HELD_S = 3.0
"""An incarnation that ends gives its number back at once; one that was killed keeps it for the
rest of its lease."""
STORE_RETRY_S = 30.0


async def withdraw(world: World, gone: Key) -> float | None:
    """Withdraw the coordinators of a resource that is gone from discovery; the seconds after
    which to look again. Raises KubernetesError."""
    world.leftovers.pop(gone, None)  # all clusters are looked at here
    again: list[float] = []
    for cluster in await _clusters_beside(world, gone.namespace):
        try:
            if await _is_held(world, cluster, gone):
                again.append(HELD_S)
        except (StoreError, TimeoutError) as error:
            log.warning(
                "coordinators.not_withdrawn",
                cluster=cluster.reference,
                error=str(error) or "no answer in time",
            )
            again.append(STORE_RETRY_S)
    return min(again, default=None)


async def withdraw_elsewhere(world: World, key: Key, named: str) -> float:
    """The same of a resource that exists, by every cluster but the one `named` in it, if something
    may be left there (`World.leftovers`).

    The seconds after which to look again, infinite once every cluster was looked at and nothing is
    left. Raises NotLeading.
    """
    now_s = world.clock.monotonic()
    wait_s = world.leftovers.get(key, math.inf) - now_s
    if wait_s > 0:
        return wait_s
    clusters = await _clusters_beside(world, key.namespace)
    own = next((etcd_endpoints(cluster) for cluster in clusters if cluster.name == named), ())
    again_s = math.inf
    for cluster in clusters:
        try:
            if (
                cluster.name != named
                and etcd_endpoints(cluster) != own
                and await _is_held(world, cluster, key)
            ):
                again_s = HELD_S
        except NotLeading:
            raise
        except (StoreError, TimeoutError, KubernetesError) as error:
            log.warning(
                "coordinators.not_withdrawn",
                cluster=cluster.reference,
                error=str(error) or "no answer in time",
            )
            again_s = min(again_s, STORE_RETRY_S)
    if again_s == math.inf:
        world.leftovers.pop(key, None)
    else:
        world.leftovers[key] = now_s + again_s
    return again_s


async def _is_held(world: World, cluster: BrokerCluster, gone: Key) -> bool:
    """Take the announcement back, if the record is that of the resource; whether a coordinator
    still holds a number. Raises StoreError, TimeoutError."""
    store = await world.store_of(cluster)
    state = await read_coordinators(store.reader)
    if state.known is None or state.known.owner != f"{gone.namespace}/{gone.name}":
        return False
    if state.holders or not await _delete(store, state):
        return True
    log.info(
        "coordinators.withdrawn",
        cluster=cluster.reference,
        owner=state.known.owner,
        announced=state.known.announced,
    )
    return False


async def _delete(store: ClusterStore, state: CoordinatorsState) -> bool:
    """False if the record has changed or a coordinator holds a number. Raises NotLeading,
    StoreError, TimeoutError."""
    unclaimed = [
        Compare(keys.coordinator_claim(tcid), "create", "=", 0) for tcid in range(COORDINATORS_MAX)
    ]
    unchanged = Compare(keys.COORDINATOR_SET, "mod", "=", state.set_revision)
    return await store.write((unchanged, *unclaimed), (Delete(keys.COORDINATOR_SET),))


async def orphans(world: World) -> list[Key]:
    """Resources that own a cluster's coordinators and do not exist, or name another cluster.

    They went, or were made again, while no operator looked, or while the store was unavailable. A
    store that does not answer, or whose credentials cannot be read, is left to the next time.
    Raises NotLeading.
    """
    found = []
    for at in world.keys(BROKER_CLUSTER.kind):
        if world.refused(at.namespace):
            continue
        for cluster in await _clusters_beside(world, at.namespace, at.name):
            try:
                state = await read_coordinators((await world.store_of(cluster)).reader)
            except NotLeading:
                raise
            except (StoreError, TimeoutError, KubernetesError) as error:
                log.warning(
                    "orphans.unknown",
                    cluster=cluster.reference,
                    error=str(error) or "no answer in time",
                )
                continue
            namespace, _, name = (state.known.owner if state.known is not None else "").partition(
                "/"
            )
            key = Key(KIND, namespace, name)
            if namespace == at.namespace and await _is_elsewhere(world, key, at.name):
                found.append(key)
    return found


async def _is_elsewhere(world: World, key: Key, cluster: str) -> bool:
    """Whether the resource is gone or names another cluster, which is noted; one that cannot be
    read may name this one."""
    try:
        resource = await world.read(key, TransactionCoordinator)
    except InvalidResource:
        return False
    if resource is not None and resource.spec.cluster_ref.name == cluster:
        return False
    if resource is not None:
        world.leftovers[key] = 0.0
    return True


async def _clusters_beside(world: World, namespace: str, name: str = "") -> list[BrokerCluster]:
    """Clusters of a namespace (or the one of that name) that can be read: resources refer to
    clusters beside them."""
    found = []
    for key in world.keys(BROKER_CLUSTER.kind):
        if key.namespace == namespace and name in ("", key.name):
            try:
                cluster = await world.cluster(key.namespace, key.name)
            except InvalidResource:
                continue
            found += [cluster] if cluster is not None else []
    return found
