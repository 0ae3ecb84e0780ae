"""One connection, frame by frame through a transport that only remembers: handshake, keep-alive,
malformed input, writes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest
import structlog

from magnetar.broker.commands.service import BrokerService
from magnetar.broker.commands.sessions import ConsumerSession
from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.connection_table import ConnectionTable
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import SETTINGS, Type, command_frame, entry
from tests.support.transports import Transport, feed
from tests.support.virtual_time import VirtualLoop, run_virtually

CONNECT = requests.connect("test", 21)
PING, PONG = command_frame("ping"), command_frame("pong")
KEEP_ALIVE_S = SETTINGS.keep_alive_s


class Disk:
    """Of the service only what a connection asks before it reads: whether the disk keeps up;
    commands that reach it are noted."""

    def __init__(self) -> None:
        self.behind = False
        self.waiting: list[Callable[[], None]] = []
        self.asked: list[api.BaseCommand] = []

    def handle(self, _connection: Connection, command: api.BaseCommand) -> None:
        self.asked.append(command)

    def disk_is_behind(self) -> bool:
        return self.behind

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        self.waiting.append(resume)


class Line:
    """A connection and its transport; what it is fed is handled before `feed` returns."""

    def __init__(self, table: ConnectionTable | None = None, *, ready: bool = True) -> None:
        self.transport = Transport()
        # an empty table is false
        self.table = table if table is not None else ConnectionTable(SETTINGS)
        self.disk = Disk()
        if ready:
            self.table.open_gate()
        self.connection = Connection(self.table, lambda: cast(BrokerService, self.disk))
        self.connection.connection_made(self.transport)

    async def feed(self, data: bytes, *, pieces: tuple[int, ...] = ()) -> None:
        """Bytes from the peer, split after each offset of `pieces`."""
        for low, high in zip((0, *pieces), (*pieces, len(data)), strict=True):
            feed(self.connection, self.transport, data[low:high])
        await asyncio.sleep(0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in virtual time, so that keep-alives need no waiting."""
    run_virtually(scenario(), VirtualLoop())


def test_a_lost_connection_goes_without_a_collection() -> None:
    """Peers that come and go by the ten thousand leave nothing to the garbage collector, whose
    turns everybody waits for."""

    async def scenario() -> None:
        connection, transport = (
            Connection(ConnectionTable(SETTINGS), lambda: cast(BrokerService, Disk())),
            Transport(),
        )
        connection.connection_made(transport)
        connection.slow.begin()
        connection.connection_lost(None)
        lost = weakref.ref(connection)
        gc.disable()
        try:
            del connection, transport
            assert lost() is None
        finally:
            gc.enable()

    run(scenario)


def test_connected_announces_the_limit_and_the_lower_version() -> None:
    """CONNECTED answers CONNECT, with the message size and a protocol version that both sides
    know."""

    async def scenario() -> None:
        line = Line()
        await line.feed(requests.connect("old", 12))
        [command] = line.transport.commands()
        assert command.type == Type.CONNECTED
        assert command.connected.protocol_version == 12
        assert command.connected.max_message_size == SETTINGS.max_message_bytes
        assert command.connected.server_version.startswith("Pulsar Server")
        assert line.connection.client_version == "old"

    run(scenario)


def test_ping_before_the_handshake_is_not_answered() -> None:
    """It neither counts as a handshake nor ends the connection."""

    async def scenario() -> None:
        line = Line()
        await line.feed(PING + PONG)
        assert (line.transport.state, line.transport.commands()) == ("open", [])
        await line.feed(CONNECT + PING)
        assert line.transport.kinds() == [Type.CONNECTED, Type.PONG]

    run(scenario)


@pytest.mark.parametrize(
    "first", [command_frame("lookup", topic="t", request_id=1), requests.send(1, 0, entry(b"x"))]
)
def test_the_first_command_must_be_connect(first: bytes) -> None:
    """Anything before the handshake ends the connection without an answer."""

    async def scenario() -> None:
        line = Line()
        await line.feed(first)
        assert (line.transport.state, line.transport.commands()) == ("closed", [])

    run(scenario)


