"""Bytes of what topics and subscriptions write about transactions (version 1 of the TRANSACTION
record and of its part of a checkpoint).

Owns: the payload of TRANSACTION records, and a topic's transactions in a checkpoint. Imports:
errors, arrays, document, transactions' records. Pure. A payload is a fixed head {epoch,
transaction, floor, operation, flags, lengths}, the topic's name, the producer's or subscription's,
and words (i64). Invariant: written only where transactions were used: a topic that never was has
neither records nor such a part.
"""

from __future__ import annotations

import enum
import struct
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from magnetar.storage.arrays import I64, U32, U64, packed, unpacked
from magnetar.storage.document import document_json, json_items
from magnetar.storage.log.framing import bounded_length
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    Abort,
    Append,
    BufferState,
    Change,
    Commit,
    CommittedState,
    EndAcks,
    FenceState,
    OpenState,
    Outcome,
    ParticipantState,
    PendingAck,
    PendingState,
    Place,
    Span,
    TranslationState,
    Unbegun,
    UnbegunAcks,
)

TEXT_PIECE_NUMBERS = 3 * 4096
"""A multiple of 3: so pieces of base64 put together are the base64 of the whole."""
# epoch, most, least, floor, operation, flags, topic and name lengths, reserved, words
_HEAD = struct.Struct("<QQQQBBHHHI")
# ledger, first, entries, highest, bytes, messages, send point's ledger and entry, append ms
_APPEND = struct.Struct("<9q")
_APPEND_WORDS = _APPEND.size // 8


class TransactionOperation(enum.IntEnum):
    """APPEND, COMMIT, ABORT and UNBEGUN are of the topic's buffer, the others of a subscription."""

    APPEND = 1
    COMMIT = 2
    ABORT = 3
    ACKNOWLEDGE = 4
    COMMIT_ACKS = 5
    ABORT_ACKS = 6
    UNBEGUN = 7
    UNBEGUN_ACKS = 8


class TransactionRecord(NamedTuple):
    """A change of a topic's transaction buffer, or of the pending acknowledgements of
    `subscription`."""

    epoch: int
    topic: str
    change: Change
    subscription: str = ""


# --- records --------------------------------------------------------------------------------------


def transaction_payload(epoch: int, topic: str, change: Change, subscription: str) -> bytes:
    """The payload of a TRANSACTION record. Raises LimitExceeded for a name beyond 65535 bytes."""
    floor, name = 0, subscription
    words: list[int] = []
    if isinstance(change, Append):
        operation, name = TransactionOperation.APPEND, change.producer
        sizes = change.size, change.messages
        words = [
            *change.first,
            change.count,
            _signed(change.highest),
            *sizes,
            *change.send_point,
            change.append_ms,
        ]
    elif isinstance(change, Commit):
        operation, floor = TransactionOperation.COMMIT, change.floor
        words = [
            *change.marker,
            change.append_ms,
            *(number for span in change.spans for number in span),
        ]
    elif isinstance(change, Abort):
        operation, floor = TransactionOperation.ABORT, change.floor
    elif isinstance(change, Unbegun):
        operation, words = TransactionOperation.UNBEGUN, [*change.last]
    elif isinstance(change, PendingAck):
        operation, words = TransactionOperation.ACKNOWLEDGE, _ack_words(change)
    elif isinstance(change, UnbegunAcks):
        operation = TransactionOperation.UNBEGUN_ACKS
    else:
        committed = change.outcome is Outcome.COMMITTED
        operation = (
            TransactionOperation.COMMIT_ACKS if committed else TransactionOperation.ABORT_ACKS
        )
        floor, words = change.floor, _ack_words(change) if committed else []
    topic_bytes, name_bytes = topic.encode(), name.encode()
    lengths = bounded_length(topic_bytes), bounded_length(name_bytes)
    head = _HEAD.pack(epoch, *change.txn, floor, operation, 0, *lengths, 0, len(words))
    return head + topic_bytes + name_bytes + packed(I64, words).tobytes()


def _ack_words(change: PendingAck | EndAcks) -> list[int]:
    words = [len(change.ranges), *(number for span in change.ranges for number in span)]
    for ledger, entry, size, mask in change.partial:
        words += [ledger, entry, size, len(mask), *mask]
    return words


def _signed(sequence: int) -> int:
    """A sequence id (u64, or -1 for none) as a word; none and the greatest u64 are the same, as
    in ENTRIES records."""
    return sequence - (1 << 64) if sequence >= 1 << 63 else sequence


