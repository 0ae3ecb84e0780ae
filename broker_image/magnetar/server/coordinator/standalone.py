"""The transaction coordinator of a standalone server.

Owns: `StandaloneCoordinator`: number 0 in the broker's own process, beginning and ending with each incarnation of the broker. Imports: a
coordinator's life, the broker.
Invariants: its commands come over the broker's connections, which are let in only once it answers; broker and coordinator fail together, so a
client that waits for either hears of it by the end of its connection; where transactions are switched off nobody is led to a coordinator, and no
log is written.
Participants are reached as everywhere, by look-up and a connection: there is one way to end a transaction.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from magnetar.errors import StoreUnavailable
from magnetar.metadata.records import INTERNAL_LISTENER
from magnetar.server.broker import Broker, BrokerIdentity, BrokerPorts
from magnetar.server.coordinator.discovery import FIRST
from magnetar.server.coordinator.inspection import CoordinatorInspection
from magnetar.server.coordinator.life import Coordinator
from magnetar.server.coordinator.metrics import CoordinatorMetrics
from magnetar.server.settings import BrokerSettings


class StandaloneCoordinator:
    """`begin` is what a `Broker` has beside it; `stop` or `close` follow each, before the broker's own."""

    def __init__(self, ports: BrokerPorts, identity: BrokerIdentity, settings: BrokerSettings) -> None:
        """`identity` is the broker's."""
        self._ports, self._settings = ports, settings
        self._identity = replace(identity, name=f"{identity.name}-coordinator-{FIRST}")
        self._life: Coordinator | None = None
        self._watching: asyncio.Task[None] | None = None
        self.metrics = CoordinatorMetrics()
        self.inspection = CoordinatorInspection(lambda: self._life)

    async def begin(self, broker: Broker) -> None:
        """Recover, and answer the transaction commands of the broker's connections. Raises StoreError, StorageError."""
        addresses = broker.context.listeners.service_url_on(INTERNAL_LISTENER) or "", broker.service_url_tls
        life = self._life = Coordinator(self._ports, self._identity, self._settings, self.metrics, addresses)
        await life.start()
        if not life.ready:
            raise StoreUnavailable(f"the transaction coordinator ended while it started: {await life.ended()}")
        broker.service.begin_coordinator(life.service)
        self._watching = asyncio.create_task(_fail_with(life, broker), name="transaction coordinator")

    async def stop(self) -> None:
        """Planned end."""
        if (life := await self._unwatched()) is not None:
            await life.stop()

    async def close(self) -> None:
        """End after the broker's failure, or a failed start."""
        if (life := await self._unwatched()) is not None:
            await life.close()

    async def _unwatched(self) -> Coordinator | None:
        life, self._life = self._life, None
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])
        return life


async def _fail_with(life: Coordinator, broker: Broker) -> None:
    broker.fail(f"transaction coordinator: {await life.ended()}")
