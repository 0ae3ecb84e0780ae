"""Settings that change while a broker runs.

Owns: their names; `LiveSettings`, what a broker was started with and what holds now. Imports:
bounded, settings, balance.settings, errors. Invariants: a setting is live only if every part of the broker reads it
when it is needed, or is notified of a change; a value that this version refuses leaves the others
in force.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from magnetar.balance.settings import FIELDS as BALANCE_FIELDS
from magnetar.errors import InvalidRequest
from magnetar.hosting.bounded import bounded_fields, number_of
from magnetar.hosting.settings import BrokerSettings

LIVE = frozenset(
    {
        # clients
        "connect_timeout_s", "consumers_per_connection_max", "keep_alive_s", "liveness_check_s",
        "non_persistent_in_flight_max", "park_timeout_s", "producer_name_bytes_max",
        "producers_per_connection_max", "reader_return_s", "requests_per_connection_max",
        "slow_peer_s", "topic_watchers_per_connection_max", "write_buffer_bytes_max",
        # topics and subscriptions
        "ack_write_delay_s", "bundles_per_namespace_max", "chunked_messages_max",
        "delayed_runs_max", "failover_delay_ms", "look_ahead_per_consumer_entries_max",
        "look_ahead_per_subscription_entries_max", "partitions_max", "read_batch_bytes_max",
        "read_batch_entries_max", "schema_bytes_max", "schema_versions_max",
        # transactions
        "txn_bytes_max", "txn_entries_max", "txn_held_acks_max", "txn_inquire_s",
        "txn_late_sends_as_ordinary", "txn_open_entries_per_topic_max", "txn_open_per_topic_max",
        # work in the background
        "backlog_quota_check_s", "checkpoint_age_s", "checkpoint_files_max",
        "drain_store_patience_s", "expiry_check_s", "inactive_check_s", "maintenance_s",
        "metadata_backup_interval_s", "metadata_backups_kept", "move_pin_s",
        "orphans_parallel_max", "recovery_retry_max_s", "retention_check_s", "rewrite_age_s",
        "rewrite_bytes_per_s", "rewrite_garbage_share", "split_buffered_bytes_max",
        "topic_check_s", "trim_grace_s",
        # metrics
        "exposeConsumerLevelMetricsInPrometheus", "exposeProducerLevelMetricsInPrometheus",
        "exposeTopicLevelMetricsInPrometheus", "metrics_objects_max",
        "metrics_publish_histograms",
    }
)  # fmt: skip
_FIELDS = {field.name: field for field in bounded_fields(BrokerSettings)}


def read(name: str, value: object) -> float:
    """A value of a live setting, from text or a number. Raises InvalidRequest naming it."""
    number = number_of(_FIELDS[name], str(value))
    if not math.isfinite(number):
        raise InvalidRequest(f"{name}: {value!r} is not finite; use a number within its bounds")
    return number


def followed(
    started: BrokerSettings, given: Mapping[str, object]
) -> tuple[BrokerSettings, dict[str, InvalidRequest]]:
    """The settings in force once `given` values change those of the start, and why others are
    refused, by name."""
    found, refused = started, dict[str, InvalidRequest]()
    for name, value in sorted(given.items()):
        try:
            changed: dict[str, Any] = {name: read(name, value)}
            found = dataclasses.replace(found, **changed)
        except InvalidRequest as error:
            refused[name] = error
    return found, refused


class LiveSettings:
    """The settings of one broker."""

    __slots__ = ("now", "started")

    def __init__(self, started: BrokerSettings) -> None:
        self.now = self.started = started

    def follow(self, given: Mapping[str, object]) -> dict[str, InvalidRequest]:
        """Values by name are in force from now on, all others are those of the start. Why some of
        them are refused, by name."""
        known = {name: value for name, value in given.items() if name in LIVE}
        self.now, refused = followed(self.started, known)
        unknown = given.keys() - LIVE - BALANCE_FIELDS.keys()
        return refused | {
            name: InvalidRequest(f"{name}: this version has no such live setting")
            for name in unknown
        }
