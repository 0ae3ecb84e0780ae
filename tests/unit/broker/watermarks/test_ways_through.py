"""Each way of a message through the broker, and what it does to a subscription's watermark: it
follows the mark-delete, whatever moves that, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.names import TopicName
from magnetar.watermarks.timeline import Timeline
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.watermarks import PROPERTY
from tests.support import namespace_policies
from tests.support.asserting import ON, enable, holds, last_watermark, sent, settles, watermark
from tests.support.brokers import CLOCK, TOPIC, Peer, Type, entry, open_peer
from tests.support.deliveries import SHARED, play, publish, redelivery, seek
from tests.support.namespace_policies import DEDUPLICATED
from tests.support.rest import TOPICS, broker_with_rest
from tests.support.sealed_topics import number_of, world

OFTEN: dict[str, Any] = {"expiry_check_s": 0.1, "topic_check_s": 0.05}


async def topic_of(broker: Broker) -> TopicHost:
    return await broker.service.open_topic(TopicName.parse(TOPIC), create=False)


async def timeline_of(broker: Broker) -> Timeline:
    marks = (await topic_of(broker)).watermarks
    assert marks is not None
    return marks.timeline


async def begin(broker: Broker, peer: Peer, policies: dict[str, Any] | None = None) -> None:
    """A producer that has asserted 1, before any message."""
    await enable(broker, policies)
    await peer.produce(1, producer_name="p")
    await holds(peer, 1)


async def attach(peer: Peer, **values: Any) -> None:
    """A consumer of the subscription, which has the watermark from before the first message."""
    await peer.subscribe(watermarks=True, **values)
    assert await watermark(peer) == 1


async def next_entry(peer: Peer, permits: int = 1) -> api.MessageIdData:
    """Receive one message; watermarks before it are dropped."""
    if permits:
        peer.write(requests.flow(1, permits))
    while (answer := (await peer.receive())[0]).type != Type.MESSAGE:
        assert answer.type == Type.WATERMARK, answer
    return answer.message.message_id


@pytest.mark.slow
def test_what_expires_counts_as_acknowledged(tmp_path: Path) -> None:
    """By the time to live, without a consumer that receives anything: those messages do not come
    again."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer, {**ON, "message_ttl_in_seconds": 1})
        await attach(peer)
        for number in range(3):
            await sent(peer, 10 * number, number)
            await holds(peer, 10 * number + 10)
        assert await last_watermark(peer) == 1
        await settles(peer, 30)
        assert (await topic_of(broker)).subscriptions["s"].traffic.messages_expired == 3

    play(tmp_path, script, **OFTEN)


def test_what_is_delayed_pins_the_watermark(tmp_path: Path) -> None:
    """Messages behind it are delivered and acknowledged before; it is not older than what the
    subscription was sent."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await attach(peer, subType=SHARED)
        due_ms = CLOCK.wall_ms() + 400
        await publish(peer, event_time=5, deliver_at_time=due_ms)
        await holds(peer, 10)
        await publish(peer, event_time=15)
        await holds(peer, 20)
        second = await next_entry(peer)
        assert second.entryId == 1
        peer.write(requests.ack(1, [second]))
        assert await last_watermark(peer) == 1
        first = await next_entry(peer)
        assert (first.entryId, CLOCK.wall_ms() >= due_ms - 1) == (0, True)
        assert await last_watermark(peer) == 1
        peer.write(requests.ack(1, [first]))
        await settles(peer, 20)

    play(tmp_path, script)


def test_what_is_given_back_pins_the_watermark(tmp_path: Path) -> None:
    """A negative acknowledgement moves it neither on nor back."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await attach(peer, subType=SHARED)
        for number in range(2):
            await sent(peer, 10 * number, number)
            await holds(peer, 10 * number + 10)
        first = await next_entry(peer)
        peer.write(requests.ack(1, [first]))
        await settles(peer, 10)
        for _ in range(3):
            second = await next_entry(peer)
            assert second.entryId == 1
            peer.write(redelivery(1, second))
            assert await last_watermark(peer) == 10
        second = await next_entry(peer)
        peer.write(requests.ack(1, [second]))
        await settles(peer, 20)

    play(tmp_path, script)


def test_a_message_of_chunks_pins_the_watermark_up_to_its_last_one(tmp_path: Path) -> None:
    """What it asserts itself holds behind the last chunk, and counts when all are acknowledged."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await attach(peer)
        timeline = await timeline_of(broker)
        for number in range(3):
            assert timeline.head.asserted_ms("p") == 1
            await publish(
                peer,
                event_time=5,
                uuid="u",
                chunk_id=number,
                num_chunks_from_msg=3,
                total_chunk_msg_size=3,
                properties=[api.KeyValue(key=PROPERTY, value="30")],
            )
        ids = [await next_entry(peer) for _ in range(3)]
        assert timeline.head.asserted_ms("p") == 30
        peer.write(requests.ack(1, ids[:2]))
        assert await last_watermark(peer) == 1
        peer.write(requests.ack(1, ids[2:]))
        await settles(peer, 30)

    play(tmp_path, script)


def test_what_deduplication_drops_asserts_nothing(tmp_path: Path) -> None:
    """A message that is sent again does not take back what its producer has asserted since."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        timeline = await timeline_of(broker)
        message = entry(b"m", 0, properties=[api.KeyValue(key=PROPERTY, value="50")])
        for asserted, repeated in ((50, False), (70, True)):
            peer.write(requests.send(1, 0, message))
            receipt = (await peer.answer(Type.SEND_RECEIPT)).send_receipt
            assert (receipt.message_id.entryId == (1 << 64) - 1) == repeated
            await sent(peer, 100, 1) if not repeated else None
            assert timeline.head.asserted_ms("p") == asserted
            await holds(peer, 70)
        records = timeline.end
        await holds(peer, 70)
        assert timeline.end == records, "an assertion that is repeated is known"

    namespace_policies.play(tmp_path, script, DEDUPLICATED)


