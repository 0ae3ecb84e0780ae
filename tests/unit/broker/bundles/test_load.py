"""What a broker reports of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.hosting.memory import limit_bytes
from magnetar.hosting.usage import LOOP_CORES, ProcessUsage, cpu_quota


@pytest.mark.parametrize(
    ("content", "cores"),
    [
        ("25000 100000\n", 0.25),
        ("max 100000\n", float("inf")),
        ("", float("inf")),
        ("4 x", float("inf")),
    ],
)
def test_the_cgroups_quota_counts_as_cores(tmp_path: Path, content: str, cores: float) -> None:
    """A pod with a limit of 250m is full at a quarter of a core."""
    (tmp_path / "cpu.max").write_text(content)
    assert cpu_quota(tmp_path) == cores
    assert cpu_quota(tmp_path / "absent") == float("inf")


@pytest.mark.parametrize(("quota", "cores"), [("50000", 0.5), ("-1", float("inf"))])
@pytest.mark.parametrize("part", ["cpu", "cpu,cpuacct"])
def test_version_1_has_quota_and_period_in_files_of_their_own(
    tmp_path: Path, part: str, quota: str, cores: float
) -> None:
    (tmp_path / part).mkdir()
    (tmp_path / part / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / part / "cpu.cfs_period_us").write_text("100000")
    assert cpu_quota(tmp_path) == cores


def test_the_share_of_cpu_is_of_what_one_event_loop_can_use() -> None:
    """On a machine of many cores a broker whose loop is full says so."""
    assert 0 < ProcessUsage().cores <= LOOP_CORES


@pytest.mark.parametrize(
    ("content", "limit"),
    [("268435456\n", 256 << 20), ("max\n", None), ("9223372036854771712\n", None)],
)
def test_the_memory_limit_is_that_of_the_control_group(
    tmp_path: Path, content: str, limit: int | None
) -> None:
    """Version 2 says max, version 1 a number that no machine has."""
    path = tmp_path / "memory.max"
    path.write_text(content)
    assert limit_bytes([tmp_path / "absent", path]) == limit
    assert limit_bytes([tmp_path / "absent"]) is None
