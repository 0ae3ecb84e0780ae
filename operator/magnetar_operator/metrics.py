"""Metrics under the names that dashboards for operators know.

Owns: controller-runtime's and client-go's metric names and ours. Imports: prometheus_client.
Invariant: labels come from closed sets (kinds, results, verbs, status codes), never from names of objects.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
QUEUE = "magnetar"


class OperatorMetrics:
    """Every metric of one operator process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.reconciles = Counter(
            "controller_runtime_reconcile_total", "Reconciliations by result", ["controller", "result"], registry=registry
        )
        self.reconcile_errors = Counter(
            "controller_runtime_reconcile_errors_total", "Reconciliations that failed", ["controller"], registry=registry
        )
        self.reconcile_seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconciliation",
            ["controller"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.active_workers = Gauge(
            "controller_runtime_active_workers", "Workers that reconcile now", ["controller"], registry=registry
        )
        self.workers_max = Gauge("controller_runtime_max_concurrent_reconciles", "Workers", ["controller"], registry=registry)
        self.queue_depth = Gauge("workqueue_depth", "Keys that wait", ["name"], registry=registry)
        self.queue_adds = Counter("workqueue_adds_total", "Keys added", ["name"], registry=registry)
        self.queue_retries = Counter("workqueue_retries_total", "Keys added again after a failure", ["name"], registry=registry)
        self.queue_wait = Histogram(
            "workqueue_queue_duration_seconds",
            "Time from being added to being taken",
            ["name"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.queue_work = Histogram(
            "workqueue_work_duration_seconds", "Time from being taken to being done", ["name"], buckets=_SECONDS, registry=registry
        )
        self.longest = Gauge(
            "workqueue_longest_running_processor_seconds", "Age of the oldest reconciliation under way", ["name"], registry=registry
        )
        self.requests = Counter("rest_client_requests_total", "Requests to the API server", ["method", "code"], registry=registry)
        self.request_seconds = Histogram(
            "rest_client_request_duration_seconds",
            "Duration of requests to the API server",
            ["verb"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.leading = Gauge("leader_election_master_status", "1 while this process leads", ["name"], registry=registry)
        self.store_writes = Counter(
            "magnetar_operator_store_writes_total", "Transactions sent to clusters' etcd", registry=registry
        )
        self.beats = Counter("magnetar_operator_sentinel_beats_total", "Changes of the sentinel by this leader", registry=registry)
        self.events = Counter("magnetar_operator_events_total", "Events written", ["reason"], registry=registry)

    def request(self, method: str, status: int, seconds: float) -> None:
        """Note one request; status 0 = no answer."""
        self.requests.labels(method, str(status) if status else "<error>").inc()
        self.request_seconds.labels(method).observe(seconds)

    def render(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self.registry)
