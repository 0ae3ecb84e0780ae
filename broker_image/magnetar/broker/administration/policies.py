"""Policies and properties of namespaces and topics.

Owns: reading and editing them. Imports: metadata, policies, names. Invariants: a policy is checked
before it is written, and acts here as soon as its request is answered (other brokers follow their
watch); policies of a partitioned or non-persistent topic are a record of the store, those of any
other topic are its own durable property.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from magnetar.broker.administration.site import Site
from magnetar.broker.topics.effective_policies import PROPERTY, own_policies
from magnetar.errors import NamespaceNotFound, PreconditionFailed
from magnetar.metadata import keys
from magnetar.metadata.owned_fields import refuse_edit
from magnetar.metadata.records import (
    NamespaceRecord,
    TopicPoliciesRecord,
)
from magnetar.names import NamespaceName, TopicName
from magnetar.policies import checked, contradict

RETENTION, QUOTAS = "retention_policies", "backlog_quota_map"
QUOTA_BEYOND_RETENTION = (
    "Backlog Quota exceeds configured retention quota for namespace. Please increase retention "
    "quota and retry"
)
RETENTION_BELOW_QUOTA = "Retention Quota must exceed configured backlog quota for namespace."
USER_PREFIX = "user."
NAMESPACE_PROPERTIES = "properties"
Edit = Callable[[dict[str, Any]], None]


class Policies:
    """Policies and properties."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def policies(self, target: NamespaceName | TopicName, applied: bool) -> dict[str, Any]:
        if isinstance(target, NamespaceName):
            return dict((await self._site.namespace_record(target)).policies)
        own = dict(await self._topic_policies(target.base))
        if not applied:
            return own
        return {**(await self._site.namespace_record(target.namespace_name)).policies, **own}

    async def edit_policies(self, target: NamespaceName | TopicName, edit: Edit) -> None:
        if isinstance(target, NamespaceName):
            await self._edit_namespace(target, edit)
        elif await self._in_store(target.base):
            await self._edit_stored(target.base, edit)
        else:
            host = await self._site.host(target)
            policies = _edited(own_policies(host.core.properties), edit)
            await host.update_properties(
                {PROPERTY: json.dumps(policies, sort_keys=True) if policies else ""}
            )

    async def _edit_namespace(self, name: NamespaceName, edit: Edit) -> None:
        def change(current: NamespaceRecord | None) -> NamespaceRecord:
            if current is None:
                raise NamespaceNotFound.named(name)
            edited = _edited(current.policies, edit)
            refuse_edit(current, edited)
            return replace(current, policies=edited)

        await self._site.change_namespace(name, change)

    async def _edit_stored(self, topic: TopicName, edit: Edit) -> None:
        def change(current: TopicPoliciesRecord | None) -> TopicPoliciesRecord | None:
            policies = _edited(current.policies if current is not None else {}, edit)
            return TopicPoliciesRecord(policies) if policies else None

        key = keys.topic_policies(topic)
        written, revision = await self._site.change(key, TopicPoliciesRecord, change)
        value = written.encode() if written is not None else None
        self._site.broker.views.policies.observe(key.removeprefix(keys.POLICIES), value, revision)

    async def _in_store(self, topic: TopicName) -> bool:
        """Whether the topic's policies are a record of the store."""
        return not topic.persistent or await self._site.broker.service.partitions(topic) > 0

    async def _topic_policies(self, topic: TopicName) -> Mapping[str, Any]:
        if await self._in_store(topic):
            item = await self._site.broker.context.store.get(keys.topic_policies(topic))
            return TopicPoliciesRecord.decode(item.value).policies if item is not None else {}
        return own_policies((await self._site.host(topic)).core.properties)

    async def properties(self, target: NamespaceName | TopicName) -> dict[str, str]:
        if isinstance(target, TopicName) and await self._site.broker.service.coordinators.announced(
            target
        ):
            return {}  # it stands for processes and has nothing of its own
        if isinstance(target, NamespaceName) or await self._in_store(target.base):
            return dict(
                (await self.policies(target, applied=False)).get(NAMESPACE_PROPERTIES) or {}
            )
        found = (await self._site.host(target)).core.properties
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
            await (await self._site.host(target)).update_properties(
                {**changes, **{USER_PREFIX + name: "" for name in remove}}
            )
            return

        def edit(policies: dict[str, Any]) -> None:
            merged = {**(policies.get(NAMESPACE_PROPERTIES) or {}), **put}
            policies[NAMESPACE_PROPERTIES] = {
                name: value for name, value in merged.items() if name not in remove
            } or None

        await self.edit_policies(target, edit)


def _edited(policies: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """A copy of `policies`, edited and checked; what is null is gone. What was stored before is
    neither checked again nor lost. Raises InvalidRequest, PreconditionFailed, NotOffered."""
    changed = dict(policies)
    edit(changed)
    new = checked({key: value for key, value in changed.items() if value != policies.get(key)})
    kept = {
        key: new.get(key, value)
        for key, value in changed.items()
        if value is not None and (key in new or value == policies.get(key))
    }
    if contradict(new | {key: kept[key] for key in kept.keys() & {RETENTION, QUOTAS}}):
        raise PreconditionFailed(
            *(
                (QUOTA_BEYOND_RETENTION, "raise retention first, or set a lower quota")
                if QUOTAS in new
                else (RETENTION_BELOW_QUOTA, "lower the backlog quota first, or retain more")
            )
        )
    return kept
