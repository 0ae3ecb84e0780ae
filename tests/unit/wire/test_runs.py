"""Runs: the fast encoders produce exactly the bytes of the plain ones, and SEND by hand reads
what protobuf reads."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnetar.errors import ProtocolError, UnsupportedCommand
from magnetar.wire import commands, frames, runs, send_runs
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import entry_checksum_ok
from magnetar.wire.entries import encode_entry

U63 = st.integers(0, 2**63 - 1)
# Around every change of a varint's length and of a window.
EDGES = [
    0,
    127,
    128,
    16_380,
    16_383,
    16_384,
    32_767,
    32_768,
    2**21 - 2,
    2**21,
    2**28 - 3,
    2**35,
    2**56 - 2,
    2**62,
]
START = st.one_of(
    U63,
    st.builds(lambda edge, less: max(0, edge - less), st.sampled_from(EDGES), st.integers(0, 12)),
)


def receipt(producer_id: int, ledger: int, entry: int, sequence: int, highest: int | None) -> bytes:
    body = api.CommandSendReceipt(
        producer_id=producer_id,
        sequence_id=sequence,
        message_id=api.MessageIdData(ledgerId=ledger, entryId=entry),
    )
    if highest is not None:
        body.highest_sequence_id = highest
    return frames.encode_command(
        api.BaseCommand(type=api.BaseCommand.SEND_RECEIPT, send_receipt=body)
    )


@given(U63, U63, START, START, st.lists(st.integers(1, 3), max_size=40))
@example(3, 2 * 2**40 + 1, 120, 16_370, [1] * 40)
def test_receipts_of_a_run_are_the_plain_bytes(
    producer_id: int, ledger: int, entry: int, sequence: int, steps: list[int]
) -> None:
    """Across every change of length, with gaps between sequences."""
    sequences = [sequence + sum(steps[: index + 1]) for index in range(len(steps))]
    plain = b"".join(
        receipt(producer_id, ledger, entry + index, value, None)
        for index, value in enumerate(sequences)
    )
    assert runs.send_receipts(producer_id, ledger, entry, sequences) == plain


@given(st.lists(st.tuples(U63, U63), max_size=12))
def test_receipts_need_no_order_and_carry_highest_sequences(pairs: list[tuple[int, int]]) -> None:
    """Batches: each receipt has its own highest sequence id."""
    sequences, highest = [low for low, _ in pairs], [high for _, high in pairs]
    plain = b"".join(
        receipt(1, 5, 70 + index, low, high) for index, (low, high) in enumerate(pairs)
    )
    assert runs.send_receipts(1, 5, 70, sequences, highest) == plain
    unordered = b"".join(
        receipt(1, 5, 70 + index, low, None) for index, low in enumerate(sequences)
    )
    assert runs.send_receipts(1, 5, 70, sequences) == unordered


def message(consumer_id: int, ledger: int, entry: int, partition: int, body: bytes) -> bytes:
    message_id = api.MessageIdData(ledgerId=ledger, entryId=entry)
    if partition >= 0:
        message_id.partition = partition
    command = api.CommandMessage(consumer_id=consumer_id, message_id=message_id)
    return frames.encode_with_body(
        api.BaseCommand(type=api.BaseCommand.MESSAGE, message=command), body
    )


@given(U63, U63, START, st.integers(-1, 5000), st.lists(st.binary(max_size=20), max_size=30))
def test_messages_of_a_run_are_the_plain_bytes(
    consumer_id: int, ledger: int, entry: int, partition: int, bodies: list[bytes]
) -> None:
    """With and without a partition, across every change of length."""
    plain = [
        message(consumer_id, ledger, entry + index, partition, body)
        for index, body in enumerate(bodies)
    ]
    assert b"".join(
        runs.scattered_message_frames(
            consumer_id, ledger, range(entry, entry + len(bodies)), bodies, partition
        )
    ) == b"".join(plain)


@given(
    U63,
    U63,
    st.lists(START, unique=True, max_size=30).map(sorted),
    st.integers(-1, 5000),
    st.binary(max_size=20),
)
def test_scattered_messages_are_the_plain_bytes(
    consumer_id: int, ledger: int, entry_ids: list[int], partition: int, body: bytes
) -> None:
    """Any rising ids, across every change of length."""
    plain = [message(consumer_id, ledger, entry_id, partition, body) for entry_id in entry_ids]
    bodies = [body] * len(entry_ids)
    assert b"".join(
        runs.scattered_message_frames(consumer_id, ledger, entry_ids, bodies, partition)
    ) == b"".join(plain)
    counted = runs.scattered_message_frames(
        consumer_id, ledger, entry_ids, bodies, partition, redelivery_counts=[1] * len(bodies)
    )
    decoded = [commands.decode_command(header, 8).message for header in counted[::2]]
    assert [(found.message_id.entryId, found.redelivery_count) for found in decoded] == [
        (entry_id, 1) for entry_id in entry_ids
    ]


def test_messages_carry_what_was_redelivered_and_partly_acknowledged_and_nothing_else() -> None:
    """A count of 0 and an empty ack set stay unset, also after an entry that had them."""
    out = runs.scattered_message_frames(
        1,
        2,
        range(3, 6),
        [b"a", b"b", b"c"],
        redelivery_counts=[2, 0, 1],
        ack_sets=[[-1, 5], None, []],
        consumer_epoch=0,
    )
    decoded = [commands.decode_command(header, 8).message for header in out[::2]]
    assert out[1::2] == [b"a", b"b", b"c"]
    assert [
        item.redelivery_count if item.HasField("redelivery_count") else None for item in decoded
    ] == [2, None, 1]
    assert [list(item.ack_set) for item in decoded] == [[-1, 5], [], []]
    assert all(item.HasField("consumer_epoch") for item in decoded)
    assert not commands.decode_command(
        runs.scattered_message_frames(1, 2, range(3, 4), [b"a"])[0], 8
    ).message.HasField("consumer_epoch")


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
def test_random_send_fields_agree_with_protobuf_or_are_refused_with_it(
    fields: bytes, behind: bytes
) -> None:
    """Fuzz behind a right head: never an untyped error, never bytes of the next frame read as
    ours."""
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


@st.composite
def send_streams(draw: st.DrawFn) -> list[bytes]:
    """Frames of SENDs of which many continue the one before, and some differ in one thing."""
    sequence = draw(START)
    producer, count = draw(st.sampled_from([0, 7, 127, 128, 2**40])), 1
    frames_made: list[bytes] = []
    for _ in range(draw(st.integers(1, 12))):
        change = draw(
            st.sampled_from(
                [
                    "",
                    "",
                    "",
                    "",
                    "producer",
                    "gap",
                    "count",
                    "damage",
                    "plain",
                    "size",
                    "least",
                    "other",
                ]
            )
        )
        sequence = min(sequence + 1, 2**63 - 1)
        if change == "gap":
            sequence = draw(START)
        elif change == "producer":
            producer = draw(st.integers(0, 300))
        elif change == "count":
            count = draw(st.integers(1, 3))
        send = api.CommandSend(producer_id=producer, sequence_id=sequence, num_messages=count)
        if change == "least":
            send.txnid_least_bits = send.txnid_most_bits = 1
        metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        body = bytearray(
            encode_entry(metadata, bytes(draw(st.integers(0, 40 if change != "size" else 200))))
        )
        if change == "damage":
            body[-1] ^= 1
        if change == "plain":
            body = body[6:]
        command = api.BaseCommand(type=api.BaseCommand.SEND, send=send)
        if change == "other":
            command = api.BaseCommand(type=api.BaseCommand.PING, ping=api.CommandPing())
        frames_made.append(frames.encode_with_body(command, bytes(body)))
    return frames_made


@settings(max_examples=300)
@given(send_streams(), st.integers(0, 30), st.integers(50, 2000), st.sampled_from([60, 150, 1000]))
def test_sends_that_follow_one_are_what_parsing_finds(
    stream: list[bytes], cut: int, total_max: int, body_max: int
) -> None:
    """Whatever is taken without parsing has the meaning and the bytes that parsing gives, a
    right checksum, and keeps the limits."""
    received = b"".join(stream)
    have = max(0, len(received) - cut)
    data = bytearray(received + bytes(64))
    view = memoryview(data)
    at = len(stream[0])
    command_end = 8 + int.from_bytes(data[4:8], "big")
    if at > have or commands.peek_type(data, 8, command_end) != api.BaseCommand.SEND:
        return
    first = runs.parse_send(data, 8, command_end)
    found = send_runs.following_sends(
        view, 8, command_end, at, have, first[1], body_max, total_max, 1000
    )
    assert found.end - at <= total_max
    expected = at
    for index, body in enumerate(found.bodies, 1):
        start = expected + 8
        end_of_command = start + int.from_bytes(data[expected + 4 : expected + 8], "big")
        assert runs.parse_send(data, start, end_of_command) == (
            first[0],
            first[1] + index,
            *first[2:],
        )
        expected += len(stream[index])
        assert body == data[end_of_command:expected]
        assert entry_checksum_ok(body)
        assert len(body) <= body_max
    assert found.end == expected <= have


def test_a_client_that_does_not_batch_is_parsed_once_per_read() -> None:
    """Across a change of the sequence id's length nothing is taken: the next SEND is parsed
    again."""
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    stream = [
        frames.encode_with_body(
            api.BaseCommand(
                type=api.BaseCommand.SEND, send=api.CommandSend(producer_id=3, sequence_id=sequence)
            ),
            encode_entry(metadata, b"x" * 30),
        )
        for sequence in range(16_000, 16_500)
    ]
    data = bytearray(b"".join(stream))
    command_end = 8 + int.from_bytes(data[4:8], "big")
    found = send_runs.following_sends(
        memoryview(data), 8, command_end, len(stream[0]), len(data), 16_000, 5 << 20, 5 << 20, 1000
    )
    assert len(found.bodies) == 16_383 - 16_000


@given(
    st.integers(0, 2**35),
    START,
    START,
    st.lists(st.sampled_from([1, 1, 1, 1, 1, 1, 2, 0]), max_size=60),
    st.integers(0, 6),
)
@example(1, 87, 16_300, [1] * 200, 0)
@example(1, 87, 16_300, [1] * 200, 1)
def test_an_ack_of_a_span_is_what_parsing_finds(
    consumer_id: int, ledger: int, first: int, steps: list[int], odd: int
) -> None:
    """A span is taken as one, with the meaning that parsing gives; any other ACK is left to
    parsing."""
    entries = [first + sum(steps[:index]) for index in range(len(steps) + 1)]
    ack = api.CommandAck(
        consumer_id=consumer_id,
        ack_type=api.CommandAck.Individual,
        message_id=[api.MessageIdData(ledgerId=ledger, entryId=entry) for entry in entries],
    )
    if odd == 1:
        ack.request_id = 7
    elif odd == 2:
        ack.message_id[-1].ack_set[:] = [5]
    elif odd == 3:
        ack.ack_type = api.CommandAck.Cumulative
    elif odd == 4:
        ack.message_id[-1].partition = 3
    elif odd == 5:
        ack.txnid_least_bits = 1
    encoded = api.BaseCommand(type=api.BaseCommand.ACK, ack=ack).SerializeToString()
    data = bytearray(b"before" + encoded + b"\x1a\x04behind")
    found = runs.parse_ack_span(data, 6, 6 + len(encoded))
    plain = odd in {0, 6} and all(step == 1 for step in steps) and entries[-1] < 2**63
    assert found == (runs.AckSpan(consumer_id, ledger, first, len(entries)) if plain else None)


@given(st.binary(max_size=60), st.integers(0, 80))
def test_no_bytes_make_an_ack_span_that_parsing_does_not_find(garbage: bytes, cut: int) -> None:
    """Torn and malformed commands are never taken for a span."""
    ack = api.CommandAck(consumer_id=1, ack_type=api.CommandAck.Individual)
    ack.message_id.extend(api.MessageIdData(ledgerId=9, entryId=entry) for entry in range(120, 130))
    encoded = api.BaseCommand(type=api.BaseCommand.ACK, ack=ack).SerializeToString()
    for command in (encoded[:cut] + garbage, garbage + encoded[cut:]):
        found = runs.parse_ack_span(bytearray(command), 0, len(command))
        if found is not None:
            parsed = api.BaseCommand.FromString(command).ack
            assert parsed.consumer_id == found.consumer_id
            assert [identifier.entryId for identifier in parsed.message_id] == list(
                range(found.first, found.first + found.entries)
            )
