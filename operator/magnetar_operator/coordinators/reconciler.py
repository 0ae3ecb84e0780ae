"""Reconciling a `TransactionCoordinator`.

Owns: the order of steps, who may act, the set's record. Imports: world, coordinators.scaling,
coordinators.state, children, pods.care, builders, withdrawing. Invariants: of several resources for
one cluster the oldest acts and the others say so; the record is written before the StatefulSet
follows it; a coordinator leaves only as `plan_coordinators` allows; deleting the resource removes
pods, and the announcement when the last one has gone, but no number's record or log; the status is
written last and only when it differs.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.store import Compare, Put
from magnetar.resources.base import Trouble
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.transaction_coordinator import TransactionCoordinator
from magnetar_operator import names
from magnetar_operator.brokers.client_security import see_security, tell
from magnetar_operator.brokers.desired import Identity
from magnetar_operator.brokers.storage_credentials import secrets_again_s, see_credentials
from magnetar_operator.builders.client_tls import coordinator_hosts
from magnetar_operator.builders.coordinator_set import (
    coordinators_of,
    desired_coordinators,
    unknown_listener,
)
from magnetar_operator.builders.listeners import listener_services
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Finding, Problem, Reason, Type
from magnetar_operator.coordinators.scaling import (
    CoordinatorFleet,
    CoordinatorPlan,
    plan_coordinators,
)
from magnetar_operator.coordinators.state import CoordinatorsState, read_coordinators
from magnetar_operator.coordinators.status import (
    ObservedCoordinators,
    derive,
    findings_of,
    troubles_of,
)
from magnetar_operator.coordinators.withdrawing import withdraw, withdraw_elsewhere
from magnetar_operator.engine.children import apply_children, create_missing, read_children
from magnetar_operator.engine.planning import deferred
from magnetar_operator.engine.troubles import listed, obstructed
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import InvalidResource, World, is_paused, parsed
from magnetar_operator.pods import pods as broker_pods
from magnetar_operator.pods.care import delete_lost, lost_nodes, restart, roll_of
from magnetar_operator.pods.rolling import RollPlan, held
from magnetar_operator.stores.outages import NO_ANSWER
from magnetar_operator.stores.restore import is_held

log = structlog.get_logger(__name__)

KIND = "TransactionCoordinator"
LOOK_AGAIN_S = 30.0
"""Open transactions and holders change without any Kubernetes event."""
MOVING_S = 1.0
OBSTACLE_RETRY_S = 3.0
STORE_RETRY_S = 3.0


async def reconcile(world: World, key: Key) -> float | None:
    """One pass; the seconds after which to look again. Raises KubernetesError, InvalidResource."""
    resource = await world.read(key, TransactionCoordinator)
    if resource is None or resource.metadata.deletion_timestamp:
        return await withdraw(world, key)  # children go with their owner; records and logs stay
    if is_paused(resource):
        await world.events.paused(resource)
        await _write_conditions(world, resource, [Finding(Type.PROGRESSING, False, Reason.PAUSED)])
        return None
    if not resource.status.conditions:
        # it is new: one of its name may have served another cluster before it
        world.leftovers.setdefault(key, 0.0)
    again_s = await _serve(world, resource)
    return min(again_s, await withdraw_elsewhere(world, key, resource.spec.cluster_ref.name))


async def _serve(world: World, resource: TransactionCoordinator) -> float:
    """One pass of a resource that may act, or has to say why it cannot. Raises KubernetesError,
    InvalidResource."""
    cluster = await world.cluster(resource.namespace, resource.spec.cluster_ref.name)
    obstacle = _missing(resource) if cluster is None else await _older(world, resource)
    if cluster is None or obstacle is not None:
        assert obstacle is not None
        await world.events.standing(resource, [obstacle])
        troubles = listed(resource.status.troubles, [obstacle], world.clock.wall_ms())
        await _write_conditions(world, resource, obstructed(obstacle), troubles=troubles)
        return OBSTACLE_RETRY_S
    await world.events.standing(resource, [])
    return await _act(world, resource, cluster)


async def _act(world: World, resource: TransactionCoordinator, cluster: BrokerCluster) -> float:
    """One pass of the resource that speaks for the cluster. Raises KubernetesError."""
    observed = await observe(world, resource, cluster)
    if _is_irreversible(resource, observed):
        observed = await observe(world, resource, cluster, live=True)
    scale = plan_coordinators(resource.spec.replicas, _fleet(resource, observed))
    held_fleet = is_held(cluster.status.restore)
    problems = [] if held_fleet else await _write_record(world, resource, cluster, observed, scale)
    seen = await see_credentials(world, cluster, resource, _set_of(resource, observed))
    security = await see_security(
        world, cluster, coordinator_hosts(resource.name, resource.namespace)
    )
    await tell(world, resource, security)
    problems += [*seen.problems, *security.all_problems]
    replicas, stateful_set = scale.replicas, _set_of(resource, observed)
    if held_fleet:
        problems.append(
            Problem(
                Reason.RESTORING,
                f"the metadata store of {cluster.reference} is restored; transactions wait for it",
            )
        )
        replicas = int(stateful_set["spec"]["replicas"]) if stateful_set is not None else replicas
    observed = await _with_listener_services(world, resource, cluster, observed, replicas)
    have = observed.children
    wanted = desired_coordinators(resource, cluster, world.defaults, replicas, have, seen.digest)
    wanted = deferred(
        wanted, observed.children, names.coordinator_set(resource.name), security.blocking
    )
    problems += await apply_children(world, resource, wanted, observed.children)
    unknown = unknown_listener(resource, cluster)
    problems += [unknown] if unknown is not None else []
    roll = (
        RollPlan() if held_fleet else held(_plan_roll(resource, observed, scale), security.blocking)
    )
    await restart(world, resource, observed.pods, roll)
    await delete_lost(world, resource, observed.pods, observed.lost_nodes)
    await _write_status(
        world, resource, cluster, observed, scale, roll, problems, security.findings
    )
    return min(
        _again_after_s(resource, observed, scale),
        secrets_again_s(seen.problems, security.all_problems),
    )


# --- who may act ----------------------------------------------------------------------------------


def _missing(resource: TransactionCoordinator) -> Problem:
    place = f"{resource.namespace}/{resource.spec.cluster_ref.name}"
    return Problem(
        Reason.CLUSTER_MISSING,
        f"BrokerCluster {place} does not exist; make it, or correct clusterRef",
    )


def seniority(resource: TransactionCoordinator) -> tuple[str, str]:
    """Order among the resources for one cluster: the oldest first, by name where the second is
    the same."""
    return resource.metadata.creation_timestamp, resource.name


async def _older(world: World, resource: TransactionCoordinator) -> Problem | None:
    """The problem that an older resource speaks for the same cluster. Raises KubernetesError."""
    for found in await world.list_everywhere(KIND):
        try:
            other = parsed(found, TransactionCoordinator)
        except InvalidResource:
            continue  # it cannot act either
        same = (other.namespace, other.spec.cluster_ref) == (
            resource.namespace,
            resource.spec.cluster_ref,
        )
        if (
            same
            and other.metadata.uid != resource.metadata.uid
            and seniority(other) < seniority(resource)
        ):
            text = (
                f"{other.reference} is older and serves BrokerCluster "
                f"{other.spec.cluster_ref.name}; delete one of the two"
            )
            return Problem(Reason.CONFLICT, text)
    return None


# --- reading the world ----------------------------------------------------------------------------


async def observe(
    world: World, resource: TransactionCoordinator, cluster: BrokerCluster, live: bool = False
) -> ObservedCoordinators:
    """Everything that belongs to the resource: from the caches, or `live` from the API server.
    Raises KubernetesError."""
    children, pods = await _read_children(world, resource, cluster, live)
    mine = [
        pod
        for pod in pods
        if broker_pods.name_of(pod).startswith(f"{names.coordinator_set(resource.name)}-")
    ]
    state, problem, outage = await _read_state(world, cluster)
    return ObservedCoordinators(
        children, tuple(mine), state, problem, await lost_nodes(world, mine), outage
    )


async def _with_listener_services(
    world: World,
    resource: TransactionCoordinator,
    cluster: BrokerCluster,
    observed: ObservedCoordinators,
    replicas: int,
) -> ObservedCoordinators:
    """Make services that are missing before anything else: a new coordinator finds its addresses
    when it starts. Raises KubernetesError."""
    services = listener_services(coordinators_of(resource, cluster), replicas)
    if not await create_missing(world, resource, services, observed.children):
        return observed
    children, _ = await _read_children(world, resource, cluster, live=False)
    return replace(observed, children=children)


async def _read_children(
    world: World, resource: TransactionCoordinator, cluster: BrokerCluster, live: bool
) -> tuple[dict[Identity, Manifest], list[Manifest]]:
    coordinators = names.coordinator_selector(resource.name, cluster.name)
    return await read_children(
        world, resource, {names.COORDINATORS: resource.name}, coordinators, live
    )


def _is_irreversible(resource: TransactionCoordinator, observed: ObservedCoordinators) -> bool:
    """Whether what would be done next cannot be taken back: the caches find such work, a look at
    the API server itself decides."""
    scale = plan_coordinators(resource.spec.replicas, _fleet(resource, observed))
    return (
        scale.reason is not None
        or bool(_plan_roll(resource, observed, scale).restart)
        or bool(observed.lost_nodes)
    )


async def _read_state(
    world: World, cluster: BrokerCluster
) -> tuple[CoordinatorsState | None, str, bool]:
    """The store's picture, or why there is none, and whether that is because the store was not
    seen to answer."""
    try:
        store = await world.store_of(cluster)
        return await read_coordinators(store.reader), "", False
    except (StoreError, TimeoutError) as error:
        log.warning("store.unreadable", cluster=cluster.reference, error=str(error))
        return (
            None,
            f"the etcd of {cluster.reference}: {str(error) or 'no answer in time'}",
            isinstance(error, NO_ANSWER),
        )


def _set_of(resource: TransactionCoordinator, observed: ObservedCoordinators) -> Manifest | None:
    return observed.children.get(("StatefulSet", names.coordinator_set(resource.name)))


def _fleet(resource: TransactionCoordinator, observed: ObservedCoordinators) -> CoordinatorFleet:
    stateful_set = _set_of(resource, observed)
    return CoordinatorFleet(
        coordinators=resource.name,
        owner=f"{resource.namespace}/{resource.name}",
        replicas=stateful_set["spec"]["replicas"] if stateful_set is not None else None,
        pods=frozenset(map(broker_pods.name_of, observed.pods)),
        state=observed.state,
    )


def _plan_roll(
    resource: TransactionCoordinator, observed: ObservedCoordinators, scale: CoordinatorPlan
) -> RollPlan:
    scaling = scale.reason is not None
    awaits = f"the metadata store: {observed.store_problem}" if observed.store_outage else ""
    return roll_of(
        observed.pods,
        _set_of(resource, observed),
        scale.replicas,
        scaling=scaling,
        what="coordinators",
        awaits=awaits,
    )


# --- effects --------------------------------------------------------------------------------------


async def _write_record(
    world: World,
    resource: TransactionCoordinator,
    cluster: BrokerCluster,
    observed: ObservedCoordinators,
    scale: CoordinatorPlan,
) -> list[Problem]:
    """Write how many coordinators there should be. Raises NotLeading, and StoreError if the record
    has changed since it was read: nothing follows from that look."""
    if scale.record is None or observed.state is None:
        return []
    unchanged = Compare(keys.COORDINATOR_SET, "mod", "=", observed.state.set_revision)
    try:
        store = await world.store_of(cluster)
        written = await store.write(
            (unchanged,), (Put(keys.COORDINATOR_SET, scale.record.encode()),)
        )
    except (StoreError, TimeoutError) as error:
        return [
            Problem(
                Reason.STORE_UNAVAILABLE,
                f"{keys.COORDINATOR_SET} could not be written: {str(error) or 'no answer in time'}",
            )
        ]
    if not written:
        raise StoreError(f"{keys.COORDINATOR_SET} was changed at the same moment; trying again")
    before = observed.state.known
    if before is not None and before.limit != scale.record.limit:
        text = f"coordinators 0 to {scale.record.limit - 1}" if scale.record.limit else "none"
        await world.events.normal(resource, "LimitChanged", f"who may begin transactions: {text}")
    return []


async def _write_conditions(
    world: World,
    resource: TransactionCoordinator,
    findings: list[Finding],
    **changes: tuple[Trouble, ...],
) -> None:
    """Only these conditions and changes; the rest of the status stays what it was when this
    resource last acted."""
    reported = {finding.type.value for finding in findings}
    kept = [condition for condition in resource.status.conditions if condition.type not in reported]
    new = world.conditions(resource, resource.status.conditions, findings)
    await world.write_status(
        resource, resource.status.model_copy(update={"conditions": (*kept, *new), **changes})
    )


async def _write_status(
    world: World,
    resource: TransactionCoordinator,
    cluster: BrokerCluster,
    observed: ObservedCoordinators,
    scale: CoordinatorPlan,
    roll: RollPlan,
    problems: list[Problem],
    certificate: tuple[Finding, ...],
) -> None:
    findings = findings_of(resource, cluster, observed, scale, roll, problems)
    conditions = world.conditions(resource, resource.status.conditions, [*findings, *certificate])
    troubles = listed(
        resource.status.troubles, troubles_of(resource, observed, problems), world.clock.wall_ms()
    )
    status = derive(resource, cluster, observed, roll, conditions)
    outcome = status.model_copy(update={"troubles": troubles})
    await world.write_outcome(resource, outcome, resource.status.conditions, findings[-1])
    if scale.reason is Reason.TRANSACTIONS_OPEN:
        await world.events.once(resource, "Normal", scale.reason.value, scale.message)


def _again_after_s(
    resource: TransactionCoordinator, observed: ObservedCoordinators, scale: CoordinatorPlan
) -> float:
    if observed.state is None:
        return STORE_RETRY_S
    if (
        scale.reason is not None
        or observed.lost_nodes
        or observed.state.announced != resource.spec.replicas
    ):
        return MOVING_S
    return LOOK_AGAIN_S
