"""The status of a `BrokerCluster`.

Owns: its derivation from what was observed and planned. Imports: resources, conditions, scaling,
rolling, pods.pods. Pure. Invariants: the same observation gives the same status, so that a steady
state writes none; every reason for not being Ready appears in Ready itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.resources.base import Condition
from magnetar.resources.broker_cluster import (
    BrokerCluster,
    BrokerClusterStatus,
    BrokerStatus,
    Endpoints,
    PendingRestart,
)
from magnetar.resources.etcd import RestoreStatus
from magnetar.resources.storage import ClaimStatus
from magnetar_operator import names
from magnetar_operator.brokers.desired import Identity
from magnetar_operator.brokers.scaling import ScalePlan
from magnetar_operator.brokers.state import ClusterState
from magnetar_operator.builders.etcd_set import EtcdShape
from magnetar_operator.builders.listeners import brokers_of, listener_statuses, pending_listener
from magnetar_operator.builders.object import Manifest, claim_name
from magnetar_operator.conditions import Finding, Problem, Reason, counted
from magnetar_operator.engine.troubles import availability, ranked, standing
from magnetar_operator.etcd.rotation import Phase
from magnetar_operator.etcd.view import EtcdLifecycle
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
from magnetar_operator.stores.copies import copy_status
from magnetar_operator.stores.restore import RestorePlan

_NO_RESTORE = RestorePlan(RestoreStatus())


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at everything that belongs to a cluster. `state` is None while the store cannot
    be read; `store_problem` says why, `store_outage` whether it is because it did not answer: a
    record that this operator cannot read is no hindrance to others."""

    children: dict[Identity, Manifest]
    pods: tuple[Manifest, ...]
    state: ClusterState | None
    store_problem: str = ""
    lost_nodes: LostNodes = ()
    etcd: EtcdLifecycle | None = None
    copies_problem: Problem | None = None
    restore: RestorePlan = _NO_RESTORE
    store_outage: bool = False

    @property
    def etcd_shape(self) -> EtcdShape:
        """What the managed etcd's set is to be."""
        return self.etcd.shape if self.etcd is not None else EtcdShape()

    @property
    def etcd_pods(self) -> tuple[Manifest, ...]:
        """Those of the managed etcd."""
        return self.etcd.pods if self.etcd is not None else ()

    def child(self, kind: str, name: str) -> Manifest | None:
        return self.children.get((kind, name))


def findings_of(
    cluster: BrokerCluster,
    observed: Observed,
    scale: ScalePlan,
    roll: RollPlan,
    problems: Iterable[Problem],
) -> list[Finding]:
    """Available, Progressing, Degraded, Ready."""
    wanted = cluster.spec.replicas
    ready = sum(map(is_ready, observed.pods))
    etcd = observed.etcd
    progress = (
        observed.restore.progress
        or _progress(cluster, observed, scale, roll, ready)
        or (etcd.progress if etcd is not None else None)
        or _rotation(cluster)
    )
    available = availability(
        wanted, len(observed.pods), ready, "brokers take traffic", Reason.NO_BROKER
    )
    complete = (
        counted(wanted, "broker is ready", "brokers are ready")
        if wanted
        else Reason.STOPPED.meaning
    )
    return standing(available, progress, troubles_of(cluster, observed, problems), complete)


def _rotation(cluster: BrokerCluster) -> Problem | None:
    """The rotation of etcd's authority."""
    texts = {
        Phase.TRUSTING.value: "etcd's next authority is distributed to every process; it issues nothing "
        "yet",
        Phase.ISSUING.value: "etcd's new authority has issued all certificates; the former one is "
        "trusted until every process has them",
    }
    text = texts.get(cluster.status.etcd_authority.rotation)
    return Problem(Reason.ETCD_AUTHORITY_ROTATING, text) if text is not None else None


def _progress(
    cluster: BrokerCluster, observed: Observed, scale: ScalePlan, roll: RollPlan, ready: int
) -> Problem | None:
    """What is under way."""
    if scale.reason is not None:
        return Problem(scale.reason, scale.message)
    if observed.state is None and not cluster.status.storage_id:
        return Problem(Reason.STORE_STARTING, observed.store_problem)
    if roll.progress is not None:
        return roll.progress
    wanted = cluster.spec.replicas
    if ready == wanted == len(observed.pods):
        return pending_listener(brokers_of(cluster), observed.children)
    leaving = first_leaving(observed.pods)
    if leaving:
        return Problem(
            Reason.REMOVING if len(observed.pods) > wanted else Reason.STARTING,
            f"{leaving} is stopping",
        )
    trouble = first_trouble(observed.pods)
    message = f"{ready} of {wanted} brokers are ready" + (f"; {trouble}" if trouble else "")
    claim = observed.child("PersistentVolumeClaim", claim_name(cluster))
    if claim is not None and claim.get("status", {}).get("phase") != "Bound" and not ready:
        return Problem(
            Reason.STORAGE_PENDING, f"claim {claim_name(cluster)} is not bound yet; {message}"
        )
    return Problem(Reason.STARTING, message)


