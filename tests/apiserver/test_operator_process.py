"""`magnetar operator` as a process: cluster-wide, with the chart's rights, until SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from dev.ports import free_port
from tests.apiserver.control_plane import OPERATOR_NAMESPACE, ROOT, ControlPlane
from tests.apiserver.stage import Scene

pytestmark = pytest.mark.slow

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/magnetar-operator"


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_the_command_serves_works_and_leaves_its_lease(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    """Ready once its own sentinel came back through the watches; a cluster anywhere gets its children; SIGTERM ends it with 0."""
    port = free_port()
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(str(ROOT / part) for part in ("broker_image", "operator", "spark_jobs")),
        "KUBECONFIG": str(control_plane.operator_kubeconfig),
        "MAGNETAR_IMAGE": "registry.example/magnetar:1",
        "MAGNETAR_OPERATOR_HTTP_PORT": str(port),
        "POD_NAMESPACE": OPERATOR_NAMESPACE,
        "POD_NAME": "operator-0",
    }
    log = tmp_path / "operator.log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "magnetar", "operator"], env=environment, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while answer(port, "/ready")[0] != 200:
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.05)
        assert answer(port, "/live") == (200, "ok")
        scene = Scene(control_plane, namespace)
        scene.create("BrokerCluster", "main", {})
        while scene.stateful_set() is None:
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.05)
        _, exposition = answer(port, "/metrics")
        for name in ("controller_runtime_reconcile_total", "workqueue_depth", "rest_client_requests_total"):
            assert name in exposition
        assert 'leader_election_master_status{name="magnetar-operator"} 1.0' in exposition
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_TIMEOUT_S) == 0, log.read_text()[-2000:]
        assert control_plane.must("GET", LEASE)["spec"].get("holderIdentity", "") == ""
        assert "forbidden" not in log.read_text().lower()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
