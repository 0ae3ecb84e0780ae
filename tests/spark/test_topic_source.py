"""The data source `magnetar` shows every message once, wherever it is stored, and reads no more
than it must."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, LessThan

from magnetar.errors import InvalidRequest, LimitExceeded
from magnetar.wire.entries import parse_entry
from magnetar_jobs.files import VolumeFiles
from magnetar_jobs.topic_options import READ_OPTIONS, STREAM_OPTIONS, ReadOptions
from magnetar_jobs.topic_source import FilteringTopicReader, TopicReader
from tests.spark.histories import History, reference
from tests.spark.reading import DOCUMENT, load, messages_in, options_of, released, rows_of
from tests.spark.topics import TOPIC
from tests.support.durable_topics import DurableTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[DurableTopic]:
    with DurableTopic(tmp_path / "volume") as stored:
        yield stored


def grown(seed: int, count: int = 60) -> History:
    history = History(random.Random(seed))
    history.grow(count, keys=10)
    return history


@pytest.mark.parametrize("seed", [21, 22, 23])
def test_every_message_comes_out_once_whatever_holds_it(
    spark: SparkSession, topic: DurableTopic, seed: int
) -> None:
    """Level-1 segments, log files of the manifest and of the chain; tasks so small that batches
    and chunks of one message fall into several."""
    history = grown(seed)
    third = len(history.entries) // 3
    first = topic.write(history.entries[:third])
    topic.write(history.entries[third : 2 * third])
    topic.write(history.entries[2 * third :], listed="chain")
    topic.rewrite(first)
    wanted = messages_in(history.entries)
    with released(topic):
        whole = load(spark, options_of(topic))
        assert rows_of(whole) == wanted
        small = load(spark, options_of(topic, bytesPerTask=1024))
        assert small.rdd.getNumPartitions() > 3
        assert rows_of(small) == wanted


def test_a_message_carries_what_its_producer_gave_it(
    spark: SparkSession, topic: DurableTopic
) -> None:
    history = History(random.Random(1))
    described = history.single("k", b"v", event_time=5_000)
    history.single(None, b"without")
    topic.write(history.entries)
    with released(topic):
        first, second = load(spark, options_of(topic)).orderBy("ledger", "entry").collect()
    metadata = parse_entry(described.data).metadata
    assert (first["topic"], first["partition"]) == (str(TOPIC), None)
    assert (bytes(first["key"]), bytes(first["value"])) == (b"k", b"v")
    assert first["producer_name"] == "producer"
    assert first["sequence_id"] == metadata.sequence_id
    assert first["publish_time"].astimezone(UTC) == at(metadata.publish_time)
    assert first["event_time"].astimezone(UTC) == at(5_000)
    assert (second["key"], second["event_time"], second["properties"]) == (None, None, {})


def test_entries_are_shown_as_they_are_stored(spark: SparkSession, topic: DurableTopic) -> None:
    history = grown(31)
    topic.rewrite(topic.write(history.entries[:30]))
    topic.write(history.entries[30:])
    with released(topic):
        rows = load(spark, options_of(topic, rows="entries")).collect()
    found = {(row["ledger"], row["entry"]): bytes(row["payload"]) for row in rows}
    assert len(rows) == len(found)
    assert found == {(one.ledger, one.entry): one.data for one in history.entries}


def test_positions_and_times_bound_what_is_read(spark: SparkSession, topic: DurableTopic) -> None:
    """Both positions are included; of the times the first one."""
    history = History(random.Random(2))
    for number in range(30):
        history.single(f"k{number}", b"v")
    topic.rewrite(topic.write(history.entries[:12]))
    topic.write(history.entries[12:])
    entries = history.entries
    ledger = entries[0].ledger
    first, last = entries[5], entries[20]
    with released(topic):
        between = options_of(
            topic,
            startingPosition=f"{ledger}:{first.entry}",
            endingPosition=f"{ledger}:{last.entry}",
        )
        assert rows_of(load(spark, between)) == messages_in(entries[5:21])
        named = f'{{"{TOPIC}": "{ledger}:{last.entry}"}}'
        assert rows_of(load(spark, options_of(topic, startingPosition=named))) == messages_in(
            entries[20:]
        )
        times = options_of(
            topic,
            startingTime=at(first.publish_time).isoformat(),
            endingTime=last.publish_time,
        )
        assert rows_of(load(spark, times)) == messages_in(entries[5:20])
        raw = load(spark, {**times, "rows": "entries"})
        assert sorted(row["entry"] for row in raw.collect()) == [one.entry for one in entries[5:20]]
        assert load(spark, options_of(topic, startingPosition="latest")).count() == 0


def test_a_compacted_view_is_read_with_what_came_behind_it(
    spark: SparkSession, topic: DurableTopic
) -> None:
    history = grown(41)
    topic.write(history.entries)
    topic.compact(spark)
    behind = len(history.entries)
    history.grow(10, keys=10)
    topic.write(history.entries[behind:])
    with released(topic):
        found = rows_of(load(spark, options_of(topic, readCompacted=True)))
        assert rows_of(load(spark, options_of(topic))) == messages_in(history.entries)
    kept = [(*place, key, payload) for place, key, payload in reference(history.entries[:behind])]
    assert found == sorted([*kept, *messages_in(history.entries[behind:])])


class Counted:
    """Bytes and files that a reader reads, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes, self.names = 0, set[str]()
        read, read_each = VolumeFiles.read, VolumeFiles.read_each

        def noted(name: str, data: Any) -> Any:
            self.bytes += len(data)
            self.names.add(name)
            return data

        def counted(files: VolumeFiles, name: str, *span: Any) -> bytes:
            return bytes(noted(name, read(files, name, *span)))

        def counted_each(
            files: VolumeFiles, name: str, ranges: Any
        ) -> Generator[memoryview, None, None]:
            with closing(read_each(files, name, ranges)) as found:
                for data in found:
                    yield noted(name, data)

        monkeypatch.setattr(VolumeFiles, "read", counted)
        monkeypatch.setattr(VolumeFiles, "read_each", counted_each)

    def rows(self, given: dict[str, str], filters: list[Filter]) -> tuple[int, int, int]:
        """(rows, bytes, files) of a query with these filters, which a query would evaluate
        again."""
        self.bytes, self.names = 0, set()
        options = ReadOptions.parse(given)
        reader: TopicReader = TopicReader(options)
        if filters:
            reader = FilteringTopicReader(options)
            assert list(reader.pushFilters(filters)) == filters
        rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
        return rows, self.bytes, len(self.names)


