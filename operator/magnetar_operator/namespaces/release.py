"""What TopicNamespaces own in clusters' stores after they are gone.

Owns: releasing records whose owner is gone or speaks for something else, and finding them. Imports:
world, stores, namespaces.record, magnetar.metadata. Invariants: a resource that is gone, or was
made again for something else, owns nothing for long of what it spoke for: what it set stays, and is
anybody's; the brokers' own namespace has no owner, and keeps nothing that one has set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord, TenantRecord
from magnetar.metadata.store import Compare, KeyValue, Put
from magnetar.names import SYSTEM_NAMESPACE, NamespaceName
from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.topic_namespace import TopicNamespace
from magnetar_operator.builders.object import etcd_endpoints
from magnetar_operator.conditions import Reason
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import InvalidResource, World
from magnetar_operator.kube.cache import claim_slot
from magnetar_operator.kube.errors import KubernetesError, NotLeading
from magnetar_operator.kube.kinds import BROKER_CLUSTER, TOPIC_NAMESPACE
from magnetar_operator.namespaces.record import (
    cleared_record,
    owner_text,
    released_record,
    released_tenant,
)
from magnetar_operator.stores.connections import ClusterStore

log = structlog.get_logger(__name__)

ALL_NAMESPACES = "*"
DECODED_AT_ONCE = 200
SWEEP_ATTEMPTS = 3
READ_TIMEOUT_S = 5.0


async def release(world: World, key: Key) -> None:
    """Have a resource that is gone own nothing: what it set stays, and is anybody's. Raises
    StoreError, TimeoutError, NotLeading."""
    for store in world.stores.opened():
        await _release_in(store, key.namespace, key.name)
        store.claims.pop((key.namespace, key.name), None)


async def release_system(world: World, key: Key) -> None:
    """Have a resource that exists, and may not, no longer own the brokers' namespace. Raises
    StoreError, TimeoutError, NotLeading."""
    for store in world.stores.opened():
        claims = store.claims.get((key.namespace, key.name), set())
        if SYSTEM_NAMESPACE in claims:
            await _disown(
                store,
                keys.namespace(SYSTEM_NAMESPACE),
                NamespaceRecord,
                f"{key.namespace}/{key.name}",
                cleared_record,
            )
            claims.discard(SYSTEM_NAMESPACE)


async def release_former(
    world: World, resource: TopicNamespace, current: ClusterStore | None
) -> None:
    """Have the resource own nothing of what one of its name spoke for before it; `current` is its
    own store, if it has one. Raises NotLeading.

    A store that does not answer delays nothing: what is left there is found again.
    """
    stores = [(store, resource if store is current else None) for store in world.stores.opened()]
    for store, living in stores:
        try:
            await _release_in(store, resource.namespace, resource.name, living)
        except (StoreError, TimeoutError) as error:
            log.warning(
                "former.not_released",
                owner=owner_text(resource),
                error=str(error) or "no answer in time",
            )


async def _release_in(
    store: ClusterStore, namespace: str, resource: str, living: TopicNamespace | None = None
) -> None:
    """The same in one store, but for what the `living` resource speaks for there. Raises
    StoreError, TimeoutError, NotLeading."""
    owner, kept = f"{namespace}/{resource}", _spoken_for(living) if living is not None else set()
    claims = store.claims.get((namespace, resource), set())
    for name in claims - kept:
        if name.namespace:
            released = cleared_record if name == SYSTEM_NAMESPACE else released_record
            await _disown(store, keys.namespace(name), NamespaceRecord, owner, released)
        if _tenant_of(name) not in kept:
            await _disown(store, keys.tenant(name.tenant), TenantRecord, owner, released_tenant)
        claims.discard(name)


def _tenant_of(name: NamespaceName) -> NamespaceName:
    """How a tenant's record stands among the claims."""
    return NamespaceName(name.tenant, "")


def _spoken_for(resource: TopicNamespace) -> set[NamespaceName]:
    """What the resource owns, or sees to itself that it owns no longer."""
    tenant = (
        {_tenant_of(resource.spec.name)}
        if resource.spec.tenant_fields() or resource.status.owns_tenant
        else set()
    )
    return {resource.spec.name} | tenant


Owned = TypeVar("Owned", NamespaceRecord, TenantRecord)


async def _disown(
    store: ClusterStore, key: str, kind: type[Owned], owner: str, released: Callable[[Owned], Owned]
) -> None:
    """Raises StoreError, TimeoutError, NotLeading."""
    item = await store.read(key)
    if item is None:
        return
    current = kind.decode(item.value)
    if current.owner == owner:
        unchanged = Compare(key, "mod", "=", item.mod_revision)
        if not await store.write((unchanged,), (Put(key, released(current).encode()),)):
            raise StoreError(f"{key} was changed at the same moment; trying again")


async def orphans(world: World) -> list[Key]:
    """Resources that own a record of some cluster and do not exist, or speak for something else.

    They went, or were made again, while no operator looked. They are to be reconciled, which
    releases what they own. A store that does not answer, or whose credentials cannot be read, is
    left to the next time. Raises NotLeading.
    """
    found = []
    for at in world.keys(BROKER_CLUSTER.kind):
        if world.refused(at.namespace):
            continue
        try:
            cluster = await world.cluster(at.namespace, at.name)
            found += (
                await _orphans_of(world, cluster, await world.store_of(cluster))
                if cluster is not None
                else []
            )
        except NotLeading:
            raise
        except (InvalidResource, StoreError, KubernetesError) as error:
            log.warning("orphans.unknown", cluster=f"{at.namespace}/{at.name}", error=str(error))
    return found


