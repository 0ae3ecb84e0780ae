"""Commands with very many elements in one of their repeated fields.

Owns: the paths of all repeated fields of a command, and filling a command along one of them.
Imports: wire.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from magnetar.wire import pulsar_api_pb2 as api

Path = tuple[FieldDescriptor, ...]


def repeated_paths(kind: Descriptor, above: Path = ()) -> Iterator[Path]:
    """Where messages of a kind, and those in them, have a field of which there may be many."""
    for field in kind.fields:
        if field.is_repeated:
            yield (*above, field)
        if field.message_type is not None and all(
            known.message_type is not field.message_type for known in above
        ):
            yield from repeated_paths(field.message_type, (*above, field))


def fill(message: Message, path: Path, count: int) -> None:
    """Have so many elements at the end of the path, and one of each on the way."""
    for field in path[:-1]:
        found = getattr(message, field.name)
        message = found.add() if field.is_repeated else found
    last = getattr(message, path[-1].name)
    if path[-1].message_type is not None:
        for _ in range(count):
            last.add()
    else:
        last.extend(
            [
                b""
                if path[-1].type == FieldDescriptor.TYPE_BYTES
                else ""
                if path[-1].type == FieldDescriptor.TYPE_STRING
                else 0
            ]
            * count
        )


PATHS = list(repeated_paths(api.BaseCommand.DESCRIPTOR))