def decode_transaction(payload: memoryview) -> TransactionRecord:
    """Raises ValueError or struct.error for what is none."""
    epoch, most, least, floor, number, _, topic_length, name_length, _, count = _HEAD.unpack_from(
        payload
    )
    topic_end = _HEAD.size + topic_length
    words_at = topic_end + name_length
    if words_at + 8 * count != len(payload):
        raise ValueError(f"its parts need {words_at + 8 * count} bytes, it has {len(payload)}")
    topic, name = (
        str(payload[_HEAD.size : topic_end], "utf-8"),
        str(payload[topic_end:words_at], "utf-8"),
    )
    txn = TxnId(most, least)
    if number == TransactionOperation.APPEND:
        if count != _APPEND_WORDS:
            raise ValueError(f"APPEND has {count} words instead of {_APPEND_WORDS}")
        ledger, first, entries, highest, size, messages, send_ledger, send_entry, append_ms = (
            _APPEND.unpack_from(payload, words_at)
        )
        sequence = highest if highest >= -1 else highest + (1 << 64)
        append = Append(
            txn,
            name,
            (ledger, first),
            entries,
            sequence,
            size,
            messages,
            (send_ledger, send_entry),
            append_ms,
        )
        return TransactionRecord(epoch, topic, append)
    if number == TransactionOperation.ABORT and not count:
        return TransactionRecord(epoch, topic, Abort(txn, floor))
    operation, words = TransactionOperation(number), unpacked(I64, payload[words_at:])
    if operation is TransactionOperation.COMMIT:
        marker = (words[0], words[1])
        spans = tuple(zip(words[3::3], words[4::3], words[5::3], strict=True))
        return TransactionRecord(epoch, topic, Commit(txn, floor, marker, spans, words[2]))
    if operation is TransactionOperation.ACKNOWLEDGE:
        return TransactionRecord(epoch, topic, PendingAck(txn, *_decode_ack(words)), name)
    if operation is TransactionOperation.COMMIT_ACKS:
        return TransactionRecord(
            epoch, topic, EndAcks(txn, floor, Outcome.COMMITTED, *_decode_ack(words)), name
        )
    if operation is TransactionOperation.UNBEGUN:
        ledger, entry = words
        return TransactionRecord(epoch, topic, Unbegun(txn, (ledger, entry)))
    if len(words):
        raise ValueError(f"{operation.name} has {len(words)} words too many")
    if operation is TransactionOperation.UNBEGUN_ACKS:
        return TransactionRecord(epoch, topic, UnbegunAcks(txn), name)
    return TransactionRecord(epoch, topic, EndAcks(txn, floor, Outcome.ABORTED), name)


def _decode_ack(
    words: array[int],
) -> tuple[tuple[tuple[int, int, int], ...], tuple[tuple[int, int, int, tuple[int, ...]], ...]]:
    end = 1 + 3 * words[0]
    spans = _exactly(words, 1, 3 * words[0])
    ranges = tuple(zip(spans[0::3], spans[1::3], spans[2::3], strict=True))
    return ranges, tuple(_partial(words, end))


def _partial(words: array[int], at: int) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    while at < len(words):
        ledger, entry, size, length = words[at : at + 4]
        yield ledger, entry, size, _exactly(words, at + 4, length)
        at += 4 + length


def _exactly(words: array[int], at: int, length: int) -> tuple[int, ...]:
    found = tuple(words[at : at + length])
    if length < 0 or len(found) != length:
        raise ValueError(f"{length} words at {at} of {len(words)}")
    return found


# --- checkpoints ----------------------------------------------------------------------------------


def participant_pieces(state: ParticipantState) -> Iterator[bytes]:
    """What a checkpoint holds of a topic's transactions: JSON, long arrays of numbers as base64 of
    their bytes.

    There may be very much of it: it comes in pieces that take a millisecond or so each.
    """
    yield b"{"
    if state.buffer is not None:
        yield b'"buffer":'
        yield from _buffer_pieces(state.buffer)
        yield b","
    yield b'"pending":{'
    for number, (subscription, found) in enumerate(sorted(state.pending.items())):
        yield b"%s%s:[[" % (b"," if number else b"", document_json(subscription))
        yield from json_items(found.pending, _ack_values)
        yield b"],"
        yield from _fences_pieces(found.fences)
        yield b"]"
    yield b"}}"


