"""Failover and Key_Shared on the wire: what each of several consumers on real sockets is told, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from magnetar.server.broker import Broker
from magnetar.wire import requests
from magnetar.wire.commands import Position, message_id_data
from tests.unit.server.brokers import Peer, Type, command_frame, connected_peer

Script = Callable[[Broker, Peer], Coroutine[Any, Any, None]]
FAILOVER = 2


def play(directory: Path, script: Script, **settings: Any) -> None:
    """Run `script` with a broker that owns TOPIC's bundle, and one peer."""

    async def main() -> None:
        async with connected_peer(directory, **settings) as (broker, peer):
            await script(broker, peer)

    asyncio.run(main())


async def told(peer: Peer) -> tuple[int, bool]:
    """The next command, which must tell a consumer whether it is active."""
    change = (await peer.answer(Type.ACTIVE_CONSUMER_CHANGE)).active_consumer_change
    return change.consumer_id, change.is_active


def test_failover_tells_everybody_after_success_and_delivers_to_the_active_one(tmp_path: Path) -> None:
    """SUCCESS, then the news, then messages; the one that takes over begins at what is not acknowledged."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        for sequence in range(4):
            await peer.send(b"%d" % sequence, sequence)
        assert (await peer.subscribe(1, subType=FAILOVER, priority_level=1)).type == Type.SUCCESS
        assert await told(peer) == (1, True)
        assert (await peer.subscribe(2, subType=FAILOVER, priority_level=2)).type == Type.SUCCESS
        assert await told(peer) == (2, False)
        for consumer in (1, 2):
            peer.write(command_frame("flow", consumer_id=consumer, messagePermits=100))
        messages = [(await peer.message())[0] for _ in range(4)]
        assert {message.consumer_id for message in messages} == {1}
        peer.write(requests.ack(1, [message.message_id for message in messages[:2]]))
        assert (await peer.subscribe(3, subType=FAILOVER, priority_level=0)).type == Type.SUCCESS
        assert [await told(peer) for _ in range(3)] == [(1, False), (2, False), (3, True)]
        peer.write(command_frame("flow", consumer_id=3, messagePermits=100))
        again = [(await peer.message())[0] for _ in range(2)]
        assert [(message.consumer_id, message.message_id.entryId) for message in again] == [(3, 2), (3, 3)]
        assert {message.redelivery_count for message in again} == {0}

    play(tmp_path, script, failover_delay_ms=50)


def test_a_seek_disconnects_only_the_active_consumer(tmp_path: Path) -> None:
    """The one that stands by goes on at the new position with the permits it has given already."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce()
        positions = [await peer.send(b"%d" % sequence, sequence) for sequence in range(4)]
        for consumer in (1, 2):
            await peer.subscribe(consumer, subType=FAILOVER, priority_level=consumer)
            await told(peer)
        for consumer in (1, 2):
            peer.write(command_frame("flow", consumer_id=consumer, messagePermits=100))
        for _ in range(4):
            await peer.message()
        peer.write(requests.seek(1, peer.next_request(), message_id=message_id_data(Position(*positions[2]))))
        closed = await peer.answer(Type.CLOSE_CONSUMER)
        assert closed.close_consumer.consumer_id == 1
        assert {(await peer.answer()).type for _ in range(2)} == {Type.SUCCESS, Type.ACTIVE_CONSUMER_CHANGE}
        assert [(await peer.message())[0].message_id.entryId for _ in range(2)] == [2, 3]

    play(tmp_path, script, failover_delay_ms=50)
