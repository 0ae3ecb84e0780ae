"""KeyValue schemas of topics as column types.

Owns: `PairType`, which is `struct<key,value>`, and `type_of`, the type of any schema. Imports: errors,
schemas, value_types. Sources: Pulsar's `KeyValue.encode` and `KeyValueSchemaInfo`. Pure. Invariants: a
payload that is no pair is an error, never another pair; each part is read with the version that it
was written with, in the encoding of that version.
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.errors import InvalidSchema
from magnetar.schemas import key_values
from magnetar.schemas.key_values import ABSENT, LENGTH_BYTES
from magnetar.schemas.types import Schema, SchemaType
from magnetar_jobs.value_types import Column, MessageRead, NotAColumn, Read, ValueType, arrow_struct

ENCODING, SEPARATED = "kv.encoding.type", "SEPARATED"
"""The property that says where keys are: in the message's key, or else in front of the value."""


@dataclass(frozen=True, slots=True)
class PairType:
    """What a KeyValue schema makes of messages."""

    column: Column
    _key: ValueType
    _value: ValueType

    @staticmethod
    def of(schema: Schema) -> PairType:
        """Raises NotAColumn."""
        key, value = _parts(schema)
        pair = (
            ("key", ValueType.of(key, "value.key")),
            ("value", ValueType.of(value, "value.value")),
        )
        column = arrow_struct([(name, part.column) for name, part in pair])
        return PairType(column, pair[0][1], pair[1][1])

    def reader(self, written: Schema) -> MessageRead:
        """Reads messages that were written with another version. Raises NotAColumn if none can be
        read as this one."""
        if written.type is not SchemaType.KEY_VALUE:
            raise NotAColumn(f"it was written as {written.type.name}")
        key, value = _parts(written)
        keys, values = self._key.payload_reader(key), self._value.payload_reader(value)
        if written.properties.get(ENCODING) == SEPARATED:
            return lambda key, payload: _pair(keys, values, key, payload)

        def read_inline(_key: bytes | None, payload: bytes | None) -> object:
            return None if payload is None else _pair(keys, values, *split(payload))

        return read_inline


def type_of(schema: Schema) -> ValueType | PairType:
    """Raises NotAColumn."""
    return PairType.of(schema) if schema.type is SchemaType.KEY_VALUE else ValueType.of(schema)


def split(payload: bytes) -> tuple[bytes | None, bytes | None]:
    """Key and value of an inline pair, each behind its length. Raises ValueError."""
    key, rest = _first(payload)
    value, left = _first(rest)
    if left:
        raise ValueError(f"{len(left)} bytes are left over")
    return key, value


def _first(data: bytes) -> tuple[bytes | None, bytes]:
    size, rest = int.from_bytes(data[:LENGTH_BYTES], "big"), data[LENGTH_BYTES:]
    if len(data) < LENGTH_BYTES or (size != ABSENT and size > len(rest)):
        raise ValueError("a part is cut off")
    return (None, rest) if size == ABSENT else (rest[:size], rest[size:])


def _pair(keys: Read, values: Read, key: bytes | None, value: bytes | None) -> object:
    return {
        "key": None if key is None else keys(key),
        "value": None if value is None else values(value),
    }


def _parts(schema: Schema) -> tuple[Schema, Schema]:
    try:
        return key_values.split(schema)
    except InvalidSchema as error:
        raise NotAColumn(f"it is no KeyValue definition ({error})") from error
