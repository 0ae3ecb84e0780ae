"""Versions of schemas where a message is not simply appended: on a compacted topic, and in
transactions. The official Java and Go clients decode every value by the version that it carries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import _pulsar
import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.cluster import wait_for
from dev.testbed.foreign import (
    Client,
    Driver,
    ForeignError,
    Producer,
    Transaction,
    ids,
    schema,
)
from dev.testbed.foreign_messages import Id, Received
from dev.testbed.rest import Admin
from tests.clients.conftest import QUIET
from tests.clients.places import Place, unload
from tests.clients.raw_schemas import B_OPTIONAL, A, B, Raw, definition, version_of
from tests.clients.restarts import before_and_after, restart

pytestmark = [pytest.mark.slow, pytest.mark.java, pytest.mark.etcd]

C_OPTIONAL = {"name": "c", "type": "string", "default": ""}
DEFINITIONS = [definition(A), definition(A, B_OPTIONAL), definition(A, B_OPTIONAL, C_OPTIONAL)]
"""Versions 0, 1 and 2 of a topic's schema."""
ONE, TWO, THREE = {"a": "1"}, {"a": "2"}, {"a": "3", "b": "y"}
"""Records; the last one is of version 1."""
REFUSED = r"(?i)incompatible|schema compatibility check"


def encoded(kind: str, record: dict[str, str]) -> bytes:
    """A record of short strings, as clients encode it."""
    if kind == "JSON":
        return json.dumps(record, separators=(",", ":")).encode()
    return b"".join(bytes([2 * len(text)]) + text.encode() for text in record.values())


def batches(driver: Driver, *, batching: bool, delay_ms: int = 500) -> dict[str, Any]:
    """A producer's options. Go's client names the version in batches only, so that its single
    messages are batches of one. A batch ends with the driver's flush, or after `delay_ms`: that is
    how messages of a transaction leave Java's client, which takes them up behind the flush."""
    options: dict[str, Any] = {"batching": batching, "batching_delay_ms": delay_ms}
    if driver.language == "go":
        options |= {"batching": True, "batching_max_messages": 1000 if batching else 1}
    return options


def any_schema(driver: Driver) -> dict[str, str] | None:
    """What a consumer is given that is to decode each value by its own version."""
    return schema("AUTO_CONSUME") if driver.language == "java" else None


def resolved(driver: Driver, kind: str, record: dict[str, str]) -> dict[str, Any]:
    """What a consumer with version 1 makes of a record: Java's reads Avro into its own fields, and
    looks them up in JSON; Go's decodes by the version of the message only."""
    if driver.language == "go":
        return record
    return {"b": "x" if kind == "AVRO" else None} | record


def shown(messages: list[Received]) -> list[Any]:
    """Key, version and record of each."""
    return [(message.key, message.schema_version, message.decoded) for message in messages]


def positions(found: list[Id]) -> list[tuple[int, int, int]]:
    return [(one.ledger, one.entry, one.batch_index) for one in found]


# --- A compacted topic ----------------------------------------------------------------------------


def publish(
    producer: Producer,
    kind: str,
    *records: tuple[str, dict[str, str]],
    txn: Transaction | None = None,
) -> list[Id]:
    """One message per record, under its key; without a record it deletes the key."""
    messages = [
        {"key": key, "value": encoded(kind, record) if record else b""} for key, record in records
    ]
    return ids(producer.begin_send(messages, txn))


def compact(admin: Admin, topic: str) -> None:
    admin.topic("PUT", topic, "compaction")
    wait_for(
        f"{topic} is compacted",
        lambda: admin.topic("GET", topic, "compaction")["status"] == "SUCCESS",
    )


def disturbed(server: ServerProcess, admin: Admin, topic: str) -> Iterator[None]:
    """For a loop whose body runs at first, after an unload, and after a crash."""
    yield
    admin.topic("PUT", topic, "unload")
    yield
    restart(server)
    yield


