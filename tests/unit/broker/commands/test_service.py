"""What a broker answers to producers and consumers, seen from the other end of a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.errors import WireCode
from magnetar.hosting.settings import ENTRY_HEAD_BYTES_MAX
from magnetar.topics.ledger_ids import is_sidecar
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.entries import BatchMessage, encode_batch, parse_entry
from magnetar.wire.frames import encode_with_body
from tests.support.brokers import TOPIC, Peer, Type, command_frame, connected_peer, entry, open_peer

LIMIT = 64 << 10
Script = Callable[[Broker, Peer], Coroutine[Any, Any, None]]


async def play(directory: Path, script: Script, **settings: Any) -> None:
    """Run `script` with a broker that owns TOPIC's bundle, and one peer."""

    async with connected_peer(directory, **settings) as (broker, peer):
        await script(broker, peer)


def batch(count: int) -> bytes:
    """An entry of `count` messages."""
    messages = [BatchMessage(api.SingleMessageMetadata(payload_size=1), b"x") for _ in range(count)]
    return entry(encode_batch(messages), num_messages_in_batch=count)


def error_of(command: api.BaseCommand) -> int:
    assert command.type == Type.ERROR, command
    return int(command.error.error)


# --- publishing -----------------------------------------------------------------------------------


async def test_receipts_come_in_order_with_rising_ids(tmp_path: Path) -> None:
    """Pipelined SENDs of two producers on one connection: each producer's receipts in the order
    of its SENDs, ids without gaps."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce(1)
        await peer.produce(2)
        for sequence in range(100):
            peer.write(requests.send(1 + sequence % 3 // 2, sequence, entry(b"x", sequence)))
        receipts = [(await peer.answer(Type.SEND_RECEIPT)).send_receipt for _ in range(100)]
        assert sorted(receipt.message_id.entryId for receipt in receipts) == list(range(100))
        for producer in (1, 2):
            own = [receipt for receipt in receipts if receipt.producer_id == producer]
            assert [receipt.sequence_id for receipt in own] == [
                n for n in range(100) if 1 + n % 3 // 2 == producer
            ]
            assert [r.message_id.entryId for r in own] == sorted(r.message_id.entryId for r in own)

    await play(tmp_path, script)


async def test_a_stream_of_sends_may_be_split_at_every_byte(tmp_path: Path) -> None:
    """Single bytes on the wire: the same receipts, and the entries come back unchanged."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        stream = b"".join(
            requests.send(1, sequence, entry(b"payload", sequence)) for sequence in range(3)
        )
        for byte in stream:
            peer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert [
            (await peer.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id for _ in range(3)
        ] == [0, 1, 2]
        await peer.subscribe()
        peer.write(requests.flow(1, 10))
        assert [(await peer.message())[1] for _ in range(3)] == [
            entry(b"payload", sequence) for sequence in range(3)
        ]

    await play(tmp_path, script)


async def test_a_damaged_message_is_refused_alone(tmp_path: Path) -> None:
    """SEND_ERROR 9 for the one whose checksum is wrong; those around it are stored, the
    connection stays."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        good, damaged = entry(b"good"), bytearray(entry(b"damaged"))
        damaged[-1] ^= 1
        peer.write(
            requests.send(1, 0, good) + requests.send(1, 1, damaged) + requests.send(1, 2, good)
        )
        answers = [await peer.answer() for _ in range(3)]
        [refused] = [answer.send_error for answer in answers if answer.type == Type.SEND_ERROR]
        assert (refused.producer_id, refused.sequence_id, refused.error) == (
            1,
            1,
            int(WireCode.CHECKSUM),
        )
        receipts = [answer.send_receipt for answer in answers if answer.type == Type.SEND_RECEIPT]
        assert [(receipt.sequence_id, receipt.message_id.entryId) for receipt in receipts] == [
            (0, 0),
            (2, 1),
        ]

    await play(tmp_path, script)


async def test_a_message_beyond_the_limit_is_refused_alone(tmp_path: Path) -> None:
    """A payload of the announced size is taken, whatever its metadata adds; too large by a
    frame's allowance is SEND_ERROR NotAllowed."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await peer.send(bytes(LIMIT), 1)
        peer.write(requests.send(1, 2, entry(bytes(LIMIT + ENTRY_HEAD_BYTES_MAX), 2)))
        refused = (await peer.answer(Type.SEND_ERROR)).send_error
        assert (refused.sequence_id, refused.error) == (2, int(WireCode.NOT_ALLOWED))
        assert str(LIMIT) in refused.message
        await peer.send(b"small", 3)

    await play(tmp_path, script, max_message_bytes=LIMIT)


async def test_a_transactional_send_is_no_ordinary_message(tmp_path: Path) -> None:
    """Its receipt is a position of the topic's sidecar; the topic's own entries go on as if it
    had not come."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        send = api.CommandSend(producer_id=1, sequence_id=5, txnid_least_bits=1, txnid_most_bits=0)
        peer.write(encode_with_body(api.BaseCommand(type=Type.SEND, send=send), entry(b"x", 5)))
        receipt = (await peer.answer(Type.SEND_RECEIPT)).send_receipt
        waits = receipt.message_id.ledgerId, receipt.message_id.entryId
        assert (receipt.sequence_id, is_sidecar(waits)) == (5, True)
        position = await peer.send(b"ordinary", 6)
        assert (position[1], is_sidecar(position)) == (0, False)

    await play(tmp_path, script)


async def test_a_producer_is_closed_after_its_last_receipt(tmp_path: Path) -> None:
    """SUCCESS of CLOSE_PRODUCER comes last; a SEND that was on its way then is dropped
    silently."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        peer.write(
            b"".join(requests.send(1, n, entry(b"x", n)) for n in range(20))
            + requests.close_producer(1, 99)
        )
        kinds = [(await peer.answer()).type for _ in range(21)]
        assert kinds == [Type.SEND_RECEIPT] * 20 + [Type.SUCCESS]
        peer.write(requests.send(1, 20, entry(b"x")))
        assert await peer.is_quiet()

    await play(tmp_path, script)


