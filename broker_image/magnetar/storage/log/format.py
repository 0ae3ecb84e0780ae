"""Format of the records in a log, version 1.

Owns: the bytes of records. Imports: errors, arrays, blocks, framing, topic_format,
watermark_format. Pure. A record
is a header of 8 bytes, then its payload; all numbers are little-endian. `log/blocks.py` frames
them. Invariants: entry bytes are those the client sent; released versions are never edited.
"""

from __future__ import annotations

import enum
import json
import struct
from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from magnetar.errors import CorruptData
from magnetar.storage.arrays import I64, U32, U64, packed, unpacked
from magnetar.storage.log.blocks import VERSION
from magnetar.storage.log.framing import (
    RECORD_HEADER_BYTES,
    Encoded,
    bounded_length,
    encoded_record,
    framed_records,
)
from magnetar.storage.log.watermark_format import (
    WatermarkRecord,
    decode_watermark,
    watermark_payload,
)
from magnetar.storage.transactions.topic_format import (
    TransactionRecord,
    decode_transaction,
    transaction_payload,
)
from magnetar.storage.volumes.volume import Buffer
from magnetar.transactions.participant_records import Change

ENTRY_ARRAY_BYTES = 16
"""What an entry of a run takes besides its bytes: length, message count and sequence id."""

_EPOCH = struct.Struct("<Q")
_ENTRIES, _RECORD_ENTRIES = struct.Struct("<QQQQIHH"), struct.Struct("<BBHIQQQQIHH")
_CURSOR = struct.Struct("<QqqBBHHHIII")
_TOPIC, _BUNDLE = struct.Struct("<QBBHI"), struct.Struct("<QHHI")

_PROPERTIES_PRESENT = 1


class RecordType(enum.IntEnum):
    """What a record holds."""

    ENTRIES = 1
    CURSOR = 2
    TOPIC = 3
    RELEASE = 4
    TERM = 5
    TRANSACTION = 6
    COORDINATOR = 7
    HEARTBEAT = 8
    WATERMARK = 9


class CursorOperation(enum.IntEnum):
    """CREATE and RESET set a cursor to exactly the record's state; ACKNOWLEDGE adds to it;
    DELETE removes it."""

    CREATE = 1
    ACKNOWLEDGE = 2
    RESET = 3
    DELETE = 4


class TopicOperation(enum.IntEnum):
    """Life of a topic. UPDATE sets those of its properties that the record holds, and removes
    those that are empty there."""

    CREATE = 1
    DELETE = 2
    UPDATE = 3


