"""A peer that does not read.

Owns: what happens between a full write buffer and its being drained: hold reading, wait, abort.
Imports: asyncio, settings. Invariants: what is queued to one peer is bounded: beyond
`write_buffer_bytes_max` it gets no messages, beyond four times that it is not read either, so that
it can ask for nothing more; a peer that has taken too little for `slow_peer_s` is dropped.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, cast

import structlog

from magnetar.broker.connections.intake import PEER

if TYPE_CHECKING:
    from magnetar.broker.connections.outbound import Outbound
    from magnetar.broker.ports import ClientConnection

log = structlog.get_logger(__name__)

LOOK_S = 0.05
HOLD_FACTOR = 4


class SlowPeer:
    """Watches one connection while its write buffer is full."""

    __slots__ = ("_connection", "_outbound", "_since", "_timer", "_writable")

    def __init__(self, connection: ClientConnection, outbound: Outbound) -> None:
        self._outbound = outbound
        self._connection = cast(
            "ClientConnection", weakref.proxy(connection)
        )  # the connection owns this; a cycle would keep a lost one until a collection
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._writable: asyncio.Event | None = None

    def begin(self) -> None:
        """The write buffer is full."""
        self._since = asyncio.get_running_loop().time()
        self._arm()

    def end(self) -> None:
        """The write buffer has been drained, or the connection is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        self._connection.resume_reading(PEER)

    async def writable(self) -> None:
        """Wait until the write buffer is drained: for large answers."""
        while not self._connection.writable:
            if self._writable is None:
                self._writable = asyncio.Event()
            await self._writable.wait()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        connection, settings = self._connection, self._connection.settings
        waiting = self._outbound.size
        if asyncio.get_running_loop().time() - self._since > settings.slow_peer_s:
            log.warning(
                "connection.slow_peer",
                peer=connection.peer,
                unsent_bytes=waiting,
                seconds=settings.slow_peer_s,
            )
            connection.abort()
            return
        if waiting > HOLD_FACTOR * settings.write_buffer_bytes_max:
            connection.hold_reading(PEER)
        self._arm()
