"""Entries: checksums catch damage, batches round trip, keys follow the protocol, and no bytes
raise anything untyped."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.errors import ChecksumMismatch, ProtocolError
from magnetar.wire import entries
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import crc32c, entry_checksum_ok, verify_entry
from magnetar.wire.entries import BatchMessage, Entry


def metadata(**fields: object) -> api.MessageMetadata:
    return api.MessageMetadata(producer_name="p", sequence_id=4, publish_time=5, **fields)  # type: ignore[arg-type]


def single(**fields: object) -> api.SingleMessageMetadata:
    return api.SingleMessageMetadata(payload_size=0, **fields)  # type: ignore[arg-type]


def test_crc32c_is_castagnoli_over_any_buffer() -> None:
    """The check value of the CRC catalogue, for bytes, views and in pieces."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(bytearray(b"x123456789"))[1:]) == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283


@given(st.binary(max_size=100), st.data())
def test_an_entry_round_trips_and_any_damaged_bit_is_caught(
    payload: bytes, data: st.DataObject
) -> None:
    """The checksum covers metadata size, metadata and payload."""
    entry = entries.encode_entry(metadata(), payload)
    verify_entry(entry)
    parsed = entries.parse_entry(memoryview(entry))
    assert (parsed.metadata, bytes(parsed.payload), parsed.broker_metadata) == (
        metadata(),
        payload,
        None,
    )
    bit = data.draw(st.integers(16, 8 * len(entry) - 1))
    damaged = bytearray(entry)
    damaged[bit // 8] ^= 1 << bit % 8
    assert not entry_checksum_ok(damaged)
    with pytest.raises(ChecksumMismatch):
        verify_entry(damaged)


def test_entries_without_checksum_and_with_broker_metadata_parse() -> None:
    """Both prefixes are optional; the checksum does not cover the broker's."""
    entry = entries.encode_entry(metadata(), b"payload")
    bare = entry[6:]
    verify_entry(bare)
    assert bytes(entries.parse_entry(bare).payload) == b"payload"
    broker = api.BrokerEntryMetadata(broker_timestamp=7, index=8).SerializeToString()
    prefixed = b"\x0e\x02" + len(broker).to_bytes(4, "big") + broker + entry
    verify_entry(prefixed)
    parsed = entries.parse_entry(prefixed)
    assert parsed.broker_metadata == api.BrokerEntryMetadata(broker_timestamp=7, index=8)
    assert bytes(parsed.payload) == b"payload"
    assert not entry_checksum_ok(prefixed[:-1] + b"X")


@given(
    st.lists(
        st.tuples(st.binary(max_size=30), st.text("kéy", max_size=5), st.booleans()),
        min_size=1,
        max_size=20,
    )
)
def test_a_batch_round_trips(messages: list[tuple[bytes, str, bool]]) -> None:
    """Payloads, keys and null values, with payload_size filled in."""
    batch = [
        BatchMessage(single(partition_key=key, null_value=null), payload)
        for payload, key, null in messages
    ]
    payload = entries.encode_batch(batch)
    decoded = entries.decode_batch(metadata(num_messages_in_batch=len(batch)), payload)
    assert [
        (
            bytes(item.payload),
            item.metadata.partition_key,
            item.metadata.null_value,
            item.metadata.payload_size,
        )
        for item in decoded
    ] == [(body, key, null, len(body)) for body, key, null in messages]
    assert entries.encode_batch(decoded) == payload


def test_a_compressed_batch_is_opened() -> None:
    """And a size other than the announced one is refused."""
    payload = entries.encode_batch(
        [BatchMessage(single(), b"a" * 100), BatchMessage(single(), b"b")]
    )
    about = metadata(num_messages_in_batch=2, compression=api.ZLIB, uncompressed_size=len(payload))
    entry = Entry(about, memoryview(zlib.compress(payload)), None)
    opened = entries.batch_messages(entry)
    assert [bytes(message.payload) for message in opened] == [b"a" * 100, b"b"]
    about.uncompressed_size += 1
    with pytest.raises(ProtocolError, match="decompresses to"):
        entries.uncompressed(entry)


@pytest.mark.parametrize("count", [0, -1, 1, 3, 2**31 - 1])
def test_a_batch_that_does_not_hold_what_it_claims_is_refused(count: int) -> None:
    """Too few, too many and negative counts; a huge one ends with the payload, not after 2^31
    steps."""
    payload = entries.encode_batch([BatchMessage(single(), b"a"), BatchMessage(single(), b"b")])
    with pytest.raises(ProtocolError):
        entries.decode_batch(metadata(num_messages_in_batch=count), payload)


def test_message_count_and_batched_follow_presence() -> None:
    """A batch of one is a batch; an entry without the field is one message."""
    plain = entries.parse_entry(entries.encode_entry(metadata(), b""))
    assert (plain.batched, plain.message_count) == (False, 1)
    batch = entries.parse_entry(entries.encode_entry(metadata(num_messages_in_batch=1), b""))
    assert (batch.batched, batch.message_count) == (True, 1)


def test_keys() -> None:
    """Ordering key before partition key before producer and sequence; base64 is decoded and
    checked."""
    assert entries.dispatch_key(metadata(ordering_key=b"o", partition_key="k")) == b"o"
    assert entries.dispatch_key(metadata(partition_key="k")) == b"k"
    assert entries.dispatch_key(metadata()) == b"p-4"
    assert (
        entries.partition_key(metadata(partition_key="AP8=", partition_key_b64_encoded=True))
        == b"\x00\xff"
    )
    assert entries.partition_key(single()) is None
    assert entries.partition_key(single(partition_key="")) == b""
    with pytest.raises(ProtocolError):
        entries.partition_key(metadata(partition_key="?", partition_key_b64_encoded=True))


@given(st.binary(max_size=60), st.integers(0, 5))
@example(b"\x0e\x01", 1)
@example(b"\x0e\x02\x00", 1)
@example(b"\x0e\x02\xff\xff\xff\xff", 1)
def test_random_bytes_never_raise_anything_but_protocol_errors(data: bytes, count: int) -> None:
    """Fuzz the parsers of entries, batches and checksums."""
    for parse in (
        entries.parse_entry,
        entry_checksum_ok,
        lambda raw: entries.decode_batch(metadata(num_messages_in_batch=count), raw),
    ):
        try:
            parse(data)
        except ProtocolError:
            continue
