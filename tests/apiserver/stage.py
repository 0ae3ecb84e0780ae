"""The stage of the operator's tests: a running operator, and hands that play kubelet and brokers.

Owns: `running_operator`, `Kubelet` (makes and readies the pods a StatefulSet asks for, nothing
more), `Brokers` (records in the metadata store), `until`, `repeating`, `replaced`, `settled`.
Everything else is real: API server, etcd, operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dev.testbed.control_plane import OPERATOR_NAMESPACE, ControlPlane, EtcdProcess
from magnetar.clock import SystemClock
from magnetar.metadata import keys
from magnetar.metadata.backends.etcd import EtcdStore
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    ClusterRecord,
    CordonRecord,
    IncarnationRecord,
    NamespaceRecord,
    PartitionedTopicRecord,
)
from magnetar.metadata.store import Compare, Delete, Put
from magnetar.names import TopicName, initial_boundaries
from magnetar_operator.engine.controller import RECONCILERS
from magnetar_operator.main import Operator, serve
from magnetar_operator.settings import OperatorSettings

TIMEOUT_S = 120.0
"""How long a machine that is busy with other things may take for anything."""
POLL_S = 0.05
PASSES_MAX = 40
API = "/apis/magnetar.io/v1alpha1/namespaces"


@asynccontextmanager
async def running_operator(
    namespace: str,
    identity: str = "one",
    lease_namespace: str = OPERATOR_NAMESPACE,
    lease_name: str = "magnetar-operator",
    resync_s: float = 300.0,
    beside: Sequence[str] = (),
) -> AsyncIterator[Operator]:
    """The real operator, watching one namespace, and those `beside` it."""
    settings = OperatorSettings(
        image="registry.example/magnetar:1",
        spark_image="registry.example/magnetar-spark:1",
        etcd_image="registry.example/etcd:1",
        namespaces=(namespace, *beside),
        lease_name=lease_name,
        lease_namespace=lease_namespace,
        identity=identity,
        http_host="127.0.0.1",
        http_port=0,
        resync_s=resync_s,
    )
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(settings, stop, started=started.set_result))
    operator: Operator = await started
    try:
        yield operator
    finally:
        stop.set()
        await task


async def until(what: str, predicate: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> Any:
    """Poll a blocking predicate until it is true; its value."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        value = await asyncio.to_thread(predicate)
        if value:
            return value
        assert asyncio.get_running_loop().time() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(POLL_S)


@dataclass(frozen=True)
class Scene:
    """One namespace of the API server."""

    plane: ControlPlane
    namespace: str

    def path(self, plural: str, name: str = "", sub: str = "") -> str:
        return "/".join(
            [API, self.namespace, plural, *([name] if name else []), *([sub] if sub else [])]
        )

    def core(self, plural: str, name: str = "", group: str = "/api/v1") -> str:
        return "/".join([group, "namespaces", self.namespace, plural, *([name] if name else [])])

    def create(self, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        manifest = {
            "apiVersion": "magnetar.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        created: dict[str, Any] = self.plane.must("POST", self.path(f"{kind.lower()}s"), manifest)
        return created

    def get(self, path: str) -> dict[str, Any] | None:
        status, document = self.plane.request("GET", path)
        assert status in (200, 404), document
        return document if status == 200 else None

    def cluster(self, name: str = "main") -> dict[str, Any]:
        found = self.get(self.path("brokerclusters", name))
        assert found is not None
        return found

    def stateful_set(self, name: str = "main-broker") -> dict[str, Any] | None:
        return self.get(self.core("statefulsets", name, "/apis/apps/v1"))

    def pods(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.plane.must("GET", self.core("pods"))["items"]
        return found

    def replicas(self) -> int | None:
        found = self.stateful_set()
        return found["spec"]["replicas"] if found else None

    def condition(self, path: str, kind: str = "Ready") -> dict[str, Any]:
        found = self.get(path) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), {})

    def events(self, reason: str) -> list[str]:
        items = self.plane.must("GET", self.core("events"))["items"]
        return [item["message"] for item in items if item["reason"] == reason]

    def merge(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        merged: dict[str, Any] = self.plane.must(
            "PATCH", path, body, "application/merge-patch+json"
        )
        return merged

    def delete(self, path: str) -> None:
        self.plane.must("DELETE", path)


def external(etcd: EtcdProcess, **spec: Any) -> dict[str, Any]:
    return {"etcd": {"external": {"endpoints": [etcd.endpoint]}}, **spec}


def make_lost_node(scene: Scene, node: str) -> None:
    """A node whose kubelet has been silent for long."""
    scene.plane.must("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    lost = {
        "type": "Ready",
        "status": "Unknown",
        "lastTransitionTime": "2020-01-01T00:00:00Z",
        "reason": "NodeStatusUnknown",
    }
    scene.merge(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [lost]}})


