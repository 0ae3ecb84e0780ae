"""Policies of namespaces and topics.

Owns: what each policy of Pulsar's JSON means: its names, its bounds, and the effective values of a
topic. Imports: errors, the strategies of schemas. Pure. Source: Pulsar's `Policies` (names as `GET /admin/v2/namespaces/T/N`
writes them) and `TopicPolicies`; a topic's own policies have the same keys. Invariants: `effective`
reads every key it knows and ignores the others, which are stored and returned as they came; a value
that is stored has passed `check`; a topic's policy wins over its namespace's, which wins over the
broker's default; 0 means "no limit" for every maximum.

To add a policy: a field of `Policies` and a row of `READERS` here; a row of `BOTH_LEVELS`,
`NAMESPACE_POLICIES` or `TOPIC_POLICIES` in `broker.routes.policies`; a field of `Policies` in
`resources.namespace_policies`, which gives a TopicNamespace the field; its effect, at
`TopicHost.refresh_policies` or as work of `broker.upkeep.expiry`. `make crds` then writes the
definitions and docs/reference. Tests: `tests/unit/test_policies.py`,
`tests/unit/broker/routes/test_policies.py`, `tests/unit/resources/test_topic_namespace.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from magnetar.errors import InvalidRequest
from magnetar.schemas.strategies import AUTO_UPDATE, Strategy
from magnetar.schemas.strategies import DEFAULT as DEFAULT_STRATEGY

INFINITE = -1
NON_PARTITIONED, PARTITIONED = "non-partitioned", "partitioned"
DESTINATION_STORAGE, MESSAGE_AGE = "destination_storage", "message_age"
HOLD, REFUSE, EVICT = "producer_request_hold", "producer_exception", "consumer_backlog_eviction"
NO_SUBSCRIPTIONS, CAUGHT_UP = "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"
SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
KEPT_POLICIES: Mapping[str, Any] = MappingProxyType(
    {
        "retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
        "inactive_topic_policies": {"deleteWhileInactive": False},
    }
)
"""Of a namespace whose policies are lost: nothing goes before an administrator has said so."""
_NO_QUOTAS: Mapping[str, Any] = MappingProxyType({})
SNAPSHOT_RECORDS_MIN, SNAPSHOT_RECORDS_MAX = 100, 1_000_000
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


# --- reading one value ----------------------------------------------------------------------------


def _boolean(name: str) -> Reader:
    def read(key: str, value: Any) -> dict[str, Any]:
        return {name: _bool(key, value)}

    return read


def _number(name: str, low: int = 0, high: int = _INT_MAX) -> Reader:
    def read(key: str, value: Any) -> dict[str, Any]:
        return {name: _int(key, value, low, high)}

    return read


def _bool(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{key}: {value!r} is not a boolean; send true or false")
    return value


def _int(key: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{key}: {value!r} is not a whole number; send {low}..{high}")
    if not low <= value <= high:
        raise InvalidRequest(f"{key}: {value} is out of range; use {low}..{high}")
    return value


def _choice(key: str, value: Any, choices: Sequence[str]) -> str:
    if value not in choices:
        raise InvalidRequest(f"{key}: {value!r} is not known; use one of {', '.join(choices)}")
    return str(value)


def _object(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f"{key}: {value!r} is not an object; send one with the fields of Pulsar's JSON"
        )
    return value


def _given(body: Mapping[str, Any], name: str, default: Any) -> Any:
    """A field, or `default` where it is absent or null: Java's clients write null for what is
    not set."""
    value = body.get(name)
    return default if value is None else value


def _retention(key: str, value: Any) -> dict[str, Any]:
    body = _object(key, value)
    minutes = _int(
        f"{key}.retentionTimeInMinutes",
        _given(body, "retentionTimeInMinutes", 0),
        INFINITE,
        _INT_MAX,
    )
    size = _int(
        f"{key}.retentionSizeInMB", _given(body, "retentionSizeInMB", 0), INFINITE, _LONG_MAX
    )
    if (minutes == 0) != (size == 0):
        raise InvalidRequest(
            f"{key}: retentionTimeInMinutes {minutes} and retentionSizeInMB {size} contradict each "
            "other: one of them keeps nothing; "
            "set both to 0, or neither (-1 is no limit)"
        )
    return {"retention_minutes": minutes, "retention_mb": size}


def _auto_topic_creation(key: str, value: Any) -> dict[str, Any]:
    body = _object(key, value)
    allowed = _bool(f"{key}.allowAutoTopicCreation", _given(body, "allowAutoTopicCreation", False))
    kind = _choice(
        f"{key}.topicType",
        _given(body, "topicType", NON_PARTITIONED),
        (NON_PARTITIONED, PARTITIONED),
    )
    partitions = _given(body, "defaultNumPartitions", 1)
    if kind == PARTITIONED:
        _int(f"{key}.defaultNumPartitions", partitions, 1, _INT_MAX)
    return {
        "auto_topic_creation": AutoTopicCreation(
            allowed, kind, partitions if kind == PARTITIONED else 1
        )
    }


def _auto_subscription_creation(key: str, value: Any) -> dict[str, Any]:
    name = "allowAutoSubscriptionCreation"
    return {
        "auto_subscription_creation": _bool(
            f"{key}.{name}", _given(_object(key, value), name, False)
        )
    }


def backlog_quota(key: str, value: Any) -> BacklogQuota:
    """One quota from Pulsar's JSON. `limit` is the old name of `limitSize`. Raises
    InvalidRequest."""
    body = _object(key, value)
    size = _given(body, "limitSize", _given(body, "limit", INFINITE))
    time = _given(body, "limitTime", INFINITE)
    return BacklogQuota(
        _int(f"{key}.limitSize", size, INFINITE, _LONG_MAX),
        _int(f"{key}.limitTime", time, INFINITE, _INT_MAX),
        _choice(f"{key}.policy", _given(body, "policy", HOLD), (HOLD, REFUSE, EVICT)),
    )


def _backlog_quotas(key: str, value: Any) -> dict[str, Any]:
    quotas = {}
    for kind, quota in _object(key, value).items():
        _choice(key, kind, (DESTINATION_STORAGE, MESSAGE_AGE))
        quotas[kind] = backlog_quota(f"{key}.{kind}", quota)
    return {"backlog_quotas": quotas}


def _delayed_delivery(key: str, value: Any) -> dict[str, Any]:
    body = _object(key, value)
    tick = _int(f"{key}.tickTime", _given(body, "tickTime", 1000), 1, _INT_MAX)
    longest = _int(
        f"{key}.maxDeliveryDelayInMillis", _given(body, "maxDeliveryDelayInMillis", 0), 0, _LONG_MAX
    )
    return {
        "delayed_delivery": DelayedDelivery(
            _bool(f"{key}.active", _given(body, "active", False)), tick, longest
        )
    }


def _inactive_topic(key: str, value: Any) -> dict[str, Any]:
    body = _object(key, value)
    mode = _choice(
        f"{key}.inactiveTopicDeleteMode",
        _given(body, "inactiveTopicDeleteMode", NO_SUBSCRIPTIONS),
        (NO_SUBSCRIPTIONS, CAUGHT_UP),
    )
    seconds = _int(
        f"{key}.maxInactiveDurationSeconds",
        _given(body, "maxInactiveDurationSeconds", 60),
        1,
        _INT_MAX,
    )
    enabled = _bool(f"{key}.deleteWhileInactive", _given(body, "deleteWhileInactive", False))
    return {"inactive_topic": InactiveTopic(enabled, mode, seconds)}


def _watermarks(key: str, value: Any) -> dict[str, Any]:
    body, default = _object(key, value), WatermarkPolicy()
    enabled = _bool(f"{key}.enabled", _given(body, "enabled", False))
    return {
        "watermarks": WatermarkPolicy(
            enabled,
            enabled,
            _int(
                f"{key}.idleTimeout",
                _given(body, "idleTimeout", default.idle_timeout_s),
                0,
                _INT_MAX,
            ),
            _int(
                f"{key}.snapshotInterval",
                _given(body, "snapshotInterval", default.snapshot_records),
                SNAPSHOT_RECORDS_MIN,
                SNAPSHOT_RECORDS_MAX,
            ),
        )
    }


def _subscription_types(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidRequest(
            f"{key}: {value!r} is not a list; send a list of {', '.join(SUBSCRIPTION_TYPES)}"
        )
    for name in value:
        _choice(key, name, SUBSCRIPTION_TYPES)
    return {"subscription_types_enabled": frozenset(value or SUBSCRIPTION_TYPES)}


def _schema_strategy(key: str, value: Any) -> dict[str, Any]:
    found = Strategy(_choice(key, value, list(Strategy)))
    return {} if found is Strategy.UNDEFINED else {"schema_strategy": found}


def _schema_auto_update(key: str, value: Any) -> dict[str, Any]:
    return {"schema_auto_update": AUTO_UPDATE[_choice(key, value, list(AUTO_UPDATE))]}


# --- all of them ----------------------------------------------------------------------------------

READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "deduplicationEnabled": _boolean("deduplication_enabled"),
        "deduplicationSnapshotIntervalSeconds": _number("deduplication_snapshot_interval"),
        "encryption_required": _boolean("encryption_required"),
        "autoTopicCreationOverride": _auto_topic_creation,
        "autoSubscriptionCreationOverride": _auto_subscription_creation,
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
        "subscription_types_enabled": _subscription_types,
        "subscription_expiration_time_minutes": _number("subscription_expiration_minutes"),
        "max_message_size": _number("max_message_bytes"),
        "compaction_threshold": _number("compaction_threshold", 0, _LONG_MAX),
        "schema_compatibility_strategy": _schema_strategy,
        "schema_auto_update_compatibility_strategy": _schema_auto_update,
        "is_allow_auto_update_schema": _boolean("schema_updates_allowed"),
        "schema_validation_enforced": _boolean("schema_validation_enforced"),
    }
)
"""How each key that has an effect is read. All other keys are only stored and returned."""


_SHAPES: Mapping[str, type] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "persistence",
                "publishMaxMessageRate",
                "topicDispatchRate",
                "subscriptionDispatchRate",
            ),
            dict,
        ),
        **dict.fromkeys(
            ("clusterSubscribeRate", "replicatorDispatchRate", "offload_policies", "entryFilters"),
            dict,
        ),
        **dict.fromkeys(("bookie_affinity", "migration", "auth_policies", "properties"), dict),
        **dict.fromkeys(("replication_clusters", "allowed_clusters"), list),
        **dict.fromkeys(("subscription_auth_mode", "anti_affinity", "resource_group_name"), str),
        "dispatcherPauseOnAckStatePersistentEnabled": bool,
        **dict.fromkeys(
            ("offload_threshold", "offload_threshold_in_seconds", "offload_deletion_lag_ms"), int
        ),
    }
)
"""What is only stored must be of the kind that Pulsar's clients read: one wrong value keeps them
from reading all policies of a namespace."""
_KINDS: Mapping[type, str] = MappingProxyType(
    {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "a whole number",
    }
)


def check(policies: Mapping[str, Any]) -> None:
    """Refuse values that cannot be read. Raises InvalidRequest naming key and value."""
    for key, value in policies.items():
        if value is None:
            continue
        if key in READERS:
            READERS[key](key, value)
        elif key in _SHAPES and type(value) is not _SHAPES[key]:
            raise InvalidRequest(
                f"{key}: {str(value)[:80]!r} is not {_KINDS[_SHAPES[key]]}; send what Pulsar's "
                "admin API names so"
            )


def readable(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `policies` that `effective` can read: a record of another writer must not make a
    topic unusable."""
    found = {}
    for key, value in policies.items():
        try:
            check({key: value})
        except InvalidRequest:
            continue
        found[key] = value
    return found


def effective(
    broker_defaults: Policies, namespace: Mapping[str, Any], topic: Mapping[str, Any]
) -> Policies:
    """The policies of a topic, from Pulsar's JSON of its namespace and of itself. Raises
    InvalidRequest naming key and value.

    Backlog quotas are merged by their type; everything else is replaced as a whole. A value that is
    null is not set.
    """
    changes: dict[str, Any] = {}
    quotas = dict(broker_defaults.backlog_quotas)
    for level in (namespace, topic):
        for key, value in level.items():
            reader = READERS.get(key)
            if reader is not None and value is not None:
                read = reader(key, value)
                quotas.update(read.pop("backlog_quotas", {}))
                changes.update(read)
    if not changes and quotas == dict(broker_defaults.backlog_quotas):
        return broker_defaults
    return dataclasses.replace(broker_defaults, **changes, backlog_quotas=MappingProxyType(quotas))
