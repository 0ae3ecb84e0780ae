"""CRC-32C.

Owns: the checksum of an entry's metadata and payload. Imports: crc32c, errors. Pure. Source:
Pulsar's protocol: frame, magic 0x0e01: a big-endian u32 over everything after it (metadata size,
metadata, payload). Invariant: an entry without the magic has no checksum and passes; Pulsar clients
older than protocol 6 send such entries.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from crc32c import crc32c

from magnetar.errors import ChecksumMismatch, ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

CHECKSUM_MAGIC = b"\x0e\x01"
BROKER_METADATA_MAGIC = b"\x0e\x02"
CHECKSUM_BYTES = 6
_U32 = struct.Struct(">I")

__all__ = [
    "BROKER_METADATA_MAGIC",
    "CHECKSUM_BYTES",
    "CHECKSUM_MAGIC",
    "Buffer",
    "crc32c",
    "entry_checksum_ok",
    "verify_entry",
]


def entry_checksum_ok(entry: Buffer) -> bool:
    """Whether the entry's checksum, if it has one, is right. A broker prefix (0x0e02) is skipped.
    Raises ProtocolError if torn.

    The library computes in hardware without copying and lets other threads run while it reads more
    than 32 KiB.
    """
    view = memoryview(entry)
    if view[:2] == BROKER_METADATA_MAGIC:
        if len(view) < 6:
            raise ProtocolError(
                f"entry has {len(view)} bytes; its broker metadata needs at least 6"
            )
        view = view[6 + _U32.unpack_from(view, 2)[0] :]
    if view[:2] != CHECKSUM_MAGIC:
        return True
    if len(view) < CHECKSUM_BYTES:
        raise ProtocolError(
            f"entry has {len(view)} bytes; its checksum needs at least {CHECKSUM_BYTES}"
        )
    return bool(crc32c(view[CHECKSUM_BYTES:]) == _U32.unpack_from(view, 2)[0])


def verify_entry(entry: Buffer) -> None:
    """Raises ChecksumMismatch if the entry's checksum is wrong, ProtocolError if it is torn."""
    if not entry_checksum_ok(entry):
        raise ChecksumMismatch(
            f"checksum of an entry of {len(entry)} bytes does not match its metadata and payload; "
            "send it again"
        )
