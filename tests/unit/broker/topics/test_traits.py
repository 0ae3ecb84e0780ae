"""Traits of entries: what dispatch learns from a client's metadata, and that nothing a client
writes stops it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from magnetar.broker.topics.traits import HASHED_KEY_BYTES_MAX, traits_of
from magnetar.hashes import murmur3
from magnetar.topics.dispatch.base import ChunkTrait, EntryTraits, TraitsWanted
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import encode_entry

NONE, SPECIAL, ALL = TraitsWanted.NONE, TraitsWanted.SPECIAL, TraitsWanted.ALL


def entry(**metadata: Any) -> memoryview:
    return memoryview(
        encode_entry(
            api.MessageMetadata(
                producer_name="p", **{"sequence_id": 7, "publish_time": 1, **metadata}
            ),
            b"x",
        )
    )


def hash_of(found: memoryview) -> int:
    (traits,) = traits_of([found], ALL) or []
    assert traits is not None
    return traits.key_hash


def test_nothing_is_parsed_that_is_not_wanted() -> None:
    """Exclusive and Failover cost nothing, whatever the bytes."""
    assert traits_of([memoryview(b"not an entry"), entry(deliver_at_time=9)], NONE) is None


def test_special_finds_delays_and_chunks_only() -> None:
    """The others stay None, and a run without any is None as a whole."""
    chunk = entry(uuid="p-7", num_chunks_from_msg=3, chunk_id=1)
    assert traits_of([entry(), entry(deliver_at_time=9), chunk], SPECIAL) == [
        None,
        EntryTraits(-1, 9, None),
        EntryTraits(-1, 0, ChunkTrait("p-7", 1, 3)),
    ]
    assert traits_of([entry(), entry(partition_key="k")], SPECIAL) is None


@pytest.mark.parametrize("tag", ["\x98\x01", "\xd8\x01"])
def test_a_tag_inside_other_bytes_is_harmless(tag: str) -> None:
    """The cheap search may be wrong, the answer is not."""
    assert traits_of([entry(ordering_key=tag.encode("latin-1"))], SPECIAL) == [EntryTraits()]


def test_entries_with_broker_metadata_or_without_checksum() -> None:
    """The metadata is found behind whatever stands before it."""
    plain = bytes(entry(deliver_at_time=9))
    broker_metadata = api.BrokerEntryMetadata(index=5).SerializeToString()
    stamped = b"\x0e\x02" + len(broker_metadata).to_bytes(4, "big") + broker_metadata + plain
    for shape in (stamped, plain[6:]):
        assert traits_of([memoryview(shape)], SPECIAL) == [EntryTraits(-1, 9, None)]


def test_ordering_key_goes_before_partition_key_before_producer_and_sequence() -> None:
    """The order of Pulsar's sticky key; base64 keys are decoded."""
    assert hash_of(entry(ordering_key=b"o", partition_key="k")) == murmur3(b"o")
    assert hash_of(entry(partition_key="k")) == murmur3(b"k")
    encoded = base64.b64encode(b"\xff\x00").decode()
    assert hash_of(entry(partition_key=encoded, partition_key_b64_encoded=True)) == murmur3(
        b"\xff\x00"
    )
    assert hash_of(entry()) == murmur3(b"p-7")


def test_a_batch_counts_by_the_key_of_its_entry() -> None:
    """Batches by key have one key for all messages."""
    assert hash_of(entry(partition_key="k", num_messages_in_batch=3)) == murmur3(b"k")


def test_what_cannot_be_read_has_a_hash_all_the_same() -> None:
    """Broken base64, strings that are not UTF-8 and bytes that are no metadata are dispatched,
    not refused."""
    assert hash_of(entry(partition_key="k!", partition_key_b64_encoded=True)) == murmur3(b"k!")
    assert hash_of(memoryview(b"\0\0\0\x02\xff\xff")) == murmur3(b"NONE_KEY")
    assert hash_of(memoryview(b"")) == murmur3(b"NONE_KEY")
    # partition_key, flagged base64, is not UTF-8
    raw = b"\x0a\x01p\x10\x07\x18\x01\x32\x02\xc3\x28\x88\x01\x01"
    assert 0 <= hash_of(memoryview(len(raw).to_bytes(4, "big") + raw)) <= 0x7FFFFFFF
    assert traits_of([memoryview(b""), memoryview(b"\0\0\0\x04\x98\x01\xff\xff")], SPECIAL) is None


def test_long_keys_are_hashed_like_short_ones() -> None:
    """Only what is remembered differs."""
    key = "k" * (HASHED_KEY_BYTES_MAX + 1)
    assert hash_of(entry(partition_key=key)) == murmur3(key.encode())
