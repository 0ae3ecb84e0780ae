"""The brokers' settings.

Owns: the ConfigMap that becomes their environment. Imports: builders.object, names. Pure.
Invariants: every key is MAGNETAR_<NAME> of a broker setting; its hash is in the pods' template, so
that a change is rolled out; those that brokers follow in the metadata store are not among them.
"""

from __future__ import annotations

from magnetar.balance.settings import FIELDS
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.broker_config import LIVE
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object

PREFIX = "MAGNETAR_"


def settings_of(cluster: BrokerCluster) -> dict[str, str]:
    """Environment variables of a broker."""
    chosen = {
        f"{PREFIX}{name.upper()}": f"{value:.15g}"
        for name, value in cluster.spec.config.chosen().items()
        if name not in FIELDS and name not in LIVE
    }
    return chosen | {f"{PREFIX}DRAIN_TIMEOUT_S": str(cluster.spec.drain_timeout_seconds)}


def broker_config(cluster: BrokerCluster) -> Manifest:
    config = cluster_object(
        "v1", "ConfigMap", cluster, names.broker_set(cluster.name), names.BROKER
    )
    return config | {"data": settings_of(cluster)}
