"""Metrics under the names that dashboards for operators know.

Owns: controller-runtime's and client-go's metric names and ours. Imports: autoscaling_metrics,
prometheus_client. Invariants: labels come from closed sets (kinds, results, verbs, status codes);
the only names of objects among them are those of BrokerClusters and of their few certificates;
label sets that every pass or request touches are looked up once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from magnetar_operator.brokers.autoscaling_metrics import AutoscalingMetrics
from magnetar_operator.jobs.metrics import JobMetrics

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
QUEUE = "magnetar"
RESULTS = ("success", "requeue_after", "error")


class _Resources(Collector):
    """Counts custom resources when scraped, so that a gauge never keeps what is gone."""

    def __init__(self) -> None:
        self.read: Callable[[], Mapping[tuple[str, str, str], int]] = dict

    def collect(self) -> list[Metric]:
        text = "Resources by status and reason of their condition Ready"
        found = GaugeMetricFamily(
            "magnetar_operator_resources", text, labels=["kind", "ready", "reason"]
        )
        for labels, number in sorted(self.read().items()):
            found.add_metric(labels, number)
        return [found]


class _Certificates(Collector):
    """Says when scraped how long certificates last, so that one of a cluster that is gone is not
    shown."""

    def __init__(self) -> None:
        self.read: Callable[[], Mapping[tuple[str, str], float]] = dict

    def collect(self) -> list[Metric]:
        text = "Seconds until a certificate for a cluster's etcd ends; negative = it has ended"
        found = GaugeMetricFamily(
            "magnetar_operator_certificate_expires_seconds", text, labels=["cluster", "certificate"]
        )
        for labels, seconds in sorted(self.read().items()):
            found.add_metric(labels, seconds)
        return [found]


@dataclass(frozen=True, slots=True)
class PassMetrics:
    """What every pass over objects of one kind touches, looked up once."""

    active: Gauge
    steady: Counter
    seconds: Histogram
    results: Mapping[str, Counter]


class OperatorMetrics:
    """Every metric of one operator process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._resources = _Resources()
        self._certificates = _Certificates()
        self.registry.register(self._resources)
        self.autoscaling = AutoscalingMetrics()
        self.registry.register(self.autoscaling)
        self.jobs = JobMetrics(self.registry)
        self.registry.register(self._certificates)
        self._reconciliations()
        self._queue()
        self._requests()
        self._caches()
        self.leading = self._gauge(
            "leader_election_master_status", "1 while this process leads", "name"
        )
        self.store_writes = self._counter(
            "magnetar_operator_store_writes_total", "Transactions sent to clusters' etcd"
        )
        self.beats = self._counter(
            "magnetar_operator_sentinel_beats_total", "Changes of the sentinel by this leader"
        )
        self.events = self._counter("magnetar_operator_events_total", "Events written", "reason")

    def _reconciliations(self) -> None:
        one, many = self._counter, self._histogram
        self.reconciles = one(
            "controller_runtime_reconcile_total",
            "Reconciliations by result",
            "controller",
            "result",
        )
        self.reconcile_errors = one(
            "controller_runtime_reconcile_errors_total", "Reconciliations that failed", "controller"
        )
        self.terminal_errors = one(
            "controller_runtime_terminal_reconcile_errors_total",
            "Reconciliations that only a change of the object can repair",
            "controller",
        )
        self.panics = one(
            "controller_runtime_reconcile_panics_total",
            "Reconciliations that ended by an error of the operator's own",
            "controller",
        )
        self.timeouts = one(
            "controller_runtime_reconcile_timeouts_total",
            "Reconciliations that were cut off",
            "controller",
        )
        self.reconcile_seconds = many(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconciliation",
            "controller",
        )
        self.active_workers = self._gauge(
            "controller_runtime_active_workers", "Workers that reconcile now", "controller"
        )
        self.workers_max = self._gauge(
            "controller_runtime_max_concurrent_reconciles", "Workers", "controller"
        )
        self.steady = one(
            "magnetar_operator_reconcile_steady_state_total",
            "Reconciliations that found nothing to write",
            "controller",
        )
        self.last_success = self._gauge(
            "magnetar_operator_reconcile_last_success_timestamp_seconds",
            "When a reconciliation last succeeded",
            "controller",
        )

    def of_passes(self, kind: str) -> PassMetrics:
        return PassMetrics(
            self.active_workers.labels(kind),
            self.steady.labels(kind),
            self.reconcile_seconds.labels(kind),
            {result: self.reconciles.labels(kind, result) for result in RESULTS},
        )

    def _queue(self) -> None:
        one, many = self._counter, self._histogram
        self.queue_depth = self._gauge("workqueue_depth", "Keys that wait", "name").labels(QUEUE)
        self.queue_adds = one("workqueue_adds_total", "Keys added", "name").labels(QUEUE)
        self.queue_retries = one(
            "workqueue_retries_total", "Keys added again after a failure", "name"
        ).labels(QUEUE)
        self.queue_wait = many(
            "workqueue_queue_duration_seconds", "Time from being added to being taken", "name"
        ).labels(QUEUE)
        self.queue_work = many(
            "workqueue_work_duration_seconds", "Time from being taken to being done", "name"
        ).labels(QUEUE)
        self.unfinished = self._gauge(
            "workqueue_unfinished_work_seconds",
            "Ages of all reconciliations under way, added up",
            "name",
        ).labels(QUEUE)
        self.longest = self._gauge(
            "workqueue_longest_running_processor_seconds",
            "Age of the oldest reconciliation under way",
            "name",
        ).labels(QUEUE)

    def _requests(self) -> None:
        self.requests = self._counter(
            "rest_client_requests_total", "Requests to the API server", "method", "code"
        )
        self.request_seconds = self._histogram(
            "rest_client_request_duration_seconds", "Duration of requests to the API server", "verb"
        )
        self.rate_limiter_seconds = self._histogram(
            "rest_client_rate_limiter_duration_seconds",
            "Time that requests waited because the API server had said so",
            "verb",
        )

    def _caches(self) -> None:
        one = self._counter
        self.cached = self._gauge(
            "magnetar_operator_cached_objects", "Objects in the cache", "kind"
        )
        self.synced = self._gauge(
            "magnetar_operator_synced_timestamp_seconds",
            "When every kind was listed for the first time",
        )
        self.watch_age = self._gauge(
            "magnetar_operator_watch_last_event_age_seconds",
            "Time since the watch last delivered an event",
            "kind",
        )
        self.watch_lag = self._histogram(
            "magnetar_operator_watch_lag_seconds",
            "Time from the answer to a write of ours until the watch shows it",
            "kind",
        )
        self.watch_events = one(
            "magnetar_operator_watch_events_total", "Events of the watches", "kind"
        )
        self.watch_restarts = one(
            "magnetar_operator_watch_restarts_total", "Times that all watches were opened again"
        )
        self.watch_overdue = one(
            "magnetar_operator_watch_overdue_total",
            "Times that a watch did not show a write of ours in time",
            "kind",
        )
        self.list_news = one(
            "magnetar_operator_list_news_total",
            "Objects that a periodic list showed before the watch",
            "kind",
        )
        self.refused_namespaces = self._gauge(
            "magnetar_operator_refused_namespaces",
            "Watched namespaces that the API server does not let the operator read",
        )
        self.stale_lists = one(
            "magnetar_operator_stale_lists_total", "Lists older than an earlier one", "kind"
        )

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(name, what, labels, registry=self.registry)

    def _histogram(
        self, name: str, what: str, *labels: str, buckets: Sequence[float] = _SECONDS
    ) -> Histogram:
        return Histogram(name, what, labels, buckets=buckets, registry=self.registry)

    def count_resources(self, read: Callable[[], Mapping[tuple[str, str, str], int]]) -> None:
        """`read` is asked at every scrape, in a thread of its own: (kind, status of Ready, its
        reason) -> how many."""
        self._resources.read = read

    def show_certificates(self, read: Callable[[], Mapping[tuple[str, str], float]]) -> None:
        """`read` is asked at every scrape, in a thread of its own: (namespace/cluster, what for)
        -> seconds that are left."""
        self._certificates.read = read

    def request(self, method: str, status: int, seconds: float) -> None:
        """Note one request; status 0 = no answer."""
        self.requests.labels(method, str(status) if status else "<error>").inc()
        self.request_seconds.labels(method).observe(seconds)

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
