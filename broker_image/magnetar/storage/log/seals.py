"""The one length of a finished log file.

Owns: `<n>.sealed`, a document with the length that all brokers adopt, and whether another file
follows. Imports: errors, volume, names, document. Invariant: published once, by put-if-absent; a
second sealer adopts what the first one wrote. Only an operator replaces a seal, by one that says
that a loss was accepted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from magnetar.errors import Fenced
from magnetar.storage import names
from magnetar.storage.document import decode_document, encode_document
from magnetar.storage.volumes.volume import Volume

KIND, VERSION = "sealed", 1
FOLLOWED, ACCEPTED = "followed", "loss_accepted"


class Seal(NamedTuple):
    """`length` in bytes (0: the file holds nothing, not even a header). `followed`: its owner
    had begun the next file, durably, when it sealed this one. `accepted`: what the file held
    behind `length`, and all later files, is lost, and an operator has accepted that."""

    length: int
    followed: bool
    accepted: bool


async def read_seal(volume: Volume, incarnation: str, number: int) -> int | None:
    """The sealed length, or None while the file is open. Raises StorageError."""
    seal = await read_whole_seal(volume, incarnation, number)
    return None if seal is None else seal.length


async def read_whole_seal(volume: Volume, incarnation: str, number: int) -> Seal | None:
    """The seal of a log file, None while the file is open. Raises StorageError."""
    name = names.sealed(incarnation, number)
    try:
        data = await volume.read(name)
    except FileNotFoundError:
        return None
    body = decode_document(KIND, VERSION, data, name)
    return Seal(int(body["length"]), bool(body.get(FOLLOWED)), bool(body.get(ACCEPTED)))


async def publish_seal(
    volume: Volume, incarnation: str, number: int, length: int, *, followed: bool = False
) -> int:
    """Seal the file at `length` unless it is sealed already; the length that holds from now on.
    Raises Fenced, StorageError.

    `followed`: the next file is there. Only its owner knows; new owners of the log say nothing of
    it.
    """
    document = _document(incarnation, number, length, FOLLOWED if followed else "")
    if await volume.put_if_absent(names.sealed(incarnation, number), document):
        return length
    adopted = await read_seal(volume, incarnation, number)
    if adopted is None:
        # A new owner sealed it, and the collector removed it with its file since: this process
        # was paused.
        raise Fenced(
            f"the seal of {names.log_file(incarnation, number)} is gone again: the file was taken "
            "over and deleted"
        )
    return adopted


async def accept_loss(volume: Volume, incarnation: str, number: int, length: int) -> None:
    """Seal the file at `length`, replacing any seal that it has; only for an operator who
    accepts the loss. Raises StorageError."""
    name, document = (
        names.sealed(incarnation, number),
        _document(incarnation, number, length, ACCEPTED),
    )
    while not await volume.put_if_absent(name, document):
        await volume.remove(name)


def _document(incarnation: str, number: int, length: int, said: str) -> bytes:
    body: dict[str, Any] = {"incarnation": incarnation, "file": number, "length": length}
    return encode_document(KIND, VERSION, {**body, said: True} if said else body)
