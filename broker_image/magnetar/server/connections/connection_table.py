"""All connections of a broker.

Owns: how many there may be, and the gate that keeps their requests waiting until the broker is ready. Imports: asyncio, errors, settings.
Invariant: a connection is in the table from being made to being lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.errors import LimitExceeded
from magnetar.server.settings import BrokerSettings

if TYPE_CHECKING:
    from magnetar.server.connections.connection import Connection
    from magnetar.server.security.authentication import Authenticator
    from magnetar.server.security.handshakes import Handshakes


class ConnectionTable:
    """All connections of a broker, and the gate that keeps requests waiting until it is ready."""

    def __init__(self, settings: BrokerSettings, handshakes: Handshakes | None = None) -> None:
        """`handshakes` decides who is let in; None: everybody is, and may do everything."""
        self.settings, self.handshakes = settings, handshakes
        self._open: dict[Connection, None] = {}
        self.ready = asyncio.Event()

    @staticmethod
    def open_to(settings: BrokerSettings, security: Authenticator | None) -> ConnectionTable:
        """A table of connections whose peers `security` knows; None: of anybody's."""
        if security is None:
            return ConnectionTable(settings)
        from magnetar.server.security.handshakes import Handshakes

        return ConnectionTable(settings, Handshakes(security))

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Raises LimitExceeded beyond `connections_max`."""
        if len(self._open) >= self.settings.connections_max:
            raise LimitExceeded(f"connections_max: {self.settings.connections_max} connections are open")
        self._open[connection] = None

    def remove(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        if self.handshakes is not None:
            self.handshakes.forget(connection)

    def refused(self) -> int:
        """How many were not let in."""
        return self.handshakes.refused if self.handshakes is not None else 0

    def open(self) -> list[Connection]:
        """The connections of now."""
        return list(self._open)

    def open_gate(self) -> None:
        """The broker is ready: let waiting requests through."""
        self.ready.set()

    def abort_all(self) -> None:
        """Drop every connection at once; nothing queued is sent."""
        for connection in list(self._open):
            connection.abort()

    def close(self) -> None:
        """Drop every connection, for good."""
        self.abort_all()
        if self.handshakes is not None:
            self.handshakes.stop()
