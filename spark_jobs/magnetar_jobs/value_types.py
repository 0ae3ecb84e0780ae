"""Schemas of topics as column types, and values of them.

Owns: `ValueType`, what a schema makes of a payload: its column in SQL and in Arrow, and how a payload
is read. Imports: fastavro, pyarrow, errors, schemas. Sources: Avro 1.12; the encodings of Pulsar's
Java client. Pure. Invariants: a payload takes memory in proportion to its size, and is read without
recursion that it decides; a schema that cannot promise that is refused; what does not fit is an
error, never another value.
"""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from magnetar.errors import InvalidRequest
from magnetar.schemas.types import Schema, SchemaType

TIMESTAMP, LOCAL_TIMESTAMP = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
DECIMAL_DIGITS_MAX = 38
PARTS_MAX = 10_000
"""Of a definition: named types that have each other twice double with each level."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Read = Callable[[bytes], Any]
"""Of a payload."""
MessageRead = Callable[[bytes | None, bytes | None], Any]
"""Of a message's key and payload."""


@dataclass(frozen=True, slots=True)
class Column:
    """A type, as Spark and Arrow call it."""

    sql: str
    arrow: pa.DataType

    @property
    def name(self) -> str:
        """The type as Spark shows it; equal for equal types."""
        return self.sql.replace("`", "")


class NotAColumn(InvalidRequest):
    """A schema of which no column can be made."""


_PRIMITIVE_COLUMNS = {
    "boolean": Column("boolean", pa.bool_()),
    "int": Column("int", pa.int32()),
    "long": Column("bigint", pa.int64()),
    "float": Column("float", pa.float32()),
    "double": Column("double", pa.float64()),
    "bytes": Column("binary", pa.binary()),
    "string": Column("string", pa.string()),
}
_LOGICAL_COLUMNS = {
    "date": Column("date", pa.date32()),
    "timestamp-millis": Column("timestamp", TIMESTAMP),
    "timestamp-micros": Column("timestamp", TIMESTAMP),
    "local-timestamp-millis": Column("timestamp_ntz", LOCAL_TIMESTAMP),
    "local-timestamp-micros": Column("timestamp_ntz", LOCAL_TIMESTAMP),
}
_LOGICAL_OF = {"date": "int"} | dict.fromkeys(list(_LOGICAL_COLUMNS)[1:], "long")


# --- Avro definitions -----------------------------------------------------------------------------


