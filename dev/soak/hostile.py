"""`python -m dev.soak.hostile --minutes 60 --seed 1`: an ordinary workload on a real cluster, with
and without a hostile client beside it.

Three brokers, two transaction coordinators, etcd; phases without and with the hostile client take
turns, and clocks jump in the latter. Owns: the run from the start of the cluster to the verdict.
Imports: the cluster of the tests with real clients, dev.soak siblings. Invariants: exit code 0 only
if no promise to the ordinary clients was broken, no attack left a note, no process ended or was
fenced, and no error was logged that nobody foresaw; a latency alone fails nothing; traffic goes to
the loopback only; everything that was started is stopped.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from dev.server_process import HOST, ServerProcess
from dev.soak.hostile_peer import CPU_SHARE, NICE, Plan
from dev.soak.hostile_report import (
    Phase,
    attack_table,
    json_lines,
    latency_table,
    logged_errors,
    stop_lines,
)
from dev.soak.paced import OPERATION_TIMEOUT_S, PacedTraffic
from dev.soak.run_directory import parser_of, run_in_directory
from dev.testbed.cluster import SETTINGS, Cluster, request, wait_for
from dev.testbed.rest import Admin
from magnetar.client import Client

ORDINARY, HOSTILE, HOSTILE_REST, EXPIRING = (
    "public/ordinary",
    "public/hostile",
    "public/hostile-rest",
    "public/expiring",
)
NUM_BUNDLES = 4
HOURS = 6
"""What ordinary messages live at least; the longest jumps of clocks are longer, the run is not."""
TTL_S = 5
EXPIRY_CHECK_S, RETENTION_CHECK_S = 1, 2
EXPIRY_PATIENCE_S = 30.0
ENVIRONMENT = {
    "MAGNETAR_MAX_MESSAGE_BYTES": str(5 << 20),
    "MAGNETAR_LOG_FILE_BYTES": str(32 << 20),
    "MAGNETAR_EXPIRY_CHECK_S": str(EXPIRY_CHECK_S),
    "MAGNETAR_RETENTION_CHECK_S": str(RETENTION_CHECK_S),
    "MAGNETAR_TRIM_GRACE_S": "5",
}
COORDINATORS = 2
RATE = 10.0
PHASE_MINUTES = 5.0
PHASES_MIN = 4
ENTRIES = 120_000
WARM_UP_S = 3.0
PEER_S_MAX = 150.0
SETTLE_S = 60.0
EXPIRING_MESSAGES = 20
SHOWN_MAX = 20


class HostileSoak:
    """One run. `entries`: in the hostile client's own topic; `only`: attacks to draw from, all
    if none is named."""

    def __init__(
        self,
        directory: Path,
        minutes: float,
        seed: str,
        *,
        rate: float = RATE,
        entries: int = ENTRIES,
        phase_minutes: float = PHASE_MINUTES,
        only: Sequence[str] = (),
        clocks: bool = True,
    ) -> None:
        self._directory, self.seed, self._entries = directory, seed, entries
        self._only, self._clocks = list(only), clocks
        count = max(PHASES_MIN, 2 * round(minutes / phase_minutes / 2)) if minutes >= 1 else 2
        self._phase_s, self._phase_count = minutes * 60 / count, count
        self._skew = directory / "skew"
        self._skew.mkdir(parents=True, exist_ok=True)
        program = ("dev.soak.skewed_main", str(self._skew))
        self.cluster = Cluster(directory / "cluster", environment=ENVIRONMENT, program=program)
        settings = {**SETTINGS, **ENVIRONMENT}
        self.coordinators = [
            self.cluster.coordinator(number, settings) for number in range(COORDINATORS)
        ]
        self._rate = rate
        self._turns_path = directory / "turns.jsonl"
        self._plan_path = directory / "plan.json"
        self.phases: list[Phase] = []
        self.problems: list[str] = []
        self.findings: list[str] = []
        self.traffic: PacedTraffic | None = None
        self._resident: dict[str, tuple[int, int]] = {}
        self._claims: dict[str, list[str]] = {}

    @property
    def processes(self) -> dict[str, ServerProcess]:
        """Brokers and coordinators, by name."""
        return {
            process.name: process
            for process in (*self.cluster.brokers.values(), *self.coordinators)
        }

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The attacks that took place."""
        return json_lines(self._turns_path)

    def run(self) -> int:
        """The exit code."""
        self._start()
        connect = partial(Client, self.cluster.service_url, operation_timeout_s=OPERATION_TIMEOUT_S)
        self.traffic = PacedTraffic(connect, ORDINARY, self._rate)
        try:
            self.traffic.start()
            time.sleep(WARM_UP_S)
            before = {name: process.resident_bytes() for name, process in self.processes.items()}
            for number in range(self._phase_count):
                self._phase(hostile=number % 2 == 1)
            self._resident = {
                name: (before[name], process.resident_bytes() if process.running else 0)
                for name, process in self.processes.items()
            }
            self._judge(self.traffic)
        finally:
            self.traffic.close()
        return self._verdict(self.traffic)

    def stop(self) -> None:
        """End all processes."""
        for process in self.coordinators:
            if process.running:
                process.kill()
        self.cluster.stop()

    def _start(self) -> None:
        self.cluster.start()
        for process in self.coordinators:
            process.start(wait=False)
        for process in self.coordinators:
            process.wait_ready()
        partitions = "/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions"
        for broker in self.cluster.brokers.values():
            url = broker.http_url + partitions
            wait_for(
                "the coordinators are announced",
                lambda url=url: (  # type: ignore[misc]
                    request("GET", url)[1]["partitions"] == COORDINATORS
                ),
            )
        admin = Admin(self.cluster.brokers[self.cluster.entry])
        bundles = {"bundles": {"numBundles": NUM_BUNDLES}}
        kept = {
            "retention_policies": {"retentionTimeInMinutes": HOURS * 60, "retentionSizeInMB": -1}
        }
        admin.call(
            "PUT",
            f"namespaces/{ORDINARY}",
            {
                **bundles,
                **kept,
                "message_ttl_in_seconds": HOURS * 3600,
                "deduplicationEnabled": True,
            },
        )
        admin.call("PUT", f"namespaces/{EXPIRING}", {**bundles, "message_ttl_in_seconds": TTL_S})
        for name in (HOSTILE, HOSTILE_REST):
            admin.call("PUT", f"namespaces/{name}", bundles)
        admin.topic("PUT", f"persistent://{ORDINARY}/parts", "partitions", 3)
        plan = self._plan()
        self._plan_path.write_text(json.dumps(asdict(plan)))
        self._peer("-1").wait(PEER_S_MAX)
        self._claims = {name: self.cluster.claims(name) for name in self.processes}

    def _plan(self) -> Plan:
        return Plan(
            seed=self.seed,
            http_urls=[broker.http_url for broker in self.cluster.brokers.values()],
            coordinators=[(HOST, process.broker_port) for process in self.coordinators],
            namespace=HOSTILE,
            rest_namespace=HOSTILE_REST,
            victims=[
                f"persistent://{ORDINARY}/{name}"
                for name in ("exclusive", "shared", "failover", "key_shared", "parts-partition-0")
            ],
            servers=list(self.processes),
            skew_directory=str(self._skew),
            turns_path=str(self._turns_path),
            entries=self._entries,
            only=self._only,
            clocks=self._clocks,
        )

    def _peer(self, first: str) -> subprocess.Popen[bytes]:
        with (self._directory / "hostile-peer.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dev.soak.hostile_peer", str(self._plan_path), first],
                stdout=log,
                stderr=log,
            )

    def _phase(self, *, hostile: bool) -> None:
        assert self.traffic is not None
        began = time.monotonic()
        peer = self._peer(str(len(self.turns))) if hostile else None
        while time.monotonic() - began < self._phase_s:
            time.sleep(min(1.0, self._phase_s))
            if peer is not None and peer.poll() is not None:
                self.problems.append(
                    f"the hostile client itself ended with {peer.returncode}; see hostile-peer.log"
                )
                break
            for name, process in self.processes.items():
                if not process.running and not any(name in problem for problem in self.problems):
                    self.problems.append(f"{name} ended: {process.log_tail()[-300:]}")
        if peer is not None and peer.poll() is None:
            peer.send_signal(signal.SIGTERM)
            try:
                peer.wait(PEER_S_MAX)
            except subprocess.TimeoutExpired:
                peer.kill()
                self.problems.append("the hostile client did not end")
        self.phases.append(Phase(hostile, began, time.monotonic()))
        receipts = sum(len(topic.receipts) for topic in self.traffic.all_topics)
        print(
            f"{'hostile' if hostile else 'calm':>8}, {time.monotonic() - began:.0f} s; so far "
            f"{len(self.turns)} attacks,"
            f" {receipts} messages acknowledged, {len(self.traffic.deliveries)} delivered",
            flush=True,
        )

    # --- the verdict ------------------------------------------------------------------------------

    def _judge(self, traffic: PacedTraffic) -> None:
        try:
            self.cluster.wait_healthy(SETTLE_S)
        except AssertionError as error:
            self.problems.append(str(error))
        self.problems += traffic.settled(SETTLE_S)
        self._check_expiry(traffic)
        for name, process in self.processes.items():
            if not process.running:
                self.problems.append(f"{name} has ended")
        for name in self.cluster.brokers:
            if self.cluster.claims(name) != self._claims[name]:
                self.problems.append(
                    f"{name} was fenced or began again: {self._claims[name]} became "
                    f"{self.cluster.claims(name)}"
                )

    def _check_expiry(self, traffic: PacedTraffic) -> None:
        """After all jumps messages still expire: a subscription without a consumer is empty once
        its messages have lived their time."""
        topic = f"persistent://{EXPIRING}/after"

        async def publish() -> None:
            await (
                await traffic.client.subscribe(topic, "nobody", initial_position="Earliest")
            ).close()
            producer = await traffic.client.create_producer(topic)
            for number in range(EXPIRING_MESSAGES):
                await producer.send(f"{number}".encode())
            await producer.close()

        def backlog() -> int:
            stats = Admin(self.cluster.brokers[self.cluster.entry]).topic("GET", topic, "stats")
            return int(stats["subscriptions"]["nobody"]["msgBacklog"])

        try:
            traffic.call(publish())
            wait_for(
                "messages expire after their time to live",
                lambda: backlog() == 0,
                TTL_S + EXPIRY_PATIENCE_S,
            )
        except (
            Exception
        ) as error:  # a refusal, no answer, or the time is over: in any case it does not work
            self.problems.append(f"expiry: {error}")

    def _stops(self) -> dict[str, list[dict[str, Any]]]:
        return {name: json_lines(self._skew / f"{name}.stops") for name in self.processes}

    def _verdict(self, traffic: PacedTraffic) -> int:
        turns, stops = self.turns, self._stops()
        found = traffic.violations()
        self.findings = [
            f"{turn['attack']} (attack {turn['number']}): {note}"
            for turn in turns
            for note in turn["notes"]
        ]
        kinds = {
            "publish to receipt": traffic.receipts,
            "publish to delivery": traffic.deliveries,
            "transaction": traffic.commits,
        }
        print(
            f"\nseed {self.seed}, {len(turns)} attacks of "
            f"{len({turn['attack'] for turn in turns})} kinds; {traffic.strangers} of their"
        )
        print("messages came to ordinary consumers, and were ignored.")
        print(
            f"The hostile client ran at nice {NICE} and slept to use at most {CPU_SHARE:.0%} of "
            "one CPU.\n"
        )
        print(
            "\n".join(
                [
                    *latency_table(kinds, self.phases),
                    "",
                    *attack_table(turns, stops, traffic.deliveries),
                    "",
                ]
            )
        )
        print("\n".join(stop_lines(stops, self.phases)))
        for name, (before, after) in self._resident.items():
            print(f"memory of {name:<16} {before >> 20} MiB before, {after >> 20} MiB after")
        for name, process in self.processes.items():
            for text, count in logged_errors(process.log_path).most_common(SHOWN_MAX):
                self.findings.append(f"{name} logged {count} x {text}")
        trouble: dict[str, int] = {}
        for text in traffic.trouble:
            trouble[text[:140]] = trouble.get(text[:140], 0) + 1
        for text, count in sorted(trouble.items(), key=lambda item: -item[1])[:SHOWN_MAX]:
            print(f"  ordinary client, {count} x {text}")
        for kind, lines in (
            ("VIOLATION", found),
            ("PROBLEM", self.problems),
            ("FINDING", self.findings),
        ):
            for line in lines[:SHOWN_MAX]:
                print(f"{kind}  {line}")
        good = (
            not found
            and not self.problems
            and not self.findings
            and bool(turns)
            and bool(traffic.deliveries)
        )
        print("No promise was broken." if good else "FAILED", flush=True)
        return 0 if good else 1


