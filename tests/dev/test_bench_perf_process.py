"""The load tool as a process: command lines, windows while it runs, and errors that say what it
printed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from dev.bench.pulsar_perf import (
    BenchFailed,
    PerfProcess,
    PublishLoad,
    consume_arguments,
    produce_arguments,
)

WINDOW = (
    "Throughput produced: {total} msg --- 10.0 msg/s --- 1.0 Mbit/s --- failure 0.0 msg/s --- "
    "Latency: mean: 1.0 ms - med: 1.0"
    " - 95pct: 1.0 - 99pct: 2.0 - 99.9pct: 3.0 - 99.99pct: 4.0 - Max: 5.0"
)
STAND_IN = r"""
import signal, sys
def end(*_):
    print("Aggregated throughput stats --- 250 records sent --- 5.0 msg/s", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
for line in sys.argv[1:]:
    print(line, flush=True)
signal.pause()
"""


def stand_in(*lines: str) -> PerfProcess:
    """A process that prints the lines and then waits for SIGTERM, as the tool does."""
    return PerfProcess([sys.executable, "-c", STAND_IN, *lines], dict(os.environ))


def test_rate_outstanding_and_duration_are_always_given() -> None:
    """The tool's defaults are 100 msg/s, unlimited and permanently."""
    arguments = produce_arguments(
        "pulsar://127.0.0.1:1", "topic", PublishLoad(batched=False, rate=5000)
    )
    assert arguments[0] == "produce"
    assert arguments[-2:] == ["--disable-batching", "topic"]
    for option, value in (
        ("-r", "5000"),
        ("-o", "1000"),
        ("-s", "1024"),
        ("-u", "pulsar://127.0.0.1:1"),
    ):
        assert arguments[arguments.index(option) + 1] == value
    assert int(arguments[arguments.index("-time") + 1]) > 0
    assert "--disable-batching" not in produce_arguments(
        "pulsar://127.0.0.1:1", "topic", PublishLoad(batched=True)
    )


def test_a_consumer_starts_at_the_earliest_message() -> None:
    arguments = consume_arguments("pulsar://127.0.0.1:1", "topic")
    assert arguments[arguments.index("-sp") + 1] == "Earliest"
    assert arguments[-1] == "topic"


def test_windows_arrive_while_it_runs_and_the_total_at_its_end() -> None:
    process = stand_in(
        "Start receiving from 1 consumers", WINDOW.format(total=100), WINDOW.format(total=200)
    )
    try:
        process.wait_consumer()
        assert [window.messages_total for window in process.wait_windows(2)] == [100, 200]
    finally:
        process.stop()
    assert process.messages_total == 250


def test_a_tool_that_ends_early_is_an_error_with_its_output() -> None:
    process = PerfProcess([sys.executable, "-c", "print('connection refused')"], dict(os.environ))
    try:
        with pytest.raises(
            BenchFailed, match="ended and did not report 1 times:\nconnection refused"
        ):
            process.wait_windows(1)
    finally:
        process.stop()


def test_a_silent_tool_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dev.bench.pulsar_perf.START_TIMEOUT_S", 0.05)
    process = stand_in()
    try:
        with pytest.raises(BenchFailed, match="did not subscribe within 0 s"):
            process.wait_consumer()
    finally:
        process.stop()


@pytest.mark.slow
def test_a_tool_that_ignores_its_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dev.bench.pulsar_perf.STOP_TIMEOUT_S", 0.3)
    program = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('Start receiving "
        "from', flush=True); signal.pause()"
    )
    before = {*threading.enumerate()}
    process = PerfProcess([sys.executable, "-c", program, str(tmp_path)], dict(os.environ))
    process.wait_consumer()
    process.stop()
    assert {*threading.enumerate()} <= before
