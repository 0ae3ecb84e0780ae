"""What a transaction coordinator answers.

Owns: the commands of its connections. Imports: wire, errors, refusals.
Source: protocol 2.14. Until transactions are kept every request about them gets what Apache Pulsar says when they are switched off: an ERROR with
a text that clients know.
Invariants: every request gets exactly one answer; no official client waits for something that will not come.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.errors import NotAllowed, TopicNotFound
from magnetar.server.connection import Connection
from magnetar.server.coordinator.metrics import CoordinatorMetrics
from magnetar.server.refusals import NOT_ENABLED, TRANSACTION_KINDS, refuse
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

Type = api.BaseCommand.Type


class CoordinatorService:
    """Answers the commands of all connections of one coordinator."""

    def __init__(self, tcid: int, metrics: CoordinatorMetrics) -> None:
        self._tcid, self._metrics = tcid, metrics

    @property
    def open_transactions(self) -> int:
        """Transactions that are not decided: none is ever begun while they are switched off."""
        return 0

    def handle(self, connection: Connection, command: api.BaseCommand) -> None:
        """Answer one command. Raises ProtocolError for what only a server may send."""
        kind = command.type
        if kind == Type.TC_CLIENT_CONNECT_REQUEST:
            # Apache Pulsar says NotAllowedError here, too; the Java client then closes its handler and waits for ever for itself. Its discovery,
            # which comes first, meets a topic that is not there: the client fails at once when it is told so here.
            self._metrics.requests.labels(commands.FIELD_OF_TYPE[kind], "not_enabled").inc()
            refuse(connection, kind, command, TopicNotFound(NOT_ENABLED))
        elif kind in TRANSACTION_KINDS:
            self._metrics.requests.labels(commands.FIELD_OF_TYPE[kind], "not_enabled").inc()
            refuse(connection, kind, command, NotAllowed(NOT_ENABLED))
        else:
            self._metrics.requests.labels("other", "not_offered").inc()
            text = f"{commands.FIELD_OF_TYPE[kind]} is for brokers; this is transaction coordinator {self._tcid}"
            refuse(connection, kind, command, NotAllowed(text))

    def disk_is_behind(self) -> bool:
        """Never: nothing that a client sends waits for a flush."""
        return False

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        resume()
