"""Schemas: how values become the bytes of messages.

Owns: `Schema` and those that need no registry: bytes, strings, JSON of a model. Imports:
records (the model's definition), errors, wire; pydantic only when such a schema is made. Source:
Pulsar's binary protocol. A schema is announced with PRODUCER and SUBSCRIBE; a broker that registers
schemas checks it against the topic's. Invariant: `decode(encode(value))` equals `value`; what does
not decode raises Undecodable and nothing else.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic

from typing_extensions import TypeVar

from magnetar.client.failures import Undecodable
from magnetar.client.records import definition_of
from magnetar.errors import InvalidRequest
from magnetar.wire import pulsar_api_pb2 as api

T = TypeVar("T", default=bytes)
"""What an application sends and receives; bytes unless a schema says otherwise."""


class Schema(ABC, Generic[T]):
    """How values of one type are written."""

    has_versions: ClassVar[bool] = False
    """Whether a payload can be read only with what its producer wrote with."""

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """The payload of a value. Raises InvalidRequest if it does not fit the schema."""

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """The value of a payload. Raises Undecodable."""

    @abstractmethod
    def to_wire(self) -> api.Schema | None:
        """What PRODUCER and SUBSCRIBE announce; None for nothing."""

    def written_as(self, definition: bytes) -> Schema[T]:  # noqa: ARG002 - for those with versions
        """This schema, for payloads that were written with another definition. Raises
        InvalidRequest if that is none."""
        return self


class BytesSchema(Schema[bytes]):
    """Bytes as they are: no schema."""

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise InvalidRequest(
                f"value is {type(value).__name__}; without a schema it must be bytes"
            )
        return bytes(value)

    def decode(self, data: bytes) -> bytes:
        return data

    def to_wire(self) -> None:
        return None


class StringSchema(Schema[str]):
    """Text as UTF-8."""

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise InvalidRequest(f"value is {type(value).__name__}; a string schema takes str")
        return value.encode()

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as failure:
            raise Undecodable(f"payload of {len(data)} bytes is not UTF-8: {failure}") from failure

    def to_wire(self) -> api.Schema:
        return api.Schema(name="String", type=api.Schema.Type.String, schema_data=b"")


class JsonSchema(Schema[T]):
    """JSON objects of a pydantic model or a dataclass; other clients see its fields as an Avro
    record (`records.definition_of`)."""

    def __init__(self, model: type[T]) -> None:
        from pydantic import TypeAdapter

        self.model = model
        self.definition = definition_of(model)
        self._adapter: Any = TypeAdapter(model)

    def encode(self, value: T) -> bytes:
        self._check(value)
        data: bytes = self._adapter.dump_json(value, by_alias=True)
        return data

    def decode(self, data: bytes) -> T:
        from pydantic import ValidationError

        try:
            value: T = self._adapter.validate_json(data)
        except ValidationError as failure:
            raise self._undecodable(data, reason_of(failure)) from failure
        return value

    def _check(self, value: T) -> None:
        if not isinstance(value, self.model):
            raise InvalidRequest(
                f"value is {type(value).__name__}; this schema takes {self.model.__name__}"
            )

    def _undecodable(self, data: bytes, why: str) -> Undecodable:
        return Undecodable(f"payload of {len(data)} bytes is no {self.model.__name__}: {why}")

    def to_wire(self) -> api.Schema:
        definition = json.dumps(self.definition, separators=(",", ":")).encode()
        return api.Schema(
            name=self.model.__name__, type=api.Schema.Type.Json, schema_data=definition
        )


def reason_of(failure: Any) -> str:
    """The first complaint, without the value: payloads are the application's alone."""
    first = failure.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'payload'}: {first['msg']}"


BYTES = BytesSchema()
STRING = StringSchema()
