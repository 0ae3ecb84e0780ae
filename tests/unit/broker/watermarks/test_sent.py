"""What entries say of event times, in every shape that clients send."""

from __future__ import annotations

from typing import Any

from magnetar.broker.watermarks.sent import Spoken, spoken
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import BatchMessage, encode_batch, encode_entry
from magnetar.wire.watermarks import IDLE, PROPERTY

NOTHING = Spoken(False, None, 0)


def asserting(value: str) -> list[api.KeyValue]:
    return [api.KeyValue(key=PROPERTY, value=value)]


def entry(payload: bytes = b"x", **metadata: Any) -> memoryview:
    described = api.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **metadata)
    return memoryview(encode_entry(described, payload))


def batch(*values: str, **metadata: Any) -> memoryview:
    messages = [
        BatchMessage(api.SingleMessageMetadata(payload_size=1, properties=asserting(value)), b"x")
        for value in values
    ]
    return entry(encode_batch(messages), num_messages_in_batch=len(values), **metadata)


def test_the_last_assertion_of_a_run_holds() -> None:
    run = [entry(properties=asserting("5")), entry(), entry(properties=asserting("9"))]
    assert spoken(run, None) == Spoken(True, 9, 0)
    assert spoken([*run, entry(properties=asserting(IDLE))], None) == Spoken(True, None, 0)
    assert spoken([entry()], None) == NOTHING


def test_what_is_no_time_asserts_nothing() -> None:
    for value in ("", "-1", "1.5", "soon", "٣", str(1 << 63), "9" * 400):
        assert spoken([entry(properties=asserting(value))], None) == NOTHING, value
    assert spoken([memoryview(b"\x00")], None) == NOTHING


def test_a_batch_is_opened_if_it_can_be() -> None:
    assert spoken([batch("3", "4")], None) == Spoken(True, 4, 0)
    assert spoken([batch("3", "4", compression=api.LZ4)], None) == NOTHING
    key = api.EncryptionKeys(key="k", value=b"v")
    assert spoken([batch("3", encryption_keys=[key])], None) == NOTHING


def test_chunks_assert_behind_the_last_one() -> None:
    """An older message would otherwise appear behind the assertion that it makes."""
    chunks = [
        entry(properties=asserting("7"), num_chunks_from_msg=2, chunk_id=number, uuid="u")
        for number in range(2)
    ]
    assert spoken(chunks[:1], None) == NOTHING
    assert spoken(chunks[1:], None) == Spoken(True, 7, 0)


def test_messages_below_the_watermark_are_counted() -> None:
    run = [entry(event_time=5), entry(event_time=10), entry()]
    assert spoken(run, 10) == Spoken(False, None, 1)
    assert spoken(run, None) == NOTHING
