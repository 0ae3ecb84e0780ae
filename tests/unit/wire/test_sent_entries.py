"""What a broker stores: entries of every shape that clients send, and none that a reader could
not parse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import NotAllowed, ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import BROKER_METADATA_MAGIC, CHECKSUM_BYTES
from magnetar.wire.entries import encode_entry, parse_entry
from magnetar.wire.sent_entries import BATCHED_MESSAGE_BYTES_MIN, check_sent_entry

MESSAGES_MAX = 1000
CHUNK: dict[str, Any] = {
    "uuid": "p-0",
    "chunk_id": 0,
    "num_chunks_from_msg": 3,
    "total_chunk_msg_size": 20,
}
BROKER_PREFIX = (
    BROKER_METADATA_MAGIC
    + (2).to_bytes(4, "big")
    + api.BrokerEntryMetadata(index=1).SerializeToString()
)


def sent(payload: bytes = b"x", **metadata: Any) -> bytes:
    return encode_entry(
        api.MessageMetadata(
            **{"producer_name": "p", "sequence_id": 0, "publish_time": 1, **metadata}
        ),
        payload,
    )


def check(entry: bytes, messages: int = 1) -> api.MessageMetadata:
    return check_sent_entry(memoryview(entry), messages, MESSAGES_MAX)


@pytest.mark.parametrize(
    ("entry", "messages"),
    [
        (sent(), 1),
        (sent(b""), 1),
        (sent()[CHECKSUM_BYTES:], 1),
        (sent(b"", sequence_id=0, publish_time=0, producer_name=""), 1),
        (sent(bytes(6), num_messages_in_batch=1), 1),
        (sent(bytes(600), num_messages_in_batch=100), 100),
        (sent(b"zip", num_messages_in_batch=100, compression=api.ZSTD, uncompressed_size=600), 100),
        (
            sent(
                bytes(700),
                num_messages_in_batch=100,
                encryption_keys=[api.EncryptionKeys(key="k", value=b"v")],
            ),
            100,
        ),
        (sent(**CHUNK), 1),
        (sent(**{**CHUNK, "chunk_id": 2}), 1),
        (
            sent(
                partition_key="k", properties=[api.KeyValue(key="a", value="b")], deliver_at_time=-1
            ),
            1,
        ),
    ],
)
def test_entries_of_clients_are_taken(entry: bytes, messages: int) -> None:
    check(entry, messages)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x0e",
        b"\x0e\x01",
        b"\x0e\x01aaaa",
        b"\0\0\0\5abc",
        b"\xff" * 50,
        sent()[:12],
    ],
)
def test_an_entry_that_is_cut_off_is_not_the_protocol(entry: bytes) -> None:
    with pytest.raises(ProtocolError):
        check(entry)


def framed(metadata: bytes) -> bytes:
    return len(metadata).to_bytes(4, "big") + metadata


@pytest.mark.parametrize(
    ("entry", "messages", "said"),
    [
        (BROKER_PREFIX + sent(), 1, "only brokers write"),
        (framed(b""), 1, "lacks"),
        (framed(b"\xff\xff"), 1, "does not parse"),
        (
            framed(
                api.MessageMetadata(producer_name="p", sequence_id=1).SerializePartialToString()
            ),
            1,
            "publish_time",
        ),
        (
            framed(api.MessageMetadata(sequence_id=1, publish_time=1).SerializePartialToString()),
            1,
            "producer_name",
        ),
        (
            framed(
                api.MessageMetadata(producer_name="p", publish_time=1).SerializePartialToString()
            ),
            1,
            "sequence_id",
        ),
        (sent(publish_time=1 << 63), 1, "publish_time"),
        (sent(event_time=1 << 63), 1, "event_time"),
        (sent(), 2, "num_messages=2"),
        (sent(), 2**31 - 1, "num_messages"),
        (sent(), 0, "num_messages"),
        (sent(num_messages_in_batch=-1), -1, "positive"),
        (sent(bytes(600), num_messages_in_batch=100), 99, "equal"),
        (sent(bytes(599), num_messages_in_batch=100), 100, "do not fit"),
        (
            sent(b"zip", num_messages_in_batch=100, compression=api.LZ4, uncompressed_size=599),
            100,
            "do not fit",
        ),
        (
            sent(
                b"z",
                num_messages_in_batch=MESSAGES_MAX + 1,
                compression=api.LZ4,
                uncompressed_size=1 << 30,
            ),
            MESSAGES_MAX + 1,
            "smaller",
        ),
        (sent(**{**CHUNK, "chunk_id": 3}), 1, "chunk_id=3"),
        (sent(**{**CHUNK, "chunk_id": -1}), 1, "chunk_id=-1"),
        (sent(**{**CHUNK, "uuid": ""}), 1, "uuid"),
        (sent(**{**CHUNK, "total_chunk_msg_size": 0}), 1, "total_chunk_msg_size"),
        (sent(bytes(12), **CHUNK, num_messages_in_batch=2), 2, "no batch"),
    ],
)
def test_what_a_reader_could_not_take_is_refused(entry: bytes, messages: int, said: str) -> None:
    with pytest.raises(NotAllowed, match=said):
        check(entry, messages)


@given(st.binary(max_size=60), st.integers(-2, 5), st.booleans())
def test_whatever_passes_can_be_parsed_and_costs_what_it_says(
    data: bytes, messages: int, damage: bool
) -> None:
    """Any bytes, and an entry with any bytes in it: nothing but the two errors comes out, and
    what passes is readable."""
    entry = bytearray(sent(bytes(40), num_messages_in_batch=3))
    if damage:
        entry[12 : 12 + len(data)] = data
    else:
        entry[:] = data
    try:
        metadata = check(bytes(entry), messages)
    except (NotAllowed, ProtocolError):
        return
    parsed = parse_entry(entry)
    assert parsed.metadata == metadata
    assert parsed.message_count == messages
    assert messages == 1 or messages * BATCHED_MESSAGE_BYTES_MIN <= max(
        len(parsed.payload), metadata.uncompressed_size
    )
