"""`python -m dev.bench.operator_scale`: the operator with ten thousand TopicNamespaces on a real
API server.

Owns: the phases (new objects, steady state, restart, edits), what is measured in each and the
printed table. Imports: tests.apiserver's control plane, the operator's HTTP connection. Invariants:
API server, etcds and operator are processes on this machine and share its cores, the operator is
the one that the chart starts; whatever was started is stopped; timing never fails the run, a
namespace that does not converge does.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from dev.testbed.control_plane import ROOT, ControlPlane, EtcdProcess
from dev.testbed.operator_process import OperatorProcess
from magnetar_operator.kube.connection import Connection, connect, login

NAMESPACE = "many"
ROOT_PATH = f"/apis/magnetar.io/v1alpha1/namespaces/{NAMESPACE}"
CREATORS = 16
TIMEOUT_S = 900.0
POLL_S = 0.5  # a reading costs the operator some milliseconds
RESYNC_S = 20
SYNCED = "magnetar_operator_synced_timestamp_seconds"
LAST_SUCCESS = "magnetar_operator_reconcile_last_success_timestamp_seconds"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class NotConverged(RuntimeError):
    """Something did not converge."""


# --- the operator as a process --------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """The operator's own account at one moment."""

    at: float
    cpu_s: float
    samples: dict[str, float]

    def total(self, name: str, **labels: str) -> float:
        wanted = {f'{label}="{value}"' for label, value in labels.items()}
        return sum(
            value
            for sample, value in self.samples.items()
            if sample.partition("{")[0] == name
            and wanted <= set(sample.partition("{")[2].rstrip("}").split(","))
        )

    @property
    def passes(self) -> float:
        return self.total("controller_runtime_reconcile_total", controller="TopicNamespace")

    @property
    def writes(self) -> float:
        """Changes that were carried out, but for the Lease (PUT) and the sentinel, which go by
        the clock."""
        beats = self.total("magnetar_operator_sentinel_beats_total")
        return (
            self._sent(lambda code: code.startswith("2"))
            + self.total("magnetar_operator_store_writes_total")
            - beats
        )

    @property
    def failures(self) -> float:
        """Changes that were tried and refused, or not answered."""
        return self._sent(lambda code: not code.startswith("2"))

    def _sent(self, counts: Callable[[str], bool]) -> float:
        found = 0.0
        for sample, value in self.samples.items():
            name, _, labels = sample.partition("{")
            known = dict(label.split("=", 1) for label in labels.rstrip("}").split(",") if label)
            if name == "rest_client_requests_total" and known["method"].strip('"') in (
                "PATCH",
                "POST",
                "DELETE",
            ):
                found += value if counts(known["code"].strip('"')) else 0.0
        return found


class MeasuredOperator(OperatorProcess):
    """An operator that is read from outside."""

    def read(self) -> Reading | None:
        """None while it does not answer yet."""
        if self.process.poll() is not None:
            raise NotConverged(f"the operator ended: {self.log()[-1500:]}")
        status, text = self.answer("/metrics")
        if status != 200:
            return None
        samples = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return Reading(time.monotonic(), self.cpu_s(), samples)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def resident_mib(self) -> tuple[float, float]:
        """Now, and the most there was."""
        found = {}
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = int(value.split()[0]) / 1024
        return found["VmRSS"], found["VmHWM"]

    async def until(self, what: str, holds: Callable[[Reading], bool]) -> Reading:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            reading = await asyncio.to_thread(self.read)
            if reading is not None and holds(reading):
                return reading
            if time.monotonic() > deadline:
                raise NotConverged(f"not within {TIMEOUT_S:.0f} s: {what}; {self.log()[-1500:]}")
            await asyncio.sleep(POLL_S)


# --- the stage ------------------------------------------------------------------------------------


@contextmanager
def control_plane(directory: Path) -> Iterator[tuple[ControlPlane, EtcdProcess]]:
    """API server with definitions and rights, and the etcd of the cluster under test."""
    plane, etcd = ControlPlane(directory / "plane"), EtcdProcess(directory / "etcd")
    try:
        plane.start()
        etcd.start()
        for path in sorted((ROOT / "crds").glob("*.yaml")):
            plane.must(
                "POST",
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                yaml.safe_load(path.read_text()),
            )
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
        plane.install_rights()
        plane.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        yield plane, etcd
    finally:
        etcd.stop()
        plane.stop()


async def must(
    connection: Connection,
    method: str,
    path: str,
    body: Any = None,
    content_type: str = "application/json",
) -> Any:
    answer = await connection.exchange(method, path, body, content_type, 60.0)
    if not 200 <= answer.status < 300:
        raise NotConverged(f"{method} {path}: {answer.status} {answer.body[:300]!r}")
    return json.loads(answer.body)


def name_of(number: int) -> str:
    return f"namespace-{number:05d}"


