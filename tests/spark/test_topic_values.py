"""Values as columns of their topic's schema, beside a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dev.server_process import ServerProcess
from dev.testbed.foreign import Driver
from dev.testbed.rest import Admin
from magnetar.client import AvroSchema, Client, JsonSchema
from magnetar_jobs.topic_source import MagnetarDataSource
from tests.spark.reading import given, into_files, load, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]


@dataclass
class Reading:
    """The first version of what sensors say."""

    sensor: str
    celsius: float


@dataclass
class LaterReading:
    """The second."""

    sensor: str
    celsius: float
    room: str = "unknown"


LaterReading.__name__ = "Reading"


async def send(server: ServerProcess, topic: str, schema: Any, values: Iterable[Any]) -> None:
    async with Client(server.service_url) as client:
        await client.subscribe(topic, "keeps", initial_position="Earliest")
        producer = await client.create_producer(topic, schema=schema)
        for value in values:
            await producer.send(value)


@pytest.mark.parametrize("of", [AvroSchema, JsonSchema])
@pytest.mark.parametrize("pushdown", [False, True])
def test_values_of_all_versions_are_columns_of_the_latest(
    spark: SparkSession, server: ServerProcess, topic: str, of: type[Any], pushdown: bool
) -> None:
    """Older messages have the defaults of fields that they lack. Columns can be chosen, and each
    message says which version it has."""
    first = [Reading("a", 20.5), Reading("b", 21.0)]
    asyncio.run(send(server, topic, of(Reading), first))
    asyncio.run(send(server, topic, of(LaterReading), [LaterReading("a", 22.0, "hall")]))
    frame = load(spark, given(server, topic, value="schema", pushdown=pushdown))
    assert dict(frame.dtypes)["value"] == "struct<sensor:string,celsius:double,room:string>"
    found = frame.select("schema_version", "value.*").orderBy("celsius").collect()
    assert [tuple(row) for row in found] == [
        (0, "a", 20.5, "unknown"),
        (0, "b", 21.0, "unknown"),
        (1, "a", 22.0, "hall"),
    ]
    mean = frame.groupBy("value.sensor").avg("value.celsius").orderBy("sensor").collect()
    assert [tuple(row) for row in mean] == [("a", 21.25), ("b", 21.0)]
    alone = load(spark, given(server, topic, value="schema", columns="value"))
    assert (alone.columns, alone.count()) == (["value"], 3)
    others = load(spark, given(server, topic, value="schema", columns="topic,sequence_id"))
    assert (others.columns, others.count()) == (["topic", "sequence_id"], 3)


def test_a_query_that_was_begun_keeps_its_columns(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path
) -> None:
    """Also a stream, whose next run meets messages of a later version."""
    asyncio.run(send(server, topic, AvroSchema(Reading), [Reading("a", 1.0)]))
    spark.dataSource.register(MagnetarDataSource)
    options = given(server, topic, value="schema", rollInterval=0)
    frame = spark.readStream.format("magnetar").options(**options).load().select("value.*")
    batch = load(spark, given(server, topic, value="schema"))

    into_files(frame, tmp_path)
    asyncio.run(send(server, topic, AvroSchema(LaterReading), [LaterReading("b", 2.0, "hall")]))
    into_files(frame, tmp_path)
    assert [row["value"].asDict() for row in batch.orderBy("ledger", "entry").collect()] == [
        {"sensor": "a", "celsius": 1.0},
        {"sensor": "b", "celsius": 2.0},
    ]
    found = spark.read.parquet(str(tmp_path / "sink")).orderBy("sensor").collect()
    assert [tuple(row) for row in found] == [("a", 1.0), ("b", 2.0)]


def test_topics_of_one_query_have_one_schema(
    spark: SparkSession, server: ServerProcess, topic: str
) -> None:
    for number, kind in enumerate((Reading, Reading, LaterReading)):
        asyncio.run(send(server, f"{topic}-{number}", AvroSchema(kind), [kind("a", 1.0)]))
    alike = load(spark, given(server, f"{topic}-0,{topic}-1", value="schema"))
    assert alike.select("value.celsius").count() == 2
    with pytest.raises(Exception, match="read topics of other schemas by queries of their own"):
        load(spark, given(server, f"{topic}-0,{topic}-2", value="schema"))


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_of_javas_client_are_columns(
    spark: SparkSession, server: ServerProcess, topic: str, tmp_path: Path, encoding: str
) -> None:
    """A key and a record, together in the payload or the key in the message's, in batches and
    alone; a pair without a value keeps its key."""
    kind = f"KEY_VALUE_{encoding}"
    asyncio.run(publish(server, topic, []))
    with closing(Driver("java", tmp_path)) as driver:
        java = driver.client(server.service_url)
        for batching in (False, True):
            java.publish_typed(topic, kind, batching=batching)
    frame = load(spark, given(server, topic, value="schema"))
    record = "struct<age:bigint,name:string,tags:array<string>>"
    assert dict(frame.dtypes)["value"] == f"struct<key:string,value:{record}>"
    found = frame.orderBy("ledger", "entry", "batch_index").select("value.*").collect()
    first, second = ("k", (41, "Åse", ["a", ""])), ("ü", (-1, "", []))
    assert [(row.key, row.value and tuple(row.value)) for row in found] == [
        first,
        second,
        ("gone", None),
    ] * 2
    alone = load(spark, given(server, topic, value="schema", columns="value"))
    assert alone.groupBy("value.key").count().count() == 3


def test_what_has_no_columns_is_named(
    spark: SparkSession, server: ServerProcess, topic: str
) -> None:
    asyncio.run(publish(server, topic, [b"x"]))
    with pytest.raises(Exception, match=r"has no schema; read with option value=bytes"):
        load(spark, given(server, topic, value="schema"))
    with pytest.raises(Exception, match="option value is 'schema'; use bytes"):
        load(spark, given(server, topic, value="schema", rows="entries"))
    Admin(server).call("PUT", "namespaces/public/spark-untyped")
    nobody = {**given(server, topic, value="schema"), "namespace": "public/spark-untyped"}
    del nobody["topic"]
    with pytest.raises(Exception, match="has no topics whose schema"):
        load(spark, nobody)


def test_primitive_schemas_are_columns(
    spark: SparkSession, server: ServerProcess, topic: str
) -> None:
    """As an administrator registers one; a payload that does not fit is named, or left out."""
    admin = Admin(server)
    admin.call("PUT", topic.replace("://", "/"))
    admin.call(
        "POST",
        f"schemas/{topic.removeprefix('persistent://')}/schema",
        {"type": "INT64", "schema": "", "properties": {}},
    )
    values = [(1 << 40).to_bytes(8, "big"), b"short", (-1).to_bytes(8, "big", signed=True)]
    asyncio.run(publish(server, topic, values))
    with pytest.raises(Exception, match=r"cannot be read with schema version none \(error\)"):
        load(spark, given(server, topic, value="schema")).collect()
    frame = load(spark, given(server, topic, value="schema", undecodable="skip"))
    assert sorted(row["value"] for row in frame.collect()) == [-1, 1 << 40]
    assert frame.where(frame.publish_time < datetime.now(UTC)).count() == 2
