"""Peers that do not read, through real sockets: they are dropped, and nobody else waits for
them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.broker.connections.slow_peer import HOLD_FACTOR
from magnetar.names import TopicName
from tests.support.brokers import Peer, Type, command_frame, connected_peer, open_peer

LIMIT = 64 << 10
WAIT_S = 120.0


async def flood(peer: Peer, question: bytes) -> None:
    """Ask without ever reading, until the broker ends the connection."""
    try:
        while True:
            peer.write(question * 10)
            await peer.writer.drain()
    except ConnectionError:
        return


@pytest.mark.slow
async def test_a_flood_of_questions_without_reading_ends_the_connection_alone(
    tmp_path: Path,
) -> None:
    """What waits for the peer stays bounded (questions are not even read any more), and a
    neighbour is answered all the time."""

    async with (
        connected_peer(
            tmp_path, write_buffer_bytes_max=LIMIT, slow_peer_s=0.3, keep_alive_s=WAIT_S
        ) as (broker, neighbour),
        open_peer(broker, receive_buffer_bytes=4096) as slow,
    ):
        await neighbour.lookup("t" * 500)
        question = command_frame("lookup", topic="t" * 500, request_id=1) + command_frame(
            "consumer_stats", consumer_id=1, request_id=2
        )
        flooding = asyncio.create_task(flood(slow, question))
        highest = 0
        try:
            async with asyncio.timeout(WAIT_S):
                while not flooding.done():
                    assert (
                        await neighbour.ask("consumer_stats", consumer_id=9)
                    ).type == Type.CONSUMER_STATS_RESPONSE
                    highest = max(
                        highest,
                        *(connection._outbound.size for connection in broker._connections._open),
                    )
        finally:
            flooding.cancel()
        # One turn of the loop may answer what one read brought, and requests that are under
        # way.
        assert highest < HOLD_FACTOR * LIMIT + (4 << 20), highest
        assert len(broker._connections) == 1


async def test_large_lists_wait_until_the_peer_reads(tmp_path: Path) -> None:
    """Who asks for three thousand lists and reads late gets all of them, and they do not pile up
    concurrently."""

    async with connected_peer(tmp_path, write_buffer_bytes_max=LIMIT) as (broker, peer):
        for number in range(10):
            name = f"persistent://public/default/{'n' * 200}-{number}"
            await peer.lookup(name)
            await broker.service.open_topic(TopicName.parse(name), create=True)
        asked = [
            command_frame("get_topics_of_namespace", namespace="public/default", request_id=number)
            for number in range(3000)
        ]
        peer.write(b"".join(asked))
        answered: set[int] = set()
        while len(answered) < len(asked):
            found = (
                await peer.answer(Type.GET_TOPICS_OF_NAMESPACE_RESPONSE)
            ).get_topics_of_namespace_response
            assert len(found.topics) == 10
            answered.add(found.request_id)
        assert answered == set(range(3000))
