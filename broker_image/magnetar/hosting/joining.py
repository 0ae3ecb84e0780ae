"""Whether this store and this storage belong together.

Owns: what a broker checks before it claims anything: storage id, format, restore number, and that
the store has not gone back in time. Imports: metadata, storage. Invariants: a store that has lost
what storage remembers is never started over: a process that brings one is refused, with what to
run; the cluster's record is written before the first log is, so storage with logs and a store
without that record means that the store is lost; the restore number is written together with that
record, by a join or a restore, and never into a store that another join has read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magnetar.clock import Clock
from magnetar.errors import RestoreAwaited, StorageError
from magnetar.metadata import keys
from magnetar.metadata.backends.core import holds
from magnetar.metadata.guarded import GuardedStore
from magnetar.metadata.records import (
    RESTORE_STRIDE,
    BackupRecord,
    ClusterRecord,
    NamespaceRecord,
    RestoreRecord,
)
from magnetar.metadata.store import Compare, MetadataStore, Put
from magnetar.names import DEFAULT_BUNDLES, SYSTEM_NAMESPACE, NamespaceName, initial_boundaries
from magnetar.storage import names
from magnetar.storage.restore.restore_number import read_restore_number
from magnetar.storage.storage_id import read_or_create_storage_id
from magnetar.storage.volumes.volume import Volume

FORMAT_VERSION = 1
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
START_NAMESPACES = (NamespaceName("public", "default"), SYSTEM_NAMESPACE)


@dataclass(frozen=True, slots=True)
class Membership:
    """What a broker needs to know of the cluster it has joined."""

    storage_id: str
    restore: int


async def join_cluster(store: MetadataStore, volume: Volume, clock: Clock) -> Membership:
    """Check that store and storage belong together. Raises StorageError, which says what is
    wrong and what to run; StoreError."""
    storage_id = await read_or_create_storage_id(volume, clock)
    item = await store.get(keys.CLUSTER)
    if item is None:
        await _refuse_lost_store(store, volume, storage_id)
        fresh = ClusterRecord(storage_id=storage_id, restore=0, format_version=FORMAT_VERSION)
        number = Put(keys.RESTORE, RestoreRecord(fresh.restore).encode())
        await store.transact(
            [Compare(keys.CLUSTER, "create", "=", 0)], [Put(keys.CLUSTER, fresh.encode()), number]
        )
        item = await store.get(keys.CLUSTER)
        assert item is not None
    cluster = ClusterRecord.decode(item.value)
    if cluster.storage_id != storage_id:
        raise StorageError(
            f"storage id is {storage_id} but the cluster expects {cluster.storage_id}: a different "
            "volume is mounted; mount the right one"
        )
    if cluster.format_version > FORMAT_VERSION:
        raise StorageError(
            f"the cluster writes format {cluster.format_version}; this broker knows "
            f"{FORMAT_VERSION}: upgrade it"
        )
    await check_restore(volume, cluster.restore)
    await _check_time(store, volume, cluster.restore)
    guard = _guard(cluster.restore)
    for namespace in START_NAMESPACES:
        record = NamespaceRecord(
            initial_boundaries(DEFAULT_BUNDLES), {}, bundles_created=DEFAULT_BUNDLES
        )
        key = keys.namespace(namespace)
        await store.transact([guard, Compare(key, "create", "=", 0)], [Put(key, record.encode())])
    if not holds(guard, await store.get(keys.RESTORE)):
        raise RestoreAwaited(
            "restore number: the metadata store was lost, or a restore of it has begun, while we "
            "joined; wait for the restore"
        )
    return Membership(storage_id, cluster.restore)


def incarnation_number(restore: int, revision: int) -> str:
    """What names one incarnation among all of the cluster's, in few characters: the revision of its
    registration, behind the restore number.

    Each revision is one write of one broker, and a store whose revisions go back has a higher
    restore number.
    """
    digits = ""
    while revision:
        revision, digit = divmod(revision, len(DIGITS))
        digits = DIGITS[digit] + digits
    return f"{restore}.{digits}" if restore else digits


def guarded(
    store: MetadataStore, restore: int, on_replaced: Callable[[str], None]
) -> MetadataStore:
    """The store for one incarnation: it changes nothing in another store than the one that was
    joined, under that restore number."""
    return GuardedStore(store, _guard(restore), on_replaced)


def _guard(restore: int) -> Compare:
    """Holds in the store that has this restore number, once its restore is over."""
    return Compare(keys.RESTORE, "value", "=", RestoreRecord(restore).encode())


async def check_restore(volume: Volume, restore: int) -> None:
    """Raises RestoreAwaited unless `restore`, the store's number, is the storage's: also after our
    claim, for a restore that began in between."""
    known = await read_restore_number(volume)
    if restore != known:
        raise RestoreAwaited(
            f"restore number: the metadata store has {restore}, the storage {known}: a restore is "
            "under way or was not finished, or the store "
            "is older than the last one; wait for it, or run `magnetar metadata restore "
            "--in-place` with all brokers stopped"
        )


async def _refuse_lost_store(store: MetadataStore, volume: Volume, storage_id: str) -> None:
    if not (await volume.list(names.LOGS) or await read_restore_number(volume)):
        return
    if await store.get(keys.CLUSTER) is not None:
        return  # the first broker of a new cluster was quicker: the record comes before its log
    raise RestoreAwaited(
        f"the metadata store is empty, but storage {storage_id} holds the logs of a cluster: the "
        "store was lost, or another one is configured; "
        "to continue from storage run `magnetar metadata restore FILE` with a backup, or `magnetar "
        "metadata rebuild` without one"
    )


async def _check_time(store: MetadataStore, volume: Volume, restore: int) -> None:
    """Refuse a store of which storage has seen a later state: epochs, and with them message ids,
    would repeat, and whole terms be forgotten."""
    copies = [
        place
        for name in await volume.list(names.BACKUPS)
        if (place := names.backup_place(name)) is not None
    ]
    epochs = [
        epoch
        for name in await volume.list(names.CHECKPOINTS)
        if (epoch := names.checkpoint_epoch(name)) is not None
    ]
    newest, last = max(copies, default=(0, 0)), max(epochs, default=0)
    # After what storage has: a copy is announced in the store before it is there.
    found = await store.range(keys.BACKUP)
    # Other keys begin with the same word.
    records = (BackupRecord.decode(item.value) for item in found.items if item.key == keys.BACKUP)
    announced = next(records, BackupRecord(restore, 0))
    if (
        announced.restore,
        announced.revision,
    ) >= newest and restore * RESTORE_STRIDE + found.revision >= last:
        return
    raise StorageError(
        f"the metadata store (revision {found.revision}, restore number {restore}) is older than "
        "what storage has seen of it (a copy of revision "
        f"{newest[1]}, a term of revision {last % RESTORE_STRIDE}): an older snapshot was put "
        "back; run `magnetar metadata restore --in-place` "
        "with all brokers stopped"
    )
