"""What a split and a merge have in common.

Owns: the namespace's record as both change it, the records that are in the way of bundles to come,
the copies of new ones in the log, and the transaction that is tried until its outcome is known.
Imports: errors, metadata, names, storage. Invariants: a bundle is made only of a range whose record
is absent, Deleted or Free, and only if the transaction compares the revision found here; a
transaction whose answer was lost is never taken for one that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import structlog

from magnetar.errors import NotAllowed, StorageError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, NamespaceRecord
from magnetar.metadata.store import KeyValue, MetadataStore
from magnetar.names import BundleName, NamespaceName
from magnetar.storage.log.format import encode_term
from magnetar.storage.log.writer import LogWriter

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.1
PLANS_FAILED_MAX = 3
"""Failed attempts to write manifests after which a split or merge is called off: its bundles are
frozen then."""
Plan = TypeVar("Plan")

GONE = frozenset({BundleState.DELETED, BundleState.FREE})
"""States in which a range's record makes room for a new bundle: an earlier incarnation of its
namespace left it, or a split or merge."""


class BoundariesRefused(NotAllowed):
    """The bundles cannot be made: the namespace, or what is left of its earlier incarnation,
    forbids it."""


async def namespace_of(
    store: MetadataStore, bundle: BundleName
) -> tuple[NamespaceRecord, KeyValue]:
    """The namespace as the store has it. Raises BoundariesRefused if it is gone, StoreError."""
    item = await store.get(keys.namespace(bundle.namespace))
    if item is None:
        raise BoundariesRefused(f"namespace {bundle.namespace} does not exist any more")
    return NamespaceRecord.decode(item.value), item


async def revisions_of(
    store: MetadataStore, namespace: NamespaceName, wanted: Sequence[BundleName]
) -> dict[BundleName, int]:
    """Revisions of the records that the names of bundles to come have already, 0 for none. Raises
    BoundariesRefused if one of them is in use, StoreError."""
    found = {item.key: item for item in (await store.range(keys.bundles_in(namespace))).items}
    revisions = {}
    for name in wanted:
        item = found.get(keys.bundle(name))
        if item is not None and BundleRecord.decode(item.value).state not in GONE:
            raise BoundariesRefused(
                f"bundle {name} is still there, from an earlier incarnation of its "
                "namespace; choose other boundaries"
            )
        revisions[name] = item.mod_revision if item is not None else 0
    return revisions


async def keep_copies(
    writer: LogWriter, records: Mapping[BundleName, BundleRecord], epoch: int
) -> None:
    """Copies of the records of new bundles in the log, durable before any of them is taken over or
    acknowledges anything. Raises StorageError.

    Without them a lost store could not be rebuilt once one of them was transferred. Should the
    transaction not happen after all, a former bundle's next term has a later epoch.
    """
    for name, record in records.items():
        encoded = encode_term(epoch=epoch, bundle=str(name), state=record.encode())
        writer.append(encoded.buffers, encoded.size, 1, None)
    await writer.barrier()


async def until_committed(
    name: str,
    plan: Plan | None,
    make: Callable[[], Awaitable[Plan]],
    attempt: Callable[[Plan], Awaitable[bool]],
    done_before: Callable[[], Awaitable[Plan | None]],
) -> Plan:
    """The plan that was committed, after as many attempts as it takes; `name` is the bundle's.

    `make` plans again once records have changed, or if there is no `plan`. `done_before` finds an
    attempt that was committed though its answer was lost. Raises BoundariesRefused if manifests
    cannot be written, and what the three raise but StoreUnavailable.
    """
    failed = 0
    while True:
        try:
            if plan is None:
                plan = await make()
            if await attempt(plan):
                return plan
            if (done := await done_before()) is not None:
                return done
            plan = None
        except StoreUnavailable as error:
            log.warning("bundle.commit_unknown", bundle=name, error=str(error))
            await asyncio.sleep(STORE_RETRY_S)
            with contextlib.suppress(StoreUnavailable):  # the next attempt finds out
                if (done := await done_before()) is not None:
                    return done
        except StorageError as error:
            failed += 1
            log.warning("bundle.manifest_not_written", bundle=name, error=str(error))
            if failed == PLANS_FAILED_MAX:
                raise BoundariesRefused(f"manifests cannot be written or read: {error}") from error
            await asyncio.sleep(STORE_RETRY_S)
