"""What administrators and clients do to a subscription, and its watermark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.upkeep.expiry import skip
from magnetar.names import BundleName, TopicName
from magnetar.ownership.splits import range_equally_divide
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.watermarks import IDLE, PROPERTY
from tests.support.asserting import enable, holds, last_watermark, sent, settles, watermark
from tests.support.brokers import TOPIC, Peer, Type
from tests.support.deliveries import SHARED, play, publish
from tests.support.rest import TOPICS, broker_with_rest


async def begin(broker: Broker, peer: Peer, messages: int = 4) -> None:
    """Behind each message ten times its number is asserted, from ten on."""
    await enable(broker)
    await peer.produce(1, producer_name="p")
    for number in range(messages):
        await sent(peer, 10 * number, number)
        await holds(peer, 10 * number + 10)


@pytest.mark.parametrize("count", [2, None])
def test_what_is_skipped_counts_as_acknowledged(tmp_path: Path, count: int | None) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await peer.subscribe(watermarks=True)
        assert await watermark(peer) is None
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        await skip(topic.subscriptions["s"], count)
        await settles(peer, 20 if count else 40)

    play(tmp_path, script)


def test_part_of_a_batch_and_a_hole_move_nothing(tmp_path: Path) -> None:
    """Only the acknowledged beginning counts."""

    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker)
        await peer.produce(1, producer_name="p")
        batch = await publish(peer, num_messages_in_batch=2)
        await holds(peer, 10)
        await sent(peer, 10, 1)
        await holds(peer, 20)
        await peer.subscribe(subType=SHARED, watermarks=True)
        assert await watermark(peer) is None
        peer.write(requests.flow(1, 3))
        assert [(await peer.message())[0].message_id.entryId for _ in range(2)] == [0, 1]
        second = api.MessageIdData(ledgerId=batch.ledgerId, entryId=1)
        peer.write(requests.ack(1, [second]))
        half = api.MessageIdData(ledgerId=batch.ledgerId, entryId=0, ack_set=[2], batch_size=2)
        peer.write(requests.ack(1, [half]))
        assert await last_watermark(peer) is None
        rest = api.MessageIdData(ledgerId=batch.ledgerId, entryId=0, ack_set=[1], batch_size=2)
        peer.write(requests.ack(1, [rest]))
        await settles(peer, 20)

    play(tmp_path, script)


def test_a_reader_has_watermarks_too(tmp_path: Path) -> None:
    """A subscription that is not durable needs no record of its own."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer, 2)
        await peer.subscribe(subscription="r", durable=False, watermarks=True)
        assert await watermark(peer) is None
        peer.write(requests.flow(1, 2))
        ids = [(await peer.message())[0].message_id for _ in range(2)]
        peer.write(requests.ack(1, ids[1:], cumulative=True))
        assert await watermark(peer) == 20

    play(tmp_path, script)


def test_a_split_changes_no_watermark(tmp_path: Path) -> None:
    """The child goes on in the same place, with the same clients, before and after."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await peer.subscribe(watermarks=True)
        assert await watermark(peer) is None
        peer.write(requests.flow(1, 10))
        ids = [(await peer.message())[0].message_id for _ in range(4)]
        peer.write(requests.ack(1, ids[:2]))
        assert await watermark(peer) == 20
        bundle: BundleName = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
        await broker.ownership.split(bundle, range_equally_divide(bundle))
        peer.write(requests.ack(1, ids[2:]))
        await settles(peer, 40)
        await holds(peer, 50)
        await settles(peer, 50)

    play(tmp_path, script)


def test_a_topic_that_is_made_again_has_none(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        name = TopicName.parse(TOPIC)
        topic = await broker.service.open_topic(name, create=False)
        await topic.bundle.delete_topic(name)
        again = await broker.service.open_topic(name, create=True)
        assert again.watermarks is None

    play(tmp_path, script)


def test_a_property_asserts_behind_its_message(tmp_path: Path) -> None:
    """For any client: a time, or that the producer is idle; what is no time asserts nothing."""

    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker)
        await peer.produce(1, producer_name="p")
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        for value, expected in (("60", 60), ("later", 60), ("70", 70), (IDLE, None)):
            await publish(peer, properties=[api.KeyValue(key=PROPERTY, value=value)])
            await peer.send(b"behind", 9)
            assert topic.watermarks is not None
            assert topic.watermarks.timeline.head.asserted_ms("p") == expected

    play(tmp_path, script)


def test_rest_names_who_decides_a_watermark(tmp_path: Path) -> None:
    """The value, the producer, and what was clamped or late; a topic without any has null."""

    async def main() -> None:
        async with broker_with_rest(tmp_path) as (broker, rest, peer):
            await peer.produce(1, producer_name="p")
            assert (await peer.subscribe(watermarks=True)).type == Type.SUCCESS
            path = f"{TOPICS}/t/subscription/s/watermark"
            assert (await rest.get(path))["watermark"] is None
            await enable(broker)
            await peer.produce(2, producer_name="q")
            await holds(peer, 20)
            await settles(peer, 20)
            await holds(peer, 30, producer_id=2)
            await holds(peer, 15)
            await peer.produce(3, producer_name="r")
            await sent(peer, 1, 0, producer_id=3)
            found = await rest.get(path)
            assert found == {
                "watermark": 20,
                "boundedBy": {"producer": "p", "eventTime": 15},
                "activeProducers": 2,
                "clamped": 1,
                "late": 1,
            }
            assert await rest.get("/magnetar/v1/watermarks/public/default/t") == {"s": found}
            await rest("GET", f"{TOPICS}/t/subscription/other/watermark", status=404)
            metrics = broker.metrics.exposition().decode()
            assert "magnetar_watermarks_active_producers 2.0" in metrics
            assert "magnetar_watermarks_clamped 1.0" in metrics

    asyncio.run(main())
