"""Reconciling a `TopicNamespace`.

Owns: the order of steps and the namespace's record in the cluster's store. Imports: world, magnetar.metadata, models, conditions.
Invariants: boundaries are written only when the record is created; of several resources for one tenant and namespace the oldest acts and the others
say so; policies that this resource does not set are never touched; a namespace that holds anything is never deleted; the finalizer ends after a
bounded time whatever happens.
"""

from __future__ import annotations

import asyncio
import json

from magnetar.errors import MagnetarError, StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord
from magnetar.metadata.store import Compare, Delete, KeyValue, Put
from magnetar.names import initial_boundaries
from magnetar_operator import names
from magnetar_operator.conditions import Finding, Reason, Type, wall_ms_of
from magnetar_operator.models.broker_cluster import BrokerCluster
from magnetar_operator.models.topic_namespace import FINALIZER, TopicNamespace
from magnetar_operator.resources import TOPIC_NAMESPACE
from magnetar_operator.stores import ClusterStore
from magnetar_operator.work_queue import Key
from magnetar_operator.world import World, is_paused

RETRY_S = 2.0
LOOK_AGAIN_S = 60.0
READ_TIMEOUT_S = 5.0
DELETION_TIMEOUT_S = 120.0
ALL_NAMESPACES = "*"


class Blocked(MagnetarError):
    """This resource cannot act now; `reason` says why, `retry_s` when to look again."""

    def __init__(self, reason: Reason, message: str, retry_s: float = RETRY_S) -> None:
        super().__init__(message)
        self.reason, self.retry_s = reason, retry_s


async def reconcile(world: World, key: Key) -> float | None:
    """One pass; the seconds after which to look again. Raises KubernetesError, InvalidResource."""
    resource = await world.read(key, TopicNamespace)
    if resource is None:
        return None
    if resource.metadata.deletion_timestamp:
        return await _finalize(world, resource)
    if is_paused(resource):
        await world.events.once(resource, "Normal", Reason.PAUSED.word, f"{Reason.PAUSED.meaning} {Reason.PAUSED.remedy}")
        await _write_status(world, resource, Finding(Type.READY, False, Reason.PAUSED), resource.status.bundles)
        return None
    await _match_finalizer(world, resource)
    try:
        _require_oldest(world, resource)
        store = await _store(world, await _admitting_cluster(world, resource))
        record = await _ensure_record(world, resource, store)
    except Blocked as blocked:
        await world.events.once(resource, "Warning", blocked.reason.word, str(blocked))
        await _write_status(world, resource, Finding(Type.READY, False, blocked.reason, str(blocked)), resource.status.bundles)
        return blocked.retry_s
    bundles = len(record.boundaries) - 1
    message = f"namespace {resource.spec.name} has {bundles} bundles"
    await _write_status(world, resource, Finding(Type.READY, True, Reason.AS_DESIRED, message), bundles)
    return LOOK_AGAIN_S


async def _write_status(world: World, resource: TopicNamespace, finding: Finding, bundles: int) -> None:
    conditions = world.conditions(resource, resource.status.conditions, [finding])
    update = {"observed_generation": resource.metadata.generation, "bundles": bundles, "conditions": conditions}
    await world.write_status(resource, resource.status.model_copy(update=update))


# --- who may act --------------------------------------------------------------------------------------------------------------


def seniority(resource: TopicNamespace) -> tuple[str, str, str]:
    """Order among resources for the same namespace: the oldest first, names where the second is the same."""
    return resource.metadata.creation_timestamp, resource.namespace, resource.name


def _require_oldest(world: World, resource: TopicNamespace) -> None:
    """Raises Blocked if an older resource speaks for the same tenant and namespace of the same cluster."""
    for other in world.claimants(resource.cluster_key, resource.spec.tenant, resource.spec.namespace):
        if other.metadata.uid != resource.metadata.uid and seniority(other) < seniority(resource):
            raise Blocked(
                Reason.CONFLICT, f"{other.reference} is older and owns {resource.spec.name}; delete one of the two", LOOK_AGAIN_S
            )


async def _admitting_cluster(world: World, resource: TopicNamespace) -> BrokerCluster:
    """The cluster, if it exists and admits the resource's Kubernetes namespace. Raises Blocked."""
    namespace, name = resource.cluster_key
    cluster = await world.cluster(namespace, name)
    if cluster is None:
        raise Blocked(Reason.CLUSTER_MISSING, f"BrokerCluster {namespace}/{name} does not exist; make it, or correct clusterRef")
    allowed = cluster.spec.allowed_namespaces
    if namespace != resource.namespace and resource.namespace not in allowed and ALL_NAMESPACES not in allowed:
        raise Blocked(
            Reason.NOT_ALLOWED,
            f"BrokerCluster {namespace}/{name} does not admit namespace {resource.namespace}; add it to its spec.allowedNamespaces",
        )
    return cluster


async def _store(world: World, cluster: BrokerCluster) -> ClusterStore:
    """Raises Blocked if the cluster's etcd cannot be addressed."""
    try:
        return await world.store_of(cluster)
    except StoreError as error:
        raise Blocked(Reason.STORE_UNAVAILABLE, str(error)) from error


# --- the record ---------------------------------------------------------------------------------------------------------------


def owner_text(resource: TopicNamespace) -> str:
    """How the record names its resource."""
    return f"{resource.namespace}/{resource.name}"


def wanted_record(resource: TopicNamespace, current: NamespaceRecord | None) -> NamespaceRecord:
    """The record as this resource wants it: boundaries only for a new one, policies only those it sets."""
    boundaries = current.boundaries if current is not None else initial_boundaries(resource.spec.bundles)
    policies = {**(current.policies if current is not None else {}), **resource.spec.policies.owned()}
    return NamespaceRecord(boundaries=boundaries, policies=policies, owner=owner_text(resource))