async def test_a_producer_closed_while_it_is_created_does_not_come_to_life(tmp_path: Path) -> None:
    """The close wins: its name is free for another connection at once."""

    async def script(broker: Broker, peer: Peer) -> None:
        create = command_frame(
            "producer", topic=TOPIC, producer_id=1, producer_name="me", request_id=1
        )
        peer.write(create + requests.close_producer(1, 2))
        answer = await peer.answer(Type.SUCCESS)
        assert answer.success.request_id == 2
        async with open_peer(broker) as other:
            await other.produce(producer_name="me")

    await play(tmp_path, script)


# --- consuming ------------------------------------------------------------------------------------


async def test_success_comes_before_the_first_message(tmp_path: Path) -> None:
    """FLOW right behind SUBSCRIBE is of a consumer that is not there yet; after SUCCESS messages
    follow permits."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for number in range(5):
            await peer.send(str(number).encode(), number)
        assert (await peer.subscribe()).type == Type.SUCCESS
        assert await peer.is_quiet()
        peer.write(requests.flow(1, 2))
        received = [await peer.message() for _ in range(2)]
        assert [message.message_id.entryId for message, _ in received] == [0, 1]
        assert [bytes(parse_entry(body).payload) for _, body in received] == [b"0", b"1"]
        assert await peer.is_quiet()

    await play(tmp_path, script)


async def test_permits_count_messages_and_a_batch_is_never_split(tmp_path: Path) -> None:
    """Two permits get a whole batch of three; the debt is paid by the next FLOW before anything
    else comes."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for sequence in range(3):
            peer.write(requests.send(1, sequence, batch(3), messages=3))
            await peer.answer(Type.SEND_RECEIPT)
        await peer.subscribe()
        peer.write(requests.flow(1, 2))
        await peer.message()
        assert await peer.is_quiet()
        peer.write(requests.flow(1, 1))
        assert await peer.is_quiet()
        peer.write(requests.flow(1, 1))
        await peer.message()
        assert await peer.is_quiet()

    await play(tmp_path, script)


