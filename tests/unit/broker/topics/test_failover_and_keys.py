"""Failover and Key_Shared on the wire: what each of several consumers on real sockets
receives, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from magnetar.broker.administration.statistics import topic_stats
from magnetar.broker.incarnation import Broker
from magnetar.errors import WireCode
from magnetar.hashes import murmur3
from magnetar.names import TopicName
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.commands import Position, message_id_data
from magnetar.wire.entries import parse_entry
from tests.support.brokers import TOPIC, Peer, Type, command_frame, connected_peer, entry, open_peer

Script = Callable[[Broker, Peer], Coroutine[Any, Any, None]]
FAILOVER, KEY_SHARED = 2, 3


async def play(directory: Path, script: Script, **settings: Any) -> None:
    """Run `script` with a broker that owns TOPIC's bundle, and one peer."""

    async with connected_peer(directory, **settings) as (broker, peer):
        await script(broker, peer)


async def active_change(peer: Peer) -> tuple[int, bool]:
    """The next command, which must notify a consumer whether it is active."""
    change = (await peer.answer(Type.ACTIVE_CONSUMER_CHANGE)).active_consumer_change
    return change.consumer_id, change.is_active


async def test_failover_notifies_all_consumers_after_success_and_delivers_to_the_active_one(
    tmp_path: Path,
) -> None:
    """SUCCESS, then ACTIVE_CONSUMER_CHANGE, then messages. The next active consumer begins at
    what is not acknowledged."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for sequence in range(4):
            await peer.send(b"%d" % sequence, sequence)
        assert (await peer.subscribe(1, subType=FAILOVER, priority_level=1)).type == Type.SUCCESS
        assert await active_change(peer) == (1, True)
        assert (await peer.subscribe(2, subType=FAILOVER, priority_level=2)).type == Type.SUCCESS
        assert await active_change(peer) == (2, False)
        for consumer in (1, 2):
            peer.write(command_frame("flow", consumer_id=consumer, messagePermits=100))
        messages = [(await peer.message())[0] for _ in range(4)]
        assert {message.consumer_id for message in messages} == {1}
        peer.write(requests.ack(1, [message.message_id for message in messages[:2]]))
        assert (await peer.subscribe(3, subType=FAILOVER, priority_level=0)).type == Type.SUCCESS
        assert [await active_change(peer) for _ in range(3)] == [(1, False), (2, False), (3, True)]
        peer.write(command_frame("flow", consumer_id=3, messagePermits=100))
        again = [(await peer.message())[0] for _ in range(2)]
        assert [(message.consumer_id, message.message_id.entryId) for message in again] == [
            (3, 2),
            (3, 3),
        ]
        assert {message.redelivery_count for message in again} == {0}

    await play(tmp_path, script, failover_delay_ms=50)


async def test_a_seek_disconnects_only_the_active_consumer(tmp_path: Path) -> None:
    """The one that stands by goes on at the new position with the permits it has given already."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        positions = [await peer.send(b"%d" % sequence, sequence) for sequence in range(4)]
        for consumer in (1, 2):
            await peer.subscribe(consumer, subType=FAILOVER, priority_level=consumer)
            await active_change(peer)
        for consumer in (1, 2):
            peer.write(command_frame("flow", consumer_id=consumer, messagePermits=100))
        for _ in range(4):
            await peer.message()
        peer.write(
            requests.seek(
                1, peer.next_request(), message_id=message_id_data(Position(*positions[2]))
            )
        )
        closed = await peer.answer(Type.CLOSE_CONSUMER)
        assert closed.close_consumer.consumer_id == 1
        # The seek is confirmed once it is durable; the next active consumer may have its
        # messages by then.
        answers = [await peer.answer() for _ in range(4)]
        assert sorted(found.type for found in answers) == sorted(
            [Type.SUCCESS, Type.ACTIVE_CONSUMER_CHANGE, Type.MESSAGE, Type.MESSAGE]
        )
        assert [
            found.message.message_id.entryId for found in answers if found.type == Type.MESSAGE
        ] == [2, 3]

    await play(tmp_path, script, failover_delay_ms=50)


async def subscribe_by_key(
    peer: Peer, consumer: int, ranges: tuple[tuple[int, int], ...] = (), *, unordered: bool = False
) -> int:
    """SUBSCRIBE as Key_Shared, sticky if ranges are given, and FLOW; the error code, or -1."""
    meta = api.KeySharedMeta(
        keySharedMode=api.STICKY if ranges else api.AUTO_SPLIT, allowOutOfOrderDelivery=unordered
    )
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    request = api.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=KEY_SHARED, consumer_id=consumer, request_id=peer.next_request(),
        consumer_name=f"c{consumer}", initialPosition=api.CommandSubscribe.Earliest, keySharedMeta=meta,
    )  # fmt: skip
    peer.write(requests.subscribe(request))
    answer = await peer.answer()
    if answer.type == Type.ERROR:
        return int(answer.error.error)
    assert answer.type == Type.SUCCESS
    peer.write(command_frame("flow", consumer_id=consumer, messagePermits=1000))
    return -1


async def publish_keys(peer: Peer, keys: list[str]) -> None:
    for sequence, key in enumerate(keys):
        peer.write(requests.send(1, sequence, entry(key.encode(), sequence, partition_key=key)))
    for _ in keys:
        await peer.answer(Type.SEND_RECEIPT)


