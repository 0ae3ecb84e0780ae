"""Runs: the fast encoders produce exactly the bytes of the plain ones, and SEND by hand reads what protobuf reads."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from magnetar.errors import ProtocolError, UnsupportedCommand
from magnetar.wire import commands, frames, runs
from magnetar.wire import pulsar_api_pb2 as api

U63 = st.integers(0, 2**63 - 1)
# Around every change of a varint's length and of a window.
EDGES = [0, 127, 128, 16_380, 16_383, 16_384, 32_767, 32_768, 2**21 - 2, 2**21, 2**28 - 3, 2**35, 2**56 - 2, 2**62]
START = st.one_of(U63, st.builds(lambda edge, less: max(0, edge - less), st.sampled_from(EDGES), st.integers(0, 12)))


def receipt(producer_id: int, ledger: int, entry: int, sequence: int, highest: int | None) -> bytes:
    body = api.CommandSendReceipt(
        producer_id=producer_id, sequence_id=sequence, message_id=api.MessageIdData(ledgerId=ledger, entryId=entry)
    )
    if highest is not None:
        body.highest_sequence_id = highest
    return frames.encode_command(api.BaseCommand(type=api.BaseCommand.SEND_RECEIPT, send_receipt=body))


@given(U63, U63, START, START, st.lists(st.integers(1, 3), max_size=40))
@example(3, 2 * 2**40 + 1, 120, 16_370, [1] * 40)
def test_receipts_of_a_run_are_the_plain_bytes(producer_id: int, ledger: int, entry: int, sequence: int, steps: list[int]) -> None:
    """Across every change of length, with gaps between sequences."""
    sequences = [sequence + sum(steps[: index + 1]) for index in range(len(steps))]
    plain = b"".join(receipt(producer_id, ledger, entry + index, value, None) for index, value in enumerate(sequences))
    assert runs.send_receipts(producer_id, ledger, entry, sequences) == plain


@given(st.lists(st.tuples(U63, U63), max_size=12))
def test_receipts_need_no_order_and_carry_highest_sequences(pairs: list[tuple[int, int]]) -> None:
    """Batches: each receipt has its own highest sequence id."""
    sequences, highest = [low for low, _ in pairs], [high for _, high in pairs]
    plain = b"".join(receipt(1, 5, 70 + index, low, high) for index, (low, high) in enumerate(pairs))
    assert runs.send_receipts(1, 5, 70, sequences, highest) == plain
    unordered = b"".join(receipt(1, 5, 70 + index, low, None) for index, low in enumerate(sequences))
    assert runs.send_receipts(1, 5, 70, sequences) == unordered


def message(consumer_id: int, ledger: int, entry: int, partition: int, body: bytes) -> bytes:
    message_id = api.MessageIdData(ledgerId=ledger, entryId=entry)
    if partition >= 0:
        message_id.partition = partition
    command = api.CommandMessage(consumer_id=consumer_id, message_id=message_id)
    return frames.encode_with_body(api.BaseCommand(type=api.BaseCommand.MESSAGE, message=command), body)


@given(U63, U63, START, st.integers(-1, 5000), st.lists(st.binary(max_size=20), max_size=30))
def test_messages_of_a_run_are_the_plain_bytes(
    consumer_id: int, ledger: int, entry: int, partition: int, bodies: list[bytes]
) -> None:
    """With and without a partition, across every change of length."""
    plain = [message(consumer_id, ledger, entry + index, partition, body) for index, body in enumerate(bodies)]
    assert b"".join(runs.message_frames(consumer_id, ledger, entry, bodies, partition)) == b"".join(plain)


def test_messages_carry_what_was_redelivered_and_partly_acknowledged_and_nothing_else() -> None:
    """A count of 0 and an empty ack set stay unset, also after an entry that had them."""
    out = runs.message_frames(
        1, 2, 3, [b"a", b"b", b"c"], redelivery_counts=[2, 0, 1], ack_sets=[[-1, 5], None, []], consumer_epoch=0
    )
    decoded = [commands.decode_command(header, 8).message for header in out[::2]]
    assert out[1::2] == [b"a", b"b", b"c"]
    assert [item.redelivery_count if item.HasField("redelivery_count") else None for item in decoded] == [2, None, 1]
    assert [list(item.ack_set) for item in decoded] == [[-1, 5], [], []]
    assert all(item.HasField("consumer_epoch") for item in decoded)
    assert not commands.decode_command(runs.message_frames(1, 2, 3, [b"a"])[0], 8).message.HasField("consumer_epoch")


OPTIONAL = st.one_of(st.none(), st.integers(0, 2**64 - 1))


@given(
    st.builds(
        dict,
        producer_id=st.integers(0, 2**64 - 1),
        sequence_id=st.integers(0, 2**64 - 1),
        num_messages=st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
        highest_sequence_id=OPTIONAL,
        txnid_most_bits=OPTIONAL,
        txnid_least_bits=OPTIONAL,
        is_chunk=st.one_of(st.none(), st.booleans()),
        marker=st.one_of(st.none(), st.booleans()),
        message_id=st.one_of(st.none(), st.just(api.MessageIdData(ledgerId=1, entryId=2))),
    )
)
@example({"producer_id": 0, "sequence_id": 0, "txnid_most_bits": 0, "txnid_least_bits": 0})
def test_send_by_hand_reads_what_protobuf_reads(fields: dict[str, object]) -> None:
    """Every field, every presence, in the middle of a buffer."""
    send = api.CommandSend(**{name: value for name, value in fields.items() if value is not None})  # type: ignore[arg-type]
    encoded = api.BaseCommand(type=api.BaseCommand.SEND, send=send).SerializeToString()
    data = bytearray(b"....") + encoded + b"\xff\xff"
    in_transaction = send.HasField("txnid_most_bits") or send.HasField("txnid_least_bits")
    assert runs.parse_send(data, 4, 4 + len(encoded)) == (
        send.producer_id,
        send.sequence_id,
        send.num_messages,
        send.highest_sequence_id,
        send.txnid_most_bits if in_transaction else None,
        send.txnid_least_bits if in_transaction else None,
        send.is_chunk,
        send.marker,
    )


@given(st.binary(max_size=40), st.binary(max_size=20))
@example(b"\x08\x01\x10\xff", b"")
@example(b"\x08\x01\x10", b"\x05")
@example(b"\x08\x01\x10" + b"\xff" * 30, b"\xff" * 20)
def test_random_send_fields_agree_with_protobuf_or_are_refused_with_it(fields: bytes, behind: bytes) -> None:
    """Fuzz behind a right head: never an untyped error, never bytes of the next frame read as ours."""
    encoded = b"\x08\x06\x32" + bytes([len(fields)]) + fields
    data = bytearray(encoded + behind)
    try:
        send = commands.decode_command(data, 0, len(encoded)).send
    except ProtocolError:
        with pytest.raises((ProtocolError, UnsupportedCommand)):
            runs.parse_send(data, 0, len(encoded))
    else:
        assert runs.parse_send(data, 0, len(encoded))[:4] == (
            send.producer_id,
            send.sequence_id,
            send.num_messages,
            send.highest_sequence_id,
        )
