"""`python -m dev.soak.compaction_pods --runs 20`: compaction after compaction by one DataJob on the
Kubernetes that `make cluster` made, while the pods of drivers, executors, operator, brokers and etcd
are deleted at any time.

Owns: the runs, the deletions, and the verdict. Imports: dev.cluster, dev.soak siblings. Invariants:
pods are deleted by force, as a node's end would; a run that succeeds by the DataJob's status has
compacted all that was acknowledged before it was requested; exit code 0 only if every run succeeded
in its time, every look at the view found what was promised, and no pod of a run is left at work.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dev import cluster
from dev.soak.keyed_traffic import KeyedTraffic
from dev.soak.namespaces import create_namespace
from dev.soak.run_directory import parser_of, run_in_directory
from magnetar.names import TopicName

JOB, CLUSTER = "soak-compaction", "main"
BROKERS = 2
PART = "app.kubernetes.io/component"
SELECTORS = {
    "driver": ("default", f"magnetar.io/job={JOB},{PART}=driver"),
    "executor": ("default", f"magnetar.io/job={JOB},{PART}=executor"),
    "operator": (cluster.SYSTEM_NAMESPACE, "app.kubernetes.io/name=magnetar"),
    "broker": ("default", f"magnetar.io/cluster={CLUSTER},{PART}=broker"),
    "etcd": ("default", f"magnetar.io/cluster={CLUSTER},{PART}=etcd"),
}
"""Where the pods of each part are, and their labels."""
KILLS_MAX = 3
RUN_S_MAX, READY_S_MAX, IDLE_S_MAX = 900.0, 300.0, 120.0
FIRST_RUN_S = 40.0
POLL_S = 1.0


def manifest_of(topic: TopicName) -> dict[str, Any]:
    """The job of this soak. Attempts are many: each run may lose several drivers."""
    return {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": "DataJob",
        "metadata": {"name": JOB, "namespace": "default"},
        "spec": {
            "clusterRef": {"name": CLUSTER},
            "type": "Compaction",
            "compaction": {"topic": str(topic)},
            "runRequest": "soak-0",
            "attemptsMax": 2 * KILLS_MAX + 2,
            "driver": {"cpu": "100m"},
            "executors": {"instances": 1, "cores": 1, "cpu": "200m", "memoryMib": 512},
        },
    }


class CompactionPods:
    """Runs of one DataJob over one topic."""

    def __init__(self, seed: int, rate: float) -> None:
        self._tools = cluster.tools("")
        self._chance = random.Random(f"{seed}/pods")
        self._namespace = f"public/{JOB}-{seed}"
        self.topic = TopicName.parse(f"persistent://{self._namespace}/keyed")
        address = self._text("get", "service", CLUSTER, "-o", "jsonpath={.spec.clusterIP}")
        self.http_url = f"http://{address}:8080"
        self.traffic = KeyedTraffic(f"pulsar://{address}:6650", str(self.topic), seed, rate)
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._took = FIRST_RUN_S

    # --- kubectl ----------------------------------------------------------------------------------

    def _kubectl(self, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._tools.kubectl, *arguments],
            input=given, text=True, capture_output=True, check=False,
        )  # fmt: skip

    def _text(self, *arguments: str, given: str = "") -> str:
        """What kubectl answers, as soon as it does. Raises AssertionError."""
        answer = [""]

        def answered() -> bool:
            result = self._kubectl(*arguments, given=given)
            answer[0] = result.stdout
            return result.returncode == 0

        _until(f"kubectl {' '.join(arguments)}", answered, READY_S_MAX)
        return answer[0]

    def _pods(self, part: str) -> list[dict[str, Any]]:
        namespace, selector = SELECTORS[part]
        found: list[dict[str, Any]] = json.loads(
            self._text("get", "pods", "-n", namespace, "-l", selector, "-o", "json")
        )["items"]
        return found

    def _at_work(self, part: str) -> list[str]:
        """Names of the pods that have not ended."""
        return [
            pod["metadata"]["name"]
            for pod in self._pods(part)
            if pod["status"].get("phase") in ("Pending", "Running")
        ]

    # --- one run ----------------------------------------------------------------------------------

    def start(self) -> None:
        self._text("scale", f"brokercluster/{CLUSTER}", f"--replicas={BROKERS}")
        _until("the brokers", self._healthy, READY_S_MAX)
        create_namespace(self, self._namespace, deduplicated=True)
        self.traffic.start()
        self._text("apply", "-f", "-", given=json.dumps(manifest_of(self.topic)))
        self._end_of("soak-0")

    def stop(self) -> None:
        self.traffic.close()
        self._kubectl("delete", "datajob", JOB, "--wait=false", "--ignore-not-found")

    def _healthy(self) -> bool:
        ready = '{.status.readyReplicas} {.status.conditions[?(@.type=="Ready")].status}'
        answer = self._kubectl("get", "brokercluster", CLUSTER, "-o", f"jsonpath={ready}")
        return answer.stdout.strip() == f"{BROKERS} True"

    def run(self, number: int) -> None:
        """Request one run, delete pods while it works, and judge what it says."""
        name, promised = f"soak-{number}", self.traffic.reached
        change = json.dumps({"spec": {"runRequest": name}})
        self._text("patch", "datajob", JOB, "--type", "merge", "-p", change)
        kills = threading.Thread(target=self._kill, name="kills")
        kills.start()
        began = time.monotonic()
        ended = self._end_of(name)
        self._took = 0.7 * self._took + 0.3 * (time.monotonic() - began)
        kills.join()
        _until("the cluster is whole again", self._healthy, READY_S_MAX)
        self.counts[f"run {ended['state']}"] += 1
        if ended["state"] != "Succeeded":
            self.problems.append(f"run {name}: {json.dumps(ended)}")
            return
        ledger, _, entry = ended["result"]["horizon"].partition(":")
        horizon = int(ledger), int(entry)
        self.problems += self.traffic.problems_of(name, horizon, promised)
        self.counts["looks"] += 1

    def _kill(self) -> None:
        try:
            self._delete_pods()
        except Exception as error:
            self.problems.append(f"the deletions ended: {type(error).__name__}: {error}")

    def _delete_pods(self) -> None:
        began = time.monotonic()
        times = sorted(
            self._chance.uniform(0, self._took) for _ in range(self._chance.randint(0, KILLS_MAX))
        )
        parts = [self._chance.choice(list(SELECTORS)) for _ in times]
        for after, part in zip(times, parts, strict=True):
            time.sleep(max(0.0, began + after - time.monotonic()))
            names = self._at_work(part)
            if not names:
                self.counts[f"no {part} to delete"] += 1
                continue
            namespace, _ = SELECTORS[part]
            self._kubectl(
                "delete", "pod", self._chance.choice(names), "-n", namespace,
                "--force", "--grace-period=0", "--wait=false",
            )  # fmt: skip
            self.counts[f"deleted: {part}"] += 1

    def _end_of(self, name: str) -> dict[str, Any]:
        """What the status says of a requested run once it has ended, or at the end of its time."""
        found: dict[str, Any] = {"state": "absent"}

        def ended() -> bool:
            answer = self._kubectl("get", "datajob", JOB, "-o", "json")
            history = json.loads(answer.stdout or "{}").get("status", {}).get("history", [])
            for run in history:
                if run["run"].rpartition("-")[0] == name:
                    found.update(run)
            return found["state"] in ("Succeeded", "Failed", "Replaced")

        with suppress(AssertionError):
            _until(f"the end of {name}", ended, RUN_S_MAX)
        return found

    def settle(self) -> None:
        """Nothing of a run is at work once all have ended."""
        left: list[str] = []

        def idle() -> bool:
            left[:] = [*self._at_work("driver"), *self._at_work("executor")]
            return not left

        try:
            _until("no pod of a run is left", idle, IDLE_S_MAX)
        except AssertionError:
            self.problems.append(f"left at work: {left}")


def _until(what: str, reached: Callable[[], bool], seconds: float) -> None:
    """Ask again and again: kubectl takes a tenth of a second of a processor. Raises
    AssertionError."""
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < seconds, f"{what}: not within {seconds:.0f} s"
        time.sleep(POLL_S)


def soak(*, runs: int, minutes: float, seed: int, rate: float) -> int:
    """The exit code."""
    work = CompactionPods(seed, rate)
    done, began = 0, time.monotonic()
    try:
        work.start()
        while done < runs and time.monotonic() - began < 60 * minutes and not work.problems:
            done += 1
            work.run(done)
            took = time.monotonic() - began
            print(f"{took:6.0f} s  {done} runs, {work.traffic.sent} messages", flush=True)
        work.settle()
    finally:
        work.stop()
    for what, count in sorted(work.counts.items()):
        print(f"{count:6}  {what}")
    for problem in work.problems:
        print(problem)
    return 1 if work.problems or work.traffic.failed or done < runs else 0


def main() -> None:
    parser = parser_of(
        "Compact a topic again and again by a DataJob while pods are deleted.",
        60.0,
        "the deletions",
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=50.0, help="messages a second")
    chosen = parser.parse_args()

    def run(_directory: Path) -> int:
        return soak(
            runs=chosen.runs, minutes=chosen.minutes, seed=int(chosen.seed), rate=chosen.rate
        )

    code = run_in_directory("compaction-pods", chosen, run, f"--seed {chosen.seed}", "client.log")
    print("No anomaly." if code == 0 else "FAILED", flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
