"""Compaction of transaction logs by Spark, beside a real standalone server and real clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from dev.server_process import ServerProcess
from dev.testbed.rest import Admin
from magnetar.client import EARLIEST, Client
from magnetar.client.transactions import Transaction
from tests.spark.commands import magnetar
from tests.spark.reading import SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.java]

RECEIVE_S = 240.0
COMMAND = ("job", "run", "transaction-log-compaction")
STILL = {
    **SETTINGS,
    "MAGNETAR_REWRITE_AGE_S": "3600",
    "MAGNETAR_REWRITE_GARBAGE_SHARE": "1",
}
"""The broker rewrites nothing by itself."""

Seen = list[tuple[str, bytes]]
"""Ids and data of messages, in order."""


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with ServerProcess(tmp_path, environment=STILL) as process:
        yield process


async def seen(client: Client, topic: str, count: int) -> Seen:
    """The first `count` messages of a topic, as a new reader gets them, and that there are no
    more."""
    found = []
    reader = await client.create_reader(topic, EARLIEST)
    for _ in range(count):
        message = await asyncio.wait_for(reader.receive(), RECEIVE_S)
        found.append((str(message.id), message.data))
    assert not await reader.has_message_available()
    await reader.close()
    return found


async def begun(client: Client) -> Transaction:
    txn = client.transaction(timeout_s=600)
    await txn.begin()
    return txn


def compacted(server: ServerProcess, *arguments: str) -> dict[str, Any]:
    done = magnetar(server, *COMMAND, *arguments, "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


async def test_readers_get_the_same_messages_and_what_is_open_ends_as_ever(
    server: ServerProcess, topic: str
) -> None:
    """Interleaved transactions, some aborted, two open, plain messages between: the run changes
    neither ids nor order, of new readers and of a subscription that has acknowledged half; then the
    open ones commit and abort; the next run takes their files as well. A restart changes nothing."""
    async with Client(server.service_url) as client:
        keeps = await client.subscribe(topic, "keeps", initial_position="Earliest")
        producer = await client.create_producer(topic)
        txns = [await begun(client) for _ in range(8)]
        count = 0
        for turn in range(5):
            for number, txn in enumerate(txns):
                await producer.send(b"%d of %d" % (turn, number), txn=txn)
            await producer.send(b"plain %d" % turn)
            count += 1
        for number in (5, 0, 3, 1):
            await txns[number].commit()
            count += 5
        for number in (2, 4):
            await txns[number].abort()
        before = await seen(client, topic, count)
        half = [await asyncio.wait_for(keeps.receive(), RECEIVE_S) for _ in range(count // 2)]
        for message in half:
            await keeps.acknowledge(message)
        result = await asyncio.to_thread(compacted, server, topic)
        assert (result["bundles"], result["entries_out"]) == (1, count)
        assert result["files_waiting"] == 1
        assert "stay listed for messages of transactions" in result["message"]
        assert await seen(client, topic, count) == before
        await txns[6].commit()
        await txns[7].abort()
        count += 5
        late = await seen(client, topic, count)
        assert late[: len(before)] == before
        assert [data for _, data in late[-5:]] == [b"%d of 6" % turn for turn in range(5)]
        result = await asyncio.to_thread(compacted, server, topic)
        assert (result["files_waiting"], result["entries_out"]) == (0, 5)
        assert result["bytes_void"] > 0
        assert await seen(client, topic, count) == late
        again = await asyncio.to_thread(compacted, server, topic)
        assert again["bundles"] == 0
    server.kill()
    server.start()
    async with Client(server.service_url) as client:
        assert await seen(client, topic, count) == late
        keeps = await client.subscribe(topic, "keeps")
        left = [
            await asyncio.wait_for(keeps.receive(), RECEIVE_S) for _ in range(count - len(half))
        ]
        assert [(str(found.id), found.data) for found in left] == late[len(half) :]


async def test_a_namespace_is_compacted_by_one_application(server: ServerProcess) -> None:
    """Topics of all its bundles, some of them partitioned, and one that knows no transactions; the
    aborted share of their files is gone, and the data source reads what readers read."""
    admin = Admin(server)
    admin.call("PUT", "namespaces/public/many")
    admin.call("PUT", "persistent/public/many/parted/partitions", 3)
    topics = [f"persistent://public/many/{name}" for name in ("a", "b", "c", "parted")]
    async with Client(server.service_url) as client:
        producers = [await client.create_producer(topic) for topic in topics]
        for topic in topics:
            await client.subscribe(topic, "keeps", initial_position="Earliest")
        plain = await client.create_producer("persistent://public/many/plain")
        await client.subscribe("persistent://public/many/plain", "keeps")
        await plain.send(b"plain")
        for number in range(6):
            txn = await begun(client)
            for producer in producers:
                for part in range(3):
                    await producer.send(b"%d %d" % (number, part), key=f"k{part}", txn=txn)
            await (txn.commit() if number % 2 else txn.abort())
        singles = [topic for topic in topics if not topic.endswith("parted")]
        before = {topic: await seen(client, topic, 9) for topic in singles}
        result = await asyncio.to_thread(compacted, server, "--namespace", "public/many")
        assert result["bundles"] > 1
        assert result["files_waiting"] == 0
        assert result["entries_out"] >= 4 * 9
        assert {topic: await seen(client, topic, 9) for topic in singles} == before


def test_a_namespace_without_topics_has_nothing_to_compact(server: ServerProcess) -> None:
    Admin(server).call("PUT", "namespaces/public/nothing")
    assert compacted(server, "--namespace", "public/nothing")["bundles"] == 0


def test_what_cannot_be_compacted_is_said_in_one_line(server: ServerProcess) -> None:
    for arguments, said in (
        (("persistent://public/default/missing",), "missing"),
        ((), "one of the two"),
        (("--namespace", "public/missing"), "public/missing"),
    ):
        done = magnetar(server, *COMMAND, *arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr + done.stdout


def test_apply_runs_the_job_of_a_manifest(server: ServerProcess, tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(server.service_url) as client:
            producer = await client.create_producer("persistent://public/default/applied")
            await client.subscribe("persistent://public/default/applied", "keeps")
            async with client.transaction() as txn:
                await producer.send(b"x", txn=txn)

    asyncio.run(work())
    spec = {
        "clusterRef": {"name": "main"},
        "type": "TransactionLogCompaction",
        "transactionLogCompaction": {"namespace": "public/default"},
    }
    manifest = {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": "DataJob",
        "metadata": {"name": "logs"},
        "spec": spec,
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(manifest))
    done = magnetar(server, "apply", "-f", str(path), "-o", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    [row] = json.loads(done.stdout)
    assert row["outcome"] == "completed (run once: 1 log files, 1 entries)"
