"""A client that registers a session only after it has read the answer misses a close that comes
right behind it; the broker closes it again when it uses the session."""

from __future__ import annotations

from pathlib import Path

from magnetar.broker.connections.early_closes import EarlyCloses
from magnetar.broker.incarnation import Broker
from magnetar.names import TopicName
from magnetar.wire import requests
from tests.support.brokers import TOPIC, Peer, Type, command_frame, connected_peer, entry


async def _unload(broker: Broker) -> None:
    bundle = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
    await broker.ownership.move(str(bundle), "", "unload requested")


async def test_a_consumer_that_missed_its_close_is_closed_when_it_asks(tmp_path: Path) -> None:
    """Its first FLOW is answered with CLOSE_CONSUMER, the next ones are ignored."""
    async with connected_peer(tmp_path) as (broker, peer):
        assert (await peer.subscribe()).type == Type.SUCCESS
        await _unload(broker)
        assert await _closes(peer, Type.CLOSE_CONSUMER) == 1
        peer.write(requests.flow(1, 1000))
        again = await peer.answer(Type.CLOSE_CONSUMER)
        assert again.close_consumer.consumer_id == 1
        peer.write(requests.flow(1, 1000))
        assert await peer.is_quiet()


async def test_a_consumer_that_has_sent_a_flow_is_closed_once(tmp_path: Path) -> None:
    async with connected_peer(tmp_path) as (broker, peer):
        await peer.subscribe()
        peer.write(requests.flow(1, 1000))
        assert await peer.is_quiet()
        await _unload(broker)
        assert await _closes(peer, Type.CLOSE_CONSUMER) == 1
        peer.write(requests.flow(1, 1000))
        assert await peer.is_quiet()


async def test_a_consumer_that_has_subscribed_again_is_not_closed(tmp_path: Path) -> None:
    """The close it noticed, without ever sending a FLOW, is not repeated to its successor."""
    async with connected_peer(tmp_path) as (broker, peer):
        await peer.subscribe()
        await _unload(broker)
        assert await _closes(peer, Type.CLOSE_CONSUMER) == 1
        await peer.lookup()
        assert (await peer.subscribe()).type == Type.SUCCESS
        peer.write(requests.flow(1, 1000))
        assert await peer.is_quiet()


async def test_a_producer_that_missed_its_close_is_closed_when_it_sends(tmp_path: Path) -> None:
    """Its first SEND is answered with CLOSE_PRODUCER, so that it reconnects and sends it again."""
    async with connected_peer(tmp_path) as (broker, peer):
        await peer.produce()
        await _unload(broker)
        assert await _closes(peer, Type.CLOSE_PRODUCER) == 1
        peer.write(requests.send(1, 0, entry(b"x")) + requests.send(1, 1, entry(b"y")))
        again = await peer.answer(Type.CLOSE_PRODUCER)
        assert again.close_producer.producer_id == 1
        assert await peer.is_quiet()


def test_closes_beyond_the_limit_are_forgotten_first_to_last() -> None:
    closes = EarlyCloses(2)
    for number in (1, 2, 3):
        closes.add(number, b"%d" % number)
    assert [closes.take(number) for number in (1, 2, 3, 3)] == [None, b"2", b"3", None]


async def _closes(peer: Peer, kind: int) -> int:
    """How many closes of this kind have come, up to the answer to a PING."""
    peer.write(command_frame("ping"))
    found = 0
    while (command := await peer.answer()).type != Type.PONG:
        found += command.type == kind
    return found
