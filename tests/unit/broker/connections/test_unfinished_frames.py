"""A peer in the middle of a frame has to go on with it, and what a large one needed is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.connection_table import ConnectionTable
from magnetar.broker.connections.heartbeat import FRAME_BYTES_PER_S_MIN
from magnetar.broker.connections.intake import RATE
from magnetar.broker.ports import CommandService
from magnetar.wire import requests
from magnetar.wire.commands import PING, PONG
from magnetar.wire.frames import READ_BUFFER_BYTES, START_BYTES
from tests.support.brokers import SETTINGS
from tests.support.transports import Transport, feed
from tests.support.virtual_time import VirtualLoop, run_virtually

KEEP_ALIVE_S = SETTINGS.keep_alive_s
LARGE = 4 << 20
FRAME = LARGE.to_bytes(4, "big") + (64).to_bytes(4, "big")
"""How a frame begins that has a command of 64 bytes."""


class Service:
    """The disk keeps up."""

    def disk_is_behind(self) -> bool:
        return False


def run(scenario: Callable[[Connection, Transport], Coroutine[Any, Any, None]]) -> None:
    """In virtual time, with a peer whose CONNECT was accepted."""

    async def connected() -> None:
        table, transport = ConnectionTable(SETTINGS), Transport()
        table.open_gate()
        connection = Connection(table, lambda: cast(CommandService, Service()))
        connection.connection_made(transport)
        feed(connection, transport, requests.connect("test", 21))
        await scenario(connection, transport)

    run_virtually(connected(), VirtualLoop())


@pytest.mark.parametrize("sent", [0, LARGE // 2])
def test_a_byte_every_few_seconds_is_no_sign_of_life(sent: int) -> None:
    """Whatever came of the frame before: each such peer could hold the room of a whole message."""

    async def scenario(connection: Connection, transport: Transport) -> None:
        feed(connection, transport, FRAME + bytes(sent))
        for _ in range(int(2 * KEEP_ALIVE_S / 5)):
            assert transport.state == "open"
            await asyncio.sleep(5)
            feed(connection, transport, b"\x00")
        await asyncio.sleep(5)
        assert transport.state == "aborted"

    run(scenario)


def test_a_slow_frame_that_goes_on_may_take_as_long_as_it_needs() -> None:
    async def scenario(connection: Connection, transport: Transport) -> None:
        feed(connection, transport, FRAME)
        for _ in range(int(10 * KEEP_ALIVE_S)):
            await asyncio.sleep(1)
            feed(connection, transport, bytes(FRAME_BYTES_PER_S_MIN))
        assert transport.state == "open"

    run(scenario)


def test_frames_that_end_may_come_in_bytes() -> None:
    """Each look finds half a frame, of which nothing came at the look before."""

    async def scenario(connection: Connection, transport: Transport) -> None:
        half = len(PING) // 2
        feed(connection, transport, PONG[:half])
        for _ in range(10):
            await asyncio.sleep(KEEP_ALIVE_S)
            feed(connection, transport, PONG[half:])
            await asyncio.sleep(0)
            feed(connection, transport, PONG[:half])
        assert transport.state == "open"

    run(scenario)


def test_a_peer_that_was_not_read_is_excused() -> None:
    """It could send nothing; from then on it has to go on."""

    async def scenario(connection: Connection, transport: Transport) -> None:
        feed(connection, transport, FRAME)
        await asyncio.sleep(KEEP_ALIVE_S + 1)
        connection.hold_reading(RATE)
        await asyncio.sleep(3 * KEEP_ALIVE_S - 2)
        connection.resume_reading(RATE)
        await asyncio.sleep(2)
        feed(connection, transport, b"\x00")
        assert transport.state == "open"
        await asyncio.sleep(KEEP_ALIVE_S)
        assert transport.state == "aborted"

    run(scenario)


def test_an_idle_connection_gives_its_buffer_back() -> None:
    """A burst makes it grow to a megabyte, which ten thousand idle peers would keep."""

    async def scenario(connection: Connection, transport: Transport) -> None:
        buffer = connection._inbound
        burst = (len(PONG) - 4 + (300 << 10)).to_bytes(4, "big") + PONG[4:] + bytes(300 << 10)
        feed(connection, transport, burst)
        assert len(buffer.data) == READ_BUFFER_BYTES
        feed(connection, transport, PONG[:5])
        await asyncio.sleep(KEEP_ALIVE_S)
        assert len(buffer.data) == START_BYTES  # the part of a frame that lay in it has moved
        feed(connection, transport, PONG[5:] + PING)
        await asyncio.sleep(0)
        assert transport.commands()[-1].HasField("pong")
        assert transport.state == "open"

    run(scenario)
