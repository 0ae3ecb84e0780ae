"""Schemas over a real socket: what producers and consumers register, what they are refused, and
what a broker that comes after knows of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.schemas import SchemaRegistry
from magnetar.broker.upkeep.expiry import delete_unused
from magnetar.errors import StoreUnavailable, WireCode
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import SchemaRecord
from magnetar.metadata.store import Delete
from magnetar.metadata.topic_schemas import kept_in
from magnetar.names import NamespaceName, TopicName
from magnetar.policies import Policies
from magnetar.schemas.types import Schema, SchemaType, version_bytes
from magnetar.wire import pulsar_api_pb2 as api
from tests.support.brokers import CLOCK, TOPIC, Peer, Type, open_peer, running_broker
from tests.support.rest import NAMESPACE, TOPICS, broker_with_rest

SCHEMAS = "/admin/v2/schemas/public/default"


def wire(kind: SchemaType, data: bytes = b"", **properties: str) -> api.Schema:
    return api.Schema(
        name="s",
        type=kind.value,  # type: ignore[arg-type]
        schema_data=data,
        properties=[api.KeyValue(key=key, value=value) for key, value in properties.items()],
    )


def avro(*fields: dict[str, Any], kind: SchemaType = SchemaType.AVRO) -> api.Schema:
    document = {"type": "record", "name": "R", "fields": list(fields)}
    return wire(kind, json.dumps(document).encode())


A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "string"}
B_OPTIONAL = {**B, "default": "x"}
C = {"name": "c", "type": "string"}
STRING, LONG = wire(SchemaType.STRING), wire(SchemaType.INT64)
ANY = wire(SchemaType.AUTO_CONSUME)
BYTES = wire(SchemaType.NONE)
"""As Go's client says that payloads are bytes; others say nothing."""


@asynccontextmanager
async def playing(directory: Path, **settings: Any) -> AsyncIterator[Peer]:
    async with running_broker(directory, **settings) as broker, open_peer(broker) as peer:
        await peer.lookup()
        yield peer


def code_of(answer: api.BaseCommand) -> int:
    assert answer.type == Type.ERROR, answer
    return int(answer.error.error)


async def found(peer: Peer, topic: str = TOPIC, **values: Any) -> api.CommandGetSchemaResponse:
    return (await peer.ask("get_schema", topic=topic, **values)).get_schema_response


async def test_a_schema_comes_back_as_it_was_before_and_after_a_restart(tmp_path: Path) -> None:
    """Type, bytes and properties, by version and as the latest; the same schema has the same
    version for every producer, on this broker and the next."""
    store = MemoryStore(CLOCK)
    sent = avro(A, kind=SchemaType.JSON)
    sent.properties.add(key="k", value="v")
    for incarnation in range(2):
        async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
            await peer.lookup()
            if not incarnation:
                assert (await peer.produce()).schema_version == b""
                assert (await found(peer)).error_code == WireCode.TOPIC_NOT_FOUND
            made = await peer.produce(2, schema=sent)
            assert made.schema_version == version_bytes(0)
            for asked in ({}, {"schema_version": version_bytes(0)}):
                answer = await found(peer, **asked)
                assert answer.schema_version == version_bytes(0)
                assert (answer.schema.type, answer.schema.schema_data) == (
                    sent.type,
                    sent.schema_data,
                )
                assert answer.schema.properties == sent.properties
                assert answer.schema.name == "t"
            missing = await found(peer, schema_version=version_bytes(1))
            assert missing.error_code == WireCode.TOPIC_NOT_FOUND
            empty = await found(peer, schema_version=b"")
            assert empty.error_code == WireCode.INCOMPATIBLE_SCHEMA
    await store.close()


