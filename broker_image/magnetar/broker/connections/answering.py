"""What answers the commands of connections.

Owns: `Service`, by which a connection knows a broker or a transaction coordinator. Imports: wire.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.broker.connections.connection import Connection


class Service(Protocol):
    """What answers the commands of connections: a broker, or a transaction coordinator."""

    def handle(self, connection: Connection, command: api.BaseCommand) -> None:
        """Answer one command, now or later."""
        ...

    def disk_is_behind(self) -> bool:
        """Whether so much waits for a flush that publishers must be held up."""
        ...

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        """Call `resume` once it does not any more."""
        ...
