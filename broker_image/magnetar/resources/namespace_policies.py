"""Policies, permissions and the tenant's configuration in a `TopicNamespace`.

Owns: their names, values and rules. Imports: resources.base, policy_shapes. Source: Pulsar's
`Policies`, whose names and numbers (-1, 0) these are; only policies that brokers honour are here,
all others stay with REST. Invariant: whatever these models accept, `magnetar.policies.check` accepts too.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field

from magnetar.policy_shapes import canonical
from magnetar.resources.base import Model, Rule

INT_MAX = (1 << 31) - 1
BYTES_MAX = 1 << 50
"""A pebibyte: JSON numbers are exact up to here everywhere."""
PARTITIONS_MAX = 10_000
ROLE_LENGTH_MAX = PROPERTY_NAME_LENGTH_MAX = 200
ACTIONS_MAX, NAMES_MAX = 6, 64
CHECKED = (
    "Brokers check it where the cluster has spec.auth with authorization; elsewhere every client may "
    "do everything."
)

Action = Literal["produce", "consume", "functions", "sources", "sinks", "packages"]
Exceeding = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    """Raises ValueError where the API server refuses a list that is a set, with its words."""
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f'Duplicate value: "{value}"; write each once')
    return values


# The limits come first: behind a validator they would be limits of a text.
Actions = Annotated[
    tuple[Action, ...],
    Field(min_length=1, max_length=ACTIONS_MAX, json_schema_extra=SET),
    AfterValidator(_distinct),
]
Role = Annotated[str, Field(min_length=1, max_length=ROLE_LENGTH_MAX)]
Roles = Annotated[tuple[Role, ...], Field(max_length=NAMES_MAX), AfterValidator(_distinct)]
Clusters = Annotated[
    tuple[Role, ...], Field(min_length=1, max_length=NAMES_MAX), AfterValidator(_distinct)
]


class PolicyModel(Model):
    """Policies carry Pulsar's own names, so that a manifest, REST and pulsar-admin speak of the
    same words."""

    model_config = ConfigDict(alias_generator=None, extra="forbid", frozen=True)


class RetentionPolicies(PolicyModel):
    """How long acknowledged messages are kept."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.retentionTimeInMinutes == 0) == (self.retentionSizeInMB == 0)",
            "retention_policies: one of the two keeps nothing; set both retentionTimeInMinutes and "
            "retentionSizeInMB "
            "(-1 is no limit), or both to 0",
            lambda found: (found.retentionTimeInMinutes == 0) == (found.retentionSizeInMB == 0),
        ),
    )

    retentionTimeInMinutes: int = Field(
        default=0, ge=-1, le=INT_MAX, description="Minutes; 0 = not at all, -1 = without limit."
    )
    retentionSizeInMB: int = Field(
        default=0, ge=-1, le=INT_MAX, description="Megabytes per topic; 0 = none, -1 = unlimited."
    )


class StorageQuota(PolicyModel):
    """A limit on the size of a backlog."""

    limitSize: int = Field(
        ge=-1,
        le=BYTES_MAX,
        description="Bytes of a topic that its slowest subscription may have before it; -1 = no "
        "limit.",
    )
    policy: Exceeding = Field(
        default="producer_request_hold",
        description="What happens beyond it: producers wait, producers are refused, or the oldest "
        "messages are skipped.",
    )

    def stored(self) -> dict[str, Any]:
        return {
            "limit": self.limitSize,
            "limitSize": self.limitSize,
            "limitTime": -1,
            "policy": self.policy,
        }


class AgeQuota(PolicyModel):
    """A limit on the age of a backlog."""

    limitTime: int = Field(
        ge=-1,
        le=INT_MAX,
        description="Seconds that the oldest unacknowledged message may have waited; -1 = no limit.",
    )
    policy: Exceeding = Field(
        default="producer_request_hold",
        description="What happens beyond it: producers wait, producers are refused, or the oldest "
        "messages are skipped.",
    )

    def stored(self) -> dict[str, Any]:
        return {"limit": -1, "limitSize": -1, "limitTime": self.limitTime, "policy": self.policy}


