"""The end of a topic, while it is being written: no client learns of it before it is durable."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.errors import LimitExceeded
from magnetar.names import TopicName
from magnetar.wire import requests
from tests.support.brokers import TOPIC, Peer, Type
from tests.support.deliveries import play, publish


def test_an_end_that_is_not_durable_yet_is_reported_to_no_client(tmp_path: Path) -> None:
    """Neither to a second request, nor to consumers that have acknowledged everything:
    after a crash the topic may go on."""

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
            assert (topic.terminated, topic.ended, [task.done() for task in asked]) == (
                True,
                False,
                [False, False],
            )
            written.set()
            assert [(await task).entry for task in asked] == [identifier.entryId] * 2
            await peer.answer(Type.CLOSE_PRODUCER)
            assert (
                await peer.answer(Type.REACHED_END_OF_TOPIC)
            ).reached_end_of_topic.consumer_id == 1
            await asyncio.gather(*asked)

    play(tmp_path, script)


def test_an_end_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    """The log refuses its record: every request fails with that. The topic takes messages, and
    may be terminated later."""

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
    """It takes place all the same, producers and consumers learn of it, and the next request
    is answered with its position."""

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


def test_the_end_of_a_topic_comes_before_that_of_its_term(tmp_path: Path) -> None:
    """A release that was about to begin: behind it, the record of an end would be void, and be
    confirmed all the same."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce()
        await publish(peer)
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        bundle, served = topic.bundle, list[bool]()
        append = bundle.append

        def note(record: Any, on_durable: Any) -> None:
            served.append(bundle.serving)
            append(record, on_durable)

        with mock.patch.object(bundle, "append", note):
            asked = asyncio.create_task(topic.terminate())
            asyncio.get_running_loop().call_soon(bundle.freeze)
            assert (await asked).entry == 0
        assert served == [True]

    play(tmp_path, script)


def test_the_end_of_a_topic_without_storage_is_not_written(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        name = "non-persistent://public/default/t"
        await peer.lookup(name)
        await peer.produce(topic=name)
        topic = await broker.service.open_topic(TopicName.parse(name), create=False)
        with mock.patch.object(topic.bundle, "append") as append:
            await topic.terminate()
        append.assert_not_called()
        assert topic.ended

    play(tmp_path, script)


def test_a_topic_that_is_being_made_is_waited_for(tmp_path: Path) -> None:
    """By who does not want to make it: a deletion must not pass by what is there a moment later."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.lookup()
        name = TopicName.parse(TOPIC)
        owned = broker.ownership.owned[str(await broker.ownership.bundle_of(name))]
        assert await owned.topic(name, create=False) is None
        making = asyncio.create_task(owned.topic(name, create=True))
        await asyncio.sleep(0)
        found = await owned.topic(name, create=False)
        assert found is not None
        assert found is await making

    play(tmp_path, script)
