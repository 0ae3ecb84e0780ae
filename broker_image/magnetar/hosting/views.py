"""Live mirrors of prefixes of the metadata store.

Owns: list-then-watch, resumption after an outage or a compaction, and the mirrors every broker
keeps. Imports: balance.load, metadata, clock, errors, asyncio. Invariants: a view shows one revision's changes
together; it never goes back to an older revision; while the store cannot be reached it keeps its
last state (safe: everything that acts on it compares revisions or checks a claim).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import structlog

from magnetar.balance.load import LoadReport
from magnetar.clock import Clock, back_off_s
from magnetar.errors import Compacted, StoreError
from magnetar.hosting.background import Surprises
from magnetar.metadata import keys
from magnetar.metadata.codec import Record
from magnetar.metadata.records import (
    BundleRecord,
    CordonRecord,
    DocumentsRecord,
    IncarnationRecord,
    NamespaceRecord,
    PartitionedTopicRecord,
    TopicPoliciesRecord,
)
from magnetar.metadata.store import MetadataStore

log = structlog.get_logger(__name__)
R = TypeVar("R", bound=Record)

RETRY_BASE_S = 0.1
RETRY_MAX_S = 2.0
DECODED_HELD_MAX = 256
"""Equal bytes are equal records, which never change: most topics share one."""


@dataclass(frozen=True, slots=True)
class Viewed(Generic[R]):
    """A record with the revision that wrote it."""

    record: R
    mod_revision: int


class StoreView(Generic[R]):
    """Mirror of all records below one prefix, keyed by what follows the prefix."""

    def __init__(
        self, store: MetadataStore, clock: Clock, prefix: str, kind: type[R], surprises: Surprises
    ) -> None:
        """`surprises`: where unforeseen errors are counted, of records and of
        listeners."""
        self._surprises = surprises
        self._store, self._clock, self._prefix, self._kind = store, clock, prefix, kind
        self._items: dict[str, Viewed[R]] = {}
        self._revision = 0
        self._task: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[list[str]], None]] = []
        self._progress = asyncio.Event()
        self._advance = asyncio.Event()
        self._decode = lru_cache(maxsize=DECODED_HELD_MAX)(kind.decode)

    @property
    def items(self) -> dict[str, Viewed[R]]:
        """The current records by name; read only."""
        return self._items

    @property
    def revision(self) -> int:
        """The newest store revision this view is known to reflect."""
        return self._revision

    def get(self, name: str) -> Viewed[R] | None:
        return self._items.get(name)

    def listen(self, listener: Callable[[list[str]], None]) -> None:
        """Call `listener` with the changed names after every change."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Load the current state, then follow it. Raises StoreError if the first load fails."""
        await self._load()
        self._task = asyncio.create_task(self._follow(), name=f"view {self._prefix}")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def changed(self) -> None:
        """Wait for the next change of anything in this view."""
        await self._progress.wait()

    async def reach(self, revision: int) -> None:
        """Wait until this view reflects `revision`, which must be that of a change below its
        prefix."""
        while self._revision < revision:
            await self._advance.wait()

    def observe(self, name: str, value: bytes | None, revision: int) -> None:
        """Take a change this process has made or read itself, ahead of the watch that will
        report it too."""
        current = self._items.get(name)
        if current is not None and current.mod_revision >= revision:
            return
        if current is None and revision <= self._revision:
            return  # older than a deletion that the watch has shown already
        self._apply([(name, value, revision)])

    async def _load(self) -> None:
        result = await self._store.range(self._prefix)
        found = {item.key[len(self._prefix) :]: item for item in result.items}
        changes: list[tuple[str, bytes | None, int]] = [
            (name, None, result.revision) for name in self._items if name not in found
        ]
        changes += [
            (name, item.value, item.mod_revision)
            for name, item in found.items()
            if name not in self._items or self._items[name].mod_revision < item.mod_revision
        ]
        self._revision = max(self._revision, result.revision)
        self._apply(changes)
        self._advanced()

    def _advanced(self) -> None:
        advance, self._advance = self._advance, asyncio.Event()
        advance.set()

    async def _follow(self) -> None:
        failures = 0
        while True:
            try:
                async with aclosing(self._store.watch(self._prefix, self._revision + 1)) as watch:
                    async for batch in watch:
                        failures = 0
                        self._revision = max(self._revision, batch.revision)
                        skip = len(self._prefix)
                        self._apply(
                            [
                                (event.key[skip:], event.value, event.mod_revision)
                                for event in batch.events
                            ]
                        )
                        self._advanced()
            except Compacted:
                await self._reload()
            except Exception as error:
                failures += 1
                if not isinstance(error, StoreError):
                    self._surprises.note("views", error, prefix=self._prefix)
                    await self._reload()
                log.warning(
                    "view.interrupted",
                    prefix=self._prefix,
                    revision=self._revision,
                    error=str(error),
                )
                await asyncio.sleep(back_off_s(self._clock, failures, RETRY_BASE_S, RETRY_MAX_S))

    async def _reload(self) -> None:
        try:
            await self._load()
        except StoreError as error:
            log.warning("view.reload_failed", prefix=self._prefix, error=str(error))
            await asyncio.sleep(RETRY_BASE_S)

    def _apply(self, changes: list[tuple[str, bytes | None, int]]) -> None:
        names: list[str] = []
        for name, value, revision in changes:
            current = self._items.get(name)
            if current is not None and current.mod_revision >= revision:
                continue
            if value is None:
                if self._items.pop(name, None) is None:
                    continue
            else:
                try:
                    self._items[name] = Viewed(self._decode(value), revision)
                except Exception as error:
                    # A record of another version, or an unreadable one, must not take the
                    # whole view down; its key stays unknown here.
                    log.error("view.undecodable", key=self._prefix + name, error=str(error))
                    self._items.pop(name, None)
            names.append(name)
        if not names:
            return
        progress, self._progress = self._progress, asyncio.Event()
        progress.set()
        for listener in self._listeners:
            with self._surprises.contained("views", prefix=self._prefix):
                listener(names)


