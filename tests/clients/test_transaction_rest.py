"""REST about transactions: any broker reports what coordinators know, ends a transaction by force,
and pulsar-admin understands it."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import request, wait_for
from magnetar.client import Client
from magnetar.client.coordinators import Coordinators
from magnetar.errors import WireCode
from magnetar.metadata.records import CoordinatorState
from magnetar.transactions.ids import TxnId
from tests.clients.conftest import QUIET
from tests.clients.coordinators import CHANGE_S, ENDS_ARE_CARRIED_OUT, Stage
from tests.clients.pulsar_admin import PulsarAdmin
from tests.support.held_transactions import ABORT, COMMIT, TIMEOUT_MS, TOPIC, Holder

pytestmark = pytest.mark.slow

TIMEOUT_S = 240.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker and two coordinators."""
    stage = Stage(tmp_path_factory.mktemp("transactions"))
    try:
        stage.start()
        for coordinator in stage.coordinators:
            coordinator.start()
        yield stage
    finally:
        stage.stop()


@pytest.fixture
def holders(stage: Stage) -> Iterator[list[Holder]]:
    """A client of each."""
    found = [
        Holder(coordinator.broker_port, tcid) for tcid, coordinator in enumerate(stage.coordinators)
    ]
    yield found
    for holder in found:
        holder.close()


def _ask(server: ServerProcess, path: str, method: str = "GET") -> tuple[int, Any]:
    return request(method, f"{server.http_url}{path}")


def _metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"{server.http_url}/metrics", timeout=TIMEOUT_S) as answer:
        text: str = answer.read().decode()
    return text


def _pulsar(server: ServerProcess, path: str, method: str = "GET") -> tuple[int, Any]:
    return _ask(server, f"/admin/v3/transactions/{path}", method)


@pytest.mark.etcd
def test_a_broker_answers_for_all_coordinators(stage: Stage, holders: list[Holder]) -> None:
    """Which there are, their state, a transaction with its participants, those that are open for
    long, and how one has ended."""
    broker = stage.broker
    status, found = _pulsar(broker, "coordinators")
    urls = [coordinator.service_url for coordinator in stage.coordinators]
    assert (status, found) == (
        200,
        [{"id": tcid, "brokerServiceUrl": url} for tcid, url in enumerate(urls)],
    )
    txn, other = holders[1].begin(), holders[0].begin()
    holders[1].join(txn)
    status, stats = _pulsar(broker, "coordinatorStats")
    assert (status, sorted(stats)) == (200, ["0", "1"])
    assert (stats["1"]["state"], stats["1"]["leastSigBits"], stats["1"]["ongoingTxnSize"]) == (
        "Ready",
        txn.least,
        1,
    )
    assert _pulsar(broker, "coordinatorStats?coordinatorId=1") == (200, stats["1"])
    status, log = _pulsar(broker, "coordinatorInternalStats/1")
    assert status == 200
    assert log["transactionLogStats"]["managedLedgerInternalStats"]["totalSize"] > 0
    status, metadata = _pulsar(broker, f"transactionMetadata/{txn.most}/{txn.least}")
    assert (status, metadata["txnId"], metadata["status"], metadata["timeoutAt"]) == (
        200,
        str(txn),
        "OPEN",
        TIMEOUT_MS,
    )
    assert (list(metadata["producedPartitions"]), list(metadata["ackedPartitions"][TOPIC])) == (
        [TOPIC],
        ["s"],
    )
    status, slow = _pulsar(broker, "slowTransactions/1")
    assert (status, sorted(slow)) == (200, sorted([str(txn), str(other)]))
    assert _pulsar(broker, f"slowTransactions/{TIMEOUT_MS}") == (200, {})
    assert list(_pulsar(broker, "slowTransactions/1?coordinatorId=0")[1]) == [str(other)]
    listed = [_ask(broker, f"/magnetar/v1/transactions?limit={limit}")[1] for limit in (1, 2)]
    assert [(len(found["transactions"]), found["more"]) for found in listed] == [
        (1, True),
        (2, False),
    ]
    assert not holders[0].end(other, COMMIT).HasField("error")
    status, ended = _pulsar(broker, f"transactionMetadata/{other.most}/{other.least}")
    assert (status, ended["status"]) == (200, "COMMITTED")
    assert _pulsar(broker, f"transactionMetadata/{other.most}/{other.least + 1000}")[0] == 404
    assert _pulsar(broker, f"abortTransaction/{txn.most}/{txn.least}", "POST")[0] == 204


