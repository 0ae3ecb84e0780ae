"""A broker process.

Owns: signals, the succession of incarnations, the HTTP listener, the choice of store and volume.
Imports: every server module. Invariants: SIGTERM and SIGINT mean drain; a fenced or failed
incarnation is followed by a new one in the same process, after a back-off that grows until one has
served for a while; the process exits non-zero only when it cannot start at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.incarnation import Broker
from magnetar.broker.routes.application import create_application
from magnetar.broker.routes.store_routes import store_router
from magnetar.broker.standalone_coordinator import StandaloneCoordinator
from magnetar.clock import Clock, SystemClock, back_off_s
from magnetar.coordinator.discovery import withdraw
from magnetar.errors import (
    InvalidRequest,
    MagnetarError,
    RestoreAwaited,
    StorageFull,
    StoreUnavailable,
)
from magnetar.hosting.access import CLOSED, INTERNAL, AccessOptions
from magnetar.hosting.advertised import ListenerOptions
from magnetar.hosting.computing import ComputeThread
from magnetar.hosting.descriptors import divided_descriptors
from magnetar.hosting.garbage import GarbageSchedule
from magnetar.hosting.http import HttpListener
from magnetar.hosting.identity import LeaseFactory, ProcessIdentity, ProcessPorts
from magnetar.hosting.settings import BrokerSettings
from magnetar.hosting.tls import TlsCertificates, TlsPort
from magnetar.hosting.usage import ProcessUsage
from magnetar.metadata.backends.embedded import EmbeddedStore
from magnetar.metadata.leases import LeaseKeeper
from magnetar.metadata.store import MetadataStore
from magnetar.network import AsyncioNetwork
from magnetar.reserve import NO_SPACE
from magnetar.storage.volumes.opening import is_directory, open_volume

if TYPE_CHECKING:
    from magnetar.hosting.security.authentication import Authenticator
    from magnetar.rest.rights import Gate
    from magnetar.storage.volumes.posix import PosixVolume
    from magnetar.storage.volumes.slots import SlotVolume

log = structlog.get_logger(__name__)

RESTART_BASE_S = 0.2
RESTART_MAX_S = 5.0
IN_SERVICE_S = 30.0
"""An incarnation that ends earlier after it was ready has failed as one that did not begin: the next one
waits longer."""
STORE_WAIT_MAX_S = 1.0
"""While the store is unavailable nothing of ours is broken, and each try waits for a connection anyway."""
SPACE_WAIT_S = 2.0
"""A volume without any space is looked at again so often: some may be freed by hand, or by other
brokers."""
EMBEDDED = "embedded"
ETCD_SCHEME = "etcd://"
EMBEDDED_LEASE_S = 86_400.0
"""No other broker could take over, and opening the store ends all leases: a suspended laptop must
not lose this one."""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What the command line says. `store` is "embedded" (below the data directory) or
    etcd://host:port[,host:port...]; `volume` where messages are kept, as `storage.volumes.opening`
    spells it ("" = in the data directory); `store_tls` a directory with ca.crt, tls.crt and tls.key
    ("" = no TLS)."""

    name: str
    data_directory: Path
    store: str
    bind_host: str
    advertised_host: str
    broker_port: int
    http_port: int
    settings: BrokerSettings
    volume: str = ""
    store_tls: str = ""
    listeners: ListenerOptions = field(default_factory=ListenerOptions)
    access: AccessOptions = field(default_factory=AccessOptions)


