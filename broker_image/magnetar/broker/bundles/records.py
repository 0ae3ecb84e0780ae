"""Committing a bundle's record.

Owns: `commit_record`, the compare-and-swap by which a party to a bundle changes its record; what a
record tells of a change whose answer was lost. Imports: metadata. Invariant: the outcome is known
when it returns: an answer that was lost is resolved by reading the record again.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.errors import StoreUnavailable
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, LogRange
from magnetar.metadata.store import Compare, Put
from magnetar.names import BundleName

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.1


async def commit_record(
    context: BrokerContext, views: ClusterViews, name: str, expected: int, record: BundleRecord
) -> int | None:
    """Compare-and-swap our record; its revision, or None if somebody else changed it. Resolves
    unknown outcomes by reading."""
    key, value = keys.bundle(BundleName.parse(name)), record.encode()
    while True:
        try:
            result = await context.store.transact(
                [Compare(key, "mod", "=", expected)], [Put(key, value)]
            )
            if result.succeeded:
                views.bundles.observe(name, value, result.revision)
                return result.revision
            item = await context.store.get(key)
            if item is not None:
                views.bundles.observe(name, item.value, item.mod_revision)
            # The same value is our own write, whose answer was lost.
            return item.mod_revision if item is not None and item.value == value else None
        except StoreUnavailable as error:
            log.warning("bundle.commit_unknown", bundle=name, error=str(error))
            await asyncio.sleep(STORE_RETRY_S)


def others_went_on(context: BrokerContext, views: ClusterViews, name: str, ours: LogRange) -> bool:
    """Whether a record that we gave away with the range `ours` was taken though its answer was
    lost: others have gone on from where we ended.

    One that is gone or Deleted was divided since, or its namespace deleted. That we were fenced
    before is then told by our claim, not by the record.
    """
    viewed = views.bundles.get(name)
    if viewed is None or viewed.record.state is BundleState.DELETED:
        return True
    return viewed.record.incarnation != context.incarnation and ours in viewed.record.chain
