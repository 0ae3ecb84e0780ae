"""The sweep for what resources that are gone still own: one cluster that cannot be read hides no
other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord
from magnetar.names import SYSTEM_NAMESPACE, NamespaceName, initial_boundaries
from magnetar.resources.base import API_VERSION
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar_operator.coordinators import withdrawing
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import InvalidResource, World
from magnetar_operator.kube.api import KubernetesApi
from magnetar_operator.kube.cache import shown
from magnetar_operator.kube.errors import NotLeading
from magnetar_operator.kube.kinds import Resource
from magnetar_operator.namespaces import reconciler as topic_namespace
from magnetar_operator.namespaces import release as namespace_release
from tests.support.operator_world import CLOSED, FORBIDDEN, OPEN, Secrets, world_of

TTL = "message_ttl_in_seconds"


async def swept(world: World) -> list[Key]:
    return [*await namespace_release.orphans(world), *await withdrawing.orphans(world)]


ORPHANS = [Key("TopicNamespace", OPEN, "orders"), Key("TransactionCoordinator", OPEN, "tx")]


async def test_a_cluster_whose_credentials_are_refused_leaves_the_orphans_of_others_to_be_found() -> (
    None
):
    """It comes first, and nobody who has lost a right in one namespace may lose the sweep of
    all."""

    secrets = Secrets(FORBIDDEN)
    assert await swept(await world_of(secrets)) == ORPHANS
    assert secrets.tried == 2


async def test_a_cluster_in_a_namespace_that_may_not_be_read_is_not_tried() -> None:
    """An operator that knows only a part of what is there concludes and requests nothing."""

    secrets = Secrets(FORBIDDEN)
    assert await swept(await world_of(secrets, refused=CLOSED)) == ORPHANS
    assert secrets.tried == 0


async def test_who_does_not_lead_any_more_sweeps_no_further() -> None:
    for sweep in (namespace_release.orphans, withdrawing.orphans):
        with pytest.raises(NotLeading):
            await sweep(await world_of(Secrets(NotLeading("another one leads"))))


async def test_a_resource_that_was_stored_before_the_rule_does_not_own_the_brokers_namespace() -> (
    None
):
    """It exists and does not fit the model: its owner record goes, with what it had set there;
    fields of others stay."""

    class Readable(KubernetesApi):
        """Has nothing more to say of the resource."""

        def __init__(self) -> None: ...

        async def get(self, resource: Resource, namespace: str, name: str) -> None: ...

    world = replace(await world_of(Secrets(FORBIDDEN)), api=Readable())
    store = await world.store_of(
        BrokerCluster.model_validate(world.cache.get("BrokerCluster", OPEN, "main").manifest)
    )  # type: ignore[union-attr]
    spec = {
        "clusterRef": {"name": "main"},
        "tenant": "pulsar",
        "namespace": "system",
        "policies": {TTL: 1},
    }
    metadata = {"name": "system", "namespace": OPEN, "uid": "s", "resourceVersion": "2"}
    world.cache.put(
        shown(
            {
                "apiVersion": API_VERSION,
                "kind": "TopicNamespace",
                "metadata": metadata,
                "spec": spec,
            }
        )
    )
    key, system = Key("TopicNamespace", OPEN, "system"), keys.namespace(SYSTEM_NAMESPACE)
    policies = {TTL: 1, "max_topics_per_namespace": 7}
    record = NamespaceRecord(
        initial_boundaries(2), policies, f"{OPEN}/system", (f"policies.{TTL}",)
    )
    await store.reader.put(system, record.encode())
    assert await namespace_release.orphans(world) == [*ORPHANS[:1], key]
    with pytest.raises(InvalidResource, match="belongs to the brokers"):
        await topic_namespace.reconcile(world, key)
    item = await store.reader.get(system)
    assert item is not None
    assert NamespaceRecord.decode(item.value) == NamespaceRecord(
        record.boundaries, {"max_topics_per_namespace": 7}
    )
    assert await namespace_release.orphans(world) == ORPHANS[:1]


def cluster_of(world: World) -> BrokerCluster:
    found = world.cache.get("BrokerCluster", OPEN, "main")
    assert found is not None
    return BrokerCluster.model_validate(found.manifest)


async def test_what_went_while_another_process_led_is_found_by_the_next_look_at_its_cluster() -> (
    None
):
    """Once per term, not once per life: this one did not see what the other should have released."""
    found: list[Key] = []
    world = replace(await world_of(Secrets(FORBIDDEN)), look_at=found.append)
    for _ in range(2):
        await namespace_release.see_store(world, cluster_of(world))
        assert found == ORPHANS[:1]
    world.stores.leadership_changed()
    await namespace_release.see_store(world, cluster_of(world))
    assert found == 2 * ORPHANS[:1]


async def test_what_goes_after_the_sweep_and_before_its_own_look_is_released() -> None:
    """As where a cluster has come back: nobody but the sweep knows what the resource owns there."""
    world = await world_of(Secrets(FORBIDDEN))
    spec = {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "orders"}
    metadata = {"name": "orders", "namespace": OPEN, "uid": "o", "resourceVersion": "2"}
    resource = shown(
        {"apiVersion": API_VERSION, "kind": "TopicNamespace", "metadata": metadata, "spec": spec}
    )
    world.cache.put(resource)
    await namespace_release.see_store(world, cluster_of(world))
    world.cache.remove(resource)
    assert await topic_namespace.reconcile(world, ORPHANS[0]) is None
    item = await world.stores.opened()[0].reader.get(
        keys.namespace(NamespaceName("acme", "orders"))
    )
    assert item is not None
    assert NamespaceRecord.decode(item.value).owner == ""
