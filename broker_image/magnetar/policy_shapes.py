"""How Pulsar's JSON of each policy looks.

Owns: `SHAPES`, by the key in the record of a namespace or topic; what `canonical` makes of a value;
`UNSET_POLICIES`. Imports: shapes, errors. Pure. Source: the classes of Pulsar's admin API that its
mapper reads these policies into, with their defaults. Invariants: every key that may be stored has a
shape; a value is stored in one form, which `GET` returns and `magnetar.policies` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from magnetar.schemas.strategies import AUTO_UPDATE, Strategy
from magnetar.shapes import (
    FLAG,
    INT,
    LONG,
    PROPERTIES,
    TEXT,
    TEXTS,
    Anything,
    Bean,
    Choice,
    Items,
    Named,
    Number,
    Shape,
)

DESTINATION_STORAGE, MESSAGE_AGE = "destination_storage", "message_age"
HOLD, REFUSE, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
NO_SUBSCRIPTIONS, CAUGHT_UP = "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"
SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
INFINITE = -1

RETENTION = Bean(
    {"retentionTimeInMinutes": INT, "retentionSizeInMB": LONG},
    {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
)
BACKLOG_QUOTA = Bean(
    {"limit": LONG, "limitSize": LONG, "limitTime": INT, "policy": Choice(HOLD, REFUSE, EVICT)}
)
DISPATCH_RATE = Bean(
    {
        "dispatchThrottlingRateInMsg": INT,
        "dispatchThrottlingRateInByte": LONG,
        "relativeToPublishRate": FLAG,
        "ratePeriodInSecond": INT,
    },
    {
        "dispatchThrottlingRateInMsg": 0,
        "dispatchThrottlingRateInByte": 0,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 0,
    },
)
PUBLISH_RATE = Bean(
    {"publishThrottlingRateInMsg": INT, "publishThrottlingRateInByte": LONG},
    {"publishThrottlingRateInMsg": INFINITE, "publishThrottlingRateInByte": INFINITE},
)
SUBSCRIBE_RATE = Bean(
    {"subscribeThrottlingRatePerConsumer": INT, "ratePeriodInSecond": INT},
    {"subscribeThrottlingRatePerConsumer": INFINITE, "ratePeriodInSecond": 30},
)
_DELAYED = Bean(
    {"tickTime": LONG, "active": FLAG, "maxDeliveryDelayInMillis": LONG},
    {"tickTime": 0, "active": False, "maxDeliveryDelayInMillis": 0},
)
_INACTIVE = Bean(
    {
        "inactiveTopicDeleteMode": Choice(NO_SUBSCRIPTIONS, CAUGHT_UP),
        "maxInactiveDurationSeconds": INT,
        "deleteWhileInactive": FLAG,
    },
    {
        "inactiveTopicDeleteMode": NO_SUBSCRIPTIONS,
        "maxInactiveDurationSeconds": 0,
        "deleteWhileInactive": False,
    },
)
_AUTO_TOPIC = Bean(
    {"allowAutoTopicCreation": FLAG, "topicType": TEXT, "defaultNumPartitions": INT},
    {"allowAutoTopicCreation": False},
)
RESOURCE_GROUP = Bean(
    {
        "publishRateInMsgs": INT,
        "publishRateInBytes": LONG,
        "dispatchRateInMsgs": INT,
        "dispatchRateInBytes": LONG,
    }
)
_PERSISTENCE = Bean(
    {
        "bookkeeperEnsemble": INT,
        "bookkeeperWriteQuorum": INT,
        "bookkeeperAckQuorum": INT,
        "managedLedgerMaxMarkDeleteRate": Number(),
        "managedLedgerStorageClassName": TEXT,
    },
    {
        "bookkeeperEnsemble": 0,
        "bookkeeperWriteQuorum": 0,
        "bookkeeperAckQuorum": 0,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    },
)
_WATERMARKS = Bean({"enabled": FLAG, "idleTimeout": INT, "snapshotInterval": INT})
_STRATEGY = Choice(*(found.value for found in Strategy))
_AUTH = Bean(
    {
        "namespace_auth": Named(Items(Choice(*ACTIONS))),
        "destination_auth": Named(Named(Items(Choice(*ACTIONS)))),
        "subscription_auth_roles": Named(TEXTS),
    }
)

SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "deduplicationEnabled": FLAG,
        "deduplicationSnapshotIntervalSeconds": INT,
        "encryption_required": FLAG,
        "autoTopicCreationOverride": _AUTO_TOPIC,
        "autoSubscriptionCreationOverride": Bean(
            {"allowAutoSubscriptionCreation": FLAG}, {"allowAutoSubscriptionCreation": False}
        ),
        "retention_policies": RETENTION,
        "message_ttl_in_seconds": INT,
        "backlog_quota_map": Named(BACKLOG_QUOTA),
        "max_producers_per_topic": INT,
        "max_consumers_per_topic": INT,
        "max_consumers_per_subscription": INT,
        "max_subscriptions_per_topic": INT,
        "max_topics_per_namespace": INT,
        "max_unacked_messages_per_consumer": INT,
        "max_unacked_messages_per_subscription": INT,
        "delayed_delivery_policies": _DELAYED,
        "inactive_topic_policies": _INACTIVE,
        "watermarks": _WATERMARKS,
        "subscription_types_enabled": Items(Choice(*SUBSCRIPTION_TYPES)),
        "subscription_expiration_time_minutes": INT,
        "max_message_size": INT,
        "compaction_threshold": LONG,
        "schema_compatibility_strategy": _STRATEGY,
        "schema_auto_update_compatibility_strategy": Choice(*AUTO_UPDATE),
        "is_allow_auto_update_schema": FLAG,
        "schema_validation_enforced": FLAG,
        "publishMaxMessageRate": PUBLISH_RATE,
        "topicDispatchRate": DISPATCH_RATE,
        "subscriptionDispatchRate": DISPATCH_RATE,
        "replicatorDispatchRate": DISPATCH_RATE,
        "clusterSubscribeRate": SUBSCRIBE_RATE,
        "persistence": _PERSISTENCE,
        "replication_clusters": TEXTS,
        "allowed_clusters": TEXTS,
        "subscription_auth_mode": Choice("None", "Prefix"),
        "anti_affinity": TEXT,
        "resource_group_name": TEXT,
        "offload_policies": Anything(),
        "offload_threshold": LONG,
        "offload_threshold_in_seconds": LONG,
        "offload_deletion_lag_ms": LONG,
        "entryFilters": Bean({"entryFilterNames": TEXT}),
        "dispatcherPauseOnAckStatePersistentEnabled": FLAG,
        "bookie_affinity": Anything(),
        "migration": FLAG,
        "auth_policies": _AUTH,
        "properties": PROPERTIES,
    }
)


def canonical(key: str, value: Any) -> Any:
    """A policy in its one form; None is one that is not set. Raises InvalidRequest."""
    shape = SHAPES.get(key)
    return value if shape is None else shape.read(key, value)


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
UNSET_POLICIES: Mapping[str, Any] = MappingProxyType(
    {
        "auth_policies": {
            "namespace_auth": {},
            "destination_auth": {},
            "subscription_auth_roles": {},
        },
        "allowed_clusters": [],
        "backlog_quota_map": {},
        **{key: {} for key in sorted(RATES)},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "is_allow_auto_update_schema": True,
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }
)
"""What Pulsar's `Policies` shows of policies that are not set, but for the clusters."""
