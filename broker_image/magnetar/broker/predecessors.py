"""Fencing of a broker's previous incarnations.

Owns: `fence_predecessors`. Imports: metadata, fencing. Invariant: a claim is removed before the
registration that belongs to it.
"""

from __future__ import annotations

import structlog

from magnetar.errors import CorruptData
from magnetar.metadata import keys
from magnetar.metadata.store import Delete, MetadataStore
from magnetar.storage.log.fencing import fence
from magnetar.storage.volumes.volume import Volume

log = structlog.get_logger(__name__)


async def fence_predecessors(store: MetadataStore, volume: Volume, incarnation: str) -> None:
    """End previous incarnations of the same name: their claims first, then their registration.

    Raises StoreError, StorageError.
    """
    for name in await volume.list("claims"):
        predecessor = name.removeprefix("claims/")
        if (
            predecessor != incarnation
            and predecessor.rpartition(".")[0] == incarnation.rpartition(".")[0]
        ):
            log.info("broker.fencing_predecessor", predecessor=predecessor)
            try:
                await fence(volume, predecessor)
            except CorruptData as error:
                # It has no claim any more. A reader of its log names the damage; everything
                # else is to be served.
                log.error("broker.predecessor_damaged", predecessor=predecessor, error=str(error))
            await store.transact(
                [], [Delete(keys.incarnation(predecessor)), Delete(keys.load(predecessor))]
            )