async def test_a_version_is_in_the_log_before_a_message_carries_it(tmp_path: Path) -> None:
    """Once, in each topic whose producers got it; administrators do not see it among properties."""
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await peer.produce(1, schema=STRING)
        [topic] = [
            found for owned in broker.ownership.owned.values() for found in owned.topics.values()
        ]
        records = kept_in(topic.core.properties)
        assert {number: SchemaRecord.decode(value).type for number, value in records.items()} == {
            0: "STRING"
        }
        before = broker.context.log.position
        await peer.produce(2, schema=STRING)
        await peer.ask("get_or_create_schema", topic=TOPIC, schema=STRING)
        assert broker.context.log.position == before
        assert (await rest.get(f"{TOPICS}/t/internalStats"))["properties"] == {}
        assert await rest.get(f"{TOPICS}/t/properties") == {}


async def test_a_schema_evolves_or_is_refused(tmp_path: Path) -> None:
    """FULL without a policy: a field with a default makes version 1, one without is refused, the
    first schema stays usable, and nothing is left of the refused producer."""
    async with playing(tmp_path) as peer:
        assert (await peer.produce(1, schema=avro(A))).schema_version == version_bytes(0)
        made = await peer.produce(2, schema=avro(A, B_OPTIONAL))
        assert made.schema_version == version_bytes(1)
        refused = await peer.ask("producer", topic=TOPIC, producer_id=3, schema=avro(A, C))
        assert code_of(refused) == WireCode.INCOMPATIBLE_SCHEMA
        assert "FULL" in refused.error.message
        again = await peer.produce(3, schema=avro(A))
        assert again.schema_version == version_bytes(0)
        assert (await found(peer)).schema_version == version_bytes(1)
        other = await peer.ask("producer", topic=TOPIC, producer_id=4, schema=STRING)
        assert code_of(other) == WireCode.INCOMPATIBLE_SCHEMA