@pytest.mark.parametrize("theirs", [0, 1, 12, 20, 21, 22, 2**31 - 1])
def test_the_lower_version_is_agreed_on(theirs: int) -> None:
    """min(ours, theirs), however old or new the client is."""

    async def scenario() -> None:
        line = Line()
        await line.feed(requests.connect("Pulsar-CPP-v4.2.0", theirs))
        [command] = line.transport.commands()
        assert command.connected.protocol_version == min(21, theirs)
        flags = command.connected.feature_flags
        assert flags.supports_topic_watchers
        assert flags.supports_get_partitioned_metadata_without_auto_creation
        assert flags.supports_topic_watcher_reconcile

    run(scenario)


def test_an_unknown_authentication_method_is_anonymous() -> None:
    """No authentication is configured: whatever a client brings, it is nobody in particular, as
    with Pulsar."""

    async def scenario() -> None:
        line = Line()
        await line.feed(requests.connect("c", 21, auth_method="unknown", auth_data=b"x"))
        assert line.transport.kinds() == [Type.CONNECTED]

    run(scenario)


def test_a_peer_that_does_not_read_is_paused_and_then_dropped() -> None:
    """Beyond four full buffers it is not read any more; when it reads it is again; after
    `slow_peer_s` without reading it is gone."""

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        line.transport.unsent = SETTINGS.write_buffer_bytes_max + 1
        line.connection.pause_writing()
        await asyncio.sleep(1)
        assert line.transport.reading, "a full buffer alone is no reason"
        line.transport.unsent = 4 * SETTINGS.write_buffer_bytes_max + 1
        await asyncio.sleep(1)
        assert not line.transport.reading
        line.transport.unsent = 0
        line.connection.resume_writing()
        assert line.transport.reading
        await line.feed(PING)
        assert line.transport.kinds()[-1] == Type.PONG
        line.transport.unsent = SETTINGS.write_buffer_bytes_max + 1
        line.connection.pause_writing()
        for _ in range(int(SETTINGS.slow_peer_s // KEEP_ALIVE_S) + 1):
            await asyncio.sleep(KEEP_ALIVE_S - 1)
            await line.feed(PONG)  # it is alive, it only does not read
        await asyncio.sleep(KEEP_ALIVE_S - 1)
        assert line.transport.state == "aborted"

    run(scenario)


def test_connect_is_accepted_once() -> None:
    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT + CONNECT)
        assert (line.transport.state, line.transport.kinds()) == ("closed", [Type.CONNECTED])

    run(scenario)


def test_ping_is_answered_and_commands_of_the_future_are_passed_over() -> None:
    """A type number that this version does not know is no reason to close."""

    async def scenario() -> None:
        line = Line()
        unknown = b"\x08\xe8\x07"  # type = 1000
        frame = (len(unknown) + 4).to_bytes(4, "big") + len(unknown).to_bytes(4, "big") + unknown
        await line.feed(CONNECT + PING + frame + PING)
        assert line.transport.kinds() == [Type.CONNECTED, Type.PONG, Type.PONG]
        assert line.transport.state == "open"

    run(scenario)


@pytest.mark.parametrize(
    "damage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x20xxxx",
        b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff",
        (SETTINGS.max_message_bytes + (1 << 20)).to_bytes(4, "big"),
        requests.send(7, 0, entry(b"x")),
    ],
    ids=[
        "http",
        "size -1",
        "size 0",
        "command beyond frame",
        "no protobuf",
        "too large",
        "SEND of no producer",
    ],
)
def test_malformed_input_closes_only_its_own_connection(damage: bytes) -> None:
    """What was good before it is answered, nothing after it is read, and the neighbour does not
    notice."""

    async def scenario() -> None:
        table = ConnectionTable(SETTINGS)
        line, neighbour = Line(table), Line(table)
        await neighbour.feed(CONNECT)
        await line.feed(CONNECT + PING + damage + PING)
        assert line.transport.kinds() == [Type.CONNECTED, Type.PONG]
        assert line.transport.state == "closed"
        line.connection.connection_lost(None)
        assert len(table) == 1
        await neighbour.feed(PING)
        assert neighbour.transport.kinds() == [Type.CONNECTED, Type.PONG]

    run(scenario)


