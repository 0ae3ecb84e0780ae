"""Metrics of Pulsar that are not offered.

Owns: the list, with the reason and what to use instead. Imports: none. Invariant: a name is offered
or stands here; a test compares both with what public dashboards ask for.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

NOT_OFFERED = {
    "pulsar_storage_read_*": "reads are counted for the broker: `magnetar_tail_cache_hits_total` and "
    "`magnetar_tail_cache_misses_total`",
    "pulsar_broker_storage_read_rate": "as `pulsar_storage_read_*`",
    "pulsar_ml_cache_*": "as `pulsar_storage_read_*`",
    "pulsar_ml_cursor_*": "there are no managed ledgers; cursors are records of the broker's log",
    "pulsar_ml_[A-Z]*": "there are no managed ledgers; use `pulsar_storage_*` and `pulsar_entry_size_*`",
    "pulsar_managedLedger_*": "there is no BookKeeper",
    "pulsar_storage_offloaded_size": "nothing is offloaded: segments lie in shared storage from the start",
    "pulsar_ledgeroffloader_*": "as `pulsar_storage_offloaded_size`",
    "pulsar_replication_*": "there is no replication among clusters",
    "pulsar_lb_directMemory_usage": "there is no memory outside the process' own; use `pulsar_lb_memory_usage`",
    "pulsar_compaction_*": "counted for the broker: `magnetar_topic_compactions_total`, "
    "`magnetar_topic_compaction_seconds`; of one topic over REST",
    "pulsar_txn_append_log_*": "records of the log are written in groups; use `magnetar_coordinator_request_seconds`",
    "pulsar_txn_tb_client_*": "use `magnetar_coordinator_participant_failures_total` and "
    "`magnetar_coordinator_settle_seconds`",
    "pulsar_txn_tp_*": "as `pulsar_txn_tb_client_*`",
    "pulsar_subscription_filter_*": "there are no entry filters",
    "pulsar_delayed_message_index_*": "delayed messages have no index of their own; use `pulsar_subscription_delayed`",
    "pulsar_broker_lookup*": "use `magnetar_lookups_total`",
    "pulsar_broker_load_manager_*": "use `magnetar_bundle_acquire_seconds`",
    "pulsar_broker_topic_load_*": "use `magnetar_bundle_acquire_seconds`",
    "pulsar_topic_load_times": "topics load with their bundle; use `magnetar_bundle_acquire_seconds`",
    "pulsar_connection_*": "use `magnetar_connections`, `magnetar_connections_dropped` and "
    "`magnetar_connections_not_authenticated`",
    "pulsar_broker_throttled_*": "as `pulsar_connection_*`",
    "pulsar_authentication_*": "use `magnetar_connections_not_authenticated`",
    "pulsar_expired_token_*": "as `pulsar_authentication_*`",
    "pulsar_expiring_token_*": "as `pulsar_authentication_*`",
    "pulsar_metadata_store_*": "metadata is in etcd, which has metrics of its own",
    "pulsar_batch_metadata_store_*": "as `pulsar_metadata_store_*`",
    "pulsar_web_executor_*": "there is no thread pool",
    "pulsar_proxy_*": "there is no proxy",
    "pulsar_function_*": "there are no functions",
    "pulsar_source_*": "there are no connectors",
    "pulsar_sink_*": "there are no connectors",
    "jvm_*": "there is no JVM",
    "jetty_*": "there is no Jetty",
    "bookie_*": "there is no BookKeeper",
    "bookkeeper_*": "there is no BookKeeper",
    "zookeeper_*": "there is no ZooKeeper",
    "node_*": "of Prometheus' node exporter, which is not a part of this",
}
"""By names or patterns of names."""


def reason(metric: str) -> str | None:
    """Why a metric is not offered; None: the list does not say so."""
    return next((why for name, why in NOT_OFFERED.items() if fnmatchcase(metric, name)), None)