def test_filters_on_positions_keep_files_closed(
    topic: DurableTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(random.Random(3))
    for _ in range(6):
        for number in range(50):
            history.single(f"k{number}", history.chance.randbytes(100))
        history.roll()
    for part in range(6):
        topic.write(history.entries[50 * part : 50 * part + 50])
    counted = Counted(monkeypatch)
    with released(topic):
        given = options_of(topic)
        everything = counted.rows(given, [])
        wanted = history.entries[260].ledger
        ledger = counted.rows(given, [EqualTo(("ledger",), wanted)])
    assert everything[0] == 300
    assert ledger[0] == 50
    assert ledger[1] < everything[1] / 4
    assert ledger[2] == 2, "one log file and its index"


def test_filters_on_times_and_keys_use_footers_of_a_compacted_view(
    spark: SparkSession, topic: DurableTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of a segment have bounds of their times; rows have keys beside their payloads."""
    history = History(random.Random(4))
    for number in range(3_000):
        history.single(f"k{number}", history.chance.randbytes(700), event_time=1_000 + number)
    topic.write(history.entries)
    topic.compact(spark)
    counted = Counted(monkeypatch)
    with released(topic):
        given = options_of(topic, readCompacted=True)
        everything = counted.rows(given, [])
        published = at(history.entries[100].publish_time)
        for condition in (
            LessThan(("event_time",), at(1_100)),
            LessThan(("publish_time",), published),
            GreaterThanOrEqual(("event_time",), at(3_990)),
        ):
            rows, size, _ = counted.rows(given, [condition])
            assert 0 < rows <= 100
            assert size < everything[1] * 0.6, condition
        assert counted.rows(given, [EqualTo(("key",), b"k17")])[0] == 1
    assert everything[0] == 3_000


def test_filters_are_pushed_down_by_spark_itself(spark: SparkSession, topic: DurableTopic) -> None:
    """The excluded file is gone: a query that touched it would fail. Times and keys arrive as the
    source understands them."""
    history = History(random.Random(5))
    history.single("a", b"1", event_time=1_000)
    history.roll()
    history.single("b", b"2", event_time=2_000)
    history.single("c", b"3", event_time=3_000)
    old = topic.write(history.entries[:1])
    topic.write(history.entries[1:])
    wanted = messages_in(history.entries[1:])
    topic.run(topic.volume.remove(f"logs/{old}/00000000.log"))
    with released(topic):
        pushed = options_of(topic, pushdown=True)
        on_ledger = F.col("ledger") > history.entries[0].ledger
        assert rows_of(load(spark, pushed).where(on_ledger)) == wanted
        with pytest.raises(Exception, match="No such file"):
            load(spark, options_of(topic)).where(on_ledger).collect()
        late = on_ledger & (F.col("event_time") >= F.lit(at(3_000)))
        assert rows_of(load(spark, pushed).where(late)) == wanted[1:]
        keyed = on_ledger & (F.col("key") == F.lit(b"b"))
        assert rows_of(load(spark, pushed).where(keyed)) == wanted[:1]


def test_without_push_down_a_frame_serves_several_queries(
    spark: SparkSession, topic: DurableTopic
) -> None:
    """PySpark 4.3 keeps the filters of a query with its DataFrame; so the option is off unless
    set."""
    history = History(random.Random(6))
    for number in range(4):
        history.single(f"k{number}", b"v")
    topic.write(history.entries)
    with released(topic):
        frame = load(spark, options_of(topic))
        assert frame.where(F.col("entry") == 1).count() == 1
        assert frame.count() == 4


def test_what_cannot_be_opened_is_named_or_left_out(
    spark: SparkSession, topic: DurableTopic
) -> None:
    history = History(random.Random(7))
    history.single("a", b"1")
    history.garbage()
    history.sealed_batch("k", 2, b"secret")
    topic.write(history.entries)
    with released(topic):
        with pytest.raises(Exception, match="undecodable=skip"):
            load(spark, options_of(topic)).collect()
        left = load(spark, options_of(topic, undecodable="skip"))
        assert rows_of(left) == messages_in(history.entries[:1])
        assert load(spark, options_of(topic, rows="entries")).count() == 3


def values_read(reader: TopicReader) -> list[bytes]:
    """What all tasks of a reader read, without Spark."""
    return [
        value
        for part in reader.partitions()
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]


def test_a_message_in_chunks_without_its_beginning_is_left_out(topic: DurableTopic) -> None:
    """Retention has dropped it, or its producer died; a beginning that lies further back than a
    task reads is an error, never a message less."""
    history = History(random.Random(8))
    history.chunks("k", [b"a" * 10, b"b" * 10], only=[1])
    parts = [b"%d" % number * 800 for number in range(6)]
    history.chunks("whole", parts)
    topic.write(history.entries, run_entries_max=1)
    with released(topic):
        reader = TopicReader(ReadOptions.parse(options_of(topic)))
        assert values_read(reader) == [b"".join(parts)]
        narrow = TopicReader(ReadOptions.parse(options_of(topic, bytesPerTask=1024)))
        with pytest.raises(LimitExceeded, match="bytesPerTask"):
            [list(narrow.read(part)) for part in narrow.partitions()]


def test_a_filter_leaves_a_message_in_chunks_whole(topic: DurableTopic) -> None:
    """Its other chunks do not match, and are passed over until they are missed; so are those of
    another message between them."""
    history = History(random.Random(9))
    one = [b"%d" % number * 50 for number in range(3)]
    two = [b"%d" % number * 60 for number in range(2)]
    history.chunk("one", "a", one, 0)
    history.chunk("two", "b", two, 0)
    history.chunk("one", "a", one, 1)
    last = [history.chunk("one", "a", one, 2), history.chunk("two", "b", two, 1)]
    topic.write(history.entries, run_entries_max=1)
    with released(topic):
        for described, parts in zip(last, (one, two), strict=True):
            reader = FilteringTopicReader(ReadOptions.parse(options_of(topic)))
            reader.pushFilters([EqualTo(("entry",), described.entry)])
            assert values_read(reader) == [b"".join(parts)]


def test_columns_are_those_that_are_asked_for(spark: SparkSession, topic: DurableTopic) -> None:
    history = grown(51, count=20)
    topic.write(history.entries)
    with released(topic):
        frame = load(spark, options_of(topic, columns="entry, key"))
        assert frame.columns == ["entry", "key"]
        assert frame.count() == len(messages_in(history.entries))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": ""}, "name topics, or a namespace"),
        ({"topic": "non-persistent://a/b/c"}, "persistent"),
        ({"topics": "t"}, "'topics' is not known"),
        ({"volume": ""}, "volume"),
        ({"store": ""}, "store or brokerUrl"),
        ({"store": "etcd://user:secret@host"}, "holds no credentials"),
        ({"volume": "s3://key:secret@bucket"}, "holds no credentials"),
        ({"rows": "bytes"}, "rows is 'bytes'"),
        ({"startingPosition": "17"}, "ledger:entry"),
        ({"startingPosition": "{"}, "topic-partition-0"),
        ({"startingTime": "yesterday"}, "startingTime"),
        ({"bytesPerTask": "1"}, "bytesPerTask"),
        ({"pushdown": "yes"}, "true or false"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    given = {"topic": "t", "volume": "/v", "store": "etcd://h:1"} | options
    with pytest.raises(InvalidRequest, match=message) as raised:
        ReadOptions.parse(given)
    assert "secret" not in str(raised.value)


def test_the_document_lists_the_options_of_the_code() -> None:
    text = DOCUMENT.read_text()
    for option in (*READ_OPTIONS, *STREAM_OPTIONS):
        default = f"`{option.default}`" if option.default else ""
        assert f"| `{option.name}` | {default} | {option.meaning} |" in text
