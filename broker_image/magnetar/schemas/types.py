"""Schemas and their versions as values.

Owns: `SchemaType`, `Schema`, the bytes of versions. Imports: errors. Source: Pulsar's `Schema.Type`
(numbers on the wire) and `SchemaType` (names in REST). Invariants: `version_of(version_bytes(n))`
is n; a type that is only asked for, not had, is never stored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.errors import IncompatibleSchema, InvalidRequest

VERSION_BYTES = 8


class SchemaType(enum.IntEnum):
    """Numbers as the wire has them, names as REST has them. NONE is bytes: a type like others where a
    client sends it, as Go's does; clients without a schema send none."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22

    @property
    def is_primitive(self) -> bool:
        """Whether the type alone is the definition."""
        return self not in _DEFINED

    @property
    def is_avro(self) -> bool:
        """Whether an Avro definition describes it."""
        return self in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF)


_DEFINED = frozenset(
    {
        SchemaType.JSON,
        SchemaType.PROTOBUF,
        SchemaType.AVRO,
        SchemaType.KEY_VALUE,
        SchemaType.PROTOBUF_NATIVE,
        SchemaType.EXTERNAL,
    }
)
_OF_BYTES = "BYTES"
"""What Java's clients call NONE."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a client says of its payloads. `data` is the definition, in the form of the type."""

    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)


def type_named(name: object) -> SchemaType:
    """The type that REST calls `name`. Raises InvalidRequest."""
    if name == _OF_BYTES:
        return SchemaType.NONE
    if not isinstance(name, str) or name not in SchemaType.__members__:
        raise InvalidRequest(
            f"type: {str(name)[:40]!r} is not a schema type; use one of "
            f"{', '.join(SchemaType.__members__)}"
        )
    return SchemaType[name]


def version_bytes(version: int) -> bytes:
    """A version as messages and commands carry it."""
    return version.to_bytes(VERSION_BYTES, "big", signed=True)


def version_of(data: bytes) -> int:
    """Raises IncompatibleSchema if these bytes are no version."""
    if not data:
        raise IncompatibleSchema("Empty schema version")
    if len(data) != VERSION_BYTES:
        raise IncompatibleSchema(
            f"schema_version: {len(data)} bytes are no version; send the {VERSION_BYTES} that the "
            "broker gave"
        )
    return int.from_bytes(data, "big", signed=True)
