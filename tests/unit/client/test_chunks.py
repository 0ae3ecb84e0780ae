"""Messages in chunks: cutting, putting together, acknowledging, and what becomes of them when
something is missing."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import Client, Compression
from magnetar.client.chunks import (
    CHUNK_BYTES_COUNTED_MIN,
    UNFINISHED_MESSAGES_MAX,
    Assembler,
    Chunk,
    Whole,
)
from magnetar.client.outgoing import Outgoing, encode_chunks
from magnetar.errors import InvalidRequest, NotAllowed, ServiceNotReady, WireCode
from magnetar.wire import commands, runs
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import Position
from magnetar.wire.entries import parse_entry
from tests.support.client_scenarios import acknowledged, entry, run
from tests.support.memory import ScriptedBroker, Session

LIMIT = 100_000
"""What the scripted broker announces."""


def entries_of(broker: ScriptedBroker) -> list[bytes]:
    return [raw for _, raw in broker.stored]


def test_a_large_message_is_cut_sent_and_put_together() -> None:
    """Entries within the limit with one sequence id; one message comes out, whose
    acknowledgement names every entry."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", chunking=True)
        consumer = await client.subscribe("t", "s", type="Shared", receiver_queue=4)
        value = bytes(range(256)) * 1400
        await producer.send(value, key="k", properties={"a": "b"})
        await producer.send(b"small")
        sends = broker.of("send")
        assert [(send.sequence_id, send.is_chunk) for send in sends] == [(0, True)] * 4 + [
            (1, False)
        ]
        metadata = [parse_entry(raw).metadata for raw in entries_of(broker)[:4]]
        assert all(len(raw) <= LIMIT for raw in entries_of(broker))
        assert [item.chunk_id for item in metadata] == [0, 1, 2, 3]
        assert {
            (item.uuid, item.num_chunks_from_msg, item.total_chunk_msg_size) for item in metadata
        } == {("made-up-0", 4, len(value))}
        broker.deliver(0, entries_of(broker))
        message = await consumer.receive()
        assert (message.value, message.key, message.properties["a"]) == (value, "k", "b")
        assert (message.id.entry, (await consumer.receive()).value) == (3, b"small")
        await broker.arrival("flow", 3)
        # every entry costs one
        assert [flow.messagePermits for flow in broker.of("flow")] == [4, 2, 2]
        await consumer.acknowledge(message)
        assert acknowledged(broker.of("ack")[0]) == [(0, []), (1, []), (2, []), (3, [])]

    run(scenario)


def test_all_chunks_are_acknowledged_again_after_a_refusal() -> None:
    """An application that tries once more acknowledges the whole message: earlier chunks alone
    would be delivered permanently, for nothing."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", chunking=True)
        consumer = await client.subscribe("t", "s", type="Shared")
        await producer.send(b"x" * 150_000)
        broker.deliver(0, entries_of(broker))
        message = await consumer.receive()
        broker.script["ack"] = lambda _, ack: commands.ack_response(
            ack.consumer_id, ack.request_id, WireCode.SERVICE_NOT_READY, ""
        )
        with pytest.raises(ServiceNotReady):
            await consumer.acknowledge(message)
        del broker.script["ack"]
        await consumer.acknowledge(message)
        assert [acknowledged(ack) for ack in broker.of("ack")] == [[(0, []), (1, [])]] * 2
        await consumer.acknowledge(message)
        assert acknowledged(broker.of("ack")[2]) == [(1, [])], (
            "once it is confirmed, the chunks are forgotten"
        )

    run(scenario)


def test_chunks_are_compressed_as_a_whole_and_travel_again_after_a_reconnect() -> None:
    """The connection breaks with chunks in flight: all come again, in order, before the next
    message."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", chunking=True, compression=Compression.ZLIB)
        consumer = await client.subscribe("t", "s")
        broker.script["send"] = lambda *_: None
        value = b"".join(b"%d," % (number * 7919 % 1_000_003) for number in range(100_000))
        receipts = [producer.send_nowait(value), producer.send_nowait(b"next")]
        count = len(await _sent(broker, b"next"))
        del broker.script["send"]
        broker.sessions[-1].drop()
        await asyncio.gather(*receipts)
        assert [sequence for sequence, _ in broker.stored] == [0] * (count - 1) + [1]
        assert count > 3
        await broker.arrival("flow", 2)
        broker.deliver(0, entries_of(broker))
        assert (await consumer.receive()).value == value

    run(scenario)


