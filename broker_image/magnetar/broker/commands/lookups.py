"""Owners of topics, numbers of partitions, lists of topics.

Owns: LOOKUP, PARTITIONED_METADATA, GET_TOPICS_OF_NAMESPACE, WATCH_TOPIC_LIST and its CLOSE.
Imports: wire, names, errors, topics.topic_list, ownership, the registry and its watchers.
Invariants: an answer names the present owner; during a transfer of a bundle it waits for the new
owner; a pattern that is too long or outside the dialect is left to the client (the answer says that
it is not filtered).
"""

from __future__ import annotations

import asyncio
import contextlib

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.commands.partitioning import Partitioning
from magnetar.broker.commands.topic_watchers import TopicWatchers
from magnetar.broker.connections.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.coordinator.discovery import CoordinatorDiscovery
from magnetar.errors import (
    LimitExceeded,
    NotAllowed,
    ServiceNotReady,
    TopicExists,
    TopicNotFound,
)
from magnetar.metadata.records import (
    INTERNAL_LISTENER,
    OVER_TLS,
    CoordinatorClaimRecord,
    IncarnationRecord,
    over_tls,
)
from magnetar.names import NamespaceName, TopicName
from magnetar.policies import PARTITIONED
from magnetar.topics.patterns import TopicPattern
from magnetar.topics.topic_list import is_system_topic, of_domain, select, topics_hash
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api

LISTS_HELD_MAX = 64
LISTED_AT_ONCE_MAX = 1_000
"""Names of one answer behind which others get their turn."""
Mode = api.CommandGetTopicsOfNamespace.Mode


def addresses_of(
    owner: IncarnationRecord | CoordinatorClaimRecord, listener: str
) -> tuple[str, str]:
    """The owner's addresses for clients of a listener, plain and by TLS; "" = it has none. Raises
    ServiceNotReady.

    Of a broker in Pulsar's words, and with those at which the C++ client keeps its connection: an
    address may come later.
    """
    name = listener.removesuffix(OVER_TLS)
    url, url_tls = owner.service_url_on(name), owner.service_url_on(over_tls(name))
    if url is None and url_tls is None:
        if isinstance(owner, CoordinatorClaimRecord):
            raise ServiceNotReady(
                f"transaction coordinator {owner.name} does not have {name} listener; give it "
                "--advertised-listeners as the brokers "
                "(Failed to acquire ownership of an address on it)"
            )
        raise ServiceNotReady(
            f"the broker do not have {name} listener; Failed to acquire ownership of an address on "
            "it, try again"
        )
    return url or "", url_tls or ""


