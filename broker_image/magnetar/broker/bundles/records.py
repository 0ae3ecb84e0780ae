"""Committing bundles' records.

Owns: the compare-and-swap by which a party to a bundle changes its record, and what the record
shows of a change whose answer was lost; the epoch of a term. Imports: metadata. Invariant: the
outcome is known when `commit` returns: a lost answer is resolved by reading the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import StoreUnavailable
from magnetar.hosting.views import ClusterViews, Viewed
from magnetar.metadata import keys
from magnetar.metadata.records import RESTORE_STRIDE, BundleRecord, BundleState
from magnetar.metadata.store import Compare, KeyValue, Put
from magnetar.names import BundleName

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.1


class RecordChange(NamedTuple):
    """The next record of a bundle, in place of that of revision `expected`."""

    name: str
    expected: int
    record: BundleRecord


class BundleRecords:
    """Records of bundles, as a broker that takes part in their transfer reads and writes them."""

    def __init__(self, context: BrokerContext, views: ClusterViews) -> None:
        self._context, self._bundles = context, views.bundles

    def get(self, name: str) -> Viewed[BundleRecord] | None:
        """The newest record that we know."""
        return self._bundles.get(name)

    def settled(self, name: str) -> Viewed[BundleRecord] | None:
        """The record of a bundle that we own and that no transfer, split or merge is under way of."""
        viewed = self._bundles.get(name)
        if viewed is None or viewed.record.incarnation != self._context.incarnation:
            return None
        return viewed if viewed.record.state is BundleState.OWNED else None

    def epoch_of(self, viewed: Viewed[BundleRecord]) -> int:
        """The epoch of the term that begins with this record."""
        return self._context.restore * RESTORE_STRIDE + viewed.mod_revision

    async def swap(
        self, name: str, expected: int, record: BundleRecord, *guards: Compare
    ) -> int | None:
        """One compare-and-swap under the guards; the revision, or None if it was refused. Raises
        StoreError."""
        return await self._swap([RecordChange(name, expected, record)], guards)

    async def _swap(
        self, changes: Sequence[RecordChange], guards: Sequence[Compare] = ()
    ) -> int | None:
        written = [
            (keys.bundle(BundleName.parse(change.name)), change.record.encode())
            for change in changes
        ]
        compares = [
            Compare(key, "mod", "=", change.expected)
            for (key, _), change in zip(written, changes, strict=True)
        ]
        result = await self._context.store.transact(
            [*compares, *guards], [Put(key, value) for key, value in written]
        )
        if not result.succeeded:
            return None
        for (_, value), change in zip(written, changes, strict=True):
            self._bundles.observe(change.name, value, result.revision)
        return result.revision

    async def commit(self, name: str, expected: int, record: BundleRecord) -> int | None:
        """Compare-and-swap our record; its revision, or None if another broker changed it."""
        return await self.commit_together([RecordChange(name, expected, record)])

    async def commit_together(self, changes: Sequence[RecordChange]) -> int | None:
        """As `commit`, of several records in one transaction: all of them, or none."""
        while True:
            try:
                revision = await self._swap(changes)
                if revision is not None:
                    return revision
                items = [await self.read(change.name) for change in changes]
                # The same values, of one revision, are our own write, whose answer was lost.
                ours = {
                    item.mod_revision
                    if item is not None and item.value == change.record.encode()
                    else None
                    for item, change in zip(items, changes, strict=True)
                }
                return ours.pop() if len(ours) == 1 else None
            except StoreUnavailable as error:
                log.warning("bundle.commit_unknown", bundle=changes[0].name, error=str(error))
                await asyncio.sleep(STORE_RETRY_S)

    async def end_term(self, name: str, expected: int, record: BundleRecord) -> bool:
        """Commit the record that ends our term; whether it was accepted.

        It also was if the answer was lost and another broker continued from its last range, or if
        the bundle was divided since or its namespace deleted. Whether we were fenced before is
        shown by our claim.
        """
        if await self.commit(name, expected, record) is not None:
            return True
        viewed = self._bundles.get(name)
        if viewed is None or viewed.record.state is BundleState.DELETED:
            return True
        others = viewed.record.incarnation != self._context.incarnation
        return others and record.chain[-1] in viewed.record.chain

    async def read(self, name: str) -> KeyValue | None:
        """The record as the store has it, which our view has then. Raises StoreError."""
        item = await self._context.store.get(keys.bundle(BundleName.parse(name)))
        if item is not None:
            self._bundles.observe(name, item.value, item.mod_revision)
        return item
