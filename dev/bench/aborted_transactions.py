"""What a million aborted transactions cost the topic they were on.

Owns: aborting them over the bare protocol, as a coordinator and a client would, and reopening the
topic. Imports: load_client, wire, server_process. Invariants: the transactions are really aborted
by the server that is measured: every message has its receipt, every end its answer; the topic is
the first of its bundle to be reopened, so that all it needs is counted.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from dev.bench.load_client import LoadConnection, LoadFailed
from dev.bench.server_profile import memory_bytes
from dev.server_process import ServerProcess
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import encode_entry

Type = api.BaseCommand.Type
AT_A_TIME = 500
MESSAGE_BYTES = 100
TOPIC = "persistent://public/default/aborted-transactions"


@dataclass(frozen=True, slots=True)
class Aborted:
    """Seconds and bytes, the last two by how the server had ended."""

    transactions: int
    per_s: float
    memory_bytes: int
    """What the server grew by."""
    reopened_s: dict[str, float]
    """From the server's readiness until a producer is attached."""
    reopened_processor_s: dict[str, float]
    """Of the server concurrently: what remains of the figure above on a machine that does other
    things as well."""
    ready_s: dict[str, float]


def measure_aborted(directory: Path, transactions: int) -> Aborted:
    """Raises LoadFailed if the server refuses something, RuntimeError if it does not start."""
    server = ServerProcess(directory)
    server.start()
    try:
        _attach(server, TOPIC).close()
        base, begun = memory_bytes(server.pid), time.perf_counter()
        _abort_all(server, transactions)
        per_s = transactions / (time.perf_counter() - begun)
        grown = memory_bytes(server.pid) - base
        reopened: dict[str, float] = {}
        spent: dict[str, float] = {}
        ready: dict[str, float] = {}
        for how, end in (("kill -9", server.kill), ("planned stop", server.stop)):
            end()
            ready[how] = server.start()
            before = server.cpu_seconds()
            reopened[how] = _seconds_to_attach(server, TOPIC)
            spent[how] = server.cpu_seconds() - before
    finally:
        server.stop()
    return Aborted(transactions, per_s, grown, reopened, spent, ready)


def _attach(server: ServerProcess, topic: str) -> LoadConnection:
    connection = LoadConnection(server.broker_port)
    connection.producer(topic)
    return connection


def _seconds_to_attach(server: ServerProcess, topic: str) -> float:
    begun = time.perf_counter()
    _attach(server, topic).close()
    return time.perf_counter() - begun


def _abort_all(server: ServerProcess, transactions: int) -> None:
    connection = _attach(server, TOPIC)
    entry = encode_entry(
        api.MessageMetadata(producer_name="bench", sequence_id=0, publish_time=1),
        os.urandom(MESSAGE_BYTES),
    )
    for first in range(0, transactions, AT_A_TIME):
        numbers = range(first, min(first + AT_A_TIME, transactions))
        frames = [requests.send(1, number, entry, txn=TxnId(0, number)) for number in numbers]
        connection.socket.sendall(b"".join(frames))
        _await(connection, Type.SEND_RECEIPT, len(numbers))
        ends = [
            requests.end_txn_on_partition(
                number, TxnId(0, number), TOPIC, commit=False, low_watermark=0
            )
            for number in numbers
        ]
        connection.socket.sendall(b"".join(ends))
        _await(connection, Type.END_TXN_ON_PARTITION_RESPONSE, len(numbers))
    connection.close()


def _await(connection: LoadConnection, kind: int, count: int) -> None:
    while count > 0:
        if not connection.receive():
            raise LoadFailed("the server closed the connection")
        for start, body, _end in connection.frames():
            command = connection.command(start, body)
            if command.type == kind:
                if command.end_txn_on_partition_response.HasField("error"):
                    raise LoadFailed(command.end_txn_on_partition_response.message)
                count -= 1
            elif command.type != Type.PING:
                raise LoadFailed(str(command))
        connection.forget()
