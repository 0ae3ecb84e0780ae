"""The Spark session of a job.

Owns: every `spark.*` setting, and progress lines while a session lives.
Imports: pyspark (only when a session is built), structlog, errors, java. Invariants: `spark_settings` is
pure and gives the same settings for the same arguments; a missing Java, address or secret is
reported in words with the remedy before Spark gets a chance to fail with a stack trace; the session
is always stopped, which ends its executors; a driver never asks Kubernetes for anything: the
operator makes its executors' pods as well (`executor.py`).
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from magnetar.errors import InvalidRequest
from magnetar_jobs.java import require_java, start_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)

DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079
LOOPBACK = "127.0.0.1"
POD_IP, POD_NAME, SECRET = "POD_IP", "POD_NAME", "MAGNETAR_SPARK_SECRET"
"""Variables that a driver with executors needs: its address, a name of its own, and what they
know each other by."""
PROTECTION = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
}
"""Driver and executors must agree on these before either can ask the other."""
PROGRESS_INTERVAL_S = 5.0
ARROW_RECORDS_PER_BATCH_MAX = 10_000
DRIVER_MEMORY_MIB = 512


EXECUTOR_LOST = "ExecutorLostFailure"
"""What Spark calls the end of a task whose executor has gone."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Where and how large a job runs. `executors`: how many processes
    of their own do the work and come to the driver by themselves; 0 = the driver does it, with
    the threads of `master`."""

    name: str
    master: str = "local[2]"
    executors: int = 0
    executor_memory_mib: int = 1024
    executor_cores: int = 1

    @property
    def parallelism(self) -> int:
        """Tasks that can run at the same time."""
        if self.executors:
            return self.executors * self.executor_cores
        threads = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", self.master)
        if threads is None:
            raise InvalidRequest(
                f"master: {self.master!r} is not offered; use local[N], or --executors for "
                "processes of their own"
            )
        return (os.cpu_count() or 1) if threads[1] == "*" else int(threads[1] or 1)


def spark_settings(settings: SessionSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Every Spark setting of a job. `environment` gives `POD_IP`, `POD_NAME` and `SECRET` to a
    driver with executors. Raises InvalidRequest naming what is absent."""
    values = {
        "spark.app.name": settings.name,
        "spark.master": settings.master,
        # With a local master the driver is the executor; otherwise it only plans and collects a few
        # rows per task.
        "spark.driver.memory": f"{DRIVER_MEMORY_MIB if settings.executors else settings.executor_memory_mib}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_RECORDS_PER_BATCH_MAX),
        "spark.sql.shuffle.partitions": str(max(2, 2 * settings.parallelism)),
        "spark.sql.session.timeZone": "UTC",
        # Output names carry the attempt, so speculation would be safe; it would still write
        # payloads twice for nothing.
        "spark.speculation": "false",
    }
    if settings.executors:
        return values | _executor_settings(settings, environment)
    return values | {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}


def _executor_settings(settings: SessionSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """Spark's standalone scheduler without workers: its master is a part of the driver, starts
    no executors, and takes those that come."""
    address, name, secret = (
        _required(environment, variable) for variable in (POD_IP, POD_NAME, SECRET)
    )
    return PROTECTION | {
        "spark.master": f"local-cluster[0,1,{settings.executor_memory_mib}]",
        "spark.authenticate.secret": secret,
        # Executors must give the same name; the master would otherwise make one up.
        "spark.deploy.appIdPattern": name,
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        # A port that is taken is another driver's: its executors would come here.
        "spark.port.maxRetries": "0",
        # Work begins when most of these have come, or after half a minute.
        "spark.cores.max": str(settings.parallelism),
        "spark.executor.cores": str(settings.executor_cores),
        "spark.executor.memory": f"{settings.executor_memory_mib}m",
    }


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise InvalidRequest(
            f"{name} is not set: a driver with --executors needs it; the operator sets it in the "
            "driver's pod"
        )
    return value


@contextmanager
def spark_session(
    settings: SessionSettings,
    environment: Mapping[str, str] = os.environ,
    tasks: Callable[[int, int], None] = lambda _done, _total: None,
) -> Iterator[SparkSession]:
    """A session that reports progress, to `tasks` as well, and is stopped at the end. Raises
    JavaMissing, JavaEnded, InvalidRequest."""
    require_java(environment)
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    configuration = SparkConf()
    for key, value in spark_settings(settings, environment).items():
        configuration.set(key, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # The standalone master's own ports are for this process alone.
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    log.info("spark.starting", master=settings.master, executors=settings.executors)
    start_java(configuration)
    session = SparkSession.builder.config(conf=configuration).getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    log.info("spark.started", application=session.sparkContext.applicationId)
    try:
        with report_progress(session, tasks):
            yield session
    finally:
        session.stop()


def lost_executors(error: BaseException) -> bool:
    """Whether Spark gave up because executors were lost, not because of what tasks did."""
    return EXECUTOR_LOST in str(error)


@contextmanager
def report_progress(
    session: SparkSession,
    tasks: Callable[[int, int], None],
    interval_s: float = PROGRESS_INTERVAL_S,
) -> Iterator[None]:
    """Log stages and tasks every `interval_s` while the block runs; `tasks` gets how many of the
    active stages have ended, of how many."""
    done = threading.Event()
    tracker = session.sparkContext.statusTracker()

    def report() -> None:
        while not done.wait(interval_s):
            completed, total = 0, 0
            for identifier in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(identifier)
                if stage is not None:
                    completed += stage.numCompletedTasks
                    total += stage.numTasks
                    log.info(
                        "spark.progress",
                        stage=identifier,
                        name=stage.name,
                        tasks=stage.numTasks,
                        completed=stage.numCompletedTasks,
                        active=stage.numActiveTasks,
                        failed=stage.numFailedTasks,
                    )
            tasks(completed, total)

    reporter = threading.Thread(target=report, name="spark-progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
