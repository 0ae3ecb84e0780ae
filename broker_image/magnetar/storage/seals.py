"""The one length of a finished log file.

Owns: `<n>.sealed`, a document with the length that everybody adopts. Imports: errors, volume, names, document.
Invariant: published once, by put-if-absent; who comes second adopts what the first one wrote.
"""

from __future__ import annotations

from magnetar.errors import Fenced
from magnetar.storage import names
from magnetar.storage.document import decode_document, encode_document
from magnetar.storage.volume import Volume

KIND, VERSION = "sealed", 1


async def read_seal(volume: Volume, incarnation: str, number: int) -> int | None:
    """The sealed length in bytes (0: the file holds nothing, not even a header), or None while it is open. Raises StorageError."""
    name = names.sealed(incarnation, number)
    try:
        data = await volume.read(name)
    except FileNotFoundError:
        return None
    return int(decode_document(KIND, VERSION, data, name)["length"])


async def publish_seal(volume: Volume, incarnation: str, number: int, length: int) -> int:
    """Seal the file at `length` unless it is sealed already; the length that holds from now on. Raises Fenced, StorageError."""
    document = encode_document(KIND, VERSION, {"incarnation": incarnation, "file": number, "length": length})
    if await volume.put_if_absent(names.sealed(incarnation, number), document):
        return length
    adopted = await read_seal(volume, incarnation, number)
    if adopted is None:
        # Sealed by a taker, and collected with its file since: whoever still wants to seal it has slept through that.
        raise Fenced(f"the seal of {names.log_file(incarnation, number)} is gone again: the file was taken over and deleted")
    return adopted
