"""Which messages survive, on hand-made rows: DataFrame in, DataFrame out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.testing import assertDataFrameEqual

from magnetar.compaction.messages import Kind
from magnetar.compaction.orders import order_of
from magnetar_jobs.phases import (
    MESSAGE_SCHEMA,
    SURVIVOR_SCHEMA,
    in_writing_order,
    newest_per_key,
    newest_with_chunks,
    survivors,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]

Row = tuple[bytes | None, int, int, bytes | None, int | None, int | None]


def keyed(
    key: str | None,
    row: int,
    *,
    live: bool = True,
    group: int = 0,
    index: int = 0,
    kind: Kind = Kind.KEYED,
) -> Row:
    return (
        key.encode() if key is not None else None,
        order_of(group, row, index, live),
        int(kind),
        None,
        None,
        None,
    )


def chunk(key: str | None, row: int, message: str, number: int, count: int, group: int = 0) -> Row:
    name = key.encode() if key is not None else None
    return (name, order_of(group, row, 0, True), int(Kind.CHUNK), message.encode(), number, count)


def messages(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, MESSAGE_SCHEMA)


def expected(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame([(row[1] >> 46, row[1]) for row in rows], SURVIVOR_SCHEMA)


def test_the_newest_of_each_key_survives_and_a_deletion_takes_its_key_along(
    spark: SparkSession,
) -> None:
    old, new, gone, tombstone = (
        keyed("a", 1),
        keyed("a", 2, group=1),
        keyed("b", 3),
        keyed("b", 4, live=False),
    )
    unkeyed = keyed(None, 5)
    found = survivors(newest_per_key(messages(spark, [new, old, tombstone, gone, unkeyed])), None)
    assertDataFrameEqual(found, expected(spark, [new]))


def test_within_a_batch_the_later_index_wins(spark: SparkSession) -> None:
    rows = [keyed("a", 1, index=0), keyed("a", 1, index=1, live=False), keyed("a", 1, index=2)]
    assertDataFrameEqual(
        survivors(newest_per_key(messages(spark, rows)), None), expected(spark, rows[2:])
    )


def test_keyless_messages_stay_only_on_request_each_on_its_own(spark: SparkSession) -> None:
    rows = [keyed(None, 1), keyed(None, 2, live=False), keyed(None, 3)]
    newest = newest_per_key(messages(spark, rows), retain_keyless=True)
    assertDataFrameEqual(
        newest,
        spark.createDataFrame([(row[1], False) for row in rows], "order bigint, keyed boolean"),
    )
    assert newest_per_key(messages(spark, rows)).count() == 0


def test_a_marker_with_a_key_neither_survives_nor_removes(spark: SparkSession) -> None:
    rows = [keyed("a", 1), keyed("a", 2, kind=Kind.MARKER)]
    assertDataFrameEqual(
        survivors(newest_per_key(messages(spark, rows)), None), expected(spark, rows[:1])
    )


def test_opaque_entries_and_commit_markers_stay(spark: SparkSession) -> None:
    rows = [
        keyed("a", 1, kind=Kind.OPAQUE),
        keyed("a", 2, kind=Kind.OPAQUE),
        keyed(None, 3, kind=Kind.COMMIT),
    ]
    assertDataFrameEqual(
        survivors(newest_per_key(messages(spark, rows)), None), expected(spark, rows)
    )


def test_a_deletion_after_a_commit_marker_stays(spark: SparkSession) -> None:
    """The marker's messages may hold the key: without the deletion a reader would see it rise
    again."""
    before, commit, after = (
        keyed("a", 1, live=False),
        keyed(None, 2, kind=Kind.COMMIT),
        keyed("b", 3, live=False),
    )
    found = survivors(
        newest_per_key(messages(spark, [before, commit, after])), first_commit=commit[1]
    )
    assertDataFrameEqual(found, expected(spark, [commit, after]))


def test_a_chunked_message_wins_or_loses_as_a_whole(spark: SparkSession) -> None:
    old, won = keyed("a", 1), [chunk("a", 2, "m1", 0, 2), chunk("a", 4, "m1", 1, 2)]
    lost, newer = [chunk("b", 3, "m2", 0, 2), chunk("b", 5, "m2", 1, 2)], keyed("b", 6)
    found = survivors(newest_with_chunks(messages(spark, [old, *won, *lost, newer])), None)
    assertDataFrameEqual(found, expected(spark, [*won, newer]))


def test_chunks_whose_message_is_not_complete_stay_and_decide_nothing(spark: SparkSession) -> None:
    rows = [
        keyed("a", 1),
        chunk("a", 2, "m1", 0, 3),
        chunk("a", 3, "m1", 1, 3),
        chunk("a", 4, "m1", 1, 3),
    ]
    assertDataFrameEqual(
        survivors(newest_with_chunks(messages(spark, rows)), None), expected(spark, rows)
    )


def test_without_chunks_both_plans_agree(spark: SparkSession) -> None:
    rows = [keyed(f"k{row % 7}", row, live=row % 5 != 0) for row in range(60)]
    source = messages(spark, rows)
    assertDataFrameEqual(newest_per_key(source), newest_with_chunks(source))


def test_writing_order_deals_groups_to_tasks_and_sorts_each(spark: SparkSession) -> None:
    rows = [keyed(f"k{row}", row, group=row % 3) for row in range(9, -1, -1)]
    kept = survivors(newest_per_key(messages(spark, rows)), None)
    tasks = spark.createDataFrame([(0, 0), (1, 1), (2, 1)], "group int, task int")
    parts = in_writing_order(kept, tasks, 2).rdd.glom().collect()
    assert [{row["group"] for row in part} for part in parts] == [{0}, {1, 2}]
    assert all(
        [row["order"] for row in part] == sorted(row["order"] for row in part) for part in parts
    )
