"""Where transactions run: the servers under the tests of foreign clients.

Owns: `Place` and its `KINDS`: a standalone server, brokers with coordinators, and Apache Pulsar as the reference.
Imports: coordinators (the cluster), dev.bench (Apache Pulsar), dev.server_process.
Invariants: only processes started here are stopped, by their own handle; after `restart` a place is on the same data and ports, and serves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.bench.pulsar_distribution import ensure
from dev.bench.pulsar_peer import TRANSACTIONS, PulsarPeer
from dev.server_process import ServerProcess
from tests.clients.cluster import request, wait_for
from tests.clients.coordinators import CHANGE_S, Stage

SETTINGS = {"MAGNETAR_FAILOVER_DELAY_MS": "200"}
PEER_READY_S = 120.0


class Place(ABC):
    """A server or a cluster; made not started."""

    def __init__(self, service_url: str, http_url: str, coordinator_ports: Sequence[int]) -> None:
        """`coordinator_ports`: where the coordinator of each number is served."""
        self.service_url, self.http_url, self.coordinator_ports = service_url, http_url, coordinator_ports

    @abstractmethod
    def start(self) -> None:
        """Start, and wait until it serves."""

    @abstractmethod
    def restart(self) -> None:
        """SIGKILL what serves transactions, and start it again."""

    @abstractmethod
    def stop(self) -> None:
        """Stop what runs."""

    @abstractmethod
    def log_tail(self) -> str:
        """The ends of the logs."""


class Standalone(Place):
    """A standalone server."""

    def __init__(self, directory: Path) -> None:
        self._server = ServerProcess(directory, environment=SETTINGS)
        super().__init__(self._server.service_url, self._server.http_url, [self._server.broker_port])

    def start(self) -> None:
        self._server.start()

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def log_tail(self) -> str:
        return self._server.log_tail()


class BrokersAndCoordinators(Place):
    """Two brokers, two coordinators, their etcd."""

    def __init__(self, directory: Path) -> None:
        self._stage = Stage(directory, SETTINGS, brokers=2)
        ports = [coordinator.broker_port for coordinator in self._stage.coordinators]
        super().__init__(self._stage.broker.service_url, self._stage.broker.http_url, ports)

    def start(self) -> None:
        self._stage.start()
        for coordinator in self._stage.coordinators:
            coordinator.start(wait=False)
        for coordinator in self._stage.coordinators:
            coordinator.wait_ready()
        wait_for("clients are told of both coordinators", lambda: self._stage.announced() == 2, CHANGE_S)

    def restart(self) -> None:
        """Both coordinators and the broker that clients are not told of."""
        hurt = [broker for broker in self._stage.cluster.brokers.values() if broker is not self._stage.broker]
        for process in (*self._stage.coordinators, *hurt):
            process.kill()
        for process in (*self._stage.coordinators, *hurt):
            process.start(wait=False)
        for process in (*self._stage.coordinators, *hurt):
            process.wait_ready()
        self._stage.cluster.wait_healthy()

    def stop(self) -> None:
        self._stage.stop()

    def log_tail(self) -> str:
        return "\n".join([*(coordinator.log_tail() for coordinator in self._stage.coordinators), self._stage.cluster.log_dump()])


class ApachePulsar(Place):
    """The reference: not a tier of the tests, since it needs a download of 245 MB and 3 GB of memory."""

    def __init__(self, directory: Path) -> None:
        self._peer = PulsarPeer(ensure(), directory, TRANSACTIONS)
        super().__init__(self._peer.service_url, f"http://127.0.0.1:{self._peer.http_port}", [self._peer.broker_port] * 16)

    def start(self) -> None:
        """Its health says nothing of its coordinators, which it makes afterwards."""
        self._peer.start()
        partitions = f"{self.http_url}/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
        wait_for("it has coordinators", lambda: request("GET", partitions)[1].get("partitions", 0) > 0, PEER_READY_S)

    def restart(self) -> None:
        raise NotImplementedError("the reference wipes its data when it starts")

    def stop(self) -> None:
        self._peer.stop()

    def log_tail(self) -> str:
        return self._peer.log_tail()


KINDS: dict[str, Callable[[Path], Place]] = {"standalone": Standalone, "cluster": BrokersAndCoordinators, "apache": ApachePulsar}
