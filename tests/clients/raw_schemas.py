"""Schemas of the official Python client whose values stay bytes.

Owns: `Raw`, `avro`, `version_of`, and a record's definition with some fields. Imports: the client.
"""

from __future__ import annotations

import json
from typing import Any

import _pulsar
import pulsar
from pulsar.schema import Schema

A, B = {"name": "a", "type": "string"}, {"name": "b", "type": "string"}
B_OPTIONAL = {**B, "default": "x"}


def definition(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "User", "fields": list(fields)})


class Raw(Schema):
    """Bytes as they are, announced as something else: the client's own Avro needs a package that
    is not here, and of AUTO_CONSUME it has the number only."""

    def __init__(self, kind: Any, fields: dict[str, Any] | None) -> None:
        super().__init__(bytes, kind, fields, "raw")

    def encode(self, obj: bytes) -> bytes:
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


def avro(*fields: dict[str, Any]) -> Raw:
    return Raw(_pulsar.SchemaType.AVRO, json.loads(definition(*fields)))


def version_of(message: pulsar.Message) -> int:
    return int(message._message.int_schema_version())
