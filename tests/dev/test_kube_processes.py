"""Pid files: a signal reaches the recorded process or nobody."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.kube import processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is not ours to stop."""
    process = subprocess.Popen(SLEEP)
    yield process
    process.kill()
    process.wait()


def _start(directory: Path, digest: str = "d") -> processes.Record:
    pid_file, log = directory / "sleep.json", directory / "sleep.log"
    return processes.start(SLEEP, pid_file=pid_file, log=log, digest=digest, cwd=directory)


def test_a_started_process_is_found_and_stopped(tmp_path: Path) -> None:
    record = _start(tmp_path)
    assert processes.running(tmp_path / "sleep.json") == record
    assert processes.stop(tmp_path / "sleep.json")
    assert not processes.is_alive(record)
    assert not (tmp_path / "sleep.json").exists()


def test_a_recycled_pid_is_never_killed(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    """The pid file names the bystander's pid, but a start time it never had."""
    ticks = processes.start_ticks(bystander.pid)
    assert ticks is not None
    stale = processes.Record(bystander.pid, ticks - 1, processes.boot(), "d")
    processes.write_record(tmp_path / "stale.json", stale)
    assert processes.running(tmp_path / "stale.json") is None
    assert not processes.stop(tmp_path / "stale.json")
    assert not processes.stop_process(bystander.pid, ticks - 1, timeout_seconds=0)
    assert bystander.poll() is None


def test_a_pid_of_an_earlier_boot_is_never_killed(
    tmp_path: Path, bystander: subprocess.Popen[bytes]
) -> None:
    """After a reboot even pid and start time may agree by chance."""
    ticks = processes.start_ticks(bystander.pid)
    assert ticks is not None
    processes.write_record(
        tmp_path / "old.json", processes.Record(bystander.pid, ticks, "another-boot", "d")
    )
    assert not processes.stop(tmp_path / "old.json")
    assert bystander.poll() is None


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    deaf = f"{ignore}; print('deaf', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    ticks = processes.start_ticks(process.pid)
    assert ticks is not None
    assert processes.stop_process(process.pid, ticks, timeout_seconds=0.05)
    process.stdout.close()
    process.wait()


def test_a_zombie_counts_as_gone() -> None:
    process = subprocess.Popen(["true"])
    with process:
        while processes.start_ticks(process.pid) is not None:
            pass
        assert processes.start_ticks(process.pid) is None


@pytest.mark.parametrize("content", ["", "{", '{"pid": 1}', "[]", '{"pid": 1, "unknown": 2}'])
def test_a_damaged_pid_file_means_no_process(tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    assert processes.read_record(tmp_path / "bad.json") is None
    assert not processes.stop(tmp_path / "bad.json")


def test_the_digest_changes_with_command_and_configuration(tmp_path: Path) -> None:
    file = tmp_path / "configuration"
    file.write_text("a")
    first = processes.command_digest(["x", "y"], [file])
    assert first == processes.command_digest(["x", "y"], [file])
    assert first != processes.command_digest(["xy"], [file])
    file.write_text("b")
    assert first != processes.command_digest(["x", "y"], [file])


def test_the_previous_log_is_kept_and_private(tmp_path: Path) -> None:
    (tmp_path / "sleep.log").write_text("the last words of the last run")
    record = _start(tmp_path)
    assert (tmp_path / "sleep.previous.log").read_text() == "the last words of the last run"
    assert (tmp_path / "sleep.log").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "sleep.json").stat().st_mode & 0o777 == 0o600
    assert dataclasses.asdict(record)["command"] == "d"
    processes.stop(tmp_path / "sleep.json")


def test_daemons_get_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bridge is not loopback, so a Go client would ask the proxy for it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    assert not {"HTTPS_PROXY", "http_proxy"} & processes.environment_without_proxies().keys()
