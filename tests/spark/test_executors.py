"""A driver and its executors as the operator's pods run them, without Kubernetes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.testbed.spark_pods import DRIVER, Pods, until
from magnetar.metadata import keys
from magnetar.metadata.records import JobRunRecord
from magnetar_jobs.driver import SUCCEEDED
from tests.spark.histories import History, reference, visible
from tests.spark.topics import TOPIC
from tests.support.durable_topics import DurableTopic

pytestmark = [pytest.mark.slow, pytest.mark.java]

NAME = "prices-0a0b0c0d-1"
UNHURRIED = "spark.scheduler.maxRegisteredResourcesWaitingTime 480s\n"
"""Work waits for both executors, however long a busy machine needs to start them."""
LOSING = """
import sys, time
from pathlib import Path
from magnetar_jobs.session import SessionSettings, spark_session

marks, lost = Path(sys.argv[1]), Path(sys.argv[2])

def work(number):
    (marks / str(number)).touch()
    while not lost.exists():
        time.sleep(0.05)
    return number

with spark_session(SessionSettings("losing", executors=2, executor_memory_mib=512)) as session:
    assert sum(session.sparkContext.parallelize(range(12), 12).map(work).collect()) == 66
"""
"""A job of twelve tasks that leave a mark when they begin, and end once an executor was lost."""


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with Pods(tmp_path, NAME, UNHURRIED) as found:
        yield found


def test_executors_that_come_by_themselves_compact_and_end_with_their_driver(
    tmp_path: Path, pods: Pods
) -> None:
    """They may come before their driver takes any. One that does not know the secret gets in
    nowhere, and costs the job nothing."""
    history = History(random.Random(11))
    history.grow(40, keys=10)
    with DurableTopic(tmp_path / "volume") as topic:
        topic.write(history.entries)
        topic.run(topic.store.close())
        executors = [pods.executor(1), pods.executor(2)]
        stranger = pods.executor(3, secret="a secret of another job")
        driver = pods.start(
            DRIVER, "-m", "magnetar_jobs.compact", "--topic", str(TOPIC), "--store", f"embedded://{tmp_path / 'metadata'}",
            "--volume", str(tmp_path / "volume"), "--job", "demo", "--run", "1", "--no-roll",
            "--executors", "2", "--executor-memory-mib", "512",
        )  # fmt: skip
        assert driver.end() == SUCCEEDED, driver.said
        for executor in executors:
            executor.end()
            assert "Finished task" in executor.said
        assert stranger.end() != 0
        assert "Finished task" not in stranger.said
        topic.run(topic.reopen())
        assert visible(topic.view()) == reference(history.entries)
        item = topic.run(topic.store.get(keys.job_run("demo", "1")))
        assert item is not None
        assert JobRunRecord.decode(item.value).state == "succeeded"


def test_the_loss_of_an_executor_costs_its_tasks_another_attempt(
    tmp_path: Path, pods: Pods
) -> None:
    """Another start of the same pod is another executor to the driver, which need not have
    noticed the end of the former one."""
    marks, lost = tmp_path / "marks", tmp_path / "lost"
    marks.mkdir()
    driver = pods.start(DRIVER, "-c", LOSING, str(marks), str(lost))
    first, second = pods.executor(1), pods.executor(2)
    until(
        "both work",
        lambda: all("Running task" in each.said for each in (first, second)),
        driver,
        first,
        second,
    )
    first.kill()
    again = pods.executor(1)
    until(
        "the loss is noticed, and another one works",
        lambda: "Lost executor" in driver.said and "Running task" in again.said,
        driver,
        again,
    )
    lost.touch()
    assert driver.end() == 0, driver.said
    for executor in (second, again):
        executor.end()
    assert len(list(marks.iterdir())) == 12
