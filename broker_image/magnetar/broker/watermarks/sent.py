"""What messages say of event times.

Owns: `Spoken`, read from the entries of a run: the assertion that a message's property makes, for
clients that do not know the commands, and how many messages are older than a watermark. Imports:
wire. Invariants: only called for topics whose policy is on; an entry that cannot be read, or whose
property has another value, says nothing; a compressed or encrypted batch is not opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from magnetar.errors import ProtocolError
from magnetar.watermarks.records import EVENT_MS_MAX
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.entries import Entry, decode_batch, parse_entry
from magnetar.wire.watermarks import IDLE, PROPERTY

Metadata = api.MessageMetadata | api.SingleMessageMetadata


class Spoken(NamedTuple):
    """Of a run: whether it asserts anything, the last assertion (None: idle), and how many of its
    messages are late."""

    asserts: bool
    event_ms: int | None
    late: int


def spoken(entries: Sequence[memoryview], watermark_ms: int | None) -> Spoken:
    """What a run says. The last assertion holds: it lies behind all of the run."""
    asserts, asserted, late = False, None, 0
    for data in entries:
        try:
            entry = parse_entry(data)
            messages = _messages(entry)
        except ProtocolError:
            continue
        metadata = entry.metadata
        for message in messages:
            if watermark_ms is not None and message.HasField("event_time"):
                late += message.event_time < watermark_ms
            # what is asserted in a chunked message holds behind its last chunk
            if metadata.chunk_id == max(0, metadata.num_chunks_from_msg - 1):
                for value in _values(message):
                    asserts, asserted = True, value
    return Spoken(asserts, asserted, late)


def _messages(entry: Entry) -> Sequence[Metadata]:
    metadata = entry.metadata
    if not entry.batched:
        return [metadata]
    if metadata.compression != api.NONE or metadata.encryption_keys:
        return []
    return [message.metadata for message in decode_batch(metadata, entry.payload)]


def _values(message: Metadata) -> Iterable[int | None]:
    """Assertions in one message's properties."""
    for pair in message.properties:
        if pair.key == PROPERTY:
            if pair.value == IDLE:
                yield None
            elif pair.value.isascii() and pair.value.isdigit() and int(pair.value) <= EVENT_MS_MAX:
                yield int(pair.value)