def test_a_stream_may_be_split_at_every_byte() -> None:
    """Two reads with any border between them, and single bytes, give what one read gives."""
    stream = CONNECT + PING + command_frame("flow", consumer_id=3, messagePermits=10) + PONG + PING

    async def scenario() -> None:
        whole = Line()
        await whole.feed(stream)
        expected = whole.transport.kinds()
        assert expected == [Type.CONNECTED, Type.PONG, Type.PONG]
        for border in range(1, len(stream)):
            line = Line()
            await line.feed(stream, pieces=(border,))
            assert line.transport.kinds() == expected, border
        line = Line()
        await line.feed(stream, pieces=tuple(range(1, len(stream))))
        assert line.transport.kinds() == expected

    run(scenario)


def test_everything_of_one_turn_leaves_in_one_write() -> None:
    """However many commands one read brings, their answers cost one write."""

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT + PING * 50)
        assert len(line.transport.writes) == 1
        assert line.transport.kinds() == [Type.CONNECTED] + [Type.PONG] * 50
        await line.feed(PING)
        assert len(line.transport.writes) == 2

    run(scenario)


def test_a_closed_connection_sends_what_it_had_queued_and_nothing_more() -> None:
    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        line.connection.queue(PING)
        line.connection.close()
        line.connection.queue(PING)
        await asyncio.sleep(0)
        assert line.transport.kinds() == [Type.CONNECTED, Type.PING]
        assert line.transport.state == "closed"

    run(scenario)


def test_an_aborted_connection_sends_nothing() -> None:
    """A fenced broker's last words must not leave it."""

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        line.connection.queue(PING)
        line.table.abort_all()
        await asyncio.sleep(0)
        assert (line.transport.kinds(), line.transport.state) == ([Type.CONNECTED], "aborted")

    run(scenario)


def test_a_silent_peer_is_asked_and_then_dropped() -> None:
    """PING after one interval silently, the end after another."""

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        await asyncio.sleep(KEEP_ALIVE_S + 1)
        assert line.transport.kinds() == [Type.CONNECTED, Type.PING]
        await asyncio.sleep(KEEP_ALIVE_S)
        assert line.transport.state == "aborted"

    run(scenario)


@pytest.mark.parametrize(
    "sign_of_life", [PONG, PING, command_frame("flow", consumer_id=1, messagePermits=1)]
)
def test_any_command_is_a_sign_of_life(sign_of_life: bytes) -> None:
    """A peer that answers, or says anything else, stays."""

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        for _ in range(5):
            await asyncio.sleep(KEEP_ALIVE_S - 1)
            await line.feed(sign_of_life)
        assert line.transport.state == "open"

    run(scenario)


def test_a_peer_that_never_shakes_hands_is_dropped() -> None:
    """Half a CONNECT holds a connection no longer than one interval."""

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT[:-1])
        await asyncio.sleep(KEEP_ALIVE_S + 1)
        assert line.transport.state == "aborted"

    run(scenario)


def test_one_session_that_cannot_be_dropped_keeps_none_of_the_others() -> None:
    """An exclusive consumer that nobody detaches would keep its successors out until the broker
    ends."""

    class Detached:
        def __init__(self, *, fails: bool = False) -> None:
            self.closed, self.fails, self.left = False, fails, False

        def detach(self) -> None:
            self.left = True
            if self.fails:
                raise TypeError("cannot be sorted")

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        consumers = [Detached(), Detached(fails=True), Detached()]
        line.connection.sessions.consumers.update(enumerate(cast(list[ConsumerSession], consumers)))
        with structlog.testing.capture_logs() as logged:
            line.connection.connection_lost(None)
        assert [(consumer.left, consumer.closed) for consumer in consumers] == [(True, True)] * 3
        assert [line["event"] for line in logged if line["log_level"] == "error"] == [
            "connection.session_not_dropped"
        ]

    run(scenario)


def test_connections_beyond_the_limit_are_dropped_at_once() -> None:
    """The limit counts what is open: a place that was given up can be taken again. Connections
    that sent CONNECT make room for nobody."""

    async def scenario() -> None:
        table = ConnectionTable(replace(SETTINGS, connections_max=2))
        first, second = Line(table), Line(table)
        for line in (first, second):
            await line.feed(CONNECT)
        third = Line(table)
        assert [line.transport.state for line in (first, second, third)] == [
            "open",
            "open",
            "aborted",
        ]
        third.connection.connection_lost(None)
        first.connection.connection_lost(None)
        assert Line(table).transport.state == "open"

    run(scenario)


