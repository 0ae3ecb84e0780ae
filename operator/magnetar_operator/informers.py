"""Keeping the caches warm.

Owns: the feeds of the object cache (kopf's watches, periodic lists, answers to our own writes), their supervision and their age.
Imports: asyncio, kopf's watching, kubernetes_api, object_cache, metrics.
Invariants: nothing is decided before every kind was listed once; a watch that ended is opened again with back-off, and everything is listed again
then; a watch begins with a list, which does not tell what has gone since ours: after it the kind is listed again; a lost event costs at most one
interval between lists, never convergence; a standby's caches are as warm as the leader's.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from magnetar.clock import Clock, back_off_s
from magnetar.garbage import give_back
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.kubernetes_api import KubernetesApi
from magnetar_operator.metrics import OperatorMetrics
from magnetar_operator.object_cache import Listing, ObjectCache, is_sentinel, shown
from magnetar_operator.refusals import ApiUnavailable, KubernetesError
from magnetar_operator.resources import CUSTOM, Resource
from magnetar_operator.watching import WATCHED, Inbox, Seen, watch, watching_registry

log = structlog.get_logger(__name__)

LIST_PAGE_OBJECTS = 100
"""Small pages: decoding one holds the loop up for a millisecond or two only."""
LONG_LIST_OBJECTS = 1000
"""After a list of so many it is worth some milliseconds to give back what its pages took: 5 of 178 MiB with ten thousand objects."""
RETRY_MIN_S, RETRY_MAX_S = 0.25, 30.0
STEADY_S = 60.0
"""A watch that held for so long begins its back-off anew."""
SHOWN_S = 1.0
"""The list that a watch begins with is over when nothing more of it has come for so long."""
OPENED_S = 10.0
"""A watch that has shown nothing for so long after another one did began with an empty list."""
OVERDUE_S = 10.0
"""A write of ours that its watch has not shown after so long: the watch is dead or far behind."""


class WatchedKind:
    """What is known of the feeds of one kind."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.wanted = asyncio.Event()
        self.wanted.set()
        self.synced = asyncio.Event()
        self.problem = "not listed yet"
        self.last_event = 0.0
        self.watched_version = 0
        self.awaited: deque[tuple[int, float]] = deque()
        self.compare_at = math.inf
        """When to list the kind again because its watch has begun: what went between our last list and its own, neither of them tells."""


