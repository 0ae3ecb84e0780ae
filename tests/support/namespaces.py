"""Sample TopicNamespaces, and every valid one as a hypothesis strategy."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from magnetar.resources import parse_manifest
from magnetar.resources.base import API_VERSION
from magnetar.resources.topic_namespace import TopicNamespace
from magnetar.schemas.strategies import Strategy

INT_MAX = (1 << 31) - 1
MAXIMA = (
    "max_producers_per_topic", "max_consumers_per_topic", "max_consumers_per_subscription", "max_subscriptions_per_topic",
    "max_topics_per_namespace", "max_unacked_messages_per_consumer", "max_unacked_messages_per_subscription",
    "subscription_expiration_time_minutes", "message_ttl_in_seconds",
)  # fmt: skip
EXCEEDING = st.sampled_from(
    ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
)
LIMIT = st.sampled_from((-1, 1, 1000, INT_MAX))
FULL = {
    "retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1},
    "message_ttl_in_seconds": 3600,
    "deduplicationEnabled": True,
    "backlog_quota_map": {
        "destination_storage": {"limitSize": 1 << 30, "policy": "producer_exception"},
        "message_age": {"limitTime": 86400},
    },
    "inactive_topic_policies": {"deleteWhileInactive": False},
    "autoTopicCreationOverride": {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": 3,
    },
    "autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False},
    "delayed_delivery_policies": {"active": True, "tickTime": 100},
    "compaction_threshold": 100 << 20,
    "watermarks": {"enabled": True, "idleTimeout": 60, "snapshotInterval": 1000},
    "encryption_required": False,
    "schema_compatibility_strategy": "BACKWARD",
    "is_allow_auto_update_schema": False,
    "schema_validation_enforced": True,
    "subscription_types_enabled": ["Shared", "Failover"],
    **dict.fromkeys(MAXIMA[:-1], 7),
}
"""Every policy there is."""


def topic_namespace(
    name: str = "orders", created: str = "2026-01-01T00:00:00Z", **spec: Any
) -> TopicNamespace:
    content = {"clusterRef": {"name": "main"}, "tenant": "acme", "namespace": "orders", **spec}
    metadata = {
        "name": name,
        "namespace": "shop",
        "uid": f"u-{name}",
        "generation": 1,
        "creationTimestamp": created,
    }
    resource = parse_manifest(
        {"apiVersion": API_VERSION, "kind": "TopicNamespace", "metadata": metadata, "spec": content}
    )
    assert isinstance(resource, TopicNamespace)
    return resource


def policies() -> st.SearchStrategy[dict[str, Any]]:
    """Any set of policies that a manifest may have."""
    limits = st.tuples(LIMIT, LIMIT) | st.just((0, 0))
    return st.fixed_dictionaries(
        {},
        optional={
            "retention_policies": limits.map(
                lambda pair: {"retentionTimeInMinutes": pair[0], "retentionSizeInMB": pair[1]}
            ),
            "deduplicationEnabled": st.booleans(),
            "encryption_required": st.booleans(),
            "schema_compatibility_strategy": st.sampled_from(list(Strategy)).map(str),
            "is_allow_auto_update_schema": st.booleans(),
            "schema_validation_enforced": st.booleans(),
            "backlog_quota_map": st.fixed_dictionaries(
                {},
                optional={
                    "destination_storage": st.fixed_dictionaries(
                        {"limitSize": LIMIT}, optional={"policy": EXCEEDING}
                    ),
                    "message_age": st.fixed_dictionaries(
                        {"limitTime": LIMIT}, optional={"policy": EXCEEDING}
                    ),
                },
            ),
            "inactive_topic_policies": st.fixed_dictionaries(
                {"deleteWhileInactive": st.booleans()},
                optional={"maxInactiveDurationSeconds": st.integers(1, INT_MAX)},
            ),
            "autoTopicCreationOverride": st.sampled_from(
                (
                    {"allowAutoTopicCreation": False},
                    {
                        "allowAutoTopicCreation": True,
                        "topicType": "partitioned",
                        "defaultNumPartitions": 4,
                    },
                )
            ),
            "autoSubscriptionCreationOverride": st.fixed_dictionaries(
                {"allowAutoSubscriptionCreation": st.booleans()}
            ),
            "delayed_delivery_policies": st.fixed_dictionaries(
                {"active": st.booleans()}, optional={"tickTime": st.integers(1, 9999)}
            ),
            "watermarks": st.fixed_dictionaries(
                {"enabled": st.booleans()},
                optional={
                    "idleTimeout": st.integers(0, 9999),
                    "snapshotInterval": st.integers(100, 1_000_000),
                },
            ),
            "subscription_types_enabled": st.lists(
                st.sampled_from(("Exclusive", "Shared", "Failover", "Key_Shared")),
                min_size=1,
                unique=True,
            ),
            **{name: st.integers(0, INT_MAX) for name in MAXIMA},
        },
    )


def specs() -> st.SearchStrategy[dict[str, Any]]:
    """What a resource may own: policies, permissions, properties, the tenant's configuration."""
    words = st.sampled_from(("alice", "bob", "a.b", "backlog_quota_map.x"))
    actions = st.lists(
        st.sampled_from(("produce", "consume", "functions")), min_size=1, unique=True
    )
    names = st.lists(st.sampled_from(("x", "y", "standalone")), min_size=1, unique=True)
    return st.fixed_dictionaries(
        {},
        optional={
            "policies": policies(),
            "permissions": st.dictionaries(words, actions, max_size=3),
            "properties": st.dictionaries(words, st.text(max_size=5), max_size=3),
            "tenantConfig": st.fixed_dictionaries(
                {"adminRoles": names}, optional={"allowedClusters": names}
            ),
        },
    )
