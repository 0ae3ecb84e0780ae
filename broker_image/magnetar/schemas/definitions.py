"""What a schema's definition must be, and when two are the same.

Owns: the check of a definition, its canonical content. Imports: errors, types, key_values; `avro`
and protobuf's descriptors where a definition of theirs is looked at. Invariants: only definitions
that passed `check` are stored; two schemas of equal content are one version; text that documents a
definition and its layout are no part of the content, everything else is.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from magnetar.errors import InvalidSchema
from magnetar.schemas import key_values
from magnetar.schemas.types import Schema, SchemaType

if TYPE_CHECKING:
    import avro.schema

LEVELS_MAX = 100
"""Of nesting in a definition: both JSON and Avro descend by recursion."""


def check(schema: Schema) -> None:
    """Refuse a schema that cannot be one of a topic. Raises InvalidSchema saying why."""
    if schema.type is SchemaType.AUTO_CONSUME:
        raise InvalidSchema(
            f"Schema {schema.type.name} is a client-side schema type; send a schema with a type of "
            "its own"
        )
    if schema.type.is_avro:
        parsed(schema)
    elif schema.type is SchemaType.KEY_VALUE:
        for part in key_values.split(schema):
            check(part)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        root_message(schema)


def parsed(schema: Schema) -> avro.schema.Schema:
    """The Avro definition of an Avro, JSON or Protobuf schema. Raises InvalidSchema."""
    import avro.errors
    import avro.schema

    # Logical types do not count when definitions are compared, and unknown ones are a warning.
    document = _without(("doc", "logicalType"), _document(schema))
    try:
        # Java's names of nested classes hold a $.
        return avro.schema.parse(json.dumps(document), validate_names=False)
    except (
        avro.errors.AvroException,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InvalidSchema(
            f"{_invalid(schema)}: {schema.data[:80]!r} is no Avro definition "
            f"({str(error)[:200]}); a schema of type {schema.type.name} needs one"
        ) from error


def content(schema: Schema) -> tuple[Any, ...]:
    """What makes a schema the one it is: equal for schemas that are one version. Raises
    IncompatibleSchema if its definition is none."""
    if schema.type.is_primitive:
        # Clients fill in various things where there is nothing to define.
        return (schema.type,)
    if schema.type.is_avro:
        return schema.type, json.dumps(_without(("doc",), _document(schema)), sort_keys=True)
    if schema.type is SchemaType.KEY_VALUE:
        key, value = key_values.split(schema)
        return schema.type, content(key), content(value)
    return schema.type, schema.data


def _invalid(schema: Schema) -> str:
    """How Pulsar's sentence about a definition begins."""
    return f"Invalid schema definition data for {schema.type.name} schema"


def _document(schema: Schema) -> Any:
    """The JSON of a definition. Raises InvalidSchema."""
    try:
        document = json.loads(schema.data)
        _refuse_deep(document, LEVELS_MAX)
    except (ValueError, RecursionError) as error:
        raise InvalidSchema(
            f"{_invalid(schema)}: {schema.data[:80]!r} is not JSON ({error}); a schema of type "
            f"{schema.type.name} needs an Avro definition"
        ) from error
    return document


def _refuse_deep(value: Any, levels: int) -> None:
    """Raises ValueError for more than LEVELS_MAX levels."""
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"more than {LEVELS_MAX} levels of nesting")
        for part in value.values() if isinstance(value, dict) else value:
            _refuse_deep(part, levels - 1)


def _without(names: tuple[str, ...], value: Any) -> Any:
    """A definition without these attributes; defaults are values and stay as they are."""
    if isinstance(value, list):
        return [_without(names, part) for part in value]
    if isinstance(value, dict):
        return {
            key: part if key == "default" else _without(names, part)
            for key, part in value.items()
            if key not in names
        }
    return value


def root_message(schema: Schema) -> str:
    """The full name of the message that a ProtobufNative schema describes. Raises
    IncompatibleSchema if its descriptors do not hold that message."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        body = json.loads(schema.data)
        root, file_name = body["rootMessageTypeName"], body["rootFileDescriptorName"]
        files = FileDescriptorSet.FromString(
            base64.b64decode(body["fileDescriptorSet"], validate=True)
        ).file
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error, DecodeError) as error:
        raise InvalidSchema(
            f"{_invalid(schema)}: {schema.data[:80]!r} holds no descriptors of Protobuf "
            f"({type(error).__name__}); send fileDescriptorSet, rootMessageTypeName and "
            "rootFileDescriptorName"
        ) from error
    found = next((file for file in files if file.name == file_name), None)
    if found is None or root not in _messages(found.package, found.message_type):
        raise InvalidSchema(
            f"rootMessageTypeName: {str(root)[:80]!r} is no message of "
            f"{str(file_name)[:80]!r} in fileDescriptorSet; send the file that has it"
        )
    return str(root)


def _messages(scope: str, messages: Any) -> set[str]:
    """Full names of messages and those nested in them."""
    names: set[str] = set()
    waiting = [(scope, message) for message in messages]
    while waiting:
        outer, message = waiting.pop()
        name = f"{outer}.{message.name}" if outer else message.name
        names.add(name)
        waiting += [(name, nested) for nested in message.nested_type]
    return names
