"""Memory for unfinished frames is bounded over all connections: who waits, who is dropped, and that
every honest frame arrives."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.connection_table import ConnectionTable
from magnetar.broker.connections.receive_room import GROWTH_BYTES_MIN, LOOK_S, SMALL_BYTES, Room
from magnetar.broker.ports import CommandService
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from magnetar.wire.commands import PING
from magnetar.wire.frames import READ_BUFFER_BYTES
from tests.support.brokers import SETTINGS
from tests.support.transports import Transport
from tests.support.virtual_time import VirtualLoop, run_virtually

MIB = 1 << 20
BYTES_MAX = 32 * MIB
FRAME = 5 * MIB
AT_ONCE = BYTES_MAX // 2 // FRAME
"""Frames that one address may be in the middle of."""
Command = api.BaseCommand.Type


class Service:
    """The disk keeps up."""

    def disk_is_behind(self) -> bool:
        return False


class Socket(Transport):
    """From an address."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    def get_extra_info(self, name: str, default: object = None) -> object:
        return (self._address, 1) if name == "peername" else super().get_extra_info(name, default)


class Line:
    """A connected peer, which sends PINGs that are as large as it likes."""

    def __init__(self, table: ConnectionTable, address: str) -> None:
        self.transport = Socket(address)
        self.connection = Connection(table, lambda: cast(CommandService, Service()))
        self.connection.connection_made(self.transport)
        self._unsent = b""
        self.send(requests.connect("test", 21))

    def send(self, data: bytes) -> None:
        """As much as is read; the rest goes with the next call."""
        data = self._unsent + data
        piece = memoryview(data)
        while piece and self.transport.state == "open" and self.transport.reading:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(piece))
            room[:count] = piece[:count]
            self.connection.buffer_updated(count)
            piece = piece[count:]
        self._unsent = bytes(piece)

    def begin(self, size: int = FRAME, sent: int = MIB) -> None:
        """Send the first bytes of a frame."""
        self.send(large_ping(size)[:sent])

    @property
    def pongs(self) -> int:
        return self.transport.kinds().count(Command.PONG)

    @property
    def reads(self) -> bool:
        return self.transport.state == "open" and self.transport.reading

    @property
    def room(self) -> int:
        return len(self.connection._inbound.data)

    def lose(self) -> None:
        self.transport.state = "closed"
        self.connection.connection_lost(None)


def large_ping(size: int) -> bytes:
    """A PING in a frame of that size, with a body that says nothing."""
    return (size - 4).to_bytes(4, "big") + PING[4:] + bytes(size - len(PING))


