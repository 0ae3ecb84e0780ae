"""Keeping the caches warm.

Owns: the feeds of the object cache (kopf's watches, periodic lists, answers to our own writes),
their supervision and their age; which of the watched namespaces may not be read. Imports: asyncio,
kopf's watching, kube.api, kube.cache, metrics. Invariants: nothing is decided before every kind was
listed once; a watch that ended is opened again with back-off, and everything is listed again then;
a watch begins with a list, which does not show what has gone since ours: after it the kind is
listed again; a lost event costs at most one interval between lists, never convergence; a standby's
caches are as warm as the leader's; a namespace that may not be read (its roles went with it) costs
the others nothing, and nothing is decided in it until every kind was listed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from magnetar.clock import Clock, back_off_s
from magnetar.hosting.garbage import give_back
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest
from magnetar_operator.kube.api import KubernetesApi
from magnetar_operator.kube.cache import Listing, ObjectCache, is_sentinel, shown
from magnetar_operator.kube.errors import ApiUnavailable, KubernetesError
from magnetar_operator.kube.kinds import CUSTOM, Resource
from magnetar_operator.kube.watching import WATCHED, Inbox, Seen, watch, watching_registry
from magnetar_operator.metrics import OperatorMetrics

log = structlog.get_logger(__name__)

LIST_PAGE_OBJECTS = 100
"""Small pages: decoding one delays the loop by a millisecond or two only."""
LONG_LIST_OBJECTS = 1000
"""After a list of so many it is worth some milliseconds to give back what its pages took: 5 of
178 MiB with ten thousand objects."""
RETRY_MIN_S, RETRY_MAX_S = 0.25, 30.0
FORBIDDEN = 403
STEADY_S = 60.0
"""A watch that held for so long begins its back-off again."""
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
        self.refused: dict[str, str] = {}
        """Namespaces whose list the API server has refused, and its words; never all that are
        watched."""
        self.compare_at = math.inf
        """When to list the kind again because its watch has begun: what went between our last
        list and its own, neither of them shows."""


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
        self._namespaces = tuple(dict.fromkeys(namespaces))
        self._own_namespace = own_namespace
        self._refused: frozenset[str] = frozenset()
        self._refused_changed = asyncio.Event()
        self._beat = beat
        self._opening = False
        """Whether the watches were opened and none has shown anything yet."""
        self._kinds = {resource.kind: WatchedKind(resource) for resource in WATCHED}
        now = clock.monotonic()
        for kind, state in self._kinds.items():
            state.last_event = now
            metrics.watch_age.labels(kind).set_function(functools.partial(self._age_s, state))
            metrics.cached.labels(kind).set_function(functools.partial(cache.count, kind))
        metrics.refused_namespaces.set_function(lambda: len(self._refused))
        metrics.count_resources(cache.standings)

    def _age_s(self, state: WatchedKind) -> float:
        return self._clock.monotonic() - state.last_event

    async def synced(self) -> None:
        """Returns once every kind was listed."""
        for state in self._kinds.values():
            await state.synced.wait()

    def problem(self) -> str:
        """Which kind could not be listed yet and why, or ""."""
        return next(
            (
                f"{kind}: {state.problem}"
                for kind, state in self._kinds.items()
                if not state.synced.is_set()
            ),
            "",
        )

    def refused(self, namespace: str) -> bool:
        """Whether some kind may not be read in a namespace: what exists there is not known."""
        return namespace in self._refused

    async def run(self, resync_s: float, defined: Callable[[], Awaitable[None]]) -> None:
        """Feed the cache until cancelled. `defined` returns once the API server knows all kinds."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(defined), name="watches")
            tasks.create_task(self._notice_gaps(), name="gaps of watches")
            for kind, state in self._kinds.items():
                tasks.create_task(
                    self._list_again_and_again(state, resync_s), name=f"lists of {kind}"
                )

    # --- feeds ------------------------------------------------------------------------------------

    def written(self, manifest: Manifest) -> None:
        """The API server's answer to a write of ours: known at once, whenever the watch shows
        it."""
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
            # A watch begins with a list of its own, and never repeats what that has shown.
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
            started = self._clock.monotonic()
            problem = await self._watch_while_unchanged(inbox)
            self._metrics.watch_restarts.inc()
            if problem:
                failures = 0 if self._clock.monotonic() - started > STEADY_S else failures + 1
                delay_s = back_off_s(self._clock, failures, RETRY_MIN_S, RETRY_MAX_S)
                log.warning("watches.ended", error=problem, again_in_s=round(delay_s, 1))
                await asyncio.sleep(delay_s)
            for state in self._kinds.values():
                state.wanted.set()

    async def _watch_while_unchanged(self, inbox: Inbox) -> str:
        """Keep watches open until they end, or until other namespaces may be read than now; why
        they ended, "" in the latter case.

        kopf ends all of its watches for one that is refused, after a minute of attempts: it gets no
        namespace that is.
        """
        self._refused_changed.clear()
        stop, self._opening = threading.Event(), True
        watching = asyncio.create_task(
            watch(watching_registry(inbox.put), self._watched_namespaces(), stop), name="kopf"
        )
        changed = asyncio.create_task(
            self._refused_changed.wait(), name="other namespaces may be read"
        )
        try:
            ended, _ = await asyncio.wait([watching, changed], return_when=asyncio.FIRST_COMPLETED)
            stop.set()
            await asyncio.wait([watching])
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([watching])
            raise
        finally:
            changed.cancel()
        if changed in ended:
            return ""
        error = watching.exception()
        return (
            f"{type(error).__name__}: {error}" if error is not None else "they ended by themselves"
        )

    def _watched_namespaces(self) -> list[str]:
        """Those that kopf watches; none = all."""
        # The sentinel is beside the Lease, whether or not clusters may.
        return (
            sorted({*(set(self._namespaces) - self._refused), self._own_namespace})
            if self._namespaces
            else []
        )

    async def _notice_gaps(self) -> None:
        """List a kind again when its watch has begun, and when it does not show what was
        written."""
        while True:
            await asyncio.sleep(1.0)
            now = self._clock.monotonic()
            for kind, state in self._kinds.items():
                if now >= state.compare_at:
                    state.compare_at = math.inf
                    state.wanted.set()
                if state.awaited and now - state.awaited[0][1] > OVERDUE_S:
                    log.warning(
                        "watch.overdue", kind=kind, silent_s=round(now - state.last_event, 1)
                    )
                    self._metrics.watch_overdue.labels(kind).inc()
                    state.awaited.clear()
                    state.wanted.set()

    async def _list_again_and_again(self, state: WatchedKind, resync_s: float) -> None:
        failures, refusals, all_due = 0, 0, self._clock.monotonic()
        while True:
            every = state.wanted.is_set() or self._clock.monotonic() >= all_due
            state.wanted.clear()
            try:
                complete = await self._list(
                    state, (self._namespaces or ("",)) if every else tuple(state.refused)
                )
                failures = 0 if complete else failures + 1
                state.problem = (
                    "" if complete else "the API server answers with an older list than before"
                )
            except KubernetesError as error:
                failures += 1
                state.problem = str(error)
                if error.status == 404:
                    # the kind itself is gone, and its objects with it
                    self._cache.clear(state.resource.kind)
                after_s = error.retry_after_s if isinstance(error, ApiUnavailable) else 0.0
                log.warning("list.failed", kind=state.resource.kind, error=str(error))
                await asyncio.sleep(after_s)
            if failures:
                all_due = self._clock.monotonic()
                await asyncio.sleep(back_off_s(self._clock, failures, RETRY_MIN_S, RETRY_MAX_S))
                continue
            state.synced.set()
            if every:
                all_due = self._clock.monotonic() + resync_s * self._clock.uniform(0.9, 1.1)
            refusals = refusals + 1 if state.refused else 0
            wait_s = all_due - self._clock.monotonic()
            if refusals:
                wait_s = min(wait_s, back_off_s(self._clock, refusals, RETRY_MIN_S, RETRY_MAX_S))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await state.wanted.wait()

    async def _list(self, state: WatchedKind, namespaces: Sequence[str]) -> bool:
        """Compare the cache with lists of these namespaces ("" = all); False if one was older than
        the last one.

        One that is refused is left out, unless all that are watched are. Raises KubernetesError.
        """
        refused: dict[str, str] = {}
        for namespace in namespaces:
            try:
                if not await self._list_in(state, namespace):
                    return False
            except KubernetesError as error:
                if error.status != FORBIDDEN:
                    raise
                refused[namespace] = str(error)
                if len(refused) == len(self._namespaces or ("",)):
                    raise
        self._keep_refused(
            state,
            {name: text for name, text in state.refused.items() if name not in namespaces}
            | refused,
        )
        return True

    async def _list_in(self, state: WatchedKind, namespace: str) -> bool:
        """The same of one namespace."""
        resource = state.resource
        selector = "" if resource.kind in CUSTOM else names.WATCH_SELECTOR
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

    def _keep_refused(self, state: WatchedKind, refused: dict[str, str]) -> None:
        """Note where a kind may not be read, and have the watches follow."""
        state.refused = refused
        before, self._refused = (
            self._refused,
            frozenset(name for each in self._kinds.values() for name in each.refused),
        )
        for namespace in sorted(self._refused - before):
            remedy = (
                "grant the operator its role there, or take the namespace out of watchNamespaces"
            )
            log.warning(
                "namespace.refused", namespace=namespace, error=refused[namespace], remedy=remedy
            )
        for namespace in sorted(before - self._refused):
            log.info("namespace.readable", namespace=namespace)
        if self._refused != before:
            self._refused_changed.set()

    def _count(self, state: WatchedKind, listing: Listing) -> None:
        """Count what a list showed and no watch had; the first list shows everything."""
        if state.synced.is_set() and listing.missed:
            self._metrics.list_news.labels(state.resource.kind).inc(listing.missed)
            log.info("list.news", kind=state.resource.kind, objects=listing.missed)
