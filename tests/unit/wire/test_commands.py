"""Commands: what is built reads back, what is malformed is refused with a typed error, and unset
stays unset."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.errors import ProtocolError, ServiceNotReady, UnsupportedCommand, WireCode
from magnetar.transactions.ids import TxnId
from magnetar.wire import commands, transactions
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import DUPLICATE, EARLIEST, LATEST, Position, decode_command
from magnetar.wire.transactions import Refusal


def read(frame: bytes) -> api.BaseCommand:
    """Decode one frame that has no body."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == len(frame) - 8
    assert commands.peek_type(frame, 8, len(frame)) in commands.FIELD_OF_TYPE
    return decode_command(frame, 8)


def test_earliest_latest_and_duplicate_survive_the_unsigned_wire() -> None:
    """(-1, -1) travels as 2^64-1 twice and comes back."""
    for position in (EARLIEST, LATEST, DUPLICATE, Position(2 * 2**40 + 1, 0)):
        assert commands.position_of(commands.message_id_data(position)) == position
    assert commands.message_id_data(EARLIEST).ledgerId == 2**64 - 1


def test_receipt_of_a_duplicate_is_a_success_with_ids_of_minus_one() -> None:
    """Clients take (-1, -1) for "stored already"."""
    receipt = read(commands.send_receipt(4, 9, DUPLICATE)).send_receipt
    assert (receipt.producer_id, receipt.sequence_id) == (4, 9)
    assert commands.position_of(receipt.message_id) == DUPLICATE


def test_error_answering_connect_has_request_id_minus_one() -> None:
    """And carries code and text of the error it was made from."""
    error = read(
        commands.error_of(commands.NO_REQUEST, ServiceNotReady("bundle is being unloaded"))
    ).error
    assert error.request_id == 2**64 - 1
    assert (error.error, error.message) == (api.ServiceNotReady, "bundle is being unloaded")


def test_connected_offers_lookups_without_creation_and_watchers_only_on_request() -> None:
    """Flag 5 is what Java's lookups need; flag 4 makes Java use watchers."""
    plain = read(
        commands.connected("Pulsar Server4.2.4", 20, 5242880, topic_watchers=False)
    ).connected
    assert plain.feature_flags.supports_get_partitioned_metadata_without_auto_creation
    assert not plain.feature_flags.HasField("supports_topic_watchers")
    assert (plain.protocol_version, plain.max_message_size) == (20, 5242880)
    assert read(
        commands.connected("Pulsar Server4.2.4", 21, 1)
    ).connected.feature_flags.supports_topic_watcher_reconcile


def test_optional_fields_are_unset_unless_given() -> None:
    """Clients distinguish unset from default in all of these."""
    success = read(commands.producer_success(1, "p")).producer_success
    assert not success.HasField("topic_epoch")
    assert (success.last_sequence_id, success.producer_ready) == (-1, True)
    assert read(commands.producer_success(1, "p", topic_epoch=0)).producer_success.HasField(
        "topic_epoch"
    )
    assert not read(commands.close_producer(1)).close_producer.HasField("assignedBrokerServiceUrl")
    assert not read(commands.ack_response(1, 2)).ack_response.HasField("error")
    assert not commands.message_id_data(Position(1, 2)).HasField("batch_index")
    last = read(
        commands.last_message_id(1, commands.message_id_data(EARLIEST))
    ).get_last_message_id_response
    assert not last.HasField("consumer_mark_delete_position")


def test_close_names_the_new_owner() -> None:
    """PIP-307, for producers and consumers, with a request id of -1."""
    producer = read(commands.close_producer(3, "pulsar://b:6650")).close_producer
    assert (producer.assignedBrokerServiceUrl, producer.request_id) == (
        "pulsar://b:6650",
        2**64 - 1,
    )
    assert read(
        commands.close_consumer(3, None, "pulsar+ssl://b:6651")
    ).close_consumer.assignedBrokerServiceUrlTls


