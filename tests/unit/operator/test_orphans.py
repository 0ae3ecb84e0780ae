"""The sweep for what resources that are gone still own: one cluster that cannot be read hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.etcd import TlsMaterial
from magnetar.metadata.memory import MemoryStore
from magnetar.metadata.records import CoordinatorSetRecord, NamespaceRecord
from magnetar.names import NamespaceName, initial_boundaries
from magnetar_operator import topic_namespace, withdrawing
from magnetar_operator.etcd_credentials import EtcdCredentials
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.models.base import API_VERSION
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.object_cache import ObjectCache, shown
from magnetar_operator.refusals import ApiRefused, KubernetesError, NotLeading
from magnetar_operator.stores import Cluster, ClusterStore, Stores
from magnetar_operator.work_queue import Key
from magnetar_operator.world import World
from tests.unit.operator.samples import DEFAULTS

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

    def of(self, cluster: Cluster, endpoints: Sequence[str], tls: TlsMaterial | None = None) -> ClusterStore:
        assert tls is None, f"{cluster} at {endpoints} has no TLS"
        return self.store


async def world_of(secrets: Secrets, refused: str = "") -> World:
    """A cluster in either namespace, and records of resources in `OPEN` that are gone."""
    memory, clock, cache = MemoryStore(SystemClock()), SystemClock(), ObjectCache(lambda _object, _gone: None)
    for namespace in (CLOSED, OPEN):
        metadata = {"name": "main", "namespace": namespace, "uid": namespace, "resourceVersion": "1"}
        spec = {"etcd": {"external": {"endpoints": [f"{namespace}:2379"]}}}
        cache.put(shown({"apiVersion": API_VERSION, "kind": "BrokerCluster", "metadata": metadata, "spec": spec}))
    record = NamespaceRecord(initial_boundaries(2), {}, f"{OPEN}/orders")
    await memory.put(keys.namespace(NamespaceName("acme", "orders")), record.encode())
    await memory.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 1, f"{OPEN}/tx").encode())
    store = ClusterStore(memory, clock, OperatorMetrics(), "operator", lambda: True)
    unused: Any = None
    return World(
        unused, InMemory(store), unused, clock, DEFAULTS, (CLOSED, OPEN), cache, secrets, unused, lambda name: name == refused
    )


async def swept(world: World) -> list[Key]:
    return [*await topic_namespace.orphans(world), *await withdrawing.orphans(world)]


ORPHANS = [Key("TopicNamespace", OPEN, "orders"), Key("TransactionCoordinator", OPEN, "tx")]


def test_a_cluster_whose_credentials_are_refused_leaves_the_orphans_of_others_to_be_found() -> None:
    """It comes first, and nobody who has lost a right in one namespace may lose the sweep of all."""

    async def script() -> None:
        secrets = Secrets(FORBIDDEN)
        assert await swept(await world_of(secrets)) == ORPHANS
        assert secrets.tried == 2

    asyncio.run(script())


def test_a_cluster_in_a_namespace_that_may_not_be_read_is_not_tried() -> None:
    """Whoever knows but a part of what is there concludes nothing, and asks for nothing."""

    async def script() -> None:
        secrets = Secrets(FORBIDDEN)
        assert await swept(await world_of(secrets, refused=CLOSED)) == ORPHANS
        assert secrets.tried == 0

    asyncio.run(script())


def test_who_does_not_lead_any_more_sweeps_no_further() -> None:
    async def script() -> None:
        for sweep in (topic_namespace.orphans, withdrawing.orphans):
            with pytest.raises(NotLeading):
                await sweep(await world_of(Secrets(NotLeading("another one leads"))))

    asyncio.run(script())
