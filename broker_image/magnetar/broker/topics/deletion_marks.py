"""Marks of namespaces that are being deleted.

Owns: which deletions of namespaces run at this broker, and removing their marks. Imports:
metadata, names, errors. Invariant: a mark of this incarnation does not outlive the deletion that
made it for longer than the store is unavailable: it would block the creation of topics in that
namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import StoreError
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.metadata.records import NamespaceRecord
from magnetar.metadata.store import Compare, Put
from magnetar.names import NamespaceName

log = structlog.get_logger(__name__)

LOOK_S = 1.0


class DeletionMarks:
    """Removes marks that this incarnation left behind."""

    def __init__(self, context: BrokerContext, views: ClusterViews) -> None:
        self._context, self._views = context, views
        self._running: Counter[str] = Counter()

    @contextlib.contextmanager
    def running(self, name: NamespaceName) -> Iterator[None]:
        """The mark stays while a deletion of the namespace runs here."""
        self._running[str(name)] += 1
        try:
            yield
        finally:
            self._running[str(name)] -= 1
            if not self._running[str(name)]:
                del self._running[str(name)]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Remove the marks of deletions that have ended: the store was unavailable then, or took a
        mark without answering."""
        items = self._views.namespaces.items.items()
        left = [
            name for name, viewed in items if viewed.record.deleting == self._context.incarnation
        ]
        for name in left:
            try:
                await self.take_back(NamespaceName.parse(name))
            except StoreError as error:
                log.warning("namespace.stays_marked", namespace=name, error=str(error))
            except Exception as error:
                self._context.metrics.surprises.note("marks of deletions", error, namespace=name)

    async def take_back(self, name: NamespaceName) -> None:
        """Remove this incarnation's mark from a namespace, unless a deletion of it runs here.
        Raises StoreError."""
        key = keys.namespace(name)
        while str(name) not in self._running:
            item = await self._context.store.get(key)
            record = NamespaceRecord.decode(item.value) if item is not None else None
            if item is None or record is None or record.deleting != self._context.incarnation:
                return
            value = replace(record, deleting="").encode()
            result = await self._context.store.transact(
                [Compare(key, "mod", "=", item.mod_revision)], [Put(key, value)]
            )
            if result.succeeded:
                self._views.namespaces.observe(str(name), value, result.revision)
                log.info("namespace.kept", namespace=str(name))
                return
