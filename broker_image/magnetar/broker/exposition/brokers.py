"""Metrics of the broker as a whole and of its load, by Pulsar's names.

Owns: the names, and how each is read. Imports: topics, load reports, sheet. Invariants: as of
`topics`; load is that of the last report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import Counter

from magnetar.balance.load import BundleLoad, LoadReport, Rates
from magnetar.broker.exposition.sheet import Family
from magnetar.broker.metrics import BrokerMetrics
from magnetar.hosting.metrics import value_of


@dataclass(frozen=True, slots=True)
class ReadBroker:
    """The broker at the time of a scrape. `totals` are the sums over its topics, by metric."""

    metrics: BrokerMetrics
    load: LoadReport
    topics: int
    unnamed: int
    totals: Mapping[str, float]


def _total(metric: str, what: str) -> Family[ReadBroker]:
    return Family(f"pulsar_broker_{what}", f"Of the broker: {metric}", lambda b: b.totals[metric])


def _percent(resource: str, read: Callable[[LoadReport], float]) -> Family[ReadBroker]:
    return Family(
        f"pulsar_lb_{resource}_usage",
        "Percent of its limit, by the last load report; 0 without a limit",
        lambda b: read(b.load),
    )


def _counted(
    name: str, meaning: str, counter: Callable[[ReadBroker], Counter]
) -> tuple[Family[ReadBroker], ...]:
    """By both endings: dashboards ask for that of today, or for that of before Pulsar 2.11."""
    return tuple(
        Family(f"pulsar_lb_{name}_{ending}", meaning, lambda b: value_of(counter(b)))
        for ending in ("total", "count")
    )


VERSION_FAMILIES: tuple[Family[ReadBroker], ...] = (
    Family("pulsar_version_info", "1; the label has the version", lambda _: 1),
)
BROKER_FAMILIES: tuple[Family[ReadBroker], ...] = (
    Family("pulsar_broker_topics_count", "Topics served here", lambda b: b.topics),
    _total("pulsar_subscriptions_count", "subscriptions_count"),
    _total("pulsar_producers_count", "producers_count"),
    _total("pulsar_consumers_count", "consumers_count"),
    _total("pulsar_rate_in", "rate_in"),
    _total("pulsar_rate_out", "rate_out"),
    _total("pulsar_throughput_in", "throughput_in"),
    _total("pulsar_throughput_out", "throughput_out"),
    _total("pulsar_storage_size", "storage_size"),
    _total("pulsar_storage_logical_size", "storage_logical_size"),
    _total("pulsar_storage_write_rate", "storage_write_rate"),
    _total("pulsar_msg_backlog", "msg_backlog"),
    Family(
        "pulsar_active_connections", "Client connections", lambda b: value_of(b.metrics.connections)
    ),
    Family("pulsar_ml_count", "Topics served here", lambda b: b.topics),
    Family(
        "magnetar_metrics_topics_unnamed",
        "Topics served here that no metric names, by exposeTopicLevelMetricsInPrometheus or because "
        "of metrics_objects_max",
        lambda b: b.unnamed,
    ),
)
LOAD_FAMILIES: tuple[Family[ReadBroker], ...] = (
    _percent("cpu", lambda load: load.cpu.percent),
    _percent("memory", lambda load: load.memory.percent),
    _percent("bandwidth_in", lambda load: load.bandwidth_in.percent),
    _percent("bandwidth_out", lambda load: load.bandwidth_out.percent),
    *_counted(
        "unload_bundle",
        "Bundles that this broker as leader asked to move",
        lambda b: b.metrics.balance.moves,
    ),
    *_counted(
        "unload_broker",
        "Decisions of load balancing by this broker as leader",
        lambda b: b.metrics.balance.decisions,
    ),
    *_counted(
        "bundles_split",
        "Bundles split here because of their load",
        lambda b: b.metrics.balance.splits,
    ),
)
BUNDLE_FAMILIES: tuple[Family[BundleLoad], ...] = (
    Family("pulsar_bundle_msg_rate_in", "Messages per second", lambda b: rates_of(b).messages_in),
    Family("pulsar_bundle_msg_rate_out", "Messages per second", lambda b: rates_of(b).messages_out),
    Family("pulsar_bundle_msg_throughput_in", "Bytes per second", lambda b: rates_of(b).bytes_in),
    Family("pulsar_bundle_msg_throughput_out", "Bytes per second", lambda b: rates_of(b).bytes_out),
    Family("pulsar_bundle_topics_count", "Topics", lambda b: b.topics),
    Family("pulsar_bundle_producer_count", "Producers", lambda b: b.producers),
    Family("pulsar_bundle_consumer_count", "Consumers", lambda b: b.consumers),
)


def rates_of(bundle: BundleLoad) -> Rates:
    return bundle.history.level.mean.rates
