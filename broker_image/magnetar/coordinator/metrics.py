"""Metrics of a transaction coordinator.

Owns: every metric name it exports. Imports: prometheus_client, background, the metrics that brokers
have as well. Invariant: label values come from closed vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from magnetar.clock import Clock
from magnetar.hosting.background import Surprises
from magnetar.hosting.metrics import surprise_counters, value_of
from magnetar.hosting.minute_histogram import Minute, MinuteHistogram
from magnetar.names import CLUSTER_NAME

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
COMMITTED, ABORTED, TIMED_OUT = "committed", "aborted", "timed_out"
LABELS = ("cluster", "coordinator_id")


class _SurpriseCounters(Collector):
    def __init__(self, surprises: Surprises) -> None:
        self._surprises = surprises

    def collect(self) -> list[Metric]:
        return [surprise_counters(self._surprises)]


EXECUTION_MS = (10, 20, 50, 100, 500, 1000, 5000, 15000, 30000, 60000, 300000, 1500000, 3000000)
BUCKETS = (*(f"le_{high}" for high in EXECUTION_MS), "le_overflow")


class _PulsarFamilies(Collector):
    """The same transactions by Pulsar's names. Its dashboards ask for counters by both endings,
    that of today and that of before Pulsar 2.11."""

    def __init__(self, metrics: CoordinatorMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        metrics, decided = self._metrics, self._metrics.decided
        timed_out = value_of(decided, outcome=TIMED_OUT)
        counts = {
            "created": ("Transactions begun", value_of(metrics.begun)),
            "committed": ("Transactions committed", value_of(decided, outcome=COMMITTED)),
            "aborted": (
                "Transactions aborted, by request or because their time was over",
                value_of(decided, outcome=ABORTED) + timed_out,
            ),
            "timeout": ("Transactions aborted because their time was over", timed_out),
        }
        open_now = value_of(metrics.open_transactions)
        yield self._gauge("active_count", "Transactions that have not ended everywhere", open_now)
        for name, (meaning, value) in counts.items():
            counter = CounterMetricFamily(f"pulsar_txn_{name}", meaning, labels=LABELS)
            if metrics.tcid is not None:
                counter.add_metric([CLUSTER_NAME, str(metrics.tcid)], value)
            yield counter
            yield self._gauge(f"{name}_count", meaning, value)
        execution = "Transactions of a minute that took so many ms from begin to end, and not less"
        for bucket, found in zip(BUCKETS, metrics.execution().buckets, strict=True):
            yield self._gauge(f"execution_latency_{bucket}", execution, found)

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        found = GaugeMetricFamily(f"pulsar_txn_{name}", meaning, labels=LABELS)
        if self._metrics.tcid is not None:
            found.add_metric([CLUSTER_NAME, str(self._metrics.tcid)], value)
        return found


class CoordinatorMetrics:
    """All metrics of one coordinator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.surprises = Surprises()
        self.registry.register(_SurpriseCounters(self.surprises))
        self.tcid: int | None = None
        self._clock: Clock | None = None
        self._execution_ms: MinuteHistogram | None = None
        self.registry.register(_PulsarFamilies(self))
        self.requests = Counter(
            "magnetar_coordinator_requests",
            "Commands answered, by kind and outcome",
            ["command", "outcome"],
            registry=self.registry,
        )
        self.open_transactions = Gauge(
            "magnetar_coordinator_transactions",
            "Transactions that have not ended everywhere",
            registry=self.registry,
        )
        self.begun = Counter(
            "magnetar_coordinator_transactions_begun", "Transactions begun", registry=self.registry
        )
        self.decided = Counter(
            "magnetar_coordinator_transactions_decided",
            "Transactions decided: committed, aborted by request, or aborted because their time "
            "was over",
            ["outcome"],
            registry=self.registry,
        )
        self.request_s = Histogram(
            "magnetar_coordinator_request_seconds",
            "From a command to its answer, by kind; that of END_TXN includes participants, for as "
            "long as it waits for them",
            ["command"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.settle_s = Histogram(
            "magnetar_coordinator_settle_seconds",
            "From a transaction's decision until all its participants have carried it out, by what "
            "was decided",
            ["outcome"],
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.oldest_transaction_s = Gauge(
            "magnetar_coordinator_oldest_transaction_seconds",
            "Age of the oldest transaction that has not ended everywhere, 0 if there is none",
            registry=self.registry,
        )
        self.participant_failures = Counter(
            "magnetar_coordinator_participant_failures",
            "Attempts to end a transaction on a topic or subscription that failed and are tried "
            "again",
            registry=self.registry,
        )
        self._add_number()

    def _add_number(self) -> None:
        """Metrics of the number that this process holds."""
        self.claims = Counter(
            "magnetar_coordinator_claims",
            "Lives of this process that took its number",
            registry=self.registry,
        )
        self.held = Gauge(
            "magnetar_coordinator_held",
            "1 while this process holds its number and answers",
            registry=self.registry,
        )
        self.epoch = Gauge(
            "magnetar_coordinator_epoch",
            "Epoch of the incarnation that holds the number, 0 while none does",
            registry=self.registry,
        )

    def know(self, tcid: int, clock: Clock) -> None:
        """The number of this process, by which Pulsar's names are labelled."""
        self.tcid, self._clock = tcid, clock
        self._execution_ms = self._execution_ms or MinuteHistogram(EXECUTION_MS, clock.monotonic())

    def executed(self, seconds: float) -> None:
        """A transaction has ended everywhere, that long after its begin."""
        if self._execution_ms is not None:
            self._execution_ms.add(1000 * seconds)

    def execution(self) -> Minute:
        """Transactions of the last minute, by what they took."""
        if self._execution_ms is None or self._clock is None:
            return Minute([0] * len(BUCKETS))
        return self._execution_ms.read(self._clock.monotonic())

    def incarnation_ended(self) -> None:
        """What was true of an incarnation is true of none now: nothing is held, and what is open
        is not known here."""
        for gauge in (self.held, self.epoch, self.open_transactions, self.oldest_transaction_s):
            gauge.set(0)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
