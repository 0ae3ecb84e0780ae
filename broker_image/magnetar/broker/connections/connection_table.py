"""All connections of a broker.

Owns: how many there may be, and the gate that keeps their requests waiting until the broker is
ready. Imports: asyncio, settings, peer_budget. Invariant: a connection is in the table from being
made to being lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.connections.receive_room import Rooms
from magnetar.hosting.background import Surprises
from magnetar.hosting.peer_budget import PeerBudget
from magnetar.hosting.settings import BrokerSettings

if TYPE_CHECKING:
    from magnetar.broker.ports import ClientConnection
    from magnetar.hosting.security.authentication import Authenticator
    from magnetar.hosting.security.handshakes import Handshakes

log = structlog.get_logger(__name__)


class ConnectionTable:
    """All connections of a broker, and the gate that keeps requests waiting until it is ready."""

    def __init__(
        self,
        settings: BrokerSettings,
        handshakes: Handshakes | None = None,
        surprises: Surprises | None = None,
    ) -> None:
        """`handshakes` authenticates clients; None: all are accepted, with every right."""
        self.settings, self.handshakes = settings, handshakes
        self.surprises = surprises or Surprises()
        self.rooms = Rooms(settings.receive_bytes_max, self.surprises)
        self._open: dict[ClientConnection, None] = {}
        self.budget: PeerBudget[ClientConnection] = PeerBudget(
            "connections_max",
            most=settings.connections_max,
            group_max=settings.connections_per_address_max,
            unknown_max=settings.connections_unauthenticated_max,
        )
        self.ready = asyncio.Event()

    @staticmethod
    def open_to(
        settings: BrokerSettings, security: Authenticator | None, surprises: Surprises
    ) -> ConnectionTable:
        """A table of connections whose peers `security` authenticates; None: of all."""
        if security is None:
            return ConnectionTable(settings, surprises=surprises)
        from magnetar.hosting.security.handshakes import Handshakes

        return ConnectionTable(settings, Handshakes(security), surprises)

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: ClientConnection) -> None:
        """A connection that has not sent CONNECT; another such one may be dropped for it.
        Raises LimitExceeded."""
        dropped = self.budget.admit(connection, connection.group)
        self._open[connection] = None
        if dropped is not None:
            log.info("connection.dropped", peer=dropped.peer, reason="others wait to send CONNECT")
            dropped.abort()

    def admitted(self, connection: ClientConnection) -> None:
        self.budget.keep(connection)

    def remove(self, connection: ClientConnection) -> None:
        self._open.pop(connection, None)
        self.budget.forget(connection)
        if self.handshakes is not None:
            self.handshakes.forget(connection)

    def refused(self) -> int:
        """How many failed authentication."""
        return self.handshakes.refused if self.handshakes is not None else 0

    def expose(self, gauge: Callable[[str, str, Callable[[], float]], None]) -> None:
        limit, budget = self.settings.connections_max, self.budget
        gauge(
            "magnetar_connections_max",
            "Client connections there may be: connections_max, or what open files allow",
            lambda: limit,
        )
        gauge(
            "magnetar_connections_dropped",
            "Connections without CONNECT that made room for others",
            lambda: budget.dropped,
        )
        self.rooms.expose(gauge)
        if self.handshakes is not None:
            gauge(
                "magnetar_connections_not_authenticated",
                "Connections that were refused for what they showed",
                self.refused,
            )

    def open(self) -> list[ClientConnection]:
        return list(self._open)

    def open_gate(self) -> None:
        """The broker is ready: let waiting requests through."""
        self.ready.set()

    def abort_all(self) -> None:
        """Drop every connection at once; nothing queued is sent."""
        for connection in list(self._open):
            connection.abort()

    def close(self) -> None:
        self.abort_all()
        self.rooms.close()
        if self.handshakes is not None:
            self.handshakes.stop()
