"""Runs of jobs, as metrics.

Owns: how many runs ended and how long they took. Imports: conditions, prometheus_client,
magnetar.resources. Invariants: labels are states, of which there are three; a run is counted when
the process that leads writes its end.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from magnetar.resources.data_job import Run
from magnetar_operator.conditions import wall_ms_of

_SECONDS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)


class JobMetrics:
    """Every run of this process's jobs."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._ended = Counter(
            "magnetar_operator_job_runs_total",
            "Runs of DataJobs that ended, by their state",
            ("state",),
            registry=registry,
        )
        self._seconds = Histogram(
            "magnetar_operator_job_run_seconds",
            "Time from the start of a DataJob's run to its end",
            ("state",),
            buckets=_SECONDS,
            registry=registry,
        )

    def ended(self, run: Run) -> None:
        """A run is over."""
        self._ended.labels(run.state).inc()
        if run.started_at and run.finished_at:
            passed_ms = wall_ms_of(run.finished_at) - wall_ms_of(run.started_at)
            self._seconds.labels(run.state).observe(max(0, passed_ms) / 1000)
