"""What topic compaction sees in one stored entry, and how a batch is rewritten.

Owns: the decision per message (key, live or deleted, chunk, marker) and the rewriting of batches.
Imports: errors, wire. Pure. Invariants: - a message is a deletion if its *payload* is empty
(or `null_value` is set), whatever its metadata weighs (#25817); - every message of a batch is
decided on its own (#20980); a message that an earlier run removed is neither kept nor a deletion; -
markers are never keyed data; what cannot be opened is kept, never judged; - a rewritten batch keeps
its id, its number of messages and the index of each; an entry that loses nothing keeps its bytes.
Removed messages are marked twice: as `compacted_out` (Java skips those) and in
`compacted_batch_indexes`, from which a broker builds the `ack_set` of MESSAGE, the only mark that
the C++ client and those around it (Python, Node) obey.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from magnetar.errors import ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import BROKER_METADATA_MAGIC, CHECKSUM_BYTES, CHECKSUM_MAGIC
from magnetar.wire.compression import compress
from magnetar.wire.entries import (
    BatchMessage,
    Entry,
    batch_messages,
    encode_batch,
    encode_entry,
    parse_entry,
    partition_key,
    readable_entry,
)

TRANSACTION_COMMIT = 21
BATCH_MESSAGES_MAX = 1 << 19
_U32 = struct.Struct(">I")
_PREFIX_BYTES = CHECKSUM_BYTES + _U32.size


class Kind(enum.IntEnum):
    """How an entry takes part in compaction."""

    KEYED = 0
    """Messages with keys or without, each decided on its own."""
    CHUNK = 1
    """A part of a larger message, which is decided as a whole."""
    COMMIT = 2
    """A transaction's commit marker: stands for messages kept elsewhere; stays where it is."""
    MARKER = 3
    """Another marker: dropped."""
    OPAQUE = 4
    """Cannot be opened: stays."""


@dataclass(frozen=True, slots=True)
class Message:
    """One decidable message: its index in the entry, its key (None = keyless), and whether it
    sets the key or deletes it."""

    index: int
    key: bytes | None
    live: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part `number` of `count` of the message `identity`, which is unique per producer and
    message."""

    identity: bytes
    number: int
    count: int
    key: bytes | None
    live: bool


@dataclass(frozen=True, slots=True)
class Examined:
    """An entry as compaction sees it."""

    kind: Kind
    messages: tuple[Message, ...] = ()
    chunk: Chunk | None = None


def examine(entry: bytes | memoryview) -> Examined:
    """Decide what an entry holds. Raises nothing for what a peer can have sent."""
    try:
        parsed = parse_entry(entry)
        metadata = parsed.metadata
        if metadata.HasField("marker_type"):
            return Examined(
                Kind.COMMIT if metadata.marker_type == TRANSACTION_COMMIT else Kind.MARKER
            )
        if metadata.num_chunks_from_msg > 1:
            return Examined(Kind.CHUNK, chunk=_chunk(metadata))
        if not parsed.batched:
            return Examined(Kind.KEYED, (Message(0, key_of(metadata), _is_live(parsed)),))
        if metadata.encryption_keys:
            return _examine_sealed(parsed)
        if metadata.num_messages_in_batch > BATCH_MESSAGES_MAX:
            return Examined(Kind.OPAQUE)
        return Examined(Kind.KEYED, _examine_batch(parsed))
    except ProtocolError:
        return Examined(Kind.OPAQUE)


def examine_single(entry: memoryview) -> tuple[bytes | None, bool] | None:
    """(key, live) of the commonest entry, one ordinary message; None for anything else, which
    `examine` decides.

    The same decision in a third of the time: no object is made but the metadata, and nothing is
    asked of it twice.
    """
    if entry[:2] != CHECKSUM_MAGIC or len(entry) < _PREFIX_BYTES:
        return None
    end = _PREFIX_BYTES + _U32.unpack_from(entry, CHECKSUM_BYTES)[0]
    if end > len(entry):
        return None
    try:
        metadata = api.MessageMetadata.FromString(bytes(entry[_PREFIX_BYTES:end]))
    except DecodeError:
        return None
    if (
        metadata.HasField("num_messages_in_batch")
        or metadata.HasField("marker_type")
        or metadata.num_chunks_from_msg > 1
        or metadata.compression
        or metadata.partition_key_b64_encoded
        or not metadata.IsInitialized()
    ):
        return None
    live = end < len(entry) and not metadata.null_value
    key = metadata.partition_key
    if metadata.null_partition_key or (not key and not metadata.HasField("partition_key")):
        return None, live
    return _raw(key), live


def readable_metadata(entry: bytes | memoryview) -> api.MessageMetadata:
    """What an entry says about itself; nothing if it cannot be read: such an entry has no key
    and no times, and stays as it is."""
    readable = readable_entry(entry)
    return readable.metadata if readable is not None else api.MessageMetadata()


def key_of(metadata: api.MessageMetadata | api.SingleMessageMetadata) -> bytes | None:
    """The compaction key; a key that is flagged base64 and is not counts as it is written."""
    if metadata.null_partition_key or not metadata.HasField("partition_key"):
        return None
    written = _raw(metadata.partition_key)
    if not metadata.partition_key_b64_encoded:
        return written
    try:
        return partition_key(metadata)
    except ProtocolError:
        return written


def _is_live(parsed: Entry) -> bool:
    """Whether a single message has a payload: its size before compression, since LZ4 of nothing
    takes a byte."""
    metadata = parsed.metadata
    compressed = metadata.compression != api.NONE and metadata.HasField("uncompressed_size")
    size = metadata.uncompressed_size if compressed else len(parsed.payload)
    return size > 0 and not metadata.null_value


def _chunk(metadata: api.MessageMetadata) -> Chunk:
    identity = b"\0".join(_raw(text) for text in (metadata.producer_name, metadata.uuid))
    # A message without content is never split, so a whole chunked message is live unless it says
    # otherwise.
    return Chunk(
        identity,
        metadata.chunk_id,
        metadata.num_chunks_from_msg,
        key_of(metadata),
        not metadata.null_value,
    )


def _raw(text: str | bytes) -> bytes:
    """A string field as bytes: protobuf hands a peer's string that is not UTF-8 over as bytes."""
    return text.encode() if isinstance(text, str) else text


