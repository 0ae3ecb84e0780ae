"""Watching the API server through kopf.

Owns: which objects are watched, with which server-side filters, and delivering what is seen to the
operator's loop in batches. Imports: kopf, resources, names, kube.cache. Invariants: handlers only
pass on what they see: no state of ours, no finalizer and no annotation of kopf's ever reaches an
object (event handlers alone cause none); objects that the operator did not make are filtered out by
the API server; order is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import kopf

from magnetar_operator import names
from magnetar_operator.kube import connection
from magnetar_operator.kube.cache import Shown, is_sentinel, shown
from magnetar_operator.kube.kinds import CHILDREN, CUSTOM, POD, Resource

WATCHED_CHILDREN = (POD, *CHILDREN)
WATCHED = (*CUSTOM.values(), *WATCHED_CHILDREN)

GOODBYE_S, GOODBYE_LOOK_S = 1.0, 0.01
OWN_SOCKETS = 1
"""The loop's own, by which other threads wake it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One event: an object, whether it is gone, whether it is the operator's own sign of life,
    and whether a watch showed it (not a list)."""

    object: Shown
    gone: bool
    sentinel: bool
    by_watch: bool


class Inbox:
    """Carries events from kopf's thread to the operator's loop: many at once when they come
    fast."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Iterable[Seen]], None]
    ) -> None:
        self._loop, self._deliver = loop, deliver
        self._waiting: deque[Seen] = deque()
        self._lock = threading.Lock()
        self._called = False

    def put(self, seen: Seen) -> None:
        """From any thread; what arrives after the end of the loop is dropped."""
        with self._lock:
            self._waiting.append(seen)
            if self._called:
                return
            self._called = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        with self._lock:
            batch, self._waiting, self._called = self._waiting, deque(), False
        self._deliver(batch)


class _NoDiffBase(kopf.DiffBaseStorage):
    """kopf copies every object to find out what has changed; nothing here asks."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


class _NoProgress(kopf.ProgressStorage):
    """No handler here has progress to be remembered."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass

    def clear(self, *, essence: Any) -> Any:
        return essence


def watching_registry(put: Callable[[Seen], None]) -> kopf.OperatorRegistry:
    """Handlers for every watched kind. `put` is called in kopf's thread."""
    registry = kopf.OperatorRegistry()

    async def pass_on(event: Any, **_: Any) -> None:
        manifest, how = event["object"], event["type"]
        put(Seen(shown(manifest), how == "DELETED", is_sentinel(manifest), how is not None))

    kopf.on.login(registry=registry, id="login")(connection.login)
    for resource in WATCHED:
        kopf.on.event(*_selector(resource), registry=registry, id=resource.plural)(pass_on)
    return registry


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def watching_settings() -> kopf.OperatorSettings:
    """kopf's settings: nothing written, nothing scanned, streams that notice when they are dead."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()
    settings.queueing.idle_timeout = (
        # a worker per object lives that long after its last event: ten thousand must not wait
        # together
        0.05
    )
    settings.watching.server_timeout = 300
    settings.watching.reconnect_backoff = (
        # an API server that ends every stream at once gets a few requests a second, not hundreds
        0.5
    )
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = 500
    for resource in WATCHED_CHILDREN:
        settings.watching.label_selectors[_selector(resource)] = names.WATCH_SELECTOR
    return settings


async def watch(
    registry: kopf.OperatorRegistry, namespaces: Sequence[str], stop: threading.Event
) -> None:
    """Deliver events until `stop` is set. Raises what kopf cannot repair (no rights, no API server,
    a kind that has gone).

    kopf gets a thread and an event loop of its own: it takes signals and, at its end, cancels every
    task of the loop that it does not know.
    """

    async def operate() -> None:
        try:
            await kopf.operator(
                registry=registry,
                settings=watching_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=tuple(namespaces),
                stop_flag=stop,
            )
        finally:
            await _connections_closed()

    await asyncio.to_thread(lambda: asyncio.run(operate()))


async def _connections_closed() -> None:
    """Wait, for a moment, until TLS has said goodbye on every watch: a loop that ends before
    leaves the sockets to the garbage collector."""
    loop = asyncio.get_running_loop()
    selector = getattr(loop, "_selector", None)  # nothing public shows which connections are open
    deadline = loop.time() + GOODBYE_S
    while selector is not None and len(selector.get_map()) > OWN_SOCKETS and loop.time() < deadline:
        await asyncio.sleep(GOODBYE_LOOK_S)
