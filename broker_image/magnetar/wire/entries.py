"""Entries: the bytes a SEND carries, the log stores and a MESSAGE returns, unchanged.

Owns: the layout of an entry, its metadata, and batches inside its payload. Imports: errors,
checksum, compression, the generated protocol. Pure. Source: Pulsar's protocol: `[0x0e02 size
BrokerEntryMetadata]? [0x0e01 crc32c]? metadataSize MessageMetadata payload` and 1.2: a batch is N x
`singleMetaSize SingleMessageMetadata payload`, compressed as a whole. Sizes are big-endian u32.
Invariants: whatever bytes a peer sends, only ProtocolError and its children come out; an entry
built here passes its own checksum.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError

from magnetar.errors import ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import (
    BROKER_METADATA_MAGIC,
    CHECKSUM_BYTES,
    CHECKSUM_MAGIC,
    Buffer,
    crc32c,
)
from magnetar.wire.compression import decompress

MAGIC_BYTES = 2
SIZE_BYTES = 4
_U32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Entry:
    """A parsed entry; `payload` points into the bytes it was parsed from."""

    metadata: api.MessageMetadata
    payload: memoryview
    broker_metadata: api.BrokerEntryMetadata | None

    @property
    def batched(self) -> bool:
        """Whether the payload is a batch (even of one message)."""
        return self.metadata.HasField("num_messages_in_batch")

    @property
    def message_count(self) -> int:
        """Messages in the entry: what it costs in permits. At least 1."""
        return max(1, self.metadata.num_messages_in_batch)


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """One message of a batch."""

    metadata: api.SingleMessageMetadata
    payload: Buffer


def parse_entry(entry: Buffer) -> Entry:
    """Parse an entry without checking its checksum (see `checksum.verify_entry`). Raises
    ProtocolError."""
    view = memoryview(entry)
    at = 0
    broker_metadata = None
    if view[:MAGIC_BYTES] == BROKER_METADATA_MAGIC:
        start, at = _sized(view, MAGIC_BYTES, "broker metadata")
        broker_metadata = _parse(api.BrokerEntryMetadata, view[start:at])
    if view[at : at + MAGIC_BYTES] == CHECKSUM_MAGIC:
        at += CHECKSUM_BYTES
    start, at = _sized(view, at, "message metadata")
    return Entry(_parse(api.MessageMetadata, view[start:at]), view[at:], broker_metadata)


def entry_metadata(broker_ms: int | None, index: int | None) -> bytes:
    """What a broker puts before an entry to say when it took it, and the index of its last
    message; None is left out."""
    metadata = api.BrokerEntryMetadata()
    if broker_ms is not None:
        metadata.broker_timestamp = broker_ms
    if index is not None:
        metadata.index = index
    encoded = metadata.SerializeToString()
    return BROKER_METADATA_MAGIC + _U32.pack(len(encoded)) + encoded


def readable_entry(entry: Buffer) -> Entry | None:
    """A stored entry parsed; None if it cannot be read: then it is one message without metadata,
    of which only the bytes are known."""
    try:
        return parse_entry(entry)
    except ProtocolError:
        return None


def parse_metadata(entry: Buffer) -> api.MessageMetadata:
    """Only the metadata of an entry. Raises ProtocolError."""
    return parse_entry(entry).metadata


def encode_entry(metadata: api.MessageMetadata, payload: Buffer) -> bytes:
    """An entry with its checksum."""
    encoded = metadata.SerializeToString()
    head = _U32.pack(len(encoded)) + encoded
    checksum = crc32c(payload, crc32c(head))
    return b"".join((CHECKSUM_MAGIC, _U32.pack(checksum), head, payload))


def decode_batch(metadata: api.MessageMetadata, payload: Buffer) -> list[BatchMessage]:
    """The messages of an uncompressed, unencrypted batch payload. Raises ProtocolError."""
    view = memoryview(payload)
    count = metadata.num_messages_in_batch
    messages: list[BatchMessage] = []
    at = 0
    for index in range(count):
        # A peer may claim 2^31 messages: every message takes at least its size, so this ends with
        # the payload.
        start, at = _sized(view, at, f"message {index} of {count} in a batch")
        single = _parse(api.SingleMessageMetadata, view[start:at])
        end = at + single.payload_size
        if single.payload_size < 0 or end > len(view):
            raise ProtocolError(
                f"message {index} of {count} in a batch claims {single.payload_size} of "
                f"{len(view) - at} bytes left"
            )
        messages.append(BatchMessage(single, view[at:end]))
        at = end
    if at != len(view) or count < 1:
        raise ProtocolError(
            f"batch of {count} messages leaves {len(view) - at} of {len(view)} payload bytes over"
        )
    return messages


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """The uncompressed payload of a batch; each message's payload_size is set from its payload."""
    parts: list[Buffer] = []
    for message in messages:
        single = message.metadata
        if single.payload_size != len(message.payload) or not single.HasField("payload_size"):
            single = api.SingleMessageMetadata.FromString(single.SerializePartialToString())
            single.payload_size = len(message.payload)
        encoded = single.SerializeToString()
        parts += (_U32.pack(len(encoded)), encoded, message.payload)
    return b"".join(parts)


