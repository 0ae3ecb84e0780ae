"""Watermarks of a broker, seen from the other end of a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.clock import SystemClock
from magnetar.names import TopicName
from magnetar.wire import requests
from tests.support.asserting import (
    asserted,
    enable,
    holds,
    last_watermark,
    sent,
    settles,
    watermark,
)
from tests.support.broker_pair import LOADED, pair
from tests.support.brokers import CLOCK, TOPIC, Peer, Type, open_peer
from tests.support.deliveries import EXCLUSIVE, SHARED, play, seek
from tests.support.owner_changes import WAYS, change_owner

FAILOVER, KEY_SHARED = 2, 3


async def taken(peer: Peer, consumer_id: int = 1) -> object:
    """Receive one message; its id."""
    peer.write(requests.flow(consumer_id, 1))
    return (await peer.message())[0].message_id


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED])
def test_the_watermark_follows_acknowledgements(tmp_path: Path, kind: int) -> None:
    """What two producers assert is the minimum, behind what is acknowledged, for every type of
    subscription."""

    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker)
        await peer.produce(1, producer_name="p")
        await peer.produce(2, producer_name="q")
        await sent(peer, 5, 0)
        await holds(peer, 10)
        await holds(peer, 20, producer_id=2)
        await sent(peer, 15, 1)
        await holds(peer, 30)
        await peer.subscribe(subType=kind, watermarks=True)
        assert await watermark(peer) is None
        if kind == FAILOVER:
            await peer.answer(Type.ACTIVE_CONSUMER_CHANGE)
        first = await taken(peer)
        assert await last_watermark(peer) is None
        peer.write(requests.ack(1, [first]))
        assert await watermark(peer) == 10
        second = await taken(peer)
        assert await last_watermark(peer) == 10
        peer.write(requests.ack(1, [second]))
        assert await watermark(peer) == 20
        await holds(peer, 25, producer_id=2)
        await settles(peer, 25)
        await holds(peer, None, producer_id=2)
        await settles(peer, 30)

    play(tmp_path, script)


def test_who_did_not_ask_sees_nothing(tmp_path: Path) -> None:
    """Ids, backlog and statistics are those of a topic without watermarks."""

    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker)
        await peer.produce(1, producer_name="p")
        await peer.subscribe()
        positions = []
        for number in range(3):
            positions.append(await peer.send(b"m", number))
            await holds(peer, 10 * number)
        assert [entry for _, entry in positions] == [0, 1, 2]
        assert len({ledger for ledger, _ in positions}) == 1
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        subscription = topic.subscriptions["s"]
        assert (subscription.core.backlog, topic.core.messages) == (3, 3)
        peer.write(requests.flow(1, 10))
        ids = [(await peer.message())[0].message_id for _ in range(3)]
        assert [found.entryId for found in ids] == [0, 1, 2]
        peer.write(requests.ack(1, ids))
        assert await peer.is_quiet()
        stats = (await peer.ask("consumer_stats", consumer_id=1)).consumer_stats_response
        assert (stats.availablePermits, stats.unackedMessages, stats.msgBacklog) == (7, 0, 0)

    play(tmp_path, script)


def test_where_the_policy_is_off_an_assertion_is_refused(tmp_path: Path) -> None:
    """The error names the policy; the topic has no watermarks because of it."""

    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker, {"watermarks": {"enabled": False}})
        await peer.produce(1, producer_name="p")
        answer = await asserted(peer, 10)
        assert "policy watermarks" in answer.error.message
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        assert topic.watermarks is None
        await peer.subscribe(watermarks=True)
        assert await last_watermark(peer) is None

    play(tmp_path, script)


def test_a_consumer_of_a_topic_without_watermarks_gets_the_first_ones(tmp_path: Path) -> None:
    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker)
        await peer.produce(1, producer_name="p")
        await peer.subscribe(watermarks=True)
        await holds(peer, 7)
        await settles(peer, 7)

    play(tmp_path, script)


def test_a_seek_back_resets_and_a_seek_forward_advances(tmp_path: Path) -> None:
    """After a seek a consumer is sent the value there, under another generation."""

    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker)
        await peer.produce(1, producer_name="p")
        for number in range(3):
            await sent(peer, 10 * number, number)
            await holds(peer, 10 * number + 10)
        await peer.subscribe(watermarks=True)
        assert await watermark(peer) is None
        ids = [await taken(peer) for _ in range(3)]
        peer.write(requests.ack(1, ids))
        before = (await peer.answer(Type.WATERMARK)).watermark
        assert before.event_time == 30
        assert Type.SUCCESS in await seek(peer, message_id=ids[1])
        await peer.subscribe(watermarks=True)
        after = (await peer.answer(Type.WATERMARK)).watermark
        assert after.event_time == 10
        assert (after.term, after.resets) != (before.term, before.resets)
        assert Type.SUCCESS in await seek(peer, message_publish_time=1 << 50)
        await peer.subscribe(watermarks=True)
        again = (await peer.answer(Type.WATERMARK)).watermark
        assert (again.term, again.resets) == (after.term, after.resets)
        await settles(peer, 30)

    play(tmp_path, script)


@pytest.mark.parametrize("how", WAYS)
async def test_a_new_owner_has_the_same_watermark(tmp_path: Path, how: str) -> None:
    """From the log, a checkpoint, and the log since; producers need not assert again."""

    async with pair(tmp_path, **LOADED) as cluster:
        async with open_peer(cluster.first) as peer:
            await peer.lookup()
            await enable(cluster.first)
            await peer.produce(1, producer_name="p")
            await peer.produce(2, producer_name="q")
            for number in range(4):
                await sent(peer, 10 * number, number)
                await holds(peer, 10 * number + 10)
            await holds(peer, 35, producer_id=2)
            await peer.subscribe(watermarks=True)
            assert await watermark(peer) is None
            ids = [await taken(peer) for _ in range(4)]
            peer.write(requests.ack(1, ids[:3]))
            assert await watermark(peer) == 30
            await change_owner(cluster, how)
        taken_by = await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        assert taken_by.broker == "second"
        async with open_peer(cluster.second) as peer:
            await peer.lookup()
            await peer.subscribe(watermarks=True)
            assert await watermark(peer) == 30
            last = await taken(peer)
            peer.write(requests.ack(1, [last]))
            assert await watermark(peer) == 35
            await peer.produce(2, producer_name="q")
            await holds(peer, 50, producer_id=2)
            await settles(peer, 40)


def test_a_silent_producer_becomes_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not hold the others back; its next assertion counts again."""
    machine, passed_s = SystemClock(), 0.0
    monkeypatch.setattr(CLOCK, "monotonic", lambda: machine.monotonic() + passed_s)

    async def script(broker: Broker, peer: Peer) -> None:
        nonlocal passed_s
        await enable(broker, {"watermarks": {"enabled": True, "idleTimeout": 4}})
        await peer.produce(1, producer_name="p")
        await peer.produce(2, producer_name="q")
        await peer.subscribe(watermarks=True)
        await holds(peer, 10)
        await holds(peer, 20, producer_id=2)
        await settles(peer, 10)
        event_ms, passed_s = 20, 4.0
        while await last_watermark(peer) == 10:
            event_ms += 1
            await holds(peer, event_ms, producer_id=2)
        await holds(peer, 15)
        assert (await last_watermark(peer) or 0) >= 20

    play(tmp_path, script)


def test_trimming_changes_no_watermark(tmp_path: Path) -> None:
    """Entries go, and with them control records; what they amount to stays, also for a
    subscription that begins later."""

    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker)
        await peer.produce(1, producer_name="p")
        for number in range(6):
            await sent(peer, 10 * number, number)
            await holds(peer, 10 * number + 10)
        topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        assert topic.watermarks is not None
        await peer.subscribe(watermarks=True)
        assert await watermark(peer) is None
        await topic.trim(4)
        assert topic.watermarks.timeline.first == 4
        await settles(peer, 40)
        await peer.subscribe(2, subscription="later", watermarks=True)
        assert await watermark(peer) == 40

    play(tmp_path, script)
