"""What a split and a merge ask of a namespace.

Owns: the namespace's record as both change it, the records that are in the way of bundles to come,
and the copies of new ones in the log. Imports: errors, metadata, names, storage. Invariant: a bundle is made only of a range whose record is
absent, Deleted or Free, and only if the transaction compares the revision found here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magnetar.errors import NotAllowed
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, NamespaceRecord
from magnetar.metadata.store import KeyValue, MetadataStore
from magnetar.names import BundleName, NamespaceName
from magnetar.storage.log.format import encode_term
from magnetar.storage.log.writer import LogWriter

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
    log: LogWriter, records: Mapping[BundleName, BundleRecord], epoch: int
) -> None:
    """Copies of the records of new bundles in the log, durable before any of them is taken over or
    acknowledges anything. Raises StorageError.

    Without them a lost store could not be rebuilt once one of them was transferred. Should the
    transaction not happen after all, a former bundle's next term has a later epoch.
    """
    for name, record in records.items():
        encoded = encode_term(epoch=epoch, bundle=str(name), state=record.encode())
        log.append(encoded.buffers, encoded.size, 1, None)
    await log.barrier()
