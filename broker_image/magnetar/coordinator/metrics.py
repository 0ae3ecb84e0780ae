"""Metrics of a transaction coordinator.

Owns: every metric name it exports. Imports: prometheus_client, background, the metrics that brokers
have as well. Invariant: label values come from closed vocabularies.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from magnetar.hosting.background import Surprises
from magnetar.hosting.metrics import surprise_counters

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
COMMITTED, ABORTED, TIMED_OUT = "committed", "aborted", "timed_out"


class _SurpriseCounters(Collector):
    def __init__(self, surprises: Surprises) -> None:
        self._surprises = surprises

    def collect(self) -> list[Metric]:
        return [surprise_counters(self._surprises)]


class CoordinatorMetrics:
    """All metrics of one coordinator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.surprises = Surprises()
        self.registry.register(_SurpriseCounters(self.surprises))
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

    def life_ended(self) -> None:
        """What was true of an incarnation is true of none now: nothing is held, and nobody knows
        here what is open."""
        for gauge in (self.held, self.epoch, self.open_transactions, self.oldest_transaction_s):
            gauge.set(0)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)