def read_by_python(client: pulsar.Client, topic: str, count: int) -> list[Any]:
    """Key, version, number of fields of the definition that the client is given for this version,
    and value of each message of the view."""
    reader = client.create_reader(
        topic,
        pulsar.MessageId.earliest,
        schema=Raw(_pulsar.SchemaType.AUTO_CONSUME, None),
        is_read_compacted=True,
    )
    found = []
    for _ in range(count):
        message = reader.read_next(60_000)
        version = version_of(message)
        text = client._client.get_schema_info(topic, version).schema()
        fields = json.loads(text)["fields"]
        found.append((message.partition_key(), version, len(fields), message.value()))
    assert not reader.has_message_available()
    reader.close()
    return found


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_a_compacted_value_keeps_its_version(
    shared_server: ServerProcess,
    driver: Driver,
    foreign: Client,
    connected: pulsar.Client,
    topic: str,
    admin: Admin,
    kind: str,
    *,
    batching: bool,
) -> None:
    """Per key the last value, under its id, decoded by the version it was written with: by a reader
    of any schema, a consumer with its own, and Python; also out of a batch that lost messages."""
    name, own = f"persistent://public/default/{topic}", schema(kind, DEFINITIONS[1])
    # no timer of the client parts what is sent together
    options = batches(driver, batching=batching, delay_ms=60_000)
    earlier, later = [
        foreign.producer(name, schema=schema(kind, text), **options) for text in DEFINITIONS[:2]
    ]
    first = publish(earlier, kind, ("a", ONE), ("b", ONE), ("c", ONE), ("d", ONE), ("a", TWO))
    second = publish(later, kind, ("b", THREE), ("d", {}), ("e", THREE))
    assert len({one.entry for one in first}) == (1 if batching else 5)
    compact(admin, topic)
    view = [("c", 0, ONE), ("a", 0, TWO), ("b", 1, THREE), ("e", 1, THREE)]
    kept = positions([first[2], first[4], second[0], second[2]])
    for _ in disturbed(shared_server, admin, topic):
        reader = foreign.reader(name, read_compacted=True, schema=any_schema(driver))
        got = reader.read(4, decode=True)
        assert (shown(got), reader.has_next()) == (view, False)
        assert positions([message.id for message in got]) == kept
        reader.close()
        consumer = foreign.consumer(
            name, "own", mode="NonDurable", read_compacted=True, position="Earliest", schema=own
        )
        assert shown(consumer.receive(4, decode=True)) == [
            (key, version, resolved(driver, kind, record)) for key, version, record in view
        ]
        consumer.close()
        assert read_by_python(connected, name, 4) == [
            (key, version, len(record), encoded(kind, record)) for key, version, record in view
        ]
    publish(earlier, kind, ("f", ONE), ("e", TWO))
    compact(admin, topic)
    reader = foreign.reader(name, read_compacted=True, schema=any_schema(driver))
    assert shown(reader.read(5, decode=True)) == [*view[:3], ("f", 0, ONE), ("e", 0, TWO)]


def test_a_table_shows_what_is_compacted(
    shared_server: ServerProcess, driver: Driver, foreign: Client, topic: str, admin: Admin
) -> None:
    """Values of two versions out of the view and from behind it, also after a crash. Of Java's own
    views only those work that ask for no version (apache/pulsar#12508): its values stay bytes."""
    name, own = f"persistent://public/default/{topic}", schema("JSON", DEFINITIONS[1])
    earlier, later = [
        foreign.producer(name, schema=schema("JSON", text), **batches(driver, batching=False))
        for text in DEFINITIONS[:2]
    ]
    publish(earlier, "JSON", ("a", ONE), ("b", ONE), ("c", ONE))
    publish(later, "JSON", ("b", THREE), ("c", {}))
    compact(admin, topic)
    expected = {"a": ONE, "b": THREE}
    for key, _ in zip(("d", "e"), before_and_after(shared_server), strict=True):
        table = foreign.table(name, schema=own)
        assert records(table.entries()) == expected
        publish(earlier, "JSON", (key, TWO))
        expected |= {key: TWO}
        found = table.await_entry(key, encoded("JSON", TWO))
        assert records(found) == expected
        table.close()


def records(entries: dict[str, bytes]) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in entries.items()}


@pytest.mark.parametrize("batching", [False, True], ids=["single", "batched"])
def test_a_compacted_transaction_keeps_its_versions(
    shared_server: ServerProcess, driver: Driver, topic: str, admin: Admin, *, batching: bool
) -> None:
    """Values that a transaction committed stand in the view with the version of their producer;
    what it aborted is in no view, nor does it replace what is."""
    name = f"persistent://public/default/{topic}"
    with closing(driver.client(shared_server.service_url, transactions=True)) as app:
        earlier, later = [
            app.producer(name, schema=schema("AVRO", text), **batches(driver, batching=batching))
            for text in DEFINITIONS[:2]
        ]
        publish(later, "AVRO", ("a", THREE), ("b", THREE), ("c", THREE))
        committed, aborted = app.transaction(), app.transaction()
        publish(earlier, "AVRO", ("a", ONE), ("d", ONE), ("a", TWO), txn=committed)
        publish(later, "AVRO", ("d", THREE), ("b", {}), ("e", THREE), txn=committed)
        publish(earlier, "AVRO", ("c", ONE), ("e", {}), ("f", ONE), txn=aborted)
        committed.commit()
        aborted.abort()
        compact(admin, topic)
        for _ in disturbed(shared_server, admin, topic):
            reader = app.reader(name, read_compacted=True, schema=any_schema(driver))
            assert shown(reader.read(4, decode=True)) == [
                ("c", 1, THREE),
                ("a", 0, TWO),
                ("d", 1, THREE),
                ("e", 1, THREE),
            ]
            assert not reader.has_next()
            reader.close()


# --- A transactional topic ------------------------------------------------------------------------


@pytest.fixture
def python(place: Place) -> Iterator[pulsar.Client]:
    """The official Python client, which has no transactions, connected to `place`."""
    made = pulsar.Client(place.service_url, operation_timeout_seconds=60, logger=QUIET)
    yield made
    made.close()


def registered(place: Place, topic: str) -> list[str]:
    listed = Admin(place).call("GET", f"schemas/public/default/{topic}/schemas")
    return [one["data"] for one in listed["getSchemaResponses"]]


