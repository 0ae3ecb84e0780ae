"""The reconcile loop.

Owns: the workers, what happens after a pass (appointment, back-off, condition), the periodic
resync. Imports: asyncio, work_queue, world, reconcilers. Invariants: one bad object never stops the
others, and no error ends a worker; a pass that could not finish is tried again with back-off;
workers take nothing while this process does not lead, and nothing of a namespace that may not be
read; every known object is looked at again once per resync, so a lost event costs time, never
convergence.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import structlog

from magnetar.errors import MagnetarError
from magnetar_operator import names
from magnetar_operator.brokers import reconciler as broker_cluster
from magnetar_operator.builders.etcd_tls import client_secret
from magnetar_operator.conditions import Reason
from magnetar_operator.coordinators import reconciler as transaction_coordinator
from magnetar_operator.coordinators import withdrawing
from magnetar_operator.engine import passes
from magnetar_operator.engine.work_queue import Key, WorkQueue
from magnetar_operator.engine.world import InvalidResource, World, stopped_status
from magnetar_operator.jobs import reconciler as data_job
from magnetar_operator.kube.errors import (
    ApiConflict,
    ApiRefused,
    ApiUnavailable,
    KubernetesError,
    NamespaceTerminating,
    NotLeading,
)
from magnetar_operator.kube.kinds import CUSTOM
from magnetar_operator.metrics import OperatorMetrics, PassMetrics
from magnetar_operator.namespaces import reconciler as topic_namespace
from magnetar_operator.namespaces import release as namespace_release

log = structlog.get_logger(__name__)

Reconciler = Callable[[World, Key], Awaitable[float | None]]
RECONCILERS: dict[str, Reconciler] = {
    "BrokerCluster": broker_cluster.reconcile,
    "TransactionCoordinator": transaction_coordinator.reconcile,
    "TopicNamespace": topic_namespace.reconcile,
    "DataJob": data_job.reconcile,
}
PASS_TIMEOUT_S = 60.0
TERMINATING_S = 60.0
STANDBY_POLL_S = 0.5
REFUSED_POLL_S = 10.0


class Controller:
    """Takes keys and reconciles them."""

    def __init__(
        self,
        world: World,
        queue: WorkQueue,
        metrics: OperatorMetrics,
        leading: Callable[[], bool],
        workers: int,
    ) -> None:
        self._world, self._queue, self._metrics, self._leading, self._workers = (
            world,
            queue,
            metrics,
            leading,
            workers,
        )
        self._promoted = asyncio.Event()
        self._measured: dict[str, PassMetrics] = {}
        self.completed = 0
        """Passes so far, of every outcome."""
        self._passes = itertools.count(world.clock.random_bits(32))
        """Names of passes in the log: they begin anywhere, so that two processes seldom share
        one. Drawing each costs a system call per pass."""

    def leadership_changed(self, leading: bool) -> None:
        """Begin to work, or stop taking keys."""
        if leading:
            self._promoted.set()
        else:
            self._promoted.clear()
            self._metrics.autoscaling.clear()
        self._world.stores.leadership_changed()

    async def run(self, resync_s: float) -> None:
        """Work until cancelled."""
        for kind in RECONCILERS:
            self._metrics.workers_max.labels(kind).set(self._workers)
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"worker {number}")
            tasks.create_task(self._resync(resync_s), name="resync")

    async def _work(self) -> None:
        while True:
            await self._promoted.wait()
            key = await self._queue.take()
            try:
                if not self._leading():
                    self._queue.add_after(key, STANDBY_POLL_S)
                elif self._world.refused(key.namespace):
                    # What is not known there would be taken for gone.
                    self._queue.add_after(key, REFUSED_POLL_S)
                else:
                    await self._reconcile(key)
            finally:
                self._queue.done(key)

    async def _reconcile(self, key: Key) -> None:
        """One pass, measured; never raises: an error of our own on one object is no reason to
        leave all others alone."""
        metrics, kind = self._metrics, key.kind
        measured = self._measured.get(kind) or self._measured.setdefault(
            kind, metrics.of_passes(kind)
        )
        started = self._world.clock.monotonic()
        one = passes.begin(str(key), f"{next(self._passes) & 0xFFFFFFFF:08x}")
        measured.active.inc()
        result = "error"
        try:
            async with asyncio.timeout(PASS_TIMEOUT_S):
                again_s = await RECONCILERS[kind](self._world, key)
            result = "success" if again_s is None else "requeue_after"
            self._queue.succeeded(key)
            if again_s is not None:
                self._queue.add_after(key, again_s)
            if not one.effects:
                measured.steady.inc()
            metrics.last_success.labels(kind).set(self._world.clock.wall_ms() / 1000)
        except (MagnetarError, TimeoutError) as error:
            await self._failed(key, error)
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # of something that a library had under way, not of this worker
            await self._broken(key, error)
        except Exception as error:
            await self._broken(key, error)
        finally:
            self.completed += 1
            measured.active.dec()
            measured.results[result].inc()
            measured.seconds.observe(self._world.clock.monotonic() - started)

    async def _failed(self, key: Key, error: MagnetarError | TimeoutError) -> None:
        """Back off; write on the object what only a person can repair."""
        if isinstance(error, NamespaceTerminating):
            await self._leave(key, error)
            return
        delay_s = self._queue.add_failed(
            key, error.retry_after_s if isinstance(error, ApiUnavailable) else 0.0
        )
        if isinstance(error, ApiConflict | NotLeading):
            log.info("reconcile.again", error=str(error), delay_s=round(delay_s, 1))
            return
        self._metrics.reconcile_errors.labels(key.kind).inc()
        log.warning(
            "reconcile.failed", error=f"{type(error).__name__}: {error}", delay_s=round(delay_s, 1)
        )
        if isinstance(error, TimeoutError):
            self._metrics.timeouts.labels(key.kind).inc()
        elif isinstance(error, InvalidResource):
            self._metrics.terminal_errors.labels(key.kind).inc()
            await self._inform(key, Reason.INVALID_SPEC, str(error))
        elif isinstance(error, ApiRefused):
            self._metrics.terminal_errors.labels(key.kind).inc()
            await self._inform(key, Reason.REFUSED, str(error))

    async def _leave(self, key: Key, error: NamespaceTerminating) -> None:
        """Its namespace is being deleted: nothing is created in it for a while, perhaps never
        again. What is deleted in it is still seen."""
        self._queue.add_after(key, TERMINATING_S)
        log.info("reconcile.namespace_terminating", error=str(error), delay_s=TERMINATING_S)
        await self._inform(
            key, Reason.NAMESPACE_TERMINATING, f"namespace {key.namespace} is being deleted"
        )

    async def _broken(self, key: Key, error: BaseException) -> None:
        """An unforeseen error: the log has all of it, the object its name."""
        delay_s = self._queue.add_failed(key)
        self._metrics.reconcile_errors.labels(key.kind).inc()
        self._metrics.panics.labels(key.kind).inc()
        log.error("reconcile.broken", error=repr(error), delay_s=round(delay_s, 1), exc_info=error)
        await self._inform(key, Reason.OPERATOR_ERROR, f"{type(error).__name__} in the operator")

    async def _inform(self, key: Key, reason: Reason, message: str) -> None:
        """Put the failure into the object's conditions; the object itself may not fit the
        models."""
        try:
            found = await self._world.api.get(CUSTOM[key.kind], key.namespace, key.name)
            status = (
                stopped_status(found, reason, f"{message}. {reason.remedy}", self._world.clock)
                if found is not None
                else None
            )
            if status is not None:
                await self._world.api.apply(status, "status")
        except KubernetesError as error:
            log.warning("status.failed", error=str(error))

    async def _resync(self, resync_s: float) -> None:
        """Look at everything that exists, periodically; also where no event showed it."""
        while True:
            await self._promoted.wait()
            try:
                await self.enqueue_all()
                for key in [
                    *await namespace_release.orphans(self._world),
                    *await withdrawing.orphans(self._world),
                ]:
                    self._queue.add(key)
            except KubernetesError as error:
                log.warning("resync.failed", error=str(error))
            await asyncio.sleep(resync_s * self._world.clock.uniform(0.9, 1.1))

    async def enqueue_all(self) -> None:
        """Enqueue every custom resource, and forget the stores of clusters that are gone. Raises
        KubernetesError."""
        secrets: set[tuple[str, str]] | None = set()
        for kind in RECONCILERS:
            for key in self._world.keys(kind):
                self._queue.add_routine(key)
                if kind == "BrokerCluster" and secrets is not None:
                    try:
                        cluster = await self._world.cluster(key.namespace, key.name)
                        if cluster is not None:
                            secrets.add(
                                (cluster.namespace, client_secret(cluster, names.OPERATOR_USER))
                            )
                    except InvalidResource:
                        secrets = None
        self._world.retain_stores()
        if secrets is not None:
            self._world.credentials.forget(secrets)