async def _ensure_record(world: World, resource: TopicNamespace, store: ClusterStore) -> NamespaceRecord:
    """Make the record what it should be. Raises Blocked if the store does not answer, NotLeading."""
    key = keys.namespace(resource.spec.name)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            item = await store.reader.get(key)
        current = NamespaceRecord.decode(item.value) if item is not None else None
        wanted = wanted_record(resource, current)
        if wanted == current:
            return wanted
        unchanged = Compare(key, "mod", "=", item.mod_revision if item is not None else 0)
        if not await store.write((unchanged,), (Put(key, wanted.encode()),)):
            raise Blocked(Reason.STORE_UNAVAILABLE, f"{key} was changed at the same moment; trying again", 0.2)
    except (StoreError, TimeoutError) as error:
        raise Blocked(
            Reason.STORE_UNAVAILABLE, f"the cluster's etcd does not answer: {str(error) or 'no answer in time'}"
        ) from error
    await _tell(world, resource, current, wanted)
    return wanted


async def _tell(world: World, resource: TopicNamespace, old: NamespaceRecord | None, new: NamespaceRecord) -> None:
    if old is None:
        text = f"namespace {resource.spec.name} with {len(new.boundaries) - 1} bundles"
        await world.events.normal(resource, "Created", text)
        return
    changed = [
        f"policies.{name}: {json.dumps(old.policies.get(name))} -> {json.dumps(value)}"
        for name, value in new.policies.items()
        if old.policies.get(name) != value
    ]
    if old.owner != new.owner:
        changed.append(f"owner: {old.owner or 'nobody'} -> {new.owner}")
    spec_is_new = resource.status.observed_generation != resource.metadata.generation
    write = world.events.normal if spec_is_new else world.events.warning
    await write(resource, "Updated" if spec_is_new else "DriftCorrected", "; ".join(changed))


# --- deletion -----------------------------------------------------------------------------------------------------------------


async def _match_finalizer(world: World, resource: TopicNamespace) -> None:
    """Only a resource whose deletion deletes something holds one."""
    wants = resource.spec.deletion_policy == "Delete"
    if wants == (FINALIZER in resource.metadata.finalizers):
        return
    found = await world.api.get(TOPIC_NAMESPACE, resource.namespace, resource.name)
    if found is None:
        return
    others = [name for name in found["metadata"].get("finalizers", []) if name != FINALIZER]
    await world.api.set_finalizers(found, [*others, FINALIZER] if wants else others)


async def _finalize(world: World, resource: TopicNamespace) -> float | None:
    """Delete the namespace if it is empty, then let the resource go; after `DELETION_TIMEOUT_S` let it go in any case."""
    if FINALIZER not in resource.metadata.finalizers:
        return None
    assert resource.metadata.deletion_timestamp is not None
    waited_s = (world.clock.wall_ms() - wall_ms_of(resource.metadata.deletion_timestamp)) / 1000
    skipped = resource.metadata.annotations.get(names.SKIP_FINALIZER, "").lower() == "true"
    try:
        if not skipped:
            await _delete_record(world, resource)
    except Blocked as blocked:
        await world.events.once(resource, "Warning", blocked.reason.word, str(blocked))
        if waited_s < DELETION_TIMEOUT_S and blocked.reason is not Reason.CLUSTER_MISSING:
            return RETRY_S
        await world.events.warning(resource, "Retained", f"namespace {resource.spec.name} stays as it is: {blocked}")
    found = await world.api.get(TOPIC_NAMESPACE, resource.namespace, resource.name)
    if found is not None and FINALIZER in found["metadata"].get("finalizers", []):
        await world.api.set_finalizers(found, [name for name in found["metadata"]["finalizers"] if name != FINALIZER])
    return None


async def _delete_record(world: World, resource: TopicNamespace) -> None:
    """Remove the record of an empty namespace that this resource owns. Raises Blocked, NotLeading."""
    store = await _store(world, await _admitting_cluster(world, resource))
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            item = await store.reader.get(keys.namespace(resource.spec.name))
            if item is None or NamespaceRecord.decode(item.value).owner != owner_text(resource):
                return
            await _require_empty(resource, store)
        if not await store.write(_unchanged(resource, item), (Delete(item.key),)):
            raise Blocked(Reason.STORE_UNAVAILABLE, f"{item.key} was changed at the same moment; trying again")
    except (StoreError, TimeoutError) as error:
        raise Blocked(
            Reason.STORE_UNAVAILABLE, f"the cluster's etcd does not answer: {str(error) or 'no answer in time'}"
        ) from error
    await world.events.normal(resource, "Deleted", f"namespace {resource.spec.name} was empty and is deleted")


def _unchanged(resource: TopicNamespace, item: KeyValue) -> tuple[Compare, ...]:
    return (Compare(keys.namespace(resource.spec.name), "mod", "=", item.mod_revision),)


async def _require_empty(resource: TopicNamespace, store: ClusterStore) -> None:
    """Raises Blocked if the namespace has topics, or bundles that were ever owned (their logs hold messages)."""
    name = resource.spec.name
    topics = await store.reader.range(keys.partitioned_topics_in(name), limit=1)
    bundles = await store.reader.range(keys.bundles_in(name))
    if topics.items or bundles.items:
        what = f"{len(bundles.items)} bundles with data" if bundles.items else "topics"
        raise Blocked(Reason.NOT_EMPTY, f"namespace {name} has {what}; nothing is deleted")
