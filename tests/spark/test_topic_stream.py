"""Topics as streams: restarts, limits, and watermarks that producers asserted."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dev.server_process import ServerProcess
from dev.testbed.rest import Admin
from magnetar.client import Client
from magnetar.clock import SystemClock
from magnetar.errors import CorruptData, InvalidRequest
from magnetar.metadata import keys
from magnetar.metadata.backends.embedded import EmbeddedStore
from magnetar.metadata.records import BundleRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.watermarks.records import Anchor, Assertion, Idle
from magnetar.watermarks.timeline import Timeline
from magnetar_jobs.cluster import bundle_of_topic, roll_log
from magnetar_jobs.event_watermarks import Steps, steps_of, timelines_of, together
from magnetar_jobs.remote_store import RemoteStore
from magnetar_jobs.topic_options import ReadOptions
from magnetar_jobs.topic_source import MagnetarDataSource
from magnetar_jobs.topic_stream import TopicStreamReader
from tests.spark.histories import History
from tests.spark.reading import (
    SETTINGS,
    given,
    into_files,
    options_of,
    publish,
    released,
    run_example,
    start_python,
)
from tests.spark.topics import TOPIC
from tests.support.durable_topics import DurableTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAMING = """
import sys
from magnetar_jobs.session import SessionSettings, spark_session
from magnetar_jobs.topic_source import MagnetarDataSource

volume, url, topic, directory = sys.argv[1:]
with spark_session(SessionSettings("streaming", master="local[2]")) as spark:
    spark.dataSource.register(MagnetarDataSource)
    given = {"volume": volume, "brokerUrl": url, "topic": topic, "rollInterval": "0"}
    frame = spark.readStream.format("magnetar").options(**given).load().select("value")
    writer = frame.writeStream.format("parquet").option("path", directory + "/sink")
    writer = writer.option("checkpointLocation", directory + "/checkpoint")
    writer.trigger(processingTime="100 milliseconds").start().awaitTermination()
