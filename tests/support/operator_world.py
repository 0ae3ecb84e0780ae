"""A world for reconcilers without Kubernetes: two clusters in the cache, one store in memory.

Owns: `world_of`, the credentials that it is refused, and what its store holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import TlsMaterial
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import CoordinatorSetRecord, NamespaceRecord
from magnetar.names import NamespaceName, initial_boundaries
from magnetar.resources.base import API_VERSION
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator.engine.world import World
from magnetar_operator.etcd.credentials import EtcdCredentials
from magnetar_operator.kube.cache import ObjectCache, shown
from magnetar_operator.kube.errors import ApiRefused, KubernetesError
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.stores.connections import Cluster, ClusterStore, Stores
from tests.support.samples import DEFAULTS

CLOSED, OPEN = "closed", "open"
FORBIDDEN = ApiRefused("secrets is forbidden", 403)


class Secrets(EtcdCredentials):
    """The secrets of namespace `CLOSED` cannot be read; counts who tried."""

    def __init__(self, error: KubernetesError) -> None:
        super().__init__(Any)  # type: ignore[arg-type]
        self.error, self.tried = error, 0

    async def of(self, cluster: BrokerCluster) -> None:
        if cluster.namespace == CLOSED:
            self.tried += 1
            raise self.error


class InMemory(Stores):
    """Every cluster's store is the same one, in memory."""

    def __init__(self, store: ClusterStore) -> None:
        super().__init__(SystemClock(), OperatorMetrics(), "operator", lambda: True)
        self.store = store

    def of(
        self, cluster: Cluster, endpoints: Sequence[str], tls: TlsMaterial | None = None
    ) -> ClusterStore:
        assert tls is None, f"{cluster} at {endpoints} has no TLS"
        return self.store

    def opened(self) -> list[ClusterStore]:
        return [self.store]


async def world_of(secrets: Secrets, refused: str = "") -> World:
    """A cluster in either namespace, and records of resources in `OPEN` that are gone."""
    memory, clock, cache = (
        MemoryStore(SystemClock()),
        SystemClock(),
        ObjectCache(lambda _object, _gone: None),
    )
    for namespace in (CLOSED, OPEN):
        metadata = {
            "name": "main",
            "namespace": namespace,
            "uid": namespace,
            "resourceVersion": "1",
        }
        spec = {"etcd": {"external": {"endpoints": [f"{namespace}:2379"]}}}
        cache.put(
            shown(
                {
                    "apiVersion": API_VERSION,
                    "kind": "BrokerCluster",
                    "metadata": metadata,
                    "spec": spec,
                }
            )
        )
    record = NamespaceRecord(initial_boundaries(2), {}, f"{OPEN}/orders")
    await memory.put(keys.namespace(NamespaceName("acme", "orders")), record.encode())
    await memory.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, f"{OPEN}/tx").encode())
    store = ClusterStore(memory, clock, OperatorMetrics(), "operator", lambda: True)
    unused: Any = None
    return World(
        unused,
        InMemory(store),
        unused,
        clock,
        DEFAULTS,
        (CLOSED, OPEN),
        cache,
        secrets,
        unused,
        lambda name: name == refused,
    )
