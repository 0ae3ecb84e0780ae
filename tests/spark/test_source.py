"""The data source shows exactly what is stored, from log files and segments alike, and skips
what filters exclude."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from magnetar.errors import InvalidRequest
from magnetar.wire.entries import parse_entry
from magnetar_jobs.inputs import Group, decode_plan, encode_plan
from magnetar_jobs.planning import plan_topic
from magnetar_jobs.source import SourceOptions, read_topic
from tests.spark.histories import Described, History
from tests.spark.topics import APPEND_MS, TOPIC, StoredTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]

COLUMNS = (
    "topic",
    "ledger",
    "entry",
    "publish_time",
    "event_time",
    "append_time",
    "key",
    "message_count",
    "payload",
)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    with StoredTopic(tmp_path / "volume") as stored:
        yield stored


def groups_of(topic: StoredTopic, group_bytes_max: int = 1 << 26) -> tuple[Group, ...]:
    return topic.run(
        plan_topic(topic.store, topic.volume, topic.bundle, TOPIC, group_bytes_max)
    ).groups


def expected(spark: SparkSession, entries: list[Described]) -> DataFrame:
    rows = []
    for described in entries:
        metadata = parse_entry(described.data).metadata
        key = metadata.partition_key.encode() if metadata.HasField("partition_key") else None
        count = max(1, metadata.num_messages_in_batch)
        times = (metadata.publish_time, metadata.event_time, APPEND_MS)
        rows.append(
            (str(TOPIC), described.ledger, described.entry, *times, key, count, described.data)
        )
    schema = (
        "topic string, ledger bigint, entry bigint, publish_time bigint, event_time bigint, "
        "append_time bigint, "
        "key binary, message_count int, payload binary"
    )
    return spark.createDataFrame(rows, schema)


def test_rows_equal_what_was_written_whatever_holds_them(
    spark: SparkSession, topic: StoredTopic
) -> None:
    history = History(random.Random(3))
    history.grow(40, keys=10)
    history.single("event", b"x", event_time=123)
    first = topic.write(history.entries[:20])
    topic.write(history.entries[20:], listed="chain")
    topic.rewrite(first)
    groups = groups_of(topic, group_bytes_max=1_000)
    assert len(groups) > 2
    assertDataFrameEqual(
        read_topic(spark, topic.directory, str(TOPIC), groups, columns=COLUMNS),
        expected(spark, history.entries),
    )


def test_the_place_of_an_entry_is_where_its_bytes_lie(
    spark: SparkSession, topic: StoredTopic
) -> None:
    history = History(random.Random(4))
    history.grow(30, keys=10)
    topic.rewrite(topic.write(history.entries[:15]))
    topic.write(history.entries[15:])
    columns = ("ledger", "entry", "object", "offset", "length")
    rows = read_topic(
        spark, topic.directory, str(TOPIC), groups_of(topic), columns=columns
    ).collect()
    stored = {(described.ledger, described.entry): described.data for described in history.entries}
    assert len(rows) == len(stored)
    for row in rows:
        data = topic.run(topic.volume.read(row["object"], row["offset"], row["length"]))
        assert data == stored[row["ledger"], row["entry"]]


def test_a_filter_on_the_ledger_leaves_other_files_alone(
    spark: SparkSession, topic: StoredTopic
) -> None:
    """The excluded file is gone: had the source touched it, the query would fail."""
    history = History(random.Random(5))
    history.single("a", b"1")
    history.roll()
    history.single("b", b"2")
    old = topic.write(history.entries[:1])
    topic.write(history.entries[1:])
    groups = groups_of(topic)
    topic.run(topic.volume.remove(f"logs/{old}/00000000.log"))
    topic.run(topic.volume.remove(f"logs/{old}/00000000.index"))
    frame = read_topic(spark, topic.directory, str(TOPIC), groups, columns=COLUMNS, pushdown=True)
    assertDataFrameEqual(
        frame.where(F.col("ledger") >= history.entries[1].ledger),
        expected(spark, history.entries[1:]),
    )
    with pytest.raises(Exception, match="No such file"):
        read_topic(spark, topic.directory, str(TOPIC), groups, columns=COLUMNS).collect()


def test_a_query_does_not_inherit_the_filters_of_an_earlier_one(
    spark: SparkSession, topic: StoredTopic
) -> None:
    """PySpark 4.3 keeps pushed filters with the relation: with push-down on, the second query
    would miss a row."""
    history = History(random.Random(8))
    history.single("a", b"1")
    history.roll()
    history.single("b", b"2")
    topic.write(history.entries)
    frame = read_topic(spark, topic.directory, str(TOPIC), groups_of(topic), columns=COLUMNS)
    assert frame.where(F.col("ledger") > history.entries[0].ledger).count() == 1
    assertDataFrameEqual(frame, expected(spark, history.entries))


def test_filters_on_times_and_entries_return_what_spark_itself_would(
    spark: SparkSession, topic: StoredTopic
) -> None:
    history = History(random.Random(6))
    for number in range(30):
        history.single(f"k{number}", b"v", event_time=1_000 + number)
    topic.rewrite(topic.write(history.entries[:20]))
    topic.write(history.entries[20:])
    frame = read_topic(
        spark, topic.directory, str(TOPIC), groups_of(topic), columns=COLUMNS, pushdown=True
    )
    wanted = frame.where(
        (F.col("event_time") > 1_004)
        & (F.col("event_time") <= 1_024)
        & F.col("entry").between(7, 26)
    )
    assertDataFrameEqual(wanted, expected(spark, history.entries[7:25]))


def test_plans_survive_their_travel(topic: StoredTopic) -> None:
    history = History(random.Random(7))
    history.grow(30, keys=10)
    topic.rewrite(topic.write(history.entries[:15]))
    topic.write(history.entries[15:])
    groups = groups_of(topic, group_bytes_max=500)
    assert decode_plan(encode_plan(groups)) == groups


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "volume"),
        ({"volume": "/v", "topic": "t", "plan": "[]", "view": "rows"}, "view 'rows'"),
        ({"volume": "/v", "topic": "t", "plan": "[]", "columns": "ledger,colour"}, "colour"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        SourceOptions.parse(options)