class BrokerProcess:
    """Runs until a signal, or until `stop` is called."""

    def __init__(
        self, options: ProcessOptions, on_ready: Callable[[Broker], None] | None = None
    ) -> None:
        settings, self._shares = divided_descriptors(options.settings)
        self._options = replace(options, settings=settings)
        self._on_ready = on_ready
        self._stopping = asyncio.Event()
        self._clock: Clock = SystemClock()
        self._collecting: asyncio.Task[None] | None = None
        self.broker: Broker | None = None
        self.coordinator: StandaloneCoordinator | None = None
        self.security: Authenticator | None = None

    @property
    def volume_location(self) -> str:
        """The shared volume: a directory's whole path, or a location that holds no credentials."""
        location = self._options.volume
        if not location:
            directory = self._options.data_directory
            location = str(directory / "storage" if self._options.store == EMBEDDED else directory)
        return str(Path(location).resolve()) if is_directory(location) else location

    @property
    def store_name(self) -> str:
        """Where metadata is: "embedded" or etcd://host:port[,host:port...]."""
        return self._options.store

    def stop(self) -> None:
        """Begin the planned end."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until stopped. Raises MagnetarError or OSError if the first start fails."""
        self._take_signals()
        options = self._options
        async with (
            self._open_security() as security,
            self._open_tls() as tls,
            self._open_store() as (store, lease),
        ):
            volume = await self._open_volume()
            application = create_application(BrokerAdministration(self), self._gate(security))
            if options.store == EMBEDDED:
                # The store is ours alone: jobs beside this process commit through it.
                application.include_router(store_router(store))
            http = HttpListener(
                application, options.bind_host, options.http_port, connections_max=self._shares.http
            )
            compute = ComputeThread()
            ports = ProcessPorts(
                self._clock,
                AsyncioNetwork(),
                volume,
                store,
                lease,
                ProcessUsage(),
                security,
                tls,
                compute,
            )
            try:
                identity = await self._identity(http, tls)
                if options.store == EMBEDDED:
                    await self._prepare_coordinator(ports, identity)
                await self._serve(ports, identity)
            finally:
                if self._collecting is not None:
                    self._collecting.cancel()
                compute.close()
                await http.close()
                await volume.close()

    async def _open_volume(self) -> PosixVolume | SlotVolume:
        """The shared volume; tries again while it has no space, not even of its reserve, to be
        looked at. Raises InvalidRequest, StorageError."""
        while True:
            try:
                return await open_volume(
                    self.volume_location, self._clock, self._options.settings.reserve_bytes
                )
            except StorageFull as error:
                await self._wait_for_space(error)

    async def _open_embedded(self) -> EmbeddedStore:
        """The store of a server that is alone; tries again as `_open_volume` does. Raises
        StoreError, OSError."""
        while True:
            try:
                return await EmbeddedStore.open(
                    self._options.data_directory / "metadata", self._clock
                )
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                await self._wait_for_space(error)

    async def _wait_for_space(self, error: Exception) -> None:
        """Raises `error` if the process is to stop."""
        log.error("broker.waits_for_space", error=str(error))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), SPACE_WAIT_S)
            raise error

    async def _prepare_coordinator(self, ports: ProcessPorts, identity: ProcessIdentity) -> None:
        """Have the transaction coordinator of a server that is alone, unless transactions are
        switched off. Raises StoreError."""
        if not self._options.settings.transactions_enabled:
            await withdraw(ports.store)
            return
        self.coordinator = StandaloneCoordinator(ports, identity, self._options.settings)

    def _take_signals(self) -> None:
        """SIGTERM and SIGINT begin the planned end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def _identity(self, http: HttpListener, tls: TlsPort | None) -> ProcessIdentity:
        """Who this process is to clients and to the cluster, with its HTTP ports open. Raises
        OSError."""
        options, plain = self._options, self._options.access.plain != CLOSED
        http_port = await http.open(plain=plain)
        secure = (
            f"https://{options.advertised_host}:{await http.open_tls(tls, options.access.https_port)}"
            if tls is not None
            else ""
        )
        return ProcessIdentity(
            name=options.name,
            bind_host=options.bind_host,
            advertised_host=options.advertised_host,
            port=options.broker_port,
            http_url=f"http://{options.advertised_host}:{http_port}" if plain else secure,
            listeners=options.listeners,
            tls_port=options.access.tls_port,
            http_url_tls=secure,
            opens_plain=plain,
        )

    def back_off_s(self, failures: int, longest_s: float) -> float:
        """How long to wait before the next incarnation, after so many that ended in a row."""
        return back_off_s(self._clock, failures, RESTART_BASE_S, longest_s)

    async def _serve(self, ports: ProcessPorts, identity: ProcessIdentity) -> None:
        """One incarnation after another."""
        failures = 0
        started_once = store_was_unavailable = awaits_restore = False
        coordinator = self.coordinator
        while not self._stopping.is_set():
            broker = Broker(
                ports,
                identity,
                self._options.settings,
                coordinator.begin if coordinator is not None else None,
            )
            self.broker = broker
            try:
                await broker.start(store_was_unavailable)
                # nothing of ours was broken then
                failures = 0 if store_was_unavailable or awaits_restore else failures
                started_once, store_was_unavailable, awaits_restore = True, False, False
                ready_at = self._clock.monotonic()
                if self._on_ready is not None:
                    self._on_ready(broker)
                self._collect_garbage(broker)
                await self._until_over(broker)
                if self._clock.monotonic() - ready_at >= IN_SERVICE_S:
                    failures = 0
            except StoreUnavailable as error:
                # The store may come up after us (a new cluster's etcd does): keep trying, alive but
                # not ready.
                log.warning("broker.waits_for_store", error=str(error))
                store_was_unavailable = True
            except RestoreAwaited as error:
                if not (started_once or store_was_unavailable or awaits_restore):
                    await self._close(broker)
                    raise
                # The store was lost while this process ran. Its restore fences every incarnation:
                # none of them comes back.
                log.warning("broker.waits_for_restore", error=str(error))
                store_was_unavailable, awaits_restore = False, True
            except StorageFull as error:
                # Not even the reserve has room for a start. Nothing is left behind by an attempt,
                # and the next one may find space.
                log.error("broker.waits_for_space", error=str(error))
            except (MagnetarError, OSError) as error:
                if not started_once:
                    await self._close(broker)
                    raise
                log.error("broker.start_failed", error=str(error))
            if self._stopping.is_set():
                if coordinator is not None:
                    await coordinator.stop()
                await broker.stop()
                return
            await self._close(broker)
            failures += 1
            longest_s = (
                STORE_WAIT_MAX_S if store_was_unavailable or awaits_restore else RESTART_MAX_S
            )
            await asyncio.sleep(self.back_off_s(failures, longest_s))

    def _collect_garbage(self, broker: Broker) -> None:
        """Have Python's garbage collected as traffic allows, from the first incarnation on."""
        if self._collecting is None:
            garbage = GarbageSchedule(self._messages)
            garbage.begin()
            self._collecting = asyncio.create_task(
                broker.metrics.surprises.again_and_again("garbage collection", garbage.run),
                name="garbage collection",
            )

    async def _close(self, broker: Broker) -> None:
        """Release everything of an incarnation that has ended, or did not start."""
        if self.coordinator is not None:
            await self.coordinator.close()
        await broker.close()

    def _messages(self) -> int:
        """Messages in and out of the current incarnation."""
        if self.broker is None:
            return 0
        traffic = self.broker.metrics.traffic()
        return traffic.messages_in + traffic.messages_out

    async def _until_over(self, broker: Broker) -> None:
        stopping = asyncio.ensure_future(self._stopping.wait())
        ended = asyncio.ensure_future(broker.ended())
        await asyncio.wait([stopping, ended], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        ended.cancel()

    @contextlib.asynccontextmanager
    async def _open_security(self) -> AsyncIterator[Authenticator | None]:
        """Who asks clients who they are, following what the options name; None without a
        document. Raises InvalidRequest."""
        options = self._options
        if not options.access.security:
            yield None
            return
        from magnetar.hosting.security.authentication import Authenticator
        from magnetar.hosting.security.source import SecuritySource

        source = SecuritySource(
            Path(options.access.security), self._clock, alone=options.store == EMBEDDED
        )
        self.security = Authenticator(
            source, self._clock, plain_is_internal=options.access.plain == INTERNAL
        )
        following = asyncio.create_task(source.follow(), name="security")
        try:
            yield self.security
        finally:
            following.cancel()

    @contextlib.asynccontextmanager
    async def _open_tls(self) -> AsyncIterator[TlsPort | None]:
        """How this process speaks TLS, following its files; None if it does not. Raises
        InvalidRequest."""
        access = self._options.access
        access.check()
        if not access.tls:
            yield None
            return
        security, certificates = self.security, TlsCertificates(Path(access.tls))
        following = asyncio.create_task(certificates.follow(), name="tls")
        try:
            yield TlsPort(
                certificates,
                lambda: (
                    security.source.current.document.internal_ca_file
                    if security is not None
                    else ""
                ),
                handshakes_max=self._shares.handshakes,
            )
        finally:
            following.cancel()

    def _gate(self, security: Authenticator | None) -> Gate | None:
        """Who is asked before REST answers."""
        if security is None:
            return None
        from magnetar.hosting.security.rest import RestGate

        return RestGate(
            security,
            lambda: self.broker.guard if self.broker is not None and self.broker.ready else None,
        )

    @contextlib.asynccontextmanager
    async def _open_store(self) -> AsyncIterator[tuple[MetadataStore, LeaseFactory]]:
        """The store named by the options, and how to keep a lease in it."""
        options = self._options
        ttl_s, clock = options.settings.lease_ttl_s, self._clock
        store: MetadataStore
        if options.store == EMBEDDED:
            store = embedded = await self._open_embedded()

            def lease(on_lost: Callable[[str], None]) -> Any:
                return LeaseKeeper(embedded, clock, EMBEDDED_LEASE_S, on_lost)
        elif options.store.startswith(ETCD_SCHEME):
            # Imported here: a standalone broker must not pay for gRPC.
            from magnetar.hosting.lease_thread import ThreadedLeaseKeeper
            from magnetar.metadata.backends.etcd import EtcdStore

            def open_etcd() -> EtcdStore:
                return EtcdStore.at(options.store, options.store_tls, clock)

            store = open_etcd()

            def lease(on_lost: Callable[[str], None]) -> Any:
                return ThreadedLeaseKeeper(open_etcd, clock, ttl_s, on_lost)
        else:
            raise InvalidRequest(
                f"store: {options.store!r} is not known; use {EMBEDDED} or {ETCD_SCHEME}host:port"
            )
        try:
            yield store, lease
        finally:
            await store.close()


def default_name() -> str:
    """The broker's name when none is given: the host's, which is the pod's on Kubernetes."""
    return os.environ.get("HOSTNAME") or os.uname().nodename
