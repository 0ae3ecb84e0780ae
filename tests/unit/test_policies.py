"""Policies: which level wins, what every key means, and that a bad value is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import InvalidRequest, NotOffered
from magnetar.policies import (
    READERS,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    InactiveTopic,
    Policies,
    Rate,
    WatermarkPolicy,
    checked,
    effective,
    readable,
)
from magnetar.policy_shapes import CAUGHT_UP, EVICT, REFUSE, SUBSCRIPTION_TYPES, canonical
from magnetar.schemas.strategies import Strategy

GOOD: dict[str, tuple[Any, dict[str, Any]]] = {
    "deduplicationEnabled": (True, {"deduplication_enabled": True}),
    "deduplicationSnapshotIntervalSeconds": (7, {"deduplication_snapshot_interval": 7}),
    "encryption_required": (True, {"encryption_required": True}),
    "autoTopicCreationOverride": (
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        {"auto_topic_creation": AutoTopicCreation(True, "partitioned", 3)},
    ),
    "autoSubscriptionCreationOverride": (
        {"allowAutoSubscriptionCreation": False},
        {"auto_subscription_creation": False},
    ),
    "retention_policies": (
        {"retentionTimeInMinutes": 10, "retentionSizeInMB": -1},
        {"retention_minutes": 10, "retention_mb": -1},
    ),
    "message_ttl_in_seconds": (60, {"message_ttl_s": 60}),
    "backlog_quota_map": (
        {"destination_storage": {"limit": 10, "policy": "producer_exception"}},
        {"backlog_quotas": {"destination_storage": BacklogQuota(10, -1, REFUSE)}},
    ),
    "max_producers_per_topic": (1, {"max_producers": 1}),
    "max_consumers_per_topic": (2, {"max_consumers": 2}),
    "max_consumers_per_subscription": (3, {"max_consumers_per_subscription": 3}),
    "max_subscriptions_per_topic": (4, {"max_subscriptions": 4}),
    "max_topics_per_namespace": (5, {"max_topics": 5}),
    "max_unacked_messages_per_consumer": (6, {"max_unacked_per_consumer": 6}),
    "max_unacked_messages_per_subscription": (7, {"max_unacked_per_subscription": 7}),
    "delayed_delivery_policies": (
        {"tickTime": 250, "active": True, "maxDeliveryDelayInMillis": None},
        {"delayed_delivery": DelayedDelivery(True, 250, 0)},
    ),
    "inactive_topic_policies": (
        {
            "inactiveTopicDeleteMode": CAUGHT_UP,
            "maxInactiveDurationSeconds": 5,
            "deleteWhileInactive": True,
        },
        {"inactive_topic": InactiveTopic(True, CAUGHT_UP, 5)},
    ),
    "watermarks": (
        {"enabled": True, "idleTimeout": 5},
        {"watermarks": WatermarkPolicy(True, True, 5, 10_000)},
    ),
    "subscription_types_enabled": (
        ["Shared"],
        {"subscription_types_enabled": frozenset({"Shared"})},
    ),
    "subscription_expiration_time_minutes": (9, {"subscription_expiration_minutes": 9}),
    "max_message_size": (1000, {"max_message_bytes": 1000}),
    "compaction_threshold": (1 << 40, {"compaction_threshold": 1 << 40}),
    "schema_compatibility_strategy": (
        "BACKWARD",
        {"schema_strategy": Strategy.BACKWARD},
    ),
    "schema_auto_update_compatibility_strategy": (
        "AutoUpdateDisabled",
        {"schema_auto_update": Strategy.ALWAYS_INCOMPATIBLE},
    ),
    "is_allow_auto_update_schema": (False, {"schema_updates_allowed": False}),
    "schema_validation_enforced": (True, {"schema_validation_enforced": True}),
    "publishMaxMessageRate": (
        {"publishThrottlingRateInMsg": "10", "publishThrottlingRateInByte": -1},
        {"publish_rate": Rate(10)},
    ),
    "topicDispatchRate": (
        {"dispatchThrottlingRateInByte": 5, "relativeToPublishRate": True},
        {"dispatch_rate": Rate(0, 5, 1, True)},
    ),
    "subscriptionDispatchRate": (
        {"dispatchThrottlingRateInMsg": 4, "ratePeriodInSecond": 2},
        {"subscription_dispatch_rate": Rate(4, 0, 2)},
    ),
    "clusterSubscribeRate": (
        {"subscribeThrottlingRatePerConsumer": 3},
        {"subscribe_rate": Rate(3, 0, 30)},
    ),
    "resource_group_name": ("g", {"resource_group": "g"}),
}
REFUSED: list[tuple[str, Any]] = [
    ("offload_policies", {"managedLedgerOffloadDriver": "S3"}),
    ("offload_threshold", 1),
    ("offload_threshold_in_seconds", 0),
    ("offload_deletion_lag_ms", 10),
    ("entryFilters", {"entryFilterNames": "a"}),
    ("bookie_affinity", {"bookkeeperAffinityGroupPrimary": "g"}),
    ("migration", True),
]


@pytest.mark.parametrize(("key", "value"), REFUSED)
def test_what_nothing_here_could_do_is_refused_with_what_there_is(key: str, value: Any) -> None:
    """And a record of another writer that has it makes no topic unusable."""
    with pytest.raises(NotOffered, match=key) as refused:
        checked({key: value})
    assert refused.value.remedy
    assert readable({key: value}) == {}
    assert effective(Policies(), {key: value}, {}) == Policies()


@given(st.sampled_from(sorted(GOOD)))
def test_one_form_is_read_as_itself(key: str) -> None:
    value = canonical(key, GOOD[key][0])
    assert canonical(key, value) == value


BAD: list[tuple[str, Any]] = [
    ("deduplicationEnabled", "yes"),
    ("deduplicationEnabled", 1.5),
    ("message_ttl_in_seconds", -1),
    ("message_ttl_in_seconds", True),
    ("message_ttl_in_seconds", [1]),
    ("message_ttl_in_seconds", 1 << 31),
    ("retention_policies", 5),
    ("retention_policies", {"retentionTimeInMinutes": 10, "retentionSizeInMB": 0}),
    ("retention_policies", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}),
    ("autoTopicCreationOverride", {"allowAutoTopicCreation": True, "topicType": "round"}),
    (
        "autoTopicCreationOverride",
        {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
    ),
    ("backlog_quota_map", {"disk": {}}),
    ("backlog_quota_map", {"message_age": {"policy": "wait"}}),
    ("delayed_delivery_policies", {"tickTime": -1}),
    ("inactive_topic_policies", {"inactiveTopicDeleteMode": "never"}),
    ("watermarks", {"enabled": "yes"}),
    ("watermarks", {"enabled": True, "idleTimeout": -1}),
    ("watermarks", {"enabled": True, "snapshotInterval": 99}),
    ("subscription_types_enabled", "Shared"),
    ("subscription_types_enabled", ["Broadcast"]),
    ("schema_compatibility_strategy", "Backward"),
    ("schema_auto_update_compatibility_strategy", "BACKWARD"),
    ("schema_validation_enforced", "yes"),
]


@pytest.mark.parametrize("key", sorted(READERS))
def test_every_policy_is_read_and_only_it_changes(key: str) -> None:
    value, changed = GOOD[key]
    found = effective(Policies(), {key: value}, {})
    for field, expected in changed.items():
        assert getattr(found, field) == expected
    for field in Policies.__dataclass_fields__:
        assert field in changed or getattr(found, field) == getattr(Policies(), field), field


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_value_that_cannot_be_read_is_refused_by_name_and_kept_apart(
    key: str, value: Any
) -> None:
    """Nothing bad is stored; and what is stored badly by another writer spoils nothing but
    itself."""
    with pytest.raises(InvalidRequest, match=key):
        checked({key: value})
    with pytest.raises(InvalidRequest, match=key):
        effective(Policies(), {}, {key: value})
    assert readable({key: value, "x": 1}) == {"x": 1}


@pytest.mark.parametrize(
    ("namespace", "topic", "expected"),
    [
        ({}, {}, Strategy.FULL),
        ({"schema_auto_update_compatibility_strategy": "Forward"}, {}, Strategy.FORWARD),
        (
            {
                "schema_auto_update_compatibility_strategy": "Forward",
                "schema_compatibility_strategy": "BACKWARD",
            },
            {"schema_compatibility_strategy": "UNDEFINED"},
            Strategy.BACKWARD,
        ),
        (
            {"schema_compatibility_strategy": "BACKWARD"},
            {"schema_compatibility_strategy": "FORWARD"},
            Strategy.FORWARD,
        ),
    ],
)
def test_the_strategy_of_schemas_comes_from_the_nearest_level_that_has_one(
    namespace: dict[str, Any], topic: dict[str, Any], expected: Strategy
) -> None:
    """UNDEFINED is none; the older policy counts where the newer one is not set."""
    assert effective(Policies(), namespace, topic).schema_compatibility is expected


@given(st.sets(st.sampled_from(sorted(READERS))), st.sets(st.sampled_from(sorted(READERS))))
def test_a_topic_wins_over_its_namespace_and_null_is_not_set(
    at_namespace: set[str], at_topic: set[str]
) -> None:
    """Per key: the topic's value if set, else the namespace's, else the broker's; keys without
    effect are passed over."""
    namespace = {key: GOOD[key][0] if key in at_namespace else None for key in sorted(READERS)} | {
        "unheard_of": {"a": 1}
    }
    other = {
        "message_ttl_in_seconds": 5,
        "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    }
    topic = {key: other.get(key, GOOD[key][0]) for key in at_topic}
    expected: dict[str, Any] = {}
    for key in sorted(at_namespace):
        expected.update(GOOD[key][1])
    for key in sorted(at_topic):
        expected.update(
            {"message_ttl_s": 5}
            if key == "message_ttl_in_seconds"
            else {"retention_minutes": -1, "retention_mb": -1}
            if key == "retention_policies"
            else GOOD[key][1]
        )
    found = effective(Policies(), namespace, topic)
    for field in Policies.__dataclass_fields__:
        assert getattr(found, field) == expected.get(field, getattr(Policies(), field)), field


def test_backlog_quotas_are_merged_by_type() -> None:
    """A topic may have its own limit of age and keep its namespace's limit of size; `limitSize`
    counts before the old `limit`."""
    namespace = {
        "backlog_quota_map": {"destination_storage": {"limit": 1, "limitSize": 2, "policy": EVICT}}
    }
    topic = {"backlog_quota_map": {"message_age": {"limitTime": 3, "policy": REFUSE}}}
    found = effective(Policies(), namespace, topic).backlog_quotas
    assert found == {
        "destination_storage": BacklogQuota(2, -1, EVICT),
        "message_age": BacklogQuota(-1, 3, REFUSE),
    }


def test_without_policies_everybody_shares_the_brokers_defaults() -> None:
    """Ten thousand topics must not hold ten thousand copies."""
    defaults = Policies(message_ttl_s=3)
    assert effective(defaults, {}, {"properties": {"a": "b"}}) is defaults
    assert not defaults.retains_permanently
    assert Policies(retention_minutes=-1, retention_mb=-1).retains_permanently


def test_no_types_enabled_means_all_of_them() -> None:
    assert effective(
        Policies(), {"subscription_types_enabled": []}, {}
    ).subscription_types_enabled == frozenset(SUBSCRIPTION_TYPES)
