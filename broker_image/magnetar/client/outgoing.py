"""Messages on their way out.

Owns: what an application asked to send, and the entries made of it, batched or not. Imports: wire,
compression. Source: Pulsar's binary protocol. Invariant: a message alone in its batch is sent
unbatched (as the C++ client does), so its id has no batch index.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.errors import InvalidRequest
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.compression import compress
from magnetar.wire.entries import BatchMessage, encode_batch, encode_entry

CHUNK_BYTES_MIN = 256


class Compression(enum.Enum):
    """What a producer may compress with."""

    NONE = "none"
    ZLIB = "zlib"
    LZ4 = "lz4"
    ZSTD = "zstd"
    SNAPPY = "snappy"


@dataclass(frozen=True, slots=True)
class Batching:
    """When an open batch is sent: at the first limit reached. One batch is one entry, acknowledged
    and stored as a whole.

    Batches mix keys: turn batching off for topics read through Key_Shared subscriptions.
    """

    messages_max: int = 1000
    bytes_max: int = 128 * 1024
    linger_s: float = 0.001


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message; `value` None = null value (a tombstone under compaction); `txn` the transaction
    it belongs to.

    `event_time` and `deliver_at` (not before this moment; Shared and Key_Shared subscriptions only)
    in milliseconds since the epoch.
    """

    value: bytes | None
    sequence_id: int
    key: str | None = None
    ordering_key: bytes | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time: int | None = None
    deliver_at: int | None = None
    txn: TxnId | None = None


def encode(
    messages: Sequence[Outgoing],
    producer_name: str,
    publish_time: int,
    compression: Compression,
    schema_version: bytes = b"",
) -> bytes:
    """The entry of one or more messages, all of one transaction or of none; `schema_version` as
    the broker named it, b"" for none."""
    return encode_entry(
        *_described(messages, producer_name, publish_time, compression, schema_version)
    )


def encode_chunks(
    message: Outgoing,
    producer_name: str,
    publish_time: int,
    compression: Compression,
    schema_version: bytes,
    entry_bytes_max: int,
) -> list[bytes]:
    """The entries of a message that is too large for one, each of at most `entry_bytes_max`.
    Raises InvalidRequest if none has room."""
    metadata, payload = _described(
        [message], producer_name, publish_time, compression, schema_version
    )
    metadata.uuid = f"{producer_name}-{message.sequence_id}"
    metadata.total_chunk_msg_size = len(payload)
    # no number of chunks takes more bytes than this
    metadata.num_chunks_from_msg = metadata.chunk_id = len(payload)
    room = entry_bytes_max - len(encode_entry(metadata, b""))
    if room < CHUNK_BYTES_MIN:
        raise InvalidRequest(
            f"properties and keys leave {room} of {entry_bytes_max} bytes of an entry to the "
            "message; make them smaller"
        )
    metadata.num_chunks_from_msg = -(-len(payload) // room)
    entries = []
    for number in range(metadata.num_chunks_from_msg):
        metadata.chunk_id = number
        entries.append(encode_entry(metadata, payload[number * room : (number + 1) * room]))
    return entries


def _described(
    messages: Sequence[Outgoing],
    producer_name: str,
    publish_time: int,
    compression: Compression,
    schema_version: bytes,
) -> tuple[api.MessageMetadata, bytes]:
    metadata = api.MessageMetadata(
        producer_name=producer_name, sequence_id=messages[0].sequence_id, publish_time=publish_time
    )
    if schema_version:
        metadata.schema_version = schema_version
    txn = messages[0].txn
    if txn is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    if len(messages) == 1:
        _describe(metadata, messages[0])
        if messages[0].deliver_at is not None:
            metadata.deliver_at_time = messages[0].deliver_at
        payload = messages[0].value or b""
    else:
        metadata.num_messages_in_batch = len(messages)
        metadata.highest_sequence_id = messages[-1].sequence_id
        payload = encode_batch(_batched(message) for message in messages)
    metadata.uncompressed_size = len(payload)
    if compression is not Compression.NONE:
        metadata.compression = api.CompressionType.Value(compression.name)
    return metadata, compress(metadata.compression, payload)


def _batched(message: Outgoing) -> BatchMessage:
    value = message.value or b""
    single = api.SingleMessageMetadata(payload_size=len(value), sequence_id=message.sequence_id)
    _describe(single, message)
    return BatchMessage(single, value)


def _describe(metadata: api.MessageMetadata | api.SingleMessageMetadata, message: Outgoing) -> None:
    metadata.properties.extend(requests.key_values(message.properties))
    if message.key is not None:
        metadata.partition_key = message.key
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.event_time is not None:
        metadata.event_time = message.event_time
    if message.value is None:
        metadata.null_value = True
