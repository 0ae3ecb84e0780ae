"""A standalone server as a transaction coordinator: found at its own address, and the same after SIGKILL, SIGTERM or being switched off."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.server_process import ServerProcess
from magnetar.client import Client
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from tests.clients.coordinators import Type, Wire, outcomes_survive

pytestmark = pytest.mark.slow

ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"
SWITCH = "MAGNETAR_TRANSACTIONS_ENABLED"
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("transactions"), environment={SWITCH: "1"})
    server.start()
    yield server
    server.stop()


def _discovered(server: ServerProcess) -> tuple[int, str]:
    """How many coordinators clients are told of, and where the first one is ("" = there is no such topic)."""
    wire = Wire(server.broker_port)
    try:
        wire.connect()
        body = api.CommandPartitionedTopicMetadata(topic=ASSIGN, metadata_auto_creation_enabled=False)
        count = wire.ask(Type.PARTITIONED_METADATA, body).partitions
        if not count:
            return 0, ""
        return count, wire.ask(Type.LOOKUP, api.CommandLookupTopic(topic=f"{ASSIGN}-partition-0")).brokerServiceUrl
    finally:
        wire.close()


def test_clients_are_led_to_the_server_itself(own: ServerProcess) -> None:
    """One coordinator, at the address that clients use anyway; transactions begin and end there, and metrics tell of it."""

    async def scenario() -> None:
        async with asyncio.timeout(TIMEOUT_S), Client(own.service_url) as client:
            async with client.transaction() as txn:
                pass
            assert txn.id.most == 0

    assert _discovered(own) == (1, own.service_url)
    asyncio.run(scenario())
    with urllib.request.urlopen(f"{own.http_url}/metrics", timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    assert "magnetar_coordinator_held 1.0" in text
    assert "magnetar_messages_in_total" in text


@pytest.mark.parametrize("planned", [False, True], ids=["killed", "stopped"])
def test_transactions_survive_the_server(own: ServerProcess, planned: bool) -> None:
    """SIGKILL or SIGTERM: outcomes are told again, an open transaction is committed by the same client, ids go on."""

    def lose() -> None:
        if planned:
            assert own.stop() == 0
        else:
            own.kill()
        own.start()

    asyncio.run(outcomes_survive(own.service_url, lose))


def test_switched_off_it_leads_nobody_to_a_coordinator_and_switched_on_again_it_remembers(tmp_path: Path) -> None:
    """Three lives on one directory: with transactions, without, and with them again."""

    async def begin(url: str) -> TxnId:
        async with asyncio.timeout(TIMEOUT_S), Client(url) as client, client.transaction() as txn:
            return txn.id

    found: list[TxnId] = []
    for enabled in ("1", "0", "1"):
        server = ServerProcess(tmp_path, environment={SWITCH: enabled})
        server.start()
        try:
            assert _discovered(server) == ((1, server.service_url) if enabled == "1" else (0, ""))
            if enabled == "1":
                found.append(asyncio.run(begin(server.service_url)))
        finally:
            server.stop()
    assert found[1] > found[0]
