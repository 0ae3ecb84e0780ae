"""Transaction coordinators for the tests of clients.

Owns: `outcomes_survive`, a promise kept by coordinators of every kind; `Wire`, a client that speaks
the bare protocol; `Stage`: brokers, their etcd, and coordinators by number. Imports: the cluster of
the tests.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dev.server_process import HOST, ServerProcess
from dev.testbed.cluster import SETTINGS, Cluster
from magnetar.client import Client
from magnetar.errors import InvalidTxnStatus
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.records import CoordinatorRecord, CoordinatorSetRecord
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.frames import encode_command

Type = api.BaseCommand.Type
ANSWER_S = 60.0
CHANGE_S = 120.0
PARK_TIMEOUT_S = "2"
ENDS_ARE_CARRIED_OUT = {"MAGNETAR_TRANSACTION_END_PATIENCE_S": "25"}
"""As delivered, a commit or an abort is answered after half a second though topics may not have
carried it out yet. Tests that look at these right behind the answer have it wait for them, however
slow the machine: nearly as long as the official clients wait for an answer (30 s)."""


async def outcomes_survive(service_url: str, lose: Callable[[], None]) -> None:
    """Whatever `lose` does to the coordinator: the same client goes on, asks for outcomes again,
    and gets the same ones as before; ids go on."""
    async with asyncio.timeout(CHANGE_S), Client(service_url) as client:
        committed, aborted, left_open = [client.transaction(timeout_s=600) for _ in range(3)]
        for txn in (committed, aborted, left_open):
            await txn.begin()
        await committed.commit()
        await aborted.abort()
        await asyncio.to_thread(lose)
        again = client._coordinators
        (await again.commit(committed.id, ANSWER_S)).accepted()
        (await again.abort(aborted.id)).accepted()
        with pytest.raises(InvalidTxnStatus, match="is COMMITTED"):
            (await again.abort(committed.id)).accepted()
        with pytest.raises(InvalidTxnStatus, match="is ABORTED"):
            (await again.commit(aborted.id, ANSWER_S)).accepted()
        await left_open.commit()
        async with client.transaction() as later:
            assert later.id > max(committed.id, aborted.id, left_open.id)


class Wire:
    """A client that speaks the bare protocol."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), ANSWER_S)
        self._numbers = iter(range(1, 1 << 20))

    def close(self) -> None:
        self._socket.close()

    def connect(self) -> api.BaseCommand:
        self._send(Type.CONNECT, api.CommandConnect(client_version="test", protocol_version=21))
        return self._answer()

    def ask(self, kind: int, body: object) -> Any:
        """Send a request with the next number; the content of its answer, which must come."""
        number = next(self._numbers)
        body.request_id = number  # type: ignore[attr-defined]
        self._send(kind, body)
        answer = self._answer()
        inner = getattr(answer, commands.FIELD_OF_TYPE[answer.type])
        assert inner.request_id == number
        return inner

    def _send(self, kind: int, body: object) -> None:
        command = api.BaseCommand(type=api.BaseCommand.Type.ValueType(kind))
        getattr(command, commands.FIELD_OF_TYPE[kind]).CopyFrom(body)
        self._socket.sendall(encode_command(command))

    def _answer(self) -> api.BaseCommand:
        while True:
            total = int.from_bytes(self._exactly(4), "big")
            frame = self._exactly(total)
            command = commands.decode_command(frame, 4, 4 + int.from_bytes(frame[:4], "big"))
            if command.type != Type.PING:
                return command

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("the connection was closed instead of an answer")
            data += piece
        return data


class Stage:
    """Brokers (one unless said), their etcd, and coordinators by number; `environment` holds for
    all of them."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str] = {}, *, brokers: int = 1
    ) -> None:
        self._environment = {**SETTINGS, **environment}
        self.cluster = Cluster(
            directory,
            brokers=brokers,
            environment={"MAGNETAR_PARK_TIMEOUT_S": PARK_TIMEOUT_S, **environment},
        )
        self.coordinators = [self.coordinator(tcid) for tcid in range(2)]

    def coordinator(self, tcid: int) -> ServerProcess:
        """A process for that number, not started."""
        return self.cluster.coordinator(tcid, self._environment)

    @property
    def broker(self) -> ServerProcess:
        return self.cluster.brokers[self.cluster.entry]

    def start(self) -> None:
        self.cluster.start()

    def stop(self) -> None:
        for coordinator in self.coordinators:
            if coordinator.running:
                coordinator.kill()
        self.cluster.stop()

    def record(self, tcid: int) -> CoordinatorRecord | None:
        value = self._get(keys.coordinator(tcid))
        return CoordinatorRecord.decode(value) if value is not None else None

    def announced(self) -> int:
        value = self._get(keys.COORDINATOR_SET)
        return CoordinatorSetRecord.decode(value).announced if value is not None else 0

    def limit(self, limit: int) -> None:
        """Write what the operator writes when the number of coordinators changes."""
        record = CoordinatorSetRecord(limit, min(limit, self.announced()), "test/tx")

        async def run(store: EtcdStore) -> None:
            await store.put(keys.COORDINATOR_SET, record.encode())

        self._with_store(run)

    def _get(self, key: str) -> bytes | None:
        found: list[bytes | None] = []

        async def run(store: EtcdStore) -> None:
            item = await store.get(key)
            found.append(item.value if item is not None else None)

        self._with_store(run)
        return found[0]

    def _with_store(self, act: object) -> None:
        self.cluster._with_store(act)  # type: ignore[arg-type]
