"""How much of a topic's control records an attach or a seek reads, however many there are; and what
a subscription has that is behind those in memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.names import TopicName
from magnetar.watermarks import timeline as timelines
from magnetar.watermarks.codec import Decoder
from magnetar.watermarks.records import Record
from magnetar.watermarks.standing import Standing
from magnetar.watermarks.timeline import Anchored
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests, watermarks
from tests.support.asserting import enable, last_watermark, settles, watermark
from tests.support.broker_pair import LOADED, pair
from tests.support.brokers import TOPIC, Peer, Type, entry, open_peer
from tests.support.deliveries import LATEST_ID, play, seek
from tests.support.owner_changes import WAYS, change_owner

INTERVAL, INTERVALS = 100, 40
RECORDS = INTERVAL * INTERVALS
POLICY: dict[str, Any] = {
    "watermarks": {"enabled": True, "idleTimeout": 0, "snapshotInterval": INTERVAL}
}
AT_ONCE = 20
MOST = INTERVAL + AT_ONCE
"""A snapshot goes to the log with the flush after the one in which it became due."""


class Reads:
    """Control records that standings applied, and that were decoded from storage."""

    def __init__(self) -> None:
        self.applied = self.decoded = 0

    def take(self) -> int:
        """How many were applied since the last call; none was decoded."""
        assert self.decoded == 0
        applied, self.applied = self.applied, 0
        return applied


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Reads]:
    found, apply, feed = Reads(), Standing.apply, Decoder.feed

    def count(standing: Standing, record: Record) -> None:
        found.applied += 1
        apply(standing, record)

    def decode(decoder: Decoder, data: bytes | memoryview) -> tuple[Anchored, bool] | None:
        found.decoded += 1
        return feed(decoder, data)

    with patch.context() as patched:
        patched.setattr(Standing, "apply", count)
        patched.setattr(Decoder, "feed", decode)
        yield found


async def fill(broker: Broker, peer: Peer, count: int = RECORDS) -> list[api.MessageIdData]:
    """A message, then an assertion of its number, so many times; the ids of the messages."""
    await peer.lookup()
    await enable(broker, POLICY)
    await peer.produce(1, producer_name="p")
    ids = []
    for first in range(0, count, AT_ONCE):
        for number in range(first, first + AT_ONCE):
            peer.write(requests.send(1, number, entry(b"m", number, event_time=number)))
            peer.write(watermarks.set_watermark(peer.next_request(), 1, number))
        for _ in range(2 * AT_ONCE):
            answer = await peer.answer()
            if answer.type == Type.SEND_RECEIPT:
                ids.append(answer.send_receipt.message_id)
            else:
                assert answer.type == Type.SUCCESS, answer
    topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
    assert topic.watermarks is not None
    snapshots = topic.watermarks.timeline.end - count
    assert snapshots >= count // MOST - 1
    return ids


def test_a_seek_reads_no_more_than_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Back or forward, by id or to an end, anywhere in the topic; nothing is read from storage."""

    async def script(broker: Broker, peer: Peer) -> None:
        ids = await fill(broker, peer)
        await peer.subscribe(watermarks=True)
        await peer.answer(Type.WATERMARK)
        chance, most = random.Random(7), 0
        with counted(monkeypatch) as reads:
            for number in [RECORDS - 1, 0, *(chance.randrange(1, RECORDS) for _ in range(30))]:
                assert Type.SUCCESS in await seek(peer, message_id=ids[number])
                await peer.subscribe(watermarks=True)
                await settles(peer, number - 1 if number else None)
                most = max(most, applied := reads.take())
                assert applied <= MOST, number
            assert most > INTERVAL // 2, "seeks into the middle of an interval read some"
            end = api.MessageIdData(ledgerId=LATEST_ID, entryId=LATEST_ID)
            assert Type.SUCCESS in await seek(peer, message_id=end)
            await peer.subscribe(watermarks=True)
            await settles(peer, RECORDS - 1)
            assert reads.take() <= MOST

    play(tmp_path, script)


@pytest.mark.slow
async def test_an_attach_after_a_takeover_reads_no_more_than_an_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark-delete of the log is in the middle of the topic, the new owner has followed nothing
    yet; a new subscription that begins with the last message reads as little."""
    middle = RECORDS // 2 + INTERVAL // 2
    async with pair(tmp_path, **LOADED) as cluster:
        async with open_peer(cluster.first) as peer:
            ids = await fill(cluster.first, peer)
            await peer.subscribe(watermarks=True)
            await peer.answer(Type.WATERMARK)
            peer.write(requests.ack(1, [ids[middle]], cumulative=True))
            await settles(peer, middle)
            await change_owner(cluster, "moved")
        await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        async with open_peer(cluster.second) as peer:
            await peer.lookup()
            await cluster.second.service.open_topic(TopicName.parse(TOPIC), create=False)
            with counted(monkeypatch) as reads:
                await peer.subscribe(watermarks=True)
                await settles(peer, middle)
                assert reads.take() <= MOST
                await peer.subscribe(2, subscription="new", initialPosition=0, watermarks=True)
                assert await last_watermark(peer, 2) == RECORDS - 1
                assert reads.take() <= MOST


@pytest.mark.parametrize("how", WAYS)
async def test_a_subscription_far_behind_has_a_bound_at_each_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The control records at its position are not in memory any more: it has the least of a
    stretch, the same after a change of owner, and the exact watermark once it has caught up."""
    monkeypatch.setattr(timelines, "RECORDS_MAX", 64)
    count, far = 200, 30
    async with pair(tmp_path, **LOADED) as cluster:
        async with open_peer(cluster.first) as peer:
            ids = await fill(cluster.first, peer, count)
            await peer.subscribe(watermarks=True)
            await peer.answer(Type.WATERMARK)
            peer.write(requests.ack(1, [ids[far]], cumulative=True))
            bound = await watermark(peer)
            assert bound is not None
            assert far - 64 // timelines.THINNED_PARTS < bound < far
            await change_owner(cluster, how)
        await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        async with open_peer(cluster.second) as peer:
            await peer.lookup()
            await peer.subscribe(watermarks=True)
            assert await watermark(peer) == bound
            peer.write(requests.ack(1, [ids[-1]], cumulative=True))
            await settles(peer, count - 1)