def disturbed_place(place: Place, topic: str) -> Iterator[None]:
    """As `disturbed`."""
    yield
    unload(place, topic)
    yield
    place.restart()
    yield


@pytest.mark.parametrize(
    ("kind", "batching"), [("JSON", False), ("AVRO", True)], ids=["json-single", "avro-batched"]
)
def test_versions_of_a_transaction_outlive_a_crash(
    place: Place,
    driver: Driver,
    app: Client,
    python: pulsar.Client,
    topic: str,
    kind: str,
    *,
    batching: bool,
) -> None:
    """Two producers of two versions in one transaction: what is committed carries the version of
    its producer, what is aborted never comes. The version that only the producer of an aborted
    transaction brought is registered all the same: that happens when it is made."""
    schemas = [schema(kind, text) for text in DEFINITIONS]
    earlier, later, last = [
        app.producer(topic, schema=one, **batches(driver, batching=batching)) for one in schemas
    ]
    committed, aborted = app.transaction(), app.transaction()
    earlier.send_all([encoded(kind, ONE), encoded(kind, TWO)], committed)
    last.send_all([encoded(kind, THREE | {"c": "never"})] * 2, aborted)
    later.send_all([encoded(kind, THREE)] * 2, committed)
    earlier.send(encoded(kind, ONE), aborted)
    aborted.abort()
    committed.commit()
    expected = [(None, 0, ONE), (None, 0, TWO), (None, 1, THREE), (None, 1, THREE)]
    for _ in disturbed_place(place, topic):
        reader = app.reader(topic, schema=any_schema(driver))
        assert shown(reader.read(4, decode=True)) == expected
        assert not reader.has_next()
        reader.close()
        consumer = app.consumer(
            topic, "own", mode="NonDurable", position="Earliest", schema=schemas[1]
        )
        assert shown(consumer.receive(4, decode=True)) == [
            (None, version, resolved(driver, kind, record)) for _, version, record in expected
        ]
        consumer.close()
        assert read_by_python(python, topic, 4) == [
            ("", version, len(record), encoded(kind, record)) for _, version, record in expected
        ]
        assert [json.loads(text) for text in registered(place, topic)] == [
            json.loads(text) for text in DEFINITIONS
        ]


def test_one_producer_sends_versions_in_a_transaction(
    place: Place, driver: Driver, app: Client, topic: str
) -> None:
    """Each message with a schema of its own, registered when it is sent, also in a transaction
    that is aborted then."""
    reader = app.reader(topic, schema=any_schema(driver))
    producer = app.producer(topic, schema=schema("AVRO", DEFINITIONS[0]), batching=True)
    committed, aborted = app.transaction(), app.transaction()
    newer, newest = (schema("AVRO", text) for text in DEFINITIONS[1:])
    producer.send_all([encoded("AVRO", ONE)], committed)
    producer.send_all([encoded("AVRO", THREE)], committed, newer)
    producer.send_all([encoded("AVRO", THREE | {"c": "never"})], aborted, newest)
    producer.send_all([encoded("AVRO", TWO)], committed)
    aborted.abort()
    committed.commit()
    assert shown(reader.read(3, decode=True)) == [
        (None, 0, ONE),
        (None, 1, THREE),
        (None, 0, TWO),
    ]
    assert len(registered(place, topic)) == 3


def test_what_does_not_fit_is_refused_beside_a_transaction(
    place: Place, driver: Driver, app: Client, topic: str
) -> None:
    """A producer and a consumer, and a message in a transaction, which its client gives up for that;
    another transaction goes on. Also a producer without a schema, for they are enforced here."""
    name = f"{Admin(place).create_namespace(topic, schema_validation_enforced=True)}/t"
    path = f"persistent://{name}"
    fits = schema("AVRO", DEFINITIONS[0])
    watching = app.consumer(path, "watch", schema=fits)
    producer = app.producer(path, schema=fits, **batches(driver, batching=False))
    txn = app.transaction()
    producer.send(encoded("AVRO", ONE), txn)
    for bad in (schema("AVRO", definition(A, B)), schema("STRING")):
        lost = app.transaction()
        with pytest.raises(ForeignError, match=REFUSED):
            app.producer(path, schema=bad)
        with pytest.raises(ForeignError, match=REFUSED):
            app.consumer(path, "other", schema=bad)
        with pytest.raises(ForeignError, match=REFUSED):
            producer.send_all([b"never"], lost, bad)
        with pytest.raises(ForeignError):
            lost.commit()
        # Java's client aborts instead; Go's does nothing more, and the timeout ends the transaction
        assert lost.state == ("ABORTED" if driver.language == "java" else "ERROR")
    with pytest.raises(ForeignError, match=REFUSED):
        app.producer(path)
    producer.send(encoded("AVRO", TWO), txn)
    txn.commit()
    assert shown(watching.receive(2, decode=True)) == [(None, 0, ONE), (None, 0, TWO)]
    documents = Admin(place).call("GET", f"schemas/{name}/schemas")["getSchemaResponses"]
    assert len(documents) == 1
