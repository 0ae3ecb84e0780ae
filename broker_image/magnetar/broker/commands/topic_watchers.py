"""Watchers of topic lists.

Owns: the lists that clients watch, one per namespace and pattern however many watch it, and the
order of each watcher's updates. Imports: topics.topic_list, wire, the registry. Invariants: a
watcher gets SUCCESS first and every change of its list after that, once, in order; the hash covers
the whole list; concurrent changes are sent together; a watcher ends with its connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from magnetar.broker.topics.topic_registry import TopicRegistry
from magnetar.errors import LimitExceeded
from magnetar.names import NamespaceName
from magnetar.topics.patterns import TopicPattern
from magnetar.topics.topic_list import MatchingTopics, of_domain
from magnetar.wire import commands

if TYPE_CHECKING:
    from magnetar.broker.ports import ClientConnection

log = structlog.get_logger(__name__)

GATHER_S = 0.05
"""Changes are sent this much later, together: a thousand topics that are created at once are a
few updates."""


class TopicWatcher:
    """One watcher of one connection."""

    __slots__ = ("connection", "watched", "watcher_id")

    def __init__(self, connection: ClientConnection, watcher_id: int, watched: WatchedList) -> None:
        self.connection, self.watcher_id, self.watched = connection, watcher_id, watched

    @property
    def namespace(self) -> NamespaceName:
        return self.watched.namespace

    def stop(self) -> None:
        self.watched.leave(self)


class WatchedList:
    """What all watchers of one namespace and pattern see."""

    def __init__(
        self, owner: TopicWatchers, namespace: NamespaceName, pattern: TopicPattern
    ) -> None:
        self._owner, self.namespace, self.pattern = owner, namespace, pattern
        self.topics = MatchingTopics(pattern, owner.persistent_names(namespace))
        self.watchers: dict[TopicWatcher, None] = {}

    def apply(self, names: list[str]) -> None:
        """Some of `names` were created or deleted."""
        try:
            change = self.topics.apply(
                names, [name for name in names if self._owner.is_present(self.namespace, name)]
            )
        except LimitExceeded as error:
            # Its watchers would miss topics from now on; a client that loses its connection lists
            # and watches again.
            log.warning(
                "watcher.pattern_too_costly", namespace=str(self.namespace), error=str(error)
            )
            for watcher in list(self.watchers):
                watcher.connection.close()
            return
        if change is not None:
            for watcher in self.watchers:
                watcher.connection.queue(commands.watch_topic_update(watcher.watcher_id, *change))

    def leave(self, watcher: TopicWatcher) -> None:
        self.watchers.pop(watcher, None)
        if not self.watchers:
            self._owner.forget(self)


class TopicWatchers:
    """All watched lists of this broker."""

    def __init__(self, registry: TopicRegistry) -> None:
        self._registry = registry
        self._lists: dict[tuple[NamespaceName, str], WatchedList] = {}
        self._pending: dict[NamespaceName, dict[str, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        registry.listen(self._changed)

    def open(
        self,
        connection: ClientConnection,
        watcher_id: int,
        namespace: NamespaceName,
        pattern: TopicPattern,
    ) -> TopicWatcher:
        """A watcher; its SUCCESS must list what `watched.topics` holds when this returns.
        Raises LimitExceeded."""
        self._flush()
        watched = self._lists.get((namespace, pattern.text))
        if watched is None:
            watched = self._lists[namespace, pattern.text] = WatchedList(self, namespace, pattern)
        watcher = TopicWatcher(connection, watcher_id, watched)
        watched.watchers[watcher] = None
        return watcher

    def forget(self, watched: WatchedList) -> None:
        """The last watcher of this list has left."""
        self._lists.pop((watched.namespace, watched.pattern.text), None)

    def persistent_names(self, namespace: NamespaceName) -> list[str]:
        return of_domain(self._registry.names(namespace), persistent=True, non_persistent=False)

    def is_present(self, namespace: NamespaceName, name: str) -> bool:
        return self._registry.lists(namespace, name)

    def _changed(self, namespace: NamespaceName, names: list[str]) -> None:
        if not any(watched == namespace for watched, _ in self._lists):
            return
        self._pending.setdefault(namespace, {}).update(
            dict.fromkeys(of_domain(names, persistent=True, non_persistent=False))
        )
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for watched in list(self._lists.values()):
            names = pending.get(watched.namespace)
            if names:
                watched.apply(list(names))
