"""Format of level-1 segments, version 2: blocks, key index, footer, trailer.

Owns: the bytes of a segment. Imports: errors, crc32c, arrays. Pure; without Arrow, although the
columns are Arrow buffers. A segment is blocks back to back, then the key index, then the footer (a
description as JSON, one fixed entry per block), then a trailer of 48 bytes. A block is a header of
64 bytes, then columns, each padded to 8 bytes: payload offsets and key offsets (int32, one more
than rows), ledger, entry, event time, publish time, append time (int64), message count and flags
(uint32), the keys' bytes, the payloads' bytes. Times are milliseconds. The key index repeats what
decides about compaction, so that one read gives it for a whole segment: for each block whose rows
are all IS_DECIDED a header of 16 bytes, then its key offsets, flags and keys. Invariants: rows rise
by (ledger, entry), over blocks too; holes and several ledgers are allowed; every byte is under a
CRC-32C; payloads are the entries as their clients sent them.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from crc32c import crc32c

from magnetar.errors import CorruptData
from magnetar.storage.arrays import I32, I64, U32, packed
from magnetar.storage.volumes.volume import Buffer

assert sys.byteorder == "little", "columns are used as they lie in the file, which is little-endian"

VERSION = 2
BLOCK_BYTES_MAX = 1024 * 1024
BLOCK_ROWS_MAX = 1024
BLOCK_HEADER_BYTES = 64
KEYS_HEADER_BYTES = 16
TRAILER_BYTES = 48
ALIGNMENT = 8

HAS_KEY = 1  # of a row: without it the key is absent, not empty
IS_BATCH = 2  # of a row: the entry holds several messages, keys are inside
# of a row: one ordinary message; its key and IS_DELETION are all that compaction needs to know of
# it
IS_DECIDED = 4
IS_DELETION = 8  # of a row with IS_DECIDED: the payload is empty, the key is deleted
# of a row: compaction took messages out of the batch; its metadata lists them in
# compacted_batch_indexes
HAS_REMOVED = 16
# of a row: key, event and publish time were not taken out of the entry; they are in its bytes only
UNPARSED = 32
CODEC_NONE = 0

_BLOCK_MAGIC = 0x4B42534D  # "MSBK"
# magic, version, codec, 0, rows, body bytes, ledger, entry, key bytes, 0, payload bytes
_BLOCK = struct.Struct("<IHBBIIqqIIQ")
_CRC = struct.Struct("<I")
_FOOTER = struct.Struct("<II")  # description bytes, blocks
_ENTRY = struct.Struct("<QIIqqqqqqqqqqQQQ")
_KEYS = struct.Struct("<III")  # rows, key bytes, 0; behind it the CRC of them and the columns
_TRAILER_MAGIC = b"MAGNSEG\0"
# footer offset, footer bytes, footer crc, rows, messages, version
_TRAILER = struct.Struct("<QIIQQI")
_WIDE_COLUMNS = 5
ANY_TIME = (-(1 << 63), (1 << 63) - 1)
"""(least, greatest) time of rows whose times are not known."""
_NARROW_COLUMNS = 2


class Row(NamedTuple):
    """One entry. `key` None = it has none; `payload` is the entry as the client sent it."""

    ledger: int
    entry: int
    event_time: int
    publish_time: int
    append_time: int
    message_count: int
    flags: int
    key: bytes | None
    payload: Buffer


class BlockEntry(NamedTuple):
    """What the footer says of one block. Times are (least, greatest) of its rows; `bytes` are
    those of the payloads; `index_bytes` those in the key index, 0 if it is not there."""

    offset: int
    length: int
    rows: int
    first_ledger: int
    first_entry: int
    last_ledger: int
    last_entry: int
    event_time_min: int
    event_time_max: int
    publish_time_min: int
    publish_time_max: int
    append_time_min: int
    append_time_max: int
    messages: int
    bytes: int
    index_bytes: int


def _padded(size: int) -> int:
    return -size % ALIGNMENT + size


# --- blocks ---------------------------------------------------------------------------------------


def encode_block(rows: Sequence[Row], offset: int) -> tuple[bytes, bytes, BlockEntry]:
    """A block of `rows` that will lie at `offset` of the segment, its part of the key index, and
    its entry for the footer."""
    assert rows, "a block holds at least one row"
    columns = list(zip(*rows, strict=True))
    ledgers, entries, events, publishes, appends, counts, flags, keys, payloads = columns
    keys = tuple(b"" if key is None else key for key in keys)
    marks = [
        flag & ~HAS_KEY | (HAS_KEY if row.key is not None else 0)
        for flag, row in zip(flags, rows, strict=True)
    ]
    key_columns = [_offsets_of(keys), packed(U32, marks).tobytes(), b"".join(keys)]
    parts: list[Buffer] = []
    _append_padded(parts, _offsets_of(payloads))
    _append_padded(parts, key_columns[0])
    parts += [
        packed(I64, column).tobytes() for column in (ledgers, entries, events, publishes, appends)
    ]
    _append_padded(parts, packed(U32, counts).tobytes())
    for column in key_columns[1:]:
        _append_padded(parts, column)
    payload_bytes = sum(map(len, payloads))
    parts += payloads
    parts.append(bytes(-payload_bytes % ALIGNMENT))
    body = b"".join(parts)
    key_bytes = len(key_columns[2])
    block = _framed(body, len(rows), ledgers[0], entries[0], key_bytes, payload_bytes)
    index = _encode_key_columns(key_columns) if all(mark & IS_DECIDED for mark in marks) else b""
    entry = BlockEntry(
        offset,
        len(block),
        len(rows),
        ledgers[0],
        entries[0],
        ledgers[-1],
        entries[-1],
        min(events),
        max(events),
        min(publishes),
        max(publishes),
        min(appends),
        max(appends),
        sum(counts),
        payload_bytes,
        len(index),
    )
    return block, index, entry


def _offsets_of(values: Sequence[Buffer]) -> bytes:
    return packed(I32, accumulate(map(len, values), initial=0)).tobytes()


def _append_padded(parts: list[Buffer], column: bytes) -> None:
    parts.append(column)
    if len(column) % ALIGNMENT:
        parts.append(bytes(-len(column) % ALIGNMENT))


class Block:
    """A block in memory, its CRC verified. Every column is a view that is an Arrow buffer as it
    stands."""

    __slots__ = (
        "append_times",
        "count",
        "entries",
        "event_times",
        "flags",
        "key_offsets",
        "keys",
        "ledgers",
        "message_counts",
        "payload_offsets",
        "payloads",
        "publish_times",
    )

    def __init__(self, count: int, body: memoryview, key_bytes: int, payload_bytes: int) -> None:
        self.count = count
        offsets, narrow, wide = _padded(4 * (count + 1)), _padded(4 * count), 8 * count
        at = 0

        def column(size: int, used: int, kind: Literal["B", "I", "i", "q"]) -> memoryview:
            nonlocal at
            found = body[at : at + used].cast(kind)
            at += size
            return found

        self.payload_offsets = column(offsets, 4 * (count + 1), "i")
        self.key_offsets = column(offsets, 4 * (count + 1), "i")
        self.ledgers = column(wide, wide, "q")
        self.entries = column(wide, wide, "q")
        self.event_times = column(wide, wide, "q")
        self.publish_times = column(wide, wide, "q")
        self.append_times = column(wide, wide, "q")
        self.message_counts = column(narrow, 4 * count, "I")
        self.flags = column(narrow, 4 * count, "I")
        self.keys = column(_padded(key_bytes), key_bytes, "B")
        self.payloads = column(_padded(payload_bytes), payload_bytes, "B")

    @staticmethod
    def decode(data: Buffer, name: str) -> Block:
        """The block that `data` is exactly. Raises CorruptData naming segment `name`."""
        view = memoryview(data)
        if len(view) < BLOCK_HEADER_BYTES:
            raise CorruptData(f"{name}: {len(view)} bytes are no block")
        magic, version, codec, _, count, size, _, _, key_bytes, _, payload_bytes = (
            _BLOCK.unpack_from(view)
        )
        body = view[BLOCK_HEADER_BYTES:]
        covered = view[: BLOCK_HEADER_BYTES - _CRC.size]
        if (
            magic != _BLOCK_MAGIC
            or len(body) != size
            or _CRC.unpack_from(view, len(covered))[0] != crc32c(body, crc32c(covered))
        ):
            raise CorruptData(
                f"{name}: a block of {len(view)} bytes fails its checksum; restore this file or "
                "rewrite it"
            )
        if version != VERSION or codec != CODEC_NONE:
            raise CorruptData(
                f"{name}: segment version {version} codec {codec} is not known; upgrade this "
                "component"
            )
        wide, narrow = _WIDE_COLUMNS * 8 * count, _NARROW_COLUMNS * _padded(4 * count)
        if size != 2 * _padded(4 * (count + 1)) + wide + narrow + _padded(key_bytes) + _padded(
            payload_bytes
        ):
            raise CorruptData(f"{name}: a block of {count} rows does not add up to {size} bytes")
        return Block(count, body, key_bytes, payload_bytes)

    def payload(self, row: int) -> memoryview:
        """The bytes of one entry."""
        return self.payloads[self.payload_offsets[row] : self.payload_offsets[row + 1]]

    def key(self, row: int) -> bytes | None:
        """The key of one entry, None if it has none."""
        if not self.flags[row] & HAS_KEY:
            return None
        return bytes(self.keys[self.key_offsets[row] : self.key_offsets[row + 1]])

    def row_at_or_after(self, ledger: int, entry: int) -> int:
        """The first row whose position is not below (ledger, entry); `count` if there is none."""
        ledgers, entries = self.ledgers, self.entries
        low, high = 0, self.count
        if ledgers[0] == ledger == ledgers[high - 1]:
            # One ledger: an entry can be no further from the first row than its id is.
            distance = entry - entries[0]
            if 0 <= distance < high and entries[distance] == entry:
                return distance
        while low < high:
            middle = (low + high) // 2
            found = ledgers[middle]
            if found < ledger or (found == ledger and entries[middle] < entry):
                low = middle + 1
            else:
                high = middle
        return low


# --- key index ------------------------------------------------------------------------------------


class KeyColumns(NamedTuple):
    """What compaction needs to know of the rows of a block that are all IS_DECIDED."""

    key_offsets: memoryview
    flags: memoryview
    keys: memoryview

    @staticmethod
    def decode(data: Buffer, name: str) -> KeyColumns:
        """A block's part of the key index, which `data` is exactly. Raises CorruptData naming
        segment `name`."""
        view = memoryview(data)
        count, key_bytes, _ = (
            _KEYS.unpack_from(view) if len(view) >= KEYS_HEADER_BYTES else (0,) * 3
        )
        flags_at = KEYS_HEADER_BYTES + _padded(4 * (count + 1))
        keys_at = flags_at + _padded(4 * count)
        if (
            not count
            or len(view) != keys_at + _padded(key_bytes)
            or _CRC.unpack_from(view, _KEYS.size)[0]
            != crc32c(view[KEYS_HEADER_BYTES:], crc32c(view[: _KEYS.size]))
        ):
            raise CorruptData(
                f"{name}: {len(view)} bytes of the key index fail their checksum; restore this "
                "file or rewrite it"
            )
        return KeyColumns(
            view[KEYS_HEADER_BYTES : KEYS_HEADER_BYTES + 4 * (count + 1)].cast("i"),
            view[flags_at : flags_at + 4 * count].cast("I"),
            view[keys_at : keys_at + key_bytes],
        )


def _encode_key_columns(columns: Sequence[bytes]) -> bytes:
    """`columns`: key offsets, flags, keys."""
    offsets, flags, keys = columns
    parts: list[Buffer] = []
    for column in (offsets, flags, keys):
        _append_padded(parts, column)
    body = b"".join(parts)
    fixed = _KEYS.pack(len(flags) // 4, len(keys), 0)
    return b"".join([fixed, _CRC.pack(crc32c(body, crc32c(fixed))), body])


# --- footer ---------------------------------------------------------------------------------------


class RunColumns(NamedTuple):
    """Consecutive entries of one ledger as they lie in a log, none of them parsed."""

    ledger: int
    first_entry: int
    append_ms: int
    lengths: Sequence[int]
    message_counts: Sequence[int]
    payload: Buffer


def encode_run_block(runs: Sequence[RunColumns], offset: int) -> tuple[bytes, BlockEntry]:
    """As `encode_block`, a run at a time instead of a row at a time. The rows are UNPARSED:
    their times are any."""
    sizes = [len(run.lengths) for run in runs]
    count = sum(sizes)
    assert count, "a block holds at least one row"
    offsets = list(accumulate((length for run in runs for length in run.lengths), initial=0))
    counts = [number for run in runs for number in run.message_counts]
    parts: list[Buffer] = []
    _append_padded(parts, packed(I32, offsets).tobytes())
    _append_padded(parts, bytes(4 * (count + 1)))
    sized = list(zip(runs, sizes, strict=True))
    parts += [
        b"".join([packed(I64, [run.ledger]).tobytes() * size for run, size in sized]),
        b"".join([_entry_ids(run.first_entry, size) for run, size in sized]),
        bytes(16 * count),
        b"".join([packed(I64, [run.append_ms]).tobytes() * size for run, size in sized]),
    ]
    _append_padded(parts, packed(U32, counts).tobytes())
    _append_padded(parts, packed(U32, [UNPARSED]).tobytes() * count)
    parts += [run.payload for run in runs]
    parts.append(bytes(-offsets[-1] % ALIGNMENT))
    first, last = runs[0], runs[-1]
    block = _framed(b"".join(parts), count, first.ledger, first.first_entry, 0, offsets[-1])
    appends = [run.append_ms for run in runs]
    ends = (first.ledger, first.first_entry, last.ledger, last.first_entry + sizes[-1] - 1)
    times = (*ANY_TIME, *ANY_TIME, min(appends), max(appends))
    return block, BlockEntry(offset, len(block), count, *ends, *times, sum(counts), offsets[-1], 0)


def _entry_ids(first: int, count: int) -> bytes:
    return packed(I64, range(first, first + count)).tobytes()


def _framed(
    body: bytes, rows: int, ledger: int, entry: int, key_bytes: int, payload_bytes: int
) -> bytes:
    """A block's bytes: header, CRC, body."""
    fixed = _BLOCK.pack(
        _BLOCK_MAGIC,
        VERSION,
        CODEC_NONE,
        0,
        rows,
        len(body),
        ledger,
        entry,
        key_bytes,
        0,
        payload_bytes,
    ).ljust(BLOCK_HEADER_BYTES - _CRC.size, b"\0")
    return fixed + _CRC.pack(crc32c(body, crc32c(fixed))) + body


