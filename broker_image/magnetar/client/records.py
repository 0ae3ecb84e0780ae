"""Avro records of Python models.

Owns: `definition_of`: the definition under which Pulsar knows a JSON schema. Imports: the standard
library; pydantic's models by their attributes. Source: Pulsar's protocol (JSON schemas are compared
as Avro records), the Avro specification's names and unions. Invariants: a type is defined once and
referred to by name afterwards; a field that may be absent has a default; a type with no place in
Avro is refused by the name of its field.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from magnetar.errors import InvalidRequest

AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
DEPTH_MAX = 32
_PRIMITIVES: dict[Any, str] = {
    str: "string",
    int: "long",
    float: "double",
    bool: "boolean",
    type(None): "null",
}
_WRITTEN_AS_TEXT = frozenset(
    {"datetime.date", "datetime.time", "datetime.timedelta", "decimal.Decimal", "uuid.UUID"}
)
_MISSING = object()

Definition: typing.TypeAlias = dict[str, Any] | list[Any] | str


class _Field(typing.NamedTuple):
    name: str
    annotation: Any
    default: Any


def definition_of(model: type) -> dict[str, Any]:
    """The Avro record of a pydantic model or dataclass. Raises InvalidRequest naming a field
    that has no place in one."""
    if not _is_model(model):
        raise InvalidRequest(
            f"{model!r} is neither a pydantic model nor a dataclass; a JSON schema needs one"
        )
    definition = _type(model, model.__name__, {}, 0)
    assert isinstance(definition, dict), "the first mention of a model is its definition"
    return definition


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields")
    )


def _fields(model: Any) -> Iterator[_Field]:
    if hasattr(model, "model_fields"):
        for name, described in model.model_fields.items():
            default = (
                _MISSING
                if described.is_required()
                else described.get_default(call_default_factory=False)
            )
            yield _Field(
                described.serialization_alias or described.alias or name,
                described.annotation,
                default,
            )
        return
    hints = typing.get_type_hints(model, include_extras=True)
    for described in dataclasses.fields(model):
        absent = described.default is dataclasses.MISSING
        yield _Field(
            described.name, hints[described.name], _MISSING if absent else described.default
        )


def _type(annotation: Any, where: str, known: dict[str, Any], depth: int) -> Definition:
    """The Avro type of an annotation; `where` names its field."""
    if depth > DEPTH_MAX:
        raise InvalidRequest(f"{where}: types are nested more than {DEPTH_MAX} deep")
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(arguments[0], where, known, depth + 1)
    if annotation in _PRIMITIVES:
        return _PRIMITIVES[annotation]
    if origin in (typing.Union, types.UnionType):
        branches = [_type(argument, where, known, depth + 1) for argument in arguments]
        branches.sort(key=lambda branch: branch != "null")  # a default of null needs it first
        return branches
    if origin is typing.Literal and all(isinstance(value, str) for value in arguments):
        return "string"
    if isinstance(origin, type) and issubclass(origin, Mapping) and arguments[0] is str:
        return {"type": "map", "values": _type(arguments[1], f"{where}.*", known, depth + 1)}
    if (
        isinstance(origin, type)
        and issubclass(origin, Sequence | Set)
        and (len(arguments) == 1 or arguments[1:] == (...,))
    ):
        return {"type": "array", "items": _type(arguments[0], f"{where}[]", known, depth + 1)}
    if isinstance(annotation, type) and any(
        f"{base.__module__}.{base.__name__}" in _WRITTEN_AS_TEXT for base in annotation.__mro__
    ):
        return "string"
    if _is_model(annotation) or (
        isinstance(annotation, type) and issubclass(annotation, enum.Enum)
    ):
        return _named(annotation, where, known, depth)
    raise InvalidRequest(
        f"{where}: {annotation!r} has no place in a JSON schema; use str, int, float, bool, a "
        "list, a dict with str keys, an Enum of str, "
        "a dataclass or a pydantic model"
    )


def _named(kind: Any, where: str, known: dict[str, Any], depth: int) -> Definition:
    name = kind.__name__
    if known.setdefault(name, kind) is not kind:
        raise InvalidRequest(
            f"{where}: two types are called {name}; a schema needs different names"
        )
    if any(seen is kind for key, seen in known.items() if key == f"defined {name}"):
        return str(name)
    known[f"defined {name}"] = kind
    if issubclass(kind, enum.Enum):
        symbols = [member.value for member in kind]
        if not all(isinstance(symbol, str) and AVRO_NAME.match(symbol) for symbol in symbols):
            raise InvalidRequest(
                f"{where}: values of {name} must be names of letters, digits and _, not {symbols}"
            )
        return {"type": "enum", "name": name, "symbols": symbols}
    return {
        "type": "record",
        "name": name,
        "fields": [_field(field, name, known, depth) for field in _fields(kind)],
    }


def _field(field: _Field, record: str, known: dict[str, Any], depth: int) -> dict[str, Any]:
    where = f"{record}.{field.name}"
    if not AVRO_NAME.match(field.name):
        raise InvalidRequest(f"{where}: a field's name is letters, digits and _")
    kind = _type(field.annotation, where, known, depth + 1)
    described: dict[str, Any] = {"name": field.name, "type": kind}
    nullable = isinstance(kind, list) and kind[0] == "null"
    if field.default is None and nullable:
        described["default"] = None
    elif isinstance(field.default, str | int | float | bool) and kind in (
        "string",
        "long",
        "double",
        "boolean",
    ):
        described["default"] = field.default
    return described
