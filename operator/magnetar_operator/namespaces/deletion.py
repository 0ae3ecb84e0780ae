"""Deleting a `TopicNamespace` whose policy is Delete.

Owns: when a namespace counts as empty, and the end of the finalizer. Imports: world, stores,
namespaces.record, magnetar.metadata. Invariants: a namespace that holds anything, or whose contents
are unknown, is never deleted; the finalizer ends after a bounded time whatever happens, and
at once where the cluster is gone or a person says so; that holds as well for a resource that cannot
be read, or whose cluster cannot.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping

from magnetar.errors import StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord
from magnetar.metadata.store import Compare, Delete
from magnetar.names import NamespaceName
from magnetar.resources.base import API_VERSION, CustomResource, Metadata
from magnetar.resources.topic_namespace import FINALIZER, TopicNamespace
from magnetar_operator import names
from magnetar_operator.conditions import (
    Blocked,
    Finding,
    Reason,
    Type,
    counted,
    timestamp,
    wall_ms_of,
)
from magnetar_operator.engine.work_queue import Key
from magnetar_operator.engine.world import InvalidResource, World
from magnetar_operator.kube.errors import KubernetesError, NotLeading
from magnetar_operator.kube.kinds import TOPIC_NAMESPACE
from magnetar_operator.namespaces.record import (
    living_bundles,
    number_of_topics,
    owner_text,
    unknown_contents,
)
from magnetar_operator.stores.connections import ClusterStore

READ_TIMEOUT_S = 5.0
DELETION_TIMEOUT_S = 120.0
SETTLED_S = 3.0
"""Within less, brokers enter the topics of a bundle that they have acquired, or that they created
while the store was unavailable."""
TOPICS_COUNTED_MAX = 1000
LOOK_AGAIN_S = 1.0


async def finalize(
    world: World, resource: TopicNamespace, open_store: Callable[[], Awaitable[ClusterStore]]
) -> float | None:
    """Delete the namespace if it is empty, then let the resource go; after `DELETION_TIMEOUT_S` let
    it go in any case.

    Returns the seconds after which to look again. Raises KubernetesError, NotLeading.
    """
    if FINALIZER not in resource.metadata.finalizers:
        return None
    why = _retained(resource.metadata.annotations, resource.spec.deletion_policy)
    if why:
        with contextlib.suppress(Blocked):
            # which remembers what is to be released when the resource has gone
            await _opened(resource, open_store)
    else:
        try:
            await _delete_record(world, resource, await _opened(resource, open_store))
        except Blocked as blocked:
            if blocked.reason is not Reason.CLUSTER_MISSING and not _is_overdue(
                world, resource.metadata
            ):
                await _wait(world, resource, blocked)
                return blocked.retry_s
            why = str(blocked)
    if why:
        await world.events.warning(
            resource, "Retained", f"namespace {resource.spec.name} stays as it is: {why}"
        )
    await _end_finalizer(world, resource)
    return None


async def finalize_unreadable(world: World, key: Key, error: InvalidResource) -> None:
    """Let a resource go that is deleted and does not fit the model, by what `finalize` goes by; its
    namespace stays.

    Raises `error` while it is not to go, KubernetesError.
    """
    found = await world.api.get(TOPIC_NAMESPACE, key.namespace, key.name)
    metadata = Metadata.model_validate(found["metadata"]) if found is not None else None
    if (
        found is None
        or metadata is None
        or not metadata.deletion_timestamp
        or FINALIZER not in metadata.finalizers
    ):
        raise error
    why = _retained(metadata.annotations, found.get("spec", {}).get("deletionPolicy"))
    if not why and not _is_overdue(world, metadata):
        raise InvalidResource(f"{error}; {_until(metadata)}") from error
    resource = CustomResource(api_version=API_VERSION, kind=TOPIC_NAMESPACE.kind, metadata=metadata)
    await world.events.warning(
        resource, "Retained", f"its namespace stays as it is: {why or error}"
    )
    await _end_finalizer(world, resource)


def _retained(annotations: Mapping[str, str], deletion_policy: object) -> str:
    """Why nothing is to be deleted at all; "" = something is."""
    if annotations.get(names.SKIP_FINALIZER, "").lower() == "true":
        return f"{names.SKIP_FINALIZER} is set"
    return "spec.deletionPolicy is Retain" if deletion_policy == "Retain" else ""


def _is_overdue(world: World, metadata: Metadata) -> bool:
    assert metadata.deletion_timestamp is not None
    return (
        world.clock.wall_ms() - wall_ms_of(metadata.deletion_timestamp)
    ) / 1000 >= DELETION_TIMEOUT_S


def _until(metadata: Metadata) -> str:
    """How long the deletion waits, and what ends it earlier: the same words until then, so that
    they are reported once."""
    assert metadata.deletion_timestamp is not None
    end = timestamp(wall_ms_of(metadata.deletion_timestamp) + round(DELETION_TIMEOUT_S * 1000))
    return (
        f"the deletion waits until {end} ({DELETION_TIMEOUT_S:.0f} s), then this resource goes and "
        "the namespace stays with all its data; "
        f"the annotation {names.SKIP_FINALIZER}=true ends that now"
    )


async def _opened(
    resource: TopicNamespace, open_store: Callable[[], Awaitable[ClusterStore]]
) -> ClusterStore:
    """Raises Blocked, also where the cluster or its credentials cannot be read, NotLeading."""
    try:
        return await open_store()
    except NotLeading:
        raise
    except InvalidResource as error:
        raise Blocked(
            Reason.INVALID_SPEC,
            f"BrokerCluster {'/'.join(resource.cluster_key)} cannot be read: {error}",
        ) from error
    except KubernetesError as error:
        text = (
            f"credentials of BrokerCluster {'/'.join(resource.cluster_key)} cannot be read: {error}"
        )
        raise Blocked(Reason.STORE_UNAVAILABLE, text) from error


async def _end_finalizer(world: World, resource: CustomResource) -> None:
    """Raises KubernetesError."""
    found = await world.api.get(TOPIC_NAMESPACE, resource.namespace, resource.name)
    if found is not None and FINALIZER in found["metadata"].get("finalizers", []):
        await world.api.set_finalizers(
            found, [name for name in found["metadata"]["finalizers"] if name != FINALIZER]
        )


async def _wait(world: World, resource: TopicNamespace, blocked: Blocked) -> None:
    """Say what the deletion waits for, and how long."""
    text = str(blocked)
    if blocked.reason is not Reason.DELETING:
        text = f"{text}; {_until(resource.metadata)}"
        await world.events.once(resource, "Warning", blocked.reason.value, text)
    finding = Finding(Type.READY, False, blocked.reason, text)
    conditions = world.conditions(resource, resource.status.conditions, [finding])
    await world.write_status(
        resource, resource.status.model_copy(update={"conditions": conditions})
    )


async def _delete_record(world: World, resource: TopicNamespace, store: ClusterStore) -> None:
    """Remove the record of an empty namespace that this resource owns. Raises Blocked,
    NotLeading."""
    name = resource.spec.name
    key, changes = keys.namespace(name), keys.topic_changes(name)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            item = await store.read(key)
            if item is None or NamespaceRecord.decode(item.value).owner != owner_text(resource):
                return
            mark = await store.reader.get(changes)
            seen = mark.mod_revision if mark is not None else 0
            await _require_empty(world, store, name, seen)
        # An entry that is made at the same time changes the mark; a bundle that is taken then
        # compares the namespace.
        unchanged = (
            Compare(key, "mod", "=", item.mod_revision),
            Compare(changes, "mod", "=", seen),
        )
        if not await store.write(unchanged, (Delete(key),)):
            raise Blocked(
                Reason.STORE_UNAVAILABLE, f"{key} was changed at the same moment; trying again"
            )
    except (StoreError, TimeoutError) as error:
        raise Blocked.by_store(error) from error
    store.empty_since.pop(name, None)
    await world.events.normal(resource, "Deleted", f"namespace {name} was empty and is deleted")


async def _require_empty(world: World, store: ClusterStore, name: NamespaceName, seen: int) -> None:
    """Raises Blocked if the namespace has topics or may have some; `seen` is the revision of the
    last change of its entries."""
    topics = (
        await store.reader.range(keys.partitioned_topics_in(name), limit=TOPICS_COUNTED_MAX)
    ).items
    if topics:
        number = number_of_topics(name, topics)
        more = "more than " if len(topics) == TOPICS_COUNTED_MAX else ""
        text = (
            f"namespace {name} has {more}{counted(number, 'topic', 'topics')}; delete them first, "
            "nothing is deleted while it has"
        )
        raise Blocked(Reason.NOT_EMPTY, text)
    bundles = living_bundles((await store.reader.range(keys.bundles_in(name))).items)
    if not bundles:
        return
    if unknown := unknown_contents(bundles):
        text = (
            f"bundles of namespace {name} are not served now ({len(unknown)}, such as "
            f"{unknown[0].range}): it is not known whether they are empty"
        )
        raise Blocked(Reason.NOT_EMPTY, text)
    now_s = world.clock.monotonic()
    state = (
        seen,
        *(
            (str(bundle), record.incarnation, record.epoch)
            for bundle, record in sorted(bundles.items(), key=str)
        ),
    )
    if store.empty_since.get(name, ((), 0.0))[0] != state:
        store.empty_since[name] = state, now_s
    if now_s - store.empty_since[name][1] < SETTLED_S:
        raise Blocked(
            Reason.DELETING,
            f"namespace {name} is empty; it is deleted if it still is in a moment",
            LOOK_AGAIN_S,
        )
