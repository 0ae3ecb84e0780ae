"""KeyValue schemas.

Owns: their two parts, and the text that REST shows. Imports: errors, types. Source: Pulsar's
`KeyValueSchemaInfo`: the data are both definitions, each after its length (4 bytes, big-endian);
properties name the parts' types. Invariant: `joined(*parts)` of what `split` found is the same data.
"""

from __future__ import annotations

import json
from typing import Any

from magnetar.errors import InvalidSchema
from magnetar.schemas.types import Schema, SchemaType

LENGTH_BYTES = 4
ABSENT = 0xFFFFFFFF
"""The length that Java writes for a part without a definition."""


def split(schema: Schema) -> tuple[Schema, Schema]:
    """Key and value of a KeyValue schema. Raises InvalidSchema."""
    key, rest = _part(schema.data)
    value, left = _part(rest)
    if left:
        raise InvalidSchema(
            f"schema_data: {len(left)} bytes follow the value's definition; send the key's and the "
            "value's alone"
        )
    return _typed(schema, "key", key), _typed(schema, "value", value)


def joined(key: bytes, value: bytes) -> bytes:
    """The data of a KeyValue schema."""
    return b"".join(len(part).to_bytes(LENGTH_BYTES, "big") + part for part in (key, value))


def _part(data: bytes) -> tuple[bytes, bytes]:
    """The first definition, and what follows it. Raises InvalidSchema."""
    size = int.from_bytes(data[:LENGTH_BYTES], "big")
    if size == ABSENT:
        size = 0
    end = LENGTH_BYTES + size
    if len(data) < end:
        raise InvalidSchema(
            f"schema_data: {len(data)} bytes hold no key and value; send each definition after its "
            f"length in {LENGTH_BYTES} bytes"
        )
    return data[LENGTH_BYTES:end], data[end:]


def _typed(schema: Schema, part: str, data: bytes) -> Schema:
    """A part with the type that the properties name; bytes without one."""
    name = schema.properties.get(f"{part}.schema.type", "BYTES")
    if name == "BYTES":
        return Schema(SchemaType.NONE, data)
    if name not in SchemaType.__members__ or SchemaType[name] in (
        SchemaType.KEY_VALUE,
        SchemaType.AUTO_CONSUME,
    ):
        raise InvalidSchema(
            f"properties.{part}.schema.type: {name[:40]!r} is not the type of a part; use that of "
            "a plain schema"
        )
    return Schema(SchemaType[name], data)


def text_of(schema: Schema) -> str:
    """What REST shows: both definitions in one JSON object. Raises InvalidSchema."""
    key, value = split(schema)
    return json.dumps({"key": _shown(key), "value": _shown(value)}, separators=(",", ":"))


def data_of(text: str) -> bytes:
    """The data for what `text_of` shows. Raises InvalidSchema."""
    try:
        found = json.loads(text)
        return joined(_given(found["key"]), _given(found["value"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidSchema(
            f'schema: {text[:80]!r} is no KeyValue definition; send {{"key": ..., "value": ...}}'
        ) from error


def _shown(part: Schema) -> Any:
    text = part.data.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _given(part: Any) -> bytes:
    if part is None:
        return b""
    return (part if isinstance(part, str) else json.dumps(part, separators=(",", ":"))).encode()
