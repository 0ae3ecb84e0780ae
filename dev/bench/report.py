"""The readable table and build/bench.json.

Owns: what a run found and how it is shown. Imports: scenarios, cases, raw_disk, server_profile.
Pure but for `write`. Invariant: every absolute figure stands beside a ratio of the same run, which
is what may be compared between machines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from dev.bench.cases import CaseResult
from dev.bench.perf_output import Latency
from dev.bench.raw_disk import RawDisk, median_of
from dev.bench.scenarios import Measurement
from dev.bench.server_profile import Profile

HEADERS = (
    "load", "server", "msg/s", "MB/s", "of disk", "publish p50", "p99", "p99.9 ms", "end-to-end p50", "p99 ms", "CPU us/msg", "loop us", "memory MB",
)  # fmt: skip
CASE_HEADERS = (
    "case", "server", "msg/s", "MB/s", "publish p50", "p99", "p99.9 ms", "end-to-end p50", "p99", "p99.9 ms", "CPU us/msg", "loop us", "note",
)  # fmt: skip
MAGNETAR, PEER = "magnetar", "pulsar"


@dataclass
class Findings:
    """Everything one run measured; `measurements` by server, in the order of the scenarios."""

    machine: dict[str, str]
    ready_s: dict[str, float] = field(default_factory=dict)
    measurements: dict[str, list[Measurement]] = field(default_factory=dict)
    cases: dict[str, list[CaseResult]] = field(default_factory=dict)
    disk: list[RawDisk] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)


def render(findings: Findings) -> str:
    """The whole report as text."""
    disk = median_of(findings.disk)
    parts = [
        "messages of 1 KiB (or as named), one topic, every receipt after fdatasync; "
        + ", ".join(f"{key} {value}" for key, value in findings.machine.items()),
        f"raw disk, same directory and time: {disk.large_bytes_per_s / 1e6:.0f} MB/s in flushed 1 "
        "MiB writes;"
        f" flushed 4 KiB write p50 {disk.small_p50_ms:.2f}, p99 {disk.small_p99_ms:.2f} ms (median "
        f"of {len(findings.disk)})",
        "ready after: "
        + ", ".join(f"{server} {seconds:.1f} s" for server, seconds in findings.ready_s.items()),
        "",
        table(HEADERS, _rows(findings, disk)),
    ]
    if findings.cases:
        parts += ["\nby the generator of our own:", table(CASE_HEADERS, _case_rows(findings))]
    return "\n".join([*parts, *(hot_functions(profile) for profile in findings.profiles)])


def _rows(findings: Findings, disk: RawDisk) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    peers = findings.measurements.get(PEER, [])
    for index, ours in enumerate(findings.measurements.get(MAGNETAR, [])):
        rows.append(_cells(MAGNETAR, ours, disk))
        if index < len(peers):
            rows += [_cells(PEER, peers[index], disk), _ratios(ours, peers[index])]
    return rows


def _cells(server: str, found: Measurement, disk: RawDisk) -> list[str]:
    end_to_end = (
        (f"{found.end_to_end.p50_ms:.0f}", f"{found.end_to_end.p99_ms:.0f}")
        if found.end_to_end
        else ("", "")
    )
    return [
        found.scenario,
        server,
        f"{found.messages_per_s:,.0f}",
        f"{found.payload_bytes_per_s / 1e6:.1f}",
        f"{found.payload_bytes_per_s / disk.large_bytes_per_s:.1%}",
        f"{found.publish.p50_ms:.2f}",
        f"{found.publish.p99_ms:.2f}",
        f"{found.publish.p999_ms:.2f}",
        *end_to_end,
        f"{found.processor_us_per_message:.1f}",
        f"{found.event_loop_us_per_message:.1f}" if server == MAGNETAR else "",
        f"{found.memory_bytes / 1e6:.0f}",
    ]


def _case_rows(findings: Findings) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    peers = {found.case: found for found in findings.cases.get(PEER, [])}
    for ours in findings.cases.get(MAGNETAR, []):
        rows.append(case_cells(MAGNETAR, ours))
        if ours.case in peers:
            rows += [case_cells(PEER, peers[ours.case]), _case_ratios(ours, peers[ours.case])]
    return rows


def case_cells(server: str, found: CaseResult) -> list[str]:
    """One row below CASE_HEADERS."""
    return [
        found.case,
        server,
        f"{found.messages_per_s:,.0f}" if found.messages_per_s else "",
        f"{found.payload_bytes_per_s / 1e6:.1f}" if found.payload_bytes_per_s else "",
        *_milliseconds(found.publish),
        *_milliseconds(found.end_to_end),
        f"{found.processor_us_per_message:.1f}" if found.processor_us_per_message else "",
        f"{found.event_loop_us_per_message:.1f}"
        if found.event_loop_us_per_message and server != PEER
        else "",
        found.note,
    ]


def _milliseconds(latency: Latency | None) -> tuple[str, str, str]:
    return (
        (f"{latency.p50_ms:.2f}", f"{latency.p99_ms:.2f}", f"{latency.p999_ms:.2f}")
        if latency
        else ("", "", "")
    )


def _case_ratios(ours: CaseResult, theirs: CaseResult) -> list[str]:
    """Ours divided by theirs, column by column."""

    def latencies(our: Latency | None, their: Latency | None) -> list[str]:
        if our is None or their is None:
            return ["", "", ""]
        pairs = (
            (our.p50_ms, their.p50_ms),
            (our.p99_ms, their.p99_ms),
            (our.p999_ms, their.p999_ms),
        )
        return [_ratio(*pair) for pair in pairs]

    return [
        "",
        "ratio",
        _ratio(ours.messages_per_s, theirs.messages_per_s),
        _ratio(ours.payload_bytes_per_s, theirs.payload_bytes_per_s),
        *latencies(ours.publish, theirs.publish),
        *latencies(ours.end_to_end, theirs.end_to_end),
        _ratio(ours.processor_us_per_message, theirs.processor_us_per_message),
        "",
        "",
    ]


def _ratios(ours: Measurement, theirs: Measurement) -> list[str]:
    """Ours divided by theirs, column by column."""
    end_to_end = ["", ""]
    if ours.end_to_end and theirs.end_to_end:
        pairs = (
            (ours.end_to_end.p50_ms, theirs.end_to_end.p50_ms),
            (ours.end_to_end.p99_ms, theirs.end_to_end.p99_ms),
        )
        end_to_end = [_ratio(*pair) for pair in pairs]
    return [
        "",
        "ratio",
        _ratio(ours.messages_per_s, theirs.messages_per_s),
        _ratio(ours.payload_bytes_per_s, theirs.payload_bytes_per_s),
        "",
        _ratio(ours.publish.p50_ms, theirs.publish.p50_ms),
        _ratio(ours.publish.p99_ms, theirs.publish.p99_ms),
        _ratio(ours.publish.p999_ms, theirs.publish.p999_ms),
        *end_to_end,
        _ratio(ours.processor_us_per_message, theirs.processor_us_per_message),
        "",
        _ratio(ours.memory_bytes, theirs.memory_bytes),
    ]


def _ratio(ours: float, theirs: float) -> str:
    """`x0.50`, or nothing where the tool rounded the other figure to 0."""
    return f"x{ours / theirs:.2f}" if theirs else ""


def hot_functions(profile: Profile) -> str:
    """The table of one profile."""
    title = (
        f"\nhottest functions of the event loop, {profile.load} (cProfile: shares, not costs;"
        f" {profile.outside_share:.0%} of the time it waited or was inside uvloop):\n"
    )
    headers = ("own time", "own us/msg", "calls/msg", "function")
    rows = [
        (
            f"{one.own_share:.1%}",
            f"{one.own_microseconds_per_message:.2f}",
            f"{one.calls_per_message:.3f}",
            one.name,
        )
        for one in profile.functions
    ]
    return title + table(headers, rows, left_from=3)


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], left_from: int | None = None
) -> str:
    """Columns as wide as their widest cell, numbers to the right; the first two columns (or
    those from `left_from` on) to the left."""
    lines = [headers, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]

    def is_text(column: int) -> bool:
        return column < 2 if left_from is None else column >= left_from

    rendered = (
        "  ".join(
            cell.ljust(width) if is_text(column) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join(line.rstrip() for line in rendered)


def write(findings: Findings, path: Path) -> None:
    """Everything, unrounded, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(findings), indent=2) + "\n")
