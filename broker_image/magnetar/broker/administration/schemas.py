"""Schemas of topics, as administrators see them.

Owns: reading, uploading, testing and deleting versions. Imports: schemas, policies, names, errors.
Source: Pulsar's schemas API. Invariants: any broker answers, but that the policies of a topic
without partitions are known to its owner; what an administrator uploads is checked as a client's
schema is, whether or not clients may register schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from magnetar.broker.administration.policies import Policies as PolicyWork
from magnetar.broker.administration.site import Site
from magnetar.broker.schemas import SchemaRegistry
from magnetar.errors import IncompatibleSchema, InvalidRequest, InvalidSchema, TopicNotFound
from magnetar.names import TopicName
from magnetar.policies import Policies, effective, readable
from magnetar.rest.answers import strings_of
from magnetar.schemas import key_values
from magnetar.schemas.history import Registered
from magnetar.schemas.types import Schema, SchemaType, type_named

NO_VERSION = -1
"""What Pulsar answers for a schema that is not registered."""


class Schemas:
    """Versions of the schemas of topics."""

    def __init__(self, site: Site, policies: PolicyWork) -> None:
        self._site, self._policies = site, policies

    @property
    def _registry(self) -> SchemaRegistry:
        return self._site.broker.service.schemas

    async def schema(self, topic: TopicName, version: int | None = None) -> dict[str, Any]:
        """The latest version, or the one named. Raises TopicNotFound."""
        history = await self._registry.history(topic)
        found = history.latest if version is None else history.version(version)
        if found is None:
            raise TopicNotFound(
                f"Schema not found: topic {topic.base} has "
                + ("none" if version is None else f"no version {version} of one")
            )
        return _document(found)

    async def schemas(self, topic: TopicName) -> dict[str, Any]:
        """All versions since the last deletion, oldest first."""
        history = await self._registry.history(topic)
        return {"getSchemaResponses": [_document(found) for found in history.live]}

    async def metadata(self, topic: TopicName) -> dict[str, Any]:
        """Which versions there are; Pulsar says in which ledger they are, which there is none of
        here. Raises TopicNotFound."""
        history = await self._registry.history(topic)
        if history.latest is None:
            raise TopicNotFound(f"Schema not found: topic {topic.base} has none")
        entries = [
            {"ledgerId": -1, "entryId": -1, "version": found.version} for found in history.live
        ]
        return {"info": entries[-1], "index": entries}

    async def upload(self, topic: TopicName, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Register a schema; its version, as Pulsar's PostSchemaResponse has it. Raises
        IncompatibleSchema, InvalidSchema, InvalidRequest."""
        schema, policies = _payload(payload), await self._effective(topic)
        found = await self._registry.register(topic, schema, policies, by_administrator=True)
        return {"version": {"version": found.version}}

    async def test(self, topic: TopicName, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Whether a schema might be registered, and by which strategy that is decided. Raises
        InvalidSchema, InvalidRequest."""
        schema, strategy = _payload(payload), (await self._effective(topic)).schema_compatibility
        history = await self._registry.history(topic)
        try:
            await self._registry.admit(topic, history, schema, strategy, updates=True)
        except InvalidSchema:
            raise
        except IncompatibleSchema:
            compatible = False
        else:
            compatible = True
        return {"compatibility": compatible, "schemaCompatibilityStrategy": strategy.value}

    async def find(self, topic: TopicName, payload: Mapping[str, Any]) -> dict[str, Any]:
        """The version of a schema, -1 if it is not registered. Raises InvalidSchema,
        InvalidRequest."""
        schema, history = _payload(payload), await self._registry.history(topic)
        found = await self._site.broker.context.compute(partial(history.find, schema))
        return {"version": found.version if found is not None else NO_VERSION}

    async def delete(self, topic: TopicName, force: bool) -> dict[str, Any]:
        """End all versions, so that any schema may be the next; with `force` remove them, and
        messages that carry one cannot be decoded by it any more."""
        await self._site.namespace_record(topic.namespace_name)
        act = self._registry.erase if force else self._registry.delete
        return {"version": await act(topic)}

    async def _effective(self, topic: TopicName) -> Policies:
        """Policies of a topic, or of its namespace if it does not exist yet. Raises NotOwner,
        NamespaceNotFound."""
        namespace = (await self._site.namespace_record(topic.namespace_name)).policies
        own: Mapping[str, Any] = {}
        try:
            own = await self._policies.policies(topic, applied=False)
        except TopicNotFound:
            own = {}
        return effective(Policies(), readable(namespace), readable(own))


def _payload(payload: Mapping[str, Any]) -> Schema:
    """Pulsar's PostSchemaPayload. Raises InvalidRequest, InvalidSchema."""
    kind, text = type_named(payload.get("type")), payload.get("schema", "")
    if not isinstance(text, str):
        raise InvalidRequest(
            f"schema: {str(text)[:80]!r} is not a string; send the definition in quotes"
        )
    properties = strings_of("properties", payload.get("properties") or {})
    data = key_values.data_of(text) if kind is SchemaType.KEY_VALUE else text.encode()
    return Schema(kind, data, properties)


def _document(found: Registered) -> dict[str, Any]:
    """Pulsar's GetSchemaResponse."""
    schema = found.schema
    return {
        "version": found.version,
        "type": schema.type.name,
        "timestamp": found.timestamp_ms,
        "data": key_values.text_of(schema)
        if schema.type is SchemaType.KEY_VALUE
        else schema.data.decode(errors="replace"),
        "properties": dict(schema.properties),
    }
