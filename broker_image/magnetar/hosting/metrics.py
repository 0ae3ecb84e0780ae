"""Metrics that every process has.

Owns: `surprise_counters`, and `value_of`, by which a metric is shown under a second name. Imports:
background, prometheus_client.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge
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


def value_of(metric: Counter | Gauge, **labels: str) -> float:
    """The value of a metric now, summed over all series with these labels."""
    return sum(
        sample.value
        for family in metric.collect()
        for sample in family.samples
        if not sample.name.endswith("_created") and labels.items() <= sample.labels.items()
    )
