"""Which policies there are, and what `GET` shows of them.

Owns: the table of policies under `/admin/v2/namespaces/T/N/<name>` and
`/admin/v2/persistent/T/N/topic/<name>`. Imports: FastAPI, policies, answers. Source: names, values and
statuses of Pulsar's admin API (4.2). Invariants: one row per policy; what holds for a topic without
a policy is what `Policies` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from magnetar.names import CLUSTER_NAME
from magnetar.policies import Policies
from magnetar.policy_shapes import HOLD, NO_SUBSCRIPTIONS
from magnetar.rest.answers import NO_CONTENT, text_answer
from magnetar.schemas.strategies import DEFAULT as DEFAULT_STRATEGY

DEFAULTS = Policies()


@dataclass(frozen=True, slots=True)
class PolicyRoute:
    """One policy: its key in the record, what GET answers while it is not set (None: no body),
    what then holds for a topic (None: it is not shown), with which status, the status of a change
    at a namespace, whether clients send it as bare text, whether they get it as such, and Pulsar's
    words for a value out of bounds."""

    key: str
    unset: Any = None
    applied: Any = None
    status: int = 200
    written: int = NO_CONTENT
    text: bool = False
    plain: bool = False
    words: str = ""

    def answered(self, found: Any, *, applied: bool = False) -> Response:
        """A policy as GET shows it."""
        if found is None and applied:
            found = self.applied
        value = self.unset if found is None else found
        if value is None:
            return Response(status_code=self.status)
        return text_answer(value) if self.plain else JSONResponse(value)


RATE = {
    "dispatchThrottlingRateInMsg": 0,
    "dispatchThrottlingRateInByte": 0,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 1,
}
NO_QUOTA = {"limit": -1, "limitSize": -1, "limitTime": -1, "policy": HOLD}
"""Of either type, while a topic has none."""


BOTH_LEVELS: Mapping[str, PolicyRoute] = {
    "retention": PolicyRoute(
        "retention_policies", applied={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    ),
    "messageTTL": PolicyRoute(
        "message_ttl_in_seconds",
        applied=0,
        words="Invalid value for message TTL, message TTL must >= 0",
    ),
    "persistence": PolicyRoute(
        "persistence",
        applied={
            "bookkeeperEnsemble": 1,
            "bookkeeperWriteQuorum": 1,
            "bookkeeperAckQuorum": 1,
            "managedLedgerMaxMarkDeleteRate": 1.0,
        },
    ),
    "maxConsumersPerSubscription": PolicyRoute(
        "max_consumers_per_subscription", words="maxConsumersPerSubscription must be 0 or more"
    ),
    "maxSubscriptionsPerTopic": PolicyRoute(
        "max_subscriptions_per_topic", words="maxSubscriptionsPerTopic must be 0 or more"
    ),
    "publishRate": PolicyRoute("publishMaxMessageRate"),
    "dispatchRate": PolicyRoute("topicDispatchRate", applied=RATE),
    "subscriptionDispatchRate": PolicyRoute("subscriptionDispatchRate", applied=RATE),
    "subscribeRate": PolicyRoute(
        "clusterSubscribeRate",
        applied={"subscribeThrottlingRatePerConsumer": 0, "ratePeriodInSecond": 30},
    ),
    "replicatorDispatchRate": PolicyRoute("replicatorDispatchRate", applied=RATE),
    "delayedDelivery": PolicyRoute(
        "delayed_delivery_policies",
        applied={"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0},
    ),
    "deduplicationSnapshotInterval": PolicyRoute(
        "deduplicationSnapshotIntervalSeconds", words="interval must be greater than or equal to 0"
    ),
    "inactiveTopicPolicies": PolicyRoute(
        "inactive_topic_policies",
        applied={
            "inactiveTopicDeleteMode": NO_SUBSCRIPTIONS,
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        },
    ),
    "compactionThreshold": PolicyRoute("compaction_threshold", applied=0),
    "watermarks": PolicyRoute("watermarks"),
    "subscriptionTypesEnabled": PolicyRoute("subscription_types_enabled"),
    "autoSubscriptionCreation": PolicyRoute(
        "autoSubscriptionCreationOverride", applied={"allowAutoSubscriptionCreation": True}
    ),
    "offloadPolicies": PolicyRoute("offload_policies"),
    "replication": PolicyRoute("replication_clusters", applied=[CLUSTER_NAME]),
    "schemaCompatibilityStrategy": PolicyRoute(
        "schema_compatibility_strategy", applied=str(DEFAULT_STRATEGY)
    ),
    "schemaValidationEnforced": PolicyRoute("schema_validation_enforced", False),
    "entryFilters": PolicyRoute("entryFilters", applied={"entryFilterNames": ""}),
    "dispatcherPauseOnAckStatePersistent": PolicyRoute(
        "dispatcherPauseOnAckStatePersistentEnabled", False
    ),
}

NAMESPACE_POLICIES: Mapping[str, PolicyRoute] = {
    **BOTH_LEVELS,
    "deduplication": PolicyRoute("deduplicationEnabled"),
    "encryptionRequired": PolicyRoute("encryption_required", False),
    "autoTopicCreation": PolicyRoute("autoTopicCreationOverride"),
    "maxProducersPerTopic": PolicyRoute(
        "max_producers_per_topic", words="maxProducersPerTopic must be 0 or more"
    ),
    "maxConsumersPerTopic": PolicyRoute(
        "max_consumers_per_topic", words="maxConsumersPerTopic must be 0 or more"
    ),
    # Java's client cannot take null
    "maxTopicsPerNamespace": PolicyRoute(
        "max_topics_per_namespace", 0, words="maxTopicsPerNamespace must be 0 or more"
    ),
    "maxUnackedMessagesPerConsumer": PolicyRoute(
        "max_unacked_messages_per_consumer", words="maxUnackedMessagesPerConsumer must be 0 or more"
    ),
    "maxUnackedMessagesPerSubscription": PolicyRoute(
        "max_unacked_messages_per_subscription",
        words="maxUnackedMessagesPerSubscription must be 0 or more",
    ),
    "subscriptionExpirationTime": PolicyRoute(
        "subscription_expiration_time_minutes",
        words="Invalid value for subscription expiration time",
    ),
    "subscriptionAuthMode": PolicyRoute("subscription_auth_mode", "None"),
    "subscriptionTypesEnabled": PolicyRoute("subscription_types_enabled", []),
    "isAllowAutoUpdateSchema": PolicyRoute("is_allow_auto_update_schema", True),
    "schemaAutoUpdateCompatibilityStrategy": PolicyRoute(
        "schema_auto_update_compatibility_strategy", status=NO_CONTENT
    ),
    "schemaCompatibilityStrategy": PolicyRoute("schema_compatibility_strategy", "UNDEFINED"),
    "offloadThreshold": PolicyRoute("offload_threshold", -1),
    "offloadThresholdInSeconds": PolicyRoute("offload_threshold_in_seconds", -1),
    "offloadDeletionLagMs": PolicyRoute("offload_deletion_lag_ms"),
    "antiAffinity": PolicyRoute("anti_affinity", text=True),
    "persistence/bookieAffinity": PolicyRoute("bookie_affinity"),
    "migration": PolicyRoute("migration"),
    "resourcegroup": PolicyRoute("resource_group_name", plain=True),
    "replication": PolicyRoute("replication_clusters", [CLUSTER_NAME], written=200),
    "allowedClusters": PolicyRoute("allowed_clusters", [], written=200),
}

TOPIC_POLICIES: Mapping[str, PolicyRoute] = {
    **BOTH_LEVELS,
    "maxConsumersPerSubscription": PolicyRoute(
        "max_consumers_per_subscription",
        status=NO_CONTENT,
        words="Invalid value for maxConsumersPerSubscription",
    ),
    "maxSubscriptionsPerTopic": replace(BOTH_LEVELS["maxSubscriptionsPerTopic"], status=NO_CONTENT),
    "publishRate": replace(BOTH_LEVELS["publishRate"], status=NO_CONTENT),
    "subscriptionTypesEnabled": replace(BOTH_LEVELS["subscriptionTypesEnabled"], status=NO_CONTENT),
    "deduplicationSnapshotInterval": PolicyRoute(
        "deduplicationSnapshotIntervalSeconds", words="interval must be 0 or more"
    ),
    "deduplicationEnabled": PolicyRoute("deduplicationEnabled", applied=False),
    "maxProducers": PolicyRoute(
        "max_producers_per_topic", applied=0, words="maxProducers must be 0 or more"
    ),
    "maxConsumers": PolicyRoute(
        "max_consumers_per_topic", applied=0, words="maxConsumers must be 0 or more"
    ),
    "maxMessageSize": PolicyRoute(
        "max_message_size",
        status=NO_CONTENT,
        words="topic-level maxMessageSize must be greater than or equal to 0 and must be smaller "
        "than that in the broker-level",
    ),
    "maxUnackedMessagesOnConsumer": PolicyRoute(
        "max_unacked_messages_per_consumer",
        applied=DEFAULTS.max_unacked_per_consumer,
        words="maxUnackedNum must be 0 or more",
    ),
    "maxUnackedMessagesOnSubscription": PolicyRoute(
        "max_unacked_messages_per_subscription",
        applied=DEFAULTS.max_unacked_per_subscription,
        words="maxUnackedNum must be 0 or more",
    ),
}
