"""Copies of the metadata store that are kept in storage.

Owns: the objects `backups/<restore number>-<revision>`. Imports: metadata.backup, volume, names.
Invariants: sorted names are in the order of the copies; a copy is never changed; only the newest
ones are kept; the store records a copy before the copy is written, so storage never has one that an
intact store does not know.
"""

from __future__ import annotations

import asyncio

from magnetar.metadata import keys
from magnetar.metadata.backup import Backup, decode_backup, encoded_parts
from magnetar.metadata.records import BackupRecord
from magnetar.metadata.store import Compare, MetadataStore, Put
from magnetar.storage import names
from magnetar.storage.volumes.volume import Volume


async def list_backups(volume: Volume) -> list[str]:
    """Names of the copies in storage, oldest first. Raises StorageError."""
    return sorted(
        name for name in await volume.list(names.BACKUPS) if names.backup_place(name) is not None
    )


async def keep_backup(
    store: MetadataStore, volume: Volume, backup: Backup, kept: int
) -> str | None:
    """Write the copy into storage and give up all but the `kept` newest; its name, None if there
    is a newer one. Raises StoreError, StorageError."""
    item = await store.get(keys.BACKUP)
    if item is not None and _place(BackupRecord.decode(item.value)) >= (
        backup.restore,
        backup.revision,
    ):
        return None
    record = BackupRecord(backup.restore, backup.revision)
    compare = Compare(keys.BACKUP, "mod", "=", item.mod_revision if item is not None else 0)
    if not (await store.transact([compare], [Put(keys.BACKUP, record.encode())])).succeeded:
        return None
    name = names.backup(backup.restore, backup.revision)
    parts = []
    for part in encoded_parts(backup):
        parts.append(part)
        await asyncio.sleep(0)  # this is the leader's loop, which serves clients
    await volume.put_if_absent(name, b"".join(parts))
    for superseded in (await list_backups(volume))[:-kept]:
        await volume.remove(superseded)
    return name


def _place(record: BackupRecord) -> tuple[int, int]:
    return record.restore, record.revision


async def load_backup(volume: Volume, name: str) -> Backup:
    """The copy `name`. Raises CorruptData, StorageError, FileNotFoundError."""
    return decode_backup(await volume.read(name), name)
