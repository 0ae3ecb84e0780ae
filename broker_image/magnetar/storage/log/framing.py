"""How records lie in the blocks of log files.

Owns: the header of a record, the walk over a block's records, the bound of names in them. Imports:
errors, volume. Pure. Invariant: what is common to all types of records is here once; what a payload means
is known by the format of its type.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from magnetar.errors import CorruptData, LimitExceeded
from magnetar.storage.volumes.volume import Buffer

RECORD_HEADER_BYTES = 8
NAME_BYTES_MAX = 0xFFFF

_RECORD = struct.Struct("<BBHI")  # type, flags, reserved, payload bytes


class Encoded(NamedTuple):
    """A record to append: `buffers` back to back are `size` bytes; `entries_offset` is where
    entry bytes begin within its payload."""

    buffers: list[Buffer]
    size: int
    entries_offset: int = 0


def encoded_record(kind: int, *parts: bytes) -> Encoded:
    """A record whose payload is `parts` back to back."""
    payload = b"".join(parts)
    return Encoded(
        [record_header(kind, len(payload)) + payload], RECORD_HEADER_BYTES + len(payload)
    )


def record_header(kind: int, payload_bytes: int) -> bytes:
    """The header of 8 bytes before a payload."""
    return _RECORD.pack(kind, 0, 0, payload_bytes)


def framed_records(body: memoryview) -> Iterator[tuple[int, int, int]]:
    """Records of one block whose CRC is right: (type, where the payload begins, where it ends).
    Raises CorruptData if one is cut off."""
    at = 0
    while at < len(body):
        if len(body) - at < RECORD_HEADER_BYTES:
            raise CorruptData(f"block ends inside a record header at {at} of {len(body)}")
        kind, _flags, _reserved, length = _RECORD.unpack_from(body, at)
        at += RECORD_HEADER_BYTES
        if length > len(body) - at:
            raise CorruptData(f"record of {length} bytes at {at} exceeds its block of {len(body)}")
        yield kind, at, at + length
        at += length


def bounded_length(name: bytes) -> int:
    """The length of `name`, if the format can hold it. Raises LimitExceeded."""
    if len(name) > NAME_BYTES_MAX:
        raise LimitExceeded(
            f"name {name[:40]!r}... has {len(name)} bytes; the limit is {NAME_BYTES_MAX}"
        )
    return len(name)
