"""The report of what transactions cost: figures stand beside the disk, no transactions, and the
other server."""

from __future__ import annotations

from dev.bench.aborted_transactions import Aborted
from dev.bench.perf_output import Latency
from dev.bench.transaction_cases import Beside, Rate, TransactionLatency
from dev.bench.transactions import Found, render, render_aborted


def found(commit_ms: float) -> Found:
    one = Latency(commit_ms, 3 * commit_ms, 4 * commit_ms, 5 * commit_ms)
    beside = Beside([0.002] * 10, [0.001] * 10, [(0.0011, 0.001), (0.003, 0.001), (0.0009, 0.001)])
    without = Latency(2.0, 3.0, 4.0, 5.0)
    return Found(2.0, TransactionLatency(one, one, without), [Rate(50, 10, 40.0, 80.0)], beside)


def test_every_figure_has_its_ratio() -> None:
    """A commit in flushes of the same disk, a rate beside the same rounds without, the median
    change of the p99 over pairs of windows."""
    text = render({"magnetar": found(3.0), "pulsar": found(9.0)})
    rows = [line.split() for line in text.splitlines()]
    assert ["commit", "magnetar", "3.00", "9.00", "x1.50", "x1.50"] in rows
    assert ["commit", "pulsar", "9.00", "27.00", "x4.50", "x4.50"] in rows
    assert ["50", "magnetar", "10", "40", "400", "80", "x0.50"] in rows
    assert next(row for row in rows if row[:2] == ["with", "an"])[-1] == "+10.0%"


def test_reopening_is_reported_for_each_way_in_which_the_server_had_ended() -> None:
    """With the time until the server was ready beside it."""
    aborted = Aborted(1000, 500.0, 2_000_000, {"kill -9": 0.5}, {"kill -9": 0.25}, {"kill -9": 1.5})
    assert (
        "after kill -9: server ready in 1.5 s, topic reopened in 500 ms with 250 ms of processor "
        "time" in render_aborted(aborted)
    )
    assert "grew by 2.0 MB" in render_aborted(aborted)