async def create(connection: Connection, objects: int, endpoint: str) -> None:
    cluster = {
        "apiVersion": "magnetar.io/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
        "spec": {"replicas": 1, "etcd": {"external": {"endpoints": [endpoint]}}},
    }
    await must(connection, "POST", f"{ROOT_PATH}/brokerclusters", cluster)
    numbers = iter(range(objects))

    async def creator() -> None:
        for number in numbers:
            spec = {
                "clusterRef": {"name": "main"},
                "tenant": f"tenant-{number % 100}",
                "namespace": name_of(number),
                "policies": {"message_ttl_in_seconds": 3600},
            }
            manifest = {
                "apiVersion": "magnetar.io/v1alpha1",
                "kind": "TopicNamespace",
                "metadata": {"name": name_of(number)},
                "spec": spec,
            }
            await must(connection, "POST", f"{ROOT_PATH}/topicnamespaces", manifest)

    await together(creator)


async def together(worker: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(*(worker() for _ in range(CREATORS)))


async def unconverged(connection: Connection) -> int:
    """How many namespaces are not Ready for their newest generation."""
    bad, continuation = 0, ""
    while True:
        page = await must(
            connection, "GET", f"{ROOT_PATH}/topicnamespaces?limit=500&continue={continuation}"
        )
        bad += sum(not is_converged(item) for item in page["items"])
        continuation = page["metadata"].get("continue", "")
        if not continuation:
            return bad


def is_converged(item: Any) -> bool:
    status = item.get("status", {})
    ready = any(
        found["type"] == "Ready" and found["status"] == "True"
        for found in status.get("conditions", [])
    )
    return ready and status.get("observedGeneration") == item["metadata"]["generation"]


@asynccontextmanager
async def watched(converged: Callable[[str, int], None], version: str) -> AsyncIterator[None]:
    """Report every converged generation that a watch of our own shows."""
    info = await login()
    connector = aiohttp.TCPConnector(ssl=info.as_ssl_context())
    url = f"{info.server}{ROOT_PATH}/topicnamespaces?watch=true&resourceVersion={version}"

    async def read() -> None:
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(
                connector=connector,
                headers=info.as_http_headers(),
                timeout=timeout,
                read_bufsize=2**20,
            ) as session,
            session.get(url) as answer,
        ):
            async for line in answer.content:
                item = json.loads(line)["object"]
                if is_converged(item):
                    converged(item["metadata"]["name"], item["metadata"]["generation"])

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- phases ---------------------------------------------------------------------------------------


async def edits(
    connection: Connection, objects: int, count: int, per_s: float
) -> tuple[list[float], list[float]]:
    """Seconds until converged, for edits of single objects: since they were sent, and since they
    were accepted."""
    seen: dict[tuple[str, int], float] = {}
    arrived = asyncio.Event()

    def converged(name: str, generation: int) -> None:
        seen[name, generation] = time.monotonic()
        arrived.set()

    version = (await must(connection, "GET", f"{ROOT_PATH}/topicnamespaces?limit=1"))["metadata"][
        "resourceVersion"
    ]
    since_sent, since_accepted = [], []
    async with watched(converged, version):
        await asyncio.sleep(1.0)
        for number in range(count):
            name = name_of(number * 7919 % objects)
            patch = {"spec": {"policies": {"message_ttl_in_seconds": 1000 + number}}}
            sent = time.monotonic()
            edited = await must(
                connection,
                "PATCH",
                f"{ROOT_PATH}/topicnamespaces/{name}",
                patch,
                "application/merge-patch+json",
            )
            accepted = time.monotonic()
            key = name, edited["metadata"]["generation"]
            async with asyncio.timeout(30):
                while key not in seen:
                    arrived.clear()
                    await arrived.wait()
            since_sent.append(seen[key] - sent)
            since_accepted.append(max(0.0, seen[key] - accepted))
            await asyncio.sleep(max(0.0, sent + 1 / per_s - time.monotonic()))
    return since_sent, since_accepted


async def bare_writes(
    connection: Connection, objects: int, count: int, per_s: float
) -> list[float]:
    """Seconds for what no operator could save: two writes of one object, one after the other, as an
    edit and its status are.

    They change an annotation, which nobody acts on.
    """
    took = []
    for number in range(count):
        path = f"{ROOT_PATH}/topicnamespaces/{name_of(number * 7919 % objects)}"
        began = time.monotonic()
        for turn in range(2):
            patch = {"metadata": {"annotations": {"bench": f"{number}-{turn}"}}}
            await must(connection, "PATCH", path, patch, "application/merge-patch+json")
        took.append(time.monotonic() - began)
        await asyncio.sleep(max(0.0, began + 1 / per_s - time.monotonic()))
    return took


def row(what: str, measured: str, bar: str = "") -> None:
    print(f"{what:<58} {measured:>22} {bar:>16}", flush=True)


