"""Apache Pulsar's load tool as a child process.

Owns: the command lines of `pulsar-perf produce|consume`, the running tool and its windows. Imports:
perf_output, the standard library. Invariants: rate, outstanding messages and duration are always
given (the tool's defaults are 100 msg/s, unlimited and permanently); a tool that ends early or says
nothing in time is an error that carries the end of its output; `stop` ends it by its own handle.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dev.bench.perf_output import WINDOW_S, Window, parse_records, parse_window

# msg/s, beyond any server here; the tool has no word for "as fast as it goes"
UNLIMITED_RATE = 2_000_000
OUTSTANDING_MESSAGES_MAX = 1000
MESSAGES_MAX = 20_000_000
RUN_SECONDS_MAX = 900
START_TIMEOUT_S = 60.0
LATE_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
KEPT_LINES_MAX = 30
MEMORY = "-Xmx512m -XX:MaxDirectMemorySize=256m"
CONSUMER_IS_READY = "Start receiving from"


class BenchFailed(RuntimeError):
    """Something broke (never: something was slow)."""


@dataclass(frozen=True, slots=True)
class PublishLoad:
    """What a producer sends: `rate` msg/s of `size_bytes` each, batched by the client or one by
    one."""

    batched: bool
    rate: int = UNLIMITED_RATE
    size_bytes: int = 1024
    outstanding_messages: int = OUTSTANDING_MESSAGES_MAX


def produce_arguments(service_url: str, topic: str, load: PublishLoad) -> list[str]:
    """The arguments after `pulsar-perf`."""
    arguments = [
        "produce",
        "-u",
        service_url,
        "-r",
        str(load.rate),
        "-o",
        str(load.outstanding_messages),
        "-s",
        str(load.size_bytes),
    ]
    arguments += ["-m", str(MESSAGES_MAX), "-time", str(RUN_SECONDS_MAX)]
    return [*arguments, *([] if load.batched else ["--disable-batching"]), topic]


def consume_arguments(service_url: str, topic: str) -> list[str]:
    """The arguments after `pulsar-perf`: one exclusive consumer from the earliest message, so
    that none is missed while it connects."""
    return [
        "consume",
        "-u",
        service_url,
        "-ss",
        "bench",
        "-sp",
        "Earliest",
        "-time",
        str(RUN_SECONDS_MAX),
        topic,
    ]


class PerfProcess:
    """One running tool; its windows arrive while it runs."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str]) -> None:
        self.windows: list[Window] = []
        self.messages_total = 0
        self._name = str(command[1]) if len(command) > 1 else str(command[0])
        self._lines: deque[str] = deque(maxlen=KEPT_LINES_MAX)
        self._ready = self._ended = False
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._take(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _take(self, line: str) -> None:
        self._lines.append(line)
        self._ready = self._ready or CONSUMER_IS_READY in line
        if (window := parse_window(line)) is not None:
            self.windows.append(window)
            self.messages_total = window.messages_total
        if (records := parse_records(line)) is not None:
            self.messages_total = records

    def wait_consumer(self) -> None:
        """Wait until a consumer has subscribed. Raises BenchFailed if it ends or takes too long."""
        self._wait(lambda: self._ready, START_TIMEOUT_S, "did not subscribe")

    def wait_windows(self, count: int) -> Sequence[Window]:
        """Wait for the first `count` windows. Raises BenchFailed if the tool ends or falls
        silent."""
        self._wait(
            lambda: len(self.windows) >= count,
            START_TIMEOUT_S + count * WINDOW_S + LATE_TIMEOUT_S,
            f"did not report {count} times",
        )
        return self.windows[:count]

    def _wait(self, done: Callable[[], bool], timeout_s: float, complaint: str) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not done():
                if self._ended:
                    raise BenchFailed(
                        f"pulsar-perf {self._name} ended and {complaint}:\n{self.tail()}"
                    )
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise BenchFailed(
                        f"pulsar-perf {self._name} {complaint} within {timeout_s:.0f} "
                        f"s:\n{self.tail()}"
                    )

    def tail(self) -> str:
        """The end of the tool's output."""
        return "\n".join(self._lines)

    def stop(self) -> None:
        """SIGTERM, at which the tool prints its totals; SIGKILL if that takes too long."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


class PulsarPerf:
    """Starts the load tool of the distribution at `home`; its log files go to `directory`."""

    def __init__(self, home: Path, directory: Path) -> None:
        self._program = home / "bin" / "pulsar-perf"
        self._environment = {
            **os.environ,
            "PULSAR_MEM": MEMORY,
            "PULSAR_LOG_DIR": str(directory / "perf-logs"),
            # a window's line must arrive when the window ends: CPU is sampled then
            "PULSAR_LOG_IMMEDIATE_FLUSH": "true",
            "LC_ALL": "C",
        }

    def produce(self, service_url: str, topic: str, load: PublishLoad) -> PerfProcess:
        return PerfProcess(
            [self._program, *produce_arguments(service_url, topic, load)], self._environment
        )

    def consume(self, service_url: str, topic: str) -> PerfProcess:
        """A consumer that has subscribed."""
        process = PerfProcess(
            [self._program, *consume_arguments(service_url, topic)], self._environment
        )
        try:
            process.wait_consumer()
        except BenchFailed:
            process.stop()
            raise
        return process
