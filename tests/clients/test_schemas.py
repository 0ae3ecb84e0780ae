"""Schemas of the official clients: Python's own, and what Java's and Go's announce, each with a
restart of the server in between."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import _pulsar
import pulsar
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from pulsar.schema import JsonSchema, ProtobufNativeSchema, Record, String, StringSchema

from dev.server_process import ServerProcess
from dev.testbed.foreign import Client, ForeignError, schema
from dev.testbed.rest import Admin, RestError
from magnetar.client import AvroSchema
from magnetar.client import Client as OwnClient
from tests.clients.raw_schemas import B_OPTIONAL, A, B, Raw, avro, definition, version_of
from tests.clients.restarts import before_and_after, restart

pytestmark = pytest.mark.slow


class User(Record):  # type: ignore[misc]
    a = String()


def later_user(**fields: Any) -> Any:
    """A class of the same name with other fields."""
    return type("User", (Record,), {"__module__": __name__, **fields})


def test_strings_and_records_come_back_with_their_version(
    shared_server: ServerProcess, connected: pulsar.Client, topic: str
) -> None:
    """The values as objects; each message carries the version of its producer's schema, which the
    client can ask for, also after SIGKILL."""
    cases: tuple[tuple[str, Any, Any], ...] = (
        ("string", StringSchema(), "text"),
        ("json", JsonSchema(User), User(a="text")),
        ("avro", avro(A), b"\x08text"),
        ("native", ProtobufNativeSchema(Timestamp), Timestamp(seconds=7)),
    )
    for _ in before_and_after(shared_server):
        for name, kind, value in cases:
            consumer = connected.subscribe(
                f"{topic}-{name}",
                "s",
                schema=kind,
                initial_position=pulsar.InitialPosition.Earliest,
            )
            producer = connected.create_producer(f"{topic}-{name}", schema=kind)
            producer.send(value)
            message = consumer.receive(60_000)
            consumer.acknowledge(message)
            got = message.value()
            assert got.a == value.a if name == "json" else got == value
            assert version_of(message) == 0
            producer.close()
            consumer.close()


def test_a_record_evolves_or_is_refused(
    shared_server: ServerProcess, connected: pulsar.Client, topic: str, admin: Admin
) -> None:
    """FULL by default: a field with a default is version 1; a required one is refused until the
    namespace's strategy allows it. Messages keep the versions that they were written with."""
    name = f"{admin.create_namespace(topic[:40])}/t"
    for kinds in (
        (
            JsonSchema(User),
            JsonSchema(later_user(a=String(), b=String(default="x", required_default=True))),
        ),
        (avro(A), avro(A, B_OPTIONAL)),
    ):
        kept = f"persistent://{name}-{kinds[0].schema_info().schema_type()}"
        made = [connected.create_producer(kept, schema=kind) for kind in kinds]
        consumer = connected.subscribe(
            kept, "s", schema=kinds[1], initial_position=pulsar.InitialPosition.Earliest
        )
        for producer, value in zip(
            made,
            (User(a="1"), kinds[1]._record_cls(a="2", b="3"))
            if kinds[0]._record_cls is User
            else (b"1", b"2"),
            strict=True,
        ):
            producer.send(value)
        got = [consumer.receive(60_000) for _ in made]
        assert [version_of(message) for message in got] == [0, 1]
    strict = f"persistent://{name}-avro"
    connected.create_producer(strict, schema=avro(A)).send(b"1")
    required = avro(A, B)
    for refused in (required, StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            connected.create_producer(strict, schema=refused)
        with pytest.raises(pulsar.IncompatibleSchema):
            connected.subscribe(strict, "s", schema=refused)
    admin.call("PUT", f"namespaces/{name[:-2]}/schemaCompatibilityStrategy", "FORWARD")
    connected.create_producer(strict, schema=required).send(b"2")
    restart(shared_server)
    document = admin.call("GET", f"schemas/{name}-avro/schema")
    assert (document["version"], json.loads(document["data"])["fields"]) == (1, [A, B])


def test_a_consumer_that_takes_any_schema_gets_all_of_them(
    connected: pulsar.Client, topic: str
) -> None:
    """AUTO_CONSUME registers nothing and is refused nowhere; the client finds each message's
    definition by its version."""
    consumer = connected.subscribe(topic, "s", schema=Raw(_pulsar.SchemaType.AUTO_CONSUME, None))
    for kind in (avro(A), avro(A, B_OPTIONAL)):
        connected.create_producer(topic, schema=kind).send(b"x")
    for number, fields in enumerate(([A], [A, B_OPTIONAL])):
        message = consumer.receive(60_000)
        assert version_of(message) == number
        info = connected._client.get_schema_info(topic, number)
        assert json.loads(info.schema())["fields"] == fields


def test_magnetars_client_reads_avro_of_every_version(
    shared_server: ServerProcess, connected: pulsar.Client, topic: str
) -> None:
    """What another client wrote with an earlier and with a later definition, whose fields stand in
    another order."""
    later = avro({"name": "c", "type": "int", "default": 3}, A)
    for kind, data in ((avro(A), b"\x06one"), (later, b"\x0c\x06two")):
        connected.create_producer(topic, schema=kind).send(data)

    @dataclasses.dataclass
    class User:
        a: str
        c: int = 7

    async def read() -> list[User]:
        async with OwnClient(shared_server.service_url) as client:
            consumer = await client.subscribe(
                topic, "own", schema=AvroSchema(User), initial_position="Earliest"
            )
            return [(await consumer.receive(60)).value for _ in range(2)]

    assert asyncio.run(read()) == [User("one"), User("two", 6)]


# --- Java and Go ----------------------------------------------------------------------------------


@pytest.mark.java
def test_foreign_clients_register_and_share_schemas(
    shared_server: ServerProcess,
    foreign: Client,
    connected: pulsar.Client,
    topic: str,
    admin: Admin,
) -> None:
    """What Java or Go announces is what Python gets, and their same definition in another layout is
    the same version; partitions have one schema; what does not fit is refused."""
    admin.call("PUT", f"persistent/public/default/{topic}/partitions", 2)
    first, second = definition(A), json.dumps(json.loads(definition(A, B_OPTIONAL)), indent=2)
    for _ in before_and_after(shared_server):
        for text, kind in ((first, avro(A)), (second, avro(A, B_OPTIONAL))):
            foreign.producer(topic, schema=schema("AVRO", text)).send_all([b"1", b"2"])
            connected.create_producer(topic, schema=kind).send(b"3")
        consumer = foreign.consumer(topic, "s", schema=schema("AVRO", second), position="Earliest")
        assert sorted(consumer.values(6)) == sorted([b"1", b"2", b"3"] * 2)
        consumer.close()
        for bad in (
            schema("AVRO", definition(A, B, {"name": "c", "type": "int"})),
            schema("STRING"),
        ):
            with pytest.raises(ForeignError, match=r"(?i)incompatible"):
                foreign.producer(topic, schema=bad)
        listed = admin.call("GET", f"schemas/public/default/{topic}/schemas")
        assert [json.loads(one["data"]) for one in listed["getSchemaResponses"]] == [
            json.loads(first),
            json.loads(second),
        ]
    foreign.producer(f"{topic}-text", schema=schema("STRING")).send(b"text")
    reader = connected.subscribe(
        f"{topic}-text",
        "s",
        schema=StringSchema(),
        initial_position=pulsar.InitialPosition.Earliest,
    )
    assert reader.receive(60_000).value() == "text"


def test_a_topic_without_messages_forgets_its_schema_with_itself(
    connected: pulsar.Client, topic: str, admin: Admin
) -> None:
    producer = connected.create_producer(topic, schema=StringSchema())
    producer.close()
    admin.call("DELETE", f"persistent/public/default/{topic}")
    with pytest.raises(RestError):
        admin.call("GET", f"schemas/public/default/{topic}/schema")
    connected.create_producer(topic, schema=avro(A)).close()
