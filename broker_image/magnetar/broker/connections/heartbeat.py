"""Whether a peer is still there.

Owns: keep-alive of one connection, and two checks on demand: whether the peer answers, and when it
has read what was sent. Imports: asyncio, wire, settings. Invariants: silence counts only while the
peer is read; bytes that may have arrived while it was not count as a sign of life; a few bytes of a
frame that does not end are none, or a peer could hold the room of a large one for as long as it
likes; a peer answers PINGs in order, behind its earlier commands, and commands are handled in order.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, cast

import structlog

from magnetar.wire import commands

if TYPE_CHECKING:
    from magnetar.broker.connections.receive_room import Room
    from magnetar.broker.ports import ClientConnection

log = structlog.get_logger(__name__)

FRAME_BYTES_PER_S_MIN = 1024
"""Of a peer in the middle of a frame, over an interval of keep-alive."""


class Heartbeat:
    """PINGs of one connection, and its end if no answer comes."""

    __slots__ = (
        "_answered", "_asked", "_connection", "_probe", "_readers", "_received", "_room",
        "_timer",
    )  # fmt: skip

    def __init__(self, connection: ClientConnection, room: Room) -> None:
        self._connection = cast("ClientConnection", weakref.proxy(connection))  # as `SlowPeer`'s
        self._room = room
        self._received = True
        self._asked = self._answered = 0
        self._readers: dict[int, asyncio.Future[None]] = {}
        """Futures by the number of the PING whose answer resolves them."""
        self._probe: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The connection is open: CONNECT is due within `connect_timeout_s`, and then something
        within every `keep_alive_s`."""
        self._wait(
            min(self._connection.settings.connect_timeout_s, self._connection.settings.keep_alive_s)
        )

    def admitted(self) -> None:
        """CONNECT was accepted: `keep_alive_s` applies."""
        self.end()
        self._wait(self._connection.settings.keep_alive_s)

    def _wait(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._answer_readers(self._asked)

    def _ping(self) -> int:
        self._asked += 1
        self._connection.queue(commands.PING)
        return self._asked

    def ponged(self) -> None:
        self._answered = min(self._answered + 1, self._asked)
        if self._readers:
            self._answer_readers(self._answered)

    def _answer_readers(self, number: int) -> None:
        for asked in [asked for asked in self._readers if asked <= number]:
            reader = self._readers.pop(asked)
            if not reader.done():
                reader.set_result(None)

    def has_read(self) -> asyncio.Future[None]:
        """Done when the peer has read what is queued to it now, and what it said before that is
        handled; or when the connection is over."""
        reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._connection.closed:
            reader.set_result(None)
        else:
            self._readers[self._ping()] = reader
        return reader

    def received(self) -> None:
        """Bytes have arrived, or may have while the peer was not read."""
        self._received = True
        if self._probe is not None:
            self.answer()

    def answer(self) -> None:
        """End the probe under way."""
        probe, self._probe = self._probe, None
        if probe is not None and not probe.done():
            probe.set_result(None)

    async def answers(self) -> bool:
        """Whether the peer says anything within `liveness_check_s` of a PING, or is not read."""
        connection, silent_s = self._connection, self._connection.settings.liveness_check_s
        if not connection.closed and connection.listens:
            if self._probe is None:
                self._probe = asyncio.get_running_loop().create_future()
                self._ping()
            try:
                async with asyncio.timeout(silent_s):
                    await asyncio.shield(self._probe)
                return not connection.closed
            except TimeoutError:
                if connection.listens:
                    log.info("connection.dead", peer=connection.peer, silent_s=silent_s)
                    return False
        return not connection.closed  # if it is not read its answer may lie there

    def _look(self) -> None:
        """A peer that has not sent CONNECT in time, or nothing since the last PING, is gone."""
        connection = self._connection
        if not connection.connected or (connection.listens and not self._received):
            log.info(
                "connection.keep_alive_failed", peer=connection.peer, connected=connection.connected
            )
            connection.abort()
            return
        least = int(FRAME_BYTES_PER_S_MIN * connection.settings.keep_alive_s)
        if self._room.inbound.trickles(least) and connection.listens:
            log.info("connection.too_slow", peer=connection.peer, bytes_min=least)
            connection.abort()
            return
        self._room.give_back()
        self._received = False
        self._ping()
        self._wait(connection.settings.keep_alive_s)
