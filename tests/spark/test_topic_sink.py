"""Streams into topics: each micro-batch is published once, whatever dies in between."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from dev.server_process import ServerProcess
from magnetar.client import EARLIEST, Client
from magnetar.client.failures import BrokerRefused
from magnetar.errors import CorruptData, InvalidRequest
from magnetar_jobs import stream_writer
from magnetar_jobs.stream_writer import TopicStreamWriter
from magnetar_jobs.topic_source import MagnetarDataSource
from magnetar_jobs.topic_writer import Published, WriteOptions
from magnetar_jobs.topic_writer import publish as publish_rows
from tests.spark.reading import given, publish, start_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]

TIMEOUT_S = 240.0
KILLS = 3
STREAMING = """
import sys
from magnetar_jobs.session import SessionSettings, spark_session
from magnetar_jobs.topic_source import MagnetarDataSource

volume, url, service_url, topic, target, checkpoint = sys.argv[1:]
with spark_session(SessionSettings("sink", master="local[2]")) as spark:
    spark.dataSource.register(MagnetarDataSource)
    given = {"volume": volume, "brokerUrl": url, "topic": topic, "rollInterval": "0"}
    frame = spark.readStream.format("magnetar").options(**given).load().select("key", "value")
    writer = frame.repartition(2).writeStream.format("magnetar").option("topic", target)
    writer = writer.option("serviceUrl", service_url).option("checkpointLocation", checkpoint)
    writer.trigger(processingTime="50 milliseconds").start().awaitTermination()
"""


async def received(server: ServerProcess, topic: str) -> list[bytes]:
    """All that readers of the topic see."""
    async with Client(server.service_url) as client:
        reader = await client.create_reader(topic, EARLIEST)
        found = []
        while await reader.has_message_available():
            found.append((await reader.receive()).data)
        return found


async def keep(server: ServerProcess, topic: str) -> None:
    """Retention drops what no subscription waits for."""
    async with Client(server.service_url) as client:
        await client.subscribe(topic, "keeps", initial_position="Earliest")


class Sink:
    """One query's sink, without Spark: two tasks for each attempt at a micro-batch."""

    def __init__(self, server: ServerProcess, topic: str, query: str = "query") -> None:
        self._server, self.topic, self._query = server, topic, query
        self._options = WriteOptions.parse(
            {"topic": topic, "serviceUrl": server.service_url, "transactionTimeout": "600"}
        )
        self.writer = TopicStreamWriter(self._options)
        asyncio.run(keep(server, topic))

    def attempt(self, *values: bytes) -> list[Any]:
        """What tasks publish; not committed yet."""
        halves = values[::2], values[1::2]
        return [asyncio.run(self._task(half)) for half in halves]

    async def _task(self, values: tuple[bytes, ...]) -> Published:
        rows = [pa.RecordBatch.from_pydict({"value": list(values)})] if values else []
        return await publish_rows(self._options, iter(rows), self._query)

    def readable(self) -> list[bytes]:
        return sorted(asyncio.run(received(self._server, self.topic)))


class Died(Exception):
    """Of a driver, at a moment that a test chose."""


@pytest.mark.parametrize("aborted", [False, True])
@pytest.mark.parametrize("after", ["nothing", "the decision", "one transaction", "both"])
def test_a_micro_batch_that_is_taken_again_is_published_once(
    server: ServerProcess, topic: str, monkeypatch: pytest.MonkeyPatch, after: str, aborted: bool
) -> None:
    """Its driver dies at any moment of the commit, or its commit fails there, after which Spark
    asks for an abort; the next attempt has other transactions for it."""
    sink = Sink(server, topic)
    sink.writer.commit(sink.attempt(b"a", b"b"), 0)
    steps = {"nothing": 0, "the decision": 1, "one transaction": 2, "both": 3}[after]
    add, resume = stream_writer._Decisions.add, Client.resume_transaction
    taken: list[str] = []

    def take(step: str) -> None:
        if len(taken) == steps:
            raise Died(step)
        taken.append(step)

    async def added(decisions: Any, decision: Any) -> None:
        take("decision")
        await add(decisions, decision)

    def resumed(client: Client, txn_id: Any) -> Any:
        take("transaction")
        return resume(client, txn_id)

    with monkeypatch.context() as patched:
        patched.setattr(stream_writer._Decisions, "add", added)
        patched.setattr(Client, "resume_transaction", resumed)
        failed = sink.attempt(b"c", b"d")
        with pytest.raises(Died):
            sink.writer.commit(failed, 1)
    if aborted:
        sink.writer.abort(failed, 1)
    sink.writer.commit(sink.attempt(b"c", b"d"), 1)
    sink.writer.commit(sink.attempt(b"c", b"d"), 1)
    assert sink.readable() == [b"a", b"b", b"c", b"d"]
    sink.writer.commit(sink.attempt(b"e"), 2)
    assert sink.readable() == [b"a", b"b", b"c", b"d", b"e"]


