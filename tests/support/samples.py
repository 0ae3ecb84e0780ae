"""Sample resources of the operator's unit tests."""

from __future__ import annotations

from typing import Any

from magnetar.resources.base import API_VERSION
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.data_job import DataJob
from magnetar.resources.transaction_coordinator import TransactionCoordinator
from magnetar_operator.builders.object import Defaults

DEFAULTS = Defaults(
    "registry.example/magnetar:1",
    "IfNotPresent",
    "registry.example/etcd:1",
    "registry.example/magnetar-spark:1",
)


def cluster(name: str = "main", **spec: Any) -> BrokerCluster:
    metadata = {"name": name, "namespace": "shop", "uid": "u-1", "generation": 3}
    return BrokerCluster.model_validate(
        {"apiVersion": API_VERSION, "kind": "BrokerCluster", "metadata": metadata, "spec": spec}
    )


def job(**spec: Any) -> DataJob:
    metadata = {"name": "prices", "namespace": "shop", "uid": "0123456789abcdef", "generation": 1}
    content = {
        "clusterRef": {"name": "main"},
        "compaction": {"topic": "persistent://public/default/prices"},
        **spec,
    }
    return DataJob.model_validate(
        {"apiVersion": API_VERSION, "kind": "DataJob", "metadata": metadata, "spec": content}
    )


def coordinators(name: str = "tx", **spec: Any) -> TransactionCoordinator:
    metadata = {"name": name, "namespace": "shop", "uid": "tc-1", "generation": 2}
    content = {"clusterRef": {"name": "main"}, **spec}
    document = {
        "apiVersion": API_VERSION,
        "kind": "TransactionCoordinator",
        "metadata": metadata,
        "spec": content,
    }
    return TransactionCoordinator.model_validate(document)
