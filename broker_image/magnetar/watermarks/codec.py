"""Bytes of control records, version 1.

Owns: `encode`, `Decoder`, which puts the segments of snapshots together. Imports: errors, crc32c,
records. Pure. A record is a head of 24 bytes {version u8, kind u8, flags u16, ledger i64, entry
i64, ordinal u32}, then its body; all numbers are little-endian:

    W_SET       event ms i64, transaction, name        W_IDLE, W_HOLD   transaction, name
    W_END       transaction                            W_SNAPSHOT       a segment of a snapshot

A transaction is two u64, there if the flag TXN is set; a name is u16 bytes and UTF-8. A segment is
{number u32, of u32, CRC-32C of the whole snapshot u32} and a part of the snapshot: {producers,
holds, pending u32, flags u8, resting ms i64}, then producers as {ms i64, name}, holds and pending
as {most, least u64, present u8, ms i64, name}.

Invariants: decoding gives what was encoded, or raises CorruptData; a snapshot is whole or absent;
released versions are never edited.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence

from crc32c import crc32c

from magnetar.errors import CorruptData
from magnetar.transactions.ids import TxnId
from magnetar.watermarks.records import (
    EVENT_MS_MAX,
    PRODUCER_BYTES_MAX,
    Anchor,
    Assertion,
    End,
    Hold,
    Idle,
    Record,
    Snapshot,
    check_event_ms,
    check_name,
)
from magnetar.watermarks.timeline import Anchored

VERSION = 1
SEGMENT_BYTES = 128 << 10
SNAPSHOT_ELEMENTS_MAX = 1 << 20
"""More than a topic has: limits are looked at before a record is queued, not as it is applied."""
SNAPSHOT_BYTES_MAX = 1 << 30

_HEAD, _SEGMENT = struct.Struct("<BBHqqI"), struct.Struct("<III")
_MS, _TXN, _NAME = struct.Struct("<q"), struct.Struct("<QQ"), struct.Struct("<H")
_COUNTS, _PRODUCER, _ELEMENT = (
    struct.Struct("<IIIBq"),
    struct.Struct("<qH"),
    struct.Struct("<QQBqH"),
)


class Kind(enum.IntEnum):
    """W_SET, W_IDLE, W_SNAPSHOT, W_HOLD, W_END."""

    SET = 1
    IDLE = 2
    SNAPSHOT = 3
    HOLD = 4
    END = 5


class Flag(enum.IntFlag):
    """COMMITTED is of W_END, HORIZON of W_SNAPSHOT: it replaces the records up to its anchor."""

    TXN = 1
    COMMITTED = 2
    HORIZON = 4


_FLAGS = {
    Kind.SET: Flag.TXN,
    Kind.IDLE: Flag.TXN,
    Kind.SNAPSHOT: Flag.HORIZON,
    Kind.HOLD: Flag.TXN,
    Kind.END: Flag.TXN | Flag.COMMITTED,
}


def encode(anchored: Anchored, *, horizon: bool = False) -> list[bytes]:
    """The record, or the segments of a snapshot, to be written one behind the other. Raises
    LimitExceeded for a name or an event time out of range."""
    anchor, record = anchored
    if isinstance(record, Snapshot):
        flags = Flag.HORIZON if horizon else Flag(0)
        return list(_segments(_head(Kind.SNAPSHOT, flags, anchor), _snapshot(record)))
    if isinstance(record, End):
        flags = Flag.TXN | (Flag.COMMITTED if record.committed else Flag(0))
        return [_head(Kind.END, flags, anchor) + _TXN.pack(*record.txn)]
    kind, ms = Kind.HOLD if isinstance(record, Hold) else Kind.IDLE, b""
    if isinstance(record, Assertion):
        kind, ms = Kind.SET, _MS.pack(check_event_ms(record.event_ms))
    name, txn = record.producer.encode(), record.txn
    check_name(record.producer)
    named = b"" if txn is None else _TXN.pack(*txn)
    flags = Flag(0) if txn is None else Flag.TXN
    return [b"".join((_head(kind, flags, anchor), ms, named, _NAME.pack(len(name)), name))]


def _head(kind: Kind, flags: Flag, anchor: Anchor) -> bytes:
    return _HEAD.pack(VERSION, kind, flags, *anchor)


def _segments(head: bytes, whole: bytes) -> Iterator[bytes]:
    crc, count = crc32c(whole), -(-len(whole) // SEGMENT_BYTES)
    for number in range(count):
        part = whole[number * SEGMENT_BYTES : (number + 1) * SEGMENT_BYTES]
        yield head + _SEGMENT.pack(number, count, crc) + part


def _snapshot(snapshot: Snapshot) -> bytes:
    producers, holds, pending = snapshot.producers, snapshot.holds, snapshot.pending
    resting = snapshot.resting_ms
    parts = [
        _COUNTS.pack(len(producers), len(holds), len(pending), resting is not None, resting or 0)
    ]
    for producer, ms in producers:
        name = producer.encode()
        parts += (_PRODUCER.pack(ms, len(name)), name)
    for txn, producer, held in (*holds, *pending):
        name = producer.encode()
        parts += (_ELEMENT.pack(*txn, held is not None, held or 0, len(name)), name)
    return b"".join(parts)


# --- decoding -------------------------------------------------------------------------------------


class Decoder:
    """Of records in the order of one log.

    A crash may cut a snapshot off: what follows begins another record, and the part is dropped.
    """

    def __init__(self, *, midway: bool = False) -> None:
        """`midway`: the log is read from some place on, which may lie within a snapshot."""
        self._midway = midway
        self._anchor: Anchor | None = None
        self._whole = bytearray()
        self._segment = (0, 0, 0)

    def feed(self, data: bytes | memoryview) -> tuple[Anchored, bool] | None:
        """The record and whether it is a horizon; None for a segment that is not the last of its
        snapshot. Raises CorruptData."""
        try:
            return self._decode(memoryview(data))
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise CorruptData(f"control record does not decode: {error}") from error

    def _decode(self, data: memoryview) -> tuple[Anchored, bool] | None:
        version, number, bits, *numbers = _HEAD.unpack_from(data)
        if version != VERSION:
            raise CorruptData(
                f"control record of version {version}, {VERSION} is known; upgrade this component"
            )
        kind, anchor, body = Kind(number), Anchor(*numbers), data[_HEAD.size :]
        if bits & ~_FLAGS[kind]:
            raise ValueError(f"flags {bits:#x} are not of {kind.name}")
        if anchor.ledger < -1 or anchor.entry < -1 or (anchor.ledger < 0) != (anchor.entry < 0):
            raise ValueError(f"no entry is at ({anchor.ledger}, {anchor.entry})")
        flags = Flag(bits)
        if kind is Kind.SNAPSHOT:
            whole = self._joined(anchor, body)
            if whole is None:
                return None
            return Anchored(anchor, _decoded_snapshot(whole)), Flag.HORIZON in flags
        self._anchor, self._midway = None, False
        return Anchored(anchor, _decoded(kind, flags, body)), False

    def _joined(self, anchor: Anchor, body: memoryview) -> memoryview | None:
        """The whole snapshot, with its last segment."""
        number, count, crc = _SEGMENT.unpack_from(body)
        part = body[_SEGMENT.size :]
        if not number:
            self._whole.clear()
            self._midway = False
        elif self._midway:
            return None
        elif self._anchor != anchor or self._segment != (number, count, crc):
            raise ValueError(f"segment {number} of {count} follows no segment {number - 1}")
        if number >= count or not 0 < len(part) <= SEGMENT_BYTES:
            raise ValueError(f"segment {number} of {count} has {len(part)} bytes")
        if count > SNAPSHOT_BYTES_MAX // SEGMENT_BYTES:
            raise ValueError(f"a snapshot has {count} segments")
        self._whole += part
        self._anchor, self._segment = anchor, (number + 1, count, crc)
        if number + 1 < count:
            return None
        whole, self._whole, self._anchor = self._whole, bytearray(), None
        if crc32c(whole) != crc:
            raise ValueError("the CRC-32C of a snapshot does not match")
        return memoryview(whole)


def _decoded(kind: Kind, flags: Flag, body: memoryview) -> Record:
    at, ms, txn = 0, 0, None
    if kind is Kind.SET:
        (ms,) = _MS.unpack_from(body)
        at = _MS.size
    if Flag.TXN in flags:
        txn = TxnId(*_TXN.unpack_from(body, at))
        at += _TXN.size
    if kind is Kind.END and txn is not None:
        _check_end(body, at)
        return End(txn, Flag.COMMITTED in flags)
    (length,) = _NAME.unpack_from(body, at)
    name, end = _name(body, at + _NAME.size, length)
    _check_end(body, end)
    _check_ms(ms)
    if kind is Kind.SET:
        return Assertion(name, ms, txn)
    if kind is Kind.IDLE:
        return Idle(name, txn)
    if txn is None:
        raise ValueError(f"{kind.name} names no transaction")
    return Hold(name, txn)


def _decoded_snapshot(whole: memoryview) -> Snapshot:
    producer_count, hold_count, pending_count, rests, resting_ms = _COUNTS.unpack_from(whole)
    if producer_count + hold_count + pending_count > SNAPSHOT_ELEMENTS_MAX:
        raise ValueError(f"a snapshot has {producer_count}, {hold_count}, {pending_count} elements")
    at, producers = _COUNTS.size, list[tuple[str, int]]()
    for _ in range(producer_count):
        ms, length = _PRODUCER.unpack_from(whole, at)
        name, at = _name(whole, at + _PRODUCER.size, length)
        producers.append((name, _check_ms(ms)))
    elements = list[tuple[TxnId, str, int | None]]()
    for _ in range(hold_count + pending_count):
        most, least, present, ms, length = _ELEMENT.unpack_from(whole, at)
        name, at = _name(whole, at + _ELEMENT.size, length)
        elements.append((TxnId(most, least), name, _check_ms(ms) if present else None))
    _check_end(whole, at)
    keys: Sequence[Sequence[object]] = (
        [name for name, _ in producers],
        [one[:2] for one in elements[:hold_count]],
        [one[:2] for one in elements[hold_count:]],
    )
    if any(len(set(names)) != len(names) for names in keys):
        raise ValueError("a snapshot names a producer twice")
    return Snapshot(
        tuple(producers),
        _check_ms(resting_ms) if rests else None,
        tuple(elements[:hold_count]),
        tuple(elements[hold_count:]),
    )


def _name(data: memoryview, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if not 0 < length <= PRODUCER_BYTES_MAX or end > len(data):
        raise ValueError(f"a name of {length} bytes is at {at} of {len(data)}")
    return str(data[at:end], "utf-8"), end


def _check_ms(ms: int) -> int:
    if not 0 <= ms <= EVENT_MS_MAX:
        raise ValueError(f"event time {ms} is out of range")
    return ms


def _check_end(data: memoryview, expected: int) -> None:
    if expected != len(data):
        raise ValueError(f"its parts need {expected} bytes, it has {len(data)}")