def test_lookup_responses() -> None:
    """Connect is authoritative; a redirect says whether it is; a failure carries a code."""
    connect = read(commands.lookup_connect(5, "pulsar://a:1", through_proxy=True)).lookup_response
    assert (connect.response, connect.authoritative, connect.proxy_through_service_url) == (
        1,
        True,
        True,
    )
    redirect = read(
        commands.lookup_redirect(5, "pulsar://a:1", authoritative=False)
    ).lookup_response
    assert (redirect.response, redirect.authoritative) == (0, False)
    failed = read(commands.lookup_failed(5, WireCode.TOPIC_NOT_FOUND, "absent")).lookup_response
    assert (failed.response, failed.error, failed.request_id) == (2, api.TopicNotFound, 5)


FRAMES = [
    commands.PING,
    commands.PONG,
    commands.auth_challenge("s", 21, "token", b"PulsarAuthRefresh"),
    commands.success(1),
    commands.partitioned_metadata(1, 4),
    commands.partitioned_metadata_failed(1, WireCode.METADATA, "m"),
    commands.topics_of_namespace(1, ["a"], "00", filtered=False),
    commands.topics_of_namespace(1, [], None, filtered=True, changed=False),
    commands.watch_topic_list_success(1, 2, ["a"], "00"),
    commands.watch_topic_update(2, ["a"], ["b"], "00"),
    commands.schema_found(
        1, api.Schema(name="s", schema_data=b"", type=api.Schema.Json), b"\x00" * 8
    ),
    commands.schema_failed(1, WireCode.TOPIC_NOT_FOUND, "m"),
    commands.schema_created(1, b"\x00" * 8),
    commands.schema_refused(1, WireCode.INCOMPATIBLE_SCHEMA, "m"),
    commands.send_error(1, 2, WireCode.PERSISTENCE, "m"),
    commands.active_consumer_change(1, active=True),
    commands.reached_end_of_topic(1),
    commands.ack_response(1, 2, WireCode.TRANSACTION_CONFLICT, "m"),
    commands.consumer_stats_failed(1, WireCode.CONSUMER_NOT_FOUND, "m"),
    transactions.new_txn_response(1, TxnId(0, 0)),
    transactions.new_txn_response(
        1, Refusal(WireCode.NOT_ALLOWED, "Transactions are not enabled.")
    ),
    transactions.add_partition_response(1, TxnId(1, 2)),
    transactions.add_subscription_response(
        1, TxnId(1, 2), Refusal(WireCode.TRANSACTION_NOT_FOUND, "m")
    ),
    transactions.end_txn_response(1, TxnId(1, 2)),
    transactions.coordinator_connected(1, Refusal(WireCode.TRANSACTION_COORDINATOR_NOT_FOUND, "m")),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: commands.FIELD_OF_TYPE[frame[9]])
def test_every_builder_makes_a_frame_that_decodes(frame: bytes) -> None:
    """Type, sub-message and required fields are all there."""
    assert read(frame).SerializeToString() == frame[8:]


def test_txn_ids_of_zero_are_present() -> None:
    """The first transaction of coordinator 0 is (0, 0), which differs from none."""
    response = read(transactions.new_txn_response(1, TxnId(0, 0))).new_txn_response
    assert response.HasField("txnid_most_bits")
    assert response.HasField("txnid_least_bits")


def test_an_unknown_command_is_unsupported_not_malformed() -> None:
    """Newer peers send commands 70 and up; they must not read as CONNECT, the enum's first
    value."""
    with pytest.raises(UnsupportedCommand):
        decode_command(b"\x08\x46\xb2\x04\x00")


@pytest.mark.parametrize(
    "bad", [b"\xff\xff", b"\x08\x04", b"\x08\x06\x32\x00", b"\x08\x02\x12\x01"]
)
def test_malformed_commands_are_protocol_errors(bad: bytes) -> None:
    """Garbage, a missing sub-message, missing required fields, a torn sub-message."""
    with pytest.raises(ProtocolError):
        decode_command(bad)


@given(st.binary(max_size=200))
@example(b"\x08\x06\x32\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80")
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    """Fuzz the decoder."""
    try:
        command = decode_command(data)
    except (ProtocolError, UnsupportedCommand):
        return
    assert command.IsInitialized()
