"""What an entry's metadata says about its delivery.

Owns: `traits_of`, from the bytes of entries to the `EntryTraits` that dispatchers ask for, and which
entries are chunks. Imports: wire, topics. Invariants: an entry whose metadata cannot be read is
dispatched like any other (what a client may publish must not stop a subscription); only what a
dispatcher wants is parsed; equal keys have equal hashes, whatever their bytes.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from functools import lru_cache

from google.protobuf.message import DecodeError

from magnetar.hashes import murmur3
from magnetar.topics.dispatch.base import ChunkTrait, EntryTraits, TraitsWanted
from magnetar.topics.sent_chunks import SentChunk
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import BROKER_METADATA_MAGIC, CHECKSUM_BYTES, CHECKSUM_MAGIC, crc32c
from magnetar.wire.entries import dispatch_key

DELIVER_AT_TAG = b"\x98\x01"
CHUNK_COUNT_TAG = b"\xd8\x01"
UNREADABLE_KEY = b"NONE_KEY"
"""Pulsar's name for the key of an entry that has none."""
HASHED_KEYS_MAX = 1 << 16
HASHED_KEY_BYTES_MAX = 64
"""Longer keys are hashed each time: what is remembered of clients' keys stays within a few MB."""
_MAGIC_BYTES, _SIZE_BYTES = 2, 4
# magic, checksum, size of the metadata: how an entry begins as a rule
_HEAD = struct.Struct(">2s4xI")


def traits_of(
    entries: Sequence[memoryview], wanted: TraitsWanted
) -> list[EntryTraits | None] | None:
    """Traits of each entry, or None where it has no wanted ones; None if that holds for all."""
    if wanted is TraitsWanted.NONE:
        return None
    if wanted is TraitsWanted.ALL:
        return [_keyed(metadata_bytes(entry)) for entry in entries]
    found: list[EntryTraits | None] = []
    for entry in entries:
        data = metadata_bytes(entry)
        found.append(_special(data) if DELIVER_AT_TAG in data or CHUNK_COUNT_TAG in data else None)
    return found if any(found) else None


def metadata_bytes(entry: memoryview) -> bytes:
    """The encoded MessageMetadata of an entry, or as much of it as there is; `wire.entries`
    checks more and costs three times as much."""
    if len(entry) < _HEAD.size:
        return b""
    magic, size = _HEAD.unpack_from(entry)
    start = _HEAD.size
    if magic != CHECKSUM_MAGIC:
        at = 0
        if magic == BROKER_METADATA_MAGIC:
            at = _MAGIC_BYTES + _SIZE_BYTES
            at += int.from_bytes(entry[_MAGIC_BYTES:at], "big")
        if entry[at : at + _MAGIC_BYTES] == CHECKSUM_MAGIC:
            at += CHECKSUM_BYTES
        start = at + _SIZE_BYTES
        size = int.from_bytes(entry[at:start], "big")
    return entry[start : start + size].tobytes()


def sent_chunk(entry: memoryview, producer: str) -> SentChunk | None:
    """What a producer's entry is known by when it comes again, if it is a chunk of a message.
    The log holds chunks in runs of one entry."""
    data = metadata_bytes(entry)
    if CHUNK_COUNT_TAG not in data:
        return None
    try:
        metadata = api.MessageMetadata.FromString(data)
    except DecodeError:
        return None
    if metadata.num_chunks_from_msg <= 1:
        return None
    return SentChunk(producer, metadata.sequence_id, metadata.chunk_id, crc32c(entry))


def chunks_among(entries: Sequence[memoryview]) -> int:
    """How many of these entries are chunks of messages."""
    found = 0
    for entry in entries:
        data = metadata_bytes(entry)
        if CHUNK_COUNT_TAG in data:
            traits = _special(data)
            found += traits is not None and traits.chunk is not None
    return found


def _special(data: bytes) -> EntryTraits | None:
    try:
        return _with(api.MessageMetadata.FromString(data), -1)
    except DecodeError:
        return None


def _keyed(data: bytes) -> EntryTraits:
    try:
        metadata = api.MessageMetadata.FromString(data)
    except DecodeError:
        return _short_key(UNREADABLE_KEY)
    if metadata.HasField("partition_key") and not metadata.HasField("ordering_key"):
        key: str | bytes = metadata.partition_key
        if metadata.partition_key_b64_encoded:
            key = _decoded(key)
    else:
        key = dispatch_key(metadata) if metadata.IsInitialized() else UNREADABLE_KEY
    traits = _short_key(key) if len(key) <= HASHED_KEY_BYTES_MAX else _hashed(key)
    if metadata.num_chunks_from_msg > 1 or metadata.deliver_at_time > 0:
        return _with(metadata, traits.key_hash)
    return traits


def _with(metadata: api.MessageMetadata, key_hash: int) -> EntryTraits:
    chunk = None
    if metadata.num_chunks_from_msg > 1:
        chunk = ChunkTrait(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
    return EntryTraits(key_hash, max(0, metadata.deliver_at_time), chunk)


def _hashed(key: str | bytes) -> EntryTraits:
    """The traits of an entry that has a key and nothing else. protobuf hands a string that is
    not UTF-8 over as bytes."""
    return EntryTraits(murmur3(key.encode() if isinstance(key, str) else key))


_short_key = lru_cache(HASHED_KEYS_MAX)(_hashed)


def _decoded(key: str | bytes) -> str | bytes:
    """The key that was written as base64, or what was written if it is not."""
    try:
        return base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return key