class Lookups:
    """Answers the commands that clients send before they use a topic."""

    def __init__(
        self, context: BrokerContext, ownership: Ownership, partitioning: Partitioning
    ) -> None:
        self._context, self._ownership, self._partitioning = context, ownership, partitioning
        self._registry = ownership.registry
        self.coordinators = CoordinatorDiscovery(context.store, context.clock, context.settings)
        self._watchers = TopicWatchers(self._registry)
        self._listing = asyncio.Lock()
        """Concurrent requests take turns: a list of a hundred thousand topics takes tens of
        milliseconds."""
        self._lists: dict[
            tuple[NamespaceName, int, str | None], tuple[int, tuple[list[str], str, bool]]
        ] = {}

    async def lookup(self, connection: Connection, lookup: api.CommandLookupTopic) -> None:
        self._context.metrics.lookups += 1
        topic = TopicName.parse(lookup.topic)
        listener = (
            lookup.advertised_listener_name.strip() or connection.listener or INTERNAL_LISTENER
        )
        if connection.tls:
            listener = over_tls(listener)
        if (coordinator := await self.coordinators.holder_of(topic)) is not None:
            url, url_tls = addresses_of(coordinator, listener)
        else:
            url, url_tls = addresses_of(await self._ownership.owner_of(topic), listener)
        if not (url_tls if connection.tls else url):
            # The owner is about to restart with such a port, or without one; an answer without an
            # address would be a permanent error.
            kind = "with" if connection.tls else "without"
            raise ServiceNotReady(
                f"Failed to acquire ownership: who serves {topic} has no address {kind} TLS yet; "
                "look it up again"
            )
        connection.listener = listener
        connection.queue(commands.lookup_connect(lookup.request_id, url, url_tls or None))

    async def partitioned_metadata(
        self, connection: Connection, request: api.CommandPartitionedTopicMetadata
    ) -> None:
        partitions = await self.partitions(
            TopicName.parse(request.topic), request.metadata_auto_creation_enabled
        )
        connection.queue(commands.partitioned_metadata(request.request_id, partitions))

    async def partitions(self, topic: TopicName, may_create: bool) -> int:
        """Partitions of a topic, 0 for a plain one or one that using it will create. Raises
        TopicNotFound, NamespaceNotFound."""
        partitions = await self.coordinators.announced(topic) or await self._partitioning.count(
            topic
        )
        if not partitions and not await self._partitioning.exists(topic):
            partitions = await self._create_if_allowed(topic, may_create)
        return partitions

    async def _create_if_allowed(self, topic: TopicName, asked: bool) -> int:
        """What auto-creation makes of an absent topic: partitions that exist now, or 0 for one
        that using it creates. Raises TopicNotFound."""
        policy = self._ownership.policies.namespace(topic.namespace_name).auto_topic_creation
        if not asked or not policy.allowed:
            raise TopicNotFound(
                f"Topic {topic} does not exist",
                "create it first: its namespace forbids creating it by use"
                if asked
                else "create it first, or check its name: `magnetar topics list "
                f"{topic.namespace_name}` shows what there is",
            )
        if policy.type != PARTITIONED or topic.partition >= 0 or is_system_topic(topic):
            return 0
        with contextlib.suppress(TopicExists):
            await self._partitioning.create(topic, policy.partitions)
        return await self._partitioning.count(topic)

    # --- lists ------------------------------------------------------------------------------------

    async def topics(self, namespace: NamespaceName, mode: int) -> list[str]:
        """Full names of the topics of a namespace, sorted: every creation that was answered is
        in it."""
        await self._registry.catch_up(namespace)
        return self._names(namespace, mode)

    def _names(self, namespace: NamespaceName, mode: int) -> list[str]:
        return of_domain(
            self._registry.names(namespace),
            persistent=mode in (Mode.PERSISTENT, Mode.ALL),
            non_persistent=mode in (Mode.NON_PERSISTENT, Mode.ALL),
        )

    async def topics_of_namespace(
        self, connection: Connection, request: api.CommandGetTopicsOfNamespace
    ) -> None:
        # lists are large: who asks for many of them must read them, too
        await connection.slow.writable()
        namespace = NamespaceName.parse(request.namespace)
        await self._registry.catch_up(namespace)
        async with self._listing:
            names, found, filtered = self._listed(namespace, request)
            changed = not (request.HasField("topics_hash") and request.topics_hash == found)
            self._check_size(names)
            connection.queue(
                commands.topics_of_namespace(
                    request.request_id,
                    names if changed else (),
                    found,
                    filtered=filtered,
                    changed=changed,
                )
            )
            if len(names) > LISTED_AT_ONCE_MAX:
                await asyncio.sleep(0)

    def _listed(
        self, namespace: NamespaceName, request: api.CommandGetTopicsOfNamespace
    ) -> tuple[list[str], str, bool]:
        """The names asked for, their hash, and whether the pattern has been applied; made once
        for all who ask between two changes."""
        pattern = request.topics_pattern if request.HasField("topics_pattern") else None
        key, version = (namespace, request.mode, pattern), self._registry.version(namespace)
        held = self._lists.get(key)
        if held is None or held[0] != version:
            names, filtered = self._names(namespace, request.mode), False
            if pattern is not None:
                try:
                    names, filtered = select(names, TopicPattern.compile(pattern)), True
                except (NotAllowed, LimitExceeded):
                    filtered = False  # the client does it itself
            held = self._lists[key] = version, (names, topics_hash(names), filtered)
            while len(self._lists) > LISTS_HELD_MAX:
                del self._lists[next(iter(self._lists))]
        return held[1]

    def _check_size(self, names: list[str]) -> None:
        """A frame beyond the announced limit would cost the client its connection."""
        size = sum(len(name.encode()) + 4 for name in names)
        limit = self._context.settings.max_message_bytes
        if size > limit:
            raise NotAllowed(
                f"the list of {len(names)} topics has {size} bytes, more than max_message_bytes "
                f"{limit}; use a pattern"
            )

    async def watch_topic_list(
        self, connection: Connection, request: api.CommandWatchTopicList
    ) -> None:
        limit = self._context.settings.topic_watchers_per_connection_max
        if len(connection.sessions.watchers) >= limit:
            raise NotAllowed(
                f"topic_watchers_per_connection_max: this connection watches {limit} lists; close "
                "some"
            )
        namespace = NamespaceName.parse(request.namespace)
        pattern = TopicPattern.compile(request.topics_pattern)
        await self._registry.catch_up(namespace)
        if connection.closed:
            return  # no connection would stop it
        if (before := connection.sessions.watchers.pop(request.watcher_id, None)) is not None:
            before.stop()
        watcher = self._watchers.open(connection, request.watcher_id, namespace, pattern)
        found = watcher.watched.topics
        try:
            self._check_size(found.names)
        except NotAllowed:
            watcher.stop()
            raise
        connection.sessions.watchers[request.watcher_id] = watcher
        unchanged = request.HasField("topics_hash") and request.topics_hash == found.topics_hash
        connection.queue(
            commands.watch_topic_list_success(
                request.request_id,
                request.watcher_id,
                () if unchanged else found.names,
                found.topics_hash,
            )
        )

    async def close_watcher(
        self, connection: Connection, request: api.CommandWatchTopicListClose
    ) -> None:
        watcher = connection.sessions.watchers.pop(request.watcher_id, None)
        if watcher is not None:
            watcher.stop()
        connection.queue(commands.success(request.request_id))
