"""Which topics the cluster has.

Owns: the registry below `topics/` in the metadata store: this broker's mirror of it by namespace,
and the entries of topics in bundles served here. Imports: metadata, names, topics.topic_list.

A plain topic (or a partition that is in use) has an entry of its own; a partitioned topic's entry
stands for all of its partitions, so that creating and growing it are one write. Nothing is written
when a bundle moves. Invariants: entries of a bundle are written only under its owner's current
record (a former owner's late write fails), and in the order of creations and deletions; the log
is the truth: the new owner of a bundle brings the entries in line with what it recovered; a topic
whose namespace is deleted before its entry is written gets none, and is deleted again; a list
requested after a creation was answered holds the new topic, at every broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import MagnetarError, NamespaceNotFound, ServiceNotReady, StoreError
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.metadata.records import PartitionedTopicRecord
from magnetar.metadata.store import Compare, Delete, Operation, Put
from magnetar.names import NamespaceName, TopicName
from magnetar.topics.topic_list import is_system_topic

if TYPE_CHECKING:
    from magnetar.broker.ports import ServedBundle

log = structlog.get_logger(__name__)
Listener = Callable[[NamespaceName, list[str]], None]

PLAIN_TOPIC = PartitionedTopicRecord(partitions=0, properties={}).encode()
REGISTRATION_WAIT_S = 5.0
"""A creation waits this long for its entry; while the store is unavailable it is answered
without one, which follows."""
CATCH_UP_WAIT_S = 2.0
RETRY_S = 0.2
WRITES_PARALLEL_MAX = 64
ITSELF, IMPLIED, HIDDEN = 1, 2, 4
"""Why a topic is present: an entry of its own, or that of its partitioned topic; and whether
lists leave it out."""


class Wish(enum.Enum):
    """The wanted state of an entry. A new topic needs its namespace; a topic in a log gets its
    entry without one. A topic that goes takes its schema with it, but for one that goes alone."""

    GONE = "gone"
    GONE_ALONE = "gone alone"
    THERE = "there"
    BORN = "born"

    @property
    def present(self) -> bool:
        return self in (Wish.THERE, Wish.BORN)


class TopicRegistry:
    """All topics of the cluster by namespace, as this broker knows them."""

    def __init__(self, context: BrokerContext, views: ClusterViews) -> None:
        self._context, self._views = context, views
        self._present: dict[str, dict[str, int]] = {}
        self._listeners: list[Listener] = []
        self._wanted: dict[TopicName, tuple[ServedBundle, Wish]] = {}
        self._writing: dict[TopicName, asyncio.Task[bool]] = {}
        self._tasks: set[asyncio.Task[bool]] = set()
        """Those of `_writing`, and those that delete a topic again."""
        self._permits = asyncio.Semaphore(WRITES_PARALLEL_MAX)
        self._partitions: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._shown: Counter[str] = Counter()
        views.topics.listen(self._changed)
        self._changed(list(views.topics.items))

    # --- reading ----------------------------------------------------------------------------------

    def names(self, namespace: NamespaceName) -> list[str]:
        """Full names of the topics that lists show, partitions included; unsorted."""
        return [
            name
            for name, marks in self._present.get(str(namespace), {}).items()
            if not marks & HIDDEN
        ]

    def count(self, namespace: NamespaceName, *, shown: bool) -> int:
        """How many topics there are, partitions included; with `shown` those of `names` only."""
        return self._shown[str(namespace)] if shown else len(self._present.get(str(namespace), ()))

    def coming(self) -> Iterator[TopicName]:
        return (name for name, (_, wish) in self._wanted.items() if wish.present)

    @property
    def writes_under_way(self) -> int:
        """How many entries are being written or removed, those of `coming` among them."""
        return len(self._wanted)

    def entry(self, name: TopicName) -> PartitionedTopicRecord | None:
        """The entry of exactly this name in the mirror."""
        viewed = self._views.topics.get(keys.partitioned_topic(name)[len(keys.TOPICS) :])
        return viewed.record if viewed is not None else None

    def lists(self, namespace: NamespaceName, name: str) -> bool:
        marks = self._present.get(str(namespace), {}).get(name, HIDDEN)
        return not marks & HIDDEN

    def version(self, namespace: NamespaceName) -> int:
        """Grows with every change of `names`."""
        return self._versions.get(str(namespace), 0)

    def holds(self, name: TopicName) -> bool:
        """Whether the topic is known: as such, or as a partition of a partitioned one."""
        return str(name) in self._present.get(str(name.namespace_name), ())

    def check_namespace(self, name: TopicName) -> None:
        """Refuse a topic in a namespace that is being deleted. Raises
        ServiceNotReady."""
        viewed = self._views.namespaces.get(str(name.namespace_name))
        if viewed is not None and self._views.incarnations.get(viewed.record.deleting) is not None:
            raise ServiceNotReady(
                f"topic {name} is being unloaded: namespace {name.namespace_name} is being "
                "deleted; try again once it is gone or kept"
            )

    def partitioned(self, namespace: NamespaceName) -> list[str]:
        found = (entered_topic(key) for key in self._partitions if key.startswith(f"{namespace}/"))
        return sorted(str(name) for name in found if name is not None)

    def listen(self, listener: Listener) -> None:
        """Call `listener` with a namespace and the full names that were created or deleted, after
        every change."""
        self._listeners.append(listener)

    async def catch_up(self, namespace: NamespaceName) -> None:
        """Wait, for a limited time, until the mirror shows every change answered so far; not at all
        while the store is unavailable."""
        try:
            item = await self._context.store.get(keys.topic_changes(namespace))
        except StoreError as error:
            log.warning("topics.list_from_mirror", namespace=str(namespace), error=str(error))
            return
        if item is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_WAIT_S):
                await self._views.topics.reach(item.mod_revision)

    def _changed(self, changed: list[str]) -> None:
        """Apply changed entries and notify the listeners."""
        by_namespace: dict[NamespaceName, list[str]] = {}
        for key in changed:
            name = entered_topic(key)
            if name is None:
                continue
            viewed = self._views.topics.get(key)
            before = self._partitions.pop(key, 0)
            after = viewed.record.partitions if viewed is not None else 0
            if after:
                self._partitions[key] = after
            touched = by_namespace.setdefault(name.namespace_name, [])
            if self._mark(name, ITSELF, viewed is not None and not after):
                touched.append(str(name))
            for index in range(min(before, after), max(before, after)):
                partition = name.with_partition(index)
                if self._mark(partition, IMPLIED, index < after):
                    touched.append(str(partition))
        for namespace, touched in by_namespace.items():
            shown = [text for text in touched if not is_system_topic(TopicName.parse(text))]
            if shown:
                self._versions[str(namespace)] = self.version(namespace) + 1
                for listener in self._listeners:
                    listener(namespace, shown)

    def _mark(self, name: TopicName, reason: int, holds: bool) -> bool:
        """Set why a name is present; returns whether it appeared or disappeared."""
        present = self._present.setdefault(str(name.namespace_name), {})
        before = present.get(str(name), 0) & ~HIDDEN
        after = before | reason if holds else before & ~reason
        hidden = is_system_topic(name)
        if after:
            present[str(name)] = after | (HIDDEN if hidden else 0)
        else:
            present.pop(str(name), None)
        if not hidden:
            self._shown[str(name.namespace_name)] += bool(after) - bool(before)
        return bool(before) != bool(after)

    def observe(self, name: TopicName, value: bytes | None, revision: int) -> None:
        """Apply a change that this process has made to an entry, ahead of the watch."""
        self._views.topics.observe(
            keys.partitioned_topic(name)[len(keys.TOPICS) :], value, revision
        )

    # --- writing ----------------------------------------------------------------------------------

    async def add(self, owned: ServedBundle, name: TopicName) -> None:
        """A topic of a bundle served here was created; when this returns every broker lists it,
        unless the store is unavailable.

        Raises NamespaceNotFound if its namespace was deleted before: the topic has been deleted
        again. If the store was unavailable, the deletion follows.
        """
        if await self._want(owned, name, Wish.BORN) is False:
            raise NamespaceNotFound(
                "Namespace not found",
                f"{name.namespace_name} of topic {name} was deleted; create it first",
            )

    async def remove(
        self, owned: ServedBundle, name: TopicName, *, keep_schema: bool = False
    ) -> None:
        """A topic of a bundle served here was deleted, and its schema with it unless that is kept.
        A partition's schema is that of its topic, and stays."""
        await self._want(owned, name, Wish.GONE_ALONE if keep_schema else Wish.GONE)

    def forget(self, owned: ServedBundle, name: TopicName) -> None:
        """As `remove`, without waiting."""
        self._start(owned, name, Wish.GONE)

    def adopt(self, owned: ServedBundle) -> None:
        """Bring the entries of a bundle acquired by this broker in line with its log, in the
        background."""
        for name in self._differences(owned):
            self._start(owned, name, Wish.THERE if str(name) in owned.topics else Wish.GONE)

    def _differences(self, owned: ServedBundle) -> Iterator[TopicName]:
        for text in owned.topics:
            name = TopicName.parse(text)
            if not self._present.get(str(name.namespace_name), {}).get(text, 0) & ITSELF:
                yield name
        for text, reasons in list(self._present.get(str(owned.name.namespace), {}).items()):
            if reasons & ITSELF and text not in owned.topics:
                name = TopicName.parse(text)
                if owned.name.contains_hash(name.hash):
                    yield name

    async def _want(self, owned: ServedBundle, name: TopicName, wish: Wish) -> bool | None:
        """As `_write`; None if it goes on in the background."""
        task = self._start(owned, name, wish)
        done, _ = await asyncio.wait((task,), timeout=REGISTRATION_WAIT_S)
        if not done:
            log.warning("topics.entry_delayed", topic=str(name), wish=wish.value)
        return task.result() if done and not task.cancelled() and task.exception() is None else None

    def _start(self, owned: ServedBundle, name: TopicName, wish: Wish) -> asyncio.Task[bool]:
        self._wanted[name] = (owned, wish)
        task = self._writing.get(name)
        if task is None:
            task = self._writing[name] = asyncio.create_task(
                self._write(name), name=f"topic entry {name}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return task

    async def _write(self, name: TopicName) -> bool:
        """Write the last wanted state of an entry; ends when it is written, or when this broker has
        lost the bundle.

        False if the topic is new and its namespace is gone: it has been deleted again then.
        """
        try:
            async with self._permits:
                while True:
                    owned, wish = self._wanted[name]
                    settled, namespace_gone = True, False
                    try:
                        settled = await self._attempt(owned, name, wish)
                    except StoreError as error:
                        log.warning(
                            "topics.entry_delayed",
                            topic=str(name),
                            wish=wish.value,
                            error=str(error),
                        )
                        settled = False
                    except NamespaceNotFound:
                        namespace_gone = True
                    except Exception as error:
                        self._context.metrics.surprises.note(
                            "topic entries", error, topic=str(name)
                        )
                        settled = False
                    if settled and self._wanted[name] == (owned, wish):
                        break
                    if not settled:
                        await asyncio.sleep(RETRY_S)
        finally:
            self._wanted.pop(name, None)
            self._writing.pop(name, None)
        if namespace_gone:
            await self._delete_again(owned, name)
        return not namespace_gone

    async def _delete_again(self, owned: ServedBundle, name: TopicName) -> None:
        """Delete a topic whose namespace was deleted before its entry was written: it must not
        reappear in a new namespace of that name."""
        log.warning("topics.namespace_gone", topic=str(name), bundle=str(owned.name))
        try:
            await owned.delete_topic(name)
        except (
            MagnetarError
        ) as error:  # its bundle is released without a successor, and is deleted with its log
            log.warning(
                "topics.left_to_bundle", topic=str(name), bundle=str(owned.name), error=str(error)
            )
        except Exception as error:
            self._context.metrics.surprises.note("topic entries", error, topic=str(name))

    async def _attempt(self, owned: ServedBundle, name: TopicName, wish: Wish) -> bool:
        """One try; whether there is nothing more to do. Raises StoreError, NamespaceNotFound."""
        viewed = self._views.bundles.get(str(owned.name))
        if (
            viewed is None
            or viewed.record.incarnation != self._context.incarnation
            or viewed.record.epoch != owned.epoch
        ):
            return True  # the new owner checks all of its entries
        key = keys.partitioned_topic(name)
        namespace = keys.namespace(name.namespace_name)
        present = wish.present
        guard = Compare(keys.bundle(owned.name), "mod", "=", viewed.mod_revision)
        changes: list[Operation] = [change_mark(name.namespace_name)]
        if present:
            compare = Compare(key, "create", "=", 0)
            changes.append(Put(key, PLAIN_TOPIC))
        else:
            compare = Compare(key, "value", "=", PLAIN_TOPIC)
            changes.append(Delete(key))
            if wish is Wish.GONE and name.partition < 0:
                # Together: the next topic of this name must not be given a version that goes.
                changes.append(Delete(keys.schemas_of(name), prefix=True))
        # Whether the namespace is marked need not be compared: its deletion finds whatever is
        # entered before its record goes.
        there = (Compare(namespace, "create", ">", 0),) if wish is Wish.BORN else ()
        result = await self._context.store.transact([guard, compare, *there], changes)
        if result.succeeded:
            self.observe(name, PLAIN_TOPIC if present else None, result.revision)
            return True
        found = next((item for item in result.current if item.key == key), None)
        if there and found is None and all(item.key != namespace for item in result.current):
            raise NamespaceNotFound(f"namespace {name.namespace_name} of topic {name} is gone")
        return (found is not None) if present else (found is None or found.value != PLAIN_TOPIC)

    async def stop(self) -> None:
        """Cancel what is under way; the new owners of the bundles check their entries."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def change_mark(namespace: NamespaceName) -> Put:
    """The write that every transaction on entries must include, so that later lists show it."""
    return Put(keys.topic_changes(namespace), b"")


def entered_topic(key: str) -> TopicName | None:
    """The topic of an entry's key (without the prefix)."""
    parts = key.split("/", 3)
    return TopicName(parts[2], parts[0], parts[1], parts[3]) if len(parts) == 4 else None
