"""`magnetar operator` as a process, with the rights of the chart.

Owns: its start, its end by any signal, its HTTP answers. Stopped by its process handle.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from dev.ports import free_port
from dev.testbed.control_plane import OPERATOR_NAMESPACE, ROOT, ControlPlane

STOP_TIMEOUT_S = 120.0
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{OPERATOR_NAMESPACE}/leases/magnetar-operator"


class OperatorProcess:
    """One operator. Watches all Kubernetes namespaces by default."""

    def __init__(
        self,
        plane: ControlPlane,
        log: Path,
        identity: str = "operator-0",
        namespaces: str = "",
        kubeconfig: Path | None = None,
    ) -> None:
        self._plane, self._log, self.identity, self._namespaces = plane, log, identity, namespaces
        self._kubeconfig = kubeconfig or plane.operator_kubeconfig
        self.port = free_port()
        self.started = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, python: Sequence[str] = (), **settings: str) -> None:
        """`python` are options of the interpreter, `settings` variables of the operator."""
        environment = {
            **os.environ,
            "PYTHONPATH": ":".join(
                str(ROOT / part) for part in ("broker_image", "operator", "spark_jobs")
            ),
            "KUBECONFIG": str(self._kubeconfig),
            "MAGNETAR_IMAGE": "registry.example/magnetar:1",
            "MAGNETAR_SPARK_IMAGE": "registry.example/magnetar-spark:1",
            "MAGNETAR_OPERATOR_HTTP_PORT": str(self.port),
            "MAGNETAR_WATCH_NAMESPACES": self._namespaces,
            "POD_NAMESPACE": OPERATOR_NAMESPACE,
            "POD_NAME": self.identity,
            **settings,
        }
        self.started = time.monotonic()
        with self._log.open("ab") as output:
            command = [sys.executable, *python, "-m", "magnetar", "operator"]
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the operator was not started"
        return self._process

    def log(self) -> str:
        return self._log.read_text()

    def answer(self, path: str) -> tuple[int, str]:
        """Status and text; 0 if it does not listen."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=60
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()[-2000:]
        return self.answer("/ready")[0] == 200

    def leads(self) -> bool:
        """Whether the Lease says so."""
        status, lease = self._plane.request("GET", LEASE)
        return status == 200 and str(lease["spec"].get("holderIdentity", "")).startswith(
            f"{self.identity}_"
        )

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM; the exit code. 0 also if it does not run."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(STOP_TIMEOUT_S)
        self._process = None
        return code

    def __enter__(self) -> OperatorProcess:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
