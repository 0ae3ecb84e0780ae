"""Everything that should exist for a cluster.

Owns: which child objects there are and in which order they are applied. Imports: the builders.
Pure. Invariant: the order is that of dependence, so that the first pod finds its account, settings,
services and claim.
"""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator import names
from magnetar_operator.builders.broker_set import broker_set
from magnetar_operator.builders.config_map import broker_config
from magnetar_operator.builders.disruption_budget import disruption_budget, etcd_budget
from magnetar_operator.builders.etcd_config import etcd_config
from magnetar_operator.builders.etcd_set import EtcdShape, etcd_set, peer_urls
from magnetar_operator.builders.listeners import brokers_of, listener_addresses, listener_services
from magnetar_operator.builders.network_policy import broker_policy, etcd_policy
from magnetar_operator.builders.object import Defaults, Manifest
from magnetar_operator.builders.security import security_config
from magnetar_operator.builders.service import brokers_service, client_service, etcd_service
from magnetar_operator.builders.service_account import broker_account
from magnetar_operator.builders.storage_claim import storage_claim

Identity = tuple[str, str]
"""Kind and name of an object in the cluster's namespace."""


def identity_of(manifest: Manifest) -> Identity:
    return manifest["kind"], manifest["metadata"]["name"]


def desired(
    cluster: BrokerCluster,
    defaults: Defaults,
    replicas: int,
    observed: Mapping[Identity, Manifest],
    credentials: str = "",
    shape: EtcdShape | None = None,
    *,
    authority: bool = False,
) -> list[Manifest]:
    """Every child of `cluster`. `observed` gives what exists, for the parts that cannot be
    changed once they do and for addresses; `credentials` is the digest of the storage's ("" = it
    has none); `shape` is that of managed etcd (None = what the spec wants in the end);
    `authority`: the secret of the clients' TLS has one."""
    managed = cluster.spec.etcd.managed
    etcd: list[Manifest] = []
    if managed is not None:
        shape = shape or EtcdShape(managed.replicas)
        etcd = [
            etcd_service(cluster),
            etcd_policy(cluster),
            etcd_config(cluster, peer_urls(cluster), managed.replicas, shape.admission),
            *([etcd_budget(cluster, spare=shape.spare)] if shape.replicas > 1 else []),
            etcd_set(cluster, managed, defaults, shape),
        ]
    claim = storage_claim(
        cluster, observed.get(("PersistentVolumeClaim", names.storage_claim(cluster.name)))
    )
    return [
        broker_account(cluster),
        *([claim] if claim is not None else []),
        *etcd,
        client_service(cluster),
        brokers_service(cluster),
        *broker_policy(cluster),
        *listener_services(brokers_of(cluster), replicas),
        *listener_addresses(brokers_of(cluster), replicas, observed),
        broker_config(cluster),
        *security_config(cluster, authority=authority),
        disruption_budget(cluster),
        broker_set(cluster, defaults, replicas, credentials),
    ]
