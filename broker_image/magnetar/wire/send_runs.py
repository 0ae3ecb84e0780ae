"""SENDs that repeat each other: the hot path of a client that does not batch.

Owns: `following_sends`, which takes a run of them by comparing bytes. Imports: errors, checksum,
runs, sent_entries, varints. Pure. Why: such a client sends hundreds in a row, which differ in
sequence id, size and checksum only. Comparing the expected bytes takes 0.25 us, parsing 1.5.
Invariant: what is taken without parsing has the meaning that parsing gives, since equal bytes have
equal meaning, and is what `check_sent_entry` lets pass.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from magnetar.errors import NotAllowed
from magnetar.wire.checksum import CHECKSUM_BYTES, CHECKSUM_MAGIC, Buffer, crc32c
from magnetar.wire.runs import SIZE_BYTES
from magnetar.wire.sent_entries import check_sent_metadata, metadata_range
from magnetar.wire.varints import WINDOW, varint, window_of

_SHAPES_MAX = 1024


class FollowingSends(NamedTuple):
    """SENDs that repeat the one before them with the next sequence ids: their bodies (views of
    the buffer), and where the last ends."""

    bodies: list[memoryview]
    end: int


def following_sends(
    view: memoryview,
    start: int,
    body: int,
    at: int,
    have: int,
    sequence_id: int,
    body_bytes_max: int,
    total_bytes_max: int,
    messages_max: int,
) -> FollowingSends:
    """The frames in view[at:have] that repeat the SEND of one message in view[start:body], which
    has `sequence_id` and was checked (`check_sent_entry`, which gets `messages_max`).

    The run ends, and `parse_send` takes over, at a body with a wrong checksum or none, above
    `body_bytes_max`, of a chunk or not to be stored, and at `total_bytes_max` in all.
    """
    bodies: list[memoryview] = []
    data = view.obj
    assert isinstance(data, bytearray)
    shape = _SendShape.of(view, data, start, body, at, sequence_id)
    if shape is None:
        return FollowingSends(bodies, at)
    number_bytes, before, after, described, text, numbered, size = shape
    head = body - start + 2 * SIZE_BYTES
    parts = _send_parts(head, size)
    least, longest = head + CHECKSUM_BYTES, body_bytes_max + head
    whole = least + size
    append, mask, checksum = bodies.append, WINDOW - 1, crc32c
    last = min(have, at + total_bytes_max)
    window_end = usual = 0
    while at + whole <= last:
        sequence_id += 1
        if sequence_id >= window_end:
            _, window_end, sequence_low, high_bytes = window_of(sequence_id)
            if len(varint(sequence_id)) != number_bytes:
                break  # a longer number: other lengths in front of it, too
            rest, continued = high_bytes + after, high_bytes + text
        total, command, expected, metadata = parts(data, at)
        number = sequence_low[sequence_id & mask]
        if command != before + number + rest:
            break
        end = at + SIZE_BYTES + total
        if total != usual and not whole <= end - at <= longest:
            break
        usual = total
        if end > last or checksum(view[at + least : end]) != expected:
            break
        if metadata != (described + number + continued if numbered else described):
            if not _may_follow(data, at + least, end, messages_max):
                break
            if numbered and metadata.startswith(number + high_bytes, len(described)):
                # as a rule the publish time has changed, and stays so for a while
                text = metadata[len(described) + number_bytes :]
                continued = high_bytes + text
            else:
                described, numbered = metadata, False
        append(view[at + head : end])
        at = end
    return FollowingSends(bodies, at)


def _may_follow(data: bytearray, at: int, end: int, messages_max: int) -> bool:
    """Whether a broker stores the entry whose metadata, its size in front, begins at data[at]:
    one message that is no chunk."""
    start = at + SIZE_BYTES
    stop = start + int.from_bytes(data[at:start], "big")
    try:
        return (
            stop <= end
            and check_sent_metadata(bytes(data[start:stop]), 0, 1, messages_max).num_chunks_from_msg
            <= 1
        )
    except NotAllowed:
        return False


class _SendShape(NamedTuple):
    """What SENDs that repeat one have in common: the command `before` and `after` the
    `number_bytes` of its sequence id; the metadata, its size in front, of `metadata_bytes`:
    `described`, and if it is `numbered` the same sequence id and `text`."""

    number_bytes: int
    before: bytes
    after: bytes
    described: bytes
    text: bytes
    numbered: bool
    metadata_bytes: int

    @staticmethod
    def of(
        view: memoryview, data: bytearray, start: int, body: int, end: int, sequence_id: int
    ) -> _SendShape | None:
        """Of the SEND view[start:end] with the command view[start:body]; None if it is not written
        as every known client writes it."""
        place = _sequence_place(data, start, body, sequence_id)
        if place is None or not data.startswith(CHECKSUM_MAGIC, body):
            return None
        low, high = place
        before = bytes(data[start - SIZE_BYTES : low])
        after = bytes(data[high:body]) + CHECKSUM_MAGIC
        entry = view[body:end]
        found = bytes(entry[CHECKSUM_BYTES : metadata_range(entry)[1]])
        number = bytes(data[low:high])
        # behind the producer's name, as every known client writes it
        at = SIZE_BYTES + 2 + found[SIZE_BYTES + 1]
        numbered = (
            found[SIZE_BYTES] == 0x0A
            and found[at : at + 1] == b"\x10"
            and found.startswith(number, at + 1)
        )
        described, text = (
            (found[: at + 1], found[at + 1 + len(number) :]) if numbered else (found, b"")
        )
        return _SendShape(high - low, before, after, described, text, numbered, len(found))


@lru_cache(_SHAPES_MAX)
def _send_parts(head: int, metadata: int) -> Callable[[Buffer, int], tuple[int, bytes, int, bytes]]:
    """Reads (frame size, command with its size and the checksum's magic, checksum, metadata with
    its size).

    Of a SEND with `head` bytes before its body, and `metadata` bytes of metadata.
    """
    return struct.Struct(f">I{head - SIZE_BYTES + len(CHECKSUM_MAGIC)}sI{metadata}s").unpack_from


def _sequence_place(
    data: bytearray, start: int, end: int, sequence_id: int
) -> tuple[int, int] | None:
    """Where the number of the sequence id lies in the SEND data[start:end], if it is written as
    every known client writes it."""
    at = start + 4  # type and length of the sub-message
    if not 4 <= end - at <= 0x7F or data[at] != 0x08:
        return None
    at += 1
    while data[at] > 0x7F:
        at += 1
    at += 1
    encoded = varint(sequence_id)
    if data[at] != 0x10 or not data.startswith(encoded, at + 1) or at + 1 + len(encoded) > end:
        return None
    return at + 1, at + 1 + len(encoded)
