"""What Pulsar's names say of the transactions of a coordinator."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from magnetar.coordinator.metrics import ABORTED, COMMITTED, TIMED_OUT, CoordinatorMetrics
from tests.support.brokers import CLOCK


def read(metrics: CoordinatorMetrics) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
        if sample.labels.get("coordinator_id") == "3"
    }


def test_counters_by_both_endings_and_executions_by_bucket() -> None:
    """An abort because the time was over counts as an abort, too."""
    metrics = CoordinatorMetrics()
    assert read(metrics) == {}
    metrics.know(3, CLOCK)
    metrics.begun.inc(5)
    for outcome in (COMMITTED, COMMITTED, ABORTED, TIMED_OUT):
        metrics.decided.labels(outcome).inc()
    metrics.open_transactions.set(1)
    metrics.executed(0.015)
    metrics.executed(0.02)
    metrics.executed(5000)
    found = read(metrics)
    for name, value in (("created", 5), ("committed", 2), ("aborted", 2), ("timeout", 1)):
        assert found[f"pulsar_txn_{name}_total"] == found[f"pulsar_txn_{name}_count"] == value
    assert found["pulsar_txn_active_count"] == 1
    buckets = {
        name.removeprefix("pulsar_txn_execution_latency_"): value
        for name, value in found.items()
        if "latency" in name and value
    }
    assert buckets == {"le_20": 2, "le_overflow": 1}
