"""What `pulsar-perf` prints.

Owns: parsing of its lines and joining of its windows. Imports: the standard library. Pure. The tool
reports every 10 s, each line being one window with its own histogram. Its closing "Aggregated" line
is not used for rates: it divides by the incarnation of the process, in which the tool idles up to
10 s after the last message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

WINDOW_S = 10.0

_NUMBER = r"([\d.]+)"
_WINDOW = re.compile(rf"Throughput (?:produced|received):\s*(\d+) msg\s*---\s*{_NUMBER}\s+msg/s")
_FAILURE = re.compile(rf"failure\s+{_NUMBER}\s+msg/s")
_LATENCY = re.compile(
    rf"Latency: mean:\s*{_NUMBER} ms - med:\s*{_NUMBER} - 95pct:\s*{_NUMBER} - 99pct:\s*{_NUMBER}"
    rf" - 99\.9pct:\s*{_NUMBER} - 99\.99pct:\s*{_NUMBER} - Max:\s*{_NUMBER}"
)
_RECORDS = re.compile(r"Aggregated throughput stats --- (\d+) records (?:sent|received)")


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds; whole ones for end-to-end figures."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Window:
    """One report: messages since the tool's start, and rates (per second) and latency of the
    last 10 s."""

    messages_total: int
    rate: float
    failed_rate: float
    latency: Latency


def parse_window(line: str) -> Window | None:
    """The window that a line of `produce` or `consume` reports; None for any other line."""
    throughput, latency = _WINDOW.search(line), _LATENCY.search(line)
    if throughput is None or latency is None:
        return None
    failure = _FAILURE.search(line)
    _, p50, _, p99, p999, _, highest = (float(value) for value in latency.groups())
    return Window(
        messages_total=int(throughput[1]),
        rate=float(throughput[2]),
        failed_rate=float(failure[1]) if failure else 0.0,
        latency=Latency(p50, p99, p999, highest),
    )


def parse_records(line: str) -> int | None:
    """All messages of the run, from the closing line; None for any other line."""
    found = _RECORDS.search(line)
    return int(found[1]) if found else None


def join(windows: Sequence[Window]) -> Window:
    """One window for several: mean rates, the median of each percentile over the windows, the
    highest maximum.

    Percentiles of separate histograms cannot be merged exactly; the median says what a window
    usually looks like.
    """
    assert windows, "at least one window must have been measured"
    latencies = [window.latency for window in windows]
    return Window(
        messages_total=windows[-1].messages_total,
        rate=fmean(window.rate for window in windows),
        failed_rate=fmean(window.failed_rate for window in windows),
        latency=Latency(
            p50_ms=median(latency.p50_ms for latency in latencies),
            p99_ms=median(latency.p99_ms for latency in latencies),
            p999_ms=median(latency.p999_ms for latency in latencies),
            max_ms=max(latency.max_ms for latency in latencies),
        ),
    )
