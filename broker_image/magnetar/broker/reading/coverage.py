"""Which sealed files a bundle's manifest must list.

Owns: the files of a recovery chain, and the commit of a manifest within a term. Imports: metadata,
storage. Invariants: a file is listed once it is sealed; a manifest is committed only while the
bundle's record has its term: `storage.gc.manifests_of_the_dead` relies on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from magnetar.broker.context import BrokerContext
from magnetar.errors import ServiceNotReady, StoreError
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, LogPosition
from magnetar.metadata.store import Compare
from magnetar.names import BundleName
from magnetar.storage.log.fencing import fence
from magnetar.storage.log.seals import read_seal
from magnetar.storage.manifest import LevelZero, Manifest, Outcome, commit_manifest

SEAL_WAIT_S = 5.0
SEAL_LOOK_S = 0.1


async def files_of_chain(
    context: BrokerContext, record: BundleRecord, position: LogPosition
) -> list[LevelZero]:
    """The files of the chain before `position` of our log. Raises StoreError, StorageError;
    ServiceNotReady while a broker that released the bundle has not sealed its file yet."""
    epochs: dict[tuple[str, int], set[int]] = {}
    for term, span in zip(record.epochs, record.chain, strict=True):
        own = span.end is None
        end = position if span.end is None else span.end
        if not own and end <= span.start:
            continue  # nothing was written: its files may be gone
        last = end.file - 1 if own or end.offset <= 0 else end.file
        for number in range(span.start.file, last + 1):
            epochs.setdefault((span.incarnation, number), set()).add(term)
    found = []
    for (incarnation, number), terms in epochs.items():
        length = await _sealed_length(context, incarnation, number)
        if length:
            found.append(LevelZero(incarnation, number, length, tuple(sorted(terms))))
    return found


async def _sealed_length(context: BrokerContext, incarnation: str, number: int) -> int:
    deadline = context.clock.monotonic() + SEAL_WAIT_S
    while True:
        length = await read_seal(context.volume, incarnation, number)
        if length is not None:
            return length
        if context.clock.monotonic() > deadline:
            if await context.store.get(keys.incarnation(incarnation)) is None:
                # It released the bundle and died before it sealed; if it had no other bundle, no
                # other broker will ever fence it.
                await fence(context.volume, incarnation)
                continue
            raise ServiceNotReady(
                f"log file {number} of {incarnation} is not sealed yet; try again in a moment"
            )
        await asyncio.sleep(SEAL_LOOK_S)


async def commit_in_term(
    context: BrokerContext,
    bundle: BundleName,
    epoch: int,
    edit: Callable[[Manifest], Manifest | None],
) -> Manifest:
    """Commit the manifest while the bundle's record has the term `epoch`; the one that holds then.
    Raises StoreError, StorageError."""
    key = keys.bundle(bundle)
    while True:
        item = await context.store.get(key)
        if item is None or epoch not in BundleRecord.decode(item.value).epochs:
            raise StoreError(
                f"manifest of {bundle}: term {epoch} is over, and others have gone on from it"
            )
        unchanged = Compare(key, "mod", "=", item.mod_revision)
        committed = await commit_manifest(
            context.store, context.volume, context.clock, bundle, edit, [unchanged]
        )
        # else the record has changed: a checkpoint was pointed to, or the bundle is moving
        if committed.outcome is not Outcome.REFUSED:
            return committed.manifest
