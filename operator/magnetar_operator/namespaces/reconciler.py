"""Reconciling a `TopicNamespace`.

Owns: the order of steps, who may act, and writing the records of namespace and tenant. Imports:
world, namespaces.record, namespaces.deletion, namespaces.release, magnetar.metadata, resources,
conditions. Invariants: of several resources for one tenant and namespace the oldest acts and the
others say so: the record names the one that acts, so that a resource is compared with that one
alone; fields that this resource does not set are never touched; what has changed between reading
and writing a record is read again, never written over; what may exist in a namespace that cannot be
read counts as existing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import structlog

from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.codec import Record
from magnetar.metadata.records import NamespaceRecord, TenantRecord
from magnetar.metadata.store import Compare, KeyValue, Put
from magnetar.names import BundleName, NamespaceName
from magnetar.resources.topic_namespace import FINALIZER, TopicNamespace
from magnetar_operator.conditions import Blocked, Finding, Problem, Reason, Type, counted
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import InvalidResource, World, is_paused
from magnetar_operator.kube.kinds import TOPIC_NAMESPACE
from magnetar_operator.namespaces import deletion as namespace_deletion
from magnetar_operator.namespaces.record import (
    Change,
    changes_text,
    desired_record,
    desired_tenant,
    differing_tenant_fields,
    living_bundles,
    owner_text,
    record_changes,
    seniority,
    tenant_changes,
)
from magnetar_operator.namespaces.release import (
    admits,
    release,
    release_former,
    release_system,
)
from magnetar_operator.stores.connections import ClusterStore

log = structlog.get_logger(__name__)

R = TypeVar("R", bound=Record)
LOOK_AT_RIVAL_S = 3.0
LOOK_AT_CLUSTER_S = 30.0
"""A cluster that comes has its namespaces looked at: `see_store`."""
READ_TIMEOUT_S = 5.0
READABLE_REMEDY = (
    "grant the operator its role there, or take that namespace out of watchNamespaces or of the "
    "cluster's spec.allowedNamespaces"
)


@dataclass(frozen=True, slots=True)
class News:
    """What a pass did, for an Event."""

    reason: str
    message: str
    warning: bool = False


async def reconcile(world: World, key: Key) -> float | None:
    """One pass; the seconds after which to look again. Raises KubernetesError, InvalidResource,
    StoreError, TimeoutError, NotLeading."""
    try:
        resource = await world.read(key, TopicNamespace)
    except InvalidResource as error:
        await release_system(world, key)
        await namespace_deletion.finalize_unreadable(world, key, error)
        return None
    if resource is None:
        await release(world, key)
        return None
    if resource.metadata.deletion_timestamp:
        return await namespace_deletion.finalize(
            world, resource, lambda: _cluster_store(world, resource)
        )
    if is_paused(resource):
        await world.events.paused(resource)
        await _write_status(world, resource, Finding(Type.READY, False, Reason.PAUSED))
        return None
    await _match_finalizer(world, resource)
    news: list[News] = []
    try:
        store = await _own_store(world, resource)
        await release_former(world, resource, store)
        record = await _ensure_record(world, resource, store, news)
        owns_tenant, conflict = await _ensure_tenant(world, resource, store, news)
    except Blocked as blocked:
        await _inform(world, resource, news)
        await _warn(world, resource, blocked.reason, str(blocked))
        await _write_status(
            world, resource, Finding(Type.READY, False, blocked.reason, str(blocked))
        )
        return blocked.retry_s
    bundles, generation = len(record.boundaries) - 1, resource.metadata.generation
    finding = Finding(
        Type.READY,
        True,
        Reason.AS_DESIRED,
        f"namespace {resource.spec.name} has {counted(bundles, 'bundle', 'bundles')}",
    )
    if conflict:
        finding = Finding(Type.READY, False, Reason.TENANT_CONFLICT, conflict)
    await _warn(world, resource, finding.reason, conflict)
    try:
        await _write_status(
            world,
            resource,
            finding,
            bundles=bundles,
            applied_generation=generation,
            owns_tenant=owns_tenant,
        )
    finally:
        # A client that waits for the condition does not wait for the Events as well, not even their
        # share of the API server.
        await _inform(world, resource, news)
    # Changes of the resource and of its records are watched, and a resync looks at everything.
    return LOOK_AT_RIVAL_S if conflict else None


async def _inform(world: World, resource: TopicNamespace, news: Sequence[News]) -> None:
    """Write the Events of this pass, in their order. Raises NotLeading."""
    for one in news:
        await (world.events.warning if one.warning else world.events.normal)(
            resource, one.reason, one.message
        )


async def _warn(world: World, resource: TopicNamespace, reason: Reason, message: str) -> None:
    """One Event for each obstacle that begins ("" = there is none): the others have ended."""
    await world.events.standing(resource, [Problem(reason, message)] if message else [])


async def _write_status(
    world: World, resource: TopicNamespace, finding: Finding, **changes: int
) -> None:
    conditions = world.conditions(resource, resource.status.conditions, [finding])
    update = {
        "observed_generation": resource.metadata.generation,
        "conditions": conditions,
        **changes,
    }
    await world.write_status(resource, resource.status.model_copy(update=update))


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


# --- who may act ----------------------------------------------------------------------------------


async def _cluster_store(world: World, resource: TopicNamespace) -> ClusterStore:
    """The store of the cluster, if that exists and admits the resource's Kubernetes namespace.
    Raises Blocked."""
    namespace, name = resource.cluster_key
    cluster = await world.cluster(namespace, name)
    if cluster is None and world.refused(namespace):
        text = (
            f"BrokerCluster {namespace}/{name} cannot be read now: the operator is refused in its "
            "namespace; grant it its role there"
        )
        raise Blocked(Reason.STORE_UNAVAILABLE, text, LOOK_AT_RIVAL_S)
    if cluster is None:
        text = f"BrokerCluster {namespace}/{name} does not exist; make it, or correct clusterRef"
        raise Blocked(Reason.CLUSTER_MISSING, text, LOOK_AT_CLUSTER_S)
    if not admits(cluster, resource.namespace):
        raise Blocked(
            Reason.NOT_ALLOWED,
            f"BrokerCluster {namespace}/{name} does not admit namespace {resource.namespace}; add "
            "it to its spec.allowedNamespaces",
        )
    try:
        store = await world.store_of(cluster)
    except StoreError as error:
        raise Blocked(Reason.STORE_UNAVAILABLE, str(error)) from error
    store.claims.setdefault((resource.namespace, resource.name), set()).add(resource.spec.name)
    return store


async def _own_store(world: World, resource: TopicNamespace) -> ClusterStore:
    """As `_cluster_store`; a new resource that may not act owns nothing of what one of its name
    spoke for, all the same. Raises NotLeading."""
    try:
        return await _cluster_store(world, resource)
    except Blocked as blocked:
        if (
            blocked.reason in (Reason.CLUSTER_MISSING, Reason.NOT_ALLOWED)
            and not resource.status.applied_generation
        ):
            await release_former(world, resource, None)
        raise


async def _require_oldest(world: World, resource: TopicNamespace, exists: bool) -> None:
    """The namespace has no owner: raises Blocked if an older resource, which the cluster admits,
    speaks for it too. Raises InvalidResource.

    One that cannot be seen counts where the namespace `exists`: its messages would expire as the
    younger one says. A new namespace has none yet.
    """
    cluster = await world.cluster(*resource.cluster_key)
    for other in world.claimants(
        resource.cluster_key, resource.spec.tenant, resource.spec.namespace
    ):
        if seniority(other) < seniority(resource) and admits(cluster, other.namespace):
            raise _conflict(resource, other)
    hidden = next(
        (
            name
            for name in world.namespaces
            if exists and world.refused(name) and admits(cluster, name)
        ),
        "",
    )
    if hidden:
        text = (
            f"a TopicNamespace in namespace {hidden}, which cannot be read now, may be older and "
            f"own {resource.spec.name}"
        )
        raise Blocked(Reason.CONFLICT, f"{text}; {READABLE_REMEDY}", LOOK_AT_RIVAL_S)


def _conflict(resource: TopicNamespace, senior: TopicNamespace) -> Blocked:
    text = f"{senior.reference} is older and owns {resource.spec.name}; delete one of the two"
    return Blocked(Reason.CONFLICT, text, LOOK_AT_RIVAL_S)


async def _senior(world: World, resource: TopicNamespace, owner: str) -> TopicNamespace | None:
    """The resource that `owner` of a record names, if it exists, the same cluster admits it, and
    it is older than ours. Raises Blocked."""
    namespace, _, name = owner.partition("/")
    if (
        not name
        or owner == owner_text(resource)
        or (world.namespaces and namespace not in world.namespaces)
    ):
        return None
    try:
        other = await world.read(Key(TOPIC_NAMESPACE.kind, namespace, name), TopicNamespace)
    except InvalidResource as error:
        text = (
            f"TopicNamespace {owner} owns {resource.spec.name} and cannot be read ({error}); "
            "correct or delete it"
        )
        raise Blocked(Reason.CONFLICT, text, LOOK_AT_RIVAL_S) from error
    if not admits(await world.cluster(*resource.cluster_key), namespace):
        return None
    if other is None and world.refused(namespace):
        text = (
            f"TopicNamespace {owner} owns {resource.spec.name} and cannot be read now; "
            f"{READABLE_REMEDY}"
        )
        raise Blocked(Reason.CONFLICT, text, LOOK_AT_RIVAL_S)
    same = (
        other is not None
        and other.cluster_key == resource.cluster_key
        and seniority(other) <= seniority(resource)
    )
    return other if same else None


# --- the records ----------------------------------------------------------------------------------


async def _ensure_record(
    world: World, resource: TopicNamespace, store: ClusterStore, news: list[News]
) -> NamespaceRecord:
    """Make the namespace's record what it should be; `news` gets what was changed.

    Raises Blocked if the store does not answer or an older resource owns it, NotLeading.
    """
    key = keys.namespace(resource.spec.name)
    item, current = await _read(store, key, NamespaceRecord)
    living: Sequence[BundleName] = ()
    if current is None:
        living = await _living(store, resource.spec.name)
    if current is None or not current.owner:
        await _require_oldest(world, resource, exists=current is not None or bool(living))
    elif (
        senior := await _senior(world, resource, current.owner)
    ) and senior.spec.name == resource.spec.name:
        raise _conflict(resource, senior)
    wanted = desired_record(resource, current, living)
    if wanted != current:
        await _replace(store, key, item, wanted)
        news += _news_of_record(resource, current, wanted, living)
    return wanted


def _news_of_record(
    resource: TopicNamespace,
    old: NamespaceRecord | None,
    new: NamespaceRecord,
    living: Sequence[BundleName],
) -> list[News]:
    name, bundles = resource.spec.name, counted(len(new.boundaries) - 1, "bundle", "bundles")
    if old is not None:
        return _news_of(resource, record_changes(old, new))
    if living:
        text = (
            f"the record of namespace {name} was gone: made again around "
            f"{counted(len(living), 'bundle', 'bundles')} with messages; policies set by "
            "REST are lost, and until you set them nothing in it expires or is deleted"
        )
        return [News("Recreated", text, warning=True)]
    if resource.status.applied_generation:
        text = (
            f"namespace {name} was gone: made again with {bundles}; policies set by REST are lost"
        )
        return [News("Recreated", text, warning=True)]
    return [News("Created", f"namespace {name} with {bundles}")]


async def _ensure_tenant(
    world: World, resource: TopicNamespace, store: ClusterStore, news: list[News]
) -> tuple[bool, str]:
    """Make the tenant what this resource wants, if it wants something or did; whether it owns the
    tenant, and what stands against that.

    `news` gets what was changed. Raises Blocked if the store does not answer, NotLeading.
    """
    fields, owner, tenant = (
        resource.spec.tenant_fields(),
        owner_text(resource),
        resource.spec.tenant,
    )
    if not fields and not resource.status.owns_tenant:
        return False, ""
    key = keys.tenant(tenant)
    item, current = await _read(store, key, TenantRecord)
    if not fields and (current is None or current.owner != owner):
        return False, ""
    if current is not None and current.owner != owner:
        store.follow(key, owner)
        senior = await _senior(world, resource, current.owner)
        if (
            senior is not None
            and senior.spec.tenant == tenant
            and senior.spec.tenant_config is not None
        ):
            differing = ", ".join(differing_tenant_fields(resource, current))
            text = (
                f"{senior.reference} is older and decides on tenant {tenant}; set {differing} as "
                "it does, or take tenantConfig out of one"
            )
            return False, text if differing else ""
    wanted = desired_tenant(resource, current)
    if wanted != (current or TenantRecord()):
        await _replace(store, key, item, wanted)
        changes = tenant_changes(current, wanted)
        news += _news_of(
            resource,
            [replace(change, field=f"tenant {tenant}, {change.field}") for change in changes],
        )
    return bool(fields), ""


def _news_of(resource: TopicNamespace, changes: Sequence[Change]) -> list[News]:
    """A change of the spec is an update; without one another writer has changed what is ours."""
    if not changes:
        return []
    drift = resource.status.applied_generation == resource.metadata.generation
    return [News("DriftCorrected" if drift else "Updated", changes_text(changes), warning=drift)]


async def _read(store: ClusterStore, key: str, kind: type[R]) -> tuple[KeyValue | None, R | None]:
    """The record under `key` with its revision. Raises Blocked."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            item = await store.record(key)
        return item, kind.decode(item.value) if item is not None else None
    except (StoreError, TimeoutError) as error:
        raise Blocked.by_store(error) from error


async def _living(store: ClusterStore, name: NamespaceName) -> list[BundleName]:
    """Bundles of a namespace that hold messages. Raises Blocked."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            return list(living_bundles((await store.range(keys.bundles_in(name))).items))
    except (StoreError, TimeoutError) as error:
        raise Blocked.by_store(error) from error


async def _replace(store: ClusterStore, key: str, item: KeyValue | None, wanted: Record) -> None:
    """Write a record if it is still as it was read. Raises Blocked, NotLeading."""
    unchanged = Compare(key, "mod", "=", item.mod_revision if item is not None else 0)
    try:
        written = await store.write((unchanged,), (Put(key, wanted.encode()),))
    except (StoreError, TimeoutError) as error:
        raise Blocked.by_store(error) from error
    if not written:
        raise Blocked(
            Reason.STORE_UNAVAILABLE, f"{key} was changed at the same moment; trying again", 0.2
        )