async def see_store(world: World, cluster: BrokerCluster) -> None:
    """A cluster's store answers: once, have what waits for the cluster looked at, and what
    resources that went without it have left there.

    Raises KubernetesError, NotLeading.
    """
    store = await world.store_of(cluster)
    if cluster.metadata.uid not in store.swept:
        for key in await _orphans_of(world, cluster, store):
            world.look_at(key)
        look_at_all(world, cluster.namespace, cluster.name, gone=False)


def look_at_all(world: World, namespace: str, name: str, *, gone: bool) -> None:
    """A cluster has come or gone: have those of its TopicNamespaces see it that say otherwise."""
    for found in world.referring(namespace, name):
        if (found.standing[1] == Reason.CLUSTER_MISSING.value) != gone:
            world.look_at(Key(found.kind, *found.name))


def admits(cluster: BrokerCluster | None, namespace: str) -> bool:
    if cluster is None:
        return False
    allowed = cluster.spec.allowed_namespaces
    return namespace == cluster.namespace or namespace in allowed or ALL_NAMESPACES in allowed


def look_at_strangers(world: World, cluster: BrokerCluster) -> None:
    """If a cluster's spec has changed, have the TopicNamespaces that it does not admit say so."""
    if cluster.metadata.generation == cluster.status.observed_generation:
        return
    for found in world.referring(cluster.namespace, cluster.name):
        if not admits(cluster, found.name[0]):
            world.look_at(Key(found.kind, *found.name))


async def _orphans_of(world: World, cluster: BrokerCluster, store: ClusterStore) -> list[Key]:
    """As `orphans`, of one cluster; none if its store does not answer."""
    owners = await _owners(store)
    if owners is None:
        return []
    store.swept.add(cluster.metadata.uid)
    found = []
    for number, (owner, owned) in enumerate(owners.items()):
        if number % DECODED_AT_ONCE == 0:
            await asyncio.sleep(0)
        namespace, _, resource = owner.partition("/")
        if world.namespaces and namespace not in world.namespaces:
            continue
        # known from now on, should the resource go before anybody has looked at it
        store.claims.setdefault((namespace, resource), set()).update(owned)
        if await _former(world, cluster, namespace, resource, owned):
            found.append(Key(TOPIC_NAMESPACE.kind, namespace, resource))
    return found


async def _former(
    world: World, cluster: BrokerCluster, namespace: str, resource: str, owned: set[NamespaceName]
) -> set[NamespaceName]:
    """What of the records that name this resource as their owner it does not speak for (any
    more)."""
    shown = world.cache.get(TOPIC_NAMESPACE.kind, namespace, resource)
    if shown is None:
        return owned
    # stored before that was refused: it does not fit the model, and says so itself
    never = owned & {SYSTEM_NAMESPACE}
    owned = owned - never
    if all(
        claim_slot((cluster.namespace, cluster.name), name.tenant, name.namespace) in shown.slots
        for name in owned
    ):
        return never  # nearly always empty, and nothing is decoded for it
    try:
        living = await world.read(Key(TOPIC_NAMESPACE.kind, namespace, resource), TopicNamespace)
        target = await world.cluster(*living.cluster_key) if living is not None else None
    except InvalidResource:
        return never
    if living is None or target is None or etcd_endpoints(target) != etcd_endpoints(cluster):
        return owned | never
    return (owned - _spoken_for(living)) | never


async def _owners(store: ClusterStore) -> dict[str, set[NamespaceName]] | None:
    """Owners in a cluster's records, each with what it owns (a tenant as a namespace of no
    name); None if the store does not answer."""
    for _ in range(SWEEP_ATTEMPTS):
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                tenants = (await store.reader.range(keys.TENANTS)).items
                namespaces = (await store.reader.range(keys.NAMESPACES)).items
            return await _owners_among(tenants, namespaces)
        except (StoreError, TimeoutError) as error:
            log.warning("orphans.unknown", error=str(error) or "no answer in time")
    return None


async def _owners_among(
    tenants: Sequence[KeyValue], namespaces: Sequence[KeyValue]
) -> dict[str, set[NamespaceName]]:
    """Raises StoreError for a record that cannot be read."""
    owners: dict[str, set[NamespaceName]] = {}
    for item in tenants:
        if owner := TenantRecord.decode(item.value).owner:
            owners.setdefault(owner, set()).add(
                NamespaceName(item.key.removeprefix(keys.TENANTS), "")
            )
    for number, item in enumerate(namespaces):
        if number % DECODED_AT_ONCE == 0:
            # with ten thousand records no reconciliation waits for the last
            await asyncio.sleep(0)
        if owner := NamespaceRecord.decode(item.value).owner:
            owners.setdefault(owner, set()).add(
                NamespaceName.parse(item.key.removeprefix(keys.NAMESPACES))
            )
    return owners
