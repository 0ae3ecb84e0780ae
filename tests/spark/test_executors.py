"""A driver and its executors as the operator's pods run them: processes of their own, which know
each other by a secret.

Kubernetes has no part in it. Addresses are loopback ones, so that every process has the ports that
it has in a pod.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from magnetar.metadata import keys
from magnetar.metadata.records import JobRunRecord
from magnetar_jobs.driver import SUCCEEDED
from magnetar_jobs.session import POD_IP, POD_NAME, SECRET
from tests.spark.histories import History, reference, visible
from tests.spark.topics import TOPIC
from tests.support.durable_topics import DurableTopic

pytestmark = [pytest.mark.slow, pytest.mark.java]

ROOT = Path(__file__).resolve().parents[2]
DRIVER, NAME = "127.0.0.2", "prices-0a0b0c0d-1"
TIMEOUT_S = 240.0
POLL_S = 0.1
LOSING = """
import sys, time
from pathlib import Path
from magnetar_jobs.session import SessionSettings, spark_session

marks = Path(sys.argv[1])

def work(number):
    (marks / str(number)).touch()
    time.sleep(1.0)
    return number

with spark_session(SessionSettings("losing", executors=2, executor_memory_mib=512)) as session:
    assert sum(session.sparkContext.parallelize(range(12), 12).map(work).collect()) == 66
"""
"""A job of twelve tasks that leave a mark when they begin."""


class Pods:
    """Processes with the variables of a pod."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack

    def start(self, address: str, *arguments: str, secret: str = "a secret of this job") -> Process:
        environment = {
            **os.environ,
            "PYTHONPATH": ":".join(
                str(ROOT / part) for part in ("broker_image", "operator", "spark_jobs", ".")
            ),
            "PYSPARK_PYTHON": sys.executable,
            POD_IP: address,
            POD_NAME: NAME,
            SECRET: secret,
        }
        log = self._directory / f"{address}-{time.monotonic_ns()}.log"
        output: IO[bytes] = self._stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            cwd=self._directory,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        return Process(process, log)

    def executor(self, number: int, secret: str = "a secret of this job") -> Process:
        arguments = (
            "--driver",
            DRIVER,
            "--application",
            NAME,
            "--number",
            str(number),
            "--cores",
            "1",
            "--memory-mib",
            "512",
        )
        return self.start(
            f"127.0.0.{2 + number}", "-m", "magnetar_jobs.executor", *arguments, secret=secret
        )


class Process:
    """One of them."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def end(self) -> int:
        """Wait for it; its exit code."""
        return self._process.wait(TIMEOUT_S)

    def kill(self) -> None:
        """With what it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(what: str, condition: Callable[[], bool], *shown: Process) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}\n" + "\n".join(
            each.said[-3000:] for each in shown
        )
        time.sleep(POLL_S)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    with ExitStack() as stack:
        yield Pods(tmp_path, stack)


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
    marks = tmp_path / "marks"
    marks.mkdir()
    driver = pods.start(DRIVER, "-c", LOSING, str(marks))
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
    assert driver.end() == 0, driver.said
    assert "Lost executor" in driver.said
    for executor in (second, again):
        executor.end()
    assert len(list(marks.iterdir())) == 12
