"""A driver and its executors as the operator's pods run them: processes of their own, which know
each other by a secret.

Owns: `Pods` and `Process`. Imports: the jobs' names of variables. Kubernetes has no part in it.
Invariants: addresses are loopback ones, so that every process has the ports that it has in a pod;
only processes started here are signalled; all have ended when `Pods` is closed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from magnetar_jobs.session import POD_IP, POD_NAME, SECRET

ROOT = Path(__file__).resolve().parents[2]
DRIVER = "127.0.0.2"
EXECUTOR_MEMORY_MIB = 512
TIMEOUT_S = 480.0
POLL_S = 0.1
SHOWN = 3000


class Process:
    """One of them."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def end(self, timeout_s: float = TIMEOUT_S) -> int:
        """Wait for it; its exit code. Raises TimeoutExpired."""
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """With what it has started."""
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Pods:
    """Processes with the variables of a pod; logs are in `directory`. `defaults`: lines of a
    spark-defaults.conf."""

    def __init__(self, directory: Path, name: str, defaults: str = "") -> None:
        self._directory, self._name = directory, name
        self._stack = ExitStack()
        self._configuration = directory / "spark-conf"
        self._configuration.mkdir(exist_ok=True)
        (self._configuration / "spark-defaults.conf").write_text(defaults)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start(self, address: str, *arguments: str, secret: str = "a secret of this job") -> Process:
        environment = {
            **os.environ,
            "PYTHONPATH": ":".join(
                str(ROOT / part) for part in ("broker_image", "operator", "spark_jobs", ".")
            ),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self._configuration),
            POD_IP: address,
            POD_NAME: self._name,
            SECRET: secret,
        }
        log = self._directory / f"{address}-{time.monotonic_ns()}.log"
        output: IO[bytes] = self._stack.enter_context(log.open("wb"))
        started = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            cwd=self._directory,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        process = Process(started, log)
        self._stack.callback(process.kill)
        return process

    def executor(self, number: int, secret: str = "a secret of this job") -> Process:
        """The executor of that number, from 1."""
        arguments = (
            "--driver", DRIVER, "--application", self._name, "--number", str(number),
            "--cores", "1", "--memory-mib", str(EXECUTOR_MEMORY_MIB),
        )  # fmt: skip
        return self.start(
            f"127.0.0.{2 + number}", "-m", "magnetar_jobs.executor", *arguments, secret=secret
        )


def until(what: str, condition: Callable[[], bool], *shown: Process) -> None:
    """Wait for a condition. Raises AssertionError with what these processes have said."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}\n" + "\n".join(
            each.said[-SHOWN:] for each in shown
        )
        time.sleep(POLL_S)
