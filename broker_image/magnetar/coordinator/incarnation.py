"""One incarnation of a transaction coordinator.

Owns: from joining the cluster to giving the number back: lease, ports (or none: `standalone`),
claim, log, following the set. Imports: ports, client. Invariants: nothing is answered before the
number is held, its log recovered, and both settled, nor after the lease may have ended or another
incarnation holds it; without `transactions_enabled` no log is written, and what an earlier
incarnation has left in one stays named in the number's record; `fail` ends this incarnation at once
and for good (the process then begins another one); a planned end gives the number back before the
lease ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from magnetar.broker.connections.connection import Connection
from magnetar.broker.connections.connection_table import ConnectionTable
from magnetar.client.connection import Credentials
from magnetar.coordinator.claim import CoordinatorClaim
from magnetar.coordinator.identity import CoordinatorIdentity, tcid_of
from magnetar.coordinator.metrics import CoordinatorMetrics
from magnetar.coordinator.participants import ConfirmedParticipants, Participants, WireParticipants
from magnetar.coordinator.retired import OtherCoordinators, RetiredNumbers
from magnetar.coordinator.service import CoordinatorService
from magnetar.coordinator.states import STATES, Event, State
from magnetar.coordinator.transaction_log import TransactionLog
from magnetar.coordinator.transactions import Transactions, limits_of
from magnetar.errors import StorageError, StoreError, StoreUnavailable
from magnetar.hosting.advertised import Listeners
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.hosting.joining import guarded, join_cluster
from magnetar.hosting.listeners import follow_addresses, open_listeners
from magnetar.hosting.settings import BrokerSettings
from magnetar.hosting.views import StoreView
from magnetar.metadata import keys
from magnetar.metadata.records import ListenerAddress, NamespaceRecord
from magnetar.metadata.store import MetadataStore
from magnetar.network import Listener
from magnetar.security.authorization import INTERNAL_METHOD
from magnetar.transactions.coordinator.core import CoordinatorCore

if TYPE_CHECKING:
    from magnetar.hosting.security.guard import Guard

log = structlog.get_logger(__name__)

STORE_RETRY_S = 0.2
RETIRING_REPORT_S = 1.0
"""Interval at which a retiring number says how many transactions it has left."""


class Coordinator:
    """Holds one number until it is stopped or fails."""

    def __init__(
        self,
        ports: ProcessPorts,
        identity: ProcessIdentity,
        settings: BrokerSettings,
        metrics: CoordinatorMetrics,
        served_at: tuple[str, str] | None = None,
        participants: Participants | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`served_at`: addresses, plain and by TLS, of a broker in this process whose connections
        bring commands (None: we listen ourselves).

        `participants`: those of that broker, if it serves every topic (None: they are looked up);
        `guard`: what decides about that broker's connections (None: one of our own, where clients
        are asked who they are). Raises InvalidRequest for a name without a number.
        """
        self._ports, self._names, self._settings, self.metrics = ports, identity, settings, metrics
        self.tcid = tcid_of(identity.name)
        metrics.know(self.tcid, ports.clock)
        self.incarnation = f"{identity.name}.{ports.clock.random_bits(64):016x}"
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._served_at = served_at
        self._connections = ConnectionTable.open_to(settings, ports.security, metrics.surprises)
        self.service = CoordinatorService(self.tcid, metrics, ports.security)
        self.service.guard = guard
        self._claim: CoordinatorClaim | None = None
        self._log: TransactionLog | None = None
        self._participants = participants
        self._peers: WireParticipants | None = None
        self._others: OtherCoordinators | None = None
        self._namespaces: StoreView[NamespaceRecord] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._listeners_open: list[Listener] = []
        self._state = STATES.initial
        self.recovered_ms = (0, 0)
        """When the recovery of this incarnation began and ended, unix time."""

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, take the number as soon as it is free, and settle. Raises StoreError,
        StorageError or OSError; `close` must follow."""
        ports, names = self._ports, self._names
        joined = await join_cluster(ports.store, ports.volume, ports.clock)
        store = guarded(ports.store, joined.restore, self.fail)
        plain, secure = await self._listen()
        listeners = Listeners(ListenerAddress(plain, service_url_tls=secure), names.listeners)
        identity = CoordinatorIdentity(
            tcid=self.tcid,
            name=names.name,
            incarnation=self.incarnation,
            service_url=plain or secure,
            http_url=names.http_url,
            service_url_tls=secure,
            http_url_tls=names.http_url_tls,
            listeners=listeners.advertised,
        )
        await self._start_guard(store)
        self._lease = ports.lease(self.fail)
        lease = await self._lease.start()
        claim = CoordinatorClaim(store, ports.clock, identity, joined.restore)
        await self.unless_ended(claim.acquire(lease))
        self._claim = claim
        if self._settings.transactions_enabled:
            await self.unless_ended(self._recover(claim, store))
        await claim.settle(self._open_transactions)
        if not self._lease.valid():
            self.fail("the lease was lost while we started")
        if self._ended.done():
            return
        self._take(Event.SETTLED)
        self.metrics.claims.inc()
        self.metrics.held.set(1)
        self.metrics.epoch.set(claim.epoch)
        if self.service.transactions is not None:
            self.service.transactions.begin()
            self._spawn("retirement", partial(self._report, claim))
        self._connections.open_gate()
        self._spawn("coordinator set", partial(self._follow, claim))
        if names.listeners.reread is not None and self._served_at is None:
            self._spawn("listeners", partial(self._follow_listeners, claim, listeners))
        log.info(
            "coordinator.ready",
            tcid=self.tcid,
            incarnation=self.incarnation,
            epoch=claim.epoch,
            service_url=identity.service_url,
        )

    async def _listen(self) -> tuple[str, str]:
        """Open the ports, if they are ours; their addresses, plain and by TLS ("" = there is
        none). Raises OSError, InvalidRequest."""
        if self._served_at is not None:
            return self._served_at
        return await open_listeners(self._ports, self._names, self._accept, self._listeners_open)

    async def _start_guard(self, store: MetadataStore) -> None:
        """Have commands checked, where clients are asked who they are. Raises StoreError."""
        if self._ports.security is None or self.service.guard is not None:
            return
        from magnetar.hosting.security.guard import Guard

        self._namespaces = StoreView(
            store, self._ports.clock, keys.NAMESPACES, NamespaceRecord, self.metrics.surprises
        )
        await self._namespaces.start()
        self.service.guard = Guard(
            self._ports.security,
            store,
            self._ports.clock,
            self._namespaces,
            self._connections,
            self.metrics.surprises,
        )
        await self.service.guard.start()

    async def _recover(self, claim: CoordinatorClaim, store: MetadataStore) -> None:
        """Bring the number's transactions back. Raises StorageError, CorruptData."""
        ports, settings = self._ports, self._settings
        core, began_ms = CoordinatorCore(self.tcid, limits_of(settings)), ports.clock.wall_ms()
        self._log = TransactionLog(
            ports.volume, ports.clock, claim, lambda error: self.fail(str(error))
        )
        await self._log.recover(core)
        self.recovered_ms = began_ms, ports.clock.wall_ms()
        security = ports.security
        credentials = Credentials()
        if security is not None:
            credentials = Credentials(INTERNAL_METHOD, lambda: security.internal_token().encode())
        timeout_s = settings.transaction_participant_timeout_s
        if (participants := self._participants) is None:
            participants = self._peers = WireParticipants(
                store, ports.network, ports.clock, credentials, timeout_s, ports.tls
            )
        self._others = OtherCoordinators(store, ports.network, credentials, timeout_s, ports.tls)
        self.service.begin(
            Transactions(
                core,
                self._log,
                ConfirmedParticipants(participants, store),
                ports.clock,
                settings,
                self.metrics,
                self.fail,
            ),
            claim,
            RetiredNumbers(store, ports.volume, ports.clock, limits_of(settings)),
            self._others,
        )

    def _open_transactions(self) -> int:
        """Those that have not ended; while transactions are switched off, those that an earlier
        incarnation has left."""
        if self.service.transactions is not None:
            return self.service.transactions.live
        record = self._claim.record if self._claim is not None else None
        return record.open_transactions if record is not None and record.chain else 0

    @property
    def log(self) -> TransactionLog | None:
        """Where it writes; None while transactions are switched off."""
        return self._log

    @property
    def ready(self) -> bool:
        """Whether this incarnation holds its number and answers."""
        return self._state is State.READY

    @property
    def port(self) -> int:
        """Where clients of the internal listener connect to."""
        return self._listeners_open[0].port

    async def ended(self) -> str:
        """Wait until this incarnation has failed or was stopped; the reason."""
        return await asyncio.shield(self._ended)

    def fail(self, reason: str) -> None:
        """End this incarnation now: no further byte leaves it."""
        if not self._ended.done():
            log.error(
                "coordinator.failed", tcid=self.tcid, incarnation=self.incarnation, reason=reason
            )
            self._end(reason)

    def _take(self, event: Event) -> None:
        after = STATES.after(self._state, event)
        assert after is not None, (self._state, event)
        self._state = after

    def _end(self, reason: str) -> None:
        self._take(Event.ENDED)
        self.metrics.incarnation_ended()
        for (
            admission
        ) in self._listeners_open:  # or a client that comes back at once would get no answer
            admission.close()
        self._connections.abort_all()
        self._ended.set_result(reason)

    async def stop(self) -> None:
        """Planned end: answer no more, give the number back, end the lease."""
        if not self._ended.done():
            self._end("stopped")
            await self._give_back()
        await self.close()

    async def _give_back(self) -> None:
        """Release the claim, for as long as `drain_store_patience_s` if the store is
        unavailable; then the lease ends it."""
        await self._quiet()
        if self._claim is None:
            return
        await self._end_log()
        try:
            async with asyncio.timeout(self._settings.drain_store_patience_s):
                while True:
                    try:
                        await self._claim.release(self._open_transactions())
                        log.info(
                            "coordinator.released", tcid=self.tcid, incarnation=self.incarnation
                        )
                        return
                    except StoreError as error:
                        log.warning("coordinator.release_delayed", tcid=self.tcid, error=str(error))
                        await asyncio.sleep(STORE_RETRY_S)
        except StorageError as error:
            # another process has it
            log.warning("coordinator.not_released", tcid=self.tcid, error=str(error))
        except TimeoutError:
            log.warning(
                "coordinator.not_released",
                tcid=self.tcid,
                error="the metadata store did not answer in time",
            )

    async def close(self) -> None:
        """Release everything this process holds; also after a failed start. Never raises for
        what is gone already."""
        self._take(Event.CLOSED)
        await self._quiet()
        await self._end_log()
        self.metrics.incarnation_ended()
        for admission in self._listeners_open:
            admission.close()
        self._connections.close()
        if self._namespaces is not None:  # else the guard is the broker's
            if self.service.guard is not None:
                await self.service.guard.stop()
            await self._namespaces.stop()
        if hasattr(self, "_lease"):
            with contextlib.suppress(StoreError):
                await self._lease.stop(revoke=True)

    async def _end_log(self) -> None:
        """Drive nothing more, and seal the log."""
        if self.service.transactions is not None:
            await self.service.transactions.stop()
        if self._peers is not None:
            await self._peers.close()
        if self._others is not None:
            await self._others.close()
        if self._log is not None:
            await self._log.close()

    # --- following --------------------------------------------------------------------------------

    async def _follow(self, claim: CoordinatorClaim) -> None:
        """Settle again whenever the set changes."""
        while True:
            try:
                await claim.set_changed()
                await claim.settle(self._open_transactions)
            except StorageError as error:
                self.fail(str(error))
                return
            except StoreError as error:
                log.warning("coordinator.store_unavailable", tcid=self.tcid, error=str(error))
                await asyncio.sleep(STORE_RETRY_S)

    async def _follow_listeners(self, claim: CoordinatorClaim, listeners: Listeners) -> None:
        """Announce changes of the advertised addresses to clients."""

        async def tell() -> bool:
            await claim.advertise(listeners.advertised)
            return True

        try:
            await follow_addresses(self._names, listeners, self._settings.listeners_check_s, tell)
        except StorageError as error:
            self.fail(str(error))

    async def _report(self, claim: CoordinatorClaim) -> None:
        """While the number retires, say how many transactions are left."""
        while True:
            await asyncio.sleep(RETIRING_REPORT_S)
            record = claim.record
            if (
                claim.begins
                or record is None
                or record.open_transactions == self._open_transactions()
            ):
                continue
            try:
                await claim.settle(self._open_transactions)
            except StorageError as error:
                self.fail(str(error))
                return
            except StoreError as error:
                log.warning("coordinator.store_unavailable", tcid=self.tcid, error=str(error))

    async def unless_ended(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work`, and end it when this incarnation ends. Raises what `work` raises,
        StoreUnavailable if this incarnation has ended."""
        task = asyncio.create_task(work)
        either: list[asyncio.Future[Any]] = [task, self._ended]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._ended.done():
            raise StoreUnavailable(
                f"this incarnation of transaction coordinator {self.tcid} has ended: "
                f"{self._ended.result()}"
            )
        task.result()

    def _spawn(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(
            asyncio.create_task(self.metrics.surprises.again_and_again(name, run), name=name)
        )

    async def _quiet(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, listener: str | None = None) -> Connection:
        return Connection(self._connections, lambda: self.service, listener)
