"""Parsing what pulsar-perf 4.0.8 printed in recorded runs, and the windows joined from it."""

from __future__ import annotations

import pytest

from dev.bench.perf_output import Latency, Window, join, parse_records, parse_window

PRODUCED = (
    "2026-11-21T10:29:27,126+0000 [main] INFO  org.apache.pulsar.testclient.PerformanceProducer - "
    "Throughput produced:  476492 msg ---"
    "  47647.6 msg/s ---    372.2 Mbit/s  --- failure      0.0 msg/s --- Latency: mean:  16.774 ms "
    "- med:  14.353 - 95pct:  30.615"
    " - 99pct:  50.352 - 99.9pct:  79.148 - 99.99pct:  83.593 - Max:  98.026"
)
RECEIVED = (
    "2026-11-21T10:29:05,077+0000 [main] INFO  org.apache.pulsar.testclient.PerformanceConsumer - "
    "Throughput received:   50022 msg ---"
    " 5002.155  msg/s --- 39.079 Mbit/s  --- Latency: mean: 29.479 ms - med: 11 - 95pct: 197 - "
    "99pct: 351 - 99.9pct: 403 - 99.99pct: 410 - Max: 410"
)
CLOSING = (
    "2026-11-21T10:29:37,148+0000 [perf-client-shutdown] INFO  "
    "org.apache.pulsar.testclient.PerformanceProducer - Aggregated throughput"
    " stats --- 851031 records sent --- 42259.578 msg/s --- 330.153 Mbit/s "
)
CLOSING_LATENCY = (
    "2026-11-21T10:29:37,172+0000 [perf-client-shutdown] INFO  "
    "org.apache.pulsar.testclient.PerformanceProducer - Aggregated latency stats"
    " --- Latency: mean:  15.508 ms - med:  13.425 - 95pct:  27.869 - 99pct:  44.361 - 99.9pct: "
    "105.077 - 99.99pct: 110.116"
    " - 99.999pct: 110.283 - Max: 112.709"
)
CLIENT_STATISTICS = (
    "2026-11-21T10:28:56,926+0000 [pulsar-timer-8-1] INFO  "
    "org.apache.pulsar.client.impl.ProducerStatsRecorderImpl -"
    " [persistent://public/default/p1] [standalone-0-1] --- Publish throughput: 5000.89 msg/s --- "
    "39.07 Mbit/s"
    " --- Latency: med: 8.000 ms - 95pct: 18.000 ms - 99pct: 23.000 ms - 99.9pct: 29.000 ms - max: "
    "29.000 ms --- BatchSize: med: 7.000"
)


def test_a_producers_window() -> None:
    assert parse_window(PRODUCED) == Window(
        476492, 47647.6, 0.0, Latency(14.353, 50.352, 79.148, 98.026)
    )


def test_failed_sends_are_seen() -> None:
    window = parse_window(PRODUCED.replace("failure      0.0", "failure     12.5"))
    assert window is not None
    assert window.failed_rate == 12.5


def test_a_consumers_window() -> None:
    assert parse_window(RECEIVED) == Window(50022, 5002.155, 0.0, Latency(11, 351, 403, 410))


@pytest.mark.parametrize(
    "line", ["", CLOSING, CLOSING_LATENCY, CLIENT_STATISTICS, "Throughput produced: no number"]
)
def test_other_lines_are_no_windows(line: str) -> None:
    """The closing lines above all: their rate counts the idle seconds before the tool ends."""
    assert parse_window(line) is None


def test_the_closing_line_counts_all_messages() -> None:
    assert parse_records(CLOSING) == 851031
    assert parse_records(CLOSING.replace("sent", "received")) == 851031
    assert parse_records(PRODUCED) is None


def test_windows_join_to_mean_rates_and_median_percentiles() -> None:
    windows = [Window(total, rate, 0.0, Latency(*latency)) for total, rate, latency in (
        (100, 10.0, (1.0, 2.0, 3.0, 50.0)), (300, 20.0, (2.0, 9.0, 4.0, 5.0)), (600, 30.0, (9.0, 3.0, 80.0, 6.0)),
    )]  # fmt: skip
    assert join(windows) == Window(600, 20.0, 0.0, Latency(2.0, 3.0, 4.0, 50.0))
