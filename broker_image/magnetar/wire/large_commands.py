"""Commands that are too large to be decoded at once.

Owns: how much one decoding may take, and ACK and REDELIVER cut into parts that are commands
themselves. Imports: errors, varints, the generated protocol. Pure. Why: a frame of 5 MiB holds
870 000 message ids or 2.6 million strings, which take protobuf and its readers up to seconds. Of all
commands only those two list more than thousands of things in earnest. Invariants: what a command of
`LARGE_BYTES` or less holds is not looked at; the parts of a list name its ids in order, each id
once, and carry all its other fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from magnetar.errors import ProtocolError
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.checksum import Buffer
from magnetar.wire.varints import varint

LARGE_BYTES = 16 << 10
"""Up to here a command is decoded as it is: it cannot hold more fields than `FIELDS_MAX`."""
FIELDS_MAX = 40_000
"""Of a command that is decoded at once, those of messages in it included: 10 to 20 ms."""
PART_IDS_MAX = 250
"""Message ids of one part of a list: with all that follows from them 2 to 3 ms."""
PART_BYTES_MAX = LARGE_BYTES
LISTS = {api.BaseCommand.ACK: 3, api.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: 2}
"""Commands that list message ids, and the number of that field."""

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)
_TYPE = 1
_SIZES = {_FIXED64: 8, _GROUP: 0, _GROUP_END: 0, _FIXED32: 4}


def check_fields(data: Buffer, start: int, end: int) -> None:
    """Whether the command in data[start:end] may be decoded at once. Raises ProtocolError for
    too many fields, or if they do not end there."""
    left = FIELDS_MAX
    parts: list[tuple[int, int, Descriptor]] = [(start, end, api.BaseCommand.DESCRIPTOR)]
    while parts:
        at, stop, kind = parts.pop()
        messages, packed = _fields_of(kind)
        while at < stop:
            number, begin, at = _field(data, at, stop)
            left -= at - begin if number in packed else 1
            if left < 0:
                raise ProtocolError(
                    f"command of {end - start} bytes has more than {FIELDS_MAX} fields; send "
                    "several commands with fewer each"
                )
            if number in messages:
                parts.append((begin, at, messages[number]))


def list_parts(data: Buffer, start: int, end: int) -> Iterator[bytes | None] | None:
    """The ACK or REDELIVER in data[start:end] as several commands, encoded; None for any other
    command, or an unusual encoding.

    Fields may come in any order, so that no part is known before the last byte has been seen: until
    then None is yielded each time that about as much has been looked at as one part has. The
    iterator raises ProtocolError if a field does not end within the command, if one id alone is
    larger than a part, or all that the command has beside its ids.
    """
    for kind, number in LISTS.items():
        opening = bytes((_TYPE << 3, kind)) + varint(kind << 3 | _BYTES)
        if bytes(data[start : start + len(opening)]) == opening:
            at, length = _read_varint(data, start + len(opening))
            return _parts(data, at, end, number, opening) if at + length == end else None
    return None


def _parts(data: Buffer, at: int, end: int, number: int, opening: bytes) -> Iterator[bytes | None]:
    spans, head = list[tuple[int, int]](), bytearray()
    first, ids = at, 0  # `ids` of them lie in [first, at)
    while at < end:
        start = at
        found, _, at = _field(data, at, end)
        if found != number:
            spans.append((first, start))
            head += data[start:at]
            first, ids = at, 0
        elif ids == PART_IDS_MAX or at - first > PART_BYTES_MAX:
            spans.append((first, start))
            first, ids = start, 1
            yield None
        else:
            ids += 1
        if at - first > PART_BYTES_MAX or len(head) > PART_BYTES_MAX:
            raise ProtocolError(
                "one message id, or all beside the ids, of a command has more than "
                f"{PART_BYTES_MAX} bytes; make smaller batches"
            )
    spans.append((first, at))
    for low, high in [span for span in spans if span[0] < span[1]] or spans[:1]:
        yield b"".join((opening, varint(len(head) + high - low), head, data[low:high]))


def _field(data: Buffer, at: int, stop: int) -> tuple[int, int, int]:
    """(number, where its contents begin, where it ends) of the field at `at`; a number of 0 if
    it is not of bytes."""
    try:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            at, tag = _read_varint(data, at)
        wire, begin = tag & 7, at
        if wire == _BYTES:
            length = data[at]
            if length < 0x80:
                begin = at + 1
            else:
                begin, length = _read_varint(data, at)
            at = begin + length
        elif wire == _VARINT:
            while data[at] > 0x7F:
                at += 1
            at += 1
        else:
            at += _SIZES[wire]
    except (IndexError, KeyError):
        at = stop + 1
    if at > stop:
        raise ProtocolError(
            "command is malformed, or ends within a field; the stream is not the Pulsar protocol"
        )
    return (tag >> 3 if wire == _BYTES else 0), begin, at


def _read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """(where it ends, the number)."""
    value = shift = 0
    while shift < 70:  # ten bytes: more are none
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at, value
        shift += 7
    raise IndexError(at)


@cache
def _fields_of(kind: Descriptor) -> tuple[Mapping[int, Descriptor], frozenset[int]]:
    """Which fields of a message are messages, and which may hold many numbers in one field."""
    messages = {
        field.number: field.message_type for field in kind.fields if field.message_type is not None
    }
    texts = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    packed = (
        field.number
        for field in kind.fields
        if field.is_repeated and field.message_type is None and field.type not in texts
    )
    return messages, frozenset(packed)
