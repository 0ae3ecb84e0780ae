"""Transaction coordinators beside the brokers of a soak.

Owns: `Coordinators`: their processes, and the proxies through which clients and brokers reach them.
Imports: the cluster of the tests. Invariants: only processes started here are signalled, by their
own handle; one fault at a time hits one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from dev.server_process import HOST
from dev.tcp_proxy import TcpProxy
from dev.testbed.cluster import FRONT, SETTINGS, Cluster, request, wait_for

PARTITIONS = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"


class Coordinators:
    """`tx-coordinator-0`, `tx-coordinator-1`, ... of a cluster that runs."""

    def __init__(
        self, cluster: Cluster, count: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self._cluster = cluster
        settings = {**SETTINGS, **(environment or {})}
        made = [cluster.coordinator(number, settings, FRONT) for number in range(count)]
        self.processes = {process.name: process for process in made}
        self.fronts = {
            name: TcpProxy(FRONT, process.broker_port, (HOST, process.broker_port))
            for name, process in self.processes.items()
        }
        self.locks = {name: threading.Lock() for name in self.processes}

    def start(self) -> None:
        """Start all and wait until brokers tell clients of them: a client asks for their number
        once."""
        for front in self.fronts.values():
            front.start()
        for process in self.processes.values():
            process.start(wait=False)
        for process in self.processes.values():
            process.wait_ready()
        wait_for("the coordinators are announced", self._announced)

    def _announced(self) -> bool:
        for broker in self._cluster.brokers.values():
            status, body = request("GET", broker.http_url + PARTITIONS)
            if status != 200 or body["partitions"] != len(self.processes):
                return False
        return True

    def stop(self) -> None:
        for process in self.processes.values():
            if process.running:
                process.kill()
        for front in self.fronts.values():
            front.stop()

    def log_dump(self, lines_max: int = 60) -> str:
        """The end of every coordinator's log."""
        parts = []
        for name, process in self.processes.items():
            lines = (
                process.log_path.read_text(errors="replace").splitlines()
                if process.log_path.exists()
                else []
            )
            parts.append(
                f"--- {name}, last of {len(lines)} lines\n" + "\n".join(lines[-lines_max:])
            )
        return "\n".join(parts)
