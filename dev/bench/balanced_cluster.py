"""`python -m dev.bench.balanced_cluster`: five brokers under a skewed load from an official client,
with load balancing and without it.

Owns: the run (all load on one broker, the others join), its figures and their table. Imports:
testbed (cluster, skewed load), report. Real processes on this machine share its cores; a timing
never fails the run, a message that is lost, duplicated or reordered does.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dev.bench.report import table
from dev.testbed.cluster import Cluster, request
from dev.testbed.skewed_load import SkewedLoad, messages_in
from magnetar.names import BundleName, TopicName

NAMESPACE = "public/skewed"
BUNDLES = 32
WINDOW_S = 5.0
SETTLED_S = 60.0
MOVE_S = 10.0
"""Messages sent so long after a decision belong to its moves."""
HEADERS = (
    "balancing", "settled s", "max/mean then, worst", "median", "moves", "splits", "gap p50 ms",
    "p99 ms", "messages", "failed", "lost", "duplicated", "reordered",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """One run. Ratios are of the largest message rate to the mean, in windows of `WINDOW_S`;
    gaps are the longest latencies of each moved topic, in milliseconds."""

    balancing: str
    settled_s: float | None
    worst_ratio: float
    median_ratio: float
    moves: int
    splits: int
    gap_p50_ms: float
    gap_p99_ms: float
    messages: int
    failed: int
    lost: int
    duplicated: int
    reordered: int

    @property
    def broken(self) -> bool:
        return bool(self.failed or self.lost or self.duplicated or self.reordered)


def _asked(url: str, method: str = "GET", body: object = None) -> Any:
    status, found = request(method, url, body=body)
    if status >= 300:
        raise SystemExit(f"{method} {url}: status {status}: {found}")
    return found


def _ratios(cluster: Cluster, seconds: float) -> list[tuple[float, float]]:
    """(seconds since the start, max/mean) of one window after another."""
    found, started = [], time.monotonic()
    before = messages_in(cluster)
    while (since := time.monotonic() - started) < seconds:
        time.sleep(WINDOW_S)
        now = messages_in(cluster)
        rates = [new - old for new, old in zip(now, before, strict=True)]
        before = now
        found.append((since + WINDOW_S, max(rates) * len(rates) / max(sum(rates), 1.0)))
        print(f"  {since + WINDOW_S:5.0f} s  max/mean {found[-1][1]:.3f}", file=sys.stderr)
    return found


def _decisions(cluster: Cluster) -> list[dict[str, Any]]:
    url, found = cluster.brokers[cluster.entry].http_url, list[dict[str, Any]]()
    while True:
        before = f"&before={found[-1]['id']}" if found else ""
        page = _asked(f"{url}/magnetar/v1/balance/history?count=100{before}")
        found += page
        if not page:
            return found


def _gaps_ms(load: SkewedLoad, decisions: list[dict[str, Any]]) -> list[float]:
    """The longest latency of each topic of each moved bundle, shortly after the decision."""
    found = []
    for decision in decisions:
        begun = decision["at_ms"] / 1000
        for move in decision["moves"]:
            bundle = BundleName.parse(move["bundle"])
            for topic, seen in load.topics.items():
                if bundle.contains(TopicName.parse(topic)):
                    near = [took for sent, took in seen.latencies if 0 <= sent - begun < MOVE_S]
                    found.append(1000 * max(near, default=0.0))
    return sorted(found) or [0.0]


def measure(directory: Path, options: argparse.Namespace, balancing: bool) -> Found:
    """One run."""
    with Cluster(directory, brokers=options.brokers) as cluster:
        entry = cluster.brokers[cluster.entry]
        admin = f"{entry.http_url}/admin/v2"
        _asked(f"{admin}/namespaces/{NAMESPACE}", "PUT", {"bundles": {"numBundles": BUNDLES}})
        if not balancing:
            _asked(f"{admin}/brokers/configuration/loadBalancerEnabled/false", "POST")
        others = [broker for name, broker in cluster.brokers.items() if name != cluster.entry]
        for broker in others:
            broker.stop()
        topics = [f"persistent://{NAMESPACE}/topic-{at}" for at in range(options.topics)]
        load = SkewedLoad(entry.service_url, topics, options.rate)
        with load.flowing():
            for broker in others:
                broker.start()
            ratios = _ratios(cluster, options.seconds)
            decisions = _decisions(cluster)
            names = _asked(f"{admin}/namespaces/{NAMESPACE}/bundles")["boundaries"]
        gaps = _gaps_ms(load, decisions)
    return Found(
        balancing="on" if balancing else "off",
        settled_s=_settled(ratios, options.even),
        worst_ratio=max((ratio for at, ratio in ratios if at > SETTLED_S), default=0.0),
        median_ratio=sorted(ratio for _, ratio in ratios)[len(ratios) // 2],
        moves=sum(decision["moves_total"] for decision in decisions),
        splits=len(names) - 1 - BUNDLES,
        gap_p50_ms=gaps[len(gaps) // 2],
        gap_p99_ms=gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))],
        messages=load.sent,
        failed=sum(load.failures.values()),
        lost=load.lost,
        duplicated=load.duplicated,
        reordered=load.reordered,
    )


def _settled(ratios: list[tuple[float, float]], even: float) -> float | None:
    """When the last uneven window ended; None if that was the last one."""
    uneven = [at for at, ratio in ratios if ratio > even]
    if not uneven:
        return 0.0
    return uneven[-1] if uneven[-1] < ratios[-1][0] else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dev.bench.balanced_cluster")
    parser.add_argument("--brokers", type=int, default=5)
    parser.add_argument("--topics", type=int, default=60)
    parser.add_argument("--rate", type=float, default=1500.0, help="messages/s, all topics")
    parser.add_argument("--seconds", type=float, default=660.0)
    parser.add_argument("--even", type=float, default=1.15, help="max/mean that counts as even")
    parser.add_argument("--only", choices=("on", "off"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    for balancing in [options.only] if options.only else ["on", "off"]:
        with tempfile.TemporaryDirectory(prefix="magnetar-balanced-") as directory:
            found.append(measure(Path(directory), options, balancing == "on"))
    if options.json:
        print(json.dumps([asdict(run) for run in found]))
    else:
        print(table(HEADERS, [_cells(run) for run in found]))
    sys.exit(any(run.broken for run in found))


def _cells(run: Found) -> list[str]:
    return [
        "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
        for value in asdict(run).values()
    ]


if __name__ == "__main__":
    main()