def test_silent_connections_make_room_and_have_little_time() -> None:
    """The oldest that has not sent CONNECT goes for a new one; all of them after
    `connect_timeout_s`."""

    async def scenario() -> None:
        table = ConnectionTable(replace(SETTINGS, connections_unauthenticated_max=2))
        first, second, third = Line(table), Line(table), Line(table)
        assert [line.transport.state for line in (first, second, third)] == [
            "aborted",
            "open",
            "open",
        ]
        await third.feed(CONNECT)
        await asyncio.sleep(SETTINGS.connect_timeout_s + 0.1)
        assert [line.transport.state for line in (second, third)] == ["aborted", "open"]

    run(scenario)


def test_frames_before_connect_are_small_and_large_ones_may_follow_it_at_once() -> None:
    """A peer without credentials announces no 5 MB; what stands behind its CONNECT in one read
    is judged by the limit of afterwards."""

    async def scenario() -> None:
        large = command_frame("lookup", topic="t" * 100_000, request_id=1)
        line = Line()
        await line.feed(large[:1000])
        assert line.transport.state == "closed"
        line = Line()
        await line.feed(CONNECT + large[:1000])
        assert line.transport.state == "open"
        await line.feed(large[1000:])
        assert [asked.lookup.request_id for asked in line.disk.asked] == [1]

    run(scenario)


def test_requests_wait_until_the_broker_is_ready_but_not_without_limit() -> None:
    """Before the gate opens a request waits; beyond as many as may wait nothing is read, and
    nobody is dropped or passed over."""

    async def scenario() -> None:
        table = ConnectionTable(replace(SETTINGS, requests_per_connection_max=3))
        line = Line(table, ready=False)
        lookups = b"".join(
            command_frame("lookup", topic="t", request_id=number) for number in range(8)
        )
        await line.feed(CONNECT + lookups + PING)
        assert (line.transport.kinds(), line.transport.state) == ([Type.CONNECTED], "open")
        assert not line.transport.reading
        assert len(line.connection._requests) == 3
        table.open_gate()
        for _ in range(20):
            await asyncio.sleep(0)
        assert line.transport.reading
        assert [asked.lookup.request_id for asked in line.disk.asked] == list(range(8))
        assert line.transport.kinds()[-1] == Type.PONG
        line.connection.connection_lost(None)
        await asyncio.sleep(0)

    run(scenario)


def test_a_peer_is_not_read_while_the_disk_is_behind() -> None:
    """What was read already is kept and handled when the disk has caught up, before anything
    newer, and nothing is lost."""

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        line.disk.behind = True
        await line.feed(PING * 3 + PING[:5])
        assert not line.transport.reading
        assert line.transport.kinds() == [Type.CONNECTED]
        line.disk.behind = False
        [resume] = line.disk.waiting
        resume()
        await asyncio.sleep(0)
        assert line.transport.reading
        assert line.transport.kinds() == [Type.CONNECTED] + [Type.PONG] * 3
        await line.feed(PING[5:])
        assert line.transport.kinds() == [Type.CONNECTED] + [Type.PONG] * 4

    run(scenario)


def test_a_peer_that_is_not_read_is_not_taken_for_dead() -> None:
    """However long the disk is behind; what it said concurrently counts when it is read again, and
    from then on it has to speak."""

    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        probe = asyncio.create_task(line.connection.is_alive())
        await asyncio.sleep(0)
        line.disk.behind = True
        await line.feed(PING)
        assert not line.transport.reading
        assert await line.connection.is_alive()
        await asyncio.sleep(5 * KEEP_ALIVE_S + 1)
        assert await probe, "it was asked just before, and its answer may lie unread"
        assert line.transport.state == "open"
        line.disk.behind = False
        [resume] = line.disk.waiting
        resume()
        await asyncio.sleep(KEEP_ALIVE_S - 2)
        assert line.transport.state == "open"
        await asyncio.sleep(2 * KEEP_ALIVE_S)
        assert line.transport.state == "aborted"

    run(scenario)


def test_a_connection_that_ends_while_it_is_paused_stays_ended() -> None:
    async def scenario() -> None:
        line = Line()
        await line.feed(CONNECT)
        line.disk.behind = True
        await line.feed(PING)
        line.transport.close()
        line.connection.connection_lost(None)
        line.disk.waiting[0]()
        await asyncio.sleep(0)
        assert line.transport.kinds() == [Type.CONNECTED]
        assert not line.transport.reading

    run(scenario)