def _examine_sealed(parsed: Entry) -> Examined:
    """An encrypted batch is one message under its entry's key; without one it is unknown what
    is inside, so it stays."""
    key = key_of(parsed.metadata)
    return (
        Examined(Kind.OPAQUE)
        if key is None
        else Examined(Kind.KEYED, (Message(0, key, _is_live(parsed)),))
    )


def _examine_batch(parsed: Entry) -> tuple[Message, ...]:
    return tuple(
        Message(
            index,
            key_of(single.metadata),
            len(single.payload) > 0 and not single.metadata.null_value,
        )
        for index, single in enumerate(batch_messages(parsed))
        if not single.metadata.compacted_out
    )


def rewrite(entry: bytes | memoryview, keep: Collection[int]) -> bytes | memoryview:
    """The entry with only the messages at indexes `keep` (not empty). The same bytes if it loses
    none of those it has.

    Only for entries that `examine` found KEYED. Raises ProtocolError if the entry is damaged after
    all.
    """
    assert keep, "an entry without survivors is left out, not rewritten"
    parsed = parse_entry(entry)
    if not parsed.batched or parsed.metadata.encryption_keys:
        return entry
    singles = batch_messages(parsed)
    present = {index for index, single in enumerate(singles) if not single.metadata.compacted_out}
    if present <= set(keep):
        return entry
    removed = sorted(set(range(len(singles))) - set(keep))
    for index in removed:
        singles[index] = BatchMessage(
            api.SingleMessageMetadata(compacted_out=True, payload_size=0), b""
        )
    payload = encode_batch(singles)
    metadata = api.MessageMetadata()
    metadata.CopyFrom(parsed.metadata)
    metadata.compacted_batch_indexes[:] = removed
    if metadata.HasField("uncompressed_size"):
        metadata.uncompressed_size = len(payload)
    return _broker_prefix(entry) + encode_entry(metadata, compress(metadata.compression, payload))


def _broker_prefix(entry: bytes | memoryview) -> bytes:
    """The broker's own metadata in front of an entry, byte for byte; empty if there is none."""
    view = memoryview(entry)
    if view[:2] != BROKER_METADATA_MAGIC:
        return b""
    return bytes(view[: 6 + _U32.unpack_from(view, 2)[0]])
