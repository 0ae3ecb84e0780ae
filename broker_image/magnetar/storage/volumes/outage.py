"""When requests to an object service may be sent while it refuses them.

Owns: `SharedBackOff`, one per process and service. Imports: asyncio, clock, structlog. Why: a
service that throttles recovers sooner if each process sends one request per pause instead of one
per caller and pause. Invariants: while nothing has succeeded since the last failure, one request is
sent per pause, and the pause doubles; the first success releases all callers at once; an outage is
logged when it begins and when it ends, and at most every `REPORT_S` in between.
"""

from __future__ import annotations

import asyncio

import structlog

from magnetar.clock import Clock, back_off_s

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 2.0
REPORT_AFTER_S = 1.0
REPORT_S = 10.0
STALE_S = 60.0
"""A failure so long ago says nothing of an outage now: no request with its timeout and pause
takes as long."""


class SharedBackOff:
    """Each request: `turn`, then `succeeded` or `failed` with what `turn` returned."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = self._successes = 0
        self._next_s = self._report_s = self._last_s = 0.0
        self._reachable = asyncio.Event()
        self.since_s: float | None = None
        """Monotonic time of the first failure since the last success."""

    async def turn(self) -> int:
        """Wait until a request may be sent; a mark of this moment."""
        while self._failures:
            now = self._clock.monotonic()
            if now >= self._next_s:
                # the others wait for the outcome of this one, or that long
                self._next_s = now + self._pause_s()
                break
            try:
                async with asyncio.timeout(self._next_s - now):
                    await self._reachable.wait()
            except TimeoutError:
                continue
        return self._successes

    def failed(self, mark: int, error: Exception, *, throttled: bool) -> None:
        """A request failed. It says nothing of the service if another one has succeeded since it
        was sent, unless the service asked for fewer requests."""
        if mark != self._successes and not throttled:
            return
        now = self._clock.monotonic()
        if self.since_s is None or now - self._last_s > STALE_S:
            self._failures, self.since_s, self._report_s = 0, now, now + REPORT_AFTER_S
        self._failures, self._last_s = self._failures + 1, now
        self._reachable.clear()
        self._next_s = max(self._next_s, now + self._pause_s())
        if now >= self._report_s:
            self._report_s = now + REPORT_S
            log.warning("objects.unavailable", for_s=round(now - self.since_s, 1), error=str(error))

    def succeeded(self) -> None:
        """A request was answered."""
        self._successes += 1
        if self.since_s is None:
            return
        outage_s = self._clock.monotonic() - self.since_s
        if outage_s >= REPORT_AFTER_S:
            log.info("objects.available", after_s=round(outage_s, 1))
        self._failures, self.since_s = 0, None
        self._reachable.set()

    def _pause_s(self) -> float:
        return back_off_s(self._clock, max(0, self._failures - 1), FIRST_PAUSE_S, LAST_PAUSE_S)
