"""`python -m magnetar_jobs.executor`: one executor of a driver.

Owns: its command line, the wait for its driver, and how Spark's executor is started. Imports:
session, clock. Invariants: no two starts have the same executor id, because a driver refuses one
that it may still know; the process becomes Spark's executor, which ends when its driver does; the
secret is never an argument, which every process of the pod could read.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import structlog

from magnetar.clock import SystemClock
from magnetar.errors import InvalidRequest
from magnetar_jobs.session import DRIVER_PORT, POD_IP, PROTECTION, SECRET

log = structlog.get_logger(__name__)

EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
SECRET_OF_SPARK = "_SPARK_AUTH_SECRET"
UNUSABLE = 2
LOOK_AGAIN_S = 0.5
CONNECT_TIMEOUT_S = 2.0
NUMBERS, STARTS = 1_000, 2_000_000
"""Spark's ids of executors are integers of 32 bits: a number in the job, and the second of the
start within three weeks."""


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="magnetar_jobs.executor", description="One executor of a job's driver."
    )
    parser.add_argument("--driver", required=True, help="address of the driver")
    parser.add_argument("--application", required=True, help="the driver's name")
    parser.add_argument("--number", required=True, type=int, help="number of this executor, from 1")
    parser.add_argument("--cores", type=int, default=1, help="tasks at the same time")
    parser.add_argument(
        "--memory-mib", type=int, default=1024, help="heap; Python's memory comes on top"
    )
    return parser.parse_args(arguments)


def executor_id(number: int, now_ms: int) -> int:
    """Differs for every start of every executor of a job."""
    return now_ms // 1000 % STARTS * NUMBERS + number


def command(
    options: argparse.Namespace, environment: Mapping[str, str], spark_home: Path, now_ms: int
) -> tuple[list[str], dict[str, str]]:
    """Arguments and variables of Spark's executor. Raises InvalidRequest naming what is absent."""
    missing = [name for name in (POD_IP, SECRET) if not environment.get(name)]
    if missing:
        raise InvalidRequest(
            f"{missing[0]} is not set: an executor needs it; the operator sets it in the "
            "executor's pod"
        )
    arguments = [
        str(spark_home / "bin" / "spark-class"), EXECUTOR_CLASS,
        "--driver-url", f"spark://CoarseGrainedScheduler@{options.driver}:{DRIVER_PORT}",
        "--executor-id", str(executor_id(options.number, now_ms)),
        "--hostname", environment[POD_IP],
        "--cores", str(options.cores),
        "--app-id", options.application,
        "--resourceProfileId", "0",
    ]  # fmt: skip
    protection = [f"-D{name}={value}" for name, value in PROTECTION.items()]
    variables = {
        "SPARK_HOME": str(spark_home),
        "SPARK_EXECUTOR_MEMORY": f"{options.memory_mib}m",
        "SPARK_EXECUTOR_OPTS": " ".join(protection),
        SECRET_OF_SPARK: environment[SECRET],
    }
    return arguments, {**environment, **variables}


def find_spark(environment: Mapping[str, str]) -> Path:
    """Where Spark is. Raises InvalidRequest."""
    if environment.get("SPARK_HOME"):
        return Path(environment["SPARK_HOME"])
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise InvalidRequest(
            "SPARK_HOME is not set and pyspark is not installed: install magnetar[spark]"
        )
    return Path(found.origin).parent


def await_driver(address: str) -> None:
    """Until the driver takes executors: it plans before it starts Spark. No caller waits for this
    process, which ends with its pod."""
    while True:
        try:
            socket.create_connection((address, DRIVER_PORT), CONNECT_TIMEOUT_S).close()
            return
        except OSError:
            time.sleep(LOOK_AGAIN_S)


def main(arguments: list[str] | None = None) -> NoReturn:
    options = parse_arguments(arguments)
    try:
        program, variables = command(
            options, os.environ, find_spark(os.environ), SystemClock().wall_ms()
        )
    except InvalidRequest as error:
        log.error("executor.unusable", error=str(error))
        sys.exit(UNUSABLE)
    log.info("executor.waits", driver=options.driver, number=options.number)
    await_driver(options.driver)
    os.execve(program[0], program, variables)


if __name__ == "__main__":
    main()
