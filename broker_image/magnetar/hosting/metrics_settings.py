"""Settings of what metrics name.

Owns: `MetricsSettings`, the part of a broker's settings with Pulsar's names for it. Imports:
bounded. Invariant: whatever is switched on, the number of objects that metrics name has a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.hosting.bounded import bounded


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Base of a broker's settings."""

    exposeTopicLevelMetricsInPrometheus: int = bounded(
        1, 0, 1, "1: metrics name topics and subscriptions, 0: they have sums by namespace"
    )
    exposeConsumerLevelMetricsInPrometheus: int = bounded(
        0, 0, 1, "1: metrics name consumers of topics that they name"
    )
    exposeProducerLevelMetricsInPrometheus: int = bounded(
        0, 0, 1, "1: metrics name producers of topics that they name"
    )
    metrics_publish_histograms: int = bounded(
        0,
        0,
        1,
        "1: topics count entries by latency and size (pulsar_storage_write_latency_le_*, "
        "pulsar_entry_size_le_*), 0.5 us a run and 0.1 us an entry",
    )
    metrics_objects_max: int = bounded(
        20_000,
        0,
        1_000_000,
        "topics, subscriptions, producers and consumers that metrics name; others are in the sums "
        "of their namespace",
    )
