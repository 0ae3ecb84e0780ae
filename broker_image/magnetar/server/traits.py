"""What a client wrote about an entry that decides to whom it goes, and when.

Owns: `traits_of`, from the bytes of entries to the `EntryTraits` that dispatchers ask for. Imports: wire, topics.
Invariants: an entry whose metadata cannot be read is dispatched like any other (what a client may publish must not stop a subscription); only
what a dispatcher wants is parsed; equal keys have equal hashes, whatever their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from magnetar.errors import ProtocolError
from magnetar.hashes import murmur3
from magnetar.topics.dispatch import ChunkTrait, EntryTraits, TraitsWanted
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import BROKER_METADATA_MAGIC, CHECKSUM_BYTES, CHECKSUM_MAGIC
from magnetar.wire.entries import dispatch_key, parse_metadata

DELIVER_AT_TAG = b"\x98\x01"
CHUNK_COUNT_TAG = b"\xd8\x01"
UNREADABLE_KEY = b"NONE_KEY"
"""Pulsar's name for the key of an entry that has none."""
HASHED_KEYS_MAX = 1 << 16
HASHED_KEY_BYTES_MAX = 64
"""Longer keys are hashed each time: what is remembered of clients' keys stays within a few MB."""
_MAGIC_BYTES, _SIZE_BYTES = 2, 4


def traits_of(entries: Sequence[memoryview], wanted: TraitsWanted) -> list[EntryTraits | None] | None:
    """Traits of each entry, or None where it has nothing that was asked for; None if that is so for all of them."""
    if wanted is TraitsWanted.NONE:
        return None
    if wanted is TraitsWanted.ALL:
        return [_traits(entry, keyed=True) for entry in entries]
    found = [_traits(entry, keyed=False) if _looks_special(entry) else None for entry in entries]
    return found if any(found) else None


def key_hash(key: bytes) -> int:
    """Murmur3 of a key, remembered if the key is short."""
    return _short_key_hash(key) if len(key) <= HASHED_KEY_BYTES_MAX else murmur3(key)


_short_key_hash = lru_cache(HASHED_KEYS_MAX)(murmur3)


def _looks_special(entry: memoryview) -> bool:
    """Whether the tag of a delay or of chunks occurs in the metadata; it may be part of something else."""
    metadata = metadata_bytes(entry)
    return DELIVER_AT_TAG in metadata or CHUNK_COUNT_TAG in metadata


def metadata_bytes(entry: memoryview) -> bytes:
    """The encoded MessageMetadata of an entry; whatever stands there if the entry is malformed."""
    at = 0
    if entry[:_MAGIC_BYTES] == BROKER_METADATA_MAGIC:
        at = _MAGIC_BYTES + _SIZE_BYTES
        at += int.from_bytes(entry[_MAGIC_BYTES:at], "big")
    if entry[at : at + _MAGIC_BYTES] == CHECKSUM_MAGIC:
        at += CHECKSUM_BYTES
    start = at + _SIZE_BYTES
    return bytes(entry[start : start + int.from_bytes(entry[at:start], "big")])


def _traits(entry: memoryview, *, keyed: bool) -> EntryTraits | None:
    try:
        metadata = parse_metadata(entry)
    except ProtocolError:
        return EntryTraits(key_hash(UNREADABLE_KEY)) if keyed else None
    hashed = key_hash(_key(metadata)) if keyed else -1
    chunk = None
    if metadata.num_chunks_from_msg > 1:
        chunk = ChunkTrait(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
    return EntryTraits(hashed, max(0, metadata.deliver_at_time), chunk)


def _key(metadata: api.MessageMetadata) -> bytes:
    try:
        return dispatch_key(metadata)
    except ProtocolError:
        # Flagged base64, but is not. protobuf hands a string that is not UTF-8 over as bytes.
        written: str | bytes = metadata.partition_key
        return written.encode() if isinstance(written, str) else written
