"""Public dashboards for Pulsar find their metrics, or the document says why not.

`pulsar_dashboards.json` has the metrics and labels that their queries name, by dashboard.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dev.docs import metrics
from dev.docs.pulsar_metrics import NOT_OFFERED, reason

DASHBOARDS: dict[str, dict[str, list[str]]] = json.loads(
    (Path(__file__).parent / "pulsar_dashboards.json").read_text()
)
ADDED = {"job", "instance", "kubernetes_pod_name"}
"""By the configuration of a scrape."""
EXPORTED = {
    found.name: set(found.labels)
    for found in (
        *metrics.topic_metrics(),
        *metrics.broker_metrics(),
        *metrics.coordinator_metrics(),
    )
}


@pytest.mark.parametrize("dashboard", DASHBOARDS)
def test_a_dashboard_is_answered(dashboard: str) -> None:
    """Each metric is exported with the labels that are asked for, or listed with a reason."""
    for metric, labels in DASHBOARDS[dashboard].items():
        if metric in metrics.FOREIGN:
            continue
        if metric not in EXPORTED:
            assert reason(metric) is not None, metric
            continue
        assert set(labels) - ADDED <= EXPORTED[metric], metric


def test_nothing_is_both_offered_and_listed_as_not_offered() -> None:
    for metric in EXPORTED:
        assert reason(metric) is None, metric


def test_what_to_use_instead_exists() -> None:
    """The reasons name metrics that are exported, or another entry of the list."""
    known = {*metrics.names(), *EXPORTED, *NOT_OFFERED}
    known |= {name.removesuffix("_bucket") for name in known}
    for why in NOT_OFFERED.values():
        for word in why.split("`")[1::2]:
            used = metrics.used_in(word) if "(" in word else {word}
            assert used <= known or word in ("pulsar_storage_*", "pulsar_entry_size_*"), word
