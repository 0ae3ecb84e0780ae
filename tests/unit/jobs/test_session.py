"""Spark settings of a job, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.errors import InvalidRequest
from magnetar_jobs.executor import NUMBERS, STARTS, command, executor_id, parse_arguments
from magnetar_jobs.session import (
    PROTECTION,
    SECRET,
    SessionSettings,
    lost_executors,
    spark_settings,
)

WITH_EXECUTORS = SessionSettings(
    name="compact", executors=3, executor_memory_mib=512, executor_cores=2
)
POD = {"POD_IP": "10.244.0.7", "POD_NAME": "compact-demo-1", SECRET: "s", "PATH": "/usr/bin"}


def test_push_down_is_enabled_everywhere_or_planning_would_fail() -> None:
    for settings in (SessionSettings(name="x"), WITH_EXECUTORS):
        assert spark_settings(settings, POD)["spark.sql.python.filterPushdown.enabled"] == "true"


def test_a_driver_with_executors_starts_none_and_asks_kubernetes_for_nothing() -> None:
    """Executors dial its pod's address by both settings; a port of another driver is never taken
    for it."""
    values = spark_settings(WITH_EXECUTORS, POD)
    assert values["spark.master"] == "local-cluster[0,1,512]"
    assert values["spark.driver.host"] == values["spark.driver.bindAddress"] == "10.244.0.7"
    assert (values["spark.driver.port"], values["spark.port.maxRetries"]) == ("7078", "0")
    assert (values["spark.cores.max"], values["spark.executor.cores"]) == ("6", "2")
    assert not [name for name in values if name.startswith("spark.kubernetes")]


def test_driver_and_executors_know_each_other_by_a_secret_that_is_no_argument() -> None:
    """They agree on what protects their connections before either has asked the other, and on
    the application's name."""
    values = spark_settings(WITH_EXECUTORS, POD)
    options = parse_arguments(
        [
            "--driver",
            "10.244.0.7",
            "--application",
            "compact-demo-1",
            "--number",
            "2",
            "--memory-mib",
            "512",
        ]
    )
    arguments, variables = command(options, POD, Path("/spark"), 5_000)
    assert values["spark.authenticate.secret"] == variables["_SPARK_AUTH_SECRET"] == "s"
    assert PROTECTION.items() <= values.items()
    assert variables["SPARK_EXECUTOR_OPTS"].split() == [
        f"-D{name}={value}" for name, value in PROTECTION.items()
    ]
    assert arguments[0] == "/spark/bin/spark-class"
    assert arguments[arguments.index("--app-id") + 1] == values["spark.deploy.appIdPattern"]
    assert arguments[arguments.index("--driver-url") + 1].endswith("@10.244.0.7:7078")
    assert variables["SPARK_EXECUTOR_MEMORY"] == "512m"
    assert POD[SECRET] not in arguments


def test_an_executor_that_starts_again_is_another_one() -> None:
    """Spark's ids have 32 bits."""
    assert (
        len(
            {executor_id(number, second * 1000) for number in range(1, 101) for second in range(50)}
        )
        == 5000
    )
    assert executor_id(NUMBERS - 1, (STARTS - 1) * 1000) < 2**31


@pytest.mark.parametrize("missing", ["POD_IP", "POD_NAME", SECRET])
def test_a_missing_pod_identity_is_named(missing: str) -> None:
    with pytest.raises(InvalidRequest, match=missing):
        spark_settings(WITH_EXECUTORS, {key: value for key, value in POD.items() if key != missing})


@pytest.mark.parametrize("missing", ["POD_IP", SECRET])
def test_an_executor_without_address_or_secret_names_it(missing: str) -> None:
    options = parse_arguments(["--driver", "10.244.0.7", "--application", "a", "--number", "1"])
    with pytest.raises(InvalidRequest, match=missing):
        command(
            options, {key: value for key, value in POD.items() if key != missing}, Path("/spark"), 0
        )


def test_a_master_that_is_not_offered_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="yarn"):
        spark_settings(SessionSettings(name="x", master="yarn"), {})


def test_parallelism_counts_threads_or_executor_cores() -> None:
    assert SessionSettings(name="x", master="local[3]").parallelism == 3
    assert SessionSettings(name="x", master="local").parallelism == 1
    assert WITH_EXECUTORS.parallelism == 6


def test_what_spark_says_of_executors_that_have_gone_is_distinguished_from_what_tasks_did() -> None:
    lost = (
        "Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times, most recent failure: "
        "Lost task 1.3 in stage 3.0 (TID 9) (10.1.2.4 executor 4): ExecutorLostFailure (executor 4 "
        "exited caused by one of the running tasks) Reason: Command exited with code 137"
    )
    assert lost_executors(RuntimeError(lost))
    assert not lost_executors(RuntimeError("Task 1 failed 4 times: StorageError: the disk is full"))
