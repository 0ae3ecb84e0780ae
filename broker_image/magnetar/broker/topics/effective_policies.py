"""Policies in force.

Owns: the effective policies of every namespace and topic served here, and notifying topics of
changes. Imports: policies, metadata, views. Invariants: what an administrator sets acts as soon as
this broker's watch shows it; a record that cannot be read in full counts with what can be read of
it, and says so; topics without policies of their own share one object with their namespace.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from magnetar.broker.topics.throttles import GroupRates, ResourceGroups
from magnetar.clock import Clock
from magnetar.errors import InvalidRequest, NotOffered
from magnetar.hosting.settings import BrokerSettings
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.metadata.records import RESOURCE_GROUPS
from magnetar.names import NamespaceName, TopicName
from magnetar.policies import InactiveTopic, Policies, effective, readable
from magnetar.policy_shapes import NO_SUBSCRIPTIONS

if TYPE_CHECKING:
    from magnetar.broker.ports import ServedBundle

log = structlog.get_logger(__name__)

PROPERTY = "policies"
"""The property of a topic that holds its own policies, as JSON."""


def broker_defaults(settings: BrokerSettings) -> Policies:
    """Policies where neither topic nor namespace sets any."""
    seconds = settings.inactive_topic_s
    return Policies(inactive_topic=InactiveTopic(seconds > 0, NO_SUBSCRIPTIONS, seconds or 60))


def own_policies(properties: Mapping[str, str]) -> dict[str, Any]:
    text = properties.get(PROPERTY)
    return dict(json.loads(text)) if text else {}


class EffectivePolicies:
    """Policies by namespace and topic, as of the views."""

    def __init__(
        self,
        settings: BrokerSettings,
        views: ClusterViews,
        owned: Mapping[str, ServedBundle],
        clock: Clock,
    ) -> None:
        """`owned` are the bundles served here, whose topics are notified when their policies may
        have changed."""
        self._defaults, self._views, self._owned = broker_defaults(settings), views, owned
        self._namespaces: dict[str, tuple[int, Policies]] = {}
        self.version = 0
        """Grows with every change that may concern a topic: bundles that were not in `owned` yet
        must check again."""
        for view in (views.namespaces, views.policies):
            view.listen(self._changed)
        self._groups = ResourceGroups(views, clock)
        views.documents.listen(self._documents_changed)

    def group(self, name: str) -> GroupRates | None:
        """What the topics of a resource group share at this broker; None if it is not there."""
        return self._groups.rates(name)

    def _documents_changed(self, names: list[str]) -> None:
        if RESOURCE_GROUPS in names:
            self.version += 1
            for owned in self._owned.values():
                owned.refresh_policies()

    def _changed(self, names: list[str]) -> None:
        self.version += 1
        changed = {"/".join(name.split("/", 2)[:2]) for name in names}
        for owned in self._owned.values():
            if str(owned.name.namespace) in changed:
                owned.refresh_policies()

    def namespace(self, name: NamespaceName) -> Policies:
        """Policies of a namespace; the broker's defaults for one that is not known."""
        viewed = self._views.namespaces.get(str(name))
        if viewed is None:
            return self._defaults
        known = self._namespaces.get(str(name))
        if known is None or known[0] != viewed.mod_revision:
            known = viewed.mod_revision, self._merge(str(name), viewed.record.policies, {})
            self._namespaces[str(name)] = known
        return known[1]

    def topic(self, name: TopicName, properties: Mapping[str, str]) -> Policies:
        """Policies of a topic with these durable properties; a partition has those of its
        partitioned topic."""
        own = {**own_policies(properties), **self.shared(name)}
        if not own:
            return self.namespace(name.namespace_name)
        viewed = self._views.namespaces.get(str(name.namespace_name))
        return self._merge(str(name), viewed.record.policies if viewed is not None else {}, own)

    def shared(self, name: TopicName) -> Mapping[str, Any]:
        """What the store holds for a topic: it is partitioned, a partition, or not persistent."""
        viewed = self._views.policies.get(
            keys.topic_policies(name.base).removeprefix(keys.POLICIES)
        )
        return viewed.record.policies if viewed is not None else {}

    def _merge(self, what: str, namespace: Mapping[str, Any], topic: Mapping[str, Any]) -> Policies:
        try:
            return effective(self._defaults, namespace, topic)
        except (InvalidRequest, NotOffered) as error:
            log.error("policies.invalid", what=what, error=str(error))
            return effective(self._defaults, readable(namespace), readable(topic))
