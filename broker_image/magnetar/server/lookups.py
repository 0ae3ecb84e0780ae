"""Who serves a topic, and how many partitions it has.

Owns: LOOKUP and PARTITIONED_METADATA. Imports: wire, names, errors, ownership.
Source: facts on protocol semantics 1.4, 2.11.
Invariant: an answer names the owner as of now; while a bundle changes hands the answer waits for the new owner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from magnetar.errors import ServiceNotReady
from magnetar.names import TopicName
from magnetar.server.connection import Connection
from magnetar.server.ownership import Ownership
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api


class Lookups:
    """Answers what is asked about topics before one is used."""

    def __init__(self, ownership: Ownership, partitions: Callable[[TopicName], Awaitable[int]]) -> None:
        self._ownership, self._partitions = ownership, partitions

    async def lookup(self, connection: Connection, lookup: api.CommandLookupTopic) -> None:
        topic = TopicName.parse(lookup.topic)
        if lookup.advertised_listener_name.strip():
            raise ServiceNotReady(f"the broker do not have {lookup.advertised_listener_name} listener")
        owner = await self._ownership.resolve(await self._ownership.bundle_of(topic))
        connection.queue(commands.lookup_connect(lookup.request_id, owner.service_url))

    async def partitioned_metadata(self, connection: Connection, request: api.CommandPartitionedTopicMetadata) -> None:
        topic = TopicName.parse(request.topic)
        connection.queue(commands.partitioned_metadata(request.request_id, await self._partitions(topic)))
