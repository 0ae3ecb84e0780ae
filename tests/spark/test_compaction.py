"""Compaction end to end: real log files and segments in, a committed view out, against the
reference compactor."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from magnetar.compaction.intents import Conflict
from magnetar.errors import CorruptData
from magnetar.metadata import keys
from magnetar.storage.segments.format import HAS_REMOVED, IS_DECIDED
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import entry_checksum_ok
from magnetar_jobs.execution import CompactionOptions, Written, compact_plan
from magnetar_jobs.planning import plan_topic
from tests.spark.histories import Described, History, Sent, reference, visible
from tests.spark.topics import TOPIC, StoredTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[StoredTopic]:
    with StoredTopic(tmp_path / "volume") as stored:
        yield stored


@pytest.fixture
def history() -> History:
    return History(random.Random(5))


def position(described: Described) -> tuple[int, int]:
    return described.ledger, described.entry


def contents(topic: StoredTopic) -> list[tuple[str | None, bytes]]:
    """(key, payload) of what a reader of the compacted view gets."""
    return [(key, payload) for _, key, payload in visible(topic.view())]


@pytest.mark.parametrize("seed", [1, 2])
def test_rounds_of_random_histories_equal_the_reference(
    spark: SparkSession, topic: StoredTopic, seed: int
) -> None:
    """Batches in every compression, tombstones, keyless messages, chunks, markers, ledgers;
    known from manifest or chain."""
    chance = random.Random(seed)
    history = History(chance)
    retain = seed % 2 == 0
    for generation, listed in enumerate(
        ("manifest", "chain", "manifest")[: 3 if seed == 1 else 2], start=1
    ):
        start = len(history.entries)
        history.grow(60, keys=25)
        middle = (start + len(history.entries)) // 2
        older = topic.write(history.entries[start:middle])
        topic.write(history.entries[middle:], listed=listed)
        if chance.random() < 0.7:
            topic.rewrite(older)
        result = topic.compact(
            spark, CompactionOptions(retain_keyless=retain, segment_bytes_max=2_000)
        )
        view = topic.view()
        assert visible(view) == reference(history.entries, retain_keyless=retain)
        assert result.generation == generation
        compacted = topic.segments().compacted
        assert compacted is not None
        assert compacted.horizon == position(history.entries[-1])
        assert [row[:2] for row in view] == sorted(row[:2] for row in view)
        assert {row[:2] for row in view} <= {position(described) for described in history.entries}
        originals = {position(described): described.data for described in history.entries}
        changed = [
            row for row in topic.rows() if bytes(row.payload) != originals[row.ledger, row.entry]
        ]
        assert all(row.flags & HAS_REMOVED and entry_checksum_ok(row.payload) for row in changed)


def test_the_second_run_needs_no_original_that_the_first_has_seen(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    """#12429, #11211: input of run n+1 = output of run n + tail; retention may have taken the
    rest. Naive: reads originals only."""
    kept, gone = history.single("kept", b"1", event_time=77), history.single("gone", b"2")
    batch = history.batch([Sent("a", b"a1"), Sent("b", b"b1")], api.LZ4)
    topic.write(history.entries)
    topic.compact(spark)
    assert [row.event_time for row in topic.rows()] == [77, 0, 0]
    topic.trim_everything(position(batch))
    history.single("gone", b"")
    last = history.single("a", b"a2")
    topic.write(history.entries[-2:])
    topic.compact(spark)
    assert contents(topic) == [("kept", b"1"), ("b", b"b1"), ("a", b"a2")]
    rows = topic.rows()
    assert [(row.ledger, row.entry) for row in rows] == [
        position(kept),
        position(batch),
        position(last),
    ]
    assert (gone.ledger, gone.entry) not in {(row.ledger, row.entry) for row in rows}
    assert bytes(rows[0].payload) == kept.data
    assert rows[0].flags & IS_DECIDED
    assert rows[1].flags & HAS_REMOVED
    history.single("kept", b"3")
    topic.write(history.entries[-1:])
    topic.compact(spark)
    assert contents(topic) == [("b", b"b1"), ("a", b"a2"), ("kept", b"3")]


def test_the_end_is_fixed_before_phase_one_and_by_position(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    """#20988: what arrives concurrently is not dropped; #21718: a marker at the end neither blocks
    nor shortens the horizon."""
    history.single("a", b"1")
    marker = history.marker(10, key="a")
    topic.write(history.entries)
    compactor = topic.compactor(spark)
    plan = topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC))

    async def write_late(intent: str) -> Written:
        history.single("b", b"2")
        history.single("a", b"")
        await topic._write([history.entries[-2:]])
        return await compactor._write(plan, intent)

    topic.run(compactor.committer.commit(plan, write_late))
    compacted = topic.segments().compacted
    assert compacted is not None
    assert compacted.horizon == position(marker)
    assert contents(topic) == [("a", b"1")]
    topic.compact(spark)
    assert contents(topic) == [("b", b"2")]


def test_a_crash_before_the_commit_leaves_the_old_view_and_orphans(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    """#26486, #26665: nothing is served that is not committed; files without a commit hurt nobody;
    the next run succeeds.

    Several tasks write, each file once: Spark must find no reason to run the writer again.
    """
    history.single("a", b"1")
    topic.write(history.entries)
    topic.compact(spark)
    for key in ("a", "b", "c"):
        topic.write([history.single(key, b"2")])
    plan = topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC, group_bytes_max=1))
    before, files = topic.view(), set(topic.files())
    written = compact_plan(spark, topic.directory, plan, CompactionOptions(), "compact-crashed-0")
    orphans = set(topic.files()) - files
    assert len(written.segments) == 3
    assert {segment.object for segment in written.segments} == orphans
    assert all("compact-crashed-0" in name for name in orphans)
    assert topic.view() == before
    topic.compact(spark)
    assert contents(topic) == [("a", b"2"), ("b", b"2"), ("c", b"2")]
    assert not orphans & {segment.object for segment in topic.segments().compacted.segments}  # type: ignore[union-attr]


def test_of_two_compactions_one_wins_and_the_other_leaves_nothing(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    """#25118, #21745: a late commit cannot take the horizon back; its intent goes, then its
    files."""
    history.single("a", b"1")
    topic.write(history.entries)
    compactor = topic.compactor(spark)
    stale = topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC))
    history.single("a", b"2")
    topic.write(history.entries[-1:])
    topic.compact(spark)
    committed = topic.segments().compacted
    with pytest.raises(Conflict):
        topic.run(compactor.committer.commit(stale, lambda intent: compactor._write(stale, intent)))
    assert topic.segments().compacted == committed
    assert committed is not None
    assert set(topic.files()) == {segment.object for segment in committed.segments}
    assert topic.run(topic.store.range(keys.INTENTS)).items == ()


def test_a_collected_intent_means_no_commit(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    """The collector removed the intent of a driver it took for dead; the driver must not commit
    files that may be gone."""
    history.single("a", b"1")
    topic.write(history.entries)
    compactor = topic.compactor(spark)
    plan = topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC))

    async def write_and_lose_the_intent(intent: str) -> Written:
        written = await compactor._write(plan, intent)
        assert await topic.store.delete(keys.intent(intent))
        return written

    with pytest.raises(Conflict):
        topic.run(compactor.committer.commit(plan, write_and_lose_the_intent))
    assert topic.segments().compacted is None


def test_new_files_at_the_tail_are_no_conflict_but_a_deleted_topic_is(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    history.single("a", b"1")
    topic.write(history.entries)
    compactor = topic.compactor(spark)
    plan = topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC))

    async def write_and_delete_topic(intent: str) -> Written:
        written = await compactor._write(plan, intent)
        await topic.edit(
            lambda found: dataclasses.replace(found, compacted=None, trimmed=plan.horizon)
        )
        return written

    with pytest.raises(Conflict):
        topic.run(compactor.committer.commit(plan, write_and_delete_topic))
    assert topic.files() == []


def test_a_missing_view_fails_the_run_instead_of_falling_back(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    """#26631: keys that live only in the view would be lost silently."""
    history.single("a", b"1")
    topic.write(history.entries)
    topic.compact(spark)
    (lost,) = topic.files()
    topic.run(topic.volume.remove(lost))
    history.single("b", b"2")
    topic.write(history.entries[-1:])
    committed = topic.segments().compacted
    with pytest.raises(Exception, match=r"No such file|FileNotFound"):
        topic.compact(spark)
    assert topic.segments().compacted == committed


