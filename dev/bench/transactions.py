"""`python -m dev.bench.transactions [--aborted 1000000]`: what transactions cost, beside the disk,
no transactions, and (PEER=1) Apache Pulsar.

Owns: the order of the run and its report. Imports: transaction_cases, aborted_transactions,
raw_disk, the peer. Invariants: timing never fails anything; the disk is measured before and after
in the same directory; every process started is stopped.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dev.bench import pulsar_distribution, raw_disk
from dev.bench.aborted_transactions import Aborted, measure_aborted
from dev.bench.pulsar_peer import PulsarPeer
from dev.bench.raw_disk import RawDisk
from dev.bench.report import table
from dev.bench.scenarios import RunningServer
from dev.bench.transaction_cases import (
    Beside,
    Rate,
    TransactionLatency,
    measure_beside,
    measure_latency,
    measure_rates,
)
from dev.kube.report import say
from dev.server_process import ServerProcess

MAGNETAR, PEER = "magnetar", "pulsar"
PEER_SETTINGS = {"transactionCoordinatorEnabled": "true"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    transactions: int
    seconds: float
    pairs: int


FULL, QUICK = Sizes(500, 5.0, 10), Sizes(100, 1.5, 3)


@dataclass(frozen=True, slots=True)
class Found:
    """One server's figures; the flushed write of 4 KiB in the same minutes, in milliseconds."""

    flush_ms: float
    latency: TransactionLatency
    rates: list[Rate]
    beside: Beside


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dev.bench.transactions", description="What transactions cost."
    )
    parser.add_argument("--quick", action="store_true", help="a first look")
    parser.add_argument(
        "--peer",
        action="store_true",
        default=os.environ.get("PEER") == "1",
        help="also Apache Pulsar (or PEER=1)",
    )
    parser.add_argument("--only-peer", action="store_true", help="Apache Pulsar alone")
    parser.add_argument(
        "--aborted",
        type=int,
        default=0,
        help="also reopen a topic after so many aborted transactions",
    )
    parser.add_argument(
        "--directory", type=Path, help="where data is written; decides which disk is measured"
    )
    chosen = parser.parse_args(arguments)
    sizes = QUICK if chosen.quick else FULL
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=chosen.directory) as name:
        directory = Path(name)
        starts: dict[str, Callable[[ExitStack], RunningServer]] = {}
        if not chosen.only_peer:
            starts[MAGNETAR] = lambda running: _start_magnetar(directory, running)
        if chosen.peer or chosen.only_peer:
            starts[PEER] = lambda running: _start_peer(directory, running)
        found = {}
        for server, start in starts.items():
            with ExitStack() as running:
                say(f"starting {server}")
                found[server] = measure(start(running), directory, sizes)
        print(render(found))
        if chosen.aborted:
            say(f"aborting {chosen.aborted} transactions")
            print(render_aborted(measure_aborted(directory / "aborted", chosen.aborted)))
    return 0


def _start_magnetar(directory: Path, running: ExitStack) -> RunningServer:
    server = ServerProcess(directory / MAGNETAR)
    running.callback(server.stop)
    server.start()
    return server


def _start_peer(directory: Path, running: ExitStack) -> RunningServer:
    server = PulsarPeer(pulsar_distribution.ensure(), directory / PEER, PEER_SETTINGS)
    running.callback(server.stop)
    server.start()
    return server


def measure(server: RunningServer, directory: Path, sizes: Sizes) -> Found:
    """All cases on one server; of the latencies those after a first run count, which warms a JVM
    up."""
    url = server.service_url
    say("rates")
    rates = measure_rates(url, sizes.seconds)
    say("latency")
    disk: list[RawDisk] = [raw_disk.measure(directory)]
    found = measure_latency(url, sizes.transactions)
    disk.append(raw_disk.measure(directory))
    say("ordinary traffic beside an open transaction")
    beside = measure_beside(url, server.broker_port, sizes.pairs)
    return Found(raw_disk.median_of(disk).small_p50_ms, found, rates, beside)


def render(found: dict[str, Found]) -> str:
    """The tables."""
    latencies: list[Sequence[str]] = []
    for server, figures in found.items():
        for what, one in (
            ("commit", figures.latency.commit),
            ("whole transaction", figures.latency.whole),
            ("without: send, ack", figures.latency.without),
        ):
            ratios = one.p50_ms / figures.flush_ms, one.p50_ms / figures.latency.without.p50_ms
            latencies.append(
                (
                    what,
                    server,
                    f"{one.p50_ms:.2f}",
                    f"{one.p99_ms:.2f}",
                    *(f"x{ratio:.2f}" for ratio in ratios),
                )
            )
    parts = [
        "one partition, one subscription, one transaction of one message at a time; a flush is 4 "
        "KiB and fdatasync, in the same run, with p50"
        f" {', '.join(f'{figures.flush_ms:.2f} ms ({server})' for server, figures in found.items())}:",
        table(
            ("latency of", "server", "p50 ms", "p99 ms", "of a flush", "of send and ack"), latencies
        ),
        "\ntransactions to one partition, messages of 1 KiB; without: the same messages of the "
        "same client, awaited together:",
        table(
            (
                "in flight",
                "server",
                "messages each",
                "transactions/s",
                "messages/s",
                "rounds/s without",
                "ratio",
            ),
            _rate_rows(found),
        ),
        "\nordinary messages at 500 a second, publish to receive:",
        table(
            ("topic", "server", "p50 ms", "p99 ms", "p99.9 ms", "median change of p99"),
            _beside_rows(found),
        ),
    ]
    return "\n".join(parts)


def _rate_rows(found: dict[str, Found]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for at in range(max(len(figures.rates) for figures in found.values())):
        for server, figures in found.items():
            one = figures.rates[at]
            each = (
                f"{one.transactions_per_s:,.0f}",
                f"{one.transactions_per_s * one.messages:,.0f}",
                f"{one.without_per_s:,.0f}",
            )
            rows.append(
                (
                    str(one.in_flight),
                    server,
                    str(one.messages),
                    *each,
                    f"x{one.transactions_per_s / one.without_per_s:.2f}",
                )
            )
    return rows


def _beside_rows(found: dict[str, Found]) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for server, figures in found.items():
        if figures.beside.blocked:
            rows.append(
                ("with an open transaction", server, "", "", "", "nothing comes before its end")
            )
            continue
        for name, one in zip(
            ("with an open transaction", "without"), figures.beside.latencies, strict=True
        ):
            change = f"{figures.beside.change():+.1%}" if name != "without" else ""
            rows.append(
                (
                    name,
                    server,
                    f"{one.p50_ms:.2f}",
                    f"{one.p99_ms:.2f}",
                    f"{one.p999_ms:.2f}",
                    change,
                )
            )
    return rows


def render_aborted(found: Aborted) -> str:
    """A few lines."""
    lines = [
        f"{found.transactions} aborted transactions of one message, at {found.per_s:,.0f} a second;"
        f" the server grew by {found.memory_bytes / 1e6:.1f} MB"
    ]
    lines += [
        f"  after {how}: server ready in {found.ready_s[how]:.1f} s, topic reopened in "
        f"{seconds * 1000:.0f} ms"
        f" with {found.reopened_processor_s[how] * 1000:.0f} ms of processor time"
        for how, seconds in found.reopened_s.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
