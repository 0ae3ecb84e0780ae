"""The transaction coordinator of a standalone server.

Owns: `StandaloneCoordinator`: number 0 in the broker's own process, beginning and ending with each
incarnation of the broker. Imports: metadata, refusals, the broker; a coordinator's life only when
it is needed. Invariants: a server that was never asked about transactions has no module, file,
lease or record of a coordinator: the first client or administrator that asks waits until it is
there. Once asked, the server begins it at every start, since decisions must be carried out. Its
commands come over the broker's connections; broker and coordinator fail together, so a client that
waits for either learns of it by the end of its connection; where transactions are switched off no
client is referred to a coordinator, and no log is written. Participants are asked within the
process: a standalone server serves every topic (a commit is 14 % shorter than by look-up and a
connection).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.refusals import refuse
from magnetar.broker.incarnation import Broker
from magnetar.coordinator.discovery import FIRST
from magnetar.errors import MagnetarError, ServiceNotReady, StoreUnavailable
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.hosting.settings import BrokerSettings
from magnetar.hosting.shared_task import outcome
from magnetar.metadata import keys
from magnetar.metadata.records import INTERNAL_LISTENER
from magnetar.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from magnetar.coordinator.incarnation import Coordinator
    from magnetar.coordinator.inspection import CoordinatorInspection
    from magnetar.coordinator.metrics import CoordinatorMetrics

log = structlog.get_logger(__name__)


class StandaloneCoordinator:
    """`begin` is what a `Broker` has beside it; `stop` or `close` follow each, before the
    broker's own."""

    def __init__(
        self, ports: ProcessPorts, identity: ProcessIdentity, settings: BrokerSettings
    ) -> None:
        """`identity` is the broker's."""
        self._ports, self._settings = ports, settings
        self._identity = replace(identity, name=f"{identity.name}-coordinator-{FIRST}")
        self._broker: Broker | None = None
        self._life: Coordinator | None = None
        self._waking: asyncio.Task[Coordinator] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._metrics: CoordinatorMetrics | None = None

    async def begin(self, broker: Broker) -> None:
        """Answer the transaction commands of the broker's connections; recover first what there
        is. Raises StoreError, StorageError."""
        self._broker = broker
        if await self._ports.store.get(keys.coordinator(FIRST)) is not None:
            await self._awake()
        broker.service.begin_coordinator(self)

    async def stop(self) -> None:
        """Planned end."""
        if (life := await self._quiet()) is not None:
            await life.stop()

    async def close(self) -> None:
        """End after the broker's failure, or a failed start."""
        if (life := await self._quiet()) is not None:
            await life.close()

    async def _quiet(self) -> Coordinator | None:
        """Refuse new transactions; the incarnation that is to be ended."""
        self._broker = None
        tasks = [task for task in (self._waking, self._watching) if task is not None]
        self._waking = self._watching = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        life, self._life = self._life, None
        return life

    # --- for the broker's connections -------------------------------------------------------------

    def handle(self, connection: Connection, command: api.BaseCommand) -> None:
        """Answer one command, once the coordinator is there."""
        if self._life is not None:
            self._life.service.handle(connection, command)
        else:
            connection.spawn(self._handle_awake(connection, command))

    async def _handle_awake(self, connection: Connection, command: api.BaseCommand) -> None:
        try:
            life = await self._awake()
        except (MagnetarError, OSError) as error:
            reason = f"the transaction coordinator cannot begin: {error}"
            log.warning("coordinator.not_begun", error=str(error))
            refuse(connection, command.type, command, ServiceNotReady(reason))
        else:
            life.service.handle(connection, command)

    def disk_is_behind(self) -> bool:
        """Whether so much waits for a flush that no more requests are read."""
        return self._life is not None and self._life.service.disk_is_behind()

    def when_disk_catches_up(self, resume: Callable[[], None]) -> None:
        """Call `resume` once it does not any more."""
        if self._life is not None:
            self._life.service.when_disk_catches_up(resume)
        else:
            resume()

    # --- for administrators -----------------------------------------------------------------------

    async def inspection(self) -> CoordinatorInspection:
        """What administrators ask. Raises ServiceNotReady while the broker starts or stops,
        StoreError, StorageError."""
        await self._awake()
        from magnetar.coordinator.inspection import CoordinatorInspection

        return CoordinatorInspection(lambda: self._life)

    def exposition(self) -> bytes:
        """Metrics; none before it was needed."""
        return self._metrics.exposition() if self._metrics is not None else b""

    # --- when it is needed ------------------------------------------------------------------------

    async def _awake(self) -> Coordinator:
        """The coordinator of this incarnation of the broker, begun if it was not needed so far.
        Raises ServiceNotReady, StoreError, StorageError."""
        if self._life is not None:
            return self._life
        if self._broker is None:
            raise ServiceNotReady("this server starts or stops; try again in a moment")
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(
                self._wake(self._broker), name="transaction coordinator begins"
            )
        return await outcome(self._waking)

    async def _wake(self, broker: Broker) -> Coordinator:
        """Begin. A coordinator that cannot begin leaves nothing behind; the next caller tries
        again."""
        from magnetar.coordinator.incarnation import Coordinator
        from magnetar.coordinator.metrics import CoordinatorMetrics

        addresses = (
            broker.context.listeners.service_url_on(INTERNAL_LISTENER) or "",
            broker.service_url_tls,
        )
        metrics = self._metrics = self._metrics or CoordinatorMetrics()
        life = Coordinator(
            self._ports,
            self._identity,
            self._settings,
            metrics,
            addresses,
            broker.service.participants,
            broker.guard,
        )
        try:
            await life.start()
            if not life.ready:
                raise StoreUnavailable(
                    f"the transaction coordinator ended while it started: {await life.ended()}"
                )
        except BaseException:
            await life.close()
            raise
        self._life = life
        self._watching = asyncio.create_task(
            _fail_with(life, broker), name="transaction coordinator"
        )
        return life


async def _fail_with(life: Coordinator, broker: Broker) -> None:
    broker.fail(f"transaction coordinator: {await life.ended()}")
