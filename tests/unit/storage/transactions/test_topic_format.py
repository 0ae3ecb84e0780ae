"""Bytes of transactions in logs and checkpoints: golden ones, all values there and back, damage
noticed."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData, LimitExceeded
from magnetar.metadata.records import LogPosition
from magnetar.storage import document
from magnetar.storage.checkpoint import Checkpoint, TopicCheckpoint, decode_checkpoint
from magnetar.storage.log.format import decode_records, encode_transaction
from magnetar.storage.log.framing import RECORD_HEADER_BYTES
from magnetar.storage.transactions import topic_format as transaction_format
from magnetar.storage.transactions.topic_format import (
    TransactionRecord,
    participant_pieces,
    participant_state,
)
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    NOWHERE,
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
    Span,
    TranslationState,
    Unbegun,
    UnbegunAcks,
)
from tests.support.checkpoints import encoder_of

TXN = TxnId(3, 9)
GOLDEN: list[tuple[Change, str, str]] = [
    (
        Append(TXN, "p", (14, 2), 3, 2**64 - 2, 99, 7, (15, -1), 1_700_000_000_000),
        "",
        "06000000870000000500000000000000030000000000000009000000000000000000000000000000010012000100000009000000"
        "70657273697374656e743a2f2f612f622f63700e0000000000000002000000000000000300000000000000feffffffffffffff"
        "630000000000000007000000000000000f00000000000000ffffffffffffffff0068e5cf8b010000",
    ),
    (
        Commit(TXN, 7, (15, 4), ((14, 2, 3), (14, 9, 1)), 1_700_000_000_123),
        "",
        "06000000860000000500000000000000030000000000000009000000000000000700000000000000020012000000000009000000"
        "70657273697374656e743a2f2f612f622f630f0000000000000004000000000000007b68e5cf8b0100000e0000000000000002"
        "0000000000000003000000000000000e0000000000000009000000000000000100000000000000",
    ),
    (
        Abort(TXN, 7),
        "",
        "060000003e0000000500000000000000030000000000000009000000000000000700000000000000030012000000000000000000"
        "70657273697374656e743a2f2f612f622f63",
    ),
    (
        PendingAck(TXN, ((15, 1, 2),), ((15, 5, 3, (-2,)),)),
        "s",
        "0600000087000000050000000000000003000000000000000900000000000000000000000000000004001200010000000900000070657273697374656e743a"
        "2f2f612f622f637301000000000000000f00000000000000010000000000000002000000000000000f000000000000000500000000000000030000000000"
        "00000100000000000000feffffffffffffff",
    ),
    (
        EndAcks(TXN, 7, Outcome.COMMITTED, ((15, 1, 2),)),
        "s",
        "060000005f000000050000000000000003000000000000000900000000000000070000000000000005001200010000000400000070657273697374656e743a"
        "2f2f612f622f637301000000000000000f0000000000000001000000000000000200000000000000",
    ),
    (
        EndAcks(TXN, 7, Outcome.ABORTED),
        "s",
        "060000003f0000000500000000000000030000000000000009000000000000000700000000000000060012000100000000000000"
        "70657273697374656e743a2f2f612f622f6373",
    ),
    (
        Unbegun(TXN, (14, 4)),
        "",
        "060000004e0000000500000000000000030000000000000009000000000000000000000000000000070012000000000002000000"
        "70657273697374656e743a2f2f612f622f630e000000000000000400000000000000",
    ),
    (
        UnbegunAcks(TXN),
        "s",
        "060000003f0000000500000000000000030000000000000009000000000000000000000000000000080012000100000000000000"
        "70657273697374656e743a2f2f612f622f6373",
    ),
]


def encoded(change: Change, subscription: str) -> bytes:
    found = encode_transaction(
        epoch=5, topic="persistent://a/b/c", change=change, subscription=subscription
    )
    data = b"".join(found.buffers)
    assert len(data) == found.size
    return data


@pytest.mark.parametrize(
    ("change", "subscription", "data"), GOLDEN, ids=lambda value: type(value).__name__
)
def test_golden_records(change: Change, subscription: str, data: str) -> None:
    """Version 1 of each operation never changes."""
    assert encoded(change, subscription).hex() == data
    [(at, record)] = decode_records(memoryview(bytes.fromhex(data)))
    assert at == RECORD_HEADER_BYTES
    assert record == TransactionRecord(5, "persistent://a/b/c", change, subscription)


U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-1, 2**63 - 1)
TXNS = st.builds(TxnId, U64, U64)
PLACES = st.tuples(I64, I64)
WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple)
TEXT = st.text(max_size=10)
RANGES = st.lists(st.tuples(I64, I64, I64), max_size=3).map(tuple)
PENDING = st.builds(
    PendingAck,
    TXNS,
    RANGES,
    st.lists(st.tuples(I64, I64, I64, WORDS), max_size=2).map(tuple),
)
APPENDS = st.builds(
    Append, TXNS, TEXT, PLACES, I64, st.integers(-1, 2**64 - 2), I64, I64, PLACES, I64
)
PARTIAL = st.lists(st.tuples(I64, I64, I64, WORDS), max_size=2).map(tuple)
ENDS = st.builds(EndAcks, TXNS, U64, st.just(Outcome.COMMITTED), RANGES, PARTIAL) | st.builds(
    EndAcks, TXNS, U64, st.just(Outcome.ABORTED)
)


@given(
    APPENDS
    | st.builds(Commit, TXNS, U64, PLACES, RANGES, I64)
    | st.builds(Abort, TXNS, U64)
    | st.builds(Unbegun, TXNS, PLACES)
)
def test_changes_of_buffers_come_back(change: Change) -> None:
    [(_, record)] = decode_records(memoryview(encoded(change, "")))
    assert record == TransactionRecord(5, "persistent://a/b/c", change)


@given(PENDING | ENDS | st.builds(UnbegunAcks, TXNS), TEXT)
def test_changes_of_subscriptions_come_back(change: Change, subscription: str) -> None:
    [(_, record)] = decode_records(memoryview(encoded(change, subscription)))
    assert record == TransactionRecord(5, "persistent://a/b/c", change, subscription)


@given(st.sampled_from(GOLDEN), st.data())
def test_a_record_that_is_cut_short_never_crashes_the_decoder(
    golden: tuple[Change, str, str], data: st.DataObject
) -> None:
    """Whatever length its header claims, the answer is CorruptData."""
    whole = bytes.fromhex(golden[2])
    cut = whole[: data.draw(st.integers(RECORD_HEADER_BYTES, len(whole) - 1))]
    cut = cut[:4] + (len(cut) - RECORD_HEADER_BYTES).to_bytes(4, "little") + cut[8:]
    with pytest.raises(CorruptData):
        list(decode_records(memoryview(cut)))


@given(st.sampled_from(GOLDEN), st.data())
def test_a_record_with_other_words_is_refused_or_read(
    golden: tuple[Change, str, str], data: st.DataObject
) -> None:
    """Lengths inside the words that lead beyond them are damage, not a crash."""
    whole = bytearray.fromhex(golden[2])
    at = data.draw(st.integers(RECORD_HEADER_BYTES, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        records = list(decode_records(memoryview(whole)))
    except CorruptData:
        return
    assert len(records) == 1


def test_a_name_beyond_the_format_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="65535"):
        encode_transaction(epoch=1, topic="t", change=Abort(TXN, 0), subscription="x" * 65536)


STATE = ParticipantState(
    BufferState(
        last=(14, 9),
        trimmed_to=(13, 2),
        open=(OpenState(TXN, 1000, 77, 9, (Span(14, 2, 3, (15, -1)),), (("p", 5, (14, 4)),)),),
        fences=(FenceState(3, 7, array("Q", [8, 8]), array("Q", [10, 12])),),
        committed=(CommittedState(TxnId(3, 8), (("p", 4, (14, 0)),)),),
        translations=(
            TranslationState(
                14, (15,), array("Q", [0]), array("I", [2]), array("I", [1]), array("q", [4])
            ),
        ),
    ),
    {
        "s": PendingState(
            (PendingAck(TXN, ((15, 1, 2),), ((15, 5, 3, (-2,)),)),), (FenceState(3, 7),)
        )
    },
)
GOLDEN_DOCUMENT = (
    '{"buffer":{"committed":[[3,8,[["p",4,14,0]]]],"fences":[[3,7,"CAAAAAAAAAAIAAAAAAAAAA==","CgAAAAAAAAAMAAAAAAAAAA=="]],"last":[14,9],'
    '"open":[[3,9,1000,77,9,[[14,2,3,15,-1]],[["p",5,14,4]]]],"translations":[[14,[15],"AAAAAAAAAAA=","AgAAAA==","AQAAAA==","BAAAAAAAAAA="]],'
    '"trimmed_to":[13,2]},"pending":{"s":[[[3,9,[[15,1,2]],[[15,5,3,[-2]]]]],[[3,7,"",""]]]}}'
)


def test_golden_part_of_a_checkpoint() -> None:
    """Version 1 never changes; a topic that was never used with transactions has no such part."""
    assert b"".join(participant_pieces(STATE)).decode() == GOLDEN_DOCUMENT
    assert participant_state(json.loads(GOLDEN_DOCUMENT)) == STATE
    assert participant_state({"pending": {}}) == ParticipantState()
    used = TopicCheckpoint(5, transactions=STATE)
    topics = {"persistent://a/b/c": used, "persistent://a/b/d": TopicCheckpoint(6)}
    data = encoder_of(
        Checkpoint("a/b/0x00000000_0x40000000", 7, "i", LogPosition(2, 8192), topics)
    ).finish()
    assert decode_checkpoint(data, "c").topics == topics
    assert data.count(b"pending") == 1


def test_a_long_part_of_a_checkpoint_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they are cut they are the same bytes, none is long, and a topic's state is found
    in them again."""
    many = 1000
    assert STATE.buffer is not None
    buffer = replace(
        STATE.buffer,
        open=(
            replace(
                STATE.buffer.open[0], spans=tuple(Span(14, 2 * n, 1, (15, n)) for n in range(many))
            ),
        )
        * 2,
        fences=(FenceState(3, 7, array("Q", range(many)), array("Q")), FenceState(4, 1)),
        translations=(TranslationState(14, (15,), *(array(code, range(many)) for code in "QIIq")),)
        * 2,
    )
    pending = PendingState(STATE.pending["s"].pending * many)
    state = ParticipantState(buffer, {"t": pending, "s": pending})
    whole = b"".join(participant_pieces(state))
    monkeypatch.setattr(transaction_format, "TEXT_PIECE_NUMBERS", 30)
    monkeypatch.setattr(document, "PIECE_ITEMS", 10)
    pieces = list(participant_pieces(state))
    assert b"".join(pieces) == whole
    assert max(map(len, pieces)) < 1000 < len(whole)
    assert participant_state(json.loads(whole)) == state


def test_a_damaged_part_of_a_checkpoint_is_refused() -> None:
    """Anything else than what was written is CorruptData, as for the rest of a checkpoint."""
    for damaged in (
        {},
        {"pending": {"s": [1]}},
        {"pending": {}, "buffer": {"last": list(NOWHERE)}},
    ):
        with pytest.raises((KeyError, TypeError, ValueError)):
            participant_state(damaged)
