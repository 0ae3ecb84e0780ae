"""Strings of commands are text, or the command is refused: nothing behind the wire meets bytes
where it expects a name."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from magnetar.errors import ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import FIELD_OF_TYPE, decode_command
from magnetar.wire.texts import broken_text

MARK = "markmark"


def every_string(
    kind: Descriptor, path: tuple[str, ...] = (), above: tuple[str, ...] = ()
) -> list[tuple[str, ...]]:
    """The paths of all strings below a message; of a message within its own kind, once."""
    found: list[tuple[str, ...]] = []
    for field in kind.fields:
        here = (*path, field.name)
        if field.type == FieldDescriptor.TYPE_STRING:
            found.append(here)
        elif field.message_type is not None and field.message_type.full_name not in above:
            found += every_string(field.message_type, here, (*above, kind.full_name))
    return found


def put(message: Message, path: tuple[str, ...]) -> None:
    """Have the string at a path, with whatever is required on the way to it."""
    field: Any = message.DESCRIPTOR.fields_by_name[path[0]]
    if len(path) == 1:
        if field.is_repeated:
            getattr(message, path[0]).append(MARK)
        else:
            setattr(message, path[0], MARK)
        return
    put(
        getattr(message, path[0]).add() if field.is_repeated else getattr(message, path[0]),
        path[1:],
    )


STRINGS = [(path[0], path) for path in every_string(api.BaseCommand.DESCRIPTOR)]


def test_there_are_strings_to_look_at() -> None:
    """Of every command that has any, among them repeated ones and those three messages deep."""
    assert len(STRINGS) > 100
    assert max(len(path) for _, path in STRINGS) >= 4


@pytest.mark.parametrize("path", [path for _, path in STRINGS], ids=".".join)
def test_a_string_that_is_no_text_is_found_wherever_it_is(path: tuple[str, ...]) -> None:
    """And its field is named; the same command with text is let through."""
    command = api.BaseCommand()
    put(command, path)
    assert broken_text(getattr(command, path[0])) is None
    data = command.SerializePartialToString()
    assert data.count(MARK.encode()) == 1
    broken = api.BaseCommand.FromString(data.replace(b"markmark", b"mark\xffark"))
    assert broken_text(getattr(broken, path[0])) == ".".join(path[1:])


def test_a_command_with_a_broken_name_is_refused() -> None:
    """It would be a subscription that no checkpoint can hold, or a consumer that cannot be
    sorted among others."""
    body = api.CommandSubscribe(
        topic="t",
        subscription=MARK,
        subType=api.CommandSubscribe.Shared,
        consumer_id=1,
        request_id=1,
    )
    command = api.BaseCommand(type=api.BaseCommand.SUBSCRIBE, subscribe=body)
    data = command.SerializeToString()
    assert decode_command(data).subscribe.subscription == MARK
    with pytest.raises(
        ProtocolError, match="command subscribe: its field subscription is not UTF-8"
    ):
        decode_command(data.replace(b"markmark", b"mark\xffark"))


def test_every_command_is_covered() -> None:
    """`decode_command` looks at the one sub-message that the type names, which holds everything
    a command may have."""
    known = set(FIELD_OF_TYPE.values())
    assert {field for field, _ in STRINGS} <= known
