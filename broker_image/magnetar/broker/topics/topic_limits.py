"""How many topics a namespace may have, and what the subscriptions of one may do.

Owns: `TopicLimits`, which every creation of topics asks for room; `dispatch_limits`. Imports:
errors, names, topics, settings, the registry, policies. Pulsar leaves out system topics, and so does
the policy here; the setting counts all. Invariants: partitions are counted one by one; topics that
are being created here count already, those of other brokers once the mirror has them. So brokers
that create topics at the same moment may exceed a limit by what each has under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from magnetar.errors import NotAllowed
from magnetar.names import NamespaceName, TopicName
from magnetar.topics.dispatch.base import DispatchLimits
from magnetar.topics.topic_list import is_system_topic

if TYPE_CHECKING:
    from magnetar.broker.topics.effective_policies import EffectivePolicies
    from magnetar.broker.topics.topic_registry import TopicRegistry
    from magnetar.hosting.settings import BrokerSettings
    from magnetar.policies import Policies


class TopicLimits:
    """Namespace-wide limits, by the policy `max_topics_per_namespace` and by the setting
    `topics_per_namespace_max`."""

    def __init__(
        self, settings: BrokerSettings, registry: TopicRegistry, policies: EffectivePolicies
    ) -> None:
        self._settings, self._registry, self._policies = settings, registry, policies
        self._creating: Counter[TopicName] = Counter()

    @contextmanager
    def room(self, names: Sequence[TopicName]) -> Iterator[None]:
        """Topics of one namespace, all that come with one request, are created within. Raises
        NotAllowed if they are too many."""
        fresh = [
            name for name in names if not self._creating[name] and not self._registry.holds(name)
        ]
        if fresh:
            self._check(fresh[0].namespace_name, fresh)
        self._creating.update(names)
        try:
            yield
        finally:
            self._creating.subtract(names)
            for name in names:
                if not self._creating[name]:
                    del self._creating[name]

    def _check(self, namespace: NamespaceName, fresh: Sequence[TopicName]) -> None:
        limit = self._settings.topics_per_namespace_max
        if not self._has_room(namespace, len(fresh), limit, shown=False):
            raise NotAllowed(
                f"namespace {namespace} may have {limit} topics (topics_per_namespace_max); delete "
                "some or raise it"
            )
        limit = self._policies.namespace(namespace).max_topics
        shown = sum(not is_system_topic(name) for name in fresh)
        if limit and shown and not self._has_room(namespace, shown, limit, shown=True):
            raise NotAllowed(
                f"Exceed maximum number of topics in namespace {namespace}: {limit}; delete some "
                "or raise the policy"
            )

    def _has_room(self, namespace: NamespaceName, more: int, limit: int, *, shown: bool) -> bool:
        """Whether there may be so many more topics, with those that are on their way."""
        registry = self._registry
        number = registry.count(namespace, shown=shown) + more
        if number > limit or number + len(self._creating) + registry.writes_under_way <= limit:
            return number <= limit
        coming = (
            name
            for name in {*self._creating, *registry.coming()}
            if name.namespace_name == namespace
        )
        return (
            number
            + sum(
                not registry.holds(name) and not (shown and is_system_topic(name))
                for name in coming
            )
            <= limit
        )


def dispatch_limits(policies: Policies, settings: BrokerSettings) -> DispatchLimits:
    """What policies and settings allow the subscriptions of a topic."""
    return DispatchLimits(
        unacknowledged_per_consumer_messages_max=policies.max_unacked_per_consumer,
        unacknowledged_per_subscription_messages_max=policies.max_unacked_per_subscription,
        delayed_delivery=policies.delayed_delivery.active,
        delay_tick_ms=max(1, policies.delayed_delivery.tick_ms),
        delayed_runs_max=settings.delayed_runs_max,
        chunked_messages_max=settings.chunked_messages_max,
        failover_delay_ms=settings.failover_delay_ms,
        key_shared_consistent_hashing=bool(settings.key_shared_consistent_hashing),
        look_ahead_per_consumer_entries_max=settings.look_ahead_per_consumer_entries_max,
        look_ahead_per_subscription_entries_max=settings.look_ahead_per_subscription_entries_max,
    )
