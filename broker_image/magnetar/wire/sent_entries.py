"""What an entry must be so that a broker stores it.

Owns: `check_sent_entry`, the bounds of what a SEND carries. Imports: errors, checksum, the
generated protocol. Pure. Invariants: an entry that passes can be parsed by everything that reads it
later; its number of messages is the one of its SEND and bounds what consumers are charged for it.
Payloads are not opened: a compressed or encrypted batch may hold fewer messages than it announces,
up to `messages_max`.
"""

from __future__ import annotations

import struct

from google.protobuf.message import DecodeError

from magnetar.errors import NotAllowed, ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import BROKER_METADATA_MAGIC, CHECKSUM_BYTES, CHECKSUM_MAGIC

BATCHED_MESSAGE_BYTES_MIN = 6
"""A message in a batch is at least the size of its metadata (4 bytes) and a payload size of 0 in
it (2 bytes)."""
TIME_MS_END = 1 << 63
"""Times are signed in the columns of segments, and in clients."""
_MAGIC_BYTES, _SIZE_BYTES = 2, 4
# magic, checksum, size of the metadata: how an entry begins as a rule
_HEAD = struct.Struct(">2s4xI")
_U32 = struct.Struct(">I")
_parse = api.MessageMetadata.FromString


def metadata_range(entry: memoryview) -> tuple[int, int]:
    """Where the encoded MessageMetadata of an entry lies. Raises ProtocolError if it is cut off,
    NotAllowed if a broker's comes before it."""
    size = len(entry)
    if size >= _HEAD.size:
        magic, length = _HEAD.unpack_from(entry)
        if magic == CHECKSUM_MAGIC and length <= size - _HEAD.size:
            return _HEAD.size, _HEAD.size + length
    at = 0
    if entry[:_MAGIC_BYTES] == BROKER_METADATA_MAGIC:
        raise NotAllowed(
            "entry begins with broker entry metadata, which only brokers write; send the message "
            "without it"
        )
    if entry[at : at + _MAGIC_BYTES] == CHECKSUM_MAGIC:
        at += CHECKSUM_BYTES
    return _sized(entry, at)


def _sized(entry: memoryview, at: int) -> tuple[int, int]:
    start = at + _SIZE_BYTES
    end = start + int(_U32.unpack_from(entry, at)[0]) if start <= len(entry) else start
    if end > len(entry):
        raise ProtocolError(
            f"entry of {len(entry)} bytes ends inside its metadata, which needs {end}; send the "
            "whole message"
        )
    return start, end


def check_sent_entry(entry: memoryview, messages: int, messages_max: int) -> api.MessageMetadata:
    """The metadata of an entry whose SEND announces `messages`.

    Raises ProtocolError if it is cut off, NotAllowed if it must not be stored: clients fail the
    message at that, and do not send it again.
    """
    start, end = metadata_range(entry)
    return check_sent_metadata(entry[start:end].tobytes(), len(entry) - end, messages, messages_max)


def check_sent_metadata(
    encoded: bytes, payload_bytes: int, messages: int, messages_max: int
) -> api.MessageMetadata:
    """As `check_sent_entry`, of an entry's encoded metadata and the size of what follows it.
    Raises NotAllowed."""
    try:
        metadata = _parse(encoded)
    except DecodeError as failure:
        raise NotAllowed(
            f"MessageMetadata of {len(encoded)} bytes does not parse: {failure}"
        ) from failure
    # Reading a field costs a tenth of IsInitialized; only 0 and "" leave open whether the field is
    # there.
    published_ms = metadata.publish_time
    if (
        not (published_ms and metadata.sequence_id and metadata.producer_name)
        and not metadata.IsInitialized()
    ):
        raise NotAllowed(
            "MessageMetadata lacks producer_name, sequence_id or publish_time; set all three"
        )
    if published_ms >= TIME_MS_END or metadata.event_time >= TIME_MS_END:
        times = f"publish_time={published_ms}, event_time={metadata.event_time}"
        raise NotAllowed(f"MessageMetadata has {times}; times are milliseconds below 2^63")
    count = metadata.num_messages_in_batch
    if count != messages or count < 1:
        raise NotAllowed(
            f"num_messages_in_batch={count} of the metadata and num_messages={messages} of SEND "
            "must be equal and positive"
        )
    if count > 1:
        _check_batch(metadata, count, payload_bytes, messages_max)
    if metadata.num_chunks_from_msg > 1:
        _check_chunk(metadata)
    return metadata


def _check_batch(
    metadata: api.MessageMetadata, count: int, payload_bytes: int, messages_max: int
) -> None:
    if count > messages_max:
        raise NotAllowed(
            f"num_messages_in_batch={count} is more than {messages_max} (64 * ack_set_words_max); "
            "send smaller batches"
        )
    size = metadata.uncompressed_size if metadata.compression != api.NONE else payload_bytes
    if size and count * BATCHED_MESSAGE_BYTES_MIN > size:
        raise NotAllowed(f"num_messages_in_batch={count} do not fit into a batch of {size} bytes")


def _check_chunk(metadata: api.MessageMetadata) -> None:
    chunk, chunks = metadata.chunk_id, metadata.num_chunks_from_msg
    if (
        not metadata.uuid
        or not 0 <= chunk < chunks
        or metadata.num_messages_in_batch != 1
        or metadata.total_chunk_msg_size < 1
    ):
        raise NotAllowed(
            f"chunk_id={chunk} of num_chunks_from_msg={chunks}, uuid of {len(metadata.uuid)} "
            "characters, "
            f"total_chunk_msg_size={metadata.total_chunk_msg_size}, "
            f"num_messages_in_batch={metadata.num_messages_in_batch}: a chunk has an id "
            "below the number of chunks, a uuid and a total size, and is no batch"
        )
