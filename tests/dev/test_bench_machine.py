"""What the benchmarks read from the machine: the raw disk, /proc, the peer's configuration and
the cached distribution."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.bench import pulsar_distribution, raw_disk
from dev.bench.pulsar_peer import durable_configuration
from dev.bench.server_profile import memory_bytes, processor_time
from dev.kube.report import CommandFailed


def test_the_raw_disk_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    found = raw_disk.measure(tmp_path, seconds=0.02, file_bytes=4 << 20)
    assert found.large_bytes_per_s > 0
    assert 0 < found.small_p50_ms <= found.small_p99_ms
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.995, 100), (1.0, 100)]
)
def test_percentiles_are_nearest_ranks(share: float, expected: float) -> None:
    assert raw_disk.percentile(range(1, 101), share) == expected
    assert raw_disk.percentile([7.0], share) == 7.0


def test_processor_time_counts_this_threads_work() -> None:
    before = processor_time(os.getpid())
    started = time.thread_time()
    while time.thread_time() - started < 0.05:
        pass
    spent = processor_time(os.getpid()).since(before)
    assert spent.main_thread_s >= 0.03  # 0.05 less two clock ticks
    # the two are read one after the other, each in whole ticks
    assert spent.process_s >= spent.main_thread_s - 0.021


def test_memory_is_what_this_process_holds() -> None:
    before = memory_bytes(os.getpid())
    held = bytearray(b"x" * (32 << 20))
    assert memory_bytes(os.getpid()) - before > 24 << 20
    assert len(held) == 32 << 20


def test_the_peer_syncs_and_listens_on_the_loopback_only() -> None:
    shipped = "# comment\nbindAddress=0.0.0.0\nadvertisedAddress=\njournalSyncData=false\nbrokerServicePort=6650\nwebServicePort=8080\nkept=1"
    lines = durable_configuration(shipped, 17001, 17002).splitlines()
    assert lines[:2] == ["# comment", "kept=1"]
    assert dict(line.split("=", 1) for line in lines[1:]) == {
        "kept": "1",
        "bindAddress": "127.0.0.1",
        "advertisedAddress": "127.0.0.1",
        "brokerServicePort": "17001",
        "webServicePort": "17002",
        "journalSyncData": "true",
        "listeningInterface": "lo",
    }


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts only the named programs on PATH: shell scripts with the given text."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def provide(**texts: str) -> None:
        for name, text in texts.items():
            (directory / name).write_text(f"#!/bin/sh\n{text}\n")
            (directory / name).chmod(0o755)

    return provide


def test_a_missing_java_is_named_with_its_remedy(
    tmp_path: Path, programs: Callable[..., None]
) -> None:
    programs()
    with pytest.raises(CommandFailed, match=r"java is not installed.*openjdk-17"):
        pulsar_distribution.ensure(tmp_path / "cache")


def test_a_missing_maven_is_named_with_its_remedy(
    tmp_path: Path, programs: Callable[..., None]
) -> None:
    programs(java="exit 0")
    with pytest.raises(
        CommandFailed,
        match=re.escape(f"mvn is not installed; it fetches {pulsar_distribution.ARTIFACT}"),
    ):
        pulsar_distribution.ensure(tmp_path / "cache")


def test_a_failed_download_leaves_no_entry(tmp_path: Path, programs: Callable[..., None]) -> None:
    programs(java="exit 0", mvn="echo no such artifact; exit 1")
    with pytest.raises(CommandFailed, match="no such artifact"):
        pulsar_distribution.ensure(tmp_path / "cache")
    assert pulsar_distribution.cached(tmp_path / "cache") is None
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [
        f"pulsar-{pulsar_distribution.VERSION}.lock"
    ]


def test_a_cached_distribution_needs_no_maven(
    tmp_path: Path, programs: Callable[..., None]
) -> None:
    programs(java="exit 0")
    home = tmp_path / "cache" / f"pulsar-{pulsar_distribution.VERSION}"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "pulsar-perf").write_text("")
    assert pulsar_distribution.ensure(tmp_path / "cache") == home
