"""Format of log files, version 1: file header and blocks.

Owns: what frames the records of a log. Imports: errors, crc32c, volume. Pure. A file is a header
page of 4096 bytes, then blocks back to back, then zeros. A block is one group commit: a header of
40 bytes, then records (`log/format.py`). All numbers are little-endian. Invariants: a block's
CRC-32C is seeded with the incarnation and the file's number and covers its own offset, so bytes of
another place, or of an earlier incarnation of the file, never pass; released versions are never
edited.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from magnetar.errors import CorruptData
from magnetar.storage.volumes.volume import Buffer

VERSION = 1
FILE_HEADER_BYTES = 4096
BLOCK_HEADER_BYTES = 40
BLOCK_BODY_BYTES_MAX = 16 * 1024 * 1024

_FILE_MAGIC = b"MAGNLOG\0"
# magic, version, window, header bytes, file number, created ms, incarnation length
_FILE = struct.Struct("<8sHHIIQH")
_BLOCK_MAGIC = 0x4B4C424D  # "MBLK"
BLOCK_MAGIC_BYTES = struct.pack("<I", _BLOCK_MAGIC)
_BLOCK = struct.Struct("<IIIIQQQ")  # magic, crc, body bytes, records, sequence, elapsed ms, offset
_COVERED = struct.Struct("<IIQQQ")  # the block header after its CRC
_BLOCK_START, _CRC = struct.Struct("<II"), struct.Struct("<I")


# --- the file's header ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileHeader:
    """First page of a log file. `window` is the number of appends that may be under way at once
    (1 on a POSIX volume)."""

    incarnation: str
    number: int
    created_ms: int
    window: int = 1


def encode_file_header(header: FileHeader) -> bytes:
    """The page of 4096 bytes; its last four are the CRC-32C of the rest."""
    name = header.incarnation.encode()
    fixed = _FILE.pack(
        _FILE_MAGIC,
        VERSION,
        header.window,
        FILE_HEADER_BYTES,
        header.number,
        header.created_ms,
        len(name),
    )
    page = (fixed + name).ljust(FILE_HEADER_BYTES - _CRC.size, b"\0")
    assert len(page) == FILE_HEADER_BYTES - _CRC.size, (
        "the incarnation's name does not fit into a page"
    )
    return page + _CRC.pack(crc32c(page))


def decode_file_header(page: Buffer) -> FileHeader:
    """Raises CorruptData if `page` is not such a header or of another version."""
    page = bytes(page[:FILE_HEADER_BYTES])
    if len(page) < FILE_HEADER_BYTES or _CRC.unpack_from(page, FILE_HEADER_BYTES - _CRC.size)[
        0
    ] != crc32c(page[: -_CRC.size]):
        raise CorruptData("not the header of a log file, or damaged")
    magic, version, window, size, number, created_ms, length = _FILE.unpack_from(page)
    if magic != _FILE_MAGIC or version != VERSION or size != FILE_HEADER_BYTES:
        raise CorruptData(
            f"log format {magic!r} version {version} is not known; this component reads version "
            f"{VERSION}: upgrade it"
        )
    return FileHeader(page[_FILE.size : _FILE.size + length].decode(), number, created_ms, window)


# --- blocks ---------------------------------------------------------------------------------------


class BlockHeader(NamedTuple):
    """`body_bytes` follow the header; `sequence` counts the incarnation's blocks from 0;
    `elapsed_ms` is its `clock.elapsed_ms` at the flush."""

    body_bytes: int
    records: int
    sequence: int
    elapsed_ms: int
    crc: int


def block_seed(incarnation: str, number: int) -> int:
    """What the CRC of every block of this file starts from: different for any two files of an
    incarnation.

    A CRC of the same bytes from another start is always another one, so what an earlier file left
    in a recycled one is never taken for a block.
    """
    return int(crc32c(number.to_bytes(4, "little"), crc32c(incarnation.encode())))


def encode_block_header(
    seed: int, offset: int, sequence: int, elapsed_ms: int, records: int, *body: Buffer
) -> bytes:
    """The header of 40 bytes for `body`, one or more buffers that are to be written right behind
    it at `offset` of the file."""
    covered = _COVERED.pack(sum(map(len, body)), records, sequence, elapsed_ms, offset)
    crc = crc32c(covered, seed)
    for buffer in body:
        crc = crc32c(buffer, crc)
    return _BLOCK_START.pack(_BLOCK_MAGIC, crc) + covered


def decode_block_header(data: Buffer, at: int, offset: int) -> BlockHeader | None:
    """The header at `data[at:]`, which was read from `offset` of the file; None if there is
    none. The CRC is not checked yet."""
    if len(data) - at < BLOCK_HEADER_BYTES:
        return None
    magic, crc, body_bytes, records, sequence, elapsed_ms, own_offset = _BLOCK.unpack_from(data, at)
    if magic != _BLOCK_MAGIC or own_offset != offset or not 0 < body_bytes <= BLOCK_BODY_BYTES_MAX:
        return None
    return BlockHeader(body_bytes, records, sequence, elapsed_ms, crc)


def block_is_intact(data: memoryview, at: int, header: BlockHeader, seed: int) -> bool:
    """Whether the block at `data[at:]` has the CRC its header states; False if it is cut off."""
    end = at + BLOCK_HEADER_BYTES + header.body_bytes
    return end <= len(data) and crc32c(data[at + _BLOCK_START.size : end], seed) == header.crc
