"""Metrics of a topic, by Pulsar's names.

Owns: the names, and how each is read. Imports: topics, sheet. Source: Pulsar's reference of metrics.
Invariants: reading touches no storage; what this broker does not measure is absent, never invented;
a value of a namespace is the sum of its topics', unless it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from magnetar.broker.exposition.sheet import ABSENT, Family
from magnetar.broker.exposition.subscriptions import ReadSubscription
from magnetar.broker.topics.publish_histogram import LATENCY_BUCKETS, SIZE_BUCKETS
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.clock import elapsed_ms
from magnetar.hosting.minute_histogram import Minute
from magnetar.policies import BacklogQuota
from magnetar.policy_shapes import DESTINATION_STORAGE, MESSAGE_AGE


class ReadTopic:
    """A topic at the time of a scrape."""

    __slots__ = (
        "backlog_age_s",
        "backlog_bytes",
        "consumers",
        "counters",
        "entries_waiting",
        "host",
        "latencies",
        "rates",
        "sizes",
        "storage_bytes",
        "subscriptions",
    )

    def __init__(self, host: TopicHost, subscriptions: list[ReadSubscription]) -> None:
        core, clock = host.core, host.context.clock
        self.host, self.subscriptions = host, subscriptions
        self.counters, self.rates = core.counters, host.traffic.rates()
        core.age(elapsed_ms(clock))
        self.storage_bytes = core.ages.bytes_from(core.ledgers.first, core.ledgers.end)
        self.consumers = sum(len(found.core.consumers) for found in subscriptions)
        self.entries_waiting = sum(found.core.backlog for found in subscriptions)
        self.backlog_bytes = max((found.backlog_bytes for found in subscriptions), default=0)
        self.backlog_age_s = max((found.backlog_age_s for found in subscriptions), default=0.0)
        histogram = host.publishing.histogram
        self.latencies: Minute = NO_LATENCIES
        self.sizes: Minute = NO_SIZES
        if histogram is not None:
            now = clock.monotonic()
            self.latencies, self.sizes = histogram.latencies.read(now), histogram.sizes.read(now)

    def quota(self, kind: str) -> BacklogQuota:
        return self.host.policies.backlog_quotas.get(kind) or BacklogQuota()

    def open_transactions(self) -> float:
        used = self.host.transactions
        return len(list(used.buffer.open_transactions())) if used is not None else 0.0

    def committed_transactions(self) -> float:
        used = self.host.transactions
        return used.buffer.committed if used is not None else 0.0

    def aborted_transactions(self) -> float:
        used = self.host.transactions
        return used.buffer.aborted if used is not None else 0.0


def _histogram(
    name: str, buckets: tuple[str, ...], what: str, unit: str, read: Callable[[ReadTopic], Minute]
) -> Iterator[Family[ReadTopic]]:
    """A histogram of topics that count (metrics_publish_histograms)."""

    def bucket(index: int) -> Family[ReadTopic]:
        return Family(f"{name}_{buckets[index]}", what, lambda t: read(t).buckets[index])

    yield from map(bucket, range(len(buckets)))
    yield Family(f"{name}_count", "Entries of the last minute", lambda t: read(t).values)
    yield Family(f"{name}_sum", f"{unit} of the last minute, added up", lambda t: read(t).total)


NO_LATENCIES = Minute([ABSENT] * len(LATENCY_BUCKETS), ABSENT)
NO_SIZES = Minute([ABSENT] * len(SIZE_BUCKETS), ABSENT)
HISTOGRAM_FAMILIES = (
    *_histogram(
        "pulsar_storage_write_latency",
        LATENCY_BUCKETS,
        "Entries of the last minute that became durable within so many ms, and not within less",
        "Milliseconds",
        lambda t: t.latencies,
    ),
    *_histogram(
        "pulsar_entry_size",
        SIZE_BUCKETS,
        "Entries of the last minute of at most so many bytes, and not of less",
        "Bytes",
        lambda t: t.sizes,
    ),
)
TOPIC_FAMILIES: tuple[Family[ReadTopic], ...] = (
    Family("pulsar_subscriptions_count", "Subscriptions", lambda t: len(t.subscriptions)),
    Family(
        "pulsar_producers_count",
        "Producers that are connected",
        lambda t: len(t.host.core.producers),
    ),
    Family("pulsar_consumers_count", "Consumers that are connected", lambda t: t.consumers),
    Family("pulsar_rate_in", "Messages published per second", lambda t: t.rates.messages_in),
    Family("pulsar_rate_out", "Messages delivered per second", lambda t: t.rates.messages_out),
    Family("pulsar_throughput_in", "Bytes published per second", lambda t: t.rates.bytes_in),
    Family("pulsar_throughput_out", "Bytes delivered per second", lambda t: t.rates.bytes_out),
    Family(
        "pulsar_storage_write_rate", "Entries published per second", lambda t: t.rates.entries_in
    ),
    Family("pulsar_storage_size", "Bytes stored", lambda t: t.storage_bytes),
    Family(
        "pulsar_storage_logical_size", "The same: there are no replicas", lambda t: t.storage_bytes
    ),
    Family(
        "pulsar_storage_backlog_size",
        "Bytes behind the slowest subscription",
        lambda t: t.backlog_bytes,
    ),
    Family(
        "pulsar_storage_backlog_age_seconds",
        "Age of the oldest entry that a subscription has not acknowledged",
        lambda t: t.backlog_age_s,
    ),
    Family(
        "pulsar_msg_backlog",
        "Entries not acknowledged, of all subscriptions",
        lambda t: t.entries_waiting,
    ),
    Family(
        "pulsar_storage_backlog_quota_limit",
        "Bytes that the slowest subscription may have before it; -1 without a limit",
        lambda t: t.quota(DESTINATION_STORAGE).limit_bytes,
    ),
    Family(
        "pulsar_storage_backlog_quota_limit_time",
        "Seconds that an entry may wait for the slowest subscription; -1 without a limit",
        lambda t: t.quota(MESSAGE_AGE).limit_s,
    ),
    Family(
        "pulsar_in_messages_total",
        "Messages published since the topic is served here",
        lambda t: t.counters.messages_in,
    ),
    Family(
        "pulsar_in_bytes_total",
        "Bytes published since the topic is served here",
        lambda t: t.counters.bytes_in,
    ),
    Family(
        "pulsar_out_messages_total",
        "Messages delivered since the topic is served here",
        lambda t: t.counters.messages_out,
    ),
    Family(
        "pulsar_out_bytes_total",
        "Bytes delivered since the topic is served here",
        lambda t: t.counters.bytes_out,
    ),
    Family(
        "pulsar_publish_rate_limit_times",
        "How often a publish rate made a producer wait, since the topic is served here",
        lambda t: t.host.throttles.publish_waits if t.host.throttles is not None else 0,
    ),
    Family(
        "pulsar_consumer_msg_ack_rate",
        "Messages acknowledged per second",
        lambda t: sum(found.rates.acknowledged for found in t.subscriptions),
    ),
    Family(
        "pulsar_txn_tb_active_total",
        "Transactions with messages here that are open",
        ReadTopic.open_transactions,
    ),
    Family(
        "pulsar_txn_tb_committed_total",
        "Transactions with messages here that were committed since the topic is served here",
        ReadTopic.committed_transactions,
    ),
    Family(
        "pulsar_txn_tb_aborted_total",
        "The same, aborted",
        ReadTopic.aborted_transactions,
    ),
    *HISTOGRAM_FAMILIES,
)

LIMITS = frozenset(
    {"pulsar_storage_backlog_quota_limit", "pulsar_storage_backlog_quota_limit_time"}
)
"""They have no sum."""
OLDEST = frozenset({"pulsar_storage_backlog_age_seconds"})
"""A namespace has the greatest one."""
