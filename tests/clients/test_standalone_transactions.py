"""A standalone server as a transaction coordinator, as it is delivered: nothing of one until
a client asks, found at its own address, and the same after SIGKILL, SIGTERM or being switched
off."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import request
from dev.testbed.foreign import Driver, ForeignError
from magnetar.client import Client
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from tests.clients.conftest import QUIET
from tests.clients.coordinators import Type, Wire, outcomes_survive

pytestmark = pytest.mark.slow

COORDINATOR_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"
SWITCH = "MAGNETAR_TRANSACTIONS_ENABLED"
TIMEOUT_S = 60.0
RESIDENT_BYTES_MAX = 80 << 20


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("transactions")) as server:
        yield server


def _stored(server: ServerProcess) -> set[str]:
    """Files of a coordinator."""
    data = server.directory / "data"
    names = {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()}
    return {name for name in names if "coordinator" in name}


def _metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=TIMEOUT_S) as answer:
        text: str = answer.read().decode()
    return text


def _begin(port: int) -> int:
    """A transaction by the bare protocol, without the look-up and the handshake before it; its
    sequence."""
    wire = Wire(port)
    try:
        wire.connect()
        found = wire.ask(Type.NEW_TXN, api.CommandNewTxn(txn_ttl_seconds=600_000, tc_id=0))
        assert not found.HasField("error"), found
        return int(found.txnid_least_bits)
    finally:
        wire.close()


def _journal(server: ServerProcess) -> bytes:
    return (server.directory / "data" / "metadata" / "metadata.journal").read_bytes()


def test_a_server_that_was_never_asked_has_nothing_of_a_coordinator(tmp_path: Path) -> None:
    """Clients are led to it, and publish; until the first command about transactions there is no
    file, record or metric of a coordinator.

    Then many at once ask, and wait for the same one. From its next start on the server has it at
    once.
    """
    with ServerProcess(tmp_path) as server:
        client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
        client.create_producer("ordinary").send(b"message")
        client.close()
        assert _discovered(server) == (1, server.service_url)
        assert (_stored(server), b"coordinators/" in _journal(server)) == (set(), False)
        assert "magnetar_coordinator" not in _metrics(server)
        assert server.resident_bytes() <= RESIDENT_BYTES_MAX
        with ThreadPoolExecutor(8) as pool:
            begun = list(pool.map(_begin, [server.broker_port] * 8))
        assert sorted(begun) == list(range(8))
        assert b"coordinators/" in _journal(server)
        assert len({name for name in _stored(server) if name.startswith("storage/claims")}) == 1
        server.stop()
        server.start()
        assert "magnetar_coordinator_transactions 8.0" in _metrics(server)


def test_an_administrators_question_wakes_it_too(tmp_path: Path) -> None:
    """The first command that names transactions is a person's: answered as by a coordinator that
    has always been there."""
    with ServerProcess(tmp_path) as server:
        assert request("GET", f"{server.http_url}/magnetar/v1/transactions") == (
            200,
            {"transactions": [], "more": False, "unreachable": []},
        )
        assert request("GET", f"{server.http_url}/magnetar/v1/transactions/0/0")[0] == 404
        assert _stored(server) != set()


def _discovered(server: ServerProcess) -> tuple[int, str]:
    """How many coordinators are announced to clients, and where the first one is ("" = there is no
    such topic)."""
    wire = Wire(server.broker_port)
    try:
        wire.connect()
        body = api.CommandPartitionedTopicMetadata(
            topic=COORDINATOR_TOPIC, metadata_auto_creation_enabled=False
        )
        count = wire.ask(Type.PARTITIONED_METADATA, body).partitions
        if not count:
            return 0, ""
        return count, wire.ask(
            Type.LOOKUP, api.CommandLookupTopic(topic=f"{COORDINATOR_TOPIC}-partition-0")
        ).brokerServiceUrl
    finally:
        wire.close()


async def test_clients_are_led_to_the_server_itself(own: ServerProcess) -> None:
    """One coordinator, at the address that clients use anyway; transactions begin and end there,
    and metrics tell of it."""

    assert _discovered(own) == (1, own.service_url)
    async with asyncio.timeout(TIMEOUT_S), Client(own.service_url) as client:
        async with client.transaction() as txn:
            pass
        assert txn.id.most == 0
    text = _metrics(own)
    assert "magnetar_coordinator_held 1.0" in text
    assert "magnetar_messages_in_total" in text


@pytest.mark.parametrize("planned", [False, True], ids=["killed", "stopped"])
async def test_transactions_survive_the_server(own: ServerProcess, planned: bool) -> None:
    """SIGKILL or SIGTERM: outcomes are reported again, an open transaction is committed by the same
    client, ids go on."""

    def lose() -> None:
        if planned:
            assert own.stop() == 0
        else:
            own.kill()
        own.start()

    await outcomes_survive(own.service_url, lose)


async def test_switched_off_it_leads_nobody_to_a_coordinator_and_switched_on_again_it_remembers(
    tmp_path: Path,
) -> None:
    """Three continues one directory: with transactions, without, and with them again."""

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
                found.append(await begin(server.service_url))
        finally:
            server.stop()
    assert found[1] > found[0]


@pytest.mark.java
def test_switched_off_the_official_clients_fail_at_once(tmp_path: Path, driver: Driver) -> None:
    """A client that enables transactions is not made, as where a cluster has no coordinators: it
    never waits for one."""
    with ServerProcess(tmp_path, environment={SWITCH: "0"}) as server:
        with pytest.raises(ForeignError) as refused:
            driver.client(server.service_url, transactions=True)
        assert "The broker doesn't enable the transaction coordinator" in refused.value.message
        driver.client(server.service_url).close()