def main() -> None:
    parser = parser_of(
        "An ordinary workload with and without a hostile client beside it.", 60.0, "the attacks"
    )
    parser.add_argument(
        "--rate", type=float, default=RATE, help="messages a second per ordinary topic"
    )
    parser.add_argument(
        "--phase-minutes",
        type=float,
        default=PHASE_MINUTES,
        help="length of a phase (at least four of them)",
    )
    parser.add_argument(
        "--entries", type=int, default=ENTRIES, help="entries in the hostile client's own topic"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="ATTACK", help="draw from these attacks only"
    )
    parser.add_argument("--true-clocks", action="store_true", help="leave the wall clocks alone")
    chosen = parser.parse_args()
    # everything that was started ends with this process
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))

    def run(directory: Path) -> int:
        soak = HostileSoak(
            directory,
            chosen.minutes,
            chosen.seed,
            rate=chosen.rate,
            entries=chosen.entries,
            phase_minutes=chosen.phase_minutes,
            only=chosen.only,
            clocks=not chosen.true_clocks,
        )
        try:
            return soak.run()
        finally:
            soak.stop()

    repeat = f"make soak-hostile MINUTES={chosen.minutes:g} SEED={chosen.seed}"
    sys.exit(run_in_directory("hostile", chosen, run, repeat))


if __name__ == "__main__":
    main()
