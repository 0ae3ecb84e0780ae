"""Metrics that every process exports.

Owns: the metric of unforeseen errors. Imports: prometheus_client, background. Invariant: its label
values come from a closed vocabulary.
"""

from __future__ import annotations

from prometheus_client.core import CounterMetricFamily

from magnetar.hosting.background import Surprises


def surprise_counters(surprises: Surprises) -> CounterMetricFamily:
    """The metric of errors that no code foresaw."""
    found = CounterMetricFamily(
        "magnetar_background_surprises",
        "Unforeseen errors in background work: each cost one topic, bundle, connection or peer one "
        "round, and is in the log",
        labels=["work"],
    )
    for work, count in surprises.counts.items():
        found.add_metric([work], count)
    return found