async def _sent(broker: ScriptedBroker, last: bytes) -> list[Any]:
    """All SENDs up to that of the next message."""
    assert last
    while not broker.of("send") or broker.of("send")[-1].sequence_id != 1:
        await broker.arrival("send", len(broker.of("send")) + 1)
    return broker.of("send")


def test_a_refused_chunk_fails_its_message_only() -> None:
    """The message fails once, with the refusal; the next one is stored."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", chunking=True)

        def refuse(_: Session, send: Any) -> bytes:
            if send.sequence_id == 0:
                return commands.send_error(send.producer_id, 0, WireCode.NOT_ALLOWED, "no")
            return bytes(runs.send_receipts(send.producer_id, 7, 0, [send.sequence_id]))

        broker.script["send"] = refuse
        large, small = producer.send_nowait(b"x" * 250_000), producer.send_nowait(b"small")
        with pytest.raises(NotAllowed):
            await large
        await small

    run(scenario)


def test_without_chunking_or_room_a_large_message_is_refused_here() -> None:
    """Nothing is sent; the error names the limit, or what leaves no room."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        plain, chunking = (
            await client.create_producer("t"),
            await client.create_producer("t", chunking=True),
        )
        with pytest.raises(InvalidRequest, match="exceeds the limit of 100000"):
            await plain.send(b"x" * 250_000)
        with pytest.raises(InvalidRequest, match="properties and keys leave"):
            await chunking.send(b"x", properties={"large": "p" * LIMIT})
        assert broker.of("send") == []

    run(scenario)


