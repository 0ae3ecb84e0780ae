"""The brokers' disruption budget.

Owns: it. Imports: builders.object, names. Pure.
"""

from __future__ import annotations

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object
from magnetar_operator.models.broker_cluster import BrokerCluster


def disruption_budget(cluster: BrokerCluster) -> Manifest:
    """A node drain takes one broker at a time, and may always take one that is not ready: it serves nobody."""
    budget = cluster_object("policy/v1", "PodDisruptionBudget", cluster, names.broker_set(cluster.name), names.BROKER)
    return budget | {
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(cluster.name, names.BROKER)},
        }
    }
