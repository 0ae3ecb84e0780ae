"""One incarnation of a broker.

Owns: the lifecycle from claim to release: identity, lease, log, views, ownership, leader, listener,
tickers. Imports: the broker's packages, ports. Invariants: nothing is served before the claim
exists and the predecessor of the same name is fenced; `fail` ends the incarnation at once and for
good (the process then starts a new one); a planned stop transfers every bundle before the lease is
given up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from magnetar import __version__
from magnetar.broker.bundles.leader import Leader
from magnetar.broker.bundles.load import load_work
from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.commands.service import BrokerService
from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.connection_table import ConnectionTable
from magnetar.broker.context import BrokerContext
from magnetar.broker.draining import Draining
from magnetar.broker.following import SettingsFollower
from magnetar.broker.gauges import damage_table, expose_access, expose_watermarks
from magnetar.broker.metrics import BrokerMetrics
from magnetar.broker.predecessors import fence_predecessors
from magnetar.broker.topics.deletion_marks import DeletionMarks
from magnetar.broker.upkeep.expiry import TopicExpiry
from magnetar.broker.upkeep.maintenance import Maintenance
from magnetar.errors import StorageError, StoreError
from magnetar.hosting.advertised import Listeners
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.hosting.joining import check_restore, guarded, incarnation_number, join_cluster
from magnetar.hosting.listeners import follow_addresses, open_listeners
from magnetar.hosting.live_settings import LiveSettings
from magnetar.hosting.settings import BrokerSettings
from magnetar.hosting.views import ClusterViews
from magnetar.metadata import keys
from magnetar.metadata.records import IncarnationRecord, ListenerAddress
from magnetar.network import Listener
from magnetar.storage.log.writer import LogWriter

if TYPE_CHECKING:
    from magnetar.hosting.security.guard import Guard

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.2
LOG_OVERSHOOT_BYTES_MAX = 256 << 20


# begins what is served over a broker's connections, before they are let in
Beside = Callable[["Broker"], Awaitable[None]]


class Broker:
    """Serves until it is stopped or fails."""

    def __init__(
        self,
        ports: ProcessPorts,
        identity: ProcessIdentity,
        settings: BrokerSettings,
        beside: Beside | None = None,
    ) -> None:
        self._ports, self._identity = ports, identity
        self._settings, self._beside = settings, beside
        self.metrics = BrokerMetrics()
        self.incarnation = f"{identity.name}.{ports.clock.random_bits(64):016x}"
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._connections = ConnectionTable.open_to(
            settings, ports.security, self.metrics.surprises
        )
        if ports.tls is not None:
            ports.tls.surprises = self.metrics.surprises
        self._ready = False
        self._drain: Draining | None = None
        self._listeners_open: list[Listener] = []
        self._registering: asyncio.Task[None] | None = None
        self.guard: Guard | None = None
        self._plain_url = self.service_url_tls = ""

    # --- life -------------------------------------------------------------------------------------

    async def start(self, store_was_unavailable: bool = False) -> None:
        """Claim, listen, register, and be ready. Raises StoreError, StorageError or OSError; then
        `close` must be called.

        `store_was_unavailable`: it cannot have been for us alone, so others get time to register again
        before they count as gone.
        """
        ports, settings, identity = self._ports, self._settings, self._identity
        joined = await join_cluster(ports.store, ports.volume, ports.clock)
        self.storage_id = joined.storage_id
        self._store = guarded(ports.store, joined.restore, self.fail)
        self._log = _log_writer(ports, settings, self.incarnation, self._fenced)
        # The claim exists before anything makes this incarnation known: a takeover before that
        # would fence nothing.
        await self._log.open()
        await check_restore(ports.volume, joined.restore)
        await self._listen()
        self.context = self._context(joined.restore)
        self._lease = ports.lease(self._lease_lost)
        self.lease_id = await self._lease.start()
        await fence_predecessors(self._store, ports.volume, self.incarnation)
        await self._register(draining=False)
        self.context = replace(
            self.context, number=incarnation_number(joined.restore, self._registered_at)
        )
        self.views = ClusterViews.create(self._store, ports.clock, self.metrics.surprises)
        await self.views.start()
        self.ownership = Ownership(self.context, self.views)
        if store_was_unavailable:
            self.ownership.assigner.trust_absence_soon()
        self.service = BrokerService(self.context, self.views, self.ownership)
        await self._start_guard()
        drain = self._drain = Draining(
            self.context,
            self.views,
            self.ownership,
            register=self._register,
            stop_leader=lambda: self.leader.stop(),
            lease_valid=lambda: self._lease.valid(),
            ended=self._ended,
            spawn=self._spawn,
        )
        self.views.cordons.listen(lambda _names: drain.look_at_cordon())
        self._begin_work()
        self.views.incarnations.listen(self._registrations_changed)
        if self._beside is not None:
            await self._beside(self)
        self._ready = True
        self._connections.open_gate()
        drain.look_at_cordon()
        if not self._lease.valid():
            self._lease_lost("the lease was lost while we started")
        self._registrations_changed([self.incarnation])
        log.info(
            "broker.ready",
            incarnation=self.incarnation,
            service_url=self.service_url,
            http_url=identity.http_url,
        )

    def _begin_work(self) -> None:
        """Begin everything that runs for as long as this incarnation."""
        self._log.on_sealed = self.ownership.file_sealed
        self._start_leader()
        self._keep_up("claim check", self._check_claim)
        follower = SettingsFollower(self.context, self.views, self.ownership, self._connections)
        self._keep_up("settings", follower.run)
        self.maintenance = Maintenance(
            self.context, self.views, self.ownership, lambda: self.leader.leading
        )
        self._keep_up("maintenance", self.maintenance.run)
        self._keep_up("topic compaction", self.maintenance.topic_compactor.run)
        self.deletion_marks = DeletionMarks(self.context, self.views)
        self._keep_up("marks of deletions", self.deletion_marks.run)
        expose_watermarks(self.metrics, self._ports.clock, self.ownership.owned)
        usage = self._ports.usage
        load = load_work(self.context, self.views, self.ownership, usage, lambda: self.lease_id)
        self._last_work = load.last
        for name, run in load.tasks:
            self._keep_up(name, run)
        self._keep_up("life of topics", TopicExpiry(self.context, self.ownership).run)
        if self._identity.listeners.reread is not None:
            self._keep_up("listeners", self._follow_listeners)

    def _context(self, restore: int) -> BrokerContext:
        """What everything of this broker works with, once it listens."""
        ports, identity = self._ports, self._identity
        damage = damage_table(ports.clock, self.metrics, self._log)
        self._connections.expose(self.metrics.gauge)
        expose_access(self.metrics, ports.security, ports.tls)
        return BrokerContext(
            live=LiveSettings(self._settings),
            clock=ports.clock,
            network=ports.network,
            volume=ports.volume,
            store=self._store,
            broker=identity.name,
            incarnation=self.incarnation,
            restore=restore,
            service_url=self.service_url,
            http_url=identity.http_url,
            listeners=Listeners(
                ListenerAddress(self._plain_url, service_url_tls=self.service_url_tls),
                identity.listeners,
            ),
            log=self._log,
            metrics=self.metrics,
            damage=damage,
            fail=self.fail,
            security=ports.security,
            tls=ports.tls,
            http_url_tls=identity.http_url_tls,
            compute=ports.compute,
        )

    async def ended(self) -> str:
        """Wait until this incarnation has failed or was stopped; the reason."""
        return await asyncio.shield(self._ended)

    @property
    def ready(self) -> bool:
        """Whether this broker takes traffic."""
        return self._ready and not self._ended.done()

    @property
    def draining(self) -> bool:
        return self._drain is not None and self._drain.draining

    def fail(self, reason: str) -> None:
        """End this incarnation now: no further byte leaves it."""
        if not self._ended.done():
            log.error("broker.failed", incarnation=self.incarnation, reason=reason)
            self._ready = False
            self._connections.abort_all()
            self._ended.set_result(reason)

    async def stop(self) -> None:
        """Planned end: drain, transfer, seal, give up lease and claim."""
        if self.ready and self._drain is not None:
            await self._drain.drain("broker stops")
            await self._last_work()
        if not self._ended.done():
            self._ended.set_result("stopped")
        await self.close()

    async def close(self) -> None:
        """Release everything this process holds; also after a failed start. Never raises for
        what is gone already."""
        self._ready = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if hasattr(self, "leader"):
            await self.leader.stop()
        if hasattr(self, "ownership"):
            await self.ownership.stop()
        if self.guard is not None:
            await self.guard.stop()
        if hasattr(self, "views"):
            await self.views.stop()
        for admission in self._listeners_open:
            admission.close()
        self._connections.close()
        if hasattr(self, "_log"):
            with contextlib.suppress(StorageError):
                await self._log.close()
        if hasattr(self, "_lease"):
            with contextlib.suppress(StoreError):
                await self._lease.stop(revoke=True)

    # --- joining ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Open the main port, and those that belong to one listener each. Raises OSError,
        InvalidRequest."""
        self._plain_url, self.service_url_tls = await open_listeners(
            self._ports, self._identity, self._accept, self._listeners_open
        )
        self.service_url = self._plain_url or self.service_url_tls

    async def _start_guard(self) -> None:
        """Have commands checked, where clients are asked who they are. Raises StoreError."""
        if self._ports.security is not None:
            from magnetar.hosting.security.guard import Guard

            guard = Guard(
                self._ports.security,
                self.context.store,
                self.context.clock,
                self.views.namespaces,
                self._connections,
                self.metrics.surprises,
            )
            await guard.start()
            self.guard = self.service.guard = guard

    async def _register(self, draining: bool) -> None:
        record = IncarnationRecord(
            broker=self._identity.name,
            service_url=self.service_url,
            http_url=self._identity.http_url,
            started_ms=self._ports.clock.wall_ms(),
            version=__version__,
            draining=draining,
            listeners=dict(self.context.listeners.advertised),
            service_url_tls=self.service_url_tls,
            http_url_tls=self._identity.http_url_tls,
        )
        self._registered_at = await self._store.put(
            keys.incarnation(self.incarnation), record.encode(), self.lease_id
        )

    # --- watching over ourselves ------------------------------------------------------------------

    def _keep_up(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have work done for as long as this incarnation lives, whatever it meets."""
        self._spawn(self.metrics.surprises.again_and_again(name, run), name)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        task.add_done_callback(self._task_ended)
        self._tasks = [known for known in self._tasks if not known.done()] + [task]
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.fail(f"{task.get_name()}: {task.exception()!r}")

    def _start_leader(self) -> None:
        self.leader = Leader(self.context, self.views, self.ownership, self.lease_id)
        self.leader.start()

    def _accept(self, listener: str | None = None) -> Connection:
        return Connection(self._connections, lambda: self.service, listener)

    def _fenced(self, error: StorageError) -> None:
        self.fail(f"log: {error}")

    def _lease_lost(self, reason: str) -> None:
        """The lease only detects: until another process fences this one it goes on under its
        claim and registers again."""
        if self.ready:
            log.warning("broker.lease_lost", incarnation=self.incarnation, reason=reason)
            self._begin_registration()

    def _registrations_changed(self, names: list[str]) -> None:
        """Our key may vanish though our lease lives: a late request of ours can have bound it to an
        earlier lease.

        A view that still catches up with an outage shows the end of the lease before ours: that is
        old news.
        """
        view = self.views.incarnations
        if (
            self.incarnation in names
            and self.ready
            and view.get(self.incarnation) is None
            and view.revision >= self._registered_at
        ):
            log.warning("broker.registration_lost", incarnation=self.incarnation)
            self._begin_registration()

    def _begin_registration(self) -> None:
        if self._registering is None or self._registering.done():
            self._registering = self._spawn(self._register_again(), "registration")

    async def _register_again(self) -> None:
        self.ownership.assigner.distrust_absence()
        while not self._ended.done():
            try:
                await self._log.check_claim()  # who has been fenced does not come back
                await self._store.get(keys.RESTORE)  # an empty store has nothing to bind a lease to
                await self.leader.stop()
                await self._lease.stop(revoke=False)
                self._lease = self._ports.lease(self._lease_lost)
                self.lease_id = await self._lease.start()
                await self._register(self.draining)
                if not self._lease.valid():
                    continue
                self.ownership.assigner.trust_absence_soon()
                if not self.draining:
                    self._start_leader()
                log.info("broker.registered_again", incarnation=self.incarnation)
                return
            except StorageError as error:
                self.fail(f"claim: {error}")
            except StoreError as error:
                log.warning("broker.registration_failed", error=str(error))
                await asyncio.sleep(STORE_RETRY_S)
            except Exception as error:
                self.metrics.surprises.note("registration", error)
                await asyncio.sleep(STORE_RETRY_S)

    async def _follow_listeners(self) -> None:
        """Register again when the addresses that we advertise change."""

        async def tell() -> bool:
            if self._registering is not None and not self._registering.done():
                return False
            await self._log.check_claim()  # who has been fenced does not come back
            await self._register(self.draining)
            return True

        try:
            await follow_addresses(
                self._identity, self.context.listeners, self._settings.listeners_check_s, tell
            )
        except StorageError as error:
            self.fail(f"claim: {error}")

    async def _check_claim(self) -> None:
        """Even an idle owner learns within `claim_check_s` that it has been fenced."""
        while True:
            await asyncio.sleep(self._settings.claim_check_s)
            try:
                await self._log.check_claim()
            except StorageError as error:
                self.fail(f"claim: {error}")
                return


def _log_writer(
    ports: ProcessPorts,
    settings: BrokerSettings,
    incarnation: str,
    on_fenced: Callable[[StorageError], None],
) -> LogWriter:
    return LogWriter(
        ports.volume,
        ports.clock,
        incarnation,
        file_bytes=settings.log_file_bytes,
        block_bytes_max=settings.block_bytes_max,
        # Connections stop being read at `log_pending_bytes_max`; what each of them has read by
        # then must still find room.
        pending_bytes_max=settings.log_pending_bytes_max + LOG_OVERSHOOT_BYTES_MAX,
        spares_max=settings.log_spares_max,
        on_fenced=on_fenced,
    )
