"""Whether the strings of a message are text.

Owns: `broken_text`. Imports: the generated protocol. Pure. Source: protobuf's encoding of `string`
is UTF-8, but protobuf checks it of no proto2 message: Python returns what is not UTF-8 as `bytes`,
which then fails wherever a name is sorted, measured, or written. Metadata of entries are not looked
at: the broker keeps them as they came. Invariant: a message passes if and only if every string in
it, however deep, is a `str`; fields without strings below them cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message


class _Strings(NamedTuple):
    """Where a kind of message has strings: in fields of its own, and in messages below it; each
    with whether it is repeated."""

    own: tuple[tuple[str, bool], ...]
    below: tuple[tuple[str, bool, Descriptor], ...]


def broken_text(message: Message) -> str | None:
    """The path of a string that is not UTF-8, as in `metadata.key` of a SUBSCRIBE; None if there
    is none."""
    strings = _strings_of(message.DESCRIPTOR)
    for name, repeated in strings.own:
        value: Any = getattr(message, name)
        if any(isinstance(item, bytes) for item in value) if repeated else isinstance(value, bytes):
            return name
    for name, repeated, _kind in strings.below:
        parts: Iterable[Message] = ()
        if repeated:
            parts = getattr(message, name)
        elif message.HasField(name):
            parts = (getattr(message, name),)
        for part in parts:
            found = broken_text(part)
            if found is not None:
                return f"{name}.{found}"
    return None


@cache
def _strings_of(kind: Descriptor) -> _Strings:
    own = tuple(
        (field.name, field.is_repeated)
        for field in kind.fields
        if field.type == FieldDescriptor.TYPE_STRING
    )
    below = tuple(
        (field.name, field.is_repeated, field.message_type)
        for field in kind.fields
        if field.message_type is not None
        and _has_strings(field.message_type, frozenset({kind.full_name}))
    )
    return _Strings(own, below)


def _has_strings(kind: Descriptor, above: frozenset[str]) -> bool:
    """Messages may hold messages of their own kind: those on the way here need not be looked at
    again."""
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (
            field.message_type is not None
            and field.message_type.full_name not in above
            and _has_strings(field.message_type, above | {kind.full_name})
        )
        for field in kind.fields
    )
