"""The status of a `TransactionCoordinator`.

Owns: its derivation from what was observed and planned. Imports: resources, conditions,
coordinators.scaling, pods.pods. Pure. Invariants: the same observation gives the same status, so
that a steady state writes none; every reason for not being Ready appears in Ready itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.metadata.records import CoordinatorState
from magnetar.resources.base import Condition
from magnetar.resources.broker_cluster import BrokerCluster, PendingRestart
from magnetar.resources.listeners import CoordinatorAddress
from magnetar.resources.transaction_coordinator import (
    CoordinatorStatus,
    TransactionCoordinator,
    TransactionCoordinatorStatus,
)
from magnetar_operator import names
from magnetar_operator.brokers.desired import Identity
from magnetar_operator.builders.coordinator_set import coordinators_of
from magnetar_operator.builders.listeners import addresses_of, pending_listener
from magnetar_operator.builders.object import Manifest
from magnetar_operator.conditions import Finding, Problem, Reason, counted
from magnetar_operator.coordinators.scaling import CoordinatorPlan
from magnetar_operator.coordinators.state import CoordinatorsState
from magnetar_operator.engine.troubles import availability, ranked, standing
from magnetar_operator.pods.pods import (
    LostNodes,
    first_leaving,
    first_trouble,
    is_ready,
    lost_nodes_problem,
    name_of,
    node_addresses,
    phase_of,
    pod_problems,
    sorted_by_ordinal,
)
from magnetar_operator.pods.rolling import RollPlan


@dataclass(frozen=True, slots=True)
class ObservedCoordinators:
    """One look at everything that belongs to the resource. `state` is None while the store
    cannot be read; `store_problem` says why, `store_outage` whether it is because it did not
    answer: a record that this operator cannot read is no hindrance to others."""

    children: dict[Identity, Manifest]
    pods: tuple[Manifest, ...]
    state: CoordinatorsState | None
    store_problem: str = ""
    lost_nodes: LostNodes = ()
    store_outage: bool = False


def findings_of(
    resource: TransactionCoordinator,
    cluster: BrokerCluster,
    observed: ObservedCoordinators,
    scale: CoordinatorPlan,
    roll: RollPlan,
    problems: Iterable[Problem],
) -> list[Finding]:
    """Available, Progressing, Degraded, Ready."""
    wanted = resource.spec.replicas
    ready = sum(map(is_ready, observed.pods))
    progress = _progress(resource, cluster, observed, scale, roll, ready)
    available = availability(
        wanted, len(observed.pods), ready, "coordinators answer", Reason.NO_COORDINATOR
    )
    complete = (
        counted(wanted, "coordinator answers", "coordinators answer")
        if wanted
        else Reason.STOPPED.meaning
    )
    return standing(available, progress, troubles_of(resource, observed, problems), complete)


def _progress(
    resource: TransactionCoordinator,
    cluster: BrokerCluster,
    observed: ObservedCoordinators,
    scale: CoordinatorPlan,
    roll: RollPlan,
    ready: int,
) -> Problem | None:
    """What is under way."""
    wanted = resource.spec.replicas
    if scale.reason is not None:
        return Problem(scale.reason, scale.message)
    if observed.state is None and not resource.status.announced:
        # a new cluster's etcd comes up beside us
        return Problem(Reason.STORE_STARTING, observed.store_problem)
    if roll.progress is not None:
        return roll.progress
    if ready == wanted == len(observed.pods):
        announced = observed.state.announced if observed.state is not None else wanted
        pending = pending_listener(coordinators_of(resource, cluster), observed.children)
        if pending is not None or announced == wanted:
            return pending
        return Problem(
            Reason.COORDINATORS_STARTING,
            f"{announced} of {wanted} coordinators are announced to clients",
        )
    leaving = first_leaving(observed.pods)
    if leaving:
        reason = (
            Reason.REMOVING_COORDINATOR
            if len(observed.pods) > wanted
            else Reason.COORDINATORS_STARTING
        )
        return Problem(reason, f"{leaving} is stopping")
    trouble = first_trouble(observed.pods)
    message = f"{ready} of {wanted} coordinators are ready" + (f"; {trouble}" if trouble else "")
    return Problem(Reason.COORDINATORS_STARTING, message)


def troubles_of(
    resource: TransactionCoordinator, observed: ObservedCoordinators, problems: Iterable[Problem]
) -> tuple[Problem, ...]:
    """Everything that is wrong, the most serious first; `problems` are those that this pass met."""
    unreadable = observed.state is None and resource.status.announced
    store = Problem(Reason.STORE_UNAVAILABLE, observed.store_problem) if unreadable else None
    alone = [
        problem
        for problem in (store, lost_nodes_problem(observed.lost_nodes))
        if problem is not None
    ]
    return ranked([*problems, *alone, *pod_problems(observed.pods)])


def derive(
    resource: TransactionCoordinator,
    cluster: BrokerCluster,
    observed: ObservedCoordinators,
    roll: RollPlan,
    conditions: tuple[Condition, ...],
) -> TransactionCoordinatorStatus:
    """The whole status."""
    known = {coordinator.name: coordinator for coordinator in resource.status.coordinators}
    fleet, hosts = coordinators_of(resource, cluster), node_addresses(observed.pods)

    def row(pod: Manifest) -> CoordinatorStatus:
        found = _coordinator(pod, observed.state, known)
        urls = addresses_of(fleet, found.tcid, observed.children, hosts.get(found.tcid, ""))
        addresses = tuple(CoordinatorAddress(listener=name, url=url) for name, url in urls.items())
        return found.model_copy(update={"addresses": addresses})

    return TransactionCoordinatorStatus(
        observed_generation=resource.metadata.generation,
        replicas=len(observed.pods),
        ready_replicas=sum(map(is_ready, observed.pods)),
        announced=observed.state.announced
        if observed.state is not None
        else resource.status.announced,
        selector=names.selector_text(names.coordinator_selector(resource.name, cluster.name)),
        coordinators=tuple(map(row, sorted_by_ordinal(observed.pods))),
        pending_restarts=tuple(
            PendingRestart(name=name, reason=reason) for name, reason in roll.pending
        ),
        conditions=conditions,
    )


def _coordinator(
    pod: Manifest, state: CoordinatorsState | None, known: dict[str, CoordinatorStatus]
) -> CoordinatorStatus:
    name, phase = name_of(pod), phase_of(pod, {})
    tcid = names.ordinal_of(name)
    if state is None:
        last = known.get(name, CoordinatorStatus(name=name))
        return CoordinatorStatus(
            name=name,
            tcid=tcid,
            incarnation=last.incarnation,
            open_transactions=last.open_transactions,
            phase=phase,
        )
    record, holder = state.records.get(tcid), state.holders.get(tcid)
    if phase == "Ready" and record is not None and record.state is CoordinatorState.RETIRING:
        phase = "Retiring"
    return CoordinatorStatus(
        name=name,
        tcid=tcid,
        incarnation=holder.incarnation if holder is not None and holder.name == name else "",
        open_transactions=record.open_transactions if record is not None else 0,
        phase=phase,
    )
