"""Policies of namespaces and topics.

Owns: what each policy of Pulsar's JSON means: its bounds, and the effective values of a topic. Imports: errors,
policy_shapes, the strategies of schemas. Pure. Source: Pulsar's `Policies` (names as `GET /admin/v2/namespaces/T/N`
writes them) and `TopicPolicies`; a topic's own policies have the same keys. Invariants: `effective`
reads every key it knows and ignores the others; a value that is stored has passed `checked`; a
topic's policy wins over its namespace's, which wins over the broker's default; 0 means "no limit"
for every maximum and every rate.

To add a policy: its shape in `policy_shapes`; a field of `Policies` and a row of `READERS` here; a row of `BOTH_LEVELS`,
`NAMESPACE_POLICIES` or `TOPIC_POLICIES` in `broker.routes.policy_table`; a field of `Policies` in
`resources.namespace_policies`, which gives a TopicNamespace the field; its effect, at
`TopicHost.refresh_policies` or as work of `broker.upkeep.expiry`. `make crds` then writes the
definitions and docs/reference. Tests: `tests/unit/test_policies.py`,
`tests/unit/broker/routes/test_policies.py`, `tests/unit/resources/test_topic_namespace.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from magnetar.errors import InvalidRequest, NotOffered, PreconditionFailed
from magnetar.policy_shapes import (
    DESTINATION_STORAGE,
    HOLD,
    INFINITE,
    MESSAGE_AGE,
    NO_SUBSCRIPTIONS,
    SUBSCRIPTION_TYPES,
    canonical,
)
from magnetar.schemas.strategies import AUTO_UPDATE, Strategy
from magnetar.schemas.strategies import DEFAULT as DEFAULT_STRATEGY

NON_PARTITIONED, PARTITIONED = "non-partitioned", "partitioned"
KEPT_POLICIES: Mapping[str, Any] = MappingProxyType(
    {
        "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        "inactive_topic_policies": {"deleteWhileInactive": False},
    }
)
"""Of a namespace whose policies are lost: nothing goes before an administrator has said so."""
_NO_QUOTAS: Mapping[str, Any] = MappingProxyType({})
SNAPSHOT_RECORDS_MIN, SNAPSHOT_RECORDS_MAX = 100, 1_000_000
QUORUM_MAX = 5
"""Of BookKeeper in Pulsar's default configuration."""
_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class AutoTopicCreation:
    """Whether clients create topics by using them, and of which kind; `partitions` is for the
    partitioned kind."""

    allowed: bool = True
    type: str = NON_PARTITIONED
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """A limit on what the slowest subscription has before it. `limit_bytes` and `limit_s` are -1
    without one."""

    limit_bytes: int = INFINITE
    limit_s: int = INFINITE
    policy: str = HOLD


@dataclass(frozen=True, slots=True)
class DelayedDelivery:
    """Whether `deliver_at_time` is honoured, and how exactly. `max_delay_ms` 0 is no limit."""

    active: bool = True
    tick_ms: int = 1000
    max_delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """How much may go through in `period_s`; 0 is no limit. `relative`: beside what is published
    in that time."""

    messages: int = 0
    bytes: int = 0
    period_s: int = 1
    relative: bool = False

    @property
    def limits(self) -> bool:
        """Whether there is any limit."""
        return self.messages > 0 or self.bytes > 0


NO_RATE = Rate()


@dataclass(frozen=True, slots=True)
class InactiveTopic:
    """When an unused topic is deleted: `mode` says what unused means."""

    enabled: bool = True
    mode: str = NO_SUBSCRIPTIONS
    duration_s: float = 60


@dataclass(frozen=True, slots=True)
class WatermarkPolicy:
    """Whether producers may assert event times, and whether in properties of messages, which are
    read only then. One that is silent for `idle_timeout_s` (0: however long) counts no more; a
    snapshot is written every `snapshot_records` control records."""

    enabled: bool = True
    in_properties: bool = False
    idle_timeout_s: int = 300
    snapshot_records: int = 10_000


