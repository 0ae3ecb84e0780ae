"""`python -m dev.soak.compactions --runs 200`: compaction after compaction, while drivers, executors,
brokers and etcd die, and what readers of the view see.

Three brokers and etcd; one driver with one executor at a time, as the operator's pods run them.
Owns: the runs, what hurts them, and the verdict. Imports: dev.soak siblings, the cluster of the
tests, magnetar_jobs' names. Invariants: a run whose driver fails is repeated under its id, as the
operator does; exit code 0 only if every run succeeded in the end, its record said so exactly when
it did, every look at the view found what was promised, and nothing is left that nobody lists.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from dev.soak.keyed_traffic import SHOWN_MAX, KeyedTraffic
from dev.soak.namespaces import create_namespace
from dev.soak.nemesis import HEAL_S_MAX, Nemesis
from dev.soak.run_directory import parser_of, run_in_directory
from dev.testbed.cluster import Cluster, wait_for
from dev.testbed.spark_pods import DRIVER, EXECUTOR_MEMORY_MIB, Pods, Process
from magnetar.clock import SystemClock
from magnetar.compaction.commit import KIND
from magnetar.errors import StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import JobRunRecord
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.storage.manifest import Manifest, load_manifest
from magnetar.storage.names import SEGMENTS
from magnetar.storage.volumes.opening import opened_at
from magnetar_jobs.cluster import bundle_of_topic
from magnetar_jobs.run_record import SUCCEEDED
from magnetar_jobs.store_places import StorePlace, open_store

NAMESPACE = "public/soak-compaction"
TOPIC = TopicName.parse(f"persistent://{NAMESPACE}/keyed")
JOB = "soak"
ENVIRONMENT = {"MAGNETAR_INTENT_AGE_MAX_S": "60"}
CLUSTER_FAULTS = (
    "kill -9", "kill -9 of all", "SIGTERM", "pause > lease", "unload", "split", "etcd restart",
    "etcd stopped", "lease revoked",
)  # fmt: skip
JOB_FAULTS = ("none", "driver", "executor", "driver and executor")
DRIVER_S_MAX = 240.0
ATTEMPTS_MAX = 6
COLLECTED_S_MAX = 300.0
FIRST_RUN_S = 10.0

Answer = TypeVar("Answer")


class Compactions:
    """Runs of one job over one topic."""

    def __init__(self, directory: Path, seed: int, rate: float) -> None:
        self._directory, self._chance = directory, random.Random(f"{seed}/runs")
        self.cluster = Cluster(
            directory, 3, gated=True, fronted=True, environment=dict(ENVIRONMENT)
        )
        self.traffic = KeyedTraffic(self._service_url, str(TOPIC), seed, rate)
        self.nemesis = Nemesis(self.cluster, [str(TOPIC)], seed, CLUSTER_FAULTS)
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._took = FIRST_RUN_S

    @property
    def _service_url(self) -> str:
        return "pulsar://" + ",".join(
            broker.service_url.removeprefix("pulsar://") for broker in self.cluster.brokers.values()
        )

    @property
    def http_url(self) -> str:
        return self.cluster.brokers[self.cluster.entry].http_url

    @property
    def _store(self) -> str:
        host, port = self.cluster.etcd.address
        return f"etcd://{host}:{port}"

    def start(self) -> None:
        self.cluster.start()
        create_namespace(self, NAMESPACE, deduplicated=True)
        self.traffic.start()

    def stop(self) -> None:
        try:
            self.traffic.close()
        finally:
            self.cluster.stop()

    # --- one run ----------------------------------------------------------------------------------

    def run(self, number: int) -> None:
        """One run, from its first attempt to its success, with a fault of the cluster beside it in
        every other one."""
        hurt = threading.Thread(target=self._hurt_cluster, name="nemesis")
        if hurts := self._chance.random() < 0.5:
            hurt.start()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            promised = self.traffic.reached
            code, fault = self._attempt(str(number), attempt)
            if hurts and code != 0:
                hurt.join()  # the next attempt meets a cluster that can answer
            record = _asked(lambda: self._record(str(number)))
            state = record.state if record is not None else "absent"
            self.counts[f"attempts with fault: {fault}"] += 1
            if code == 0 and state != SUCCEEDED:
                self.problems.append(f"run {number}: the driver exited with 0, its record: {state}")
            if state == SUCCEEDED:
                if code != 0:
                    self.counts["success known by the record alone"] += 1
                break
        else:
            self.problems.append(f"run {number}: no success after {ATTEMPTS_MAX} attempts")
        if hurts:
            hurt.join()
        self._judge(number, promised if code == 0 else (-1, -1))

    def _hurt_cluster(self) -> None:
        time.sleep(random.uniform(0.0, self._took))
        try:
            self.nemesis.round()
        except AssertionError as error:
            self.problems.append(f"the cluster did not heal: {error}")
        except Exception as error:  # of a thread: nobody else would hear of it
            self.problems.append(f"the faults broke off: {error!r}")

    def _attempt(self, run: str, attempt: int) -> tuple[int, str]:
        """Exit code of the driver, and what was done to it."""
        fault = self._chance.choice(JOB_FAULTS) if attempt < ATTEMPTS_MAX - 1 else "none"
        with Pods(self._directory, f"soak-{run}-{attempt}") as pods:
            began = time.monotonic()
            driver = pods.start(
                DRIVER, "-m", "magnetar_jobs.compact", "--topic", str(TOPIC), "--store", self._store,
                "--volume", str(self._directory / "volume"), "--job", JOB, "--run", run,
                "--executors", "1", "--executor-memory-mib", str(EXECUTOR_MEMORY_MIB),
            )  # fmt: skip
            executor = pods.executor(1)
            if fault != "none":
                code = _wait(driver, self._chance.uniform(0.0, 1.2 * self._took))
                if code is None:
                    if "executor" in fault:
                        executor.kill()
                        executor = pods.executor(1)
                    if "driver" in fault:
                        driver.kill()
            code = _wait(driver, DRIVER_S_MAX)
            if code is None:
                self.problems.append(f"run {run}: the driver hangs: {driver.said[-500:]}")
                driver.kill()
            elif code == 0 and fault == "none":
                self._took = 0.7 * self._took + 0.3 * (time.monotonic() - began)
        return (code if code is not None else -1), fault

    # --- what is there ----------------------------------------------------------------------------

    async def _record(self, run: str) -> JobRunRecord | None:
        async with self._open() as store:
            item = await store.get(keys.job_run(JOB, run))
            return JobRunRecord.decode(item.value) if item is not None else None

    async def _manifest(self) -> Manifest:
        location = str(self._directory / "volume")
        async with self._open() as store, opened_at(location, SystemClock()) as volume:
            bundle = await bundle_of_topic(store, TOPIC)
            manifest, _, _ = await load_manifest(store, volume, bundle)
            return manifest

    async def _intents(self) -> list[str]:
        async with self._open() as store:
            return [item.key for item in (await store.range(keys.INTENTS)).items]

    def _open(self) -> AbstractAsyncContextManager[MetadataStore]:
        return open_store(StorePlace(self._store), SystemClock())

    def _judge(self, number: int, promised: tuple[int, int]) -> None:
        """After a success: the view has all that was acknowledged before its attempt began."""
        compacted = _asked(self._manifest).topic(str(TOPIC)).compacted
        horizon = compacted.horizon if compacted is not None else (-1, -1)
        self.problems += self.traffic.problems_of(str(number), horizon, promised)
        self.counts["looks"] += 1

    def _stray(self) -> list[str]:
        """Intents, and outputs of compactions that no manifest lists."""
        listed = {
            segment.object
            for topic in _asked(self._manifest).topics.values()
            for segment in (topic.compacted.segments if topic.compacted is not None else ())
        }
        volume = self._directory / "volume"
        files = {str(path.relative_to(volume)) for path in (volume / SEGMENTS).rglob(f"*{KIND}-*")}
        return [*_asked(self._intents), *sorted(files - listed)]

    def settle(self) -> None:
        """Wait until nothing is left that nobody lists."""
        self.cluster.repair()
        try:
            took = wait_for("all is collected", lambda: not self._stray(), COLLECTED_S_MAX)
            print(f"nothing is left behind after {took:.0f} s", flush=True)
        except AssertionError:
            left = self._stray()
            self.problems.append(f"{len(left)} left behind: {left[:SHOWN_MAX]}")


def _asked(question: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """What the store answers, which a fault may keep from it for a while. Raises StoreUnavailable
    after `HEAL_S_MAX`."""
    until = time.monotonic() + HEAL_S_MAX
    while True:
        try:
            return asyncio.run(question())
        except StoreUnavailable:
            if time.monotonic() > until:
                raise


def _wait(process: Process, seconds: float) -> int | None:
    """Its exit code; None if it runs on after so long."""
    try:
        return process.end(seconds)
    except subprocess.TimeoutExpired:
        return None


def soak(directory: Path, *, runs: int, minutes: float, seed: int, rate: float) -> int:
    """The exit code."""
    work = Compactions(directory, seed, rate)
    done, began = 0, time.monotonic()
    try:
        work.start()
        while done < runs and time.monotonic() - began < 60 * minutes and not work.problems:
            done += 1
            work.run(done)
            print(
                f"{time.monotonic() - began:6.0f} s  {done} runs, {work.traffic.sent} messages, "
                f"{len(work.nemesis.faults)} faults of the cluster",
                flush=True,
            )
        work.settle()
    finally:
        work.stop()
    for what, count in sorted((*work.counts.items(), *_kinds(work.nemesis).items())):
        print(f"{count:6}  {what}")
    for problem in (*work.problems, *work.nemesis.problems):
        print(problem)
    failed = work.problems or work.nemesis.problems or work.traffic.failed or done < runs
    return 1 if failed else 0


def _kinds(nemesis: Nemesis) -> Counter[str]:
    return Counter(f"cluster: {fault.kind}" for fault in nemesis.faults)


def main() -> None:
    parser = parser_of("Compact a topic again and again under faults.", 120.0, "the faults")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second")
    chosen = parser.parse_args()

    def run(directory: Path) -> int:
        return soak(
            directory,
            runs=chosen.runs,
            minutes=chosen.minutes,
            seed=int(chosen.seed),
            rate=chosen.rate,
        )

    code = run_in_directory("compactions", chosen, run, f"--seed {chosen.seed}", "client.log")
    print("No anomaly." if code == 0 else "FAILED", flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
