"""Messages on their way in.

Owns: turning a MESSAGE's entry into application messages. Imports: wire, messages.
Source: Pulsar's protocol; MESSAGE.ack_set (bit 1 = not acknowledged yet), compacted_out and
compacted_batch_indexes. Invariant: messages acknowledged or compacted away are left out; `skipped`
says how many of those the broker charged permits for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from magnetar.client.chunks import Chunk
from magnetar.client.messages import Message, MessageId, ack_mask
from magnetar.client.schemas import BYTES, Schema
from magnetar.errors import MagnetarError, ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import entry_checksum_ok
from magnetar.wire.commands import position_of
from magnetar.wire.entries import Entry, batch_messages, parse_entry, uncompressed

ValidationError = api.CommandAck.ValidationError


class Received(NamedTuple):
    """The messages of an entry, and how many of it were charged permits without being here."""

    messages: list[Message[Any]]
    skipped: int


class Damaged(NamedTuple):
    """An entry that cannot be read: how many messages it cost, and the reason for the broker."""

    message_count: int
    reason: api.CommandAck.ValidationError.ValueType
    detail: str


def open_entry(
    topic: str, command: api.CommandMessage, raw: bytes, schema: Schema[Any] = BYTES
) -> Received | Damaged | Chunk:
    """Read an entry, or a chunk of a message. Damage is an outcome, not an error: the broker is
    notified and the subscription goes on."""
    try:
        if not entry_checksum_ok(raw):
            return Damaged(1, ValidationError.ChecksumMismatch, "checksum mismatch")
        entry = parse_entry(raw)
    except ProtocolError as failure:
        return Damaged(1, ValidationError.ChecksumMismatch, str(failure))
    if entry.metadata.num_chunks_from_msg > 1:
        return Chunk(entry.metadata, bytes(entry.payload), entry.broker_metadata)
    try:
        if entry.batched:
            return _open_batch(topic, command, entry, schema)
        return Received([_open_single(topic, command, entry, schema)], 0)
    except MagnetarError as failure:
        return Damaged(entry.message_count, ValidationError.DecompressionError, str(failure))


def open_chunked(
    topic: str, command: api.CommandMessage, last: Chunk, payload: bytes, schema: Schema[Any]
) -> Received | Damaged:
    """Read a message whose chunks were put together; `command` is that of its last chunk."""
    try:
        entry = Entry(last.metadata, memoryview(payload), last.broker_metadata)
        return Received([_open_single(topic, command, entry, schema)], 0)
    except MagnetarError as failure:
        return Damaged(1, ValidationError.DecompressionError, str(failure))


def _open_single(
    topic: str, command: api.CommandMessage, entry: Entry, schema: Schema[Any]
) -> Message[Any]:
    payload = bytes(uncompressed(entry))
    metadata = entry.metadata
    return _message(topic, command, entry, metadata, -1, 0, metadata.sequence_id, payload, schema)


def _open_batch(
    topic: str, command: api.CommandMessage, entry: Entry, schema: Schema[Any]
) -> Received:
    metadata = entry.metadata
    batch = batch_messages(entry)
    remaining = ack_mask(list(command.ack_set)) if command.ack_set else -1
    gone = frozenset(metadata.compacted_batch_indexes)
    messages: list[Message[Any]] = []
    skipped = 0
    for index, item in enumerate(batch):
        if not remaining >> index & 1:
            continue  # acknowledged before: the broker did not charge for it
        if item.metadata.compacted_out or index in gone:
            skipped += 1
            continue
        sequence_id = (
            item.metadata.sequence_id
            if item.metadata.HasField("sequence_id")
            else metadata.sequence_id + index
        )
        payload = bytes(item.payload)
        messages.append(
            _message(
                topic,
                command,
                entry,
                item.metadata,
                index,
                len(batch),
                sequence_id,
                payload,
                schema,
            )
        )
    return Received(messages, skipped)


def _message(
    topic: str,
    command: api.CommandMessage,
    entry: Entry,
    own: api.MessageMetadata | api.SingleMessageMetadata,
    batch_index: int,
    batch_size: int,
    sequence_id: int,
    payload: bytes,
    schema: Schema[Any],
) -> Message[Any]:
    position = position_of(command.message_id)
    shared = entry.metadata
    broker = entry.broker_metadata
    numbered = broker is not None and broker.HasField("index")
    return Message(
        id=MessageId(
            position.ledger, position.entry, batch_index, command.message_id.partition, batch_size
        ),
        topic=topic,
        data=payload,
        schema=schema,
        null_value=own.null_value,
        key=own.partition_key if own.HasField("partition_key") else None,
        ordering_key=own.ordering_key if own.HasField("ordering_key") else None,
        properties={pair.key: pair.value for pair in own.properties},
        publish_time_ms=shared.publish_time,
        event_time_ms=own.event_time if own.HasField("event_time") else None,
        sequence_id=sequence_id,
        producer_name=shared.producer_name,
        redelivery_count=command.redelivery_count,
        index=broker.index - max(0, batch_size - 1 - batch_index)
        if broker is not None and numbered
        else None,
        broker_publish_time_ms=broker.broker_timestamp
        if broker is not None and broker.HasField("broker_timestamp")
        else None,
        schema_version=shared.schema_version,
    )