@dataclass(slots=True)
class EntriesRecord:
    """A run of entries of one topic by one producer. `sequences` holds each entry's highest
    sequence id. (Not frozen, for the sake of replay.)

    `data` are the entries back to back, each as the client sent it after the command;
    `entries_offset` is where they begin in the payload.
    """

    epoch: int
    ledger: int
    first_entry: int
    append_ms: int
    topic: str
    producer: str
    lengths: array[int]
    message_counts: array[int]
    sequences: array[int]
    entries_offset: int
    data: memoryview

    @property
    def count(self) -> int:
        return len(self.lengths)

    def entries(self) -> list[memoryview]:
        """Each entry's bytes."""
        ends = list(accumulate(self.lengths))
        return [
            self.data[end - length : end] for end, length in zip(ends, self.lengths, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """A change of a cursor. `mark_delete` is (ledger, entry), which may hold -1.

    `ranges` are (ledger, first entry, last entry); `partial` are (ledger, entry, 64-bit words of
    the batch's ack set); `properties` is None where they did not change.
    """

    epoch: int
    topic: str
    subscription: str
    operation: CursorOperation
    mark_delete: tuple[int, int]
    ranges: tuple[tuple[int, int, int], ...]
    partial: tuple[tuple[int, int, tuple[int, ...]], ...]
    properties: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic was created or deleted, or some of its properties changed."""

    epoch: int
    topic: str
    operation: TopicOperation
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class ReleaseRecord:
    """The bundle's epoch ends here: later records of this bundle and epoch in this log are void.
    `state` is for the next owner."""

    epoch: int
    bundle: str
    state: bytes


@dataclass(frozen=True, slots=True)
class TermRecord:
    """A copy of the bundle's record in the metadata store, as `metadata.records` encodes it, for
    the day that the store is lost.

    The first thing that a term appends, and again before each checkpoint that it points to.
    """

    epoch: int
    bundle: str
    state: bytes


class HeartbeatRecord(NamedTuple):
    """The term continues and has nothing to write: the time of its block counts for the age of
    its entries."""

    epoch: int


Record = (
    EntriesRecord
    | CursorRecord
    | TopicRecord
    | ReleaseRecord
    | TermRecord
    | TransactionRecord
    | HeartbeatRecord
    | WatermarkRecord
)


def encode_entries(
    *,
    epoch: int,
    ledger: int,
    first_entry: int,
    append_ms: int,
    topic: bytes,
    producer: bytes,
    message_counts: Sequence[int],
    sequences: Sequence[int],
    entries: Sequence[Buffer],
    lengths: Sequence[int] | None = None,
) -> Encoded:
    """An ENTRIES record; the entries are referred to, not copied. The first buffer holds everything
    before them.

    With `lengths`, `entries` are buffers that hold entries of these lengths back to back. Raises
    LimitExceeded for a name beyond 65535 bytes.
    """
    if lengths is None:
        lengths = list(map(len, entries))
    count = len(lengths)
    assert count == len(message_counts) == len(sequences) > 0, (
        count,
        len(message_counts),
        len(sequences),
    )
    entry_bytes = sum(lengths)
    assert entry_bytes == sum(map(len, entries)), "the lengths do not add up to the entries' bytes"
    entries_offset = _ENTRIES.size + len(topic) + len(producer) + ENTRY_ARRAY_BYTES * count
    payload = entries_offset + entry_bytes
    head = b"".join(
        (
            _RECORD_ENTRIES.pack(
                RecordType.ENTRIES,
                0,
                0,
                payload,
                epoch,
                ledger,
                first_entry,
                append_ms,
                count,
                bounded_length(topic),
                bounded_length(producer),
            ),
            topic,
            producer,
            packed(U32, lengths),
            packed(U32, message_counts),
            packed(U64, sequences),
        )
    )
    return Encoded([head, *entries], RECORD_HEADER_BYTES + payload, entries_offset)


def encode_cursor(
    *,
    epoch: int,
    topic: str,
    subscription: str,
    operation: CursorOperation,
    mark_delete: tuple[int, int],
    ranges: Sequence[tuple[int, int, int]] = (),
    partial: Sequence[tuple[int, int, Sequence[int]]] = (),
    properties: Mapping[str, str] | None = None,
) -> Encoded:
    """A CURSOR record. Raises LimitExceeded for a name beyond 65535 bytes."""
    topic_bytes, subscription_bytes = topic.encode(), subscription.encode()
    text = b"" if properties is None else _json(properties)
    words = [
        *(number for span in ranges for number in span),
        *(
            number
            for ledger, entry, mask in partial
            for number in (ledger, entry, len(mask), *mask)
        ),
    ]
    fixed = _CURSOR.pack(
        epoch,
        *mark_delete,
        operation,
        0 if properties is None else _PROPERTIES_PRESENT,
        bounded_length(topic_bytes),
        bounded_length(subscription_bytes),
        0,
        len(ranges),
        len(words) - 3 * len(ranges),
        len(text),
    )
    return encoded_record(
        RecordType.CURSOR,
        fixed,
        topic_bytes,
        subscription_bytes,
        packed(I64, words).tobytes(),
        text,
    )


def encode_topic(
    *, epoch: int, topic: str, operation: TopicOperation, properties: Mapping[str, str]
) -> Encoded:
    """A TOPIC record. Raises LimitExceeded for a name beyond 65535 bytes."""
    name, text = topic.encode(), _json(properties)
    return encoded_record(
        RecordType.TOPIC,
        _TOPIC.pack(epoch, operation, 0, bounded_length(name), len(text)),
        name,
        text,
    )


def encode_release(*, epoch: int, bundle: str, state: bytes) -> Encoded:
    return _encode_bundle_state(RecordType.RELEASE, epoch, bundle, state)


def encode_term(*, epoch: int, bundle: str, state: bytes) -> Encoded:
    return _encode_bundle_state(RecordType.TERM, epoch, bundle, state)


def _encode_bundle_state(kind: RecordType, epoch: int, bundle: str, state: bytes) -> Encoded:
    name = bundle.encode()
    return encoded_record(
        kind, _BUNDLE.pack(epoch, bounded_length(name), 0, len(state)), name, state
    )


def encode_heartbeat(*, epoch: int) -> Encoded:
    return encoded_record(RecordType.HEARTBEAT, _EPOCH.pack(epoch))


def encode_watermark(*, epoch: int, topic: bytes, control: bytes) -> Encoded:
    """A WATERMARK record. Raises LimitExceeded for a name beyond 65535 bytes."""
    return encoded_record(RecordType.WATERMARK, watermark_payload(epoch, topic, control))


def encode_transaction(
    *, epoch: int, topic: str, change: Change, subscription: str = ""
) -> Encoded:
    """A TRANSACTION record. Raises LimitExceeded for a name beyond 65535 bytes."""
    return encoded_record(
        RecordType.TRANSACTION, transaction_payload(epoch, topic, change, subscription)
    )


def _json(properties: Mapping[str, str]) -> bytes:
    return json.dumps(dict(properties), sort_keys=True, separators=(",", ":")).encode()


# --- reading records ------------------------------------------------------------------------------


def decode_records(
    body: memoryview, terms: Container[int] | None = None, kinds: Container[int] | None = None
) -> Iterator[tuple[int, Record]]:
    """Records of one block whose CRC is right: (offset of the payload in the body, record), but
    those of coordinators. Raises CorruptData.

    With `terms` only those of these epochs, which every payload begins with, with `kinds` those of
    these types: others cost next to nothing.
    """
    for kind, at, end in framed_records(body):
        if kind == RecordType.COORDINATOR:
            continue
        decode = _DECODERS.get(kind)
        if decode is None:
            raise CorruptData(
                f"record type {kind} is not known in log version {VERSION}; upgrade this component"
            )
        other_term = (
            terms is not None
            and end - at >= _EPOCH.size
            and _EPOCH.unpack_from(body, at)[0] not in terms
        )
        if other_term or (kinds is not None and kind not in kinds):
            continue
        try:
            record = decode(body[at:end])
        except (struct.error, ValueError, IndexError) as error:
            raise CorruptData(f"record type {kind} at {at} does not decode: {error}") from error
        yield at, record


def entry_count(head: Buffer) -> int:
    """How many entries a record has, from the first buffer of `encode_entries`."""
    return int(_RECORD_ENTRIES.unpack_from(head)[-3])


def decode_entries_head(
    payload: Buffer,
) -> tuple[int, int, int, int, str, str, array[int], array[int], array[int], int]:
    """What precedes the entries: epoch, ledger, first entry, append ms, topic, producer,
    lengths, message counts, sequences, where they begin."""
    epoch, ledger, first_entry, append_ms, count, topic_length, producer_length = (
        _ENTRIES.unpack_from(payload)
    )
    topic_end = _ENTRIES.size + topic_length
    lengths_at = topic_end + producer_length
    counts_at, sequences_at, entries_at = (
        lengths_at + 4 * count,
        lengths_at + 8 * count,
        lengths_at + 16 * count,
    )
    return (
        epoch,
        ledger,
        first_entry,
        append_ms,
        str(payload[_ENTRIES.size : topic_end], "utf-8"),
        str(payload[topic_end:lengths_at], "utf-8"),
        unpacked(U32, payload[lengths_at:counts_at]),
        unpacked(U32, payload[counts_at:sequences_at]),
        unpacked(U64, payload[sequences_at:entries_at]),
        entries_at,
    )


def _decode_entries(payload: memoryview) -> EntriesRecord:
    head = decode_entries_head(payload)
    record = EntriesRecord(*head, payload[head[-1] :])
    if (
        sum(record.lengths) != len(record.data)
        or len(record.sequences) != record.count
        or not record.count
    ):
        raise ValueError(
            f"{record.count} entries of {sum(record.lengths)} bytes do not fill {len(record.data)}"
        )
    return record


def _decode_cursor(payload: memoryview) -> CursorRecord:
    (
        epoch,
        ledger,
        entry,
        operation,
        flags,
        topic_length,
        subscription_length,
        _,
        ranges,
        partial,
        length,
    ) = _CURSOR.unpack_from(payload)
    topic_end = _CURSOR.size + topic_length
    words_at = topic_end + subscription_length
    text_at = words_at + 8 * (3 * ranges + partial)
    _check_end(payload, text_at + length)
    words = unpacked(I64, payload[words_at:text_at])
    spans = words[: 3 * ranges]
    return CursorRecord(
        epoch,
        str(payload[_CURSOR.size : topic_end], "utf-8"),
        str(payload[topic_end:words_at], "utf-8"),
        CursorOperation(operation),
        (ledger, entry),
        tuple(zip(spans[0::3], spans[1::3], spans[2::3], strict=True)),
        tuple(_partial(words[3 * ranges :])),
        json.loads(bytes(payload[text_at:])) if flags & _PROPERTIES_PRESENT else None,
    )


def _partial(words: array[int]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    at = 0
    while at < len(words):
        ledger, entry, length = words[at : at + 3]
        mask = tuple(words[at + 3 : at + 3 + length])
        if len(mask) != length:
            raise ValueError(f"an ack set of {length} words is cut off")
        yield ledger, entry, mask
        at += 3 + length


def _decode_topic(payload: memoryview) -> TopicRecord:
    epoch, operation, _, topic_length, length = _TOPIC.unpack_from(payload)
    topic_end = _TOPIC.size + topic_length
    _check_end(payload, topic_end + length)
    topic, properties = (
        str(payload[_TOPIC.size : topic_end], "utf-8"),
        json.loads(bytes(payload[topic_end:])),
    )
    return TopicRecord(epoch, topic, TopicOperation(operation), properties)


def _decode_bundle_state(payload: memoryview) -> tuple[int, str, bytes]:
    epoch, bundle_length, _, length = _BUNDLE.unpack_from(payload)
    bundle_end = _BUNDLE.size + bundle_length
    _check_end(payload, bundle_end + length)
    return epoch, str(payload[_BUNDLE.size : bundle_end], "utf-8"), bytes(payload[bundle_end:])


def _check_end(payload: memoryview, expected: int) -> None:
    if expected != len(payload):
        raise ValueError(f"its parts need {expected} bytes, it has {len(payload)}")


_DECODERS: dict[int, Callable[[memoryview], Record]] = {
    RecordType.ENTRIES: _decode_entries,
    RecordType.CURSOR: _decode_cursor,
    RecordType.TOPIC: _decode_topic,
    RecordType.RELEASE: lambda payload: ReleaseRecord(*_decode_bundle_state(payload)),
    RecordType.TERM: lambda payload: TermRecord(*_decode_bundle_state(payload)),
    RecordType.TRANSACTION: decode_transaction,
    RecordType.WATERMARK: decode_watermark,
    RecordType.HEARTBEAT: lambda payload: HeartbeatRecord(*_EPOCH.unpack(payload)),
}