def bind(scene: Scene, pod: str, node: str) -> None:
    """What the scheduler does."""
    target = {"kind": "Node", "name": node}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
    scene.plane.must("POST", f"{scene.core('pods', pod)}/binding", binding)


@asynccontextmanager
async def repeating(
    step: Callable[[], Awaitable[None]], period_s: float = POLL_S
) -> AsyncIterator[None]:
    """Step again and again in the background. The last step is waited for: a thread of it would
    go on otherwise."""
    stopping = asyncio.Event()

    async def repeat() -> None:
        while not stopping.is_set():
            await step()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), period_s)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        stopping.set()
        await task


async def replaced(scene: Scene, before: set[str], count: int) -> int:
    """Wait until there are `count` pods and none with a uid of `before`; the smallest number
    that was seen concurrently."""
    fewest = count

    def all_new() -> bool:
        nonlocal fewest
        pods = scene.pods()
        fewest = min(fewest, len(pods))
        return len(pods) == count and not before & {pod["metadata"]["uid"] for pod in pods}

    await until(f"{count} new pods", all_new)
    return fewest


class Kubelet:
    """Does for one StatefulSet what its controller and a kubelet would do."""

    def __init__(self, scene: Scene, stateful_set: str = "main-broker") -> None:
        self._scene, self._name = scene, stateful_set
        self.sick: set[str] = set()
        self.says: dict[str, dict[str, Any]] = {}
        """What it reports of sick pods, by name, beside their not being ready."""

    def step(self) -> None:
        found = self._scene.stateful_set(self._name)
        if found is None:
            return
        revision = hashlib.sha256(
            json.dumps(found["spec"]["template"], sort_keys=True).encode()
        ).hexdigest()[:10]
        wanted = {
            f"{found['metadata']['name']}-{ordinal}" for ordinal in range(found["spec"]["replicas"])
        }
        pods = {
            pod["metadata"]["name"]: pod
            for pod in self._scene.pods()
            if pod["metadata"]["name"].startswith(f"{self._name}-")
        }
        for name in set(pods) - wanted:
            self._scene.plane.request(
                "DELETE", self._scene.core("pods", name), {"gracePeriodSeconds": 0}
            )
        for name in wanted - set(pods):
            pods[name] = self._make(name, found, revision)
        for name in wanted:
            self._report(name, pods[name])
        status = {
            "replicas": len(wanted), "readyReplicas": len(wanted - self.sick), "updateRevision": revision,
            "currentRevision": revision, "observedGeneration": found["metadata"]["generation"],
        }  # fmt: skip
        if {key: found.get("status", {}).get(key, 0) for key in status} != status:
            # it may have been deleted since it was read
            path = f"{self._scene.core('statefulsets', self._name, '/apis/apps/v1')}/status"
            self._scene.plane.request(
                "PATCH", path, {"status": status}, "application/merge-patch+json"
            )

    def _make(self, name: str, owner: dict[str, Any], revision: str) -> dict[str, Any]:
        template = owner["spec"]["template"]
        labels = {**template["metadata"]["labels"], "controller-revision-hash": revision}
        metadata = {
            "name": name,
            "labels": labels,
            "annotations": template["metadata"].get("annotations", {}),
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        made: dict[str, Any] = self._scene.plane.must("POST", self._scene.core("pods"), pod)
        return made

    def _report(self, name: str, pod: dict[str, Any]) -> None:
        sick, known = name in self.sick, pod.get("status", {})
        reported = self.says.get(name, {}) if sick else {}
        ready = {"type": "Ready", "status": "False" if sick else "True"}
        wanted = {
            "phase": reported.get("phase", "Running"),
            "conditions": [ready, *reported.get("conditions", [])],
            "containerStatuses": reported.get("containerStatuses", []),
        }
        shown = {
            "phase": known.get("phase"),
            "conditions": [
                {key: condition.get(key) for key in ready}
                for condition in known.get("conditions", [])
            ],
            "containerStatuses": known.get("containerStatuses", []),
        }
        same_words = [status.get("state") for status in shown["containerStatuses"]] == [
            status.get("state") for status in wanted["containerStatuses"]
        ]
        kinds = [{key: condition.get(key) for key in ready} for condition in wanted["conditions"]]
        if same_words and (shown["phase"], shown["conditions"]) == (wanted["phase"], kinds):
            return
        self._scene.plane.request(
            "PATCH",
            f"{self._scene.core('pods', name)}/status",
            {"status": wanted},
            "application/merge-patch+json",
        )

    def at_work(self) -> AbstractAsyncContextManager[None]:
        """Step again and again in the background."""
        return repeating(lambda: asyncio.to_thread(self.step))


class Brokers:
    """Writes what brokers would write into the cluster's store."""

    def __init__(self, endpoint: str) -> None:
        self.store = EtcdStore([endpoint], clock=SystemClock())

    async def reset(self) -> None:
        prefixes = (
            keys.BUNDLES, keys.INCARNATIONS, keys.CORDONS, keys.NAMESPACES, keys.JOBS, keys.TOPICS, keys.TOPIC_CHANGES, keys.TENANTS,
            keys.COORDINATORS, keys.COORDINATOR_SET, keys.COORDINATOR_CLAIMS, keys.LOAD, keys.DOCUMENTS,
        )  # fmt: skip
        await self.store.transact((), [Delete(prefix, prefix=True) for prefix in prefixes])
        record = ClusterRecord(storage_id="5e" * 16, restore=0, format_version=1)
        await self.store.transact((), [Put(keys.CLUSTER, record.encode())])

    async def register(self, broker: str) -> str:
        incarnation = f"{broker}.{'0' * 16}"
        record = IncarnationRecord(broker, "pulsar://x:6650", "http://x:8080", 1, "test")
        await self.store.put(keys.incarnation(incarnation), record.encode())
        return incarnation

    async def own(self, bundle: str, incarnation: str) -> None:
        await self.own_all({bundle: incarnation})

    async def own_all(self, owners: dict[str, str]) -> None:
        """At one moment."""
        records = {
            bundle: BundleRecord(state=BundleState.OWNED, epoch=1, incarnation=owner)
            for bundle, owner in owners.items()
        }
        await self.store.transact(
            (),
            [Put(f"{keys.BUNDLES}{bundle}", record.encode()) for bundle, record in records.items()],
        )

    async def enter(self, topic: str, partitions: int = 0) -> None:
        """A topic comes to be, and its namespace with it."""
        name = TopicName.parse(topic)
        namespace, entry = (
            NamespaceRecord(initial_boundaries(1), {}),
            PartitionedTopicRecord(partitions, {}),
        )
        key = keys.namespace(name.namespace_name)
        await self.store.transact(
            (Compare(key, "create", "=", 0),), (Put(key, namespace.encode()),)
        )
        await self.store.put(keys.partitioned_topic(name), entry.encode())

    async def cordon(self, broker: str) -> CordonRecord | None:
        item = await self.store.get(keys.cordon(broker))
        return CordonRecord.decode(item.value) if item is not None else None


@asynccontextmanager
async def brokers_of(endpoint: str) -> AsyncIterator[Brokers]:
    brokers = Brokers(endpoint)
    try:
        await brokers.reset()
        yield brokers
    finally:
        await brokers.store.close()


def writes(operator: Operator) -> float:
    """Requests that could change an object and had an answer (one without is repeated), and
    transactions in clusters' stores; the Lease and the sentinel go by the clock."""
    total = 0.0
    for metric in operator.metrics.registry.collect():
        for sample in metric.samples:
            if (
                sample.name == "rest_client_requests_total"
                and sample.labels["method"] in ("PATCH", "POST", "DELETE")
                and sample.labels["code"] != "<error>"
            ):
                total += sample.value
            if sample.name == "magnetar_operator_store_writes_total":
                total += sample.value
            if sample.name == "magnetar_operator_sentinel_beats_total":
                total -= sample.value
    return total


async def settled(operator: Operator) -> None:
    """Wait for a whole pass without a write: events and the control plane's own changes may
    still be on their way after the first."""
    for _ in range(PASSES_MAX):
        before = writes(operator)
        await look_at_all(operator)
        await quiet(operator)
        if writes(operator) == before:
            return
    raise AssertionError(f"still writing after {PASSES_MAX} passes over the same objects")


async def look_at_all(operator: Operator) -> None:
    """Have every resource looked at from now on: also one that is looked at right now, since
    that look may have read what the test has changed before it was changed."""
    await operator.controller.enqueue_all()
    for kind in RECONCILERS:
        for key in operator.world.keys(kind):
            operator.queue.add(key)


async def quiet(operator: Operator) -> None:
    """Wait until the queue has been idle for a moment."""
    calm = 0
    while calm < 10:
        calm = calm + 1 if operator.queue.idle else 0
        await asyncio.sleep(0.05)
