"""One small local Spark session for all tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from magnetar_jobs.session import SessionSettings, spark_session
from magnetar_jobs.source import register_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