@dataclass(frozen=True, slots=True)
class ClusterViews:
    """The mirrors every broker keeps."""

    bundles: StoreView[BundleRecord]
    incarnations: StoreView[IncarnationRecord]
    namespaces: StoreView[NamespaceRecord]
    cordons: StoreView[CordonRecord]
    load: StoreView[LoadReport]
    policies: StoreView[TopicPoliciesRecord]
    topics: StoreView[PartitionedTopicRecord]
    documents: StoreView[DocumentsRecord]

    @staticmethod
    def create(store: MetadataStore, clock: Clock, surprises: Surprises) -> ClusterViews:
        return ClusterViews(
            StoreView(store, clock, keys.BUNDLES, BundleRecord, surprises),
            StoreView(store, clock, keys.INCARNATIONS, IncarnationRecord, surprises),
            StoreView(store, clock, keys.NAMESPACES, NamespaceRecord, surprises),
            StoreView(store, clock, keys.CORDONS, CordonRecord, surprises),
            StoreView(store, clock, keys.LOAD, LoadReport, surprises),
            StoreView(store, clock, keys.POLICIES, TopicPoliciesRecord, surprises),
            StoreView(store, clock, keys.TOPICS, PartitionedTopicRecord, surprises),
            StoreView(store, clock, keys.DOCUMENTS, DocumentsRecord, surprises),
        )

    async def start(self) -> None:
        for view in self._all():
            await view.start()

    async def stop(self) -> None:
        for view in self._all():
            await view.stop()

    def _all(self) -> tuple[StoreView[Any], ...]:
        return (
            self.bundles,
            self.incarnations,
            self.namespaces,
            self.cordons,
            self.load,
            self.policies,
            self.topics,
            self.documents,
        )
