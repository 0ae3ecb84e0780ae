"""Schemas of records, and what they write.

Owns: `schema`, of the fields that a test names; `written`, Avro's bytes of a value. Imports: fastavro,
schemas.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro

from magnetar.schemas.types import Schema, SchemaType


def schema(
    *fields: dict[str, Any], kind: SchemaType = SchemaType.AVRO, name: str = "Reading"
) -> Schema:
    definition = {"type": "record", "name": name, "namespace": "com.shop", "fields": list(fields)}
    return Schema(kind, json.dumps(definition).encode())


def written(value: Any, by: Schema) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(by.data)), value)
    return out.getvalue()