@pytest.mark.etcd
def test_an_open_transaction_is_aborted_by_force_and_a_decided_one_is_not(
    stage: Stage, holders: list[Holder]
) -> None:
    """Its client then learns that it was aborted; what was committed stays committed."""
    broker, holder = stage.broker, holders[0]
    txn, committed = holder.begin(), holder.begin()
    assert not holder.end(committed, COMMIT).HasField("error")
    assert _pulsar(broker, f"abortTransaction/{txn.most}/{txn.least}", "POST") == (204, None)
    refused = holder.end(txn, COMMIT)
    assert (int(refused.error), "ABORTED" in refused.message) == (
        int(WireCode.INVALID_TXN_STATUS),
        True,
    )
    status, reason = _pulsar(broker, f"abortTransaction/{committed.most}/{committed.least}", "POST")
    assert (status, "is COMMITTED" in reason["reason"]) == (409, True)
    assert not holder.end(committed, COMMIT).HasField("error")
    status, reason = _pulsar(broker, "transactionCoordinator/replicas", "POST")
    assert (status, "kubectl scale" in reason["reason"]) == (409, True)


@pytest.mark.etcd
def test_a_coordinator_that_is_unavailable_is_named_and_one_that_is_gone_is_answered_for(
    stage: Stage, holders: list[Holder]
) -> None:
    """SIGKILL: the list says whose transactions are missing. Retired: the first coordinator
    reports outcomes instead."""
    broker, last = stage.broker, stage.coordinators[1]
    ended, waiting = holders[1].begin(), holders[0].begin()
    assert not holders[1].end(ended, ABORT).HasField("error")
    last.kill()
    status, found = _ask(broker, "/magnetar/v1/transactions")
    assert (status, str(waiting) in [row["txn"] for row in found["transactions"]]) == (200, True)
    assert found["unreachable"] == [1]
    last.start()
    stage.limit(1)
    wait_for(
        "number 1 retires", lambda: _state_of(stage, 1) is CoordinatorState.RETIRING, 2 * CHANGE_S
    )
    assert last.stop() == 0
    status, outcome = _ask(broker, f"/magnetar/v1/transactions/{ended.most}/{ended.least}")
    assert (status, outcome["status"]) == (200, "ABORTED")
    assert (
        _pulsar(broker, f"transactionMetadata/{ended.most}/{ended.least}")[1]["status"] == "ABORTED"
    )


def _state_of(stage: Stage, tcid: int) -> CoordinatorState | None:
    record = stage.record(tcid)
    return record.state if record is not None else None


@pytest.mark.etcd
async def test_the_owner_of_a_topic_shows_what_waits_there_for_a_transactions_end(
    stage: Stage,
) -> None:
    """Messages and acknowledgements of an open transaction, by topic and subscription, and
    nothing of them once it was aborted."""
    broker, topic = stage.broker, "public/default/participant"

    async def ask(path: str) -> Any:
        status, found = await asyncio.to_thread(_pulsar, broker, path)
        assert status == 200, (path, found)
        return found

    async with asyncio.timeout(TIMEOUT_S), Client(broker.service_url) as client:
        producer = await client.create_producer(f"persistent://{topic}")
        consumer = await client.subscribe(f"persistent://{topic}", "s")
        await producer.send(b"before")
        message = await consumer.receive()
        assert (await ask(f"transactionBufferStats/{topic}"))["state"] == "NoSnapshot"
        assert (await ask(f"pendingAckStats/{topic}/s"))["state"] == "None"
        txn = client.transaction(timeout_s=600)
        await txn.begin()
        await producer.send(b"inside", txn=txn)
        await consumer.acknowledge(message, txn=txn)
        held = f"{message.id.ledger}/{message.id.entry}"
        buffer = await ask(f"transactionBufferStats/{topic}?lowWaterMarks=true")
        assert (
            buffer["state"],
            buffer["ongoingTxnSize"],
            buffer["totalAbortedTransactions"],
        ) == ("Ready", 1, 0)
        inside = await ask(f"transactionInBufferStats/{topic}/{txn.id.most}/{txn.id.least}")
        assert (bool(inside["startPosition"]), inside["aborted"]) == (True, False)
        assert (await ask(f"pendingAckStats/{topic}/s"))["ongoingTxnSize"] == 1
        assert await ask(f"positionStatsInPendingAck/{topic}/s/{held}") == {"state": "PendingAck"}
        assert (
            await ask(f"transactionInPendingAckStats/{topic}/s/{txn.id.most}/{txn.id.least}")
            is not None
        )
        assert "\nmagnetar_transactions_open 1.0\n" in await asyncio.to_thread(_metrics, broker)
        await txn.abort()  # is answered after a while also if not all have carried it out
        while "\nmagnetar_transactions_open 0.0\n" not in await asyncio.to_thread(_metrics, broker):
            await asyncio.sleep(0.05)
        assert (await ask(f"transactionBufferStats/{topic}"))["ongoingTxnSize"] == 0
        assert (await ask(f"transactionInBufferStats/{topic}/{txn.id.most}/{txn.id.least}"))[
            "aborted"
        ]
        assert await ask(f"positionStatsInPendingAck/{topic}/s/{held}") == {
            "state": "NotInPendingAck"
        }
    assert _pulsar(broker, f"pendingAckStats/{topic}/none")[0] == 404
    assert _pulsar(broker, "transactionBufferStats/public/default/none")[0] == 404
    status, refused = _pulsar(broker, f"pendingAckInternalStats/{topic}/s")
    assert (status, "don't use managedLedger" in refused["reason"]) == (405, True)


