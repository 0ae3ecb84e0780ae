"""A broker's side of REST in memory, for tests of routes.

Owns: `MemoryPort`. Imports: names, errors.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from magnetar.broker.administration.topics import ListMode
from magnetar.errors import (
    InvalidRequest,
    NamespaceNotFound,
    ServiceNotReady,
    TopicExists,
    TopicNotFound,
)
from magnetar.names import NamespaceName, TopicName

PARTITIONS_MAX = 10


class MemoryPort:
    """The broker's side: namespaces and topics in dictionaries."""

    def __init__(self) -> None:
        self.is_ready = True
        self.boundaries: tuple[int, ...] = ()
        self.created: dict[NamespaceName, tuple[int, dict[str, Any]]] = {
            NamespaceName("public", "default"): (4, {})
        }
        self.partitioned: dict[TopicName, int] = {}
        self.unloaded: list[tuple[TopicName, str]] = []
        self.rolled: list[bool] = []
        self.failure: Exception | None = None

    def ready(self) -> bool:
        return self.is_ready

    async def check_health(self) -> None:
        if not self.is_ready:
            raise ServiceNotReady("the broker is not healthy")

    async def properties(self, target: NamespaceName | TopicName) -> dict[str, str]:
        del target
        return {}

    def live(self) -> bool:
        return True

    async def metrics(self) -> AsyncIterator[bytes]:
        yield b"magnetar_messages_in_total 1.0\n"

    def damage(self) -> list[dict[str, Any]]:
        self._fail()
        return [{"what": "read", "file": "logs/a.1/00000000.log", "offset": 4136}]

    def short_of_space(self) -> str:
        return ""

    async def status(self) -> dict[str, Any]:
        self._fail()
        return {"leader": "broker-0.1"}

    def version(self) -> str:
        return "1.2.3"

    async def clusters(self) -> list[str]:
        return ["standalone"]

    async def lookup(self, topic: TopicName, listener: str) -> dict[str, str]:
        self._fail()
        return {"brokerUrl": f"pulsar://{listener or 'host'}/{topic.local}"}

    async def namespaces(self, tenant: str) -> list[str]:
        return [str(name) for name in self.created if name.tenant == tenant]

    async def namespace(self, name: NamespaceName) -> dict[str, Any]:
        if name not in self.created:
            raise TopicNotFound(f"namespace {name} does not exist")
        bundles, policies = self.created[name]
        return {**policies, "bundles": {"numBundles": bundles}}

    async def create_namespace(
        self, name: NamespaceName, boundaries: tuple[int, ...], policies: dict[str, Any]
    ) -> None:
        if name in self.created:
            raise TopicExists(f"namespace {name} already exists")
        self.boundaries = boundaries
        self.created[name] = (len(boundaries) - 1, policies)

    async def topics(self, name: NamespaceName, mode: ListMode = "PERSISTENT") -> list[str]:
        if name not in self.created:
            raise NamespaceNotFound(f"namespace {name} does not exist")
        domains = {
            "PERSISTENT": ["persistent"],
            "NON_PERSISTENT": ["non-persistent"],
            "ALL": ["non-persistent", "persistent"],
        }
        return [f"{domain}://{name}/t" for domain in domains[mode]]

    async def partitions(self, topic: TopicName, may_create: bool) -> int:
        if topic not in self.partitioned and not may_create:
            raise TopicNotFound(f"topic {topic} does not exist")
        return self.partitioned.get(topic, 0)

    async def create_partitions(self, topic: TopicName, partitions: int) -> None:
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidRequest(
                f"partitions: {partitions} is out of range; use 1..{PARTITIONS_MAX}"
            )
        if topic in self.partitioned:
            raise TopicExists(f"topic {topic} already exists")
        self.partitioned[topic] = partitions

    async def stats(self, topic: TopicName, wanted: object = None) -> dict[str, Any]:
        del wanted
        self._fail()
        return {"topic": str(topic)}

    async def roll(self, topic: TopicName, *, rewrite: bool = True) -> tuple[int, int]:
        self._fail()
        self.rolled.append(rewrite)
        return 7, 40 + len(topic.local)

    async def unload_topic(self, topic: TopicName, destination: str) -> None:
        self._fail()
        self.unloaded.append((topic, destination))

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure
