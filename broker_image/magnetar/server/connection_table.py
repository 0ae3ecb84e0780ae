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
    from magnetar.server.connection import Connection


class ConnectionTable:
    """All connections of a broker, and the gate that keeps requests waiting until it is ready."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self._open: dict[Connection, None] = {}
        self.ready = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Raises LimitExceeded beyond `connections_max`."""
        if len(self._open) >= self.settings.connections_max:
            raise LimitExceeded(f"connections_max: {self.settings.connections_max} connections are open")
        self._open[connection] = None

    def remove(self, connection: Connection) -> None:
        self._open.pop(connection, None)

    def open_gate(self) -> None:
        """The broker is ready: let waiting requests through."""
        self.ready.set()

    def abort_all(self) -> None:
        """Drop every connection at once; nothing queued is sent."""
        for connection in list(self._open):
            connection.abort()