@dataclass(frozen=True, slots=True)
class Footer:
    """The block index of a segment. `description` says what the segment is, so that a manifest
    can be rebuilt from it."""

    description: Mapping[str, Any]
    blocks: tuple[BlockEntry, ...]

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def messages(self) -> int:
        return sum(block.messages for block in self.blocks)

    @property
    def index_offsets(self) -> list[int]:
        """Where in the segment each block's part of the key index begins."""
        end = self.blocks[-1].offset + self.blocks[-1].length if self.blocks else 0
        return list(accumulate((block.index_bytes for block in self.blocks), initial=end))[:-1]


def encode_footer(footer: Footer, offset: int) -> bytes:
    """Footer and trailer for a segment whose key index ends at `offset`."""
    text = json.dumps(dict(footer.description), sort_keys=True, separators=(",", ":")).encode()
    body = b"".join(
        [
            _FOOTER.pack(len(text), len(footer.blocks)),
            *[_ENTRY.pack(*block) for block in footer.blocks],
            text,
        ]
    )
    fixed = _TRAILER.pack(offset, len(body), crc32c(body), footer.rows, footer.messages, VERSION)
    return body + fixed + _CRC.pack(crc32c(fixed)) + _TRAILER_MAGIC


def decode_trailer(trailer: Buffer, name: str) -> tuple[int, int]:
    """(offset, length) of the footer, from a segment's last 48 bytes. Raises CorruptData."""
    trailer = bytes(trailer)
    fixed = trailer[: _TRAILER.size]
    intact = len(trailer) == TRAILER_BYTES and trailer[-8:] == _TRAILER_MAGIC
    if not intact or _CRC.unpack_from(trailer, _TRAILER.size)[0] != crc32c(fixed):
        raise CorruptData(f"{name}: not a segment, or cut short; restore this file or rewrite it")
    offset, length, _, _, _, version = _TRAILER.unpack(fixed)
    if version != VERSION:
        raise CorruptData(f"{name}: segment version {version} is not known; upgrade this component")
    return offset, length


def decode_footer(data: Buffer, trailer: Buffer, name: str) -> Footer:
    """The footer that `data` is exactly. Raises CorruptData."""
    view = memoryview(data)
    if _TRAILER.unpack_from(trailer)[2] != crc32c(view):
        raise CorruptData(f"{name}: the footer fails its checksum; restore this file or rewrite it")
    text_bytes, count = _FOOTER.unpack_from(view)
    text_at = _FOOTER.size + count * _ENTRY.size
    blocks = tuple(
        BlockEntry(*fields) for fields in _ENTRY.iter_unpack(view[_FOOTER.size : text_at])
    )
    return Footer(json.loads(bytes(view[text_at : text_at + text_bytes])), blocks)


assert _TRAILER.size + _CRC.size + len(_TRAILER_MAGIC) == TRAILER_BYTES, _TRAILER.size
