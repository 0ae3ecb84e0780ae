"""SENDs that repeat each other: the hot path of a client that does not batch.

Owns: `following_sends`, which takes a run of them by comparing bytes. Imports: errors, checksum,
runs, sent_entries. Pure. Invariant: what is taken without parsing has the meaning that parsing
gives, since equal bytes have equal meaning, and is what `check_sent_entry` lets pass.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from magnetar.errors import NotAllowed
from magnetar.wire.checksum import CHECKSUM_BYTES, CHECKSUM_MAGIC, Buffer, crc32c
from magnetar.wire.runs import SIZE_BYTES, WHOLE, WINDOW, varint, window_of
from magnetar.wire.sent_entries import check_sent_metadata, metadata_range

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
    """The frames from `at` on that continue the SEND of one message whose command is
    view[start:body] and whose sequence id is `sequence_id`.

    A client that does not batch sends hundreds of them in a row. They differ in sequence id, size
    and checksum only, so that the bytes of the next one's command and metadata are known
    beforehand: a comparison replaces parsing (0.25 us against 1.5), with the same outcome, since
    equal bytes have equal meaning. Bodies with a wrong checksum or without one, larger ones than
    `body_bytes_max`, what must not be stored, chunks, and what makes more than `total_bytes_max`
    together, end the run: they, and everything else, are left to `parse_send`. `have` is where the
    received bytes end; the SEND before `at` was checked (`check_sent_entry`, which gets
    `messages_max`).
    """
    bodies: list[memoryview] = []
    data = view.obj
    assert isinstance(data, bytearray)
    place = _sequence_place(data, start, body, sequence_id)
    if place is None or not data.startswith(CHECKSUM_MAGIC, body):
        return FollowingSends(bodies, at)
    low, high = place
    before, after = bytes(data[start - SIZE_BYTES : low]), bytes(data[high:body]) + CHECKSUM_MAGIC
    head = body - start + 2 * SIZE_BYTES
    known = _KnownMetadata.of(view[body:at], sequence_id)
    described, numbered, text = known.before, known.numbered, known.after
    parts = _send_parts(head, known.size)
    least, longest = head + CHECKSUM_BYTES, body_bytes_max + head
    whole = least + known.size
    append, mask, checksum = bodies.append, WINDOW - 1, crc32c
    last = min(have, at + total_bytes_max)
    window_end = usual = 0
    sequence_low, high_bytes, rest, told = WHOLE, b"", after, text
    while at + whole <= last:
        sequence_id += 1
        if sequence_id >= window_end:
            _, window_end, sequence_low, high_bytes = window_of(sequence_id)
            if len(varint(sequence_id)) != high - low:
                break  # a longer number: other lengths in front of it, too
            rest, told = high_bytes + after, high_bytes + text
        total, command, expected, metadata = parts(data, at)
        number = sequence_low[sequence_id & mask]
        if command != before + number + rest:
            break
        end = at + SIZE_BYTES + total
        if total != usual:
            if not whole <= end - at <= longest:
                break
            usual = total
        if end > last or checksum(view[at + least : end]) != expected:
            break
        if metadata != (described + number + told if numbered else described):
            described_at = at + least + SIZE_BYTES
            size = int.from_bytes(metadata[:SIZE_BYTES], "big")
            if described_at + size > end or not _may_follow(
                bytes(data[described_at : described_at + size]), messages_max
            ):
                break
            if numbered and metadata.startswith(number + high_bytes, len(described)):
                # as a rule the publish time has changed, and stays so for a while
                text = metadata[len(described) + high - low :]
                told = high_bytes + text
            else:
                described, numbered = metadata, False
        append(view[at + head : end])
        at = end
    return FollowingSends(bodies, at)


def _may_follow(metadata: bytes, messages_max: int) -> bool:
    """Whether a broker stores an entry with this metadata, of one message that is no chunk, as
    it stands."""
    try:
        return check_sent_metadata(metadata, 0, 1, messages_max).num_chunks_from_msg <= 1
    except NotAllowed:
        return False


class _KnownMetadata(NamedTuple):
    """The metadata of an entry, its size in front: `before`, and if it is `numbered` the
    sequence id of its SEND and `after`."""

    before: bytes
    after: bytes
    numbered: bool
    size: int

    @staticmethod
    def of(entry: memoryview, sequence_id: int) -> _KnownMetadata:
        found = bytes(entry[CHECKSUM_BYTES : metadata_range(entry)[1]])
        number = varint(sequence_id)
        # behind the producer's name, as every known client writes it
        at = SIZE_BYTES + 2 + found[SIZE_BYTES + 1]
        if (
            found[SIZE_BYTES] == 0x0A
            and found[at : at + 1] == b"\x10"
            and found.startswith(number, at + 1)
        ):
            return _KnownMetadata(found[: at + 1], found[at + 1 + len(number) :], True, len(found))
        return _KnownMetadata(found, b"", False, len(found))


@lru_cache(_SHAPES_MAX)
def _send_parts(head: int, metadata: int) -> Callable[[Buffer, int], tuple[int, bytes, int, bytes]]:
    """Reads (frame size, command with its size and the checksum's magic, checksum, metadata with
    its size).

    Of a SEND with `head` bytes before its body, and so many of metadata.
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
