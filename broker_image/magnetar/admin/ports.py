"""What the REST routes ask of a broker.

Owns: the `AdminPort` protocol. Imports: names only.
Invariant: every method raises errors of `magnetar.errors`, whose HTTP status the application sends with `{"reason": ...}`.
"""

from __future__ import annotations

from typing import Any, Protocol

from magnetar.names import NamespaceName, TopicName


class AdminPort(Protocol):
    """The broker's side of every route."""

    def ready(self) -> bool:
        """Whether clients should be sent here."""
        ...

    def live(self) -> bool:
        """Whether the process makes progress."""
        ...

    def metrics(self) -> bytes:
        """Prometheus text."""
        ...

    async def status(self) -> dict[str, Any]:
        """What `magnetar status` shows: this broker, all brokers, bundles and their owners."""
        ...

    def version(self) -> str: ...

    async def lookup(self, topic: TopicName) -> dict[str, str]:
        """Pulsar's LookupData: brokerUrl, httpUrl, nativeUrl."""
        ...

    async def namespaces(self, tenant: str) -> list[str]: ...

    async def namespace(self, name: NamespaceName) -> dict[str, Any]: ...

    async def create_namespace(self, name: NamespaceName, bundles: int, policies: dict[str, Any]) -> None:
        """Raises TopicExists if it is there already."""
        ...

    async def topics(self, name: NamespaceName) -> list[str]:
        """Full names of all topics of a namespace, partitions included."""
        ...

    async def partitions(self, topic: TopicName) -> int:
        """Number of partitions; 0 for a topic that is not partitioned."""
        ...

    async def create_partitions(self, topic: TopicName, partitions: int) -> None:
        """Raises TopicExists, InvalidRequest."""
        ...

    async def stats(self, topic: TopicName) -> dict[str, Any]:
        """Statistics of a topic served here. Raises NotOwner or TopicNotFound."""
        ...

    async def roll(self, topic: TopicName) -> tuple[int, int]:
        """Make everything acknowledged so far readable from sealed, manifest-listed files; the last (ledger, entry)."""
        ...

    async def unload_topic(self, topic: TopicName, destination: str) -> None:
        """Hand the topic's bundle to another broker ("" = any)."""
        ...