def test_a_driver_that_another_one_followed_decides_nothing(
    server: ServerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops before it decides; when it goes on, its producer is fenced."""
    old, new = Sink(server, topic), Sink(server, topic)
    add = stream_writer._Decisions.add

    async def overtaken(decisions: Any, decision: Any) -> None:
        monkeypatch.setattr(stream_writer._Decisions, "add", add)
        await decisions._consumer.close()  # its connection is lost
        await asyncio.to_thread(new.writer.commit, await asyncio.to_thread(new.attempt, b"a"), 0)
        await add(decisions, decision)

    monkeypatch.setattr(stream_writer._Decisions, "add", overtaken)
    with pytest.raises(BrokerRefused, match="PRODUCER_FENCED"):
        old.writer.commit(old.attempt(b"a"), 0)
    assert new.readable() == [b"a"]


def test_queries_of_one_topic_have_decisions_of_their_own(
    server: ServerProcess, topic: str
) -> None:
    """An older checkpoint of one is refused, and what it had published is left out."""
    first, second = Sink(server, topic, "first"), Sink(server, topic, "second")
    first.writer.commit(first.attempt(b"a"), 7)
    second.writer.commit(second.attempt(b"b"), 0)
    second.writer.commit([Published(None, 0), None], 1)
    with pytest.raises(InvalidRequest, match="micro-batch 6 comes after 7"):
        first.writer.commit(first.attempt(b"again"), 6)
    assert first.readable() == [b"a", b"b"]


def test_rows_that_timed_out_between_decision_and_commit_are_said_to_be_missing(
    server: ServerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Sink(server, topic)

    async def aborted(self: TopicStreamWriter, client: Client, decision: Any) -> None:  # noqa: ARG001
        await stream_writer.abort_transactions(client, decision.transactions)
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(TopicStreamWriter, "_carry_out", aborted)
        with pytest.raises(Died):
            sink.writer.commit(sink.attempt(b"a", b"b"), 0)
    with pytest.raises(CorruptData, match="micro-batch 0 transaction 1 of 2 cannot be committed"):
        sink.writer.commit(sink.attempt(b"a", b"b"), 0)


def test_what_is_aborted_is_never_seen(server: ServerProcess, topic: str) -> None:
    sink = Sink(server, topic)
    sink.writer.abort([*sink.attempt(b"a", b"b"), None], 0)
    sink.writer.commit(sink.attempt(b"c"), 0)
    assert sink.readable() == [b"c"]


def test_a_stream_from_topic_to_topic_survives_kills_of_its_driver(
    server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    """SIGKILL at any time of a micro-batch: in the end the target has each message once."""
    chance, target, checkpoint = random.Random(17), f"{topic}-target", tmp_path / "checkpoint"
    places = [server.directory / "data" / "storage", server.http_url, server.service_url]
    values, killed = list[bytes](), asyncio.Event()

    def committed() -> int:
        return len(list((checkpoint / "commits").glob("[0-9]*")))

    def has_committed(batches: int) -> bool:
        return committed() >= batches

    def run_until(reached: Any, kill_after_s: float) -> None:
        process = start_python("-c", STREAMING, *places, topic, target, checkpoint)
        until = time.monotonic() + TIMEOUT_S
        try:
            while not reached():
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            time.sleep(kill_after_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    async def publish_until_killed() -> None:
        while not killed.is_set():
            portion = [b"%05d" % (len(values) + number) for number in range(10)]
            await publish(server, topic, portion)
            values.extend(portion)
            await asyncio.sleep(0.3)

    async def both() -> None:
        publishing = asyncio.create_task(publish_until_killed())
        try:
            for _ in range(KILLS):
                reached = partial(has_committed, committed() + 2)
                await asyncio.to_thread(run_until, reached, chance.uniform(0, 1))
        finally:
            killed.set()
            await publishing

    asyncio.run(keep(server, target))
    asyncio.run(both())
    run_until(lambda: len(asyncio.run(received(server, target))) >= len(values), 1)
    assert sorted(asyncio.run(received(server, target))) == values


def test_what_the_sink_does_not_offer_is_refused(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    spark.dataSource.register(MagnetarDataSource)
    asyncio.run(publish(server, topic, [b"x"]))
    frame = spark.readStream.format("magnetar").options(**given(server, topic)).load()
    for select, mode, said in (
        (["topic", "value"], "append", "column 'topic' is not of a message"),
        (["value"], "complete", "complete"),
    ):
        writer = frame.select(*select).writeStream.format("magnetar").outputMode(mode)
        writer = writer.option("topic", f"{topic}-target").option("serviceUrl", server.service_url)
        with pytest.raises(Exception, match=said):
            writer.option("checkpointLocation", str(tmp_path / mode)).start().awaitTermination()
