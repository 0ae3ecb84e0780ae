"""One small local Spark session for all tests of this directory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dev.server_process import ServerProcess
from magnetar_jobs.session import SessionSettings, spark_session
from magnetar_jobs.source import register_source
from tests.spark.reading import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TIMEOUT_S = 1800
"""A test may run several jobs, each in a JVM of its own, on a machine that is busy with others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A standalone server of each module's own."""
    with ServerProcess(tmp_path_factory.mktemp("server"), environment=SETTINGS) as process:
        yield process


@pytest.fixture
def topic() -> str:
    """The name of a topic that nobody has used."""
    return f"persistent://public/default/spark-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """local[2] with the settings a job gets, and as few shuffle partitions as still shuffle."""
    with spark_session(
        SessionSettings(name="tests", master="local[2]", executor_memory_mib=1024)
    ) as session:
        session.conf.set("spark.sql.shuffle.partitions", "2")
        # Tiny inputs: interpreting them is faster than compiling for them.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.adaptive.enabled", "false")
        register_source(session)
        yield session
