"""Services.

Owns: the clients' service, the brokers' and etcd's headless ones. Imports: builders.object, names.
Pure.
"""

from __future__ import annotations

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.client_tls import ports_of
from magnetar_operator.builders.object import Manifest, cluster_object


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "targetPort": name, "protocol": "TCP"}


def _broker_ports(cluster: BrokerCluster) -> list[Manifest]:
    return [_port(name, number) for name, number in ports_of(cluster)]


def client_service(cluster: BrokerCluster) -> Manifest:
    """Where clients connect first; lookups then name single brokers."""
    service = cluster_object("v1", "Service", cluster, cluster.name, names.BROKER)
    return service | {
        "spec": {
            "type": "ClusterIP",
            "selector": names.selector(cluster.name, names.BROKER),
            "ports": _broker_ports(cluster),
        }
    }


def brokers_service(cluster: BrokerCluster) -> Manifest:
    """DNS names of single brokers; also of those that are not ready, whose metrics and logs are
    of interest then."""
    service = cluster_object(
        "v1", "Service", cluster, names.brokers_service(cluster.name), names.BROKER
    )
    return service | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(cluster.name, names.BROKER),
            "ports": _broker_ports(cluster),
        }
    }


def etcd_service(cluster: BrokerCluster) -> Manifest:
    """Members find each other before they are ready, so their addresses are published at once."""
    service = cluster_object("v1", "Service", cluster, names.etcd_set(cluster.name), names.ETCD)
    return service | {
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(cluster.name, names.ETCD),
            "ports": [_port("client", names.ETCD_CLIENT_PORT), _port("peer", names.ETCD_PEER_PORT)],
        }
    }
