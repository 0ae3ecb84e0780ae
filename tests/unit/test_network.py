"""The asyncio network's listener: real sockets on the loopback."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import pytest
import uvloop

from magnetar import network
from magnetar.network import ACCEPTED_IN_TURN, AsyncioNetwork

HOST = "127.0.0.1"
PEERS = 50


class _Taken(asyncio.BufferedProtocol):
    def __init__(self, note: Callable[[], None]) -> None:
        self._note = note

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._note()
        transport.close()

    def get_buffer(self, _size_hint: int) -> bytearray:
        return bytearray(64)


@pytest.mark.parametrize("loops", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_crowd_of_peers_is_let_in_a_few_in_a_turn(
    loops: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Others on the loop have their turns between them, and all come in."""

    async def scenario() -> None:
        turn, taken = 0, dict[int, int]()

        def note() -> None:
            taken[turn] = taken.get(turn, 0) + 1

        listener = await AsyncioNetwork().listen(HOST, 0, lambda: _Taken(note))
        peers = [socket.create_connection((HOST, listener.port)) for _ in range(PEERS)]
        async with asyncio.timeout(120):
            while sum(taken.values()) < PEERS:
                await asyncio.sleep(0)
                turn += 1
        assert max(taken.values()) <= ACCEPTED_IN_TURN
        listener.close()
        for peer in peers:
            peer.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(scenario())


async def test_a_process_without_descriptors_accepts_again_once_it_has_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who came concurrently waits; closing a listener that is about to try again ends that."""
    monkeypatch.setattr(network, "ACCEPT_RETRY_S", 0.01)

    came = asyncio.Event()
    listener = await AsyncioNetwork().listen(HOST, 0, lambda: _Taken(came.set))
    refused, accept = 0, socket.socket.accept

    def refusing(listening: socket.socket) -> tuple[socket.socket, object]:
        nonlocal refused
        if refused < 3:
            refused += 1
            raise OSError(24, os.strerror(24))
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", refusing)
    with socket.create_connection((HOST, listener.port)):
        async with asyncio.timeout(120):
            await came.wait()
    assert refused == 3
    refused = 0
    with socket.create_connection((HOST, listener.port)):
        async with asyncio.timeout(120):
            while not refused:
                await asyncio.sleep(0)
        listener.close()
        listener.close()
