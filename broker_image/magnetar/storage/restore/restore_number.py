"""How often the metadata store of this storage was restored.

Owns: the numbered objects `cluster/restore/<n>`, by which epochs, and so message ids, grow even if
a store begins again. Imports: volume, names, document, clock, metadata.records. Invariants: the
number only grows, up to RESTORES_MAX, and is durable before anything is written to the restored
store; of concurrent restores each gets a number of its own, and only the highest one's cluster
record is accepted by brokers.
"""

from __future__ import annotations

from magnetar.clock import Clock
from magnetar.errors import RestoresExhausted
from magnetar.metadata.records import RESTORES_MAX
from magnetar.storage import names
from magnetar.storage.document import encode_document
from magnetar.storage.volumes.volume import Volume

KIND, VERSION = "restore", 1


async def read_restore_number(volume: Volume) -> int:
    """The storage's restore number: 0 if its store was never restored. Raises StorageError."""
    found = [
        number
        for name in await volume.list(names.RESTORE)
        if (number := names.restore_number(name)) is not None
    ]
    return max(found, default=0)


async def raise_restore_number(volume: Volume, clock: Clock, least: int, reason: str) -> int:
    """A number that no incarnation has had, above the storage's own and at least `least`; durable
    on return. Raises RestoresExhausted, StorageError."""
    while True:
        number = max(await read_restore_number(volume) + 1, least)
        if number > RESTORES_MAX:
            raise RestoresExhausted(
                f"restore number: {number} is above {RESTORES_MAX}, the last one that message ids "
                "have room for; start a cluster with new storage "
                "and copy the messages into it"
            )
        body = {"number": number, "created_ms": clock.wall_ms(), "reason": reason}
        if await volume.put_if_absent(names.restore(number), encode_document(KIND, VERSION, body)):
            return number
