"""Avro records of a model.

Owns: `AvroSchema`. Imports: schemas; avro only when such a schema is made. Source: Apache Avro's
binary encoding. Invariant: that of `schemas`.
"""

from __future__ import annotations

import json
import struct
from copy import copy
from io import BytesIO
from typing import TypeVar

from magnetar.client.schemas import JsonSchema, reason_of
from magnetar.errors import InvalidRequest
from magnetar.wire import pulsar_api_pb2 as api

T = TypeVar("T")


class AvroSchema(JsonSchema[T]):
    """Avro records of a pydantic model or a dataclass, in Avro's binary encoding and without a
    header, as Pulsar's clients write them. Needs the extra `avro`.

    A payload is read with the definition that its producer wrote with, which the broker knows by
    its version, and becomes a value of this model by Avro's rules of resolution.
    """

    has_versions = True

    def __init__(self, model: type[T]) -> None:
        try:
            import avro.io
            import avro.schema
        except ImportError as failure:
            raise InvalidRequest(
                "AvroSchema needs the package avro: pip install 'magnetar[avro]'"
            ) from failure
        super().__init__(model)
        self._parsed = avro.schema.parse(json.dumps(self.definition))
        self._writer = avro.io.DatumWriter(self._parsed)
        self._reader = avro.io.DatumReader(self._parsed)

    def written_as(self, definition: bytes) -> AvroSchema[T]:
        import avro.errors
        import avro.io
        import avro.schema

        try:
            written = avro.schema.parse(definition.decode())
        except (
            avro.errors.AvroException,
            AttributeError,
            KeyError,
            RecursionError,
            TypeError,
            ValueError,
        ) as failure:
            raise InvalidRequest(
                f"a definition of {len(definition)} bytes is no Avro schema ({type(failure).__name__})"
            ) from failure
        found = copy(self)
        found._reader = avro.io.DatumReader(written, self._parsed)
        return found

    def encode(self, value: T) -> bytes:
        import avro.errors
        import avro.io

        self._check(value)
        out = BytesIO()
        try:
            self._writer.write(
                self._adapter.dump_python(value, mode="json", by_alias=True),
                avro.io.BinaryEncoder(out),
            )
        except (avro.errors.AvroException, OverflowError) as failure:
            raise InvalidRequest(
                f"value does not fit the Avro record {self.model.__name__}: "
                f"{type(failure).__name__}; int is 64 bits, and a union takes one of its types"
            ) from failure
        return out.getvalue()

    def decode(self, data: bytes) -> T:
        import avro.errors
        import avro.io
        from pydantic import ValidationError

        payload = BytesIO(data)
        try:
            found = self._reader.read(avro.io.BinaryDecoder(payload))
            if payload.tell() < len(data):
                raise ValueError(f"{len(data) - payload.tell()} bytes are left over")
            value: T = self._adapter.validate_python(found, strict=False)
        except ValidationError as failure:
            raise self._undecodable(data, reason_of(failure)) from failure
        except (
            avro.errors.AvroException,
            ValueError,
            struct.error,
            MemoryError,
            IndexError,
            TypeError,
            RecursionError,
        ) as failure:
            raise self._undecodable(data, f"it is no Avro ({type(failure).__name__})") from failure
        return value

    def to_wire(self) -> api.Schema:
        definition = json.dumps(self.definition, separators=(",", ":")).encode()
        return api.Schema(
            name=self.model.__name__, type=api.Schema.Type.Avro, schema_data=definition
        )