def participant_state(document: dict[str, Any]) -> ParticipantState:
    """What `participant_pieces` have made, parsed. Raises KeyError, TypeError, ValueError for
    anything else."""
    return ParticipantState(
        _buffer_state(document["buffer"]) if "buffer" in document else None,
        {
            subscription: PendingState(tuple(map(_ack_state, acks)), _fences_state(fences))
            for subscription, (acks, fences) in document["pending"].items()
        },
    )


def _buffer_pieces(state: BufferState) -> Iterator[bytes]:
    yield b'{"committed":['
    yield from json_items(state.committed, lambda found: [*found.txn, _names(found.producers)])
    yield b'],"fences":'
    yield from _fences_pieces(state.fences)
    yield b',"last":%s,"open":[' % document_json(state.last)
    for number, found in enumerate(state.open):
        yield b"%s[%d,%d,%d,%d,%d,[" % (
            b"," if number else b"",
            *found.txn,
            found.since_ms,
            found.size,
            found.messages,
        )
        yield from json_items(found.spans, lambda span: [*span[:3], *span.send_point])
        yield b"],%s]" % document_json(_names(found.producers))
    yield b'],"translations":['
    for number, runs in enumerate(state.translations):
        yield b"%s[%d,%s" % (b"," if number else b"", runs.ledger, document_json(runs.targets))
        for typecode, numbers in (
            (U64, runs.firsts),
            (U32, runs.counts),
            (U32, runs.codes),
            (I64, runs.entries),
        ):
            yield b","
            yield from _text_pieces(typecode, numbers)
        yield b"]"
    yield b'],"trimmed_to":%s}' % document_json(state.trimmed_to)


def _buffer_state(document: dict[str, Any]) -> BufferState:
    return BufferState(
        _place(document["last"]),
        _place(document["trimmed_to"]),
        tuple(
            OpenState(
                TxnId(most, least),
                since_ms,
                size,
                messages,
                tuple(Span(a, b, c, (d, e)) for a, b, c, d, e in spans),
                _producers(names),
            )
            for most, least, since_ms, size, messages, spans, names in document["open"]
        ),
        _fences_state(document["fences"]),
        tuple(
            CommittedState(TxnId(most, least), _producers(names))
            for most, least, names in document["committed"]
        ),
        tuple(
            TranslationState(
                ledger,
                tuple(targets),
                _array(U64, firsts),
                _array(U32, counts),
                _array(U32, codes),
                _array(I64, entries),
            )
            for ledger, targets, firsts, counts, codes, entries in document["translations"]
        ),
    )


def _fences_pieces(fences: Iterable[FenceState]) -> Iterator[bytes]:
    yield b"["
    for number, found in enumerate(fences):
        yield b"%s[%d,%d," % (b"," if number else b"", found.coordinator, found.floor)
        yield from _text_pieces(U64, found.committed)
        yield b","
        yield from _text_pieces(U64, found.aborted)
        yield b"]"
    yield b"]"


def _fences_state(document: list[list[Any]]) -> tuple[FenceState, ...]:
    return tuple(
        FenceState(number, floor, _array(U64, committed), _array(U64, aborted))
        for number, floor, committed, aborted in document
    )


def _ack_values(ack: PendingAck) -> list[Any]:
    return [
        *ack.txn,
        [list(span) for span in ack.ranges],
        [[ledger, entry, size, list(words)] for ledger, entry, size, words in ack.partial],
    ]


def _ack_state(document: list[Any]) -> PendingAck:
    most, least, ranges, partial = document
    return PendingAck(
        TxnId(most, least),
        tuple((ledger, first, last) for ledger, first, last in ranges),
        tuple((ledger, entry, size, tuple(words)) for ledger, entry, size, words in partial),
    )


def _names(producers: Iterable[tuple[str, int, Place]]) -> list[list[Any]]:
    return [[name, sequence, *position] for name, sequence, position in producers]


def _producers(names: list[list[Any]]) -> tuple[tuple[str, int, Place], ...]:
    return tuple((name, sequence, (ledger, entry)) for name, sequence, ledger, entry in names)


def _place(numbers: list[int]) -> Place:
    return numbers[0], numbers[1]


def _text_pieces(typecode: str, numbers: array[int]) -> Iterator[bytes]:
    yield b'"'
    for at in range(0, len(numbers), TEXT_PIECE_NUMBERS):
        yield b64encode(packed(typecode, numbers[at : at + TEXT_PIECE_NUMBERS]).tobytes())
    yield b'"'


def _array(typecode: str, text: str) -> array[int]:
    return unpacked(typecode, b64decode(text, validate=True))