@dataclass(frozen=True, slots=True)
class Policies:
    """Effective policies of a topic. The defaults are Pulsar's."""

    deduplication_enabled: bool = False
    deduplication_snapshot_interval: int = 0
    encryption_required: bool = False
    auto_topic_creation: AutoTopicCreation = AutoTopicCreation()
    auto_subscription_creation: bool = True
    retention_minutes: int = 0
    retention_mb: int = 0
    message_ttl_s: int = 0
    backlog_quotas: Mapping[str, BacklogQuota] = field(default_factory=lambda: _NO_QUOTAS)
    max_producers: int = 0
    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_topics: int = 0
    max_unacked_per_consumer: int = 50_000
    max_unacked_per_subscription: int = 200_000
    delayed_delivery: DelayedDelivery = DelayedDelivery()
    inactive_topic: InactiveTopic = InactiveTopic()
    watermarks: WatermarkPolicy = WatermarkPolicy()
    subscription_types_enabled: frozenset[str] = frozenset(SUBSCRIPTION_TYPES)
    subscription_expiration_minutes: int = 0
    max_message_bytes: int = 0
    compaction_threshold: int = 0
    publish_rate: Rate = NO_RATE
    dispatch_rate: Rate = NO_RATE
    subscription_dispatch_rate: Rate = NO_RATE
    subscribe_rate: Rate = NO_RATE
    resource_group: str = ""
    schema_strategy: Strategy = Strategy.UNDEFINED
    schema_auto_update: Strategy = Strategy.UNDEFINED
    schema_updates_allowed: bool = True
    schema_validation_enforced: bool = False

    @property
    def schema_compatibility(self) -> Strategy:
        """How a new schema must fit: by the policy, else by its older form, else as the broker
        has it."""
        return next(
            (
                found
                for found in (self.schema_strategy, self.schema_auto_update)
                if found is not Strategy.UNDEFINED
            ),
            DEFAULT_STRATEGY,
        )

    @property
    def retains_permanently(self) -> bool:
        """Whether neither time nor size ever ends what is acknowledged."""
        return self.retention_minutes < 0 and self.retention_mb < 0


Reader = Callable[[str, Any], dict[str, Any]]


# --- reading one value, in its one form -----------------------------------------------------------


def _as(name: str) -> Reader:
    return lambda _key, value: {name: value}


def _number(name: str, low: int = 0, high: int = _INT_MAX) -> Reader:
    return lambda key, value: {name: _within(key, value, low, high)}


def _within(key: str, value: int, low: int, high: int = _LONG_MAX) -> int:
    if not low <= value <= high:
        raise PreconditionFailed(f"{key}: {value} is out of range; use {low}..{high}")
    return value


def _retention(key: str, value: Any) -> dict[str, Any]:
    minutes, size = value["retentionTimeInMinutes"], value["retentionSizeInMB"]
    for limit, what in ((size, "size"), (minutes, "time")):
        if limit < INFINITE:
            raise InvalidRequest(
                f"Invalid retention policy: {what} limit must be >= -1", f"{key}: -1 is no limit"
            )
    if (minutes == 0) != (size == 0):
        raise InvalidRequest(
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the "
            "limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific "
            "limit. To disable retention both limits must be set to 0.",
            f"{key} has {minutes} and {size}",
        )
    return {"retention_minutes": minutes, "retention_mb": size}


def _auto_topic_creation(_key: str, value: Any) -> dict[str, Any]:
    allowed, kind = value["allowAutoTopicCreation"], value.get("topicType")
    if not allowed:
        return {"auto_topic_creation": AutoTopicCreation(False)}
    partitions = value.get("defaultNumPartitions")
    wrong = ""
    if kind not in (NON_PARTITIONED, PARTITIONED):
        wrong = f"Unknown topic type [{'null' if kind is None else kind}]"
    elif kind == PARTITIONED and (partitions is None or partitions < 1):
        wrong = "[defaultNumPartitions] cannot be less than 1 for partition type."
    elif kind == NON_PARTITIONED and partitions not in (None, 1):
        wrong = "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
    if wrong:
        raise PreconditionFailed(
            f"Invalid configuration for autoTopicCreationOverride. the detail is {wrong}",
            f"send topicType {NON_PARTITIONED}, or {PARTITIONED} and defaultNumPartitions from 1",
        )
    return {"auto_topic_creation": AutoTopicCreation(True, kind, partitions or 1)}


def backlog_quota(key: str, value: Any) -> BacklogQuota:
    """One quota from Pulsar's JSON. `limit` is the old name of `limitSize`. Raises
    InvalidRequest."""
    limits = (value.get("limitSize"), value.get("limit"))
    size = next((limit for limit in limits if limit is not None), INFINITE)
    time = INFINITE if value.get("limitTime") is None else value.get("limitTime")
    return BacklogQuota(
        _within(f"{key}.limitSize", size, INFINITE),
        _within(f"{key}.limitTime", time, INFINITE),
        value.get("policy") or HOLD,
    )


