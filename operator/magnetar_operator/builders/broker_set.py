"""The brokers' StatefulSet.

Owns: it and what brokers' pods have of their own. Imports: builders siblings, names. Pure.
Invariants: the pods' grace period is longer than their drain; the operator restarts them
(OnDelete), so an upgrade of the operator that renders the same template restarts nothing.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.config_map import settings_of
from magnetar_operator.builders.listeners import brokers_of
from magnetar_operator.builders.magnetar_pod import PodParts, set_spec
from magnetar_operator.builders.object import Defaults, Manifest, cluster_object


def broker_set(
    cluster: BrokerCluster, defaults: Defaults, replicas: int, credentials: str = ""
) -> Manifest:
    """`replicas` comes from the scaling plan, which may keep more pods than the spec wants while
    they drain; `credentials` is the digest of the storage's ("" = it has none)."""
    name = names.broker_set(cluster.name)
    parts = PodParts(
        component=names.BROKER,
        account=name,
        service=names.brokers_service(cluster.name),
        settings=settings_of(cluster),
        labels=names.labels(cluster.name, names.BROKER),
        selector=names.selector(cluster.name, names.BROKER),
        resources=cluster.spec.resources,
        additions=cluster.spec.pod_template,
        drain_timeout_s=cluster.spec.drain_timeout_seconds,
        fleet=brokers_of(cluster),
        credentials=credentials,
    )
    stateful_set = cluster_object("apps/v1", "StatefulSet", cluster, name, names.BROKER)
    return stateful_set | {"spec": set_spec(cluster, defaults, parts, replicas)}
