"""Commands of any size are decoded in parts of a bounded number of fields, or not at all."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.large_commands import (
    FIELDS_MAX,
    PART_BYTES_MAX,
    PART_IDS_MAX,
    check_fields,
    list_parts,
)
from magnetar.wire.runs import varint
from tests.support.large_commands import PATHS, Path, fill


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(field.name for field in path))
def test_a_command_has_so_many_fields_wherever_they_are(path: Path) -> None:
    """Every field of every command that may be repeated, also in messages of messages."""
    few, many = api.BaseCommand(type=path[0].number), api.BaseCommand(type=path[0].number)  # type: ignore[arg-type]
    fill(few, path, 100)
    fill(many, path, FIELDS_MAX)
    for command in (few, many):
        getattr(command, path[0].name).SetInParent()
    encoded = few.SerializePartialToString()
    check_fields(encoded, 0, len(encoded))
    encoded = many.SerializePartialToString()
    with pytest.raises(ProtocolError, match=f"more than {FIELDS_MAX} fields"):
        check_fields(encoded, 0, len(encoded))


def test_numbers_in_one_field_count_one_by_one() -> None:
    """A sender may pack them, which takes a byte each."""
    words = (
        b"\x08\x01\x10\x01\x2a"
        + bytes((0x80 | FIELDS_MAX & 0x7F, 0x80 | FIELDS_MAX >> 7 & 0x7F, FIELDS_MAX >> 14))
        + bytes(FIELDS_MAX)
    )
    identifier = api.MessageIdData.FromString(words)
    assert len(identifier.ack_set) == FIELDS_MAX
    body = b"\x08\x01\x10\x01\x1a" + varint(len(words)) + words
    encoded = b"\x08\x1c" + b"\xe2\x01" + varint(len(body)) + body
    assert len(api.BaseCommand.FromString(encoded).seek.message_id.ack_set) == FIELDS_MAX
    with pytest.raises(ProtocolError, match="fields"):
        check_fields(encoded, 0, len(encoded))


@given(st.binary(max_size=60))
def test_whatever_comes_is_parsed_or_refused(data: bytes) -> None:
    """Nothing but ProtocolError leaves the scan."""
    for kind in (b"", b"\x08\x0a\x52" + bytes((len(data),))):
        whole = kind + data
        try:
            check_fields(whole, 0, len(whole))
            list(list_parts(whole, 0, len(whole)) or ())
        except ProtocolError:
            continue


def _ack(count: int, *, seed: int = 0) -> api.BaseCommand:
    numbers = random.Random(seed)
    ack = api.CommandAck(consumer_id=300, ack_type=api.CommandAck.Individual, request_id=7)
    for number in range(count):
        words = [numbers.getrandbits(62)] * numbers.choice((0, 0, 0, 1, 5))
        ack.message_id.add(ledgerId=numbers.getrandbits(40), entryId=number, ack_set=words)
    return api.BaseCommand(type=api.BaseCommand.ACK, ack=ack)


@pytest.mark.parametrize("count", [0, 1, PART_IDS_MAX, PART_IDS_MAX + 1, 5 * PART_IDS_MAX])
def test_the_parts_of_a_list_name_the_same_ids_in_order(count: int) -> None:
    """Each part is a command of its own with all that the whole has besides."""
    command = _ack(count)
    encoded = b"before" + command.SerializeToString()
    parts = list_parts(encoded, len(b"before"), len(encoded))
    assert parts is not None
    found = [api.BaseCommand.FromString(part) for part in parts if part is not None]
    assert [identifier for part in found for identifier in part.ack.message_id] == list(
        command.ack.message_id
    )
    assert {(part.type, part.ack.consumer_id, part.ack.request_id) for part in found} == {
        (api.BaseCommand.ACK, 300, 7)
    }
    assert all(
        len(part.ack.message_id) <= PART_IDS_MAX and part.ByteSize() <= 2 * PART_BYTES_MAX
        for part in found
    )


def test_a_list_pauses_while_its_end_is_looked_for() -> None:
    """The fields may come in any order, so that all ids are passed before the first part."""
    encoded = _ack(10 * PART_IDS_MAX).SerializeToString()
    parts = list(list_parts(encoded, 0, len(encoded)) or ())
    first = next(index for index, part in enumerate(parts) if part is not None)
    assert first >= 9
    assert None not in parts[first:]


def test_fields_between_ids_belong_to_every_part() -> None:
    """As a sender may put them."""
    one, other = api.CommandAck(), api.CommandAck()
    one.message_id.add(ledgerId=1, entryId=1)
    other.message_id.add(ledgerId=2, entryId=2)
    head = api.CommandAck(
        consumer_id=5, ack_type=api.CommandAck.Individual
    ).SerializePartialToString()
    tail = api.CommandAck(request_id=9).SerializePartialToString()
    body = one.SerializePartialToString() + head + other.SerializePartialToString() + tail
    encoded = b"\x08\x0a\x52" + varint(len(body)) + body
    found = [
        api.BaseCommand.FromString(part).ack
        for part in list_parts(encoded, 0, len(encoded)) or ()
        if part is not None
    ]
    assert [(ack.consumer_id, ack.request_id, ack.message_id[0].ledgerId) for ack in found] == [
        (5, 9, 1),
        (5, 9, 2),
    ]


def test_one_id_is_not_larger_than_a_part() -> None:
    """Its ack_set is refused before it is decoded."""
    command = _ack(1)
    command.ack.message_id[0].ack_set.extend([1] * PART_BYTES_MAX)
    encoded = command.SerializeToString()
    with pytest.raises(ProtocolError, match="make smaller batches"):
        list(list_parts(encoded, 0, len(encoded)) or ())
