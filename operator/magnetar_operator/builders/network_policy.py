"""Who may talk to the managed etcd.

Owns: its network policy. Imports: builders.object, names. Pure.
Invariant: only pods of the same cluster (not the executors of jobs) and the operator reach the client port, only members the peer port.
"""

from __future__ import annotations

from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, cluster_object
from magnetar_operator.models.broker_cluster import BrokerCluster

OPERATOR_LABELS = {"app.kubernetes.io/name": "magnetar", names.COMPONENT: "operator"}
"""The chart gives these to the operator's pods; a test compares."""


def etcd_policy(cluster: BrokerCluster) -> Manifest:
    policy = cluster_object("networking.k8s.io/v1", "NetworkPolicy", cluster, names.etcd_set(cluster.name), names.ETCD)
    others = {"key": names.COMPONENT, "operator": "NotIn", "values": [names.EXECUTOR]}
    members = {"podSelector": {"matchLabels": {names.CLUSTER: cluster.name}, "matchExpressions": [others]}}
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": OPERATOR_LABELS}}
    peers = {"podSelector": {"matchLabels": names.selector(cluster.name, names.ETCD)}}
    return policy | {
        "spec": {
            "podSelector": {"matchLabels": names.selector(cluster.name, names.ETCD)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [members, operator], "ports": [_port(names.ETCD_CLIENT_PORT)]},
                {"from": [peers], "ports": [_port(names.ETCD_PEER_PORT)]},
                # Probes and metrics: read-only, and the kubelet's address is not a pod's.
                {"ports": [_port(names.ETCD_HEALTH_PORT)]},
            ],
        }
    }


def _port(number: int) -> Manifest:
    return {"protocol": "TCP", "port": number}