def slot(key: str) -> int:
    return murmur3(key.encode()) % 65536 or 1


async def test_key_shared_sends_every_key_to_one_consumer_in_order(tmp_path: Path) -> None:
    """Three consumers between them get everything once; by the hashes the clients' suites
    compute themselves."""

    async def script(broker: Broker, peer: Peer) -> None:
        keys = [f"key-{number % 23}" for number in range(300)]
        for consumer in (1, 2, 3):
            assert await subscribe_by_key(peer, consumer) == -1
        async with open_peer(broker) as producing:
            await producing.produce()
            await publish_keys(producing, keys)
        given: dict[str, list[tuple[int, int]]] = {}
        for _ in keys:
            message, body = await peer.message()
            given.setdefault(keys[message.message_id.entryId], []).append(
                (message.consumer_id, message.message_id.entryId)
            )
            assert parse_entry(body).payload == keys[message.message_id.entryId].encode()
        for key, found in given.items():
            (consumer,) = {consumer for consumer, _ in found}
            # The second halves the first's range, the third takes the lower half of the lower half.
            expected = 3 if slot(key) <= 16384 else 2 if slot(key) <= 32768 else 1
            assert consumer == expected
            assert [number for _, number in found] == [
                number for number, known in enumerate(keys) if known == key
            ]
        assert await peer.is_quiet()

    await play(tmp_path, script, key_shared_consistent_hashing=0)


async def test_sticky_ranges_on_the_wire(tmp_path: Path) -> None:
    """Overlap is ConsumerAssignError, another policy ConsumerBusy; keys without a consumer
    wait until there is one."""

    async def script(broker: Broker, peer: Peer) -> None:
        keys = [f"key-{number}" for number in range(60)]
        await peer.produce()
        await publish_keys(peer, keys)
        assert await subscribe_by_key(peer, 1, ((0, 9999), (30000, 39999))) == -1
        host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        (shown,) = topic_stats(host)["subscriptions"]["s"]["consumers"]
        assert shown["keyHashRanges"] == ["[0, 9999]", "[30000, 39999]"]
        served = [
            n for n, key in enumerate(keys) if slot(key) <= 9999 or 30000 <= slot(key) <= 39999
        ]
        assert [(await peer.message())[0].message_id.entryId for _ in served] == served
        assert await subscribe_by_key(peer, 2, ((39999, 50000),)) == WireCode.CONSUMER_ASSIGN
        assert (
            await subscribe_by_key(peer, 2, ((40000, 50000),), unordered=True)
            == WireCode.CONSUMER_BUSY
        )
        assert await subscribe_by_key(peer, 2) == WireCode.CONSUMER_BUSY
        assert await peer.is_quiet()
        assert await subscribe_by_key(peer, 2, ((10000, 29999), (40000, 65535))) == -1
        others = [number for number in range(60) if number not in served]
        found = [(await peer.message())[0] for _ in others]
        assert [(message.consumer_id, message.message_id.entryId) for message in found] == [
            (2, number) for number in others
        ]

    await play(tmp_path, script)


async def test_a_key_that_moves_waits_for_its_acknowledgements(tmp_path: Path) -> None:
    """The newcomer gets the key only when its predecessor has acknowledged what it held of it."""

    async def script(broker: Broker, peer: Peer) -> None:
        key = next(f"key-{number}" for number in range(1000) if slot(f"key-{number}") < 32768)
        async with open_peer(broker) as producing:
            await producing.produce()
            await publish_keys(producing, [key] * 2)
            await subscribe_by_key(peer, 1)
            held = [(await peer.message())[0] for _ in range(2)]
            await subscribe_by_key(peer, 2)
            await publish_keys(producing, [key] * 2)
        assert await peer.is_quiet()
        peer.write(requests.ack(1, [held[0].message_id]))
        assert await peer.is_quiet()
        peer.write(requests.ack(1, [held[1].message_id]))
        moved = [(await peer.message())[0] for _ in range(2)]
        assert [(message.consumer_id, message.message_id.entryId) for message in moved] == [
            (2, 2),
            (2, 3),
        ]

    await play(tmp_path, script, key_shared_consistent_hashing=0)


async def test_a_dead_exclusive_consumer_makes_room(tmp_path: Path) -> None:
    """A peer that does not answer the PING is removed; one that does keeps its place."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.subscribe()
        async with open_peer(broker) as other:
            refused = asyncio.create_task(other.subscribe())
            await peer.answer(Type.PING)
            peer.write(command_frame("pong"))
            assert (await refused).error.error == WireCode.CONSUMER_BUSY
            assert (await other.subscribe()).type == Type.SUCCESS
            assert await peer.closed_by_broker()

    await play(tmp_path, script, liveness_check_s=2.0)


async def test_dead_sticky_ranges_are_free(tmp_path: Path) -> None:
    """So are the hashes of a peer that does not answer."""

    async def script(broker: Broker, peer: Peer) -> None:
        assert await subscribe_by_key(peer, 1, ((0, 99),)) == -1
        async with open_peer(broker) as other:
            assert await subscribe_by_key(other, 1, ((100, 199),)) == -1
            assert await subscribe_by_key(other, 2, ((50, 60),)) == -1
            assert await peer.closed_by_broker()

    await play(tmp_path, script, liveness_check_s=0.2)
