"""The chart's Grafana dashboards.

Owns: which panels there are and their queries. Imports: json. Invariants: queries use the labels
that the chart's PodMonitors set (magnetar_component, magnetar_cluster); the JSON is stable, so a
diff shows what changed; every metric exists in the code (a test looks them up).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT, COLUMNS = 8, 7, 3
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: title, unit of Grafana, and (legend, query) of each of its lines."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    kind: str = "timeseries"


_OPERATOR = 'magnetar_component="operator", namespace=~"$namespace"'
_BROKER = 'magnetar_component="broker", namespace=~"$namespace", magnetar_cluster=~"$cluster"'
_COORDINATOR = (
    'magnetar_component="coordinator", namespace=~"$namespace", magnetar_cluster=~"$cluster"'
)
_ETCD = 'magnetar_component="etcd", namespace=~"$namespace", magnetar_cluster=~"$cluster"'


def _quantile(share: float, metric: str, labels: str, by: str = "") -> str:
    return (
        f"histogram_quantile({share}, sum by ({by + ', ' if by else ''}le) "
        f"(rate({metric}_bucket{{{labels}}}[5m])))"
    )


OPERATOR_PANELS = (
    Panel("Leading", "none", (("{{pod}}", f"leader_election_master_status{{{_OPERATOR}}}"),)),
    Panel(
        "Passes by result", "ops",
        (("{{controller}} {{result}}", f"sum by (controller, result) (rate(controller_runtime_reconcile_total{{{_OPERATOR}}}[5m]))"),),
    ),
    Panel(
        "Errors", "ops",
        (("{{controller}}", "sum by (controller) "
                            f"(rate(controller_runtime_reconcile_errors_total{{{_OPERATOR}}}[5m]))"),),
    ),
    Panel(
        "Duration of a pass, p50 and p99", "s",
        (
            ("p50 {{controller}}", _quantile(0.5, "controller_runtime_reconcile_time_seconds", _OPERATOR, "controller")),
            ("p99 {{controller}}", _quantile(0.99, "controller_runtime_reconcile_time_seconds", _OPERATOR, "controller")),
        ),
    ),
    Panel(
        "Wait in the queue, p50 and p99", "s",
        (
            ("p50", _quantile(0.5, "workqueue_queue_duration_seconds", _OPERATOR)),
            ("p99", _quantile(0.99, "workqueue_queue_duration_seconds", _OPERATOR)),
        ),
    ),
    Panel("Objects that wait", "short", (("{{pod}}", f"workqueue_depth{{{_OPERATOR}}}"),)),
    Panel(
        "Requests to the API server", "reqps",
        (("{{method}} {{code}}", "sum by (method, code) "
                                 f"(rate(rest_client_requests_total{{{_OPERATOR}}}[5m]))"),),
    ),
    Panel(
        "Latency of the API server, p99", "s",
        (("{{verb}}", _quantile(0.99, "rest_client_request_duration_seconds", _OPERATOR, "verb")),),
    ),
    Panel(
        "Events written", "ops",
        (("{{reason}}", f"sum by (reason) (rate(magnetar_operator_events_total{{{_OPERATOR}}}[5m]))"),),
    ),
    Panel(
        "Autoscaling: brokers there and wanted", "short",
        (
            ("there {{cluster}}", f"magnetar_operator_autoscaling_replicas{{{_OPERATOR}}}"),
            ("wanted {{cluster}}", f"magnetar_operator_autoscaling_wanted_replicas{{{_OPERATOR}}}"),
        ),
    ),
    Panel(
        "Autoscaling: load as a share of its target", "percentunit",
        ((
            "{{cluster}} {{input}}",
            f'magnetar_operator_autoscaling_load{{{_OPERATOR}, measure="weighed"}} / '
            'ignoring(measure)'
            f' magnetar_operator_autoscaling_load{{{_OPERATOR}, measure="target"}}',
        ),),
    ),
    Panel(
        "Autoscaling: decision, and time until it is acted on", "short",
        (
            ("{{decision}} {{cluster}}", f"magnetar_operator_autoscaling_decision{{{_OPERATOR}}} "
                                         "== 1"),
            ("window, s {{cluster}}", f"magnetar_operator_autoscaling_window_seconds{{{_OPERATOR}}} > 0"),
        ),
    ),
)  # fmt: skip

CLUSTER_PANELS = (
    Panel("Messages in", "ops", (("{{pod}}", f"rate(magnetar_messages_in_total{{{_BROKER}}}[1m])"),)),
    Panel("Messages out", "ops", (("{{pod}}", f"rate(magnetar_messages_out_total{{{_BROKER}}}[1m])"),)),
    Panel(
        "Throughput", "Bps",
        (
            ("in {{pod}}", f"rate(magnetar_bytes_in_total{{{_BROKER}}}[1m])"),
            ("out {{pod}}", f"rate(magnetar_bytes_out_total{{{_BROKER}}}[1m])"),
        ),
    ),
    Panel("Publishes refused or failed", "ops", (("{{pod}}", f"rate(magnetar_publish_errors_total{{{_BROKER}}}[1m])"),)),
    Panel("Bundles", "short", (("{{pod}}", f"magnetar_bundles_owned{{{_BROKER}}}"),)),
    Panel("Connections", "short", (("{{pod}}", f"magnetar_connections{{{_BROKER}}}"),)),
    Panel(
        "Bundles taken over", "ops",
        (("{{kind}}", f"sum by (kind) (rate(magnetar_bundle_acquisitions_total{{{_BROKER}}}[5m]))"),),
    ),
    Panel(
        "How long a moving bundle stands still, p50 and p99", "s",
        (
            ("p50", _quantile(0.5, "magnetar_bundle_frozen_seconds", _BROKER)),
            ("p99", _quantile(0.99, "magnetar_bundle_frozen_seconds", _BROKER)),
        ),
    ),
    Panel(
        "Dispatch reads from memory", "percentunit",
        ((
            "{{pod}}",
            f"rate(magnetar_tail_cache_hits_total{{{_BROKER}}}[5m]) / "
            f"(rate(magnetar_tail_cache_hits_total{{{_BROKER}}}[5m])"
            f" + rate(magnetar_tail_cache_misses_total{{{_BROKER}}}[5m]))",
        ),),
    ),
    Panel(
        "Load of the fullest broker over the mean, and what moves could take off", "percentunit",
        (
            ("imbalance {{magnetar_cluster}}", f"max by (magnetar_cluster) (magnetar_balance_imbalance{{{_BROKER}}})"),
            ("moves could take off {{magnetar_cluster}}", f"max by (magnetar_cluster) (magnetar_balance_gain{{{_BROKER}}})"),
        ),
    ),
    Panel(
        "Bundles moved and split because of load", "ops",
        (
            ("moved", f"sum(rate(magnetar_balance_moves_total{{{_BROKER}}}[5m]))"),
            ("split", f"sum(rate(magnetar_balance_splits_total{{{_BROKER}}}[5m]))"),
        ),
    ),
    Panel(
        "Decisions of load balancing, and their duration, p99", "short",
        (
            ("decisions/s", f"sum(rate(magnetar_balance_decisions_total{{{_BROKER}}}[5m]))"),
            ("p99, s", _quantile(0.99, "magnetar_balance_decision_seconds", _BROKER)),
        ),
    ),
    Panel(
        "Transactions begun and decided", "ops",
        (
            ("begun", f"sum(rate(magnetar_coordinator_transactions_begun_total{{{_COORDINATOR}}}[1m]))"),
            ("{{outcome}}", f"sum by (outcome) (rate(magnetar_coordinator_transactions_decided_total{{{_COORDINATOR}}}[1m]))"),
        ),
    ),
    Panel(
        "Transactions: END_TXN, and until all participants have ended, p99", "s",
        (
            ("END_TXN", _quantile(0.99, "magnetar_coordinator_request_seconds", f'{_COORDINATOR}, '
                                                                                'command="end_txn"')),
            ("{{outcome}}", _quantile(0.99, "magnetar_coordinator_settle_seconds", _COORDINATOR, "outcome")),
        ),
    ),
    Panel(
        "Transactions that have not ended, and the age of the oldest", "short",
        (
            ("{{pod}}", f"magnetar_coordinator_transactions{{{_COORDINATOR}}}"),
            ("oldest, s {{pod}}", f"magnetar_coordinator_oldest_transaction_seconds{{{_COORDINATOR}}}"),
        ),
    ),
    Panel(
        "Storage in trouble", "short",
        (
            ("damage {{pod}}", f"magnetar_storage_damage{{{_BROKER}}}"),
            ("short of space {{pod}}", f"magnetar_storage_short{{{_BROKER}}}"),
            ("waits for space {{pod}}", f"magnetar_log_stalled{{{_BROKER}}}"),
        ),
    ),
    Panel(
        "Log files rolled, given up, rewritten bytes", "short",
        (
            ("rolled", f"sum(rate(magnetar_log_rolls_total{{{_BROKER}}}[5m]))"),
            ("given up", f"sum(rate(magnetar_log_files_collected_total{{{_BROKER}}}[5m]))"),
            ("bytes rewritten", f"sum(rate(magnetar_bytes_rewritten_total{{{_BROKER}}}[5m]))"),
        ),
    ),
    Panel(
        "etcd: size against quota, leader", "percentunit",
        (
            ("size {{pod}}", f"etcd_mvcc_db_total_size_in_bytes{{{_ETCD}}} / "
                             f"etcd_server_quota_backend_bytes{{{_ETCD}}}"),
            ("has a leader {{pod}}", f"etcd_server_has_leader{{{_ETCD}}}"),
        ),
    ),
)  # fmt: skip


def documents() -> dict[str, str]:
    """File name -> Grafana's JSON."""
    namespace = _variable(
        "namespace", 'label_values(up{magnetar_component=~"operator|broker"}, namespace)'
    )
    cluster = _variable(
        "cluster",
        'label_values(up{magnetar_component="broker", namespace=~"$namespace"}, magnetar_cluster)',
    )
    return {
        "operator.json": _dashboard(
            "Magnetar operator", "magnetar-operator", OPERATOR_PANELS, [namespace]
        ),
        "clusters.json": _dashboard(
            "Magnetar clusters", "magnetar-clusters", CLUSTER_PANELS, [namespace, cluster]
        ),
    }


def queries() -> list[str]:
    """Every expression of every dashboard."""
    return [query for panel in (*OPERATOR_PANELS, *CLUSTER_PANELS) for _, query in panel.lines]


def _dashboard(title: str, uid: str, panels: tuple[Panel, ...], variables: list[Json]) -> str:
    source = {
        "name": "datasource",
        "type": "datasource",
        "query": "prometheus",
        "label": "Data source",
    }
    document = {
        "title": title,
        "uid": uid,
        "tags": ["magnetar"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": [_panel(panel, number) for number, panel in enumerate(panels)],
    }
    return json.dumps(document, indent=1) + "\n"


def _variable(name: str, query: str) -> Json:
    return {
        "name": name, "type": "query", "query": query, "datasource": {"type": "prometheus", "uid": "$datasource"},
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "refresh": 2,
    }  # fmt: skip


def _panel(panel: Panel, number: int) -> Json:
    row, column = divmod(number, COLUMNS)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + position), "expr": query, "legendFormat": legend}
            for position, (legend, query) in enumerate(panel.lines)
        ],
    }
