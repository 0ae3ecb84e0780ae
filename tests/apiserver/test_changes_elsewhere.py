"""What a resource decided by changes, and nothing of the resource itself: it is looked at all the
same, long before the next resync."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dev.testbed.control_plane import EtcdProcess
from magnetar.metadata import keys
from magnetar.metadata.records import CoordinatorSetRecord
from magnetar.metadata.store import MetadataStore
from magnetar_operator.coordinators import reconciler as coordinators
from magnetar_operator.coordinators.state import CoordinatorsState, read_coordinators
from tests.apiserver.namespace_stage import NAME, Stage, stage_of
from tests.apiserver.stage import Scene, brokers_of, external, running_operator, until

pytestmark = pytest.mark.slow

RESYNC_S = 3600.0


async def test_a_resource_that_agrees_with_the_tenants_owner_learns_that_it_wants_something_else(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    """And takes over when it wants nothing any more: nobody loses its roles until a resync."""
    async with (
        stage_of(scene, cluster_etcd) as stage,
        running_operator(scene.namespace, resync_s=RESYNC_S),
    ):
        older = stage.make("older", tenantConfig={"adminRoles": ["root"]})
        assert (await stage.ready(older))["status"]["ownsTenant"] is True
        await asyncio.sleep(1.1)  # creation times have whole seconds
        same = stage.make("same", namespace="same", tenantConfig={"adminRoles": ["root"]})
        assert (await stage.ready(same))["status"]["ownsTenant"] is False
        scene.merge(older, {"spec": {"tenantConfig": {"adminRoles": ["joe"]}}})
        assert "older is older and decides" in await stage.reason(same, "TenantConflict")
        scene.merge(older, {"spec": {"tenantConfig": {"adminRoles": ["root"]}}})
        assert (await stage.ready(same))["status"]["ownsTenant"] is False
        scene.merge(older, {"spec": {"tenantConfig": None}})

        async def taken_over() -> bool:
            tenant = await stage.tenant()
            return (tenant.owner, tenant.admin_roles) == (f"{scene.namespace}/same", ("root",))

        await stage.becomes("the other one owns the tenant", taken_over)


async def test_namespaces_are_made_in_the_store_that_their_cluster_is_given(
    scene: Scene, cluster_etcd: EtcdProcess, tmp_path: Path
) -> None:
    """They have records where they were; nothing of them changes."""
    other = EtcdProcess(tmp_path / "other")
    try:
        other.start()
        async with (
            stage_of(scene, cluster_etcd) as stage,
            brokers_of(other.endpoint) as brokers,
            running_operator(scene.namespace, resync_s=RESYNC_S),
        ):
            await stage.ready(stage.make("orders"))
            moved = {"etcd": {"external": {"endpoints": [other.endpoint]}}}
            scene.merge(scene.path("brokerclusters", "main"), {"spec": moved})
            there = Stage(scene, brokers)

            async def made() -> bool:
                return await brokers.store.get(keys.namespace(NAME)) is not None

            await there.becomes("it is made", made)
            assert (await there.record()).owner == f"{scene.namespace}/orders"
    finally:
        other.stop()


async def test_a_namespace_says_that_its_cluster_does_not_admit_it_any_more(
    scene: Scene, cluster_etcd: EtcdProcess
) -> None:
    guest = Scene(scene.plane, f"{scene.namespace}-guest")
    scene.plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": guest.namespace}})
    cluster = scene.path("brokerclusters", "main")
    async with (
        stage_of(scene, cluster_etcd) as stage,
        running_operator(scene.namespace, beside=(guest.namespace,), resync_s=RESYNC_S),
    ):
        there = Stage(guest, stage.brokers)
        scene.merge(cluster, {"spec": {"allowedNamespaces": [guest.namespace]}})
        path = there.make("orders", clusterRef={"name": "main", "namespace": scene.namespace})
        await there.ready(path)
        scene.merge(cluster, {"spec": {"allowedNamespaces": []}})
        assert "does not admit" in await there.reason(path, "NamespaceNotAllowed")
        scene.merge(cluster, {"spec": {"allowedNamespaces": ["*"]}})
        await there.ready(path)


async def test_no_coordinator_comes_by_a_record_that_has_changed_since_it_was_read(
    scene: Scene, cluster_etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a former resource of the cluster is withdrawn at that moment: the record is written
    before the StatefulSet follows it."""
    looks, early = 0, False

    async with brokers_of(cluster_etcd.endpoint) as brokers:

        async def overtaken(store: MetadataStore) -> CoordinatorsState:
            """Another writer is faster, three times."""
            nonlocal looks, early
            found = await read_coordinators(store)
            if looks < 3:
                looks += 1
                early |= await asyncio.to_thread(scene.stateful_set, "tx-coordinator") is not None
                record = CoordinatorSetRecord(looks, 0, "another/owner").encode()
                await brokers.store.put(keys.COORDINATOR_SET, record)
            return found

        monkeypatch.setattr(coordinators, "read_coordinators", overtaken)
        async with running_operator(scene.namespace):
            scene.create("BrokerCluster", "main", external(cluster_etcd, replicas=0))
            scene.create("TransactionCoordinator", "tx", {"clusterRef": {"name": "main"}})
            await until("it comes", lambda: scene.stateful_set("tx-coordinator"))
        assert looks == 3
        assert not early
        item = await brokers.store.get(keys.COORDINATOR_SET)
        assert item is not None
        assert CoordinatorSetRecord.decode(item.value).owner == f"{scene.namespace}/tx"