@pytest.mark.parametrize("durable", [True, False])
async def test_what_compaction_removed_counts_as_acknowledged(
    tmp_path: Path, durable: bool
) -> None:
    """A consumer of the compacted view acknowledges what is left of it: the watermark is that of
    all that was there."""
    async with world(tmp_path, 10) as found, open_peer(found.broker) as reader:
        await enable(found.broker)
        await holds(found.peer, 50)
        await found.compact([0, 3], horizon=9)
        await reader.subscribe(
            subscription="view", durable=durable, read_compacted=True, watermarks=True
        )
        assert await watermark(reader) is None
        reader.write(requests.flow(1, 2))
        messages = [await reader.message() for _ in range(2)]
        assert [number_of(*message) for message in messages] == [0, 3]
        reader.write(requests.ack(1, [message.message_id for message, _ in messages]))
        assert await last_watermark(reader) is None
        reader.write(requests.flow(1, 1))
        await settles(reader, 50)
        await found.peer.send(b"10", 10)
        await holds(found.peer, 60)
        tenth = await next_entry(reader, permits=0)
        assert await last_watermark(reader) == 50
        reader.write(requests.ack(1, [tenth]))
        await settles(reader, 60)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("midway", [True, False])
async def test_a_view_whose_originals_were_dropped_delivers_before_its_watermark(
    tmp_path: Path, durable: bool, midway: bool
) -> None:
    """Trimming moves no reader of the view: nothing that it still gets is older than what it was
    sent. Naive: what the topic has dropped counts as acknowledged."""
    async with world(tmp_path, 10) as found, open_peer(found.broker) as reader:
        await enable(found.broker)
        await holds(found.peer, 50)
        await found.compact([0, 3], horizon=9)
        view = found.host.bundle.known_view(found.host)
        assert view is not None

        async def trim() -> None:
            await found.host.trim(10, view.first)

        if not midway:
            await trim()
        await reader.subscribe(
            subscription="view", durable=durable, read_compacted=True, watermarks=True
        )
        assert await watermark(reader) is None
        reader.write(requests.flow(1, 1))
        first, body = await reader.message()
        assert number_of(first, body) == 0
        if midway:
            await trim()
        assert await last_watermark(reader) is None
        second = await next_entry(reader)
        assert second.entryId == 3
        assert await last_watermark(reader) is None
        reader.write(requests.ack(1, [first.message_id, second]))
        reader.write(requests.flow(1, 1))
        await settles(reader, 50)
        await found.peer.send(b"10", 10)
        await holds(found.peer, 60)
        reader.write(requests.ack(1, [await next_entry(reader, permits=0)]))
        await settles(reader, 60)


def test_the_end_of_a_topic_keeps_the_last_watermark(tmp_path: Path) -> None:
    """It never becomes the end of time; consumers that come later get it as well."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await sent(peer, 5, 0)
        await holds(peer, 10)
        await attach(peer)
        peer.write(requests.ack(1, [await next_entry(peer)]))
        await settles(peer, 10)
        await (await topic_of(broker)).terminate()
        assert {(await peer.answer()).type for _ in range(2)} == {
            Type.CLOSE_PRODUCER,
            Type.REACHED_END_OF_TOPIC,
        }
        async with open_peer(broker) as later:
            await later.subscribe(subscription="later", watermarks=True)
            assert await watermark(later) == 1
            later.write(requests.ack(1, [await next_entry(later)]))
            await later.answer(Type.REACHED_END_OF_TOPIC)
            assert await watermark(later) == 10, "once the acknowledgement is durable"

    play(tmp_path, script)


def test_a_seek_back_by_time_resets(tmp_path: Path) -> None:
    """To the value behind the last message that does not come again."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        for number in range(3):
            await publish(peer, publish_time=CLOCK.wall_ms() + 1000 * number)
            await holds(peer, 10 * number + 10)
        await attach(peer)
        third = [await next_entry(peer) for _ in range(3)][-1]
        peer.write(requests.ack(1, [third], cumulative=True))
        await settles(peer, 30)
        assert Type.SUCCESS in await seek(peer, message_publish_time=1)
        await attach(peer)

    play(tmp_path, script)


@pytest.mark.parametrize("operation", ["skip/2", "skip_all"])
async def test_administrators_move_the_watermark_on(tmp_path: Path, operation: str) -> None:
    """By REST: what is skipped, or cleared."""
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await begin(broker, peer)
        await attach(peer)
        for number in range(3):
            await sent(peer, 10 * number, number)
            await holds(peer, 10 * number + 10)
        assert await last_watermark(peer) == 1
        await rest("POST", f"{TOPICS}/t/subscription/s/{operation}", status=204)
        await settles(peer, 20 if operation == "skip/2" else 30)
