"""Schemas of topics as column types: which columns they have, how payloads are read, and what is
refused."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from magnetar.schemas.types import Schema, SchemaType
from magnetar_jobs.value_types import NotAColumn, ValueType
from tests.support.avro_records import schema, written

ALL_FIELDS: list[dict[str, Any]] = [
    {"name": "flag", "type": "boolean"},
    {"name": "small", "type": "int"},
    {"name": "large", "type": "long"},
    {"name": "short", "type": "float"},
    {"name": "wide", "type": "double"},
    {"name": "raw", "type": "bytes"},
    {"name": "text", "type": ["null", "string"], "default": None},
    {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
    {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
    {"name": "other", "type": "Code"},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "int"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "here", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {
        "name": "price",
        "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    },
    {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    {
        "name": "inner",
        "type": {
            "type": "record",
            "name": "Inner",
            "fields": [{"name": "n", "type": ["long", "null"]}],
        },
    },
]
VALUE: dict[str, Any] = {
    "flag": True,
    "small": -1,
    "large": 1 << 40,
    "short": 0.5,
    "wide": 2.25,
    "raw": b"\x00\xff",
    "text": None,
    "colour": "BLUE",
    "code": b"ab",
    "other": b"cd",
    "tags": ["x", "y"],
    "counts": {"a": 1},
    "day": date(2026, 11, 27),
    "at": datetime(2026, 11, 27, 12, tzinfo=UTC),
    "here": datetime(2026, 11, 27, 12, 0, 0, 5),
    "price": Decimal("12.34"),
    "id": "11111111-2222-3333-4444-555555555555",
    "inner": {"n": 7},
}
SQL = (
    "struct<flag:boolean,small:int,large:bigint,short:float,wide:double,raw:binary,text:string,"
    "colour:string,code:binary,other:binary,tags:array<string>,counts:map<string,int>,day:date,"
    "at:timestamp,here:timestamp_ntz,price:decimal(9,2),id:string,inner:struct<n:bigint>>"
)


def as_column(found: ValueType, value: Any) -> Any:
    """As it comes out of Arrow."""
    return pa.array([value], found.column.arrow).to_pylist()[0]


def test_every_avro_type_has_its_column() -> None:
    avro = schema(*ALL_FIELDS)
    found = ValueType.of(avro)
    assert found.column.name == SQL
    value = as_column(found, found.payload_reader(avro)(written(VALUE, avro)))
    assert value == {**VALUE, "counts": [("a", 1)]}


def test_json_as_javas_client_writes_it_has_the_same_columns() -> None:
    """Bytes in base64, times as numbers; a field that is absent has its default or is null, one
    that is not known is passed over."""
    kind = schema(*ALL_FIELDS, {"name": "since", "type": "int", "default": 3}, kind=SchemaType.JSON)
    found = ValueType.of(kind)
    document = {
        **VALUE,
        "raw": base64.b64encode(VALUE["raw"]).decode(),
        "code": base64.b64encode(b"ab").decode(),
        "day": (VALUE["day"] - date(1970, 1, 1)).days,
        "at": int(VALUE["at"].timestamp() * 1000),
        "here": int(VALUE["here"].replace(tzinfo=UTC).timestamp() * 1_000_000) // 10 * 10 + 5,
        "price": 12.34,
        "unknown": [1],
    }
    del document["other"]
    value = as_column(found, found.payload_reader(kind)(json.dumps(document).encode()))
    assert value == {**VALUE, "other": None, "counts": [("a", 1)], "since": 3}


def test_decimals_in_json_keep_all_their_digits() -> None:
    digits = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 10}
    kind = schema({"name": "d", "type": digits}, kind=SchemaType.JSON)
    found = ValueType.of(kind)
    value = found.payload_reader(kind)(b'{"d": 12345678901234567890.0123456789}')
    assert as_column(found, value) == {"d": Decimal("12345678901234567890.0123456789")}


@pytest.mark.parametrize(
    ("kind", "payload", "sql", "value"),
    [
        (SchemaType.STRING, b"caf\xc3\xa9", "string", "café"),
        (SchemaType.BOOLEAN, b"\x01", "boolean", True),
        (SchemaType.INT8, b"\xff", "tinyint", -1),
        (SchemaType.INT16, b"\x01\x00", "smallint", 256),
        (SchemaType.INT32, struct.pack(">i", -5), "int", -5),
        (SchemaType.INT64, struct.pack(">q", 1 << 50), "bigint", 1 << 50),
        (SchemaType.FLOAT, struct.pack(">f", 0.5), "float", 0.5),
        (SchemaType.DOUBLE, struct.pack(">d", 0.1), "double", 0.1),
        (SchemaType.TIMESTAMP, struct.pack(">q", 1500), "timestamp", datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        (SchemaType.DATE, struct.pack(">q", 0), "timestamp", datetime(1970, 1, 1, tzinfo=UTC)),
        (SchemaType.INSTANT, struct.pack(">qi", 1, 5000), "timestamp", datetime(1970, 1, 1, 0, 0, 1, 5, UTC)),
        (SchemaType.LOCAL_DATE, struct.pack(">q", 1), "date", date(1970, 1, 2)),
    ],
)  # fmt: skip
def test_primitive_types(kind: SchemaType, payload: bytes, sql: str, value: Any) -> None:
    found = ValueType.of(Schema(kind))
    assert found.column.sql == sql
    assert as_column(found, found.payload_reader(Schema(kind))(payload)) == value


def test_what_another_version_wrote_is_resolved() -> None:
    """Fields that came with a default, went, or became wider."""
    before = schema({"name": "n", "type": "int"}, {"name": "gone", "type": "string"})
    after = schema({"name": "n", "type": "long"}, {"name": "came", "type": "int", "default": 4})
    read = ValueType.of(after).payload_reader(before)
    assert read(written({"n": 1, "gone": "x"}, before)) == {"n": 1, "came": 4}


LIST = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}
NOTHING: dict[str, Any] = {"type": "record", "name": "Empty", "fields": []}


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (LIST, "com.shop.Node refers to itself"),
        ({"type": "array", "items": "null"}, "items take no bytes"),
        ({"type": "array", "items": NOTHING}, "items take no bytes"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, "take no bytes"),
        (["string", "int"], "value.f is a union of several types"),
        (NOTHING, "value.f has nothing in it"),
        ("null", "value.f has nothing in it"),
        ("com.shop.Unknown", "no Avro definition"),
    ],
)
def test_a_definition_that_has_no_column_is_named(field: Any, said: str) -> None:
    """What refers to itself could be nested as deep as a payload says; an array of nothing could
    be as long."""
    for kind in (SchemaType.AVRO, SchemaType.JSON):
        with pytest.raises(NotAColumn, match=said):
            ValueType.of(schema({"name": "f", "type": field}, kind=kind))


def test_a_definition_that_unfolds_without_end_is_refused() -> None:
    """Thirty records, each with two of the one before."""
    inner: Any = {"type": "record", "name": "R0", "fields": [{"name": "n", "type": "int"}]}
    for level in range(1, 31):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{level - 1}"}]
        inner = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(NotAColumn, match="more than 10000 parts"):
        ValueType.of(schema({"name": "f", "type": inner}))


def test_payloads_of_a_definition_that_refers_to_itself_are_not_read() -> None:
    """As a version of before, too."""
    wanted = schema({"name": "n", "type": "int", "default": 0})
    with pytest.raises(NotAColumn, match="refers to itself"):
        ValueType.of(wanted).payload_reader(schema({"name": "f", "type": LIST}))


@pytest.mark.parametrize("kind", [SchemaType.TIME, SchemaType.PROTOBUF_NATIVE])
def test_other_types_of_schemas_are_refused(kind: SchemaType) -> None:
    with pytest.raises(NotAColumn, match=f"type {kind.name} has no columns"):
        ValueType.of(Schema(kind, b"{}"))


@pytest.mark.parametrize("data", [b"", b"[", b"3", b'{"type": "record"}', b'"nothing"', b"null"])
def test_what_is_no_definition_is_refused(data: bytes) -> None:
    with pytest.raises(NotAColumn):
        ValueType.of(Schema(SchemaType.AVRO, data))
