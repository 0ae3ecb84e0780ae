"""Who may reach the ports of a cluster's pods.

Owns: the network policies of the managed etcd and of brokers, and the rules of coordinators'.
Imports: builders.client_tls, names, resources. Pure. Invariants: only pods of the same cluster (not
the executors of jobs) and the operator reach etcd's client port, only members the peer port; the
cluster's own pods and the operator reach every port of brokers and coordinators; others reach the
ports that are for them, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.network import NetworkPeer
from magnetar.resources.pod_template import LabelSelector
from magnetar_operator import names
from magnetar_operator.builders.client_tls import ports_of
from magnetar_operator.builders.listeners import Fleet, brokers_of, listener_ports
from magnetar_operator.builders.object import Manifest, cluster_object

REST_PORTS = (names.HTTP_PORT, names.HTTPS_PORT)
OPERATOR_LABELS = {"app.kubernetes.io/name": "magnetar", names.COMPONENT: "operator"}
"""The chart gives these to the operator's pods; a test compares."""


def etcd_policy(cluster: BrokerCluster) -> Manifest:
    policy = cluster_object(
        "networking.k8s.io/v1", "NetworkPolicy", cluster, names.etcd_set(cluster.name), names.ETCD
    )
    peers = {"podSelector": {"matchLabels": names.selector(cluster.name, names.ETCD)}}
    return policy | {
        "spec": {
            "podSelector": {"matchLabels": names.selector(cluster.name, names.ETCD)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": _own(cluster), "ports": [_port(names.ETCD_CLIENT_PORT)]},
                {"from": [peers], "ports": [_port(names.ETCD_PEER_PORT)]},
                # Probes and metrics: read-only, and the kubelet's address is not a pod's.
                {"ports": [_port(names.ETCD_HEALTH_PORT)]},
            ],
        }
    }


def broker_policy(cluster: BrokerCluster) -> list[Manifest]:
    """None if the spec wants none."""
    if not cluster.spec.network_policy.enabled:
        return []
    policy = cluster_object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        cluster,
        names.broker_set(cluster.name),
        names.BROKER,
    )
    return [
        policy
        | {"spec": served(cluster, brokers_of(cluster), names.selector(cluster.name, names.BROKER))}
    ]


def served(cluster: BrokerCluster, fleet: Fleet, selector: dict[str, str]) -> Manifest:
    """The content of a policy of brokers or coordinators."""
    wanted, tls = cluster.spec.network_policy, cluster.spec.tls
    own = [number for _, number in (*ports_of(cluster), *listener_ports(fleet))]
    # What answers the cluster's own processes only is for no other client; probes and metrics are on
    # the port of REST.
    internal = {names.BROKER_PORT} if tls is not None and tls.plain == "Internal" else set()
    clients = [number for number in own if number not in {*REST_PORTS, *internal}]
    rest = [number for number in own if number in REST_PORTS]
    return {
        "podSelector": {"matchLabels": selector},
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": _own(cluster), "ports": [_port(number) for number in own]},
            {**_admitted(wanted.clients_from), "ports": [_port(number) for number in clients]},
            {
                **_admitted(wanted.rest_from or wanted.clients_from),
                "ports": [_port(number) for number in rest],
            },
        ],
    }


def _own(cluster: BrokerCluster) -> list[Manifest]:
    """The cluster's processes, and the operator."""
    others = {"key": names.COMPONENT, "operator": "NotIn", "values": [names.EXECUTOR]}
    return [
        {
            "podSelector": {
                "matchLabels": {names.CLUSTER: cluster.name},
                "matchExpressions": [others],
            }
        },
        {"namespaceSelector": {}, "podSelector": {"matchLabels": OPERATOR_LABELS}},
    ]


def _admitted(peers: Iterable[NetworkPeer]) -> Manifest:
    """Without `from` every client is admitted."""
    found = [_peer(peer) for peer in peers]
    return {"from": found} if found else {}


def _peer(peer: NetworkPeer) -> Manifest:
    if peer.ip_block is not None:
        return {"ipBlock": {"cidr": peer.ip_block.cidr}}
    selectors = {"podSelector": peer.pod_selector, "namespaceSelector": peer.namespace_selector}
    return {
        name: _selector(selector) for name, selector in selectors.items() if selector is not None
    }


def _selector(selector: LabelSelector) -> Manifest:
    """Without what is empty; an empty one chooses all."""
    found = selector.model_dump(by_alias=True, mode="json")
    expressions = [
        {key: part for key, part in item.items() if part} for item in found["matchExpressions"]
    ]
    kept = {"matchLabels": found["matchLabels"], "matchExpressions": expressions}
    return {key: value for key, value in kept.items() if value}


def _port(number: int) -> Manifest:
    return {"protocol": "TCP", "port": number}
