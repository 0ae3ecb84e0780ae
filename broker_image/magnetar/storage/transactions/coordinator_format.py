"""What a transaction coordinator's log and checkpoints hold (version 1).

Owns: the bytes of COORDINATOR records, and of the object that holds a coordinator's state as of a
log position. Imports: errors, metadata records, transactions' records, log format. Pure. The
payload of a record is the epoch of the incarnation that wrote it (u64, as in every record), the
coordinator's number (u16), the version and the operation (u8 each), then the operation's own
fields. All numbers are little-endian. Invariants: what is encoded reads back; another version is
refused, never guessed at; released versions are never edited.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.errors import CorruptData
from magnetar.metadata.records import LogPosition
from magnetar.storage.document import close_document, decode_document, document_json, json_items
from magnetar.storage.log.format import RecordType
from magnetar.storage.log.framing import (
    Encoded,
    bounded_length,
    framed_records,
    record_header,
)
from magnetar.transactions.records import (
    Action,
    Change,
    CoordinatorState,
    Decided,
    Ended,
    Joined,
    LiveTransaction,
    Opened,
    Outcome,
    Participant,
)

VERSION = 1
CHECKPOINT_KIND = "coordinator-checkpoint"

_HEAD = struct.Struct("<QHBB")
_OPENED = struct.Struct("<QQqH")
_JOINED = struct.Struct("<QI")
_DECIDED = struct.Struct("<QBq")
_ENDED = struct.Struct("<Qq")
_LENGTH = struct.Struct("<H")


class Operation(enum.IntEnum):
    """What a COORDINATOR record says."""

    OPENED = 1
    JOINED = 2
    DECIDED = 3
    ENDED = 4


@dataclass(frozen=True, slots=True)
class CoordinatorEntry:
    """A record of a coordinator's log, by the incarnation of this epoch."""

    epoch: int
    tcid: int
    change: Change


def encode_changes(epoch: int, tcid: int, changes: Sequence[Change]) -> Encoded:
    """One record per change, in order, in one buffer. Raises LimitExceeded for a name beyond
    65535 bytes."""
    parts: list[bytes] = []
    for change in changes:
        operation, body = _body(change)
        parts += (
            record_header(RecordType.COORDINATOR, _HEAD.size + len(body)),
            _HEAD.pack(epoch, tcid, VERSION, operation),
            body,
        )
    data = b"".join(parts)
    return Encoded([data], len(data))


def _body(change: Change) -> tuple[Operation, bytes]:
    match change:
        case Opened(least, timeout_ms, opened_ms, owner):
            text = owner.encode()
            return Operation.OPENED, _OPENED.pack(
                least, timeout_ms, opened_ms, bounded_length(text)
            ) + text
        case Joined(least, participants):
            names = (
                _LENGTH.pack(bounded_length(text)) + text
                for name in participants
                for text in map(str.encode, name)
            )
            return Operation.JOINED, _JOINED.pack(least, len(participants)) + b"".join(names)
        case Decided(least, action, at_ms):
            return Operation.DECIDED, _DECIDED.pack(least, action, at_ms)
        case Ended(least, at_ms):
            return Operation.ENDED, _ENDED.pack(least, at_ms)


def decode_changes(body: memoryview) -> Iterator[CoordinatorEntry]:
    """The COORDINATOR records of one block whose CRC is right, in order; others are passed over.
    Raises CorruptData."""
    for kind, at, end in framed_records(body):
        if kind == RecordType.COORDINATOR:
            try:
                entry = _decode(bytes(body[at:end]))
            except (struct.error, ValueError, IndexError) as error:
                raise CorruptData(f"coordinator record at {at} does not decode: {error}") from error
            yield entry


def _decode(payload: bytes) -> CoordinatorEntry:
    epoch, tcid, version, operation = _HEAD.unpack_from(payload)
    if version != VERSION:
        raise CorruptData(
            f"coordinator record of version {version}; this component reads version {VERSION}: "
            "upgrade it"
        )
    change, end = _change(Operation(operation), payload, _HEAD.size)
    if end != len(payload):
        raise ValueError(f"its parts need {end} bytes, it has {len(payload)}")
    return CoordinatorEntry(epoch, tcid, change)


