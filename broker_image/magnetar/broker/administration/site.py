"""What all parts of the broker's administration share.

Owns: the current broker, records changed by compare-and-swap, finding a topic's owner, acting on
all partitions of a topic. Imports: metadata, names, errors. Invariants: a request that needs a
topic's owner and reaches another broker is refused with the owner's address (the application
redirects); no change of a record is lost: a concurrent change is read before ours is written again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from magnetar.broker.administration.peers import ask_peer
from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.errors import (
    NamespaceNotFound,
    NotOwner,
    ServiceNotReady,
    StoreUnavailable,
    TopicExists,
    TopicNotFound,
)
from magnetar.metadata import keys
from magnetar.metadata.codec import Record
from magnetar.metadata.records import NamespaceRecord
from magnetar.metadata.store import Compare, Delete, Operation, Put
from magnetar.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from magnetar.coordinator.inspection import CoordinatorInspection

R = TypeVar("R", bound=Record)
T = TypeVar("T")
ATTEMPTS_MAX = 20


class OwnCoordinator(Protocol):
    """The transaction coordinator of a standalone server, as its administration sees it."""

    async def inspection(self) -> CoordinatorInspection: ...
    def exposition(self) -> bytes: ...


class Process(Protocol):
    """The process whose broker is administered."""

    @property
    def broker(self) -> Broker | None:
        """The current incarnation."""
        ...

    @property
    def coordinator(self) -> OwnCoordinator | None:
        """The transaction coordinator in this process; None: coordinators are other processes."""
        ...

    @property
    def volume_location(self) -> str:
        """Where messages are kept."""
        ...

    @property
    def store_name(self) -> str:
        """Where metadata is."""
        ...


class Site:
    """Answers for whichever incarnation the process runs now."""

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def broker(self) -> Broker:
        """The incarnation that serves now. Raises ServiceNotReady."""
        broker = self.process.broker
        if broker is None or not broker.ready:
            raise ServiceNotReady("the broker is starting or stopping; try again in a moment")
        return broker

    # --- records ----------------------------------------------------------------------------------

    async def create(self, key: str, value: bytes, exists: TopicExists) -> int:
        """Write a new key; its revision. Raises `exists` if it is there."""
        result = await self.broker.context.store.transact(
            [Compare(key, "create", "=", 0)], [Put(key, value)]
        )
        if not result.succeeded:
            raise exists
        return result.revision

    async def change(
        self, key: str, kind: type[R], change: Callable[[R | None], R | None]
    ) -> tuple[R | None, int]:
        """Compare-and-swap a record: `change` gets the current one and returns the next, None to
        delete it. The next one, its revision."""
        store = self.broker.context.store
        for _ in range(ATTEMPTS_MAX):
            item = await store.get(key)
            current = kind.decode(item.value) if item is not None else None
            wanted = change(current)
            if wanted == current:
                return current, item.mod_revision if item is not None else 0
            operation: Operation = Put(key, wanted.encode()) if wanted is not None else Delete(key)
            unchanged = Compare(key, "mod", "=", item.mod_revision if item is not None else 0)
            result = await store.transact([unchanged], [operation])
            if result.succeeded:
                return wanted, result.revision
        raise StoreUnavailable(f"{key} is changed by others all the time; try again")

    async def namespace_record(
        self, name: NamespaceName, said: str = "Namespace does not exist"
    ) -> NamespaceRecord:
        """Raises NamespaceNotFound in these words."""
        item = await self.broker.context.store.get(keys.namespace(name))
        if item is None:
            raise NamespaceNotFound.named(name, said)
        return NamespaceRecord.decode(item.value)

    async def change_namespace(
        self,
        name: NamespaceName,
        change: Callable[[NamespaceRecord | None], NamespaceRecord | None],
    ) -> int:
        """Change a namespace's record, ahead of the watch that will report it; its revision."""
        written, revision = await self.change(keys.namespace(name), NamespaceRecord, change)
        if written is not None:
            self.broker.views.namespaces.observe(str(name), written.encode(), revision)
        return revision

    # --- topics -----------------------------------------------------------------------------------

    async def served_here(self, topic: TopicName) -> None:
        """Have the topic's bundle assigned if need be. Raises NotOwner with the owner's address
        if that is another broker."""
        ownership = self.broker.ownership
        owner = await ownership.owner_of(topic)
        if owner.broker != self.broker.context.broker:
            raise NotOwner(
                f"topic {topic} is served by {owner.broker}; ask {owner.http_url}",
                owner.http_url,
                owner.http_url_tls,
            )

    async def host(self, topic: TopicName, *, create: bool = False) -> TopicHost:
        """The topic as served here. Raises TopicNotFound, NotOwner, NamespaceNotFound."""
        await self.served_here(topic)
        return await self.broker.service.open_topic(topic, create=create)

    async def refuse_partitioned(self, topic: TopicName) -> None:
        """Raises TopicNotFound for a topic that has partitions: it is none itself."""
        if await self.parts(topic) != [topic]:
            raise TopicNotFound(
                f"Topic {topic} not found", f"ask for a partition ({topic}-partition-0)"
            )

    async def parts(self, topic: TopicName) -> list[TopicName]:
        """The partitions of a partitioned topic, or the topic itself."""
        count = await self.broker.service.partitions(topic) if topic.partition < 0 else 0
        return [topic.with_partition(index) for index in range(count)] if count else [topic]

    async def on_each(
        self,
        topic: TopicName,
        act: Callable[[TopicName], Awaitable[T]],
        method: str,
        suffix: str,
        body: Any = None,
    ) -> dict[TopicName, T]:
        """Act on every partition of a topic, here or by asking its owner `method` (with `body`)
        for `suffix` of the partition's path."""
        found: dict[TopicName, T] = {}
        for part in await self.parts(topic):
            try:
                found[part] = await act(part)
            except NotOwner as error:
                if not error.http_url or part == topic:
                    raise
                found[part] = await ask_peer(
                    self.broker.context, error.http_url, method, part, suffix, body
                )
        return found
