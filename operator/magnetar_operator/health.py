"""Liveness that proves progress.

Owns: the sentinel ConfigMap, the verdicts behind /live and /ready, and the HTTP listener. Imports:
asyncio, aiohttp, clock, kube.api, metrics. Invariants: /live says ok only while the event loop
turns, no pass hangs, and what the leader writes comes back through the watches; a standby is alive
as long as its loop turns, because no process may be leading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from aiohttp import web

from magnetar.clock import Clock
from magnetar_operator import names
from magnetar_operator.engine.work_queue import WorkQueue
from magnetar_operator.kube.api import KubernetesApi
from magnetar_operator.kube.errors import KubernetesError
from magnetar_operator.metrics import OperatorMetrics

log = structlog.get_logger(__name__)

BEAT_S = 20.0
BEATS_MISSED_MAX = 5
LOOP_SILENCE_MAX_S = 10.0
PASS_MAX_S = 120.0
HEARTBEAT_S = 1.0
PROMETHEUS_TYPE = "text/plain"


class Health:
    """Collects signs of life and judges them."""

    def __init__(
        self, clock: Clock, queue: WorkQueue, leading: Callable[[], bool], unread: Callable[[], str]
    ) -> None:
        """`unread` names the kind that could not be listed yet and why, or is ""."""
        self._clock, self._queue, self._leading, self._unread = clock, queue, leading, unread
        now = clock.monotonic()
        self._turned, self._seen, self._led_since = now, now, now
        self._was_leading = False
        self.watching = False

    def saw_sentinel(self) -> None:
        """A sentinel's event arrived: the watches work."""
        self._seen = self._clock.monotonic()
        self.watching = True

    def verdict(self) -> str:
        """What is wrong, or ""."""
        now = self._clock.monotonic()
        if now - self._turned > LOOP_SILENCE_MAX_S:
            return f"the event loop has been stuck for {now - self._turned:.0f} s"
        if self._queue.longest_work_s > PASS_MAX_S:
            return f"a pass has been running for {self._queue.longest_work_s:.0f} s"
        silent_s = now - max(self._seen, self._led_since)
        if self._leading() and silent_s > BEAT_S * BEATS_MISSED_MAX:
            return f"the watches have shown nothing of the sentinel for {silent_s:.0f} s"
        return ""

    def unready(self) -> str:
        """What is missing until this process could take over, or ""."""
        unread = self._unread()
        return (
            f"not everything is known yet: {unread}"
            if unread
            else ""
            if self.watching
            else "the watches are not open yet"
        )

    async def pulse(self) -> None:
        """Note that the loop turns, until cancelled."""
        while True:
            self._turned = self._clock.monotonic()
            leading = self._leading()
            if leading and not self._was_leading:
                self._led_since = self._turned
            self._was_leading = leading
            await asyncio.sleep(HEARTBEAT_S)


async def beat(
    api: KubernetesApi,
    clock: Clock,
    metrics: OperatorMetrics,
    namespace: str,
    name: str,
    leading: Callable[[], bool],
) -> None:
    """While this process leads, change the sentinel every `BEAT_S`; until cancelled."""
    while True:
        if leading():
            manifest = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": f"{name}-sentinel",
                    "namespace": namespace,
                    "labels": {names.SENTINEL: "true", names.MANAGED_BY: names.FIELD_MANAGER},
                },
                "data": {"beat": str(clock.wall_ms())},
            }
            try:
                await api.apply(manifest)
                metrics.beats.inc()
            except KubernetesError as error:
                log.warning("sentinel.failed", error=str(error))
        await asyncio.sleep(BEAT_S if leading() else HEARTBEAT_S)


def application(health: Health, metrics: OperatorMetrics) -> web.Application:
    """/live, /ready and /metrics."""

    async def live(_: web.Request) -> web.Response:
        problem = health.verdict()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def ready(_: web.Request) -> web.Response:
        problem = health.unready()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def exposition(_: web.Request) -> web.Response:
        # Tens of milliseconds of text: no reconciliation waits for it.
        return web.Response(
            body=await asyncio.to_thread(metrics.render),
            content_type=PROMETHEUS_TYPE,
            charset="utf-8",
        )

    application = web.Application()
    application.add_routes(
        [web.get("/live", live), web.get("/ready", ready), web.get("/metrics", exposition)]
    )
    return application


async def serve_http(
    app: web.Application, host: str, port: int, bound: Callable[[int], None]
) -> None:
    """Serve until cancelled; `bound` gets the port. Raises OSError naming the address if it is
    taken."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        bound(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