def _change(operation: Operation, payload: bytes, at: int) -> tuple[Change, int]:
    """The change at `payload[at:]`, and where it ends."""
    if operation is Operation.OPENED:
        least, timeout_ms, opened_ms, length = _OPENED.unpack_from(payload, at)
        at += _OPENED.size
        return Opened(least, timeout_ms, opened_ms, _text(payload, at, length)), at + length
    if operation is Operation.JOINED:
        least, count = _JOINED.unpack_from(payload, at)
        at += _JOINED.size
        texts: list[str] = []
        for _ in range(2 * count):
            (length,) = _LENGTH.unpack_from(payload, at)
            texts.append(_text(payload, at + _LENGTH.size, length))
            at += _LENGTH.size + length
        return Joined(least, tuple(map(Participant, texts[0::2], texts[1::2]))), at
    if operation is Operation.DECIDED:
        least, action, at_ms = _DECIDED.unpack_from(payload, at)
        return Decided(least, Action(action), at_ms), at + _DECIDED.size
    least, at_ms = _ENDED.unpack_from(payload, at)
    return Ended(least, at_ms), at + _ENDED.size


def _text(payload: bytes, at: int, length: int) -> str:
    if at + length > len(payload):
        raise ValueError(f"a name of {length} bytes at {at} is cut off")
    return str(payload[at : at + length], "utf-8")


# --- checkpoints ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoordinatorCheckpoint:
    """A coordinator's state that holds everything before `position` in the log of `incarnation`,
    the incarnation of `epoch`, perhaps more."""

    tcid: int
    epoch: int
    incarnation: str
    position: LogPosition
    state: CoordinatorState


def encode_checkpoint(checkpoint: CoordinatorCheckpoint) -> bytes:
    """The object's bytes. Transactions and outcomes are lists in a fixed order, since there may
    be very many."""
    return close_document(checkpoint_pieces(checkpoint))


def checkpoint_pieces(checkpoint: CoordinatorCheckpoint) -> Iterator[bytes]:
    """The object's JSON in pieces that take a millisecond or so each, for callers that have other
    things to do in between."""
    state, position = checkpoint.state, checkpoint.position
    head = {
        "epoch": checkpoint.epoch,
        "incarnation": checkpoint.incarnation,
        "kind": CHECKPOINT_KIND,
    }
    tail = {
        "position": [position.file, position.offset],
        "seen_ms": state.seen_ms,
        "tcid": checkpoint.tcid,
        "version": VERSION,
    }
    yield document_json(head)[:-1] + b',"live":['
    yield from json_items(state.live, _live_values)
    yield b'],"next":%d,"outcomes":[' % state.next
    yield from json_items(state.outcomes, _outcome_values)
    yield b"]," + document_json(tail)[1:]


def _live_values(live: LiveTransaction) -> list[Any]:
    participants = [list(name) for name in live.participants]
    return [live.least, live.timeout_ms, live.opened_ms, live.owner, participants, live.action]


def _outcome_values(outcome: Outcome) -> list[Any]:
    return [outcome.least, int(outcome.action), outcome.forget_ms, outcome.owner]


def decode_checkpoint(data: bytes, name: str) -> CoordinatorCheckpoint:
    """Parse the object `name`. Raises CorruptData."""
    body = decode_document(CHECKPOINT_KIND, VERSION, data, name)
    try:
        state = CoordinatorState(
            body["next"],
            tuple(_live(*fields) for fields in body["live"]),
            tuple(
                Outcome(least, Action(action), forget_ms, owner)
                for least, action, forget_ms, owner in body["outcomes"]
            ),
            body["seen_ms"],
        )
        return CoordinatorCheckpoint(
            body["tcid"], body["epoch"], body["incarnation"], LogPosition(*body["position"]), state
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{name}: does not hold a coordinator's checkpoint: {error!r}") from error


def _live(
    least: int,
    timeout_ms: int,
    opened_ms: int,
    owner: str,
    participants: list[list[Any]],
    action: int | None,
) -> LiveTransaction:
    return LiveTransaction(
        least,
        timeout_ms,
        opened_ms,
        owner,
        tuple(Participant(topic, subscription) for topic, subscription in participants),
        Action(action) if action is not None else None,
    )
