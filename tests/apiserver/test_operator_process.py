"""`magnetar operator` as a process: cluster-wide, with the chart's rights, until SIGTERM."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dev.testbed.control_plane import ControlPlane
from dev.testbed.operator_process import LEASE, OperatorProcess
from tests.apiserver.stage import Scene

pytestmark = pytest.mark.slow

START_TIMEOUT_S = 240.0
METRICS = (
    "controller_runtime_reconcile_total",
    "controller_runtime_reconcile_errors_total",
    "controller_runtime_terminal_reconcile_errors_total",
    "controller_runtime_reconcile_panics_total",
    "controller_runtime_reconcile_timeouts_total",
    "controller_runtime_reconcile_time_seconds",
    "controller_runtime_active_workers",
    "controller_runtime_max_concurrent_reconciles",
    "workqueue_depth",
    "workqueue_adds_total",
    "workqueue_retries_total",
    "workqueue_queue_duration_seconds",
    "workqueue_work_duration_seconds",
    "workqueue_unfinished_work_seconds",
    "workqueue_longest_running_processor_seconds",
    "rest_client_requests_total",
    "rest_client_request_duration_seconds",
    "rest_client_rate_limiter_duration_seconds",
    "leader_election_master_status",
    "magnetar_operator_reconcile_steady_state_total",
    "magnetar_operator_reconcile_last_success_timestamp_seconds",
    "magnetar_operator_cached_objects",
    "magnetar_operator_watch_last_event_age_seconds",
    "magnetar_operator_watch_lag_seconds",
    "process_resident_memory_bytes",
)


def test_the_command_serves_works_and_leaves_its_lease(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """Ready once its own sentinel came back through the watches; a cluster anywhere gets its
    children; SIGTERM ends it with 0."""
    with OperatorProcess(control_plane, tmp_path / "operator.log") as operator:
        operator.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not operator.is_ready():
            assert time.monotonic() < deadline, operator.log()[-2000:]
            time.sleep(0.05)
        assert operator.answer("/live") == (200, "ok")
        scene = Scene(control_plane, namespace)
        scene.create("BrokerCluster", "main", {})
        while scene.stateful_set() is None:
            assert time.monotonic() < deadline, operator.log()[-2000:]
            time.sleep(0.05)
        _, exposition = operator.answer("/metrics")
        for name in METRICS:
            assert f"# TYPE {name} " in exposition, name
        assert 'leader_election_master_status{name="magnetar-operator"} 1.0' in exposition
        assert operator.stop() == 0, operator.log()[-2000:]
        assert control_plane.must("GET", LEASE)["spec"].get("holderIdentity", "") == ""
        lines = [json.loads(line) for line in operator.log().splitlines()]
        assert "forbidden" not in operator.log().lower()
        # Clusters of other tests are there as well.
        about = f"BrokerCluster {namespace}/main"
        made = next(
            line
            for line in lines
            if line["event"] == "event" and line["object"] == about and line["reason"] == "Created"
        )
        assert made["reconcile_id"]
