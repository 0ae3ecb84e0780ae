"""The schemas of a topic, as the metadata store has them, and as the topic's log keeps them.

Owns: what a version is stored as, and reading those of one topic; the property of a topic that keeps
a version. Imports: records, store, schemas. Invariant: versions come out in their order, deletions
among them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from magnetar.metadata.records import SchemaRecord
from magnetar.metadata.store import KeyValue
from magnetar.schemas.history import History, Registered
from magnetar.schemas.types import Schema, SchemaType

KEPT_PREFIX = "schema."
"""Of properties of a topic. What messages carry must outlive the metadata store."""


def kept(version: Registered) -> tuple[str, str]:
    """Name and value of the property that keeps a version."""
    return f"{KEPT_PREFIX}{version.version}", record_of(version).encode().decode()


def kept_in(properties: Mapping[str, str]) -> dict[int, bytes]:
    """The records of versions that properties keep."""
    return {
        int(name.removeprefix(KEPT_PREFIX)): value.encode()
        for name, value in properties.items()
        if name.startswith(KEPT_PREFIX)
    }


def history_in(prefix: str, items: Iterable[KeyValue]) -> History:
    """The versions below `keys.schemas_of` of a topic."""
    return History([_registered(prefix, item) for item in items])


def _registered(prefix: str, item: KeyValue) -> Registered:
    record = SchemaRecord.decode(item.value)
    schema = Schema(SchemaType[record.type], base64.b64decode(record.data), dict(record.properties))
    return Registered(
        int(item.key.removeprefix(prefix)), schema, record.timestamp_ms, record.deleted
    )


def record_of(version: Registered) -> SchemaRecord:
    schema = version.schema
    return SchemaRecord(
        schema.type.name,
        base64.b64encode(schema.data).decode(),
        dict(schema.properties),
        version.timestamp_ms,
        version.deleted,
    )
