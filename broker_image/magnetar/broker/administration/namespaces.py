"""Namespaces.

Owns: namespace records: lists, creation, deletion, owners. Imports: metadata, policies, names.
Invariants: what a TopicNamespace owns is compared in the transaction that would change it; a
namespace's record goes in a transaction that finds no topic entered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from magnetar.broker.administration.references import References
from magnetar.broker.administration.site import ATTEMPTS_MAX, Site
from magnetar.broker.administration.topics import Topics
from magnetar.broker.topics.topic_registry import entered_topic
from magnetar.errors import (
    NamespaceNotFound,
    NotAllowed,
    PreconditionFailed,
    StoreError,
    StoreUnavailable,
    TopicExists,
    TopicNotFound,
)
from magnetar.metadata import keys
from magnetar.metadata.owned_fields import OWNER_KIND, refuse_deletion
from magnetar.metadata.records import (
    NamespaceRecord,
    PartitionedTopicRecord,
    TenantRecord,
)
from magnetar.metadata.store import Compare, Delete
from magnetar.names import CLUSTER_NAME, NamespaceName, TopicName
from magnetar.policies import checked
from magnetar.policy_shapes import RATES, UNSET_POLICIES
from magnetar.rest.answers import check_named

DELETION_RETRY_S = 0.1
R = TypeVar("R", NamespaceRecord, TenantRecord)


class Namespaces:
    """Namespaces as a whole."""

    def __init__(self, site: Site, topics: Topics, references: References) -> None:
        self._site, self._topics, self._references = site, topics, references

    async def namespaces(self, tenant: str) -> list[str]:
        """Raises TopicNotFound for an absent tenant."""
        check_named("tenant", tenant)
        found = self.of_tenant(tenant)
        if not found:
            await self._tenant(tenant, TopicNotFound("Tenant not found", "create it with PUT"))
        return found

    async def _tenant(self, name: str, absent: TopicNotFound) -> None:
        """Raises `absent` if there is no such tenant."""
        if self.of_tenant(name):
            return
        if await self._site.broker.context.store.get(keys.tenant(name)) is None:
            raise absent

    def of_tenant(self, tenant: str) -> list[str]:
        return sorted(
            name
            for name in self._site.broker.views.namespaces.items
            if name.partition("/")[0] == tenant
        )

    def of_group(self, group: str) -> list[str]:
        """Namespaces that are in a resource group."""
        found = self._site.broker.views.namespaces.items.items()
        return sorted(
            name
            for name, viewed in found
            if viewed.record.policies.get("resource_group_name") == group
        )

    async def namespace(self, name: NamespaceName) -> dict[str, Any]:
        record = await self._site.namespace_record(name)
        boundaries = [f"0x{boundary:08x}" for boundary in record.boundaries]
        return {
            **UNSET_POLICIES,
            "replication_clusters": [CLUSTER_NAME],
            **{key: _by_cluster(key, value) for key, value in record.policies.items()},
            "bundles": {"boundaries": boundaries, "numBundles": len(boundaries) - 1},
        }

    async def create_namespace(
        self, name: NamespaceName, boundaries: tuple[int, ...], policies: dict[str, Any]
    ) -> None:
        await self._tenant(
            name.tenant,
            TopicNotFound("Tenant does not exist", f"PUT /admin/v2/tenants/{name.tenant} first"),
        )
        await self._references.namespace(name, policies)
        await self.write_namespace(name, boundaries, policies)

    async def write_namespace(
        self, name: NamespaceName, boundaries: tuple[int, ...], policies: dict[str, Any]
    ) -> None:
        """Create a namespace, whatever it is named. Raises InvalidRequest, TopicExists."""
        own = {key: _of_this_cluster(key, value) for key, value in policies.items()}
        try:
            kept = checked(own)
        except PreconditionFailed as error:
            if not error.fault.startswith("message_ttl_in_seconds"):
                raise
            raise PreconditionFailed(
                "Invalid value for message TTL", f"{error.fault}; {error.remedy}"
            ) from error
        record = NamespaceRecord(boundaries, kept, bundles_created=len(boundaries) - 1)
        revision = await self._site.create(
            keys.namespace(name), record.encode(), TopicExists("Namespace already exists")
        )
        self._site.broker.views.namespaces.observe(str(name), record.encode(), revision)

    async def delete_namespace(self, name: NamespaceName, force: bool) -> None:
        """Raises NamespaceNotFound, NotAllowed while it has topics and `force` is not set,
        OwnedByResource.

        A client that comes back to a topic that is deleted with it finds the namespace marked, and
        creates nothing in it. A topic that came all the same, at a broker that has not seen the
        mark, is found by the transaction that would remove the record; one whose entry comes after
        that has none.
        """
        try:
            refuse_deletion(name, await self._site.namespace_record(name))
        except NamespaceNotFound as error:
            raise _absent(name) from error
        if not force:
            # without a mark that would hold up who uses it
            _refuse_unless_empty(name, (await self._entered(name))[1])
        marks = self._site.broker.deletion_marks
        try:
            with marks.running(name):
                for attempt in range(ATTEMPTS_MAX):
                    if attempt > 1:
                        await asyncio.sleep(DELETION_RETRY_S)
                    if await self._delete_marked(name, await self._mark(name), force):
                        return
                raise StoreUnavailable(
                    f"namespace {name}: topics come into being in it all the time; try again"
                )
        except BaseException:
            with contextlib.suppress(StoreError):  # then it is tried again, in the background
                await marks.take_back(name)
            raise

    async def _mark(self, name: NamespaceName) -> int:
        """Mark a namespace as being deleted by us; the revision of its record. Raises
        NamespaceNotFound, OwnedByResource, NotAllowed."""
        own, live = self._site.broker.incarnation, self._site.broker.views.incarnations

        def mark(current: NamespaceRecord | None) -> NamespaceRecord:
            if current is None:
                raise _absent(name)
            refuse_deletion(name, current)
            if current.deleting != own and live.get(current.deleting) is not None:
                raise NotAllowed(f"namespace {name} is being deleted by {current.deleting} already")
            return replace(current, deleting=own)

        return await self._site.change_namespace(name, mark)

    async def _delete_marked(self, name: NamespaceName, marked: int, force: bool) -> bool:
        """Delete the topics of a namespace, or its record of revision `marked` if it has none;
        whether the record is gone."""
        seen, entered = await self._entered(name)
        if not force:
            _refuse_unless_empty(name, entered)
        partitioned = [topic for topic, partitions in entered.items() if partitions]
        for topic in entered:
            with contextlib.suppress(TopicNotFound):  # another process was faster
                if topic in partitioned:
                    await self._topics.delete_partitions(topic, force=True)
                elif topic.base not in partitioned:
                    await self._topics.delete_anywhere(topic, force=True)
        if entered:
            return False
        unchanged = [
            Compare(keys.namespace(name), "mod", "=", marked),
            Compare(keys.topic_changes(name), "mod", "=", seen),
        ]
        removed = [
            Delete(keys.namespace(name)),
            Delete(keys.topic_policies_in(name), prefix=True),
            Delete(keys.schemas_in(name), prefix=True),
        ]
        result = await self._site.broker.context.store.transact(unchanged, removed)
        if result.succeeded:
            self._site.broker.views.namespaces.observe(str(name), None, result.revision)
        return result.succeeded

    async def _entered(self, name: NamespaceName) -> tuple[int, dict[TopicName, int]]:
        """The revision of the last change of a namespace's entries, and partitions by topic
        entered, 0 for one that is not partitioned."""
        store = self._site.broker.context.store
        # read before the entries: later changes are not in it
        change = await store.get(keys.topic_changes(name))
        items = (await store.range(keys.partitioned_topics_in(name))).items
        found = ((entered_topic(item.key.removeprefix(keys.TOPICS)), item.value) for item in items)
        entered = {
            topic: PartitionedTopicRecord.decode(value).partitions
            for topic, value in found
            if topic is not None
        }
        return change.mod_revision if change is not None else 0, entered

    async def namespace_owner(self, name: NamespaceName) -> dict[str, Any]:
        record = await self._site.namespace_record(name)
        return {"owner": _owner_text(record), "owned": list(record.owned)}

    def namespace_owners(self) -> dict[str, str]:
        found = self._site.broker.views.namespaces.items.items()
        return {name: _owner_text(viewed.record) for name, viewed in found if viewed.record.owner}

    async def release_namespace(self, name: NamespaceName) -> None:
        """Raises NamespaceNotFound."""
        owner = (await self._site.namespace_record(name)).owner

        def release(current: R | None) -> R | None:
            return (
                replace(current, owner="", owned=())
                if current is not None and current.owner == owner
                else current
            )

        await self._site.change(keys.tenant(name.tenant), TenantRecord, release)
        await self._site.change_namespace(name, release)

    async def anti_affinity_namespaces(self, tenant: str, group: str) -> list[str]:
        """Namespaces (of a tenant, if named) whose policy names this group."""
        found = self._site.broker.views.namespaces.items.items()
        return sorted(
            name
            for name, viewed in found
            if viewed.record.policies.get("anti_affinity") == group
            and name.startswith(f"{tenant}/" if tenant else "")
        )


def _absent(name: NamespaceName) -> NamespaceNotFound:
    return NamespaceNotFound(f"Namespace {name} does not exist.", "there is nothing to delete")


def _refuse_unless_empty(name: NamespaceName, entered: Mapping[TopicName, int]) -> None:
    """Raises NotAllowed if topics are entered in a namespace."""
    if entered:
        shown = ", ".join(sorted(map(str, entered))[:5])
        raise NotAllowed(
            "Cannot delete non empty namespace",
            f"{name} has {len(entered)} topics ({shown}): delete them or force it",
        )


def _owner_text(record: NamespaceRecord) -> str:
    return f"{OWNER_KIND} {record.owner}" if record.owner else ""


def _by_cluster(key: str, value: Any) -> Any:
    """A policy as Pulsar's `Policies` has it: rates by the name of their cluster."""
    return {CLUSTER_NAME: value} if key in RATES else value


def _of_this_cluster(key: str, value: Any) -> Any:
    """The reverse, of what a client sends to create a namespace; None where it says nothing."""
    if key in RATES and isinstance(value, dict):
        return value.get(CLUSTER_NAME)
    return None if key == "replication_clusters" and value == [] else value
