"""Namespaces and policies.

Owns: namespace records, policies and properties of namespaces and topics, work on all topics of a
namespace. Imports: metadata, policies, names. Invariants: a policy is checked before it is written,
and acts here as soon as its request is answered (other brokers follow their watch); policies of a
partitioned or non-persistent topic are a record of the store, those of any other topic are its own
durable property; what a TopicNamespace owns is compared in the transaction that would change it; a
namespace's record goes in a transaction that finds no topic entered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from magnetar.broker.administration.base import ATTEMPTS_MAX
from magnetar.broker.administration.peers import ask_broker
from magnetar.broker.administration.topics import TopicAdministration, store_needed
from magnetar.broker.topics.effective_policies import PROPERTY, own_policies
from magnetar.broker.topics.topic_registry import entered_topic
from magnetar.errors import (
    NamespaceNotFound,
    NotAllowed,
    NotOwner,
    StoreError,
    StoreUnavailable,
    SubscriptionNotFound,
    TopicNotFound,
)
from magnetar.metadata import keys
from magnetar.metadata.owned_fields import OWNER_KIND, refuse_deletion, refuse_edit
from magnetar.metadata.records import (
    NamespaceRecord,
    PartitionedTopicRecord,
    TenantRecord,
    TopicPoliciesRecord,
)
from magnetar.metadata.store import Compare, Delete
from magnetar.names import CLUSTER_NAME, BundleName, NamespaceName, TopicName, bundles_of
from magnetar.ownership.splits import boundaries_of
from magnetar.policies import check
from magnetar.storage.turns import Turns

USER_PREFIX = "user."
NAMESPACE_PROPERTIES = "properties"
RATES = frozenset(
    {
        "publishMaxMessageRate",
        "topicDispatchRate",
        "subscriptionDispatchRate",
        "replicatorDispatchRate",
        "clusterDispatchRate",
        "clusterSubscribeRate",
    }
)
"""Policies that `Policies` holds once per cluster."""
DELETION_RETRY_S = 0.1
TOPICS_PER_TURN_MAX = 500
"""Topics that are assigned to their bundles before others get their turn."""
Edit = Callable[[dict[str, Any]], None]
R = TypeVar("R", NamespaceRecord, TenantRecord)


class NamespaceAdministration(TopicAdministration):
    """Namespaces and policies."""

    async def namespaces(self, tenant: str) -> list[str]:
        return sorted(
            name for name in self._broker.views.namespaces.items if name.partition("/")[0] == tenant
        )

    async def namespace(self, name: NamespaceName) -> dict[str, Any]:
        record = await self._namespace_record(name)
        boundaries = [f"0x{boundary:08x}" for boundary in record.boundaries]
        return {
            "auth_policies": {
                "namespace_auth": {},
                "destination_auth": {},
                "subscription_auth_roles": {},
            },
            "replication_clusters": [CLUSTER_NAME],
            **{key: _by_cluster(key, value) for key, value in record.policies.items()},
            "bundles": {"boundaries": boundaries, "numBundles": len(boundaries) - 1},
        }

    async def create_namespace(
        self, name: NamespaceName, boundaries: tuple[int, ...], policies: dict[str, Any]
    ) -> None:
        own = {key: _of_this_cluster(key, value) for key, value in policies.items()}
        policies = {key: value for key, value in own.items() if value is not None}
        check(policies)
        record = NamespaceRecord(boundaries=boundaries, policies=policies)
        revision = await self._create(keys.namespace(name), record.encode(), f"namespace {name}")
        self._broker.views.namespaces.observe(str(name), record.encode(), revision)

    async def delete_namespace(self, name: NamespaceName, force: bool) -> None:
        """Raises NamespaceNotFound, NotAllowed while it has topics and `force` is not set,
        OwnedByResource.

        Whoever comes back to a topic that is deleted with it finds the namespace marked, and
        creates nothing in it. A topic that came all the same, at a broker that has not seen the
        mark, is found by the transaction that would remove the record; one whose entry comes after
        that has none.
        """
        refuse_deletion(name, await self._namespace_record(name))
        if not force:
            # without a mark that would hold up who uses it
            _refuse_unless_empty(name, (await self._entered(name))[1])
        marks = self._broker.deletion_marks
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
        own, live = self._broker.incarnation, self._broker.views.incarnations

        def mark(current: NamespaceRecord | None) -> NamespaceRecord:
            if current is None:
                raise NamespaceNotFound(
                    f"Namespace {name} does not exist (any more); there is nothing to delete"
                )
            refuse_deletion(name, current)
            if current.deleting != own and live.get(current.deleting) is not None:
                raise NotAllowed(f"namespace {name} is being deleted by {current.deleting} already")
            return replace(current, deleting=own)

        return await self._change_namespace(name, mark)

    async def _change_namespace(
        self,
        name: NamespaceName,
        change: Callable[[NamespaceRecord | None], NamespaceRecord | None],
    ) -> int:
        """Change a namespace's record, ahead of the watch that will report it; its revision."""
        written, revision = await self._change(keys.namespace(name), NamespaceRecord, change)
        if written is not None:
            self._broker.views.namespaces.observe(str(name), written.encode(), revision)
        return revision

    async def _delete_marked(self, name: NamespaceName, marked: int, force: bool) -> bool:
        """Delete the topics of a namespace, or its record of revision `marked` if it has none;
        whether the record is gone."""
        seen, entered = await self._entered(name)
        if not force:
            _refuse_unless_empty(name, entered)
        partitioned = [topic for topic, partitions in entered.items() if partitions]
        for topic in entered:
            with contextlib.suppress(TopicNotFound):  # somebody was faster
                if topic in partitioned:
                    await self.delete_partitions(topic, force=True)
                elif topic.base not in partitioned:
                    await self._delete_anywhere(topic, force=True)
        if entered:
            return False
        unchanged = [
            Compare(keys.namespace(name), "mod", "=", marked),
            Compare(keys.topic_changes(name), "mod", "=", seen),
        ]
        removed = [Delete(keys.namespace(name)), Delete(keys.topic_policies_in(name), prefix=True)]
        result = await self._broker.context.store.transact(unchanged, removed)
        if result.succeeded:
            self._broker.views.namespaces.observe(str(name), None, result.revision)
        return result.succeeded

    async def _entered(self, name: NamespaceName) -> tuple[int, dict[TopicName, int]]:
        """The revision of the last change of a namespace's entries, and partitions by topic
        entered, 0 for one that is not partitioned."""
        store = self._broker.context.store
        # before the entries: what comes concurrently is not in it
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
        record = await self._namespace_record(name)
        return {"owner": _owner_text(record), "owned": list(record.owned)}

    def namespace_owners(self) -> dict[str, str]:
        found = self._broker.views.namespaces.items.items()
        return {name: _owner_text(viewed.record) for name, viewed in found if viewed.record.owner}

    async def release_namespace(self, name: NamespaceName) -> None:
        """Raises NamespaceNotFound."""
        owner = (await self._namespace_record(name)).owner

        def release(current: R | None) -> R | None:
            return (
                replace(current, owner="", owned=())
                if current is not None and current.owner == owner
                else current
            )

        await self._change(keys.tenant(name.tenant), TenantRecord, release)
        await self._change_namespace(name, release)

    async def unload_namespace(self, name: NamespaceName, destination: str) -> None:
        """Have all bundles of a namespace transferred by whoever serves them, but those that
        `destination` has already."""
        record = await self._namespace_record(name)
        await self._unload_each(bundles_of(name, record.boundaries), destination)

    async def split_bundle(
        self,
        name: NamespaceName,
        bundle: str,
        algorithm: str,
        positions: Sequence[int],
        *,
        unload: bool,
    ) -> None:
        """Raises InvalidTopicName, InvalidRequest, NotAllowed, NotOwner with the owner's
        address, ServiceNotReady."""
        found = BundleName.parse(f"{name}/{bundle}")
        if found not in bundles_of(name, (await self._namespace_record(name)).boundaries):
            raise NamespaceNotFound(
                f"{bundle} is not a bundle of namespace {name}; GET .../bundles lists them"
            )
        boundaries = boundaries_of(found, algorithm, positions)
        await self._bundle_served_here(found)
        with store_needed():
            children = await self._broker.ownership.split(found, boundaries)
            for child in children if unload else ():
                await self._unload_bundle(child, "")

    async def unload_bundle(self, name: NamespaceName, bundle: str, destination: str) -> None:
        """Hand over one bundle. Raises NotOwner, TopicNotFound for a range that is not a bundle."""
        await self._unload_bundle(await self._bundle(name, bundle), destination)

    async def pin_bundle(self, name: NamespaceName, bundle: str, seconds: float | None) -> None:
        """Have load balancing leave a bundle with its owner, for `move_pin_s` unless told; 0 s
        takes a pin back.

        Raises NotOwner with the owner's address, TopicNotFound for a range that is not a bundle,
        ServiceNotReady.
        """
        found = await self._bundle(name, bundle)
        await self._bundle_served_here(found)
        with store_needed():
            await self._broker.ownership.pin(str(found), self._pinned_until_ms(seconds))

    async def clear_backlog(self, name: NamespaceName, bundle: str, subscription: str) -> None:
        """Skip everything, for one subscription or (with "") all, on the topics of a bundle, or
        (with "") of all bundles at their owners."""

        async def clear(topic: TopicName) -> None:
            for found in [subscription] if subscription else await self.subscriptions(topic):
                await self.skip(topic, found, None)

        suffix = f"/{quote(subscription, safe='')}" if subscription else ""
        await self._on_topics(name, bundle, clear, f"clearBacklog{suffix}")

    async def unsubscribe_all(self, name: NamespaceName, bundle: str, subscription: str) -> None:
        """Delete one subscription from the topics of a bundle, or (with "") of all bundles at
        their owners."""

        async def unsubscribe(topic: TopicName) -> None:
            await self.delete_subscription(topic, subscription, force=False)

        await self._on_topics(
            name, bundle, unsubscribe, f"unsubscribe/{quote(subscription, safe='')}"
        )

    async def _on_topics(
        self,
        name: NamespaceName,
        bundle: str,
        act: Callable[[TopicName], Awaitable[None]],
        route: str,
    ) -> None:
        """Act on the persistent topics of a bundle served here, or (with "") have that done for
        every bundle that has topics.

        Topics without the subscription are passed over. Raises NotOwner for a bundle of another
        broker's.
        """
        wanted: dict[BundleName, list[TopicName]] = (
            {await self._bundle(name, bundle): []} if bundle else {}
        )
        turns = Turns(TOPICS_PER_TURN_MAX)
        for topic in map(TopicName.parse, await self.topics(name)):
            within = await self._broker.ownership.bundle_of(topic)
            if not bundle or within in wanted:
                wanted.setdefault(within, []).append(topic)
            await turns.after(1)
        for found, topics in wanted.items():
            try:
                await self._bundle_served_here(found)
            except NotOwner as error:
                if bundle or not error.http_url:
                    raise
                path = f"/admin/v2/namespaces/{name}/{found.range}/{route}"
                await ask_broker(self._broker.context, error.http_url, "POST", path)
                continue
            for topic in topics:
                with contextlib.suppress(SubscriptionNotFound, TopicNotFound):
                    await act(topic)

    async def _bundle(self, name: NamespaceName, span: str) -> BundleName:
        """The bundle of a namespace with this range. Raises TopicNotFound, InvalidTopicName."""
        bundle = BundleName.parse(f"{name}/{span.lower()}")
        if bundle not in bundles_of(name, (await self._namespace_record(name)).boundaries):
            raise TopicNotFound(
                f"bundle {bundle} is not one of namespace {name}; GET "
                f"/admin/v2/namespaces/{name}/bundles lists them"
            )
        return bundle

    def topics_of_bundle(
        self, name: NamespaceName, bundle: str, topics: Sequence[str]
    ) -> list[str]:
        found = BundleName.parse(f"{name}/{bundle.lower()}")
        return [topic for topic in topics if found.contains(TopicName.parse(topic))]

    def hash_positions(self, topics: Sequence[str]) -> dict[str, int]:
        return {topic: TopicName.parse(topic).hash for topic in topics}

    async def anti_affinity_namespaces(self, tenant: str, group: str) -> list[str]:
        """Namespaces (of a tenant, if named) whose policy names this group."""
        found = self._broker.views.namespaces.items.items()
        return sorted(
            name
            for name, viewed in found
            if viewed.record.policies.get("anti_affinity") == group
            and name.startswith(f"{tenant}/" if tenant else "")
        )

    # --- policies ---------------------------------------------------------------------------------

    async def policies(self, target: NamespaceName | TopicName, applied: bool) -> dict[str, Any]:
        if isinstance(target, NamespaceName):
            return dict((await self._namespace_record(target)).policies)
        own = dict(await self._topic_policies(target.base))
        if not applied:
            return own
        return {**(await self._namespace_record(target.namespace_name)).policies, **own}

    async def edit_policies(self, target: NamespaceName | TopicName, edit: Edit) -> None:
        if isinstance(target, NamespaceName):
            await self._edit_namespace(target, edit)
        elif await self._in_store(target.base):
            await self._edit_stored(target.base, edit)
        else:
            host = await self._host(target)
            policies = _edited(own_policies(host.core.properties), edit)
            await host.update_properties(
                {PROPERTY: json.dumps(policies, sort_keys=True) if policies else ""}
            )

    async def _edit_namespace(self, name: NamespaceName, edit: Edit) -> None:
        def change(current: NamespaceRecord | None) -> NamespaceRecord:
            if current is None:
                raise NamespaceNotFound(
                    f"Namespace {name} does not exist; create it with PUT or a TopicNamespace"
                )
            edited = _edited(current.policies, edit)
            refuse_edit(current, edited)
            return replace(current, policies=edited)

        await self._change_namespace(name, change)

    async def _edit_stored(self, topic: TopicName, edit: Edit) -> None:
        def change(current: TopicPoliciesRecord | None) -> TopicPoliciesRecord | None:
            policies = _edited(current.policies if current is not None else {}, edit)
            return TopicPoliciesRecord(policies) if policies else None

        key = keys.topic_policies(topic)
        written, revision = await self._change(key, TopicPoliciesRecord, change)
        value = written.encode() if written is not None else None
        self._broker.views.policies.observe(key.removeprefix(keys.POLICIES), value, revision)

    async def _in_store(self, topic: TopicName) -> bool:
        """Whether the topic's policies are a record of the store."""
        return not topic.persistent or await self._broker.service.partitions(topic) > 0

    async def _topic_policies(self, topic: TopicName) -> Mapping[str, Any]:
        if await self._in_store(topic):
            item = await self._broker.context.store.get(keys.topic_policies(topic))
            return TopicPoliciesRecord.decode(item.value).policies if item is not None else {}
        return own_policies((await self._host(topic)).core.properties)

    # --- properties -------------------------------------------------------------------------------

    async def properties(self, target: NamespaceName | TopicName) -> dict[str, str]:
        if isinstance(target, TopicName) and await self._broker.service.coordinators.announced(
            target
        ):
            return {}  # it stands for processes and has nothing of its own
        if isinstance(target, NamespaceName) or await self._in_store(target.base):
            return dict(
                (await self.policies(target, applied=False)).get(NAMESPACE_PROPERTIES) or {}
            )
        found = (await self._host(target)).core.properties
        return {
            name.removeprefix(USER_PREFIX): value
            for name, value in found.items()
            if name.startswith(USER_PREFIX)
        }

    async def edit_properties(
        self, target: NamespaceName | TopicName, put: Mapping[str, str], remove: Sequence[str]
    ) -> None:
        if isinstance(target, TopicName) and not await self._in_store(target.base):
            changes = {USER_PREFIX + name: value for name, value in put.items()}
            await (await self._host(target)).update_properties(
                {**changes, **{USER_PREFIX + name: "" for name in remove}}
            )
            return

        def edit(policies: dict[str, Any]) -> None:
            merged = {**(policies.get(NAMESPACE_PROPERTIES) or {}), **put}
            policies[NAMESPACE_PROPERTIES] = {
                name: value for name, value in merged.items() if name not in remove
            } or None

        await self.edit_policies(target, edit)


def _refuse_unless_empty(name: NamespaceName, entered: Mapping[TopicName, int]) -> None:
    """Raises NotAllowed if topics are entered in a namespace."""
    if entered:
        shown = ", ".join(sorted(map(str, entered))[:5])
        raise NotAllowed(
            f"Cannot delete non empty namespace {name}: it has {len(entered)} topics ({shown}); "
            "delete them or force it"
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


def _edited(policies: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """A copy of `policies`, edited and checked; what is null is gone. Raises InvalidRequest."""
    changed = dict(policies)
    edit(changed)
    kept = {key: value for key, value in changed.items() if value is not None}
    check(kept)
    return kept
