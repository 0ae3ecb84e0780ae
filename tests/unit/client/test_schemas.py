"""Schemas: what is written and announced, what is refused, and typed producers and consumers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import decimal
import enum
import json
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client import STRING, AvroSchema, Client, JsonSchema, Undecodable
from magnetar.client.records import definition_of
from magnetar.client.schemas import BYTES
from magnetar.errors import IncompatibleSchema, InvalidRequest, WireCode
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import parse_entry
from tests.support.client_scenarios import entry, run
from tests.support.memory import ScriptedBroker, Session


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


@dataclasses.dataclass(frozen=True)
class Item:
    """A line of an order."""

    sku: str
    count: int = 1


class Order(pydantic.BaseModel):
    """What an application would send."""

    number: int
    price: float
    paid: bool = False
    note: str | None = None
    colour: Colour = Colour.RED
    lines: list[Item] = []
    spare: Item | None = None
    labels: dict[str, str] = {}
    kind: Literal["a", "b"] = "a"
    placed: datetime.datetime | None = None
    total: Annotated[decimal.Decimal, "euro"] = decimal.Decimal(0)


def test_a_model_is_an_avro_record_in_which_types_are_defined_once() -> None:
    """Optional fields come with a null default first; Item is defined at its first use and named
    at its second."""
    item = {
        "type": "record",
        "name": "Item",
        "fields": [
            {"name": "sku", "type": "string"},
            {"name": "count", "type": "long", "default": 1},
        ],
    }
    assert definition_of(Order) == {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "number", "type": "long"},
            {"name": "price", "type": "double"},
            {"name": "paid", "type": "boolean", "default": False},
            {"name": "note", "type": ["null", "string"], "default": None},
            {
                "name": "colour",
                "type": {"type": "enum", "name": "Colour", "symbols": ["red", "green"]},
            },
            {"name": "lines", "type": {"type": "array", "items": item}},
            {"name": "spare", "type": ["null", "Item"], "default": None},
            {"name": "labels", "type": {"type": "map", "values": "string"}},
            {"name": "kind", "type": "string", "default": "a"},
            {"name": "placed", "type": ["null", "string"], "default": None},
            {"name": "total", "type": "string"},
        ],
    }


@given(
    st.builds(
        Order,
        number=st.integers(),
        price=st.floats(allow_nan=False, allow_infinity=False),
        note=st.none() | st.text(),
        colour=st.sampled_from(Colour),
        lines=st.lists(st.builds(Item, sku=st.text(), count=st.integers())),
        labels=st.dictionaries(st.text(), st.text()),
        placed=st.none() | st.datetimes(),
    )
)
def test_values_survive_json(order: Order) -> None:
    """decode(encode(value)) is the value."""
    schema = JsonSchema(Order)
    assert schema.decode(schema.encode(order)) == order


@given(st.text())
def test_text_survives(text: str) -> None:
    """Whatever UTF-8 can say."""
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        return
    assert STRING.decode(STRING.encode(text)) == text


@given(st.binary())
def test_whatever_arrives_decodes_or_is_undecodable(data: bytes) -> None:
    """No other exception comes out of a peer's bytes."""
    for schema in (STRING, JsonSchema(Item), BYTES):
        try:
            schema.decode(data)
        except Undecodable:
            assert schema is not BYTES


def test_payloads_do_not_show_in_errors() -> None:
    """A message may hold what no log should."""
    with pytest.raises(Undecodable, match="sku") as caught:
        JsonSchema(Item).decode(b'{"sku": 5, "secret": "hunter2"}')
    assert "hunter2" not in str(caught.value)


class Bad(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    field: Any


@dataclasses.dataclass
class BytesInside:
    raw: bytes


class Numbers(enum.Enum):
    ONE = 1


@dataclasses.dataclass
class NumberedEnum:
    number: Numbers


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (Bad, "Bad.field"),
        (BytesInside, "BytesInside.raw"),
        (NumberedEnum, "NumberedEnum.number"),
        (int, "neither"),
    ],
)
def test_what_has_no_place_in_a_schema_is_refused_by_name(model: type, text: str) -> None:
    """The field, its type, and what to use instead."""
    with pytest.raises(InvalidRequest, match=text):
        JsonSchema(model)