async def test_a_consumer_closed_while_it_subscribes_does_not_come_to_life(tmp_path: Path) -> None:
    """A client that gives up sends CLOSE_CONSUMER; an Exclusive subscription must not stay taken
    by a consumer nobody knows."""

    async def script(broker: Broker, peer: Peer) -> None:
        subscribe = command_frame(
            "subscribe", topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=1
        )
        peer.write(subscribe + requests.close_consumer(1, 2))
        answers = [await peer.answer()]
        if answers[0].type != Type.SUCCESS or answers[0].success.request_id != 2:
            answers.append(await peer.answer())
        assert await peer.is_quiet()
        async with open_peer(broker) as other:
            assert (await other.subscribe()).type == Type.SUCCESS

    await play(tmp_path, script)


async def test_a_second_subscribe_of_the_same_consumer_waits_for_no_refusal_that_is_final(
    tmp_path: Path,
) -> None:
    """While the first is under way the second is ServiceNotReady (the client tries again),
    afterwards it is SUCCESS again."""

    async def script(_broker: Broker, peer: Peer) -> None:
        options = {"topic": TOPIC, "subscription": "s", "subType": 0, "consumer_id": 1}
        peer.write(
            command_frame("subscribe", request_id=1, **options)
            + command_frame("subscribe", request_id=2, **options)
        )
        answers = {}
        for _ in range(2):
            answer = await peer.answer()
            body = answer.success if answer.type == Type.SUCCESS else answer.error
            answers[body.request_id] = answer
        assert answers[1].type == Type.SUCCESS
        assert error_of(answers[2]) == WireCode.SERVICE_NOT_READY
        assert "is being unloaded" in answers[2].error.message, (
            "C++ closes the connection on code 6 with other words"
        )
        peer.write(command_frame("subscribe", request_id=3, **options))
        assert (await peer.answer(Type.SUCCESS)).success.request_id == 3

    await play(tmp_path, script)


async def test_exclusive_is_exclusive_until_its_connection_ends(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        await peer.subscribe()
        async with open_peer(broker) as other:
            async with peer.alive():
                assert error_of(await other.subscribe()) == WireCode.CONSUMER_BUSY
            await peer.close()
            while (await other.subscribe()).type == Type.ERROR:
                await asyncio.sleep(0.001)

    await play(tmp_path, script)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (
            {"topic": "persistent://public/default/absent", "force_topic_creation": False},
            WireCode.TOPIC_NOT_FOUND,
        ),
        ({"topic": "persistent://no/where/t"}, WireCode.TOPIC_NOT_FOUND),
        ({"topic": "kafka://public/default/t"}, WireCode.INVALID_TOPIC_NAME),
        ({"subscription": " "}, WireCode.PRODUCER_BUSY),
        ({"subscription": "pulsar.dedup"}, WireCode.PRODUCER_BUSY),
        ({"subType": 1, "read_compacted": True}, WireCode.NOT_ALLOWED),
    ],
)
async def test_what_cannot_be_subscribed_is_refused_with_a_code_that_fits(
    tmp_path: Path, options: dict[str, Any], code: int
) -> None:
    """A wrong code shows up as 30 seconds of silence in the C++ client. The connection stays
    usable, and no consumer is left behind."""

    async def script(_broker: Broker, peer: Peer) -> None:
        if options.get("topic", "").startswith("persistent://public"):
            await peer.lookup(options["topic"])
        assert error_of(await peer.subscribe(**options)) == code
        assert (await peer.subscribe()).type == Type.SUCCESS

    await play(tmp_path, script)


