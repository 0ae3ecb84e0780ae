"""The identity of a cluster's storage.

Owns: `cluster/storage-id`, by which a broker notices that another volume is mounted than its
metadata store expects. Imports: volume, names, document, clock. Invariant: once written it never
changes; of concurrent creators one wins and all return its id.
"""

from __future__ import annotations

from magnetar.clock import Clock
from magnetar.storage import names
from magnetar.storage.document import decode_document, encode_document
from magnetar.storage.volumes.volume import Volume

KIND, VERSION = "storage-id", 1


async def read_storage_id(volume: Volume) -> str | None:
    """The volume's id, or None if it has none yet. Raises StorageError, CorruptData."""
    try:
        data = await volume.read(names.STORAGE_ID)
    except FileNotFoundError:
        return None
    return str(decode_document(KIND, VERSION, data, names.STORAGE_ID)["id"])


async def read_or_create_storage_id(volume: Volume, clock: Clock) -> str:
    """The volume's id, 32 hexadecimal digits, drawn now if this is an empty volume. Raises
    StorageError, CorruptData."""
    identifier = await read_storage_id(volume) or f"{clock.random_bits(128):032x}"
    # Also when it is there: its creator may not have synced the name yet, and a cluster that goes
    # by an id which a power loss takes is lost.
    await volume.put_if_absent(names.STORAGE_ID, encode_document(KIND, VERSION, {"id": identifier}))
    found = await read_storage_id(volume)
    assert found is not None, "the storage id vanished after it was written"
    return found