async def test_partitions_share_one_schema(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await rest("PUT", f"{TOPICS}/p/partitions", 2)
        for index in range(2):
            await peer.lookup(f"{TOPICS[len('/admin/v2/persistent/') :]}/p-partition-{index}")
        parts = [f"persistent://public/default/p-partition-{index}" for index in range(2)]
        first = await peer.produce(1, parts[0], schema=STRING)
        second = await peer.produce(2, parts[1], schema=STRING)
        assert first.schema_version == second.schema_version == version_bytes(0)
        assert (await found(peer, "persistent://public/default/p")).schema_version
        await rest("DELETE", f"{TOPICS}/p/partitions?force=true")
        await rest("GET", f"{SCHEMAS}/p/schema", status=404)


async def test_a_consumer_registers_its_schema_on_an_unused_topic_only(tmp_path: Path) -> None:
    """On one that holds bytes it is refused; AUTO_CONSUME and no schema are taken everywhere."""
    async with playing(tmp_path) as peer:
        unused, used = "persistent://public/default/unused", TOPIC
        await peer.lookup(unused)
        answer = await peer.subscribe(1, unused, schema=ANY)
        assert answer.type == Type.SUCCESS
        assert (await found(peer, unused)).error_code == WireCode.TOPIC_NOT_FOUND
        answer = await peer.subscribe(2, unused, subscription="s2", schema=STRING)
        assert answer.type == Type.SUCCESS
        assert (await found(peer, unused)).schema.type == api.Schema.String
        await peer.produce()
        await peer.send(b"bytes")
        for consumer, schema in ((3, STRING), (4, BYTES)):
            refused = await peer.subscribe(consumer, used, schema=schema)
            assert code_of(refused) == WireCode.INCOMPATIBLE_SCHEMA
        for consumer, schema in ((5, {"schema": ANY}), (6, {})):
            answer = await peer.subscribe(consumer, used, subscription=f"s{consumer}", **schema)
            assert answer.type == Type.SUCCESS
        assert (await found(peer)).error_code == WireCode.TOPIC_NOT_FOUND


async def test_bytes_that_are_announced_are_a_schema_like_others(tmp_path: Path) -> None:
    """Go's client decodes its own batches by the version that its producer got. Nothing else fits
    from then on but clients without a schema."""
    async with playing(tmp_path) as peer:
        await peer.lookup()
        assert (await peer.produce(1, schema=BYTES)).schema_version == version_bytes(0)
        answer = await found(peer, schema_version=version_bytes(0))
        assert (answer.schema.type, answer.schema.schema_data) == (BYTES.type, b"")
        assert (await peer.produce(2)).schema_version == b""
        refused = await peer.ask("producer", topic=TOPIC, producer_id=3, schema=STRING)
        assert code_of(refused) == WireCode.INCOMPATIBLE_SCHEMA
        for consumer, schema, fits in ((1, BYTES, True), (2, ANY, True), (3, STRING, False)):
            answer = await peer.subscribe(consumer, subscription=f"s{consumer}", schema=schema)
            assert (answer.type == Type.SUCCESS) is fits
        other = "persistent://public/default/text"
        await peer.lookup(other)
        await peer.produce(4, other, schema=STRING)
        refused = await peer.ask("producer", topic=other, producer_id=5, schema=BYTES)
        assert code_of(refused) == WireCode.INCOMPATIBLE_SCHEMA


async def test_a_consumer_must_be_able_to_read(tmp_path: Path) -> None:
    async with playing(tmp_path) as peer:
        await peer.produce(schema=avro(A))
        for consumer, schema, fits in (
            (1, avro(A), True),
            (2, avro(A, B_OPTIONAL), True),
            (3, avro(A, B), False),
            (4, STRING, False),
        ):
            answer = await peer.subscribe(consumer, subscription=f"s{consumer}", schema=schema)
            assert (answer.type == Type.SUCCESS) == fits, answer
            if not fits:
                assert code_of(answer) == WireCode.INCOMPATIBLE_SCHEMA
        # A consumer adds no version.
        assert (await found(peer)).schema_version == version_bytes(0)


async def test_policies_decide_at_once_the_topic_before_the_namespace(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.produce(schema=avro(A))

        async def refused(producer: int, schema: api.Schema) -> bool:
            answer = await peer.ask("producer", topic=TOPIC, producer_id=producer, schema=schema)
            assert answer.type == Type.PRODUCER_SUCCESS or code_of(answer) == (
                WireCode.INCOMPATIBLE_SCHEMA
            )
            return answer.type == Type.ERROR

        assert await refused(2, avro(A, B))
        await rest("PUT", f"{NAMESPACE}/schemaCompatibilityStrategy", "FORWARD")
        assert not await refused(3, avro(A, B))
        await rest("PUT", f"{TOPICS}/t/schemaCompatibilityStrategy", "BACKWARD")
        assert await refused(4, avro(A, B, {"name": "c", "type": "int"}))
        assert not await refused(5, avro(A))
        await rest("DELETE", f"{TOPICS}/t/schemaCompatibilityStrategy")
        await rest("DELETE", f"{NAMESPACE}/schemaCompatibilityStrategy")
        await rest("PUT", f"{NAMESPACE}/schemaAutoUpdateCompatibilityStrategy", "AlwaysCompatible")
        assert not await refused(6, STRING)
        await rest("POST", f"{NAMESPACE}/isAllowAutoUpdateSchema", False)
        assert await refused(7, LONG)
        assert not await refused(8, STRING)


async def test_producers_without_a_schema_are_refused_only_if_validation_is_enforced(
    tmp_path: Path,
) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await rest("POST", f"{NAMESPACE}/schemaValidationEnforced", True)
        assert (await peer.produce(1)).schema_version == b""  # the topic has none
        await peer.produce(2, schema=STRING)
        answer = await peer.ask("producer", topic=TOPIC, producer_id=3)
        assert code_of(answer) == WireCode.INCOMPATIBLE_SCHEMA
        await rest("DELETE", f"{NAMESPACE}/schemaValidationEnforced")
        assert (await peer.produce(3)).schema_version == b""


async def test_get_or_create_is_a_producer_without_one(tmp_path: Path) -> None:
    """Java's and Go's producers of several schemas, dead-letter and retry topics ask so."""
    async with playing(tmp_path) as peer:

        async def ask(
            schema: api.Schema, topic: str = TOPIC
        ) -> api.CommandGetOrCreateSchemaResponse:
            answer = await peer.ask("get_or_create_schema", topic=topic, schema=schema)
            return answer.get_or_create_schema_response

        assert (await ask(STRING)).error_code == WireCode.TOPIC_NOT_FOUND
        await peer.produce()
        assert not (await ask(BYTES)).schema_version
        for schema, version in ((avro(A), 0), (avro(A, B_OPTIONAL), 1), (avro(A), 0)):
            assert (await ask(schema)).schema_version == version_bytes(version)
        for bad in (avro(A, C), STRING, ANY, wire(SchemaType.AVRO, b"{")):
            assert (await ask(bad)).error_code == WireCode.INCOMPATIBLE_SCHEMA


async def test_limits_are_refusals_that_no_client_repeats(tmp_path: Path) -> None:
    """Bytes with properties, and versions; deleting with force makes room."""
    async with broker_with_rest(tmp_path, schema_bytes_max=1024, schema_versions_max=2) as (
        _broker,
        rest,
        peer,
    ):
        large = wire(SchemaType.STRING, b"", k="v" * 1024)
        answer = await peer.ask("producer", topic=TOPIC, producer_id=1, schema=large)
        assert code_of(answer) == WireCode.NOT_ALLOWED
        assert "schema_bytes_max 1024" in answer.error.message
        fields = [{"name": name, "type": "int", "default": 1} for name in "abc"]
        for count in (1, 2):
            await peer.produce(count, schema=avro(*fields[:count]))
        answer = await peer.ask("producer", topic=TOPIC, producer_id=3, schema=avro(*fields))
        assert code_of(answer) == WireCode.NOT_ALLOWED
        assert "schema_versions_max is 2" in answer.error.message
        assert await rest("DELETE", f"{SCHEMAS}/t/schema?force=true", status=200) == {"version": 1}
        assert (await peer.produce(3, schema=avro(*fields))).schema_version == version_bytes(0)


async def test_known_schemas_are_served_while_the_store_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers come back to topics whose schema this broker has seen; a new one must wait."""
    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce(schema=STRING)

        async def unavailable(*_: Any, **__: Any) -> Any:
            raise StoreUnavailable("away")

        monkeypatch.setattr(store, "range", unavailable)
        monkeypatch.setattr(store, "transact", unavailable)
        assert (await peer.produce(2, schema=STRING)).schema_version == version_bytes(0)
        assert (await found(peer)).schema_version == version_bytes(0)
        answer = await peer.ask("producer", topic=TOPIC, producer_id=3, schema=LONG)
        assert code_of(answer) == WireCode.INCOMPATIBLE_SCHEMA
        monkeypatch.undo()
    await store.close()


async def test_what_two_brokers_create_at_once_is_one_version_each(tmp_path: Path) -> None:
    """The store decides: another broker's version that came in between is read first."""
    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce(1, schema=avro(A))
        registry, topic = broker.service.schemas, TopicName.parse(TOPIC)
        read = registry.history

        written = False
        original = store.transact

        async def interfering(compares: Any, operations: Any) -> Any:
            nonlocal written
            mine = any(operation.key.startswith(keys.SCHEMAS) for operation in operations)
            if mine and not written:
                written = True
                await peer_of_other(broker, topic)
            return await original(compares, operations)

        store.transact = interfering  # type: ignore[method-assign]
        made = await peer.produce(2, schema=avro(A, B_OPTIONAL))
        assert made.schema_version == version_bytes(2)
        assert [found.version for found in (await read(topic)).live] == [0, 1, 2]
    await store.close()


async def peer_of_other(broker: Broker, topic: TopicName) -> None:
    """Another broker registers something else."""
    other = avro(A, {"name": "z", "type": "int", "default": 1})
    await SchemaRegistry(broker.context, broker.service.schemas.statistics).register(
        topic, Schema(SchemaType.AVRO, other.schema_data), Policies()
    )


async def test_an_unused_topic_takes_its_schema_along_and_a_partition_does_not(
    tmp_path: Path,
) -> None:
    """What comes next under that name may be anything."""
    async with broker_with_rest(tmp_path, inactive_topic_s=0.001) as (broker, rest, peer):
        await rest("PUT", f"{TOPICS}/p/partitions", 2)
        part = "persistent://public/default/p-partition-0"
        for producer, topic in ((1, TOPIC), (2, part)):
            await peer.lookup(topic)
            await peer.produce(producer, topic, schema=STRING)
            await peer.ask("close_producer", producer_id=producer)
            host = await broker.service.open_topic(TopicName.parse(topic), create=False)
            for later in (1, 2):
                await delete_unused(host, CLOCK.wall_ms() + later * 3_600_000)
            assert host.bundle.held(host.name) is None
        await rest("GET", f"{SCHEMAS}/t/schema", status=404)
        assert (await rest.get(f"{SCHEMAS}/p/schema"))["version"] == 0
        made = await peer.produce(1, schema=LONG)
        assert made.schema_version == version_bytes(0)


async def test_a_version_given_as_its_topic_goes_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer makes the topic again at once. Naive: the schema goes in a second step, with the
    version that the new topic's messages carry."""
    store = MemoryStore(CLOCK)
    async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce(1, schema=STRING)
        await peer.ask("close_producer", producer_id=1)
        registry, topic = broker.service.schemas, TopicName.parse(TOPIC)
        original, given = store.transact, list[int]()

        async def overtaken(compares: Any, operations: Any) -> Any:
            done = await original(compares, operations)
            if Delete(keys.partitioned_topic(topic)) in operations:
                schema = Schema(SchemaType.STRING, b"")
                given.append((await registry.register(topic, schema, Policies())).version)
            return done

        monkeypatch.setattr(store, "transact", overtaken)
        host = await broker.service.open_topic(topic, create=False)
        for later in (1, 2):
            await delete_unused(host, CLOCK.wall_ms() + later * 3_600_000)
        assert given == [0]
        assert [found.version for found in (await registry.history(topic)).live] == [0]
    await store.close()


async def test_a_topic_deleted_by_hand_keeps_its_schema_if_asked_to(tmp_path: Path) -> None:
    async with broker_with_rest(tmp_path) as (_broker, rest, peer):
        await peer.lookup()
        await peer.produce(1, schema=STRING)
        await peer.ask("close_producer", producer_id=1)
        await rest("DELETE", f"{TOPICS}/t?deleteSchema=false")
        assert (await rest.get(f"{SCHEMAS}/t/schema"))["version"] == 0
        await peer.lookup()
        await peer.produce(2, schema=STRING)
        await peer.ask("close_producer", producer_id=2)
        await rest("DELETE", f"{TOPICS}/t")
        await rest("GET", f"{SCHEMAS}/t/schema", status=404)


async def test_a_namespace_takes_its_schemas_along(tmp_path: Path) -> None:
    store = MemoryStore(CLOCK)
    async with broker_with_rest(tmp_path, store=store) as (_broker, rest, peer):
        await rest("PUT", "/admin/v2/namespaces/public/other")
        topic = "persistent://public/other/a/b"
        await peer.lookup(topic)
        await peer.produce(1, topic, schema=STRING)
        assert (await store.range(keys.SCHEMAS)).items
        await rest("DELETE", "/admin/v2/namespaces/public/other?force=true")
        assert not (await store.range(keys.schemas_in(NamespaceName("public", "other")))).items
    await store.close()
