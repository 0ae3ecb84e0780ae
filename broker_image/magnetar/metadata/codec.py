"""How records of the metadata store are written and read.

Owns: `Record`, their base: JSON with a schema number, from and to frozen dataclasses by their
declared types; what is decoded once for all readers of the same bytes. Imports: errors. Invariants:
`decode(encode(r)) == r`; encoding is canonical (sorted keys, no spaces), so equal records have
equal bytes; a record of a newer schema than this program knows is refused with an error that names
key and numbers, never guessed at; unknown fields of the same schema are refused too; only values in
which nothing can change are shared.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from magnetar.errors import StoreError

R = TypeVar("R", bound="Record")

FIRST_SCHEMA = 2
"""The oldest that is read."""
REMEMBERED_RECORDS_MAX = 1024
"""Decoded records that are kept: bundle records, above all, are read by every watcher."""
REMEMBERED_BYTES_MAX = 4096
"""Longer ones are decoded each time."""


@dataclass(frozen=True, slots=True)
class Record:
    """Base of all records."""

    SCHEMA: ClassVar[int] = FIRST_SCHEMA
    """The one that is written. Older ones are read, their missing fields having defaults."""

    def encode(self) -> bytes:
        """Canonical JSON with the schema number under `schema`."""
        body = members(self)
        body["schema"] = self.SCHEMA
        return json_of(body)

    @classmethod
    def decode(cls: type[R], data: bytes) -> R:
        """Parse `data`. Raises StoreError if it is not such a record or its schema is unknown."""
        kind = typing.cast(Any, cls)
        decode = _remembered if len(data) <= REMEMBERED_BYTES_MAX and _immutable(kind) else _decoded
        return typing.cast(R, decode(kind, data))


def _decoded(cls: Any, data: bytes) -> Any:
    try:
        body = json.loads(data)
        schema = body.pop("schema")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise StoreError(f"{cls.__name__}: not a record: {data[:80]!r}") from error
    if schema not in range(FIRST_SCHEMA, cls.SCHEMA + 1):
        raise StoreError(
            f"{cls.__name__}: schema {schema} is not one of {FIRST_SCHEMA} to {cls.SCHEMA}; "
            "upgrade the older component"
        )
    try:
        return built(cls, body)
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"{cls.__name__}: {error}: {data[:200]!r}") from error


_remembered = lru_cache(maxsize=REMEMBERED_RECORDS_MAX)(_decoded)


@lru_cache(maxsize=512)
def _immutable(kind: Any) -> bool:
    """Whether nothing in a value of declared type `kind` can change, so that all readers of the
    same bytes may share one."""
    if get_origin(kind) in (types.UnionType, typing.Union, tuple):
        return all(
            _immutable(argument)
            for argument in get_args(kind)
            if argument not in (type(None), Ellipsis)
        )
    if dataclasses.is_dataclass(kind):
        hints, frozen = (
            typing.get_type_hints(kind),
            typing.cast(Any, kind).__dataclass_params__.frozen,
        )
        return bool(frozen) and all(
            _immutable(hints[field.name]) for field in dataclasses.fields(kind)
        )
    return isinstance(kind, type) and issubclass(kind, str | int | float)


def json_of(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), default=members).encode()


def built(kind: Any, value: Any) -> Any:
    """A value of declared type `kind`, from what JSON made of it. Raises KeyError, TypeError or
    ValueError for anything else."""
    return _builder(kind)(value)


def members(value: Any) -> dict[str, Any]:
    """A nested record as JSON has it."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


@lru_cache(maxsize=512)
def _builder(kind: Any) -> Callable[[Any], Any]:
    """What rebuilds a value of declared type `kind` from JSON; it raises ValueError or TypeError
    for anything else."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (types.UnionType, typing.Union):
        inner = _builder(next(argument for argument in arguments if argument is not type(None)))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _tuple_builder(arguments)
    if origin is dict:
        item_of = _builder(arguments[1])
        return lambda value: {key: item_of(item) for key, item in _object(value).items()}
    if dataclasses.is_dataclass(kind):
        return _record_builder(typing.cast(type, kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind
    if kind is Any:
        return lambda value: value
    return _scalar_builder(kind)


def _tuple_builder(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        item_of = _builder(kinds[0])
        return lambda value: tuple(map(item_of, value))
    builders = [_builder(kind) for kind in kinds]

    def build(value: Any) -> tuple[Any, ...]:
        if len(builders) != len(value):
            raise ValueError(f"expected {len(builders)} items, found {len(value)}")
        return tuple(builder(item) for builder, item in zip(builders, value, strict=True))

    return build


def _record_builder(cls: type) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(cls)
    fields = {
        field.name: (hints[field.name], _builder(hints[field.name]))
        for field in dataclasses.fields(cls)
    }

    def build(value: Any) -> Any:
        if not _object(value).keys() <= fields.keys():
            raise ValueError(f"unknown fields {sorted(value.keys() - fields.keys())}")
        arguments = {}
        for name, item in value.items():
            kind, builder = fields[name]
            # Most values are what JSON has already made of them.
            arguments[name] = item if type(item) is kind else builder(item)
        return cls(**arguments)

    return build


def _scalar_builder(kind: type) -> Callable[[Any], Any]:
    def build(value: Any) -> Any:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ValueError(f"expected {kind.__name__}, found {value!r}")
        return value

    return build


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {value!r}")
    return value