async def test_an_acknowledgement_is_answered_only_if_asked(tmp_path: Path) -> None:
    """ACK_RESPONSE exactly where a request id was given; with ConsumerNotFound for a consumer
    that is not attached."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        ledger, number = await peer.send(b"x")
        identifier = api.MessageIdData(ledgerId=ledger, entryId=number)
        peer.write(requests.ack(7, [identifier]))
        assert await peer.is_quiet()
        peer.write(requests.ack(7, [identifier], request_id=1))
        refused = (await peer.answer(Type.ACK_RESPONSE)).ack_response
        assert (refused.request_id, refused.consumer_id, refused.error) == (
            1,
            7,
            api.ConsumerNotFound,
        )
        await peer.subscribe()
        peer.write(requests.ack(1, [identifier]))
        assert await peer.is_quiet()
        peer.write(requests.ack(1, [identifier], request_id=5))
        answer = (await peer.answer(Type.ACK_RESPONSE)).ack_response
        assert (answer.request_id, answer.consumer_id, answer.HasField("error")) == (5, 1, False)

    await play(tmp_path, script)


async def test_last_message_id_distinguishes_empty_plain_and_batched(tmp_path: Path) -> None:
    """(-1, -1) for an empty topic; batch index -1 for a plain message and the last index for a
    batch."""

    async def script(_broker: Broker, peer: Peer) -> None:
        async def last() -> tuple[int, int]:
            found = (
                await peer.ask("get_last_message_id", consumer_id=1)
            ).get_last_message_id_response.last_message_id
            return found.entryId, found.batch_index

        await peer.produce()
        await peer.subscribe()
        assert (await last())[0] == (1 << 64) - 1
        await peer.send(b"x")
        assert await last() == (0, -1)
        peer.write(requests.send(1, 1, batch(4), messages=4))
        await peer.answer(Type.SEND_RECEIPT)
        assert await last() == (1, 3)

    await play(tmp_path, script)


@pytest.mark.slow
async def test_a_slow_request_does_not_hold_up_later_ones(tmp_path: Path) -> None:
    """A LOOKUP that is buffered (nobody may take the bundle) is overtaken by the requests behind
    it, and refused in the end."""

    async def script(broker: Broker, peer: Peer) -> None:
        assert not broker.context.live.follow({"park_timeout_s": 0.2})
        # this broker believes that nobody serves: nothing can be assigned
        broker.views.incarnations.items.clear()
        peer.write(
            command_frame("lookup", topic="persistent://pulsar/system/buffered", request_id=50)
        )
        peer.write(command_frame("partitioned_metadata", topic=TOPIC, request_id=51))
        assert (
            await peer.answer(Type.PARTITIONED_METADATA_RESPONSE)
        ).partitioned_metadata_response.request_id == 51
        refused = (await peer.answer(Type.LOOKUP_RESPONSE)).lookup_response
        assert (refused.request_id, refused.error) == (50, int(WireCode.SERVICE_NOT_READY))
        assert "Failed to acquire ownership" in refused.message, (
            "C++ closes the connection on code 6 with other words"
        )

    await play(tmp_path, script)


async def test_a_broker_whose_disk_is_behind_reads_again_when_it_has_caught_up(
    tmp_path: Path,
) -> None:
    """Publishers and peers that send anything concurrently are read no further, and answered
    afterwards."""

    async def script(broker: Broker, peer: Peer) -> None:
        log, gate = broker.context.log, asyncio.Event()
        append = log._tail._append

        async def slow(*arguments: Any) -> int:
            await gate.wait()
            return await append(*arguments)

        await peer.produce()
        log._tail._append = slow  # type: ignore[method-assign, assignment]
        async with open_peer(broker) as other:
            for number in range(3):
                peer.write(requests.send(1, number, entry(bytes(LIMIT), number)))
            while not broker.service.disk_is_behind():
                await asyncio.sleep(0.005)
            held = [connection for connection in broker._connections._open if connection.listens]
            other.write(command_frame("ping"))
            peer.write(command_frame("ping"))
            while any(connection.listens for connection in held):
                await asyncio.sleep(0.005)
            gate.set()
            answers = [await peer.answer() for _ in range(4)]
            receipts = [
                answer.send_receipt.sequence_id
                for answer in answers
                if answer.type == Type.SEND_RECEIPT
            ]
            assert (receipts, [answer.type for answer in answers].count(Type.PONG)) == (
                [0, 1, 2],
                1,
            )
            await other.answer(Type.PONG)

    await play(tmp_path, script, log_pending_bytes_max=LIMIT, max_message_bytes=2 * LIMIT)
