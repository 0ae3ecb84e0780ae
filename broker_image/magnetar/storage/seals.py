"""The one length of a finished log file.

Owns: `<n>.sealed`, a document with the length that everybody adopts, and whether the log goes on. Imports: errors, volume, names, document.
Invariant: published once, by put-if-absent; who comes second adopts what the first one wrote.
"""

from __future__ import annotations

from typing import Any

from magnetar.errors import Fenced
from magnetar.storage import names
from magnetar.storage.document import decode_document, encode_document
from magnetar.storage.volume import Volume

KIND, VERSION = "sealed", 1
FOLLOWED = "followed"


async def read_seal(volume: Volume, incarnation: str, number: int) -> int | None:
    """The sealed length in bytes (0: the file holds nothing, not even a header), or None while it is open. Raises StorageError."""
    body = await _read(volume, incarnation, number)
    return None if body is None else int(body["length"])


async def is_followed(volume: Volume, incarnation: str, number: int) -> bool:
    """Whether the owner of the log had begun the next file, durably, when it sealed this one: then there is one. Raises StorageError."""
    body = await _read(volume, incarnation, number)
    return body is not None and bool(body.get(FOLLOWED))


async def _read(volume: Volume, incarnation: str, number: int) -> dict[str, Any] | None:
    name = names.sealed(incarnation, number)
    try:
        data = await volume.read(name)
    except FileNotFoundError:
        return None
    return decode_document(KIND, VERSION, data, name)


async def publish_seal(volume: Volume, incarnation: str, number: int, length: int, *, followed: bool = False) -> int:
    """Seal the file at `length` unless it is sealed already; the length that holds from now on. Raises Fenced, StorageError.

    `followed`: the next file is there. Only its owner knows; takers of the log say nothing of it.
    """
    body = {"incarnation": incarnation, "file": number, "length": length}
    document = encode_document(KIND, VERSION, {**body, FOLLOWED: True} if followed else body)
    if await volume.put_if_absent(names.sealed(incarnation, number), document):
        return length
    adopted = await read_seal(volume, incarnation, number)
    if adopted is None:
        # Sealed by a taker, and collected with its file since: whoever still wants to seal it has slept through that.
        raise Fenced(f"the seal of {names.log_file(incarnation, number)} is gone again: the file was taken over and deleted")
    return adopted
