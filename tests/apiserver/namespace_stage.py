"""One cluster with its store, and TopicNamespaces of it.

Owns: making them, waiting for what their conditions, Events and records say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from dev.testbed.control_plane import EtcdProcess
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord, TenantRecord
from magnetar.names import NamespaceName
from tests.apiserver.stage import Brokers, Scene, brokers_of, until

TIMEOUT_S = 120.0
NAME = NamespaceName("acme", "orders")
KEY = keys.namespace(NAME)
TTL = "message_ttl_in_seconds"
SPEC: dict[str, Any] = {
    "clusterRef": {"name": "main"},
    "tenant": "acme",
    "namespace": "orders",
    "bundles": 2,
}


class Stage:
    """One cluster with its store, and the resources of a test."""

    def __init__(self, scene: Scene, brokers: Brokers) -> None:
        self.scene, self.brokers = scene, brokers

    def make_cluster(self, etcd: EtcdProcess) -> None:
        self.scene.create(
            "BrokerCluster", "main", {"etcd": {"external": {"endpoints": [etcd.endpoint]}}}
        )

    def make(self, name: str, **spec: Any) -> str:
        """Create a resource; its path."""
        self.scene.create("TopicNamespace", name, {**SPEC, **spec})
        return self.scene.path("topicnamespaces", name)

    async def ready(self, path: str) -> dict[str, Any]:
        """Wait until the newest generation is Ready; the object."""

        def found() -> dict[str, Any] | None:
            document = self.scene.get(path) or {}
            state = [
                (found["status"], found["observedGeneration"])
                for found in document.get("status", {}).get("conditions", [])
            ]
            return document if state == [("True", document["metadata"]["generation"])] else None

        result: dict[str, Any] = await until("Ready", found, TIMEOUT_S)
        return result

    async def reason(self, path: str, reason: str) -> str:
        """Wait for a reason of not being Ready; its message."""
        text: str = await until(
            reason,
            lambda: (c := self.scene.condition(path)).get("reason") == reason and c["message"],
            TIMEOUT_S,
        )
        return text

    async def event(self, reason: str, part: str) -> None:
        await until(
            f"an event {reason} with {part}",
            lambda: part in " ".join(self.scene.events(reason)),
            TIMEOUT_S,
        )

    def look_again(self, path: str) -> None:
        """What an event of the object does."""
        annotations = (self.scene.get(path) or {})["metadata"].get("annotations", {})
        number = str(int(annotations.get("look", "0")) + 1)
        self.scene.merge(path, {"metadata": {"annotations": {"look": number}}})

    async def record(self, key: str = KEY) -> NamespaceRecord:
        item = await self.brokers.store.get(key)
        assert item is not None
        return NamespaceRecord.decode(item.value)

    async def is_nobodys(self, key: str = KEY) -> bool:
        return (await self.record(key)).owner == ""

    def is_gone(self, path: str) -> bool:
        return self.scene.get(path) is None

    async def tenant(self) -> TenantRecord:
        item = await self.brokers.store.get(keys.tenant("acme"))
        assert item is not None
        return TenantRecord.decode(item.value)

    async def becomes(self, what: str, predicate: Callable[[], Awaitable[bool]]) -> None:
        """Wait for something in the store."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not await predicate():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {TIMEOUT_S} s: {what}") from None


@asynccontextmanager
async def stage_of(scene: Scene, etcd: EtcdProcess) -> Any:
    async with brokers_of(etcd.endpoint) as brokers:
        stage = Stage(scene, brokers)
        stage.make_cluster(etcd)
        yield stage
