"""Alerts, dashboards and runbooks: what they speak of exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.docs import dashboards, metrics

ROOT = Path(__file__).resolve().parents[3]
ALERTS: list[dict[str, Any]] = yaml.safe_load(
    (ROOT / "charts/magnetar/files/alerts.yaml").read_text()
)["alerts"]
RUNBOOKS = ROOT / "docs" / "runbooks"
HEADINGS = ("## What it means", "## What is affected", "## Find the cause", "## Repair")
NAMES = [alert["alert"] for alert in ALERTS]


def test_queries_of_promql_are_read_as_metric_names() -> None:
    """The reader of expressions finds metrics, and not functions, labels, strings or keywords."""
    query = (
        'sum by (namespace, le) (rate(a_bucket{x="b", y=~"c|d"}[5m])) / on (e) group by (f) '
        '(g{h!="i"}) > 0.5 and absent(j == 1)'
    )
    assert metrics.used_in(query) == {"a_bucket", "g", "j"}


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_every_metric_of_an_alert_is_exported(alert: dict[str, Any]) -> None:
    used = metrics.used_in(alert["expr"])
    assert used
    assert used - metrics.names() == set()
    assert alert["expr"].count("(") == alert["expr"].count(")")
    assert alert["severity"] in ("critical", "warning")
    assert re.fullmatch(r"\d+[smh]", alert["for"])
    assert re.fullmatch(r"Magnetar[A-Za-z]+", alert["alert"])
    assert alert["summary"]
    assert alert["description"].endswith(".")


def test_labels_that_alerts_select_by_are_ours() -> None:
    """Labels in selectors exist: on the metric itself, or added by the chart's PodMonitors and
    by Kubernetes."""
    added = {"magnetar_component", "magnetar_cluster", "namespace", "pod", "persistentvolumeclaim"}
    exported = (
        *metrics.operator_metrics(),
        *metrics.broker_metrics(),
        *metrics.coordinator_metrics(),
    )
    own = {label for metric in exported for label in metric.labels}
    for query in (*(alert["expr"] for alert in ALERTS), *dashboards.queries()):
        for selector in re.findall(r"\{([^}]*)\}", query):
            used = set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', selector))
            assert used - added - own == set(), query


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_every_alert_has_a_runbook(alert: dict[str, Any]) -> None:
    """With what it means, what is affected, how to find the cause and how to repair it, and the
    commands to type."""
    text = (RUNBOOKS / f"{alert['alert']}.md").read_text()
    assert text.startswith(f"# {alert['alert']}\n")
    assert [heading for heading in HEADINGS if heading not in text] == []
    assert "kubectl" in text


def test_every_runbook_has_an_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"} == set(NAMES)


def test_every_metric_of_the_dashboards_is_exported() -> None:
    for query in dashboards.queries():
        assert metrics.used_in(query)
        assert metrics.used_in(query) - metrics.names() == set(), query
    for text in dashboards.documents().values():
        document = json.loads(text)
        assert document["uid"]
        assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
