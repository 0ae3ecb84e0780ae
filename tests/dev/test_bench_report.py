"""The report: the table's ratios and shares, the JSON beside it, the hottest functions."""

from __future__ import annotations

import cProfile
import json
import time
from pathlib import Path

import pytest

from dev.bench.perf_output import Latency
from dev.bench.pulsar_perf import BenchFailed
from dev.bench.raw_disk import RawDisk
from dev.bench.report import MAGNETAR, PEER, Findings, render, table, write
from dev.bench.scenarios import Durations, Measurement
from dev.bench.server_profile import HotFunction, Profile, ProfiledServer, read_profile


def measured(
    scenario: str, rate: float, p50_ms: float, end_to_end: Latency | None = None
) -> Measurement:
    return Measurement(
        scenario=scenario,
        messages_per_s=rate,
        payload_bytes_per_s=rate * 1024,
        publish=Latency(p50_ms, 8.0, 16.0, 32.0),
        end_to_end=end_to_end,
        delivered_per_s=None,
        processor_us_per_message=4.0,
        event_loop_us_per_message=3.0,
        memory_bytes=100_000_000,
    )


@pytest.fixture
def findings() -> Findings:
    return Findings(
        machine={"processors": "2"},
        ready_s={MAGNETAR: 0.5, PEER: 8.0},
        measurements={
            MAGNETAR: [
                measured("unbatched", 100_000, 2.0),
                measured("paced", 5_000, 1.0, Latency(1.0, 3.0, 5.0, 9.0)),
            ],
            PEER: [
                measured("unbatched", 50_000, 8.0),
                measured("paced", 5_000, 0.0, Latency(4.0, 6.0, 8.0, 9.0)),
            ],
        },
        disk=[RawDisk(1024e6, 0.2, 0.4), RawDisk(2048e6, 0.4, 0.8), RawDisk(1024e6, 0.3, 0.6)],
        profiles=[
            Profile(
                "unbatched",
                0.4,
                [HotFunction("broker/connections/connection.py:10 receive", 0.25, 1.5, 0.01)],
            )
        ],
    )


def row(text: str, *cells: str) -> list[str]:
    """The cells of the only line that starts with these."""
    (found,) = (
        line.split() for line in text.splitlines() if tuple(line.split()[: len(cells)]) == cells
    )
    return found


def test_each_load_shows_both_servers_and_their_ratio(findings: Findings) -> None:
    lines = render(findings).splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("unbatched"))
    assert lines[first].split()[:5] == ["unbatched", MAGNETAR, "100,000", "102.4", "10.0%"]
    assert lines[first + 1].split()[:3] == ["unbatched", PEER, "50,000"]
    assert lines[first + 2].split() == [
        "ratio",
        "x2.00",
        "x2.00",
        "x0.25",
        "x1.00",
        "x1.00",
        "x1.00",
        "x1.00",
    ]


def test_a_figure_that_the_tool_rounded_to_nothing_has_no_ratio(findings: Findings) -> None:
    ratio = [line for line in render(findings).splitlines() if "ratio" in line][-1].split()
    assert ratio == [
        "ratio",
        "x1.00",
        "x1.00",
        "x1.00",
        "x1.00",
        "x0.25",
        "x0.50",
        "x1.00",
        "x1.00",
    ]


def test_without_a_peer_there_are_no_ratios(findings: Findings) -> None:
    del findings.measurements[PEER]
    text = render(findings)
    assert "ratio" not in text
    assert row(text, "paced", MAGNETAR)[-5:] == ["1", "3", "4.0", "3.0", "100"]


def test_the_disk_is_the_median_of_its_samples_and_the_profile_is_shown(findings: Findings) -> None:
    text = render(findings)
    assert (
        "1024 MB/s in flushed 1 MiB writes; flushed 4 KiB write p50 0.30, p99 0.60 ms (median of 3)"
        in text
    )
    assert row(text, "25.0%") == [
        "25.0%",
        "1.50",
        "0.010",
        "broker/connections/connection.py:10",
        "receive",
    ]


def test_columns_are_aligned() -> None:
    assert table(
        ("load", "server", "rate"), [("a", "b", "1"), ("long name", "b", "1000")]
    ).splitlines() == [
        "load       server  rate",
        "a          b          1",
        "long name  b       1000",
    ]


def test_the_json_holds_everything_unrounded(findings: Findings, tmp_path: Path) -> None:
    path = tmp_path / "build" / "bench.json"
    write(findings, path)
    found = json.loads(path.read_text())
    assert found["measurements"][MAGNETAR][1]["end_to_end"]["p50_ms"] == 1.0
    assert found["profiles"][0]["functions"][0]["own_share"] == 0.25
    assert len(found["disk"]) == 3


def test_durations_are_whole_windows() -> None:
    assert Durations.of(20, quick=False) == Durations(2, 2)
    assert Durations.of(21, quick=False) == Durations(2, 3)
    assert Durations.of(1, quick=False) == Durations(2, 1)
    assert Durations.of(60, quick=True) == Durations(1, 1)


def burn(times: int) -> int:
    return sum(index * index for index in range(times))


def test_the_hottest_functions_come_first_with_calls_per_message(tmp_path: Path) -> None:
    profile = cProfile.Profile()
    for _ in range(50):
        profile.runcall(burn, 200)
    profile.dump_stats(tmp_path / "profile.pstats")
    functions = read_profile(
        "burning", tmp_path / "profile.pstats", seconds=10, messages=100, count=2
    ).functions
    assert len(functions) == 2
    assert functions[0].own_share >= functions[1].own_share
    (generator,) = (one for one in functions if "genexpr" in one.name)
    assert generator.name.startswith("tests/dev/test_bench_report.py:")
    assert generator.calls_per_message == 50 * 201 / 100


def test_time_outside_python_is_what_the_functions_leave(tmp_path: Path) -> None:
    """Waiting for work is no function to optimise."""
    profile = cProfile.Profile()
    started = time.perf_counter()
    profile.runcall(burn, 20_000)
    burned = time.perf_counter() - started
    profile.dump_stats(tmp_path / "profile.pstats")
    found = read_profile(
        "burning", tmp_path / "profile.pstats", seconds=burned * 4, messages=1, count=1000
    )
    assert 0.7 < found.outside_share < 1
    assert sum(one.own_share for one in found.functions) == pytest.approx(1.0)


def test_a_missing_profile_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BenchFailed, match=r"wrote no .*profile\.pstats"):
        read_profile("none", tmp_path / "profile.pstats", seconds=1, messages=1)


@pytest.mark.slow
def test_a_server_started_under_the_profiler_writes_its_profile(tmp_path: Path) -> None:
    """The real server: it starts, is profiled from SIGUSR1 on and ends in order."""
    server = ProfiledServer(tmp_path)
    server.start()
    try:
        server.begin()
        server.wait_ready()  # a request, so that something happens
    finally:
        seconds = server.finish()
    found = read_profile("none", server.profile_path, seconds, messages=1, count=1000)
    assert found.functions
    # A start compiles hundreds of modules; what the server imports when it first decides is a few.
    compiled = sum(
        one.calls_per_message for one in found.functions if "builtins.compile" in one.name
    )
    assert compiled < 50, "imports of the start are in the profile"
