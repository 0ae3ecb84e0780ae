"""The keyed work queue.

Owns: which object is reconciled next, deduplication, delays and back-off. Imports: asyncio, clock, metrics.
Invariants: a key is in work at most once at a time; a key added while it is in work is taken again afterwards, so no change is lost; a failing key
waits longer each time and never delays another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from magnetar.clock import Clock
from magnetar_operator.metrics import QUEUE, OperatorMetrics

BACKOFF_BASE_S = 0.2
BACKOFF_MAX_S = 60.0
JITTER = 0.3


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One custom resource."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class WorkQueue:
    """Keys that want attention."""

    def __init__(self, clock: Clock, metrics: OperatorMetrics) -> None:
        self._clock, self._metrics = clock, metrics
        self._waiting: deque[Key] = deque()
        self._added: dict[Key, float] = {}
        self._working: dict[Key, float] = {}
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, tuple[float, asyncio.TimerHandle]] = {}
        self._wakeup = asyncio.Event()

    def add(self, key: Key) -> None:
        """Have `key` reconciled soon."""
        self._cancel_timer(key)
        if key in self._working:
            self._again.add(key)
        elif key not in self._added:
            self._added[key] = self._clock.monotonic()
            self._waiting.append(key)
            self._metrics.queue_adds.labels(QUEUE).inc()
            self._wakeup.set()
        self._measure()

    def add_after(self, key: Key, delay_s: float) -> None:
        """Have `key` reconciled in `delay_s` seconds at the latest; an earlier appointment stands."""
        due = self._clock.monotonic() + delay_s
        known = self._timers.get(key)
        if known is not None and known[0] <= due:
            return
        self._cancel_timer(key)
        self._timers[key] = due, asyncio.get_running_loop().call_later(delay_s, self.add, key)

    def add_failed(self, key: Key, at_least_s: float = 0.0) -> float:
        """Have `key` tried again after a back-off that doubles with each failure; the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay: float = min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2 ** min(failures, 20)) * self._clock.uniform(1 - JITTER, 1 + JITTER)
        self._metrics.queue_retries.labels(QUEUE).inc()
        self.add_after(key, max(delay, at_least_s))
        return max(delay, at_least_s)

    def succeeded(self, key: Key) -> None:
        """Forget the failures of `key`."""
        self._failures.pop(key, None)

    async def take(self) -> Key:
        """The next key; it is in work until `done`."""
        while not self._waiting:
            self._wakeup.clear()
            await self._wakeup.wait()
        key = self._waiting.popleft()
        now = self._clock.monotonic()
        self._metrics.queue_wait.labels(QUEUE).observe(now - self._added.pop(key))
        self._working[key] = now
        self._measure()
        return key

    def done(self, key: Key) -> None:
        """End of the work on `key`."""
        self._metrics.queue_work.labels(QUEUE).observe(self._clock.monotonic() - self._working.pop(key))
        if key in self._again:
            self._again.discard(key)
            self.add(key)
        self._measure()

    @property
    def longest_work_s(self) -> float:
        """Age of the oldest work under way; 0 if there is none."""
        return max((self._clock.monotonic() - started for started in self._working.values()), default=0.0)

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in work (appointments aside)."""
        return not self._waiting and not self._working

    def close(self) -> None:
        """Drop all appointments."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _cancel_timer(self, key: Key) -> None:
        known = self._timers.pop(key, None)
        if known is not None:
            known[1].cancel()

    def _measure(self) -> None:
        self._metrics.queue_depth.labels(QUEUE).set(len(self._waiting))
        self._metrics.longest.labels(QUEUE).set(self.longest_work_s)
