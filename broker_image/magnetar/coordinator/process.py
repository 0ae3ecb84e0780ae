"""A transaction coordinator's process.

Owns: the succession of incarnations, the HTTP listener. Imports: the broker's process (signals,
identity, back-off, store and volume). Invariants: SIGTERM and SIGINT mean: give the number back and
leave; an incarnation that has lost its number is followed by another one after a back-off, in the
same process, under a higher epoch; the process exits non-zero only when it cannot start at all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import structlog

from magnetar.broker.process import RESTART_MAX_S, STORE_WAIT_MAX_S, BrokerProcess, ProcessOptions
from magnetar.coordinator.identity import tcid_of
from magnetar.coordinator.incarnation import Coordinator
from magnetar.coordinator.inspection import CoordinatorInspection
from magnetar.coordinator.metrics import CoordinatorMetrics
from magnetar.coordinator.probes import coordinator_application
from magnetar.errors import Fenced, MagnetarError, RestoreAwaited, StorageFull, StoreUnavailable
from magnetar.hosting.http import HttpListener
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.hosting.usage import ProcessUsage
from magnetar.network import AsyncioNetwork

log = structlog.get_logger(__name__)


class CoordinatorProcess(BrokerProcess):
    """Runs until a signal, or until `stop` is called."""

    def __init__(self, options: ProcessOptions) -> None:
        """Raises InvalidRequest for a name without a number."""
        super().__init__(options)
        tcid_of(options.name)
        self.metrics = CoordinatorMetrics()
        self._life: Coordinator | None = None

    def _ready(self) -> bool:
        return self._life is not None and self._life.ready

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
            inspection = CoordinatorInspection(lambda: self._life)
            application = coordinator_application(
                self._ready, self.metrics.exposition, inspection, self._gate(security)
            )
            http = HttpListener(
                application, options.bind_host, options.http_port, connections_max=self._shares.http
            )
            ports = ProcessPorts(
                self._clock, AsyncioNetwork(), volume, store, lease, ProcessUsage(), security, tls
            )
            try:
                await self._lives(ports, await self._identity(http, tls))
            finally:
                await http.close()
                await volume.close()

    async def _lives(self, ports: ProcessPorts, identity: ProcessIdentity) -> None:
        """One incarnation after another."""
        failures, started_once, store_was_unavailable = 0, False, False
        while not self._stopping.is_set():
            life = self._life = Coordinator(ports, identity, self._options.settings, self.metrics)
            longest_s = RESTART_MAX_S
            try:
                if await self._unless_stopping(life.start()):
                    failures, started_once = 0, True
                    await self._unless_stopping(_until_ended(life))
            except (StoreUnavailable, Fenced) as error:
                # The store may come up after us, or another process was quicker: keep trying, alive
                # but not ready.
                log.warning("coordinator.tries_again", error=str(error))
                longest_s, store_was_unavailable = STORE_WAIT_MAX_S, True
            except RestoreAwaited as error:
                if not (started_once or store_was_unavailable):
                    await life.close()
                    raise
                log.warning("coordinator.waits_for_restore", error=str(error))
                longest_s = STORE_WAIT_MAX_S
            except StorageFull as error:
                log.error("coordinator.waits_for_space", error=str(error))
            except (MagnetarError, OSError) as error:
                if not started_once:
                    await life.close()
                    raise
                log.error("coordinator.start_failed", error=str(error))
            if self._stopping.is_set():
                await life.stop()
                return
            await life.close()
            failures += 1
            await self._unless_stopping(asyncio.sleep(self.back_off_s(failures, longest_s)))

    async def _unless_stopping(self, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for `work`, or end it when the process is to stop; whether it was finished.
        Raises what `work` raises."""
        task = asyncio.create_task(work)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            finished = task.done()
        finally:
            stopping.cancel()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return finished


async def _until_ended(life: Coordinator) -> None:
    await life.ended()
