"""Disruption budgets of brokers and etcd.

Owns: them. Imports: builders.object, names. Pure.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object


def disruption_budget(cluster: BrokerCluster) -> Manifest:
    """A node drain takes one broker at a time, and may always take one that is not ready: it
    serves no client."""
    budget = cluster_object(
        "policy/v1", "PodDisruptionBudget", cluster, names.broker_set(cluster.name), names.BROKER
    )
    return budget | {
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(cluster.name, names.BROKER)},
        }
    }


def etcd_budget(cluster: BrokerCluster, *, spare: bool) -> Manifest:
    """One of three may go (`spare`); while members come and go none may, because two voters can
    spare none."""
    budget = cluster_object(
        "policy/v1", "PodDisruptionBudget", cluster, names.etcd_set(cluster.name), names.ETCD
    )
    return budget | {
        "spec": {
            "maxUnavailable": 1 if spare else 0,
            # One that is not ready may still hold what the others need.
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
            "selector": {"matchLabels": names.selector(cluster.name, names.ETCD)},
        }
    }
