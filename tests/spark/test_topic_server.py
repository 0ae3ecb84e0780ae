"""The data source `magnetar` beside a real standalone server: transactions, partitions, what only
the active log file has, and writing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dev.server_process import ServerProcess
from dev.testbed.rest import Admin
from magnetar.client import EARLIEST, Client
from magnetar_jobs.topic_writer import WRITE_OPTIONS, WriteOptions
from tests.spark.reading import DOCUMENT, SETTINGS, given, load, publish, run_example, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]

TIMEOUT_S = 240.0


def test_everything_acknowledged_before_the_query_is_read(
    spark: SparkSession, server: ServerProcess, topic: str
) -> None:
    """It is in the active log file only, which is sealed for the query; what comes later is not
    read by the same DataFrame."""
    values = [b"%03d" % number for number in range(200)]
    asyncio.run(publish(server, topic, values))
    sealed = load(spark, given(server, topic, roll=False))
    frame = load(spark, given(server, topic))
    assert values_of(frame) == values
    asyncio.run(publish(server, topic, [b"later"]))
    assert values_of(frame) == values
    assert values_of(load(spark, given(server, topic))) == [*values, b"later"]
    assert set(values_of(sealed)) <= {*values, b"later"}


def test_what_a_dead_broker_has_acknowledged_is_not_passed_over(
    spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    """Its log has no end yet: the query fails instead of missing messages, and has all of them once
    a broker is there."""
    with ServerProcess(tmp_path, environment=SETTINGS) as server:
        values = [b"%d" % number for number in range(9)]
        asyncio.run(publish(server, topic, values))
        server.kill()
        alone = given(server, topic, store=f"embedded://{server.directory}/data/metadata")
        del alone["brokerUrl"]
        with pytest.raises(Exception, match=r"no live broker|is the broker reachable"):
            load(spark, alone).collect()
        assert load(spark, {**alone, "roll": "false"}).count() == 0
        server.start()
        assert values_of(load(spark, given(server, topic))) == values


def test_transactions_count_once_they_are_committed(
    spark: SparkSession, server: ServerProcess, topic: str
) -> None:
    async def work() -> None:
        async with Client(server.service_url) as client:
            await client.subscribe(topic, "keeps", initial_position="Earliest")
            producer = await client.create_producer(topic)
            await producer.send(b"plain")
            async with client.transaction() as txn:
                await producer.send(b"committed", txn=txn)
            gone = client.transaction()
            await gone.begin()
            await producer.send(b"aborted", txn=gone)
            await gone.abort()
            opened = client.transaction(timeout_s=TIMEOUT_S)
            await opened.begin()
            await producer.send(b"open", txn=opened)
            await producer.send(b"plain again")

    asyncio.run(work())
    found = values_of(load(spark, given(server, topic)))
    assert found == [b"committed", b"plain", b"plain again"]


def test_partitions_and_namespaces_are_read_together(
    spark: SparkSession, server: ServerProcess
) -> None:
    async def work() -> None:
        async with Client(server.service_url) as client:
            for topic in ("parted", "plain"):
                name = f"persistent://public/spark-all/{topic}"
                await client.subscribe(name, "keeps", initial_position="Earliest")
                producer = await client.create_producer(name)
                for number in range(20):
                    await producer.send(
                        b"%s %02d" % (topic.encode(), number),
                        key=f"k{number}",
                        properties={"number": str(number)},
                    )

    admin = Admin(server)
    admin.call("PUT", "namespaces/public/spark-all")
    admin.call("PUT", "persistent/public/spark-all/parted/partitions", 3)
    asyncio.run(work())
    options = given(server, "", namespace="public/spark-all")
    del options["topic"]
    rows = load(spark, options).collect()
    assert len(rows) == 40
    assert {row["partition"] for row in rows if row["topic"].endswith("/parted")} == {0, 1, 2}
    assert {row["partition"] for row in rows if row["topic"].endswith("/plain")} == {None}
    for row in rows:
        number = bytes(row["value"])[-2:].decode()
        assert row["properties"] == {"number": str(int(number))}
        assert bytes(row["key"]).decode() == f"k{int(number)}"
    both = load(spark, given(server, "public/spark-all/plain,public/spark-all/parted"))
    assert both.count() == 40
    with pytest.raises(Exception, match="JSON by partition"):
        load(spark, given(server, "public/spark-all/parted", startingPosition="1:1")).collect()


def test_a_namespace_without_topics_is_empty_and_one_that_is_missing_an_error(
    spark: SparkSession, server: ServerProcess
) -> None:
    Admin(server).call("PUT", "namespaces/public/spark-none")
    options = given(server, "", namespace="public/spark-none")
    del options["topic"]
    assert load(spark, options).count() == 0
    with pytest.raises(Exception, match="namespace public/spark-nowhere does not exist"):
        load(spark, {**options, "namespace": "public/spark-nowhere"}).count()


def test_the_quickstart_shows_what_it_says(server: ServerProcess) -> None:
    """examples/spark_quickstart.py, as its reader runs it."""
    ran = run_example("spark_quickstart.py", server)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "customer-3|    40| 1020" in ran.stdout, ran.stdout
    assert "20 of the first 100 orders are of customer-3" in ran.stdout
    assert "200 orders in files\n250 orders in files after 50 more" in ran.stdout
    assert "customer-3| 1020" in ran.stdout


# --- writing --------------------------------------------------------------------------------------


async def received(server: ServerProcess, topic: str) -> list[tuple[str | None, bytes, int | None]]:
    """What a reader of the topic gets."""
    async with Client(server.service_url) as client:
        reader = await client.create_reader(topic, EARLIEST)
        found = []
        while await reader.has_message_available():
            message = await reader.receive(timeout_s=TIMEOUT_S)
            found.append((message.key, message.value, message.event_time_ms))
        return sorted(found, key=lambda one: one[1])


def write(frame: DataFrame, server: ServerProcess, topic: str) -> None:
    writer = frame.write.format("magnetar").mode("append")
    writer.option("topic", topic).option("serviceUrl", server.service_url).save()


def test_a_data_frame_is_published_once(
    spark: SparkSession, server: ServerProcess, topic: str
) -> None:
    """In several tasks; keys, event times and properties come along."""
    asyncio.run(publish(server, topic, []))
    load(spark, given(server, topic))
    frame = spark.range(500, numPartitions=3).selectExpr(
        "concat('k', id % 7) AS key",
        "lpad(cast(id AS string), 3, '0') AS value",
        "map('id', cast(id AS string)) AS properties",
        "timestamp_millis(1000 + id) AS event_time",
    )
    write(frame, server, topic)
    found = asyncio.run(received(server, topic))
    wanted = [(f"k{number % 7}", b"%03d" % number, 1000 + number) for number in range(500)]
    assert found == wanted


def test_a_task_that_fails_at_first_publishes_once(
    spark: SparkSession, server: ServerProcess, topic: str
) -> None:
    """Its first attempt has published a part, which is aborted. With the write itself, when no
    attempt succeeds, nothing is seen."""
    asyncio.run(publish(server, topic, []))
    load(spark, given(server, topic))
    broken = spark.range(100, numPartitions=2).selectExpr(
        "cast(if(id < 99, id, raise_error('the last row')) AS string) AS value"
    )
    with pytest.raises(Exception, match="the last row"):
        write(broken, server, topic)
    assert asyncio.run(received(server, topic)) == []
    whole = spark.range(100, numPartitions=2).selectExpr("cast(id AS string) AS value")
    write(whole, server, topic)
    assert len(asyncio.run(received(server, topic))) == 100


def test_what_cannot_be_written_is_named(
    spark: SparkSession, server: ServerProcess, topic: str
) -> None:
    load(spark, given(server, topic))
    for select, reason in (
        ("id", "no column value"),
        ("id AS value", "cast it to binary or string"),
        ("'x' AS value, id AS colour", "'colour' is not of a message"),
    ):
        with pytest.raises(Exception, match=reason):
            write(spark.range(1).selectExpr(*select.split(", ")), server, topic)
    with pytest.raises(Exception, match="not shown"):
        WriteOptions.parse({"topic": "t", "serviceUrl": "pulsar://user:secret@host:1"})


def test_the_document_lists_the_options_of_the_writer() -> None:
    text = DOCUMENT.read_text()
    for option in WRITE_OPTIONS:
        default = f"`{option.default}`" if option.default else ""
        assert f"| `{option.name}` | {default} | {option.meaning} |" in text
