"""`python -m dev.soak.transactions --transactions 10000 --kills 300`: exactly-once applications
under faults, and the check of their history.

Three brokers, two transaction coordinators and etcd; kill -9, SIGSTOP, SIGTERM, cut connections,
moves and splits. With `--peer` Apache Pulsar instead, without faults: what the checker says of it.
Our client, and the official ones of Java and Go. Owns: the run from the start of the cluster to the
verdict. Imports: dev.soak siblings, dev.bench (the peer), the cluster of the tests. Invariants:
exit code 0 only if there is no anomaly, at least so many transactions were begun and so many
processes killed, and every process did as planned; logs are kept, with the seed, when it is
another; everything that was started is stopped.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from dev.bench.pulsar_distribution import ensure
from dev.bench.pulsar_peer import TRANSACTIONS, PulsarPeer
from dev.soak.killing import KilledCluster
from dev.soak.namespaces import create_namespace
from dev.soak.report import fault_table
from dev.soak.run_directory import parser_of, run_in_directory
from dev.soak.transaction_nemesis import TransactionNemesis
from dev.soak.transaction_traffic import TransactionTraffic

NAMESPACE = "public/exactly-once"
PROGRESS_S = 10.0
PATIENCE_S = 60.0
WARM_UP_S = 2.0
SHOWN_MAX = 20


class Progress:
    """One line now and then."""

    def __init__(self, traffic: TransactionTraffic) -> None:
        self._traffic, self._began, self._said = traffic, time.monotonic(), 0.0

    def say(self, more: str = "", *, now: bool = False) -> None:
        elapsed = time.monotonic() - self._began
        if now or elapsed - self._said > PROGRESS_S:
            self._said = elapsed
            counts = self._traffic.all_counts()
            ends = ", ".join(f"{count} {how}" for how, count in sorted(counts.ended.items()))
            print(
                f"{elapsed:6.0f} s  {counts.begun} transactions: {ends}; {counts.moved} messages "
                f"moved; {more}",
                flush=True,
            )


def judge(traffic: TransactionTraffic) -> int:
    """Settle and print the verdict; the number of anomalies."""
    began = time.monotonic()
    found = traffic.settle(PATIENCE_S)
    history = traffic.history
    stored = sum(map(len, history.stored.values()))
    left = sum(map(len, history.remaining.values()))
    print(
        f"looked at {stored} messages, {left} of them not acknowledged, after "
        f"{time.monotonic() - began:.0f} s"
    )
    fates = Counter(txn.fate.value for txn in history.transactions)
    print("fates: " + ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items())))
    trouble = Counter(text.partition(": ")[2][:120] for text in traffic.all_counts().trouble)
    for text, count in trouble.most_common(SHOWN_MAX):
        print(f"  {count} x {text}")
    for anomaly in found[:SHOWN_MAX]:
        print(f"ANOMALY  {anomaly}")
    if len(found) > SHOWN_MAX:
        print(f"... and {len(found) - SHOWN_MAX} more")
    return len(found)


def run_with_faults(
    directory: Path,
    *,
    transactions: int,
    kills: int,
    minutes: float,
    seed: int,
    rate: float,
    languages: list[str],
    only: list[str],
) -> int:
    """The exit code."""
    with KilledCluster(directory / "cluster", NAMESPACE) as killed:
        cluster = killed.cluster
        traffic = TransactionTraffic(
            killed.service_url, NAMESPACE, seed, rate, languages, directory
        )
        nemesis = TransactionNemesis(cluster, killed.coordinators, traffic.topics, seed, only)
        try:
            traffic.start()
            progress, until = Progress(traffic), time.monotonic() + minutes * 60
            time.sleep(WARM_UP_S)
            while time.monotonic() < until and (
                traffic.all_counts().begun < transactions or nemesis.kills < kills
            ):
                nemesis.round()
                progress.say(f"{len(nemesis.faults)} faults, {nemesis.kills} kills")
            cluster.repair()
            progress.say(f"{len(nemesis.faults)} faults, {nemesis.kills} kills; settling", now=True)
            wrong = judge(traffic)
        finally:
            traffic.close()
        print("\n".join(fault_table(nemesis.faults, [])))
        for problem in nemesis.problems:
            print(f"PROBLEM  {problem}")
        enough = traffic.all_counts().begun >= transactions and nemesis.kills >= kills
        if not enough:
            print(
                f"not enough: {traffic.all_counts().begun} of {transactions} transactions, "
                f"{nemesis.kills} of {kills} kills"
            )
        return 0 if enough and not wrong and not nemesis.problems else 1


def run_on_peer(
    directory: Path,
    *,
    transactions: int,
    minutes: float,
    seed: int,
    rate: float,
    languages: list[str],
) -> int:
    """The exit code; without faults."""
    peer = PulsarPeer(ensure(), directory / "peer", TRANSACTIONS)
    try:
        print(f"Apache Pulsar is ready after {peer.start():.0f} s", flush=True)
        create_namespace(peer, NAMESPACE, deduplicated=True)
        traffic = TransactionTraffic(peer.service_url, NAMESPACE, seed, rate, languages, directory)
        return run_calmly(traffic, transactions=transactions, minutes=minutes)
    finally:
        peer.stop()


def run_calmly(traffic: TransactionTraffic, *, transactions: int, minutes: float) -> int:
    """Applications on a server that nobody hurts; the exit code."""
    try:
        traffic.start()
        progress, until = Progress(traffic), time.monotonic() + minutes * 60
        while time.monotonic() < until and traffic.all_counts().begun < transactions:
            time.sleep(0.1)
            progress.say()
        progress.say("settling", now=True)
        return 1 if judge(traffic) or traffic.all_counts().begun < transactions else 0
    finally:
        traffic.close()


def main() -> None:
    parser = parser_of(
        "Hurt a cluster under exactly-once applications, then check their history.",
        60.0,
        "the faults",
    )
    parser.add_argument("--transactions", type=int, default=2000, help="begin at least so many")
    parser.add_argument(
        "--kills", type=int, default=20, help="at least so many processes killed with SIGKILL"
    )
    parser.add_argument("--rate", type=float, default=40.0, help="messages a second per source")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FAULT",
        help="draw from these kinds of faults only",
    )
    parser.add_argument("--peer", action="store_true", help="Apache Pulsar instead, without faults")
    parser.add_argument(
        "--languages", default="java,go", help="official clients beside our own; empty for none"
    )
    chosen = parser.parse_args()
    common = {
        "transactions": chosen.transactions,
        "minutes": chosen.minutes,
        "seed": int(chosen.seed),
        "rate": chosen.rate,
        "languages": [language for language in chosen.languages.split(",") if language],
    }

    def run(directory: Path) -> int:
        if chosen.peer:
            return run_on_peer(directory, **common)
        return run_with_faults(directory, kills=chosen.kills, only=chosen.only, **common)

    repeat = f"--seed {chosen.seed}"
    code = run_in_directory("transactions", chosen, run, repeat, "client.log")
    print("No anomaly." if code == 0 else "FAILED", flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