def test_a_typed_producer_and_consumer_announce_their_schema_and_speak_in_values() -> None:
    """PRODUCER and SUBSCRIBE carry it; the broker's version is in the entries; tombstones have
    no value."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.script["producer"] = lambda _, ask: commands.producer_success(
            ask.request_id, "p", schema_version=b"\0" * 7 + b"\3"
        )
        producer = await client.create_producer("t", schema=JsonSchema(Item))
        consumer = await client.subscribe("t", "s", schema=JsonSchema(Item))
        for ask in (broker.of("producer")[0], broker.of("subscribe")[0]):
            assert (ask.schema.name, ask.schema.type) == ("Item", 2)
            assert json.loads(ask.schema.schema_data) == definition_of(Item)
        await producer.send(Item("a", 2))
        sent = parse_entry(broker.stored[0][1])
        assert (bytes(sent.payload), sent.metadata.schema_version) == (
            b'{"sku":"a","count":2}',
            b"\0" * 7 + b"\3",
        )
        broker.deliver(0, [broker.stored[0][1], entry(b"no json"), entry(b"", null_value=True)])
        assert (await consumer.receive()).value == Item("a", 2)
        damaged, tombstone = await consumer.receive(), await consumer.receive()
        assert damaged.data == b"no json"
        with pytest.raises(Undecodable, match="no Item"):
            _ = damaged.value
        with pytest.raises(Undecodable, match="tombstone"):
            _ = tombstone.value
        with pytest.raises(InvalidRequest, match="takes Item"):
            await producer.send("text")  # type: ignore[arg-type]

    run(scenario)


def test_an_incompatible_schema_is_a_typed_refusal() -> None:
    """IncompatibleSchema, which will not change by trying again; without a schema nothing is
    announced."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        plain = await client.create_producer("t")
        assert not broker.of("producer")[0].HasField("schema")
        with pytest.raises(InvalidRequest, match="must be bytes"):
            await plain.send("text")  # type: ignore[arg-type]
        broker.script["producer"] = lambda _, ask: commands.error(
            ask.request_id, WireCode.INCOMPATIBLE_SCHEMA, "no"
        )
        with pytest.raises(IncompatibleSchema):
            await client.create_producer("t", schema=STRING)

    run(scenario)


AVRO = AvroSchema(Order)


def test_avro_bytes_are_those_of_the_specification() -> None:
    """A string has its length before it, a long is a zigzag varint; there is no header."""
    schema = AvroSchema(Item)
    assert schema.encode(Item("ab", 2)) == b"\x04ab\x04"
    assert schema.decode(b"\x04ab\x04") == Item("ab", 2)
    announced = schema.to_wire()
    assert (announced.name, announced.type) == ("Item", announced.Type.Avro)
    assert json.loads(announced.schema_data) == definition_of(Item)


@given(
    st.builds(
        Order,
        number=st.integers(-(2**63), 2**63 - 1),
        price=st.floats(allow_nan=False, allow_infinity=False),
        note=st.none() | st.text(),
        colour=st.sampled_from(Colour),
        lines=st.lists(st.builds(Item, st.text(), st.integers(0, 99)), max_size=3),
        spare=st.none() | st.builds(Item, st.text(), st.integers(0, 99)),
        labels=st.dictionaries(st.text(), st.text(), max_size=3),
        placed=st.none() | st.datetimes(),
        total=st.decimals(allow_nan=False, allow_infinity=False, places=2, max_value=10**9),
    )
)
def test_avro_gives_back_what_was_written(order: Order) -> None:
    assert AVRO.decode(AVRO.encode(order)) == order


