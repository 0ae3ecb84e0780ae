"""The operator process.

Owns: putting the parts together, their order of start and end. Imports: every part. Invariants:
watches run on a standby too, so a new leader knows all keys; on SIGTERM nothing new is begun and
the Lease is released.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import structlog
import uvloop

from magnetar.clock import Clock, SystemClock
from magnetar.hosting.garbage import GarbageSchedule
from magnetar_operator.engine.controller import Controller
from magnetar_operator.engine.work_queue import Key, WorkQueue
from magnetar_operator.engine.world import World
from magnetar_operator.etcd.credentials import EtcdCredentials
from magnetar_operator.health import Health, application, beat, serve_http
from magnetar_operator.kube.api import KubernetesApi, connect
from magnetar_operator.kube.cache import ObjectCache, Shown, owner_of
from magnetar_operator.kube.connection import Connection
from magnetar_operator.kube.errors import KubernetesError
from magnetar_operator.kube.events import Events
from magnetar_operator.kube.informers import Informers
from magnetar_operator.kube.kinds import CUSTOM, GROUP_VERSION_PATH
from magnetar_operator.kube.leadership import Leadership
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.settings import OperatorSettings
from magnetar_operator.stores.connections import Stores

log = structlog.get_logger(__name__)
library = structlog.get_logger("library")

DEFINITIONS_POLL_S = 2.0
SWITCH_INTERVAL_S = 0.0005
"""How long a thread that could work waits for the one that does. kopf's thread takes several
turns for an event; at the interpreter's own 5 ms each, a resync of ten thousand objects held
every edit up."""
QUIET_PASSES = 5
"""Passes in some seconds beside which a full garbage collection delays nothing."""


class Operator:
    """One operator process: all parts, their start and end."""

    def __init__(self, settings: OperatorSettings, connection: Connection, clock: Clock) -> None:
        self.settings, self.metrics = settings, OperatorMetrics()
        self.queue = WorkQueue(clock, self.metrics)
        self._connection, self._clock = connection, clock
        identity = f"{settings.identity}_{clock.random_bits(32):08x}"
        self.leadership = Leadership(
            clock,
            self.metrics,
            settings.lease_namespace,
            settings.lease_name,
            identity,
            self._leadership_changed,
        )
        may_write = self.leadership.may_write
        self.cache = ObjectCache(self._changed)
        self.api = KubernetesApi(
            connection,
            clock,
            self.metrics,
            may_write,
            lambda manifest: self.informers.written(manifest),
        )
        self.stores = Stores(clock, self.metrics, identity, may_write, self._owned_changed)
        events = Events(self.api, clock, self.metrics, identity)
        credentials = EtcdCredentials(self.api)
        self.metrics.show_certificates(lambda: credentials.seconds_left(clock.wall_ms()))
        self.world = World(
            self.api,
            self.stores,
            events,
            clock,
            settings.defaults,
            settings.namespaces,
            self.cache,
            credentials,
            self.metrics.autoscaling,
            lambda namespace: self.informers.refused(namespace),
            jobs=self.metrics.jobs,
            look_at=self.queue.add,
        )
        self.controller = Controller(
            self.world, self.queue, self.metrics, self._leads, settings.workers
        )
        self.health = Health(clock, self.queue, self._leads, lambda: self.informers.problem())
        self.informers = Informers(
            self.api,
            self.cache,
            clock,
            self.metrics,
            settings.namespaces,
            settings.lease_namespace,
            self.health.saw_sentinel,
        )
        self.http_port = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Raises what ended a part that should not end."""
        settings = self.settings
        http = serve_http(
            application(self.health, self.metrics),
            settings.http_host,
            settings.http_port,
            self._bound,
        )
        parts = [
            asyncio.create_task(http, name="http"),
            asyncio.create_task(self.health.pulse(), name="pulse"),
        ]
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await self._until_defined(stopping)
            if stop.is_set():
                return
            lease = asyncio.create_task(self.leadership.run(self._connection), name="lease")
            informers = self.informers.run(settings.resync_s, self._require_definitions)
            watching = asyncio.create_task(informers, name="watch")
            sentinel = beat(
                self.api,
                self._clock,
                self.metrics,
                settings.lease_namespace,
                settings.lease_name,
                self._leads,
            )
            parts += [
                asyncio.create_task(sentinel, name="sentinel"),
                asyncio.create_task(self._control(), name="controller"),
            ]
            done, _ = await asyncio.wait(
                [stopping, lease, watching, *parts], return_when=asyncio.FIRST_COMPLETED
            )
            # Work ends before the Lease is given up, so that the successor meets no unfinished
            # pass.
            await _cancelled(parts)
            await _cancelled([lease])
            await _cancelled([watching])
            for task in done:
                task.result()
        finally:
            await _cancelled([stopping, *parts])
            self.queue.close()
            await self.stores.close()

    async def _control(self) -> None:
        """Work, once everything is known: who knows a part would delete and conclude too much."""
        await self.informers.synced()
        self.metrics.synced.set(self._clock.wall_ms() / 1000)
        garbage = GarbageSchedule(lambda: self.controller.completed, QUIET_PASSES)
        garbage.begin()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(garbage.run(), name="garbage collection")
                tasks.create_task(self.controller.run(self.settings.resync_s), name="workers")
        finally:
            garbage.end()

    def _leads(self) -> bool:
        return self.leadership.leading

    async def _until_defined(self, stopping: asyncio.Task[Any]) -> None:
        """Wait for the definitions, or for the end."""
        defined = asyncio.create_task(self._require_definitions(), name="definitions")
        await asyncio.wait([defined, stopping], return_when=asyncio.FIRST_COMPLETED)
        await _cancelled([defined])

    async def _require_definitions(self) -> None:
        """Wait until the API server knows our kinds: a watch of an unknown kind would never report
        anything."""
        while True:
            try:
                found = await self.api.discover(GROUP_VERSION_PATH)
                known = (
                    {item["kind"] for item in found["resources"]} if found is not None else set()
                )
                if set(CUSTOM) <= known:
                    return
                log.warning(
                    "definitions.missing",
                    kinds=sorted(set(CUSTOM) - known),
                    remedy="kubectl apply -f crds/",
                )
            except KubernetesError as error:
                log.warning("definitions.unknown", error=str(error))
            await asyncio.sleep(DEFINITIONS_POLL_S)

    def _changed(self, object_changed: Shown, _gone: bool) -> None:
        key = owner_of(object_changed)
        if key is not None:
            self.queue.add(key)

    def _owned_changed(self, owner: str) -> None:
        """Another writer changed a record that a resource owns."""
        namespace, _, name = owner.partition("/")
        if self.cache.get("TopicNamespace", namespace, name) is not None:
            self.queue.add(Key("TopicNamespace", namespace, name))

    def _leadership_changed(self, leading: bool) -> None:
        self.controller.leadership_changed(leading)

    def _bound(self, port: int) -> None:
        self.http_port = port
        log.info("operator.http", port=port)


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve(
    settings: OperatorSettings,
    stop: asyncio.Event | None = None,
    started: Callable[[Operator], None] | None = None,
) -> None:
    """Run one operator until `stop` is set (if given) or SIGTERM or SIGINT comes. Raises
    KubernetesError without an API server to talk to."""
    if stop is None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    connection = await connect()
    try:
        operator = Operator(settings, connection, SystemClock())
        if started is not None:
            started(operator)
        await operator.run(stop)
    finally:
        await connection.close()


class _Structured(logging.Handler):
    """What libraries log (kopf, asyncio, aiohttp), as lines of the same form as ours."""

    def emit(self, record: logging.LogRecord) -> None:
        library.log(
            record.levelno,
            "library.log",
            logger=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info,
        )


def run(namespaces: Sequence[str] = (), settings: OperatorSettings | None = None) -> None:
    """What `magnetar operator` does. Raises InvalidRequest for settings that will not do,
    KubernetesError without an API server."""
    logging.basicConfig(level=logging.WARNING, handlers=[_Structured()])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(serve(settings or OperatorSettings.from_environment(os.environ, namespaces)))
