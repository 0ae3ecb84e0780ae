"""The schemas of all topics.

Owns: `SchemaRegistry`: reading, checking, creating and deleting versions in the metadata store, all
of it counted. Imports: schemas, metadata, names, errors. Invariants: a version is created by a
transaction that finds neither it nor a change of the one before, so any broker may create one, and
none is given twice while the topic's versions are there; while the store is unavailable, a version
that this broker has read stays what it was.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import structlog

from magnetar.broker.context import BrokerContext
from magnetar.broker.schema_statistics import Kind, SchemaStatistics
from magnetar.errors import NamespaceNotFound, NotAllowed, StoreError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.store import Compare, Delete, Put
from magnetar.metadata.topic_schemas import history_in, record_of
from magnetar.names import TopicName
from magnetar.policies import Policies
from magnetar.schemas.history import History, Registered
from magnetar.schemas.strategies import Strategy
from magnetar.schemas.types import Schema, SchemaType

log = structlog.get_logger(__name__)

HELD_MAX = 1000
"""Topics whose versions are kept in memory."""
ATTEMPTS_MAX = 20


class SchemaRegistry:
    """Answers for every topic of the cluster, whichever broker serves it."""

    def __init__(self, context: BrokerContext, statistics: SchemaStatistics) -> None:
        self._context, self.statistics = context, statistics
        self._held: OrderedDict[str, tuple[tuple[int, ...], History]] = OrderedDict()

    async def history(self, topic: TopicName) -> History:
        """All versions of the topic's schema. Raises StoreError."""
        with self.statistics.timed(topic, Kind.GET):
            return (await self._read(topic))[1]

    async def _read(self, topic: TopicName) -> tuple[tuple[int, ...], History]:
        """The revisions of the versions, and the versions."""
        prefix = keys.schemas_of(topic)
        held = self._held.get(prefix)
        try:
            items = (await self._context.store.range(prefix)).items
        except StoreUnavailable as error:
            if held is None:
                raise
            log.warning("schemas.from_memory", topic=str(topic), error=str(error))
            return held
        revisions = tuple(item.mod_revision for item in items)
        if held is None or held[0] != revisions:
            held = revisions, history_in(prefix, items)
        return self._hold(prefix, held)

    def _hold(
        self, prefix: str, held: tuple[tuple[int, ...], History]
    ) -> tuple[tuple[int, ...], History]:
        self._held[prefix] = held
        self._held.move_to_end(prefix)
        while len(self._held) > HELD_MAX:
            self._held.popitem(last=False)
        return held

    async def register(
        self,
        topic: TopicName,
        schema: Schema,
        policies: Policies,
        *,
        by_administrator: bool = False,
    ) -> Registered:
        """The version that a schema is, which is created if need be and allowed. Raises
        IncompatibleSchema, NotAllowed, NamespaceNotFound, StoreError."""
        strategy = policies.schema_compatibility
        updates = by_administrator or policies.schema_updates_allowed
        with self.statistics.timed(topic, Kind.PUT) as put:
            self._check_size(schema)
            for _ in range(ATTEMPTS_MAX):
                revisions, history = await self._read(topic)
                found = history.same(schema)
                if found is None:
                    found = await self.admit(topic, history, schema, strategy, updates=updates)
                if found is not None:
                    put.counted = False
                    return found
                if (added := await self._append(topic, revisions, history, schema)) is not None:
                    return added
            raise self._contended(topic)

    async def admit(
        self,
        topic: TopicName,
        history: History,
        schema: Schema,
        strategy: Strategy,
        *,
        updates: bool,
    ) -> Registered | None:
        """What the topic's history makes of a producer's schema. Raises IncompatibleSchema."""
        with self.statistics.checking(topic) as check:
            check.counted = updates  # else nothing is compared
            found = await self._context.compute(
                partial(history.admit, schema, strategy, updates=updates)
            )
            check.counted = found is None and bool(history.live)
        return found

    async def check_consumer(
        self, topic: TopicName, history: History, schema: Schema, strategy: Strategy
    ) -> None:
        """Whether a consumer's schema reads what the topic has. Raises IncompatibleSchema."""
        with self.statistics.checking(topic):
            await self._context.compute(partial(history.check_consumer, schema, strategy))

    async def delete(self, topic: TopicName) -> int:
        """End the versions there are; messages that carry one can still be read. The version that
        says so. Raises NotAllowed, NamespaceNotFound, StoreError."""
        with self.statistics.timed(topic, Kind.DELETE) as deletion:
            for _ in range(ATTEMPTS_MAX):
                revisions, history = await self._read(topic)
                if not history.live:
                    deletion.counted = False
                    return history.next_version - 1
                if await self._append(topic, revisions, history, None):
                    return history.next_version
            raise self._contended(topic)

    async def erase(self, topic: TopicName) -> int:
        """Remove all versions, so that the next one is the first; the last one there was, -1 if
        there was none. Raises StoreError."""
        with self.statistics.timed(topic, Kind.DELETE) as deletion:
            for _ in range(ATTEMPTS_MAX):
                revisions, history = await self._read(topic)
                last = history.next_version - 1
                if not revisions:
                    deletion.counted = False
                    return last
                unchanged = Compare(keys.schema_version(topic, last), "mod", "=", revisions[-1])
                removed = Delete(keys.schemas_of(topic), prefix=True)
                if (await self._context.store.transact([unchanged], [removed])).succeeded:
                    return last
            raise self._contended(topic)

    async def erase_with_topic(self, topic: TopicName) -> None:
        """As `erase`, once a topic is gone: what stays because the store is unavailable is found
        by the next topic of that name, and can be deleted by hand."""
        if topic.partition >= 0:
            return  # the other partitions have the same schema
        try:
            await self.erase(topic)
        except StoreError as error:
            log.warning("schemas.left", topic=str(topic), error=str(error))

    async def _append(
        self, topic: TopicName, revisions: tuple[int, ...], history: History, schema: Schema | None
    ) -> Registered | None:
        """Write the next version, a deletion for None; None if another change came first."""
        limit = self._context.settings.schema_versions_max
        if len(history.versions) >= limit:
            raise NotAllowed(
                f"schema: topic {topic.base} has {len(history.versions)} versions, "
                f"schema_versions_max is {limit}; delete them (DELETE .../schema?force=true)"
            )
        version, namespace = history.next_version, keys.namespace(topic.namespace_name)
        added = Registered(
            version,
            schema if schema is not None else Schema(SchemaType.NONE),
            self._context.clock.wall_ms(),
            deleted=schema is None,
        )
        key = keys.schema_version(topic, version)
        compares = [Compare(key, "create", "=", 0), Compare(namespace, "create", ">", 0)]
        if revisions:
            before = keys.schema_version(topic, version - 1)
            compares.append(Compare(before, "mod", "=", revisions[-1]))
        result = await self._context.store.transact(compares, [Put(key, record_of(added).encode())])
        if result.succeeded:
            log.info("schemas.changed", topic=str(topic.base), version=version)
            known = (*revisions, result.revision), History([*history.versions, added])
            self._hold(keys.schemas_of(topic), known)
        elif all(item.key != namespace for item in result.current):
            raise NamespaceNotFound(
                f"namespace {topic.namespace_name} of topic {topic} does not exist; create it first"
            )
        return added if result.succeeded else None

    def _contended(self, topic: TopicName) -> StoreUnavailable:
        return StoreUnavailable(f"schemas of {topic} are changed by others all the time; try again")

    def _check_size(self, schema: Schema) -> None:
        """Raises NotAllowed."""
        limit = self._context.settings.schema_bytes_max
        size = len(schema.data) + sum(
            len(name.encode()) + len(value.encode()) for name, value in schema.properties.items()
        )
        if size > limit:
            raise NotAllowed(
                f"schema_data: {size} bytes with its properties are beyond schema_bytes_max {limit}; "
                "send a smaller schema"
            )