@given(st.binary(max_size=60))
def test_any_bytes_are_an_order_in_avro_or_undecodable(data: bytes) -> None:
    with contextlib.suppress(Undecodable):
        assert isinstance(AVRO.decode(data), Order)


def test_what_does_not_fit_an_avro_record_is_refused() -> None:
    for value in (Item("a", 2**63), Item(None)):  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="Item"):
            AvroSchema(Item).encode(value)
    with pytest.raises(InvalidRequest, match="takes Item"):
        AvroSchema(Item).encode("text")  # type: ignore[arg-type]
    with pytest.raises(Undecodable, match="no Avro"):
        AvroSchema(Item).decode(b"\x04ab\x04\x00")


LATER: Any = dataclasses.make_dataclass(
    "Item", [("sku", str), ("origin", str), ("count", int, 1)], frozen=True
)
"""Item as its producers write it now: another order, and a field more."""
WRITTEN_LATER = AvroSchema(LATER).encode(LATER("a", "here", 2))
ONE, TWO, GONE = (bytes(7) + bytes([number]) for number in (1, 2, 9))


def test_an_avro_message_is_read_by_what_its_producer_wrote_with() -> None:
    """Asked for once per version, also after a lost connection; messages behind wait, and come in
    order. Naive: the consumer's own definition finds other values in the same bytes."""
    schema = AvroSchema(Item)
    definitions = {ONE: schema.to_wire(), TWO: AvroSchema(LATER).to_wire()}

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        held: list[tuple[Session, Any]] = []
        broker.script["get_schema"] = lambda session, ask: held.append((session, ask))
        consumer = await client.subscribe("t", "s", schema=schema)
        broker.deliver(
            0,
            [
                entry(WRITTEN_LATER, schema_version=TWO),
                entry(schema.encode(Item("b", 3)), schema_version=ONE),
                entry(WRITTEN_LATER, schema_version=TWO),
                entry(schema.encode(Item("c"))),
            ],
        )
        first = asyncio.ensure_future(consumer.receive())
        await broker.arrival("get_schema")
        assert await consumer.batch_receive(timeout_s=0.01) == []
        session, _ = held.pop()
        session.drop()  # the answer is lost, and with it the attachment
        broker.script["get_schema"] = lambda _, ask: commands.schema_found(
            ask.request_id, definitions[ask.schema_version], ask.schema_version
        )
        await broker.arrival("subscribe", 2)
        broker.deliver(
            0,
            [
                entry(WRITTEN_LATER, schema_version=TWO),
                entry(schema.encode(Item("b", 3)), schema_version=ONE),
                entry(WRITTEN_LATER, schema_version=TWO),
                entry(schema.encode(Item("c"))),
            ],
        )
        got = [await first, *[await consumer.receive() for _ in range(3)]]
        assert [message.value for message in got] == [
            Item("a", 2), Item("b", 3), Item("a", 2), Item("c"),
        ]  # fmt: skip
        asked = [ask.schema_version for ask in broker.of("get_schema")]
        assert asked[1:] == [TWO, ONE]

    run(scenario)


def test_a_version_that_nobody_knows_is_read_by_the_consumers_own() -> None:
    """It does not hold up the topic; nor does a definition that is none."""
    schema = AvroSchema(Item)
    broken = api.Schema(name="t", type=api.Schema.Type.Avro, schema_data=b"{")

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        def answer(_: Session, ask: Any) -> bytes:
            if ask.schema_version == GONE:
                return commands.schema_failed(ask.request_id, WireCode.TOPIC_NOT_FOUND, "no")
            return commands.schema_found(ask.request_id, broken, ONE)

        broker.script["get_schema"] = answer
        consumer = await client.subscribe("t", "s", schema=schema)
        data = schema.encode(Item("b", 3))
        broker.deliver(0, [entry(data, schema_version=GONE), entry(data, schema_version=ONE)])
        assert [(await consumer.receive()).value for _ in range(2)] == [Item("b", 3)] * 2

    run(scenario)
