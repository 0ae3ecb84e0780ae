"""Schemas of clients.

Owns: GET_SCHEMA and GET_OR_CREATE_SCHEMA; what the schema of a PRODUCER or SUBSCRIBE makes of its
topic. Imports: wire, schemas, metadata.topic_schemas, the registry, errors. Invariants: a client whose
schema does not fit is refused before it is attached; messages and their versions are passed on unread;
a version is in the topic's log before a message can carry it.
"""

from __future__ import annotations

from typing import Protocol

from magnetar.broker.connections.connection import Connection
from magnetar.broker.schemas import SchemaRegistry
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.errors import IncompatibleSchema, TopicNotFound
from magnetar.metadata.topic_schemas import kept
from magnetar.names import TopicName
from magnetar.schemas.strategies import Strategy
from magnetar.schemas.types import Schema, SchemaType, version_bytes, version_of
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api


class TopicOpener(Protocol):
    """Where producers and consumers get their topics from."""

    async def open_topic(self, name: TopicName, create: bool) -> TopicHost:
        """The topic as served here. Raises NotOwner, TopicNotFound, NotAllowed and what creation
        may raise."""
        ...


class SchemaCommands:
    """Answers the commands about schemas."""

    def __init__(self, registry: SchemaRegistry, topics: TopicOpener) -> None:
        self._registry, self._topics = registry, topics

    async def get(self, connection: Connection, request: api.CommandGetSchema) -> None:
        """Answer GET_SCHEMA: the latest version, or the one asked for."""
        topic = TopicName.parse(request.topic)
        number = version_of(request.schema_version) if request.HasField("schema_version") else None
        history = await self._registry.history(topic)
        found = history.latest if number is None else history.version(number)
        if found is None:
            raise TopicNotFound(
                f"Topic not found or no-schema: {topic}"
                + ("" if number is None else f" has no version {number} of a schema")
            )
        schema = api.Schema(
            name=topic.base.local,
            schema_data=found.schema.data,
            type=api.Schema.Type.Name(found.schema.type),  # type: ignore[arg-type]
            properties=[
                api.KeyValue(key=key, value=value) for key, value in found.schema.properties.items()
            ],
        )
        connection.queue(
            commands.schema_found(request.request_id, schema, version_bytes(found.version))
        )

    async def get_or_create(
        self, connection: Connection, request: api.CommandGetOrCreateSchema
    ) -> None:
        """Answer GET_OR_CREATE_SCHEMA, as if a producer came with the schema."""
        topic = await self._topics.open_topic(TopicName.parse(request.topic), create=False)
        of_bytes = SchemaType(request.schema.type) is SchemaType.NONE  # none, as Pulsar has it here
        version = await self.of_producer(topic, None if of_bytes else request.schema)
        connection.queue(commands.schema_created(request.request_id, version))

    async def of_producer(self, topic: TopicHost, wire: api.Schema | None) -> bytes:
        """The version of a producer's schema, registered if need be; b"" without one. Raises
        IncompatibleSchema, NotAllowed, StoreError, ServiceNotReady, StorageError."""
        schema = schema_of(wire)
        if schema is not None:
            found = await self._registry.register(topic.name, schema, topic.policies)
            name, value = kept(found)
            if topic.name.persistent and topic.core.properties.get(name) != value:
                await topic.update_properties({name: value})
            return version_bytes(found.version)
        if (
            topic.policies.schema_validation_enforced
            and (await self._registry.history(topic.name)).live
        ):
            raise IncompatibleSchema(
                "Producers cannot connect or send message without a schema to topics with a schema: "
                f"{topic.name} has one, and schemaValidationEnforced is set; use the schema"
            )
        return b""

    async def check_consumer(self, topic: TopicHost, wire: api.Schema | None) -> None:
        """Whether a consumer's schema reads what the topic has; a topic that was never used gets
        it. Raises IncompatibleSchema, NotAllowed, StoreError."""
        schema = schema_of(wire)
        if schema is None or schema.type is SchemaType.AUTO_CONSUME:
            return
        strategy = topic.policies.schema_compatibility
        history = await self._registry.history(topic.name)
        if history.live:
            await self._registry.check_consumer(topic.name, history, schema, strategy)
        elif not _is_used(topic):
            await self._registry.register(topic.name, schema, topic.policies)
        elif strategy is not Strategy.ALWAYS_COMPATIBLE:
            raise IncompatibleSchema(
                "Failed to add schema to an active topic with empty(BYTES) schema: "
                f"{topic.name} holds plain bytes, the consumer's type is {schema.type.name}; "
                "consume bytes, or have a producer or an administrator register a schema first"
            )


def schema_of(wire: api.Schema | None) -> Schema | None:
    """What a client sent; None without a schema."""
    if wire is None:
        return None
    return Schema(
        SchemaType(wire.type),
        wire.schema_data,
        {pair.key: pair.value for pair in wire.properties},
    )


def takes_any_schema(request: api.CommandSubscribe) -> bool:
    """Whether a consumer asks for each message's schema, and has none of its own."""
    return request.HasField("schema") and request.schema.type == api.Schema.AutoConsume


def _is_used(topic: TopicHost) -> bool:
    """Whether the topic holds messages, or has clients that take them for something else."""
    return (
        topic.core.ledgers.end > 0
        or len(topic.core.producers) > 0
        or any(
            not session.takes_any_schema
            for subscription in topic.subscriptions.values()
            for session in subscription.sessions()
        )
    )
