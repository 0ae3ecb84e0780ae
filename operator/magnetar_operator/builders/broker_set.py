"""The brokers' StatefulSet.

Owns: it and what brokers' pods have of their own. Imports: builders siblings, names. Pure.
Invariants: the pods' grace period is longer than their drain; the operator restarts them
(OnDelete), so an upgrade of the operator that renders the same template restarts nothing.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.config_map import settings_of
from magnetar_operator.builders.listeners import (
    brokers_of,
    listener_arguments,
    listener_environment,
    listener_mounts,
    listener_ports,
    listener_volumes,
)
from magnetar_operator.builders.magnetar_pod import PodParts, pod_template
from magnetar_operator.builders.object import Defaults, Manifest, cluster_object


def broker_set(
    cluster: BrokerCluster, defaults: Defaults, replicas: int, credentials: str = ""
) -> Manifest:
    """`replicas` comes from the scaling plan, which may keep more pods than the spec wants while
    they drain; `credentials` is the digest of the storage's ("" = it has none)."""
    name = names.broker_set(cluster.name)
    stateful_set = cluster_object("apps/v1", "StatefulSet", cluster, name, names.BROKER)
    return stateful_set | {
        "spec": {
            "replicas": replicas,
            "serviceName": names.brokers_service(cluster.name),
            # Brokers need no order among themselves, and one that is stuck must not hold up the
            # others.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": names.selector(cluster.name, names.BROKER)},
            "template": pod_template(cluster, defaults, _parts(cluster, credentials)),
        }
    }


def _parts(cluster: BrokerCluster, credentials: str) -> PodParts:
    fleet = brokers_of(cluster)
    return PodParts(
        component=names.BROKER,
        account=names.broker_set(cluster.name),
        service=names.brokers_service(cluster.name),
        settings=settings_of(cluster),
        labels=names.labels(cluster.name, names.BROKER),
        selector=names.selector(cluster.name, names.BROKER),
        resources=cluster.spec.resources,
        additions=cluster.spec.pod_template,
        drain_timeout_s=cluster.spec.drain_timeout_seconds,
        arguments=listener_arguments(fleet),
        environment=listener_environment(fleet),
        ports=listener_ports(fleet),
        volumes=listener_volumes(fleet),
        mounts=listener_mounts(fleet),
        annotations={names.CREDENTIALS_HASH: credentials} if credentials else {},
    )