def batch_messages(entry: Entry) -> list[BatchMessage]:
    """The messages of a batched entry, compressed or not. Raises ProtocolError."""
    return decode_batch(entry.metadata, uncompressed(entry))


def uncompressed(entry: Entry) -> Buffer:
    """The entry's payload, opened if it is compressed. Raises ProtocolError."""
    metadata = entry.metadata
    if metadata.compression == api.NONE:
        return entry.payload
    return decompress(metadata.compression, entry.payload, metadata.uncompressed_size)


def partition_key(metadata: api.MessageMetadata | api.SingleMessageMetadata) -> bytes | None:
    """The key by which compaction and partition routing know a message; None if it has none. Raises
    ProtocolError.

    Decoded from base64 when the client says it is binary.
    """
    if not metadata.HasField("partition_key"):
        return None
    written: str | bytes = metadata.partition_key
    if not metadata.partition_key_b64_encoded:
        # protobuf hands a peer's string that is not UTF-8 over as bytes
        return written.encode() if isinstance(written, str) else written
    try:
        return base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError) as failure:
        raise ProtocolError(
            f"partition_key {metadata.partition_key!r} is flagged base64 but is not: {failure}"
        ) from failure


def dispatch_key(metadata: api.MessageMetadata) -> bytes:
    """The key a Key_Shared subscription dispatches an entry by: ordering key, else partition
    key, else `producer-sequence`."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    key = partition_key(metadata)
    return key if key is not None else f"{metadata.producer_name}-{metadata.sequence_id}".encode()


def _sized(view: memoryview, at: int, what: str) -> tuple[int, int]:
    """Start and end of the bytes whose u32 size stands at `at`."""
    start = at + SIZE_BYTES
    if start > len(view):
        raise ProtocolError(f"entry of {len(view)} bytes ends before the size of its {what}")
    end = start + int(_U32.unpack_from(view, at)[0])
    if end > len(view):
        raise ProtocolError(
            f"entry of {len(view)} bytes ends inside its {what}, which claims {end - start}"
        )
    return start, end


M = TypeVar("M", api.BrokerEntryMetadata, api.MessageMetadata, api.SingleMessageMetadata)


def _parse(kind: type[M], view: memoryview) -> M:
    try:
        message = kind.FromString(bytes(view))
    except DecodeError as failure:
        raise ProtocolError(
            f"{kind.__name__} of {len(view)} bytes does not parse: {failure}"
        ) from failure
    if not message.IsInitialized():
        raise ProtocolError(f"{kind.__name__} of {len(view)} bytes lacks required fields")
    return message
