"""What storage says of topics that may be worth a compaction, over real segments."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from magnetar.storage.manifest import Compacted, SegmentReference, TopicSegments
from magnetar_jobs.stored_topics import stored_of, stored_topics, with_keys
from tests.spark.histories import History
from tests.spark.topics import TOPIC, StoredTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.java]


def test_keys_of_a_topic_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """At most as many as there are, of more messages; a topic whose files are gone is left as it
    is."""
    history = History(random.Random(3))
    history.grow(80, keys=5)
    with StoredTopic(tmp_path / "volume") as topic:
        topic.rewrite(topic.write(history.entries))
        [found] = topic.run(stored_topics(topic.store, topic.volume, [str(topic.bundle)]))
        assert (found.topic, found.behind_entries) == (str(TOPIC), len(history.entries))
        assert found.behind_bytes == sum(len(entry.data) for entry in history.entries)
        assert not found.compacted

        def look() -> None:
            nonlocal found
            [found] = topic.run(
                with_keys(spark, topic.store, topic.volume, topic.directory, [found], 1)
            )

        look()
        assert 0 < found.keys <= 5 < found.sampled
        before = found
        for path in (topic.directory / "segments").rglob("*.seg"):
            path.unlink()
        for path in (topic.directory / "logs").rglob("*.log"):
            path.unlink()
        look()
        assert found == before


def test_a_view_parts_what_is_before_from_what_is_behind() -> None:
    def segment(first: int, last: int) -> SegmentReference:
        return SegmentReference("s", 100, last - first + 1, 1000, (1, first), (1, last))

    view = Compacted(1, (1, 15), (segment(3, 5),))
    level1 = (segment(0, 9), segment(10, 19), segment(20, 29))
    found = stored_of("t", TopicSegments(level1, view))
    assert (found.view_entries, found.before_entries) == (3, 15)
    assert (found.behind_entries, found.behind_bytes) == (15, 1500)
    assert found.compacted
