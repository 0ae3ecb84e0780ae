"""The end of a topic, while it is being written: nobody is told before it is there to stay."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest

from magnetar.errors import LimitExceeded
from magnetar.names import TopicName
from magnetar.server.broker import Broker
from magnetar.wire import requests
from tests.unit.server.brokers import TOPIC, Peer, Type
from tests.unit.server.deliveries import play, publish


def test_an_end_that_is_not_durable_yet_is_told_to_nobody(tmp_path: Path) -> None:
    """Neither to whoever asks a second time, nor to consumers that have acknowledged everything: after a crash the topic may go on."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifier = await publish(peer)
        await peer.subscribe()
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        log, written = topic.context.log, asyncio.Event()
        barrier = log.barrier

        async def slow() -> None:
            await written.wait()
            await barrier()

        with mock.patch.object(log, "barrier", slow):
            asked = [asyncio.create_task(topic.terminate()) for _ in range(2)]
            peer.write(requests.ack(1, [identifier], request_id=7))
            assert (await peer.answer(Type.ACK_RESPONSE)).ack_response.request_id == 7
            assert await peer.is_quiet()
            assert (topic.terminated, topic.ended, [task.done() for task in asked]) == (True, False, [False, False])
            written.set()
            assert [(await task).entry for task in asked] == [identifier.entryId] * 2
            await peer.answer(Type.CLOSE_PRODUCER)
            assert (await peer.answer(Type.REACHED_END_OF_TOPIC)).reached_end_of_topic.consumer_id == 1
            await asyncio.gather(*asked)

    play(tmp_path, script)


def test_an_end_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    """The log refuses its record: whoever asks is told so, every time, the topic takes messages, and may be terminated later."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await publish(peer)
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        with mock.patch.object(topic.bundle, "append", side_effect=LimitExceeded("no room")):
            for _ in range(2):
                with pytest.raises(LimitExceeded):
                    await topic.terminate()
        assert (topic.terminated, topic.ended) == (False, False)
        assert (await publish(peer, sequence_id=1)).entryId == 1
        assert (await topic.terminate()).entry == 1
        assert topic.ended

    play(tmp_path, script)


def test_who_asks_for_an_end_may_leave(tmp_path: Path) -> None:
    """It takes place all the same, producers and consumers hear of it, and the next one who asks is told where it is."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        identifier = await publish(peer)
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        asked = asyncio.create_task(topic.terminate())
        await asyncio.sleep(0)
        asked.cancel()
        await peer.answer(Type.CLOSE_PRODUCER)
        assert topic.ended
        assert (await topic.terminate()).entry == identifier.entryId

    play(tmp_path, script)