class BacklogQuotas(PolicyModel):
    """Limits on backlogs, each owned on its own."""

    destination_storage: StorageQuota | None = Field(
        default=None, description="Limit on their size. Absent: not owned here."
    )
    message_age: AgeQuota | None = Field(
        default=None, description="Limit on their age. Absent: not owned here."
    )


class AutoTopicCreation(PolicyModel):
    """Whether clients make topics by using them."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.topicType == 'partitioned' || self.defaultNumPartitions == 1",
            "autoTopicCreationOverride: defaultNumPartitions is for topicType partitioned; set "
            "that, or leave the number out",
            lambda found: found.topicType == "partitioned" or found.defaultNumPartitions == 1,
        ),
    )

    allowAutoTopicCreation: bool = Field(
        description="Whether using a topic that does not exist makes it."
    )
    topicType: Literal["non-partitioned", "partitioned"] = Field(
        default="non-partitioned", description="Which kind is made."
    )
    defaultNumPartitions: int = Field(
        default=1,
        ge=1,
        le=PARTITIONS_MAX,
        description="Partitions of a topic that is made; only for topicType partitioned.",
    )


class AutoSubscriptionCreation(PolicyModel):
    """Whether consumers make subscriptions by using them."""

    allowAutoSubscriptionCreation: bool = Field(
        description="Whether subscribing under a name that does not exist makes it."
    )


class InactiveTopicPolicies(PolicyModel):
    """When unused topics are deleted."""

    deleteWhileInactive: bool = Field(description="Whether unused topics are deleted at all.")
    inactiveTopicDeleteMode: Literal[
        "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"
    ] = Field(
        default="delete_when_no_subscriptions",
        description="What unused means besides no clients: no subscription, or none with a backlog.",
    )
    maxInactiveDurationSeconds: int = Field(
        default=60, ge=1, le=INT_MAX, description="Seconds that a topic must have been unused."
    )


class DelayedDelivery(PolicyModel):
    """Whether messages may ask to be delivered later."""

    active: bool = Field(description="Whether a message's time of delivery is honoured.")
    tickTime: int = Field(
        default=1000, ge=1, le=INT_MAX, description="Milliseconds by which delivery may be inexact."
    )


class Watermarks(PolicyModel):
    """Event-time watermarks (PIP-102)."""

    enabled: bool = Field(description="Whether producers may assert event times.")
    idleTimeout: int = Field(
        default=300,
        ge=0,
        le=INT_MAX,
        description="Seconds after which a silent producer does not hold watermarks back; 0 = "
        "never.",
    )
    snapshotInterval: int = Field(
        default=10_000,
        ge=100,
        le=1_000_000,
        description="Assertions after which a snapshot is written; an attach or a seek reads no "
        "more.",
    )


def _maximum(what: str) -> Any:
    return Field(
        default=None, ge=0, le=INT_MAX, description=f"{what}; 0 = no limit. Absent: not owned here."
    )


class Policies(PolicyModel):
    """Namespace policies. An absent one is not owned by this resource."""

    retention_policies: RetentionPolicies | None = Field(
        default=None, description="How long acknowledged messages are kept. Absent: not owned here."
    )
    message_ttl_in_seconds: int | None = Field(
        default=None,
        ge=0,
        le=INT_MAX,
        description="Unacknowledged messages older than this are skipped; 0 = never. Absent: not "
        "owned here.",
    )
    deduplicationEnabled: bool | None = Field(
        default=None,
        description="Whether brokers drop messages that a producer repeats. Absent: not owned here.",
    )
    backlog_quota_map: BacklogQuotas | None = Field(
        default=None,
        description="Limits on what the slowest subscription of a topic has before it. Absent: not "
        "owned here.",
    )
    inactive_topic_policies: InactiveTopicPolicies | None = Field(
        default=None,
        description="When unused topics are deleted. Absent: not owned here.",
    )
    autoTopicCreationOverride: AutoTopicCreation | None = Field(
        default=None,
        description="Whether clients make topics by using them. Absent: not owned here.",
    )
    autoSubscriptionCreationOverride: AutoSubscriptionCreation | None = Field(
        default=None,
        description="Whether consumers make subscriptions by using them. Absent: not owned here.",
    )
    delayed_delivery_policies: DelayedDelivery | None = Field(
        default=None,
        description="Whether messages may ask to be delivered later. Absent: not owned here.",
    )
    compaction_threshold: int | None = Field(
        default=None,
        ge=0,
        le=BYTES_MAX,
        description="Bytes behind the compacted view at which a topic's broker compacts it; 0 = "
        "never. Absent: not owned here.",
    )
    watermarks: Watermarks | None = Field(
        default=None,
        description="Whether producers may assert event times, of which consumers get watermarks. "
        "Absent: not owned here.",
    )
    encryption_required: bool | None = Field(
        default=None,
        description="Whether messages that are not encrypted are refused. Absent: not owned here.",
    )
    schema_compatibility_strategy: (
        Literal[
            "UNDEFINED",
            "ALWAYS_INCOMPATIBLE",
            "ALWAYS_COMPATIBLE",
            "BACKWARD",
            "FORWARD",
            "FULL",
            "BACKWARD_TRANSITIVE",
            "FORWARD_TRANSITIVE",
            "FULL_TRANSITIVE",
        ]
        | None
    ) = Field(
        default=None,
        description="How a new schema of a topic must fit the earlier ones; UNDEFINED = FULL. "
        "Absent: not owned here.",
    )
    is_allow_auto_update_schema: bool | None = Field(
        default=None,
        description="Whether clients register schemas; otherwise administrators do. "
        "Absent: not owned here.",
    )
    schema_validation_enforced: bool | None = Field(
        default=None,
        description="Whether producers without a schema are refused on topics that have one. "
        "Absent: not owned here.",
    )
    subscription_types_enabled: Annotated[
        tuple[Literal["Exclusive", "Shared", "Failover", "Key_Shared"], ...] | None,
        AfterValidator(lambda v: v and _distinct(v)),
    ] = Field(
        default=None,
        min_length=1,
        max_length=4,
        description="Types of subscriptions that consumers may use. Absent: not owned here.",
        json_schema_extra=SET,
    )
    subscription_expiration_time_minutes: int | None = Field(
        default=None,
        ge=0,
        le=INT_MAX,
        description="Minutes after which a subscription without consumers is deleted; 0 = never. "
        "Absent: not owned here.",
    )
    max_producers_per_topic: int | None = _maximum("Producers that a topic may have at a time")
    max_consumers_per_topic: int | None = _maximum(
        "Consumers that a topic may have at a time, over all subscriptions"
    )
    max_consumers_per_subscription: int | None = _maximum(
        "Consumers that a subscription may have at a time"
    )
    max_subscriptions_per_topic: int | None = _maximum(
        "Durable subscriptions that a topic may have"
    )
    max_topics_per_namespace: int | None = _maximum(
        "Topics that the namespace may have, partitions counted one by one"
    )
    max_unacked_messages_per_consumer: int | None = _maximum(
        "Messages that a consumer may hold unacknowledged before it gets no more"
    )
    max_unacked_messages_per_subscription: int | None = _maximum(
        "Messages that a subscription's consumers together may hold unacknowledged before they get "
        "no more"
    )

    def declared(self) -> dict[str, Any]:
        """The policies that are set by key, in the form in which REST stores them too; quotas as
        `backlog_quota_map.<type>`."""
        given = self.model_dump(mode="json", exclude_none=True, exclude={"backlog_quota_map"})
        found = {key: canonical(key, value) for key, value in given.items()}
        quotas = self.backlog_quota_map or BacklogQuotas()
        for kind, quota in (
            ("destination_storage", quotas.destination_storage),
            ("message_age", quotas.message_age),
        ):
            if quota is not None:
                found[f"backlog_quota_map.{kind}"] = quota.stored()
        return found


class TenantConfig(Model):
    """What the tenant is besides its name."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.adminRoles) || has(self.allowedClusters)",
            "tenantConfig: set adminRoles, allowedClusters or both, or leave tenantConfig out",
            lambda found: found.admin_roles is not None or found.allowed_clusters is not None,
        ),
    )

    admin_roles: Roles | None = Field(
        default=None,
        description=f"Roles that administrate the tenant. {CHECKED} Absent: not owned here.",
        json_schema_extra=SET,
    )
    allowed_clusters: Clusters | None = Field(
        default=None,
        description="Pulsar clusters that the tenant may use; stored and shown by REST, as there "
        "is one, standalone. Absent: not owned here.",
        json_schema_extra=SET,
    )