class Definition:
    """An Avro definition whose names are resolved and whose logical types are those that have
    columns. Raises NotAColumn for one that refers to itself, has arrays of nothing, or is too
    large."""

    def __init__(self, data: bytes) -> None:
        self._named: dict[str, Any] = {}
        self._parts = 0
        try:
            document = json.loads(data)
            self.root = self._resolved(document, "", ())
            self.parsed = fastavro.parse_schema(_plain(document))
        except NotAColumn:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NotAColumn(f"it is no Avro definition ({type(error).__name__})") from error
        except fastavro.schema.SchemaParseException as error:
            raise NotAColumn(f"it is no Avro definition ({str(error)[:200]})") from error

    def _resolved(self, kind: Any, space: str, inside: tuple[str, ...]) -> Any:
        """The type with the definitions of names in their places."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise NotAColumn(f"it has more than {PARTS_MAX} parts, those of named types each time")
        if isinstance(kind, list):
            return [self._resolved(branch, space, inside) for branch in kind]
        if isinstance(kind, str):
            if kind in _PRIMITIVE_COLUMNS or kind == "null":
                return {"type": kind}
            name = kind if "." in kind or not space else f"{space}.{kind}"
            if name in inside:
                raise NotAColumn(f"{name} refers to itself")
            return self._resolved(self._named[name], _space_of(name), inside)
        of = kind["type"]
        if of in ("record", "error", "enum", "fixed"):
            name = kind["name"]
            outer = kind.get("namespace", space)
            full = name if "." in name or not outer else f"{outer}.{name}"
            self._named[full] = kind
            if of in ("enum", "fixed"):
                return {**_with_logical(kind), "type": of}
            fields = [
                {**field, "type": self._resolved(field["type"], _space_of(full), (*inside, full))}
                for field in kind["fields"]
            ]
            return {"type": "record", "name": full, "fields": fields}
        if of == "array":
            items = self._resolved(kind["items"], space, inside)
            if _is_nothing(items):
                raise NotAColumn("it has an array whose items take no bytes")
            return {"type": "array", "items": items}
        if of == "map":
            return {"type": "map", "values": self._resolved(kind["values"], space, inside)}
        if isinstance(of, str) and (of in _PRIMITIVE_COLUMNS or of == "null"):
            return _with_logical(kind)
        return self._resolved(of, space, inside)


def _space_of(full: str) -> str:
    """The namespace of a full name."""
    return full.rpartition(".")[0]


def _with_logical(kind: Mapping[str, Any]) -> dict[str, Any]:
    """Without a logical type that has no column: its values are those of the type below it."""
    logical = kind.get("logicalType")
    if logical == "decimal" and kind["type"] in ("bytes", "fixed"):
        precision, scale = kind.get("precision", 0), kind.get("scale", 0)
        if 0 < precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision:
            return dict(kind)
    elif _LOGICAL_OF.get(str(logical)) == kind["type"]:
        return dict(kind)
    return {name: value for name, value in kind.items() if name != "logicalType"}


def _plain(kind: Any) -> Any:
    """A document as `_with_logical` has its types."""
    if isinstance(kind, list):
        return [_plain(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    found = _with_logical(kind) if isinstance(kind.get("type"), str) else dict(kind)
    return {
        name: _plain(value) if name in ("type", "fields", "items", "values") else value
        for name, value in found.items()
    }


def _is_nothing(kind: Any) -> bool:
    """Whether values of a resolved type take no bytes."""
    if isinstance(kind, list):
        return False
    if kind["type"] == "record":
        return all(_is_nothing(field["type"]) for field in kind["fields"])
    return kind["type"] == "null" or (kind["type"] == "fixed" and not kind["size"])


def column_of(kind: Any, path: str = "value") -> Column:
    """The column of a resolved type. Raises NotAColumn naming the field."""
    if isinstance(kind, list):
        branches = [branch for branch in kind if branch.get("type") != "null"]
        if len(branches) != 1:
            raise NotAColumn(f"{path} is a union of several types")
        return column_of(branches[0], path)
    of, logical = kind["type"], kind.get("logicalType", "")
    if logical == "decimal":
        precision, scale = kind["precision"], kind.get("scale", 0)
        return Column(f"decimal({precision},{scale})", pa.decimal128(precision, scale))
    if logical in _LOGICAL_COLUMNS:
        return _LOGICAL_COLUMNS[logical]
    if of in _PRIMITIVE_COLUMNS:
        return _PRIMITIVE_COLUMNS[of]
    if of in ("enum", "fixed"):
        return _PRIMITIVE_COLUMNS["string" if of == "enum" else "bytes"]
    if of == "array":
        items = column_of(kind["items"], f"{path}[]")
        return Column(f"array<{items.sql}>", pa.list_(items.arrow))
    if of == "map":
        values = column_of(kind["values"], f"{path}[]")
        return Column(f"map<string,{values.sql}>", pa.map_(pa.string(), values.arrow))
    if of != "record" or not kind["fields"]:
        raise NotAColumn(f"{path} has nothing in it")
    return arrow_struct(
        [
            (field["name"], column_of(field["type"], f"{path}.{field['name']}"))
            for field in kind["fields"]
        ]
    )


def arrow_struct(fields: Sequence[tuple[str, Column]]) -> Column:
    sql = ",".join(f"`{name}`:{column.sql}" for name, column in fields)
    return Column(f"struct<{sql}>", pa.struct([(name, column.arrow) for name, column in fields]))


# --- values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ValueType:
    """What a schema makes of payloads."""

    column: Column
    _kind: SchemaType
    _definition: Definition | None = None

    @staticmethod
    def of(schema: Schema, path: str = "value") -> ValueType:
        """Raises NotAColumn, which names fields below `path`."""
        if schema.type in _PRIMITIVES:
            return ValueType(_PRIMITIVES[schema.type][0], schema.type)
        if schema.type not in (SchemaType.AVRO, SchemaType.JSON):
            raise NotAColumn(f"a schema of type {schema.type.name} has no columns")
        definition = Definition(schema.data)
        return ValueType(column_of(definition.root, path), schema.type, definition)

    def reader(self, written: Schema) -> MessageRead:
        """As `payload_reader`, of messages: a null value is null."""
        read = self.payload_reader(written)
        return lambda _key, payload: None if payload is None else read(payload)

    def payload_reader(self, written: Schema) -> Read:
        """Reads payloads that were written with another version. Raises NotAColumn if none can be
        read as this one."""
        if written.type is not self._kind:
            raise NotAColumn(f"it was written as {written.type.name}")
        if self._definition is None:
            return _PRIMITIVES[self._kind][1]
        if self._kind is SchemaType.JSON:
            return _json_reader(self._definition.root, exact="decimal(" in self.column.sql)
        return _avro_reader(Definition(written.data).parsed, self._definition.parsed)


def _avro_reader(written: Any, wanted: Any) -> Read:
    resolved = None if written == wanted else wanted

    def read(data: bytes) -> Any:
        source = io.BytesIO(data)
        value = fastavro.schemaless_reader(source, written, resolved)
        if source.tell() != len(data):
            raise ValueError(f"{len(data) - source.tell()} bytes are left over")
        return value

    return read


def _json_reader(root: Any, *, exact: bool) -> Read:
    """`exact`: fractions keep all their digits, which takes longer."""
    convert = _converter(root)
    if exact:
        return lambda data: convert(json.loads(data, parse_float=Decimal))
    return lambda data: convert(json.loads(data))


def _converter(kind: Any) -> Callable[[Any], Any]:
    """JSON as Jackson writes it, into a value of the column."""
    if isinstance(kind, list):
        branches = [branch for branch in kind if branch["type"] != "null"]
        return _converter(branches[0])
    of, logical = kind["type"], kind.get("logicalType", "")
    if of == "record":
        fields = [(field["name"], _converter(field["type"])) for field in kind["fields"]]
        defaults = {field["name"]: field.get("default") for field in kind["fields"]}
        return _or_null(
            lambda value: {
                name: convert(_object(value).get(name, defaults[name])) for name, convert in fields
            }
        )
    if of == "array":
        item = _converter(kind["items"])
        return _or_null(lambda value: [item(part) for part in _list(value)])
    if of == "map":
        item = _converter(kind["values"])
        return _or_null(lambda value: [(key, item(part)) for key, part in _object(value).items()])
    return _or_null(_JSON[logical if logical in _JSON else of])


def _or_null(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not an array")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a string")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("not a boolean")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("not a whole number")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError("not a number")
    return float(value)


def _after_epoch(**units: int) -> datetime:
    return EPOCH + timedelta(**units)


def _decimal(value: Any) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(_whole(value))


_JSON: dict[str, Callable[[Any], Any]] = {
    "boolean": _flag,
    "int": _whole,
    "long": _whole,
    "float": _number,
    "double": _number,
    "string": _text,
    "enum": _text,
    "bytes": lambda value: base64.b64decode(_text(value), validate=True),
    "fixed": lambda value: base64.b64decode(_text(value), validate=True),
    "decimal": _decimal,
    "date": lambda value: date(1970, 1, 1) + timedelta(days=_whole(value)),
    "timestamp-millis": lambda value: _after_epoch(milliseconds=_whole(value)),
    "timestamp-micros": lambda value: _after_epoch(microseconds=_whole(value)),
    "local-timestamp-millis": lambda value: _after_epoch(milliseconds=_whole(value)).replace(
        tzinfo=None
    ),
    "local-timestamp-micros": lambda value: _after_epoch(microseconds=_whole(value)).replace(
        tzinfo=None
    ),
}


def _unpacked(layout: str) -> Read:
    packed = struct.Struct(layout)
    return lambda data: packed.unpack(data)[0]


def _boolean(data: bytes) -> bool:
    (value,) = struct.unpack(">B", data)
    return bool(value)


def _instant(data: bytes) -> datetime:
    seconds, nanos = struct.unpack(">qi", data)
    return _after_epoch(seconds=seconds, microseconds=nanos // 1000)


def _milliseconds(data: bytes) -> datetime:
    return _after_epoch(milliseconds=struct.unpack(">q", data)[0])


_PRIMITIVES: dict[SchemaType, tuple[Column, Read]] = {
    SchemaType.NONE: (_PRIMITIVE_COLUMNS["bytes"], bytes),
    SchemaType.STRING: (_PRIMITIVE_COLUMNS["string"], bytes.decode),
    SchemaType.BOOLEAN: (_PRIMITIVE_COLUMNS["boolean"], _boolean),
    SchemaType.INT8: (Column("tinyint", pa.int8()), _unpacked(">b")),
    SchemaType.INT16: (Column("smallint", pa.int16()), _unpacked(">h")),
    SchemaType.INT32: (_PRIMITIVE_COLUMNS["int"], _unpacked(">i")),
    SchemaType.INT64: (_PRIMITIVE_COLUMNS["long"], _unpacked(">q")),
    SchemaType.FLOAT: (_PRIMITIVE_COLUMNS["float"], _unpacked(">f")),
    SchemaType.DOUBLE: (_PRIMITIVE_COLUMNS["double"], _unpacked(">d")),
    SchemaType.DATE: (_LOGICAL_COLUMNS["timestamp-millis"], _milliseconds),
    SchemaType.TIMESTAMP: (_LOGICAL_COLUMNS["timestamp-millis"], _milliseconds),
    SchemaType.INSTANT: (_LOGICAL_COLUMNS["timestamp-millis"], _instant),
    SchemaType.LOCAL_DATE: (
        _LOGICAL_COLUMNS["date"],
        lambda data: date(1970, 1, 1) + timedelta(days=struct.unpack(">q", data)[0]),
    ),
}
