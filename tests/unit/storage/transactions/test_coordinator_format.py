"""The bytes of a coordinator's log and checkpoints: golden ones, all values there and back,
damage noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData, LimitExceeded
from magnetar.metadata.records import LogPosition
from magnetar.storage.document import decode_document, encode_document
from magnetar.storage.log.format import TopicOperation, decode_records, encode_topic
from magnetar.storage.log.framing import Encoded
from magnetar.storage.transactions.coordinator_format import (
    CoordinatorCheckpoint,
    CoordinatorEntry,
    checkpoint_pieces,
    decode_changes,
    decode_checkpoint,
    encode_changes,
    encode_checkpoint,
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

U64 = st.integers(0, 2**64 - 1)
MS = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=20)
PARTICIPANTS = st.builds(Participant, TEXT, TEXT)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Opened, U64, U64, MS, TEXT),
    st.builds(Joined, U64, st.lists(PARTICIPANTS, max_size=4).map(tuple)),
    st.builds(Decided, U64, st.sampled_from(Action), MS),
    st.builds(Ended, U64, MS),
)
STATES = st.builds(
    CoordinatorState,
    U64,
    st.lists(
        st.builds(
            LiveTransaction,
            U64,
            U64,
            MS,
            TEXT,
            st.lists(PARTICIPANTS, max_size=3).map(tuple),
            st.none() | st.sampled_from(Action),
        ),
        max_size=3,
    ).map(tuple),
    st.lists(st.builds(Outcome, U64, st.sampled_from(Action), MS, TEXT), max_size=3).map(tuple),
    MS,
)
HEAD = "0700000000000000" + "0200" + "01"
GOLDEN: list[tuple[Change, str]] = [
    (
        Opened(5, 60_000, 1_000, "ann"),
        "07000000"
        + "29000000"
        + HEAD
        + "01"
        + "0500000000000000"
        + "60ea000000000000"
        + "e803000000000000"
        + "0300"
        + "616e6e",
    ),
    (
        Joined(5, (Participant("t"), Participant("u", "s"))),
        "07000000"
        + "23000000"
        + HEAD
        + "02"
        + "0500000000000000"
        + "02000000"
        + "0100740000"
        + "010075010073",
    ),
    (
        Decided(5, Action.ABORT, 2),
        "07000000" + "1d000000" + HEAD + "03" + "0500000000000000" + "01" + "0200000000000000",
    ),
    (Ended(5, 3), "07000000" + "1c000000" + HEAD + "04" + "0500000000000000" + "0300000000000000"),
]


def joined(encoded: Encoded) -> bytes:
    data = b"".join(encoded.buffers)
    assert len(data) == encoded.size
    return data


@pytest.mark.parametrize(("change", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes(change: Change, golden: str) -> None:
    """Version 1 of every record is what it was when it was released."""
    data = joined(encode_changes(7, 2, [change]))
    assert data.hex() == golden
    assert list(decode_changes(memoryview(data))) == [CoordinatorEntry(7, 2, change)]


@given(epoch=U64, tcid=st.integers(0, 0xFFFF), changes=st.lists(CHANGES, max_size=6))
def test_there_and_back(epoch: int, tcid: int, changes: list[Change]) -> None:
    """Any changes, in order."""
    body = memoryview(joined(encode_changes(epoch, tcid, changes)))
    entries = list(decode_changes(body))
    assert entries == [CoordinatorEntry(epoch, tcid, change) for change in changes]


def test_each_reader_passes_over_the_others_records() -> None:
    """A block may hold both kinds: bundles' replay and the index see theirs, a coordinator its
    own."""
    own = joined(encode_changes(7, 2, [Ended(1, 2)]))
    topic = joined(encode_topic(epoch=7, topic="t", operation=TopicOperation.CREATE, properties={}))
    body = memoryview(own + topic + own)
    assert len(list(decode_records(body))) == 1
    assert [entry.change for entry in decode_changes(body)] == [Ended(1, 2)] * 2


@given(changes=st.lists(CHANGES, min_size=1, max_size=3), data=st.data())
def test_records_that_are_cut_are_damage(changes: list[Change], data: st.DataObject) -> None:
    """Anywhere but between two records."""
    whole = joined(encode_changes(1, 0, changes))
    ends = {len(joined(encode_changes(1, 0, changes[:count]))) for count in range(len(changes) + 1)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda at: at not in ends))
    with pytest.raises(CorruptData):
        list(decode_changes(memoryview(whole[:cut])))


def test_other_versions_and_operations_are_refused() -> None:
    """A record of a newer component names the versions; an operation nobody knows is damage."""
    data = bytearray(joined(encode_changes(7, 2, [Ended(1, 2)])))
    data[18] = 2
    with pytest.raises(CorruptData, match="version 2"):
        list(decode_changes(memoryview(data)))
    data[18], data[19] = 1, 9
    with pytest.raises(CorruptData, match="does not decode"):
        list(decode_changes(memoryview(data)))


def test_a_name_that_does_not_fit_is_refused() -> None:
    """Before anything is written."""
    with pytest.raises(LimitExceeded):
        encode_changes(1, 0, [Joined(1, (Participant("x" * 0x10000),))])


CHECKPOINT = CoordinatorCheckpoint(
    2,
    7,
    "tx-coordinator-2.0000000000000001",
    LogPosition(3, 4096),
    CoordinatorState(
        9,
        (
            LiveTransaction(
                7, 60_000, 5, "ann", (Participant("t"), Participant("u", "s")), Action.COMMIT
            ),
            LiveTransaction(8, 1, 2, "", ()),
        ),
        (Outcome(6, Action.ABORT, 99, "ann"),),
        42,
    ),
)


def test_golden_checkpoint() -> None:
    """Version 1 of the object is what it was when it was released."""
    data = encode_checkpoint(CHECKPOINT)
    assert data == (
        b'{"epoch":7,"incarnation":"tx-coordinator-2.0000000000000001","kind":"coordinator-checkpoint",'
        b'"live":[[7,60000,5,"ann",[["t",""],["u","s"]],0],[8,1,2,"",[],null]],"next":9,"outcomes":[[6,1,99,"ann"]],'
        b'"position":[3,4096],"seen_ms":42,"tcid":2,"version":1}\ncrc32c=' + data[-9:]
    )
    assert decode_checkpoint(data, "c") == CHECKPOINT


@given(state=STATES)
def test_checkpoints_there_and_back(state: CoordinatorState) -> None:
    """Any state, in any number of pieces; the bytes are those of a document that is made at
    once."""
    checkpoint = CoordinatorCheckpoint(0, 1, "i", LogPosition(0, 0), state)
    data = encode_checkpoint(checkpoint)
    assert decode_checkpoint(data, "c") == checkpoint
    body = decode_document("coordinator-checkpoint", 1, data, "c")
    assert encode_document("coordinator-checkpoint", 1, body) == data


def test_many_transactions_make_many_pieces() -> None:
    """None of them large, and the whole reads back."""
    live = tuple(
        LiveTransaction(least, 60_000, 5, "ann", (Participant("t"),)) for least in range(1700)
    )
    outcomes = tuple(Outcome(least, Action.COMMIT, least, "") for least in range(5000, 6200))
    checkpoint = CoordinatorCheckpoint(
        0, 1, "i", LogPosition(0, 0), CoordinatorState(9000, live, outcomes)
    )
    pieces = list(checkpoint_pieces(checkpoint))
    assert len(pieces) == 3 + 4 + 3
    assert max(map(len, pieces)) < 32 << 10
    assert decode_checkpoint(encode_checkpoint(checkpoint), "c") == checkpoint


def test_a_damaged_checkpoint_is_refused() -> None:
    """A flipped bit, and contents of another shape."""
    data = bytearray(encode_checkpoint(CHECKPOINT))
    data[10] ^= 1
    with pytest.raises(CorruptData):
        decode_checkpoint(bytes(data), "c")