def test_nothing_new_changes_nothing(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    history.single("a", b"1")
    topic.write(history.entries)
    topic.compact(spark)
    committed = topic.manifest()
    assert topic.compact(spark).topics == 0
    assert topic.manifest() == committed


def test_a_topic_whose_last_key_is_deleted_has_an_empty_view(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    history.single("a", b"1")
    history.batch([Sent("a", b"")], api.ZSTD)
    topic.write(history.entries)
    result = topic.compact(spark)
    assert topic.view() == []
    assert (result.messages_in, result.keys, result.entries_out) == (2, 0, 0)
    assert topic.segments().compacted is not None


def test_transaction_markers_stay_and_deletions_after_them_too(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    """Redpanda #16295, #15672: a marker stands for messages kept elsewhere, whose keys nobody
    knows here."""
    history.single("a", b"1")
    commit = history.marker(21, key="a")
    tombstone = history.single("a", b"")
    topic.write(history.entries)
    topic.compact(spark)
    assert [row[:2] for row in topic.view()] == [position(commit), position(tombstone)]


def test_what_cannot_be_opened_is_kept_as_it_is(
    spark: SparkSession, topic: StoredTopic, history: History
) -> None:
    sealed, garbage = history.sealed_batch(None, 4, b"ciphertext"), history.garbage()
    history.sealed_batch("k", 4, b"old")
    newer = history.sealed_batch("k", 4, b"new")
    waiting = history.chunks("big", [b"1", b"2", b"3"], only=[0, 1])
    topic.write(history.entries)
    topic.compact(spark)
    assert topic.view() == [
        (*position(one), one.data) for one in (sealed, garbage, newer, *waiting)
    ]
    last = history.chunk("producer-1", "big", [b"1", b"2", b"3"], 2)
    topic.write([last])
    topic.compact(spark)
    assert topic.view() == [
        (*position(one), one.data) for one in (sealed, garbage, newer, *waiting, last)
    ]
    history.single("big", b"4")
    topic.write(history.entries[-1:])
    topic.compact(spark)
    assert [row[:2] for row in topic.view()] == [
        position(one) for one in (sealed, garbage, newer, history.entries[-1])
    ]


def test_a_file_that_is_listed_and_missing_stops_the_plan(
    topic: StoredTopic, history: History
) -> None:
    history.single("a", b"1")
    incarnation = topic.write(history.entries)
    for suffix in ("log", "index"):
        topic.run(topic.volume.remove(f"logs/{incarnation}/00000000.{suffix}"))
    with pytest.raises(CorruptData, match="listed"):
        topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC))


def test_an_index_that_its_writer_never_wrote_is_built_from_the_log(
    topic: StoredTopic, history: History
) -> None:
    history.grow(20, keys=5)
    incarnation = topic.write(history.entries)
    with_index = topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC))
    topic.run(topic.volume.remove(f"logs/{incarnation}/00000000.index"))
    assert topic.run(plan_topic(topic.store, topic.volume, topic.bundle, TOPIC)) == with_index