def run(scenario: Callable[[ConnectionTable], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        table = ConnectionTable(replace(SETTINGS, receive_bytes_max=BYTES_MAX))
        table.open_gate()
        await scenario(table)
        table.close()

    run_virtually(limited(), VirtualLoop())


def test_frames_beyond_the_share_of_an_address_wait_and_all_arrive() -> None:
    """Fifty peers are in the middle of a frame: a few hold the room at a time."""

    async def scenario(table: ConnectionTable) -> None:
        lines = [Line(table, "10.0.0.1") for _ in range(50)]
        for line in lines:
            line.begin()
        assert sum(line.reads for line in lines) == AT_ONCE
        for _ in range(len(lines)):
            for line in lines:
                line.send(bytes(FRAME - MIB) if line.reads and not line.pongs else b"")
            await asyncio.sleep(0)
            assert sum(line.room for line in lines) <= BYTES_MAX + BYTES_MAX // 2 + 50 * SMALL_BYTES
        assert [line.pongs for line in lines] == [1] * 50
        assert table.rooms.dropped == 0

    run(scenario)


def test_a_flood_of_large_frames_delays_no_other_address() -> None:
    async def scenario(table: ConnectionTable) -> None:
        flood = [Line(table, "10.0.0.66") for _ in range(100)]
        for line in flood:
            line.begin()
        honest = Line(table, "10.0.0.1")
        for _ in range(5):
            honest.send(large_ping(FRAME))
            await asyncio.sleep(0)
        assert honest.pongs == 5

    run(scenario)


def test_who_holds_room_without_sending_is_dropped_while_others_wait() -> None:
    """Those behind them get it after two looks, also when the flood uses all addresses it has."""

    async def scenario(table: ConnectionTable) -> None:
        flood = [Line(table, f"10.0.{number}.66") for number in range(BYTES_MAX // FRAME)]
        for line in flood:
            line.begin()
        honest = Line(table, "10.0.0.1")
        honest.send(large_ping(FRAME))
        assert not honest.reads
        for _ in range(2):
            await asyncio.sleep(LOOK_S)
            for line in flood:
                line.send(bytes(GROWTH_BYTES_MIN - 1))
        await asyncio.sleep(LOOK_S / 2)
        assert {line.transport.state for line in flood} == {"aborted"}
        for line in flood:
            line.lose()
        await asyncio.sleep(0)
        honest.send(b"")
        await asyncio.sleep(0)
        assert honest.pongs == 1
        assert table.rooms.dropped == len(flood)
        assert table.rooms.held_bytes == honest.room

    run(scenario)


def test_a_room_that_surprises_keeps_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a flood that holds all room, the look at the first fails each time: all others are
    dropped, and who waited gets through."""

    async def scenario(table: ConnectionTable) -> None:
        flood = [Line(table, f"10.0.{number}.66") for number in range(BYTES_MAX // FRAME)]
        for line in flood:
            line.begin()

        def surprising(room: Room) -> bool:
            if room is flood[0].connection._room:
                raise RuntimeError("unforeseen")
            return hardly_grows(room)

        hardly_grows = Room.hardly_grows
        monkeypatch.setattr(Room, "hardly_grows", surprising)
        honest = Line(table, "10.0.0.1")
        honest.send(large_ping(FRAME))
        assert not honest.reads
        await asyncio.sleep(2.5 * LOOK_S)
        assert [line.transport.state for line in flood] == ["open"] + ["aborted"] * (len(flood) - 1)
        for line in flood[1:]:
            line.lose()
        await asyncio.sleep(0)
        honest.send(b"")
        await asyncio.sleep(0)
        assert honest.pongs == 1
        assert table.surprises.counts["receive room"] == 2

    run(scenario)


def test_a_slow_frame_is_left_alone_where_it_goes_on_or_its_address_holds_little() -> None:
    """While others wait: one of the flood that sends enough, and a slow peer elsewhere."""

    async def scenario(table: ConnectionTable) -> None:
        flood = [Line(table, "10.0.0.66") for _ in range(AT_ONCE + 1)]
        for line in flood:
            line.begin()
        slow = Line(table, "10.0.0.1")
        slow.begin(sent=SMALL_BYTES * 2, size=MIB)
        for _ in range(5):
            await asyncio.sleep(LOOK_S)
            for line in flood:
                line.send(bytes(GROWTH_BYTES_MIN) if line.reads else b"")
            slow.send(b"\x00")
        assert slow.reads
        assert [line.reads for line in flood] == [True] * AT_ONCE + [False]
        assert table.rooms.dropped == 0

    run(scenario)


def test_nobody_is_dropped_while_there_is_room() -> None:
    """A slow link may take as long as keep-alive lets it."""

    async def scenario(table: ConnectionTable) -> None:
        line = Line(table, "10.0.0.1")
        line.begin()
        await asyncio.sleep(SETTINGS.keep_alive_s - 1)
        assert line.reads

    run(scenario)


def test_a_connection_that_ends_gives_its_room_and_its_place_back() -> None:
    async def scenario(table: ConnectionTable) -> None:
        lines = [Line(table, "10.0.0.1") for _ in range(AT_ONCE + 2)]
        for line in lines:
            line.begin()
        lines[-2].lose()
        lines[0].lose()
        await asyncio.sleep(0)
        lines[-1].send(bytes(FRAME - MIB))
        await asyncio.sleep(0)
        assert lines[-1].pongs == 1
        assert table.rooms.held_bytes > 0
        for line in lines:
            line.lose()
        assert table.rooms.held_bytes == 0

    run(scenario)


def test_large_reads_get_less_room_when_many_connections_have_it() -> None:
    """A burst makes a buffer grow to a megabyte; beyond the limit later ones stay small, and idle
    ones give theirs back."""

    async def scenario(table: ConnectionTable) -> None:
        lines = [Line(table, f"10.0.0.{number}") for number in range(100)]
        for line in lines:
            line.send(large_ping(300 << 10) * 8)
            await asyncio.sleep(0)
            assert line.pongs == 8
        rooms = [line.room for line in lines]
        assert rooms[0] == READ_BUFFER_BYTES
        assert sum(rooms) <= BYTES_MAX // 2 + READ_BUFFER_BYTES + 100 * SMALL_BYTES
        await asyncio.sleep(2 * LOOK_S)
        assert max(line.room for line in lines) <= SMALL_BYTES
        lines[-1].send(large_ping(300 << 10) * 8)
        assert lines[-1].room == READ_BUFFER_BYTES

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_any_frames_in_any_pieces_arrive_within_the_bound(seed: int) -> None:
    """Small, large and largest frames of thirty peers at four addresses, in pieces of any size."""
    chance = random.Random(seed)

    async def scenario(table: ConnectionTable) -> None:
        lines = [Line(table, f"10.0.0.{chance.randrange(4)}") for _ in range(30)]
        unsent, frames = dict.fromkeys(lines, b""), Counter[Line]()
        for line in lines:
            for _ in range(chance.randrange(1, 5)):
                size = chance.choice((100, 20 << 10, 50 << 10, 300 << 10, MIB, 2 * MIB, FRAME))
                unsent[line] += large_ping(chance.randrange(50, size))
                frames[line] += 1
        bound = BYTES_MAX + BYTES_MAX // 2 + READ_BUFFER_BYTES + len(lines) * SMALL_BYTES
        while unsent:
            line = chance.choice(list(unsent))
            count = chance.choice((1, 1000, 100_000, 3 * MIB))
            line.send(unsent[line][:count])
            unsent[line] = unsent[line][count:]
            if not unsent[line]:
                del unsent[line]
            await asyncio.sleep(0)
            assert sum(line.room for line in lines) <= bound
        for _ in range(100):
            for line in lines:
                line.send(b"")
            await asyncio.sleep(0.01)
        assert {line: line.pongs for line in lines} == frames
        assert table.rooms.dropped == 0

    run(scenario)


def test_a_size_that_no_frame_has_waits_for_nobody() -> None:
    """Frames before it take a turn of their own; then the connection ends."""

    async def scenario(table: ConnectionTable) -> None:
        line = Line(table, "10.0.0.1")
        line.send(PING * 200 + b"\xff\xff\xff\xff" + bytes(100))
        await asyncio.sleep(1)
        assert line.transport.state == "closed"

    run(scenario)
