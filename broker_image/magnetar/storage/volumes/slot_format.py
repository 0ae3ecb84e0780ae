"""Format of slots, version 1: the objects that a log file consists of where nothing can be appended
to.

Owns: the header of a slot. Imports: errors, crc32c, volume. Pure. A slot is a header of 64 bytes,
then a part of the log file: its header page in slot 0, one block in each further one. A fence is a
header alone, so a list of sizes shows which slots are fences. All numbers are little-endian.
Invariant: the CRC-32C over the header is seeded with incarnation and file, so that a slot of
another place never passes.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from crc32c import crc32c

from magnetar.errors import CorruptData
from magnetar.storage.volumes.volume import Buffer

VERSION = 1
SLOT_HEADER_BYTES = 64
NONCE_BITS = 128

_MAGIC = b"MAGNSLOT"
# magic, version, kind, file, slot, offset, bytes that follow, nonce, reserved
_SLOT = struct.Struct("<8sHBxIIQQ16s8x")
_CRC = struct.Struct("<I")
assert _SLOT.size + _CRC.size == SLOT_HEADER_BYTES


class SlotKind(enum.IntEnum):
    """DATA holds a part of the file; FENCE ends the file there, or, in slot 0, the incarnation's
    log before that file."""

    DATA = 1
    FENCE = 2


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """`offset` is that of the slot's first byte in the log file, `length` what follows the
    header, `nonce` its writer's."""

    kind: SlotKind
    file: int
    slot: int
    offset: int
    length: int
    nonce: int


def encode_slot_header(seed: int, header: SlotHeader) -> bytes:
    """The 64 bytes; `seed` is `storage.log.blocks.block_seed` of incarnation and file."""
    nonce = header.nonce.to_bytes(NONCE_BITS // 8, "little")
    fixed = _SLOT.pack(
        _MAGIC, VERSION, header.kind, header.file, header.slot, header.offset, header.length, nonce
    )
    return fixed + _CRC.pack(crc32c(fixed, seed))


def decode_slot_header(seed: int, data: Buffer, key: str) -> SlotHeader:
    """Raises CorruptData naming `key` if `data` does not begin with the header of such a slot."""
    head = bytes(data[:SLOT_HEADER_BYTES])
    if len(head) < SLOT_HEADER_BYTES or _CRC.unpack_from(head, _SLOT.size)[0] != crc32c(
        head[: _SLOT.size], seed
    ):
        raise CorruptData(
            f"{key}: not a slot of this log file, or damaged; restore this object", file=key
        )
    magic, version, kind, file, slot, offset, length, nonce = _SLOT.unpack_from(head)
    if magic != _MAGIC or version != VERSION:
        raise CorruptData(
            f"{key}: slot format {magic!r} version {version}; this component reads version "
            f"{VERSION}: upgrade it",
            file=key,
        )
    return SlotHeader(SlotKind(kind), file, slot, offset, length, int.from_bytes(nonce, "little"))
