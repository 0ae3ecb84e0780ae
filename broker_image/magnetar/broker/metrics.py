"""Metrics of a broker.

Owns: every metric name the broker exports, with its meaning. Imports: prometheus_client,
background. Invariants: label values come from closed vocabularies (never topic, client or producer
names); the hot path adds plain integers per batch and the exporter reads them; one registry per
broker, so several brokers in one process (tests, simulation) do not mix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from magnetar.hosting.background import Surprises
from magnetar.hosting.metrics import surprise_counters

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)


@dataclass(slots=True)
class Traffic:
    """What a bundle has published and delivered here. Its topics add to it, per batch."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0

    def counts(self) -> tuple[int, int, int, int]:
        """Messages in and out, bytes in and out."""
        return self.messages_in, self.messages_out, self.bytes_in, self.bytes_out

    def add(self, other: Traffic) -> None:
        self.messages_in += other.messages_in
        self.bytes_in += other.bytes_in
        self.messages_out += other.messages_out
        self.bytes_out += other.bytes_out


_MESSAGES_IN, _BYTES_IN = attrgetter("messages_in"), attrgetter("bytes_in")
_MESSAGES_OUT, _BYTES_OUT = attrgetter("messages_out"), attrgetter("bytes_out")


class _HotCounters(Collector):
    """Exports the plain integers of the hot path under their metric names."""

    def __init__(self, metrics: BrokerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        m, traffic = self._metrics, self._metrics.traffic()
        counters = {
            "magnetar_messages_in": ("Messages published and durable", traffic.messages_in),
            "magnetar_bytes_in": ("Bytes published and durable", traffic.bytes_in),
            "magnetar_messages_out": ("Messages sent to consumers", traffic.messages_out),
            "magnetar_bytes_out": ("Bytes sent to consumers", traffic.bytes_out),
            "magnetar_publish_errors": ("Publishes refused or failed", m.publish_errors),
            "magnetar_lookups": ("LOOKUP commands received", m.lookups),
            "magnetar_tail_cache_hits": ("Dispatch reads served from memory", m.tail_hits),
            "magnetar_tail_cache_misses": ("Dispatch reads served from storage", m.tail_misses),
        }
        found: list[Metric] = [
            CounterMetricFamily(name, text, value=value) for name, (text, value) in counters.items()
        ]
        found.append(surprise_counters(m.surprises))
        found += [
            GaugeMetricFamily(name, text, value=read()) for name, (text, read) in m.gauges.items()
        ]
        return found


class BalanceMetrics:
    """Metrics of load balancing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.decisions = Counter(
            "magnetar_balance_decisions",
            "Decisions of load balancing by this broker as leader",
            registry=registry,
        )
        self.moves = Counter(
            "magnetar_balance_moves",
            "Bundles that this broker as leader asked to move",
            registry=registry,
        )
        self.splits = Counter(
            "magnetar_balance_splits",
            "Bundles split here because of their load",
            registry=registry,
        )
        self.merges = Counter(
            "magnetar_balance_merges",
            "Pairs of bundles merged here because they had no load",
            registry=registry,
        )
        self.seconds = Histogram(
            "magnetar_balance_decision_seconds",
            "From the views to a decision",
            registry=registry,
            buckets=_SECONDS,
        )
        self.imbalance = Gauge(
            "magnetar_balance_imbalance",
            "Load of the fullest broker over the mean, as the leader saw it; 0 elsewhere",
            registry=registry,
        )
        self.gain = Gauge(
            "magnetar_balance_gain",
            "Share of the mean by which the planner's moves could lower the load of the fullest "
            "broker, as the leader saw it; 0 within the trigger band, with another strategy, and "
            "elsewhere",
            registry=registry,
        )

        self.advice_ignored = Counter(
            "magnetar_load_advice_ignored",
            "Documents of load analytics that were not used, or not any longer, by why",
            ["reason"],
            registry=registry,
        )
        self.samples = Counter(
            "magnetar_load_history_samples",
            "Samples of load: written into storage, or dropped because storage took none",
            ["outcome"],
            registry=registry,
        )

    def forget(self) -> None:
        """Another broker leads, or load is not balanced."""
        self.imbalance.set(0)
        self.gain.set(0)


class CompactionMetrics:
    """Metrics of topic compaction by this broker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.runs = Counter(
            "magnetar_topic_compactions",
            "Compactions of topics that this broker has ended, by outcome",
            ["outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "magnetar_topic_compaction_seconds",
            "From the begin of a topic's compaction to its commit",
            registry=registry,
            buckets=(0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800),
        )
        self.bytes_read = Counter(
            "magnetar_topic_compaction_bytes_read",
            "Bytes of the inputs of this broker's compactions of topics",
            registry=registry,
        )
        self.bytes_written = Counter(
            "magnetar_topic_compaction_bytes_written",
            "Bytes of compacted views that this broker has written",
            registry=registry,
        )


class BrokerMetrics:
    """All metrics of one broker."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.surprises = Surprises()
        self._ended, self._traffics = Traffic(), dict[int, Traffic]()
        self.publish_errors = self.tail_hits = self.tail_misses = self.lookups = 0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self.registry.register(_HotCounters(self))
        self.connections = Gauge(
            "magnetar_connections", "Open client connections", registry=self.registry
        )
        self.bundles_owned = Gauge(
            "magnetar_bundles_owned", "Bundles served by this broker", registry=self.registry
        )
        self.acquisitions = Counter(
            "magnetar_bundle_acquisitions",
            "Bundles taken over, by how",
            ["kind"],
            registry=self.registry,
        )
        self.acquire_seconds = Histogram(
            "magnetar_bundle_acquire_seconds",
            "From Assigning to Owned",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.release_seconds = Histogram(
            "magnetar_bundle_frozen_seconds",
            "From freezing a bundle to its release",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.bytes_rewritten = Counter(
            "magnetar_bytes_rewritten", "Bytes written by level-1 rewriting", registry=self.registry
        )
        self.files_collected = Counter(
            "magnetar_log_files_collected",
            "Log files given up by the collector",
            registry=self.registry,
        )
        self.late_transactional_messages = Counter(
            "magnetar_transaction_late_messages",
            "Messages that named a committed transaction, published as ordinary ones "
            "(txn_late_sends_as_ordinary)",
            registry=self.registry,
        )
        self.balance = BalanceMetrics(self.registry)
        self.compaction = CompactionMetrics(self.registry)
        self.log_rolls = Counter("magnetar_log_rolls", "Log files rolled", registry=self.registry)

    def begin(self, traffic: Traffic) -> None:
        """Include the traffic of a bundle that is served from now on."""
        self._traffics[id(traffic)] = traffic

    def end(self, traffic: Traffic) -> None:
        """Keep the counts of a bundle that is no longer served."""
        if self._traffics.pop(id(traffic), None) is not None:
            self._ended.add(traffic)

    def traffic(self) -> Traffic:
        """The traffic of all bundles since the start."""
        found, traffics = self._ended, self._traffics.values()
        return Traffic(
            found.messages_in + sum(map(_MESSAGES_IN, traffics)),
            found.bytes_in + sum(map(_BYTES_IN, traffics)),
            found.messages_out + sum(map(_MESSAGES_OUT, traffics)),
            found.bytes_out + sum(map(_BYTES_OUT, traffics)),
        )

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Register a gauge that is read when scraped."""
        self.gauges[name] = (text, read)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