def quantiles(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return (
        f"{statistics.median(values) * 1000:.1f} / {cuts[98] * 1000:.1f} / "
        f"{max(values) * 1000:.0f} ms"
    )


async def run(directory: Path, options: argparse.Namespace) -> None:
    with control_plane(directory) as (plane, etcd):
        os.environ["KUBECONFIG"] = str(plane.kubeconfig)
        connection = await connect()
        operator = MeasuredOperator(plane, directory / "operator.log")
        try:
            row(
                f"{options.objects} TopicNamespaces, API server on the same cores",
                "measured",
                "bar",
            )
            began = time.monotonic()
            await create(connection, options.objects, etcd.endpoint)
            row(
                "(made by the benchmark itself)",
                f"{options.objects / (time.monotonic() - began):.0f}/s",
            )
            await phases(connection, operator, options)
        finally:
            await connection.close()
            operator.stop()


def works(reading: Reading) -> bool:
    return reading.passes > 0


def start(operator: MeasuredOperator, profile: Path | None, life: int) -> None:
    python = ["-m", "cProfile", "-o", f"{profile}.{life}"] if profile is not None else []
    operator.start(python, MAGNETAR_OPERATOR_RESYNC_S=str(RESYNC_S), MAGNETAR_LOG_LEVEL="warning")


async def phases(
    connection: Connection, operator: MeasuredOperator, options: argparse.Namespace
) -> None:
    life = functools.partial(start, operator, options.profile)
    life(1)
    await new_objects(connection, operator, options.objects)
    await steady_state(operator, options.objects)
    sent, accepted = await edits(connection, options.objects, options.edits, options.per_second)
    row("edit sent -> converged, p50 / p99 / max", quantiles(sent), "<= 10 / 50 ms")
    row("edit accepted -> converged, p50 / p99 / max", quantiles(accepted))
    operator.stop()
    bare = await bare_writes(connection, options.objects, options.edits, options.per_second)
    row("  two writes of a bare client, one after the other", quantiles(bare))
    row("  edits to these, p50", f"x{statistics.median(sent) / statistics.median(bare):.2f}")
    life(2)
    await restarted(operator, options.objects)


async def new_objects(connection: Connection, operator: MeasuredOperator, count: int) -> None:
    first = await operator.until("the first pass", works)
    row("start to first pass, all objects known", f"{first.at - operator.started:.1f} s")
    done = await operator.until("all new objects passed", lambda reading: reading.passes >= count)
    deadline = time.monotonic() + TIMEOUT_S
    while bad := await unconverged(connection):
        if time.monotonic() > deadline:
            raise NotConverged(f"{bad} namespaces are not Ready")
        await asyncio.sleep(1.0)
        done = await operator.until("an answer", works)
    row(
        "first reconcile of new objects",
        f"{(done.passes - first.passes) / (done.at - first.at):.0f}/s",
        ">= 150/s",
    )
    row("  operator's CPU per object", cpu_per_pass(first, done))


async def steady_state(operator: MeasuredOperator, count: int) -> None:
    await asyncio.sleep(RESYNC_S)
    before = await operator.until("an answer", works)
    after = await operator.until(
        "two whole resyncs", lambda reading: reading.passes >= before.passes + 2 * count
    )
    row("writes in two steady resyncs", f"{after.writes - before.writes:.0f}", "0")
    row("  requests that failed until then", f"{after.failures:.0f}")
    row("  operator's CPU per pass", cpu_per_pass(before, after))
    row_of_memory(operator)


async def restarted(operator: MeasuredOperator, count: int) -> None:
    first = await operator.until("the first pass", works)
    row("restart to first pass, all objects known", f"{first.at - operator.started:.1f} s")
    done = await operator.until(
        "all converged objects passed", lambda reading: reading.passes >= count
    )
    # By the operator's own clock, from when it knows everything: readings are far apart, and most
    # of the work is over at the first.
    began, ended = done.total(SYNCED), done.total(LAST_SUCCESS, controller="TopicNamespace")
    row(
        "first reconcile of converged ones after a restart",
        f"{count / (ended - began):.0f}/s",
        ">= 500/s",
    )
    row("  from the process' start", f"{count / (done.at - operator.started):.0f}/s")
    row(
        "  operator's CPU per object, start and lists included",
        f"{done.cpu_s / count * 1000:.2f} ms",
    )
    row("writes of a restart", f"{done.writes:.0f}", "0")
    row_of_memory(operator)


def cpu_per_pass(before: Reading, after: Reading) -> str:
    return f"{(after.cpu_s - before.cpu_s) / (after.passes - before.passes) * 1000:.2f} ms"


def row_of_memory(operator: MeasuredOperator) -> None:
    now, most = operator.resident_mib()
    row("resident now / at most", f"{now:.0f} / {most:.0f} MiB", "<= 180 MiB")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="The operator with many TopicNamespaces on a real API server."
    )
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--edits", type=int, default=500)
    parser.add_argument("--per-second", type=float, default=20.0, help="edits per second")
    parser.add_argument(
        "--profile",
        type=Path,
        help="write cProfiles of the operator's two incarnations there, with .1 and .2 appended",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as name:
        try:
            asyncio.run(run(Path(name), options))
        except NotConverged as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
