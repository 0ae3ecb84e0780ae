"""The keyed work queue.

Owns: which object is reconciled next, deduplication, delays and back-off. Imports: asyncio, clock,
metrics. Invariants: a key is in work at most once at a time; a key added while it is in work is
taken again afterwards, so no change is lost; a failing key waits longer each time and never delays
another; what has changed goes before what is only looked at again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from magnetar.clock import Clock, back_off_s
from magnetar_operator.metrics import OperatorMetrics

BACKOFF_BASE_S = 0.2
BACKOFF_MAX_S = 60.0


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
        self._urgent: OrderedDict[Key, float] = OrderedDict()
        self._routine: OrderedDict[Key, float] = OrderedDict()
        self._working: dict[Key, float] = {}
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, tuple[float, asyncio.TimerHandle]] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        metrics.queue_depth.set_function(lambda: len(self._urgent) + len(self._routine))
        metrics.longest.set_function(lambda: self.longest_work_s)
        metrics.unfinished.set_function(lambda: sum(self._ages()))

    def add(self, key: Key) -> None:
        """Have `key` reconciled soon."""
        self._cancel_timer(key)
        if key in self._working:
            self._again.add(key)
        elif key not in self._urgent:
            since = self._routine.pop(key, None)
            self._line_up(key, self._urgent, since)

    def add_routine(self, key: Key) -> None:
        """Have `key` reconciled when nothing urgent waits: a periodic look at what nothing is
        known to have happened to."""
        if key in self._working:
            return  # this look is under way; if it has failed already, its next appointment stands
        self._cancel_timer(key)
        if key not in self._urgent and key not in self._routine:
            self._line_up(key, self._routine, None)

    def _line_up(self, key: Key, line: OrderedDict[Key, float], since: float | None) -> None:
        line[key] = self._clock.monotonic() if since is None else since
        if since is None:
            self._metrics.queue_adds.inc()
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def add_after(self, key: Key, delay_s: float) -> None:
        """Have `key` reconciled in `delay_s` seconds at the latest; an earlier appointment
        stands."""
        due = self._clock.monotonic() + delay_s
        known = self._timers.get(key)
        if known is not None and known[0] <= due:
            return
        self._cancel_timer(key)
        self._timers[key] = due, asyncio.get_running_loop().call_later(delay_s, self.add, key)

    def add_failed(self, key: Key, at_least_s: float = 0.0) -> float:
        """Have `key` tried again after a back-off that doubles with each failure; the delay in
        seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = max(back_off_s(self._clock, failures, BACKOFF_BASE_S, BACKOFF_MAX_S), at_least_s)
        self._metrics.queue_retries.inc()
        self.add_after(key, delay_s)
        return delay_s

    def succeeded(self, key: Key) -> None:
        """Forget the failures of `key`."""
        self._failures.pop(key, None)

    async def take(self) -> Key:
        """The next key; it is in work until `done`."""
        while not self._urgent and not self._routine:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # this waiter was woken and is cancelled: wake another one
                raise
        key, added = (self._urgent or self._routine).popitem(last=False)
        now = self._clock.monotonic()
        self._metrics.queue_wait.observe(now - added)
        self._working[key] = now
        return key

    def done(self, key: Key) -> None:
        """End of the work on `key`."""
        self._metrics.queue_work.observe(self._clock.monotonic() - self._working.pop(key))
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    @property
    def longest_work_s(self) -> float:
        """Age of the oldest work under way; 0 if there is none."""
        return max(self._ages(), default=0.0)

    def _ages(self) -> list[float]:
        now = self._clock.monotonic()
        return [now - started for started in self._working.values()]

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is in work (appointments aside)."""
        return not self._urgent and not self._routine and not self._working

    def close(self) -> None:
        """Drop all appointments."""
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _cancel_timer(self, key: Key) -> None:
        known = self._timers.pop(key, None)
        if known is not None:
            known[1].cancel()