def test_missing_chunks_leave_the_others_alone() -> None:
    """A message whose beginning is missing never comes out; one that is whole does; a redelivery
    of everything repairs it."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", chunking=True)
        consumer = await client.subscribe("t", "s")
        await producer.send(b"x" * 250_000)
        chunks = entries_of(broker)
        broker.deliver(0, chunks[1:], 1)
        broker.deliver(0, [entry(b"plain")], 9)
        assert (await consumer.receive()).value == b"plain"
        broker.deliver(0, chunks)
        assert len((await consumer.receive()).value) == 250_000

    run(scenario)


@given(
    st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=UNFINISHED_MESSAGES_MAX),
    st.integers(400, 2000),
    st.randoms(use_true_random=False),
)
def test_interleaved_messages_come_out_whole(values: list[bytes], limit: int, chance: Any) -> None:
    """However the chunks of different producers mix, each message is put together from its own;
    repeated chunks do no harm."""
    queues = []
    for number, value in enumerate(values):
        entries = encode_chunks(Outgoing(value, number), "p", 1, Compression.NONE, b"", limit)
        assert all(len(raw) <= limit for raw in entries)
        queues.append([parse_entry(raw) for raw in entries])
    assembler, found, at, homes = Assembler(), [], 0, dict[int, list[Position]]()
    while any(queues):
        number = chance.choice([index for index, queue in enumerate(queues) if queue])
        parsed = queues[number].pop(0)
        position = Position(1, at)
        at += 1
        homes.setdefault(number, []).append(position)
        chunk = Chunk(parsed.metadata, bytes(parsed.payload))
        whole = assembler.add(chunk, position)
        if whole is not None:
            found.append(whole.payload)
            assert list(whole.earlier) == homes[number][:-1]
        elif chance.random() < 0.2:
            assert assembler.add(chunk, position) is None
    assert sorted(found) == sorted(values)
    assert assembler.given_up == []


def chunk_of(uuid: str, number: int, count: int = 3) -> Chunk:
    metadata = api.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=count,
    )
    return Chunk(metadata, b"%d" % number)


def test_chunks_that_are_in_the_log_twice_are_not_left_behind() -> None:
    """A producer learned of the first chunk, not of the others, and sent those again: behind the
    whole message, or before it was whole."""
    assembler = Assembler()
    numbers = [0, 1, 1, 2, 1, 2]
    found = [
        assembler.add(chunk_of("u", number), Position(1, at)) for at, number in enumerate(numbers)
    ]
    assert found == [None, None, None, Whole(b"012", (Position(1, 0), Position(1, 1))), None, None]
    assert assembler.repeated == [Position(1, 2), Position(1, 4), Position(1, 5)]
    assembler.clear()
    assert [assembler.add(chunk_of("u", number), Position(1, 6 + number)) for number in (1, 2)] == [
        None,
        None,
    ]
    assert assembler.repeated == [], "what comes again without its beginning may have it elsewhere"


def test_a_message_that_is_begun_twice_stands_for_both_beginnings() -> None:
    """Acknowledging it acknowledges the chunks of the first attempt as well, which are of no use
    to anybody."""
    assembler = Assembler()
    for at, number in enumerate([0, 1, 0, 1]):
        assert assembler.add(chunk_of("u", number), Position(1, at)) is None
    assert assembler.add(chunk_of("u", 2), Position(1, 4)) == Whole(
        b"012", tuple(Position(1, at) for at in range(4))
    )
    assert assembler.repeated == []


def test_a_message_that_is_begun_again_and_again_carries_so_many_chunks_along() -> None:
    """A producer says how often; the oldest chunks are named as repeated, and none is left
    behind or named twice."""
    assembler, begun = Assembler(), 5
    with mock.patch("magnetar.client.chunks.CARRIED_POSITIONS_MAX", 6):
        for at, number in enumerate([0, 1] * begun):
            assert assembler.add(chunk_of("u", number), Position(1, at)) is None
            assert len(assembler._unfinished["u"].positions) <= 6 + 2
        assert assembler.repeated == [Position(1, 0), Position(1, 1)]
        assert assembler.add(chunk_of("u", 2), Position(1, 10)) == Whole(
            b"012", tuple(Position(1, at) for at in range(2, 10))
        )


def test_empty_chunks_count_as_well() -> None:
    """A producer says how many chunks there are: without any payload they would be kept without
    end."""
    assembler = Assembler()
    with mock.patch("magnetar.client.chunks.CHUNKED_BYTES_MAX", 4 * CHUNK_BYTES_COUNTED_MIN):
        for number in range(6):
            assert assembler.too_large == (number > 4)
            assert (
                assembler.add(
                    Chunk(chunk_of("u", number, 1 << 30).metadata, b""), Position(1, number)
                )
                is None
            )
    assert assembler._unfinished == {}


def test_repeated_chunks_are_acknowledged_unless_they_come_again() -> None:
    """Else the mark-delete would stay before them permanently."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer("t", chunking=True)
        consumer = await client.subscribe("t", "s", type="Shared")
        await producer.send(b"x" * 150_000)
        first, last = entries_of(broker)
        broker.deliver(0, [first, last, last])
        message = await consumer.receive()
        await broker.arrival("ack")
        assert acknowledged(broker.of("ack")[0]) == [(2, [])]
        await consumer.acknowledge(message)
        assert acknowledged(broker.of("ack")[1]) == [(0, []), (1, [])]
        broker.deliver(0, [first, last, last], 3, redelivery_counts=[1, 1, 1])
        await consumer.acknowledge(await consumer.receive())
        assert len(broker.of("ack")) == 3

    run(scenario)


def test_unfinished_messages_are_limited_and_the_oldest_is_named() -> None:
    """One more than the limit: the first one's entries are given back, to be delivered again."""
    assembler = Assembler()
    for number in range(UNFINISHED_MESSAGES_MAX + 1):
        metadata = api.MessageMetadata(
            producer_name="p",
            sequence_id=number,
            publish_time=1,
            uuid=f"u{number}",
            chunk_id=0,
            num_chunks_from_msg=2,
        )
        assert assembler.add(Chunk(metadata, b"a"), Position(1, number)) is None
    assert assembler.given_up == [Position(1, 0)]
    metadata.chunk_id = 1
    assert assembler.add(Chunk(metadata, b"b"), Position(1, 99)) == Whole(
        b"ab", (Position(1, UNFINISHED_MESSAGES_MAX),)
    )
