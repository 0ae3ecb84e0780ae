"""Everything that is made for a `TransactionCoordinator`.

Owns: its StatefulSet, services, account, settings, disruption budget and network policy. Imports:
builders siblings, names, resources. Pure. Invariants: a coordinator's number is its pod's ordinal;
the pods are restarted by the operator alone (OnDelete); deleting the resource removes these objects
and nothing that holds data.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.listeners import Listener
from magnetar.resources.transaction_coordinator import TransactionCoordinator
from magnetar_operator import names
from magnetar_operator.builders.client_tls import ports_of
from magnetar_operator.builders.config_map import PREFIX
from magnetar_operator.builders.listeners import (
    Children,
    Fleet,
    listener_addresses,
    listener_services,
)
from magnetar_operator.builders.magnetar_pod import PodParts, set_spec
from magnetar_operator.builders.network_policy import served
from magnetar_operator.builders.object import Defaults, Manifest, owner_of
from magnetar_operator.builders.service_account import without_rights
from magnetar_operator.conditions import Problem, Reason


def desired_coordinators(
    resource: TransactionCoordinator,
    cluster: BrokerCluster,
    defaults: Defaults,
    replicas: int,
    observed: Children,
    credentials: str = "",
) -> list[Manifest]:
    """Every child, in the order of dependence. `replicas` comes from the scaling plan;
    `observed` gives what exists, for addresses; `credentials` is the digest of the storage's (""
    = it has none)."""
    fleet = coordinators_of(resource, cluster)
    return [
        _account(resource),
        _service(resource, cluster),
        *listener_services(fleet, replicas),
        *listener_addresses(fleet, replicas, observed),
        *_policy(resource, cluster),
        _config(resource),
        _budget(resource),
        _stateful_set(resource, cluster, defaults, replicas, credentials),
    ]


def coordinators_of(resource: TransactionCoordinator, cluster: BrokerCluster) -> Fleet:
    """The coordinators, by those of their listeners that the cluster has as well."""
    known = {listener.name: listener for listener in cluster.spec.listeners}
    listeners = [
        Listener(**way.model_dump(), tls=known[way.name].tls)
        for way in resource.spec.listeners
        if way.name in known
    ]
    return Fleet(
        stateful_set=names.coordinator_set(resource.name),
        namespace=resource.namespace,
        listeners=tuple(listeners),
        pods=resource.spec.replicas,
        selector=_selector(resource),
        bare=lambda api_version, kind, name: _object(api_version, kind, resource, name),
        entrance=False,
    )


def unknown_listener(resource: TransactionCoordinator, cluster: BrokerCluster) -> Problem | None:
    """A listener that no client can use."""
    known = {listener.name for listener in cluster.spec.listeners}
    unknown = [way.name for way in resource.spec.listeners if way.name not in known]
    if not unknown:
        return None
    text = (
        f"{cluster.reference} has no listener {', '.join(unknown)}. "
        f"{Reason.LISTENER_UNKNOWN.remedy}"
    )
    return Problem(Reason.LISTENER_UNKNOWN, text)


def coordinator_settings(resource: TransactionCoordinator) -> dict[str, str]:
    """Environment variables of a coordinator."""
    chosen = {
        f"{PREFIX}{name.upper()}": f"{value:.15g}"
        for name, value in resource.spec.config.chosen().items()
    }
    return chosen | {f"{PREFIX}DRAIN_TIMEOUT_S": str(resource.spec.drain_timeout_seconds)}


def _object(api_version: str, kind: str, resource: TransactionCoordinator, name: str) -> Manifest:
    metadata: Manifest = {
        "name": name,
        "namespace": resource.namespace,
        "labels": names.coordinator_labels(resource.name, resource.spec.cluster_ref.name),
        "ownerReferences": [owner_of(resource)],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _selector(resource: TransactionCoordinator) -> Manifest:
    return names.coordinator_selector(resource.name, resource.spec.cluster_ref.name)


def _account(resource: TransactionCoordinator) -> Manifest:
    account = _object("v1", "ServiceAccount", resource, names.coordinator_set(resource.name))
    return without_rights(account, resource.spec.pod_template)


def _service(resource: TransactionCoordinator, cluster: BrokerCluster) -> Manifest:
    """DNS names of single coordinators; also of those that are not ready. Clients get
    addresses from brokers and do not use it."""
    service = _object("v1", "Service", resource, names.coordinators_service(resource.name))
    ports = [
        {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}
        for name, number in ports_of(cluster)
    ]
    return service | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _selector(resource),
            "ports": ports,
        }
    }


def _policy(resource: TransactionCoordinator, cluster: BrokerCluster) -> list[Manifest]:
    """Who reaches the brokers reaches the coordinators."""
    if not cluster.spec.network_policy.enabled:
        return []
    policy = _object(
        "networking.k8s.io/v1", "NetworkPolicy", resource, names.coordinator_set(resource.name)
    )
    return [
        policy | {"spec": served(cluster, coordinators_of(resource, cluster), _selector(resource))}
    ]


def _config(resource: TransactionCoordinator) -> Manifest:
    config = _object("v1", "ConfigMap", resource, names.coordinator_set(resource.name))
    return config | {"data": coordinator_settings(resource)}


def _budget(resource: TransactionCoordinator) -> Manifest:
    """A node drain takes one coordinator at a time, and may always take one that is not ready:
    it serves no client."""
    budget = _object(
        "policy/v1", "PodDisruptionBudget", resource, names.coordinator_set(resource.name)
    )
    return budget | {
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": _selector(resource)},
        }
    }


def _stateful_set(
    resource: TransactionCoordinator,
    cluster: BrokerCluster,
    defaults: Defaults,
    replicas: int,
    credentials: str,
) -> Manifest:
    name = names.coordinator_set(resource.name)
    parts = PodParts(
        component=names.COORDINATOR,
        account=name,
        service=names.coordinators_service(resource.name),
        settings=coordinator_settings(resource),
        labels=names.coordinator_labels(resource.name, cluster.name),
        selector=_selector(resource),
        resources=resource.spec.resources,
        additions=resource.spec.pod_template,
        drain_timeout_s=resource.spec.drain_timeout_seconds,
        fleet=coordinators_of(resource, cluster),
        credentials=credentials,
    )
    return _object("apps/v1", "StatefulSet", resource, name) | {
        "spec": set_spec(cluster, defaults, parts, replicas)
    }