def troubles_of(
    cluster: BrokerCluster, observed: Observed, problems: Iterable[Problem]
) -> tuple[Problem, ...]:
    """Everything that is wrong, the most serious first; `problems` are those that this pass met."""
    unreadable = observed.state is None and cluster.status.storage_id
    store = Problem(Reason.STORE_UNAVAILABLE, observed.store_problem) if unreadable else None
    alone = (
        observed.restore.problem,
        store,
        lost_nodes_problem(observed.lost_nodes),
        _storage_problem(cluster, observed),
    )
    etcd = observed.etcd
    return ranked(
        [
            *problems,
            *(etcd.problems if etcd is not None else ()),
            *(problem for problem in alone if problem is not None),
            *(etcd.pod_problems if etcd is not None else ()),
            *pod_problems(observed.pods),
            *([observed.copies_problem] if observed.copies_problem is not None else ()),
        ]
    )


def _storage_problem(cluster: BrokerCluster, observed: Observed) -> Problem | None:
    """The brokers' volume is awaited and not bound: what is said of their pods follows from it."""
    claim = observed.child("PersistentVolumeClaim", claim_name(cluster))
    if (
        claim is None
        or claim.get("status", {}).get("phase", "Pending") == "Bound"
        or any(map(is_ready, observed.pods))
    ):
        return None
    trouble = first_trouble(observed.pods)
    if not trouble:
        return None  # no pod has asked for it yet, or only just
    return Problem(
        Reason.STORAGE_PENDING,
        f"claim {claim_name(cluster)} is not bound; {trouble}. {Reason.STORAGE_PENDING.remedy}",
    )


def derive(
    cluster: BrokerCluster, observed: Observed, roll: RollPlan, conditions: tuple[Condition, ...]
) -> BrokerClusterStatus:
    """The whole status."""
    state = observed.state
    known = {broker.name: broker for broker in cluster.status.brokers}
    brokers = []
    for pod in sorted_by_ordinal(observed.pods):
        name = name_of(pod)
        if state is not None:
            incarnation, bundles, cordons = (
                state.incarnations.get(name, ""),
                state.bundles.get(name, 0),
                state.cordons,
            )
        else:
            last = known.get(name)
            incarnation, bundles, cordons = (
                (last.incarnation, last.bundles, {}) if last is not None else ("", 0, {})
            )
        brokers.append(
            BrokerStatus(
                name=name, incarnation=incarnation, bundles=bundles, phase=phase_of(pod, cordons)
            )
        )
    return BrokerClusterStatus(
        observed_generation=cluster.metadata.generation,
        replicas=len(observed.pods),
        ready_replicas=sum(map(is_ready, observed.pods)),
        selector=names.selector_text(names.selector(cluster.name, names.BROKER)),
        etcd_security=cluster.status.etcd_security,
        etcd_authority=cluster.status.etcd_authority,
        etcd=observed.etcd.status if observed.etcd is not None else cluster.status.etcd,
        storage_id=(state.storage_id if state is not None else "") or cluster.status.storage_id,
        storage=_claim_status(cluster, observed),
        restore=observed.restore.status,
        metadata_copy=copy_status(cluster, state.copies if state is not None else None),
        endpoints=_endpoints(cluster),
        listeners=listener_statuses(cluster, observed.children, node_addresses(observed.pods)),
        brokers=tuple(brokers),
        pending_restarts=tuple(
            PendingRestart(name=name, reason=reason) for name, reason in roll.pending
        ),
        conditions=conditions,
    )


def _claim_status(cluster: BrokerCluster, observed: Observed) -> ClaimStatus:
    claim = observed.child("PersistentVolumeClaim", names.storage_claim(cluster.name))
    if claim is None:
        return ClaimStatus()
    return ClaimStatus(
        claim=names.storage_claim(cluster.name),
        storage_class_name=claim["spec"].get("storageClassName", ""),
        size=claim["spec"]["resources"]["requests"]["storage"],
        capacity=claim.get("status", {}).get("capacity", {}).get("storage", ""),
    )


def _endpoints(cluster: BrokerCluster) -> Endpoints:
    """Only what clients may use."""
    host, tls = f"{cluster.name}.{cluster.namespace}.svc", cluster.spec.tls
    plain = tls is None or tls.plain == "Open"
    return Endpoints(
        service_url=f"pulsar://{host}:{names.BROKER_PORT}" if plain else "",
        http_url=f"http://{host}:{names.HTTP_PORT}" if plain else "",
        service_url_tls=f"pulsar+ssl://{host}:{names.BROKER_TLS_PORT}" if tls is not None else "",
        https_url=f"https://{host}:{names.HTTPS_PORT}" if tls is not None else "",
    )