async def test_participants_are_shown_as_the_client_named_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client names topics without tenant and namespace, one of them in full as well: REST
    shows what it wrote, as Apache Pulsar does, also after a kill -9; the end reaches the topics all
    the same, once."""
    in_full = Coordinators.add_partition, Coordinators.add_subscription

    async def add_partition(of: Coordinators, txn: TxnId, topic: str) -> None:
        await in_full[0](of, txn, topic.rpartition("/")[2])
        await in_full[0](of, txn, topic)

    async def add_subscription(of: Coordinators, txn: TxnId, topic: str, name: str) -> None:
        await in_full[1](of, txn, topic.rpartition("/")[2], name)

    monkeypatch.setattr(Coordinators, "add_partition", add_partition)
    monkeypatch.setattr(Coordinators, "add_subscription", add_subscription)
    server = ServerProcess(tmp_path, environment=ENDS_ARE_CARRIED_OUT)
    with server:
        async with asyncio.timeout(TIMEOUT_S), Client(server.service_url) as client:
            producer = await client.create_producer("short")
            consumer = await client.subscribe("short", "s")
            await producer.send(b"before")
            txn = client.transaction(timeout_s=600)
            await txn.begin()
            await producer.send(b"inside", txn=txn)
            await consumer.acknowledge(await consumer.receive(), txn=txn)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            path = f"transactionMetadata/{txn.id.most}/{txn.id.least}"
            status, shown = await asyncio.to_thread(_pulsar, server, path)
            assert (status, shown["status"]) == (200, "OPEN")
            assert list(shown["producedPartitions"]) == [
                "short",
                "persistent://public/default/short",
            ]
            assert {name: list(held) for name, held in shown["ackedPartitions"].items()} == {
                "short": ["s"]
            }
            await txn.commit()
            await producer.send(b"after")
            assert [(await consumer.receive()).value for _ in range(2)] == [b"inside", b"after"]
            stats = await asyncio.to_thread(
                _pulsar, server, "pendingAckStats/public/default/short/s"
            )
            assert stats[1]["ongoingTxnSize"] == 0


@pytest.mark.java
@pytest.mark.timeout(600)
def test_pulsar_admin_shows_and_aborts_transactions(tmp_path: Path) -> None:
    """Against a standalone server: its own commands, which parse what they get into Pulsar's
    classes."""
    server = ServerProcess(tmp_path)
    server.start()
    admin = PulsarAdmin(server.http_url, tmp_path)
    holder = Holder(server.broker_port, 0)
    try:
        txn = holder.begin()
        holder.join(txn)
        assert admin("transactions coordinators-list").split() == ["0", server.service_url]
        assert admin.json("transactions coordinator-stats -c 0")["ongoingTxnSize"] == 1
        assert "state=Ready" in admin("transactions coordinator-stats")
        assert admin.json("transactions coordinator-internal-stats -c 0")["transactionLogStats"][
            "managedLedgerName"
        ]
        shown = admin.json(f"transactions transaction-metadata -m {txn.most} -l {txn.least}")
        assert (shown["status"], list(shown["producedPartitions"])) == ("OPEN", [TOPIC])
        assert f"txnId={txn}, status=OPEN" in admin("transactions slow-transactions -t 0s -c 0")
        topic = TOPIC.removeprefix("persistent://")
        client = pulsar.Client(server.service_url, operation_timeout_seconds=60, logger=QUIET)
        client.subscribe(TOPIC, "s")
        client.close()
        of_topic, of_both = f"-t {topic}", f"-t {topic} -s s"
        assert (
            admin.json(f"transactions transaction-buffer-stats {of_topic} -l")["state"]
            == "NoSnapshot"
        )
        assert admin.json(f"transactions pending-ack-stats {of_both}")["state"] == "None"
        assert not admin.json(f"transactions transaction-in-buffer-stats {of_topic} -m 0 -l 0")[
            "aborted"
        ]
        admin(f"transactions transaction-in-pending-ack-stats {of_both} -m 0 -l 0")
        # prints nothing, whatever it gets
        admin(f"transactions position-stats-in-pending-ack {of_both} -l 1 -e 1")
        assert "managedLedger" in admin.refused(
            f"transactions pending-ack-internal-stats {of_both}"
        )
        admin(f"transactions abort-transaction -m {txn.most} -l {txn.least}")
        shown = admin.json(f"transactions transaction-metadata -m {txn.most} -l {txn.least}")
        assert shown["status"] in ("ABORTING", "ABORTED")
        refused = holder.end(txn, COMMIT)
        assert int(refused.error) == int(WireCode.INVALID_TXN_STATUS)
    finally:
        holder.close()
        admin.close()
        server.stop()