def _backlog_quotas(key: str, value: Any) -> dict[str, Any]:
    for kind in value:
        if kind not in (DESTINATION_STORAGE, MESSAGE_AGE):
            raise InvalidRequest(
                f"{key}: {kind!r} is not known; use {DESTINATION_STORAGE} or {MESSAGE_AGE}"
            )
    return {
        "backlog_quotas": {
            kind: backlog_quota(f"{key}.{kind}", found) for kind, found in value.items()
        }
    }


def _delayed_delivery(key: str, value: Any) -> dict[str, Any]:
    return {
        "delayed_delivery": DelayedDelivery(
            value["active"],
            _within(f"{key}.tickTime", value["tickTime"], 0, _INT_MAX),
            _within(f"{key}.maxDeliveryDelayInMillis", value["maxDeliveryDelayInMillis"], 0),
        )
    }


def _inactive_topic(key: str, value: Any) -> dict[str, Any]:
    enabled = value["deleteWhileInactive"]
    seconds = value["maxInactiveDurationSeconds"]
    _within(f"{key}.maxInactiveDurationSeconds", seconds, 1 if enabled else 0)
    return {"inactive_topic": InactiveTopic(enabled, value["inactiveTopicDeleteMode"], seconds)}


def _watermarks(key: str, value: Any) -> dict[str, Any]:
    default, enabled = WatermarkPolicy(), bool(value.get("enabled"))
    idle, snapshot = value.get("idleTimeout"), value.get("snapshotInterval")
    return {
        "watermarks": WatermarkPolicy(
            enabled,
            enabled,
            _within(f"{key}.idleTimeout", default.idle_timeout_s if idle is None else idle, 0),
            _within(
                f"{key}.snapshotInterval",
                default.snapshot_records if snapshot is None else snapshot,
                SNAPSHOT_RECORDS_MIN,
                SNAPSHOT_RECORDS_MAX,
            ),
        )
    }


def _publish_rate(_key: str, value: Any) -> dict[str, Any]:
    rate = value["publishThrottlingRateInMsg"], value["publishThrottlingRateInByte"]
    return {"publish_rate": Rate(*(max(0, limit) for limit in rate))}


def _dispatch_rate(name: str) -> Reader:
    return lambda _key, value: {
        name: Rate(
            max(0, value["dispatchThrottlingRateInMsg"]),
            max(0, value["dispatchThrottlingRateInByte"]),
            max(1, value["ratePeriodInSecond"]),
            value["relativeToPublishRate"],
        )
    }


def _subscribe_rate(_key: str, value: Any) -> dict[str, Any]:
    limit = max(0, value["subscribeThrottlingRatePerConsumer"])
    return {"subscribe_rate": Rate(limit, period_s=max(1, value["ratePeriodInSecond"]))}


def _schema_strategy(_key: str, value: Any) -> dict[str, Any]:
    found = Strategy(value)
    return {} if found is Strategy.UNDEFINED else {"schema_strategy": found}


def _persistence(_key: str, value: Any) -> dict[str, Any]:
    """Replicas are the volume's: the numbers must be possible, and change nothing."""
    given = {
        "Ensemble": value["bookkeeperEnsemble"],
        "WriteQuorum": value["bookkeeperWriteQuorum"],
        "AckQuorum": value["bookkeeperAckQuorum"],
    }
    for name, count in given.items():
        if not 0 < count <= QUORUM_MAX:
            raise InvalidRequest(
                f"Bookkeeper-{name} must be <= {QUORUM_MAX} and > 0.; it is {count}"
            )
    ensemble, write, ack = given.values()
    if not ensemble >= write >= ack:
        raise InvalidRequest(
            f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack}); send "
            "numbers for which that is true"
        )
    return {}


def _refused(what: str, remedy: str, *harmless: Any) -> Reader:
    """Of a policy that nothing here could carry out."""

    def read(key: str, value: Any) -> dict[str, Any]:
        if value in harmless:
            return {}
        raise NotOffered(f"{key}: {what} is not offered by Magnetar", remedy)

    return read


# --- all of them ----------------------------------------------------------------------------------

_OFFLOADING = _refused("offloading", "have the BrokerCluster store messages as objects", INFINITE)

READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "deduplicationEnabled": _as("deduplication_enabled"),
        "deduplicationSnapshotIntervalSeconds": _number("deduplication_snapshot_interval"),
        "encryption_required": _as("encryption_required"),
        "autoTopicCreationOverride": _auto_topic_creation,
        "autoSubscriptionCreationOverride": lambda _key, value: {
            "auto_subscription_creation": value["allowAutoSubscriptionCreation"]
        },
        "retention_policies": _retention,
        "message_ttl_in_seconds": _number("message_ttl_s"),
        "backlog_quota_map": _backlog_quotas,
        "max_producers_per_topic": _number("max_producers"),
        "max_consumers_per_topic": _number("max_consumers"),
        "max_consumers_per_subscription": _number("max_consumers_per_subscription"),
        "max_subscriptions_per_topic": _number("max_subscriptions"),
        "max_topics_per_namespace": _number("max_topics"),
        "max_unacked_messages_per_consumer": _number("max_unacked_per_consumer"),
        "max_unacked_messages_per_subscription": _number("max_unacked_per_subscription"),
        "delayed_delivery_policies": _delayed_delivery,
        "inactive_topic_policies": _inactive_topic,
        "watermarks": _watermarks,
        "subscription_types_enabled": lambda _key, value: {
            "subscription_types_enabled": frozenset(value or SUBSCRIPTION_TYPES)
        },
        "subscription_expiration_time_minutes": _number("subscription_expiration_minutes"),
        "max_message_size": _number("max_message_bytes"),
        "compaction_threshold": _number("compaction_threshold", 0, _LONG_MAX),
        "schema_compatibility_strategy": _schema_strategy,
        "schema_auto_update_compatibility_strategy": lambda _key, value: {
            "schema_auto_update": AUTO_UPDATE[value]
        },
        "is_allow_auto_update_schema": _as("schema_updates_allowed"),
        "schema_validation_enforced": _as("schema_validation_enforced"),
        "publishMaxMessageRate": _publish_rate,
        "topicDispatchRate": _dispatch_rate("dispatch_rate"),
        "subscriptionDispatchRate": _dispatch_rate("subscription_dispatch_rate"),
        "clusterSubscribeRate": _subscribe_rate,
        "resource_group_name": _as("resource_group"),
    }
)
"""How each key that has an effect is read. What the others mean is read elsewhere: permissions,
properties, groups and clusters."""


CHECKS: Mapping[str, Reader] = MappingProxyType(
    {
        "persistence": _persistence,
        "offload_policies": _OFFLOADING,
        "offload_threshold": _OFFLOADING,
        "offload_threshold_in_seconds": _OFFLOADING,
        "offload_deletion_lag_ms": _OFFLOADING,
        "entryFilters": _refused("filtering by a class of the broker's", "filter in the consumer"),
        "bookie_affinity": _refused("BookKeeper", "storage is chosen by the BrokerCluster"),
        "migration": _refused(
            "migration to another cluster", "consume here and publish there", False
        ),
    }
)
"""What each key is tested by that changes nothing here; most values are refused."""


def checked(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Policies in their one form, without those that are not set. Raises InvalidRequest naming
    key and value, NotOffered."""
    found = {key: canonical(key, value) for key, value in policies.items()}
    kept = {key: value for key, value in found.items() if value is not None}
    for key, value in kept.items():
        read = READERS.get(key) or CHECKS.get(key)
        if read is not None:
            read(key, value)
    return kept


def contradict(policies: Mapping[str, Any]) -> bool:
    """Whether a backlog may grow to what retention drops. Both are in their one form."""
    retention = policies.get("retention_policies")
    quota = (policies.get("backlog_quota_map") or {}).get(DESTINATION_STORAGE)
    if not retention or not quota:
        return False
    minutes, megabytes = retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]
    limit = backlog_quota("backlog_quota_map", quota)
    return bool(megabytes > 0 and limit.limit_bytes >= megabytes << 20) or (
        minutes > 0 and limit.limit_s >= minutes * 60
    )


def readable(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `policies` that `effective` can read: a record of another writer must not make a
    topic unusable."""
    found = {}
    for key, value in policies.items():
        try:
            checked({key: value})
        except (InvalidRequest, NotOffered):
            continue
        found[key] = value
    return found


def effective(
    broker_defaults: Policies, namespace: Mapping[str, Any], topic: Mapping[str, Any]
) -> Policies:
    """The policies of a topic, from Pulsar's JSON of its namespace and of itself. Raises
    InvalidRequest naming key and value, NotOffered.

    Backlog quotas are merged by their type; everything else is replaced as a whole. A value that is
    null is not set.
    """
    changes: dict[str, Any] = {}
    quotas = dict(broker_defaults.backlog_quotas)
    for level in (namespace, topic):
        for key, given in level.items():
            reader = READERS.get(key)
            value = canonical(key, given) if reader is not None else None
            if reader is not None and value is not None:
                read = reader(key, value)
                quotas.update(read.pop("backlog_quotas", {}))
                changes.update(read)
    if not changes and quotas == dict(broker_defaults.backlog_quotas):
        return broker_defaults
    return dataclasses.replace(broker_defaults, **changes, backlog_quotas=MappingProxyType(quotas))