class Informers:
    """All feeds of one operator."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache,
        clock: Clock,
        metrics: OperatorMetrics,
        namespaces: Sequence[str],
        own_namespace: str,
        beat: Callable[[], None],
    ) -> None:
        self._api, self._cache, self._clock, self._metrics = api, cache, clock, metrics
        self._namespaces = tuple(namespaces)
        # The sentinel lives beside the Lease, whether or not clusters may.
        self._watched_namespaces = sorted({*namespaces, own_namespace}) if namespaces else []
        self._beat = beat
        self._opening = False
        """Whether the watches were opened and none has shown anything yet."""
        self._kinds = {resource.kind: WatchedKind(resource) for resource in WATCHED}
        now = clock.monotonic()
        for kind, state in self._kinds.items():
            state.last_event = now
            metrics.watch_age.labels(kind).set_function(functools.partial(self._age_s, state))
            metrics.cached.labels(kind).set_function(functools.partial(cache.count, kind))
        metrics.count_resources(cache.standings)

    def _age_s(self, state: WatchedKind) -> float:
        return self._clock.monotonic() - state.last_event

    async def synced(self) -> None:
        """Returns once every kind was listed."""
        for state in self._kinds.values():
            await state.synced.wait()

    def problem(self) -> str:
        """Which kind could not be listed yet and why, or ""."""
        return next((f"{kind}: {state.problem}" for kind, state in self._kinds.items() if not state.synced.is_set()), "")

    async def run(self, resync_s: float, defined: Callable[[], Awaitable[None]]) -> None:
        """Feed the cache until cancelled. `defined` returns once the API server knows all kinds."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(defined), name="watches")
            tasks.create_task(self._notice_gaps(), name="gaps of watches")
            for kind, state in self._kinds.items():
                tasks.create_task(self._list_again_and_again(state, resync_s), name=f"lists of {kind}")

    # --- feeds -----------------------------------------------------------------------------------------------------------------

    def written(self, manifest: Manifest) -> None:
        """The API server's answer to a write of ours: known at once, whenever the watch shows it."""
        state = self._kinds.get(manifest.get("kind", ""))
        if state is None or not self._concerns(state, manifest):
            return
        answer = shown(manifest)
        if self._cache.put(answer) and answer.version > state.watched_version:
            state.awaited.append((answer.version, self._clock.monotonic()))

    def _concerns(self, state: WatchedKind, manifest: Manifest) -> bool:
        metadata = manifest["metadata"]
        if self._namespaces and metadata.get("namespace") not in self._namespaces:
            return False
        managed = metadata.get("labels", {}).get(names.MANAGED_BY) == names.FIELD_MANAGER
        return state.resource.kind in CUSTOM or (managed and not is_sentinel(manifest))

    def seen(self, batch: Iterable[Seen]) -> None:
        """Events of the watches, in their order."""
        now = self._clock.monotonic()
        if self._opening:
            self._opening = False
            for state in self._kinds.values():
                state.compare_at = now + OPENED_S
        for one in batch:
            item = one.object
            state = self._kinds[item.kind]
            if one.by_watch:
                state.last_event = now
                self._metrics.watch_events.labels(item.kind).inc()
            else:
                state.compare_at = now + SHOWN_S
            # A watch begins with a list of its own, and never tells again of what that has shown.
            state.watched_version = max(state.watched_version, item.version)
            while state.awaited and state.awaited[0][0] <= state.watched_version:
                self._metrics.watch_lag.labels(item.kind).observe(now - state.awaited.popleft()[1])
            if one.sentinel:
                self._beat()
            elif not self._namespaces or item.name[0] in self._namespaces:
                if one.gone:
                    self._cache.remove(item)
                else:
                    self._cache.put(item)

    async def _watch(self, defined: Callable[[], Awaitable[None]]) -> None:
        """Keep kopf's watches open."""
        failures = 0
        inbox = Inbox(asyncio.get_running_loop(), self.seen)
        while True:
            await defined()
            stop = threading.Event()
            started = self._clock.monotonic()
            self._opening = True
            watching = asyncio.create_task(watch(watching_registry(inbox.put), self._watched_namespaces, stop), name="kopf")
            try:
                await asyncio.shield(watching)
                problem = "they ended by themselves"
            except asyncio.CancelledError:
                stop.set()
                await asyncio.wait([watching])
                raise
            except Exception as error:  # whatever ends kopf, the operator needs its watches
                problem = f"{type(error).__name__}: {error}"
            failures = 0 if self._clock.monotonic() - started > STEADY_S else failures + 1
            delay_s = back_off_s(self._clock, failures, RETRY_MIN_S, RETRY_MAX_S)
            log.warning("watches.ended", error=problem, again_in_s=round(delay_s, 1))
            self._metrics.watch_restarts.inc()
            await asyncio.sleep(delay_s)
            for state in self._kinds.values():
                state.wanted.set()

    async def _notice_gaps(self) -> None:
        """List a kind again when its watch has begun, and when it does not show what was written."""
        while True:
            await asyncio.sleep(1.0)
            now = self._clock.monotonic()
            for kind, state in self._kinds.items():
                if now >= state.compare_at:
                    state.compare_at = math.inf
                    state.wanted.set()
                if state.awaited and now - state.awaited[0][1] > OVERDUE_S:
                    log.warning("watch.overdue", kind=kind, silent_s=round(now - state.last_event, 1))
                    self._metrics.watch_overdue.labels(kind).inc()
                    state.awaited.clear()
                    state.wanted.set()

    async def _list_again_and_again(self, state: WatchedKind, resync_s: float) -> None:
        failures = 0
        while True:
            state.wanted.clear()
            try:
                complete = await self._list(state)
                failures = 0 if complete else failures + 1
                state.problem = "" if complete else "the API server answers with an older list than before"
            except KubernetesError as error:
                failures += 1
                state.problem = str(error)
                if error.status == 404:
                    self._cache.clear(state.resource.kind)  # the kind itself is gone, and its objects with it
                after_s = error.retry_after_s if isinstance(error, ApiUnavailable) else 0.0
                log.warning("list.failed", kind=state.resource.kind, error=str(error))
                await asyncio.sleep(after_s)
            if failures:
                await asyncio.sleep(back_off_s(self._clock, failures, RETRY_MIN_S, RETRY_MAX_S))
                continue
            state.synced.set()
            try:
                async with asyncio.timeout(resync_s * self._clock.uniform(0.9, 1.1)):
                    await state.wanted.wait()
            except TimeoutError:
                continue

    async def _list(self, state: WatchedKind) -> bool:
        """Compare the cache with a list; False if the list was older than the last one. Raises KubernetesError."""
        resource = state.resource
        selector = "" if resource.kind in CUSTOM else names.WATCH_SELECTOR
        for namespace in self._namespaces or ("",):
            listing = self._cache.listing(resource.kind, namespace)
            async for page in self._api.pages(resource, namespace, selector, LIST_PAGE_OBJECTS):
                items = [item for item in page.items if not is_sentinel(item)]
                if not self._cache.page(listing, int(page.version or 0), items):
                    self._metrics.stale_lists.labels(resource.kind).inc()
                    return False
            self._cache.finish(listing)
            self._count(state, listing)
            if len(listing.seen) >= LONG_LIST_OBJECTS:
                give_back()
        return True

    def _count(self, state: WatchedKind, listing: Listing) -> None:
        """What a list told that no watch had is worth a number; the first list tells everything."""
        if state.synced.is_set() and listing.missed:
            self._metrics.list_news.labels(state.resource.kind).inc(listing.missed)
            log.info("list.news", kind=state.resource.kind, objects=listing.missed)