"""
TIMEOUT_S = 480.0
OFTEN = {"MAGNETAR_CHECKPOINT_AGE_S": "0.1"}

pytestmark = [pytest.mark.slow, pytest.mark.java]


def stream(spark: SparkSession, server: ServerProcess, topic: str, **options: object) -> DataFrame:
    spark.dataSource.register(MagnetarDataSource)
    chosen = given(server, topic, rollInterval=0, **options)
    return spark.readStream.format("magnetar").options(**chosen).load()


def in_files(spark: SparkSession, directory: Path) -> list[bytes]:
    rows = spark.read.parquet(str(directory / "sink")).select("value").collect()
    return sorted(bytes(row["value"]) for row in rows)


def test_a_stream_that_restarts_takes_each_message_once(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    """Between two runs messages come; a run without news changes nothing."""
    values = [b"%03d" % number for number in range(90)]
    asyncio.run(publish(server, topic, values[:40]))
    frame = stream(spark, server, topic).select("value")
    into_files(frame, tmp_path)
    assert in_files(spark, tmp_path) == values[:40]
    asyncio.run(publish(server, topic, values[40:]))
    into_files(frame, tmp_path)
    into_files(frame, tmp_path)
    assert in_files(spark, tmp_path) == values


def test_a_stream_of_a_namespace_takes_topics_that_come(
    spark: SparkSession, server: ServerProcess, tmp_path: Path
) -> None:
    """It begins while there is none; a topic of a later run is read from its beginning."""
    Admin(server).call("PUT", "namespaces/public/spark-growing")
    spark.dataSource.register(MagnetarDataSource)
    options = given(server, "", namespace="public/spark-growing", rollInterval=0)
    del options["topic"]
    frame = spark.readStream.format("magnetar").options(**options).load().select("value")
    assert into_files(frame, tmp_path) == 0
    for number in range(2):
        topic = f"persistent://public/spark-growing/topic-{number}"
        asyncio.run(publish(server, topic, [b"%d of 3" % number] * 3))
        assert into_files(frame, tmp_path) > 0
    assert in_files(spark, tmp_path) == [b"0 of 3"] * 3 + [b"1 of 3"] * 3


def test_a_query_that_runs_takes_what_comes(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    """Micro-batch by micro-batch, from partitions as well that are added while it runs."""
    admin = Admin(server)
    path = topic.replace("://", "/") + "/partitions"
    admin.call("PUT", path, 2)
    taken: list[bytes] = []

    def take(batch: DataFrame, _number: int) -> None:
        taken.extend(bytes(row["value"]) for row in batch.collect())

    query = (
        stream(spark, server, topic)
        .select("value")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        values = [b"%03d" % number for number in range(60)]
        for part, partitions in ((values[:20], 2), (values[20:40], 3), (values[40:], 3)):
            admin.call("POST", path, partitions)
            asyncio.run(publish(server, topic, part))
            until = time.monotonic() + TIMEOUT_S
            while len(taken) < int(part[-1]) + 1:
                assert time.monotonic() < until, (taken, query.exception())
                assert query.isActive, query.exception()
                time.sleep(0.2)
        assert sorted(taken) == values
    finally:
        query.stop()


def test_messages_of_transactions_come_once_they_are_committed(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    """One that is open while the stream runs comes with a later micro-batch."""
    frame = stream(spark, server, topic).select("value")

    async def work() -> None:
        async with Client(server.service_url) as client:
            await client.subscribe(topic, "keeps", initial_position="Earliest")
            producer = await client.create_producer(topic)
            await producer.send(b"plain")
            opened = client.transaction(timeout_s=600)
            await opened.begin()
            await producer.send(b"later", txn=opened)
            async with client.transaction() as txn:
                await producer.send(b"first", txn=txn)
            gone = client.transaction()
            await gone.begin()
            await producer.send(b"never", txn=gone)
            await gone.abort()
            await asyncio.to_thread(into_files, frame, tmp_path)
            assert in_files(spark, tmp_path) == [b"first", b"plain"]
            await opened.commit()
        await asyncio.to_thread(into_files, frame, tmp_path)

    asyncio.run(work())
    assert in_files(spark, tmp_path) == [b"first", b"later", b"plain"]


def test_a_stream_says_what_retention_has_taken_from_it(tmp_path: Path) -> None:
    """Unless it is to go on; one that begins is not behind."""
    history = History(random.Random(1))
    for number in range(30):
        history.single(f"k{number}", b"v")
    ledger = history.entries[0].ledger
    with DurableTopic(tmp_path / "volume") as topic:
        topic.write(history.entries[:20])
        topic.trim_everything((ledger, history.entries[19].entry))
        topic.write(history.entries[20:])
        start = {str(TOPIC): f"{ledger}:{history.entries[4].entry}"}
        with released(topic):
            strict = TopicStreamReader(ReadOptions.parse(options_of(topic)))
            end = strict.latestOffset(start, ReadAllAvailable())
            assert end == {str(TOPIC): f"{ledger}:{history.entries[29].entry}"}
            with pytest.raises(CorruptData, match="failOnDataLoss=false"):
                strict.partitions(start, end)
            beginning = strict.initialOffset()
            lenient = TopicStreamReader(ReadOptions.parse(options_of(topic, failOnDataLoss=False)))
            for reader, offset in ((strict, beginning), (lenient, start)):
                rows = [
                    batch.num_rows
                    for part in reader.partitions(offset, end)
                    for batch in reader.read(part)
                ]
                assert sum(rows) == 10
            with pytest.raises(InvalidRequest, match="endingPosition"):
                TopicStreamReader(ReadOptions.parse(options_of(topic, endingPosition="1:1")))


def test_a_driver_that_is_killed_again_and_again_loses_and_repeats_nothing(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    """SIGKILL while micro-batches run and messages come, some of them in transactions; the file
    sink has each message once in the end."""
    sink, values, killed = tmp_path / "sink", list[bytes](), asyncio.Event()
    streamed = [server.directory / "data" / "storage", server.http_url, topic, tmp_path]

    async def publish_until_killed() -> None:
        async with Client(server.service_url) as client:
            await client.subscribe(topic, "keeps", initial_position="Earliest")
            producer = await client.create_producer(topic)
            while not killed.is_set():
                portion = [b"%05d" % (len(values) + number) for number in range(20)]
                async with client.transaction(timeout_s=600) as txn:
                    for value in portion[:10]:
                        await producer.send(value, txn=txn)
                for value in portion[10:]:
                    await producer.send(value)
                values.extend(portion)
                await asyncio.sleep(0.3)

    def kill_drivers() -> None:
        for kill in range(2):
            before = len(list(sink.glob("*.parquet")))
            process = start_python("-c", STREAMING, *streamed)
            until = time.monotonic() + TIMEOUT_S
            try:
                while len(list(sink.glob("*.parquet"))) < before + 2:
                    assert process.poll() is None, kill
                    assert time.monotonic() < until, kill
                    time.sleep(0.1)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    async def both() -> None:
        publishing = asyncio.create_task(publish_until_killed())
        try:
            await asyncio.to_thread(kill_drivers)
        finally:
            killed.set()
            await publishing

    asyncio.run(both())
    into_files(stream(spark, server, topic).select("value"), tmp_path)
    assert in_files(spark, tmp_path) == values


def test_a_batch_that_failed_is_taken_again_as_it_was(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    """The sink has it, the checkpoint does not know; more messages came since. The same batch
    comes again, without them."""
    values = [b"%03d" % number for number in range(60)]
    asyncio.run(publish(server, topic, values[:30]))
    batches: dict[int, list[list[bytes]]] = {}
    failing = True

    def take(batch: DataFrame, number: int) -> None:
        rows = sorted(bytes(row["value"]) for row in batch.collect())
        batches.setdefault(number, []).append(rows)
        if failing:
            raise RuntimeError("after the sink")

    def run() -> None:
        frame = stream(spark, server, topic).select("value")
        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="after the sink"):
        run()
    asyncio.run(publish(server, topic, values[30:]))
    failing = False
    run()
    assert batches[0] == [values[:30], values[:30]]
    assert sorted(value for number in batches for value in batches[number][-1]) == values


def test_micro_batches_are_as_large_as_is_asked_for(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    values = [b"%03d" % number + bytes(2_000) for number in range(60)]
    asyncio.run(publish(server, topic, values))
    frame = stream(spark, server, topic, bytesPerTrigger=20_000).select("value")
    assert into_files(frame, tmp_path) >= 3
    assert in_files(spark, tmp_path) == values


def test_a_stream_from_the_latest_position_begins_behind_what_is_there(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    asyncio.run(publish(server, topic, [b"before"]))
    frame = stream(spark, server, topic, startingPosition="latest").select("value")
    into_files(frame, tmp_path)
    asyncio.run(publish(server, topic, [b"after"]))
    into_files(frame, tmp_path)
    assert in_files(spark, tmp_path) == [b"after"]


def test_rows_carry_the_watermark_at_their_position(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    """Null before the first assertion; the least of both producers; nothing of what was asserted
    behind the last message that is read."""

    async def work() -> None:
        async with Client(server.service_url) as client:
            await client.subscribe(topic, "keeps", initial_position="Earliest")
            one = await client.create_producer(topic)
            two = await client.create_producer(topic)
            await one.send(b"0")
            await one.send(b"1")
            await one.watermark(10_000)
            await two.watermark(5_000)
            await two.send(b"2")
            await two.watermark(20_000)
            await one.send(b"3")

    asyncio.run(work())
    frame = stream(spark, server, topic, watermarks=True).select("value", "watermark")
    into_files(frame, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "sink")).collect()
    found = {bytes(row["value"]): row["watermark"] for row in rows}
    times = {
        value: None if at is None else int(at.astimezone(UTC).timestamp()) * 1000
        for value, at in found.items()
    }
    assert times == {b"0": None, b"1": 10_000, b"2": 10_000, b"3": 10_000}
    assert isinstance(found[b"1"], datetime)


def test_what_a_checkpoint_holds_of_watermarks_is_read_from_it(tmp_path: Path, topic: str) -> None:
    """The log behind it is not sealed, since its broker was killed: nothing else can have it."""

    async def record_of(store: MetadataStore) -> BundleRecord:
        item = await store.get(keys.bundle(await bundle_of_topic(store, TopicName.parse(topic))))
        assert item is not None
        return BundleRecord.decode(item.value)

    async def assertions(server: ServerProcess) -> None:
        """Until there is a checkpoint that was begun behind the assertion."""
        store = RemoteStore(server.http_url)
        async with Client(server.service_url) as client:
            producer = await client.create_producer(topic)
            await producer.send(b"0")
            await producer.watermark(7_000)
            before, until = (await record_of(store)).checkpoint, time.monotonic() + TIMEOUT_S
            # A chain that has reached into a finished file is shortened.
            while (await record_of(store)).checkpoint in (None, before):
                assert time.monotonic() < until
                await producer.send(bytes(100_000))
                await asyncio.to_thread(roll_log, server.http_url, TopicName.parse(topic))
                await asyncio.sleep(1.0)

    async def stored(directory: Path) -> Timeline:
        store = await EmbeddedStore.open(directory / "metadata", SystemClock())
        volume = PosixVolume(directory / "storage")
        try:
            bundle = await bundle_of_topic(store, TopicName.parse(topic))
            return (await timelines_of(store, volume, bundle, [topic]))[topic]
        finally:
            await volume.close()
            await store.close()

    with ServerProcess(tmp_path, environment={**SETTINGS, **OFTEN}) as server:
        asyncio.run(assertions(server))
        server.kill()
        timeline = asyncio.run(stored(server.directory / "data"))
    ((anchor, record),) = timeline.to_state().records
    assert isinstance(record, Assertion)
    assert record.event_ms == 7_000
    assert steps_of(timeline, (-1, -1), anchor.place).end_ms == 7_000


def test_windows_close_by_what_producers_asserted(server: ServerProcess) -> None:
    """examples/spark_event_time.py, as its reader runs it."""
    ran = run_example("spark_event_time.py", server)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the same as offline: True" in ran.stdout


# --- steps ----------------------------------------------------------------------------------------


def timeline(*said: tuple[int, Assertion | Idle]) -> Timeline:
    """Records behind entries of ledger 1."""
    found, ordinals = Timeline(), dict[int, int]()
    for entry, record in said:
        ordinal = ordinals.setdefault(entry, 0)
        ordinals[entry] += 1
        found.apply(Anchor(1, entry, ordinal), record)
    return found


def test_steps_are_the_least_of_active_producers_and_never_go_back() -> None:
    found = steps_of(
        timeline(
            (0, Assertion("a", 10)),
            (2, Assertion("b", 4)),
            (3, Assertion("b", 30)),
            (4, Assertion("a", 20)),
            (6, Idle("a")),
            (9, Assertion("b", 90)),
        ),
        (1, 1),
        (1, 8),
    )
    assert found == Steps(10, ((1, 4), (1, 6)), (20, 30))
    assert [found.at((1, entry)) for entry in (1, 3, 4, 5, 6, 8)] == [10, 10, 20, 20, 30, 30]


def test_partitions_together_have_the_least_of_all_at_their_ends() -> None:
    parts = {
        "one": Steps(1, ((1, 5), (1, 7)), (10, 40)),
        "two": Steps(3, ((2, 0),), (20,)),
    }
    assert together(parts) == {
        "one": Steps(1, ((1, 5), (1, 7)), (10, 20)),
        "two": Steps(3, ((2, 0),), (20,)),
    }
    assert together({**parts, "three": Steps()})["one"] == Steps()
