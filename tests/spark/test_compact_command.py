"""The command as an operator's driver pod runs it, over an embedded store.

It makes and stops a Spark session of its own; this file runs before those that share one, which
then reuse its JVM.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.backends.embedded import EmbeddedStore
from magnetar.metadata.records import JobRunRecord
from magnetar_jobs import driver
from magnetar_jobs.compact import main
from magnetar_jobs.driver import FAILED, SUCCEEDED, UNUSABLE
from magnetar_jobs.progress import (
    COMMITTING,
    PLANNING,
    READING,
    STARTING,
    WRITING,
    RunProgress,
)
from tests.spark.histories import History, reference, visible
from tests.spark.topics import TOPIC
from tests.support.durable_topics import DurableTopic


def arguments(directory: Path, run: str, *extra: str) -> list[str]:
    return [
        *(
            "--topic",
            str(TOPIC),
            "--store",
            f"embedded://{directory / 'metadata'}",
            "--volume",
            str(directory / "volume"),
        ),
        *(
            "--job",
            "demo",
            "--run",
            run,
            "--master",
            "local[1]",
            "--executor-memory-mib",
            "512",
            "--no-roll",
            *extra,
        ),
    ]


def stored_record(directory: Path) -> JobRunRecord:
    async def read() -> JobRunRecord:
        store = await EmbeddedStore.open(directory / "metadata", SystemClock())
        item = await store.get(keys.job_run("demo", "1"))
        await store.close()
        assert item is not None
        return JobRunRecord.decode(item.value)

    return asyncio.run(read())


@pytest.mark.slow
@pytest.mark.java
def test_a_run_compacts_records_its_counts_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(random.Random(9))
    history.grow(40, keys=10)
    with DurableTopic(tmp_path / "volume") as topic:
        topic.write(history.entries)
        topic.run(topic.store.close())
        phases: list[str] = []
        enter = RunProgress.enter
        monkeypatch.setattr(
            RunProgress, "enter", lambda this, phase: (phases.append(phase), enter(this, phase))
        )
        assert main(arguments(tmp_path, "1")) == SUCCEEDED
        assert phases == [STARTING, PLANNING, READING, WRITING, COMMITTING]
        # Again: done before, so that neither Java nor Spark is needed.
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("JAVA_HOME", raising=False)
        assert main(arguments(tmp_path, "1")) == SUCCEEDED
        topic.run(topic.reopen())
        assert visible(topic.view()) == reference(history.entries)
        item = topic.run(topic.store.get(keys.job_run("demo", "1")))
        assert item is not None
        assert topic.run(topic.store.get(keys.job_progress("demo", "1"))) is None
        record = JobRunRecord.decode(item.value)
        assert (record.kind, record.state, record.result["generation"]) == (
            "compaction",
            "succeeded",
            1,
        )
        assert record.result["entries_out"] == len(topic.view())
        assert record.result["keys"] == len(reference(history.entries))
        assert record.result["bytes_in"] > record.result["bytes_out"] > 0


def test_a_run_without_java_is_recorded_as_failed_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with DurableTopic(tmp_path / "volume") as topic:
        topic.run(topic.store.close())
    assert main(arguments(tmp_path, "1")) == UNUSABLE
    record = stored_record(tmp_path)
    assert record.state == "failed"
    assert "Java 17" in record.message


def test_a_run_without_a_topic_is_recorded_as_failed_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would do nothing and succeed. Nothing is asked of Java, which is not there."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with DurableTopic(tmp_path / "volume") as topic:
        topic.run(topic.store.close())
    words = tmp_path / "termination-log"
    words.touch()
    monkeypatch.setattr(driver, "TERMINATION_LOG", words)
    given = arguments(tmp_path, "1")
    given[given.index("--topic") + 1] = f"{TOPIC}-misspelt"
    assert main(given) == UNUSABLE
    assert words.read_text().startswith(f"TopicNotFound: topic {TOPIC}-misspelt does not exist")
    record = stored_record(tmp_path)
    assert record.state == "failed"
    assert f"TopicNotFound: topic {TOPIC}-misspelt does not exist" in record.message


def test_the_last_words_of_a_driver_are_one_line_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a JVM answers has hundreds, and the operator takes the last one; without such a file
    nothing is written."""
    words = tmp_path / "termination-log"
    monkeypatch.setattr(driver, "TERMINATION_LOG", words)
    error = RuntimeError("Job aborted\n\tat org.apache.spark\n" + 2000 * "x")
    driver.leave_last_words(error)
    assert not words.exists()
    words.touch()
    driver.leave_last_words(error)
    assert words.read_text().startswith("RuntimeError: Job aborted at org.apache.spark xxx")
    assert len(words.read_text()) == driver.LAST_WORDS_MAX


@pytest.mark.parametrize("store", ["zookeeper://h", "embedded://", "etcd"])
def test_a_store_that_is_not_offered_is_named(tmp_path: Path, store: str) -> None:
    given = arguments(tmp_path, "1")
    given[given.index("--store") + 1] = store
    assert main(given) == UNUSABLE


def test_a_store_that_a_broker_has_open_fails_with_advice(tmp_path: Path) -> None:
    async def hold() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", SystemClock())
        try:
            assert await asyncio.to_thread(main, arguments(tmp_path, "1")) == FAILED
        finally:
            await store.close()

    asyncio.run(hold())
