"""Where transactions run: the servers under the tests of foreign clients.

Owns: `Place` and its `KINDS`: a standalone server, brokers with coordinators, and Apache Pulsar as
the reference; what differs there; `unload`. Imports: coordinators (the cluster), dev.bench (Apache
Pulsar), dev.server_process. Invariants: only processes started here are stopped, by their own
handle; after `restart` a place is on the same data and ports, and serves.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from dev.bench.pulsar_distribution import ensure
from dev.bench.pulsar_peer import TRANSACTIONS, PulsarPeer
from dev.server_process import ServerProcess
from dev.testbed.cluster import MOVED, UNAVAILABLE, request, wait_for
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from tests.clients.coordinators import CHANGE_S, ENDS_ARE_CARRIED_OUT, Stage, Type, Wire

SETTINGS = {"MAGNETAR_FAILOVER_DELAY_MS": "200", **ENDS_ARE_CARRIED_OUT}
PEER_READY_S = 120.0
COMMIT, ABORT = 0, 1
NAMES = ["standalone", "cluster", *(["apache"] if os.environ.get("PEER") == "1" else [])]
FORGETS = "it forgets an outcome at once: TransactionNotFound"
LEAKS = (
    "what the Go client sends in an aborted transaction is delivered: the name of the transaction "
    "is not in the message's metadata"
)
REFERENCE_DIFFERS = {
    "test_ordinary_messages_pass_an_open_transaction": "they wait for the transaction to end",
    "test_a_timeout_aborts": FORGETS,
    "test_ending_again_gives_the_same_answer": FORGETS,
    "test_the_same_transaction_may_acknowledge_again": "TransactionConflict",
    "test_an_abort_leaves_nothing_and_gives_back[go-apache]": LEAKS,
    "test_partitions_take_part_one_by_one[go-apache]": LEAKS,
    "test_cumulative_acknowledgements": "after an abort nothing comes again to the Java client",
    "test_a_second_transaction_conflicts[go-apache]": LEAKS,
    "test_seek_over_committed_messages[go-apache]": LEAKS,
    "test_consume_transform_produce[go-apache]": LEAKS,
    "test_ids_of_receipts_say_where_to_begin[go-apache]": LEAKS,
    "test_moves_under_open_transactions[go-apache]": LEAKS,
    "test_a_message_in_chunks[go-apache]": LEAKS,
    "test_a_batch_with_the_name_of_an_ended_transaction": "such batches are taken, as parts of a "
    "transaction that has ended",
    "test_a_producer_outlives_a_refused_message": "such messages are taken, as parts of a "
    "transaction that has ended",
    "test_parts_of_a_batch[go-apache]": "an abort gives nothing back: the Go client does not tell "
    "the size of the batch",
}
"""Test (and perhaps client) -> what Apache Pulsar 4.0.8 does instead."""


class Place(ABC):
    """A server or a cluster; made not started."""

    def __init__(self, service_url: str, http_url: str, coordinator_ports: Sequence[int]) -> None:
        """`coordinator_ports`: where the coordinator of each number is served."""
        self.service_url, self.http_url, self.coordinator_ports = (
            service_url,
            http_url,
            coordinator_ports,
        )

    @abstractmethod
    def start(self) -> None:
        """Start, and wait until it serves."""

    @abstractmethod
    def restart(self) -> None:
        """SIGKILL what serves transactions, and start it again."""

    @abstractmethod
    def stop(self) -> None:
        """Stop what runs."""

    def ended(self, txn: TxnId, action: int) -> api.CommandEndTxnResponse:
        """What END_TXN answers to anybody who sends it again, by the bare protocol."""
        wire = Wire(self.coordinator_ports[txn.most])
        try:
            wire.connect()
            wire.ask(
                Type.TC_CLIENT_CONNECT_REQUEST, api.CommandTcClientConnectRequest(tc_id=txn.most)
            )
            body = api.CommandEndTxn(
                txnid_most_bits=txn.most, txnid_least_bits=txn.least, txn_action=action
            )  # type: ignore[arg-type]
            answer: api.CommandEndTxnResponse = wire.ask(Type.END_TXN, body)
            return answer
        finally:
            wire.close()

    @abstractmethod
    def log_tail(self) -> str:
        """The ends of the logs."""


class Standalone(Place):
    """A standalone server."""

    def __init__(self, directory: Path) -> None:
        self._server = ServerProcess(directory, environment=SETTINGS)
        super().__init__(
            self._server.service_url, self._server.http_url, [self._server.broker_port]
        )

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
        wait_for("clients know both coordinators", lambda: self._stage.announced() == 2, CHANGE_S)

    def restart(self) -> None:
        """Both coordinators and the broker that is not in the service URL of clients."""
        hurt = [
            broker
            for broker in self._stage.cluster.brokers.values()
            if broker is not self._stage.broker
        ]
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
        return "\n".join(
            [
                *(coordinator.log_tail() for coordinator in self._stage.coordinators),
                self._stage.cluster.log_dump(),
            ]
        )


class ApachePulsar(Place):
    """The reference: not a tier of the tests, since it needs a download of 245 MB and 3 GB of
    memory."""

    def __init__(self, directory: Path) -> None:
        self._peer = PulsarPeer(ensure(), directory, TRANSACTIONS)
        super().__init__(self._peer.service_url, self._peer.http_url, [self._peer.broker_port] * 16)

    def start(self) -> None:
        """Its health says nothing of its coordinators, which it makes afterwards."""
        self._peer.start()
        partitions = f"{self.http_url}/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
        wait_for(
            "it has coordinators",
            lambda: request("GET", partitions)[1].get("partitions", 0) > 0,
            PEER_READY_S,
        )

    def restart(self) -> None:
        raise NotImplementedError("the reference wipes its data when it starts")

    def stop(self) -> None:
        self._peer.stop()

    def log_tail(self) -> str:
        return self._peer.log_tail()


KINDS: dict[str, Callable[[Path], Place]] = {
    "standalone": Standalone,
    "cluster": BrokersAndCoordinators,
    "apache": ApachePulsar,
}


def unload(place: Place, *topics: str) -> None:
    """The bundles of these topics, wherever the leader, who balances bundles, has put them
    concurrently."""
    for name in topics:

        def left(name: str = name) -> bool:
            status, found = request(
                "GET", f"{place.http_url}/lookup/v2/topic/persistent/public/default/{name}"
            )
            if status == UNAVAILABLE:
                return False
            assert status == 200, found
            status, said = request(
                "PUT", f"{found['httpUrl']}/admin/v2/persistent/public/default/{name}/unload"
            )
            assert status in (204, MOVED, UNAVAILABLE), (status, said)
            return status == 204

        wait_for(f"{name} has left its owner", left)
