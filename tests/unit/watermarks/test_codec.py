"""Control records: golden bytes, all values there and back, segments, damage noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData, LimitExceeded
from magnetar.transactions.ids import TxnId
from magnetar.watermarks import codec
from magnetar.watermarks.codec import Decoder, encode
from magnetar.watermarks.records import (
    EVENT_MS_MAX,
    PRODUCER_BYTES_MAX,
    Anchor,
    Assertion,
    End,
    Hold,
    Idle,
    Record,
    Snapshot,
)
from magnetar.watermarks.timeline import Anchored

AT = Anchor(0x1122334455, 7, 3)
HEAD = "5544332211000000" + "0700000000000000" + "03000000"
TXN = TxnId(5, 6)
TXN_HEX = "0500000000000000" + "0600000000000000"
NAME = "0200" + b"p1".hex()
SNAPSHOT = Snapshot((("p1", 9),), None, ((TXN, "p1", None),), ((TXN, "q", 4), (TXN, "r", None)))
GOLDEN: dict[str, tuple[Record, str]] = {
    "W_SET": (Assertion("p1", 0x0102), f"0101 0000 {HEAD} 0201000000000000 {NAME}"),
    "W_SET in a transaction": (
        Assertion("p1", 1, TXN),
        f"0101 0100 {HEAD} 0100000000000000 {TXN_HEX} {NAME}",
    ),
    "W_IDLE": (Idle("p1"), f"0102 0000 {HEAD} {NAME}"),
    "W_HOLD": (Hold("p1", TXN), f"0104 0100 {HEAD} {TXN_HEX} {NAME}"),
    "W_END, committed": (End(TXN, True), f"0105 0300 {HEAD} {TXN_HEX}"),
    "W_END, aborted": (End(TXN, False), f"0105 0100 {HEAD} {TXN_HEX}"),
    "W_SNAPSHOT": (
        SNAPSHOT,
        f"0103 0000 {HEAD} 00000000 01000000 {{crc}}"
        " 01000000 01000000 02000000 00 0000000000000000"
        f" 0900000000000000 {NAME}"
        f" {TXN_HEX} 00 0000000000000000 {NAME}"
        f" {TXN_HEX} 01 0400000000000000 0100 71"
        f" {TXN_HEX} 00 0000000000000000 0100 72",
    ),
}

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
TIMES = st.integers(0, EVENT_MS_MAX)
U64 = st.integers(0, (1 << 64) - 1)
TXNS = st.builds(TxnId, U64, U64)
ELEMENTS = st.lists(
    st.tuples(TXNS, NAMES, st.none() | TIMES), max_size=6, unique_by=lambda one: one[:2]
).map(tuple)
SNAPSHOTS = st.builds(
    Snapshot,
    st.dictionaries(NAMES, TIMES, max_size=6).map(lambda found: tuple(found.items())),
    st.none() | TIMES,
    ELEMENTS,
    ELEMENTS,
)
RECORDS = st.one_of(
    st.builds(Assertion, NAMES, TIMES, st.none() | TXNS),
    st.builds(Idle, NAMES, st.none() | TXNS),
    st.builds(Hold, NAMES, TXNS),
    st.builds(End, TXNS, st.booleans()),
    SNAPSHOTS,
)
PLACES = st.just((-1, -1)) | st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 40))
ANCHORS = st.builds(lambda place, at: Anchor(*place, at), PLACES, st.integers(0, (1 << 32) - 1))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name: str) -> None:
    record, golden = GOLDEN[name]
    (data,) = encode(Anchored(AT, record))
    expected = golden.format(crc=data[32:36].hex()).replace(" ", "")
    assert data.hex() == expected
    assert Decoder().feed(data) == (Anchored(AT, record), False)


def test_golden_checksum() -> None:
    (data,) = encode(Anchored(AT, SNAPSHOT), horizon=True)
    assert data[:4].hex() == "01030400"
    assert data[32:36].hex() == "aeb09fe5"
    assert Decoder().feed(data) == (Anchored(AT, SNAPSHOT), True)


@given(ANCHORS, RECORDS)
def test_every_record_comes_back(anchor: Anchor, record: Record) -> None:
    (data,) = encode(Anchored(anchor, record))
    assert Decoder().feed(data) == (Anchored(anchor, record), False)


@given(ANCHORS, RECORDS, st.data())
def test_a_record_that_is_cut_off_is_noticed(
    anchor: Anchor, record: Record, data: st.DataObject
) -> None:
    (whole,) = encode(Anchored(anchor, record))
    with pytest.raises(CorruptData):
        Decoder().feed(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CorruptData):
        Decoder().feed(whole + b"\0")


@given(ANCHORS, SNAPSHOTS, st.data())
def test_a_flipped_bit_of_a_snapshot_is_noticed(
    anchor: Anchor, snapshot: Snapshot, data: st.DataObject
) -> None:
    (whole,) = encode(Anchored(anchor, snapshot))
    flipped = bytearray(whole)
    flipped[data.draw(st.integers(24, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = Decoder().feed(flipped)
    except CorruptData:
        return
    assert found is None, "it is a segment of more than there are"


@given(st.binary(max_size=80))
def test_random_bytes_give_a_record_or_corrupt_data(data: bytes) -> None:
    for prefix in (b"", b"\x01\x01", b"\x01\x03\0\0" + b"\0" * 20):
        try:
            Decoder().feed(prefix + data)
        except CorruptData:
            continue


@pytest.mark.parametrize(
    ("hexadecimal", "says"),
    [
        ("02010000" + HEAD, "version 2"),
        ("01090000" + HEAD, "not a valid Kind"),
        ("01020200" + HEAD + NAME, "flags"),
        ("01020000" + "ff" * 8 + "00" * 12 + NAME, "no entry"),
        ("01010000" + HEAD + "ff" * 8 + NAME, "out of range"),
        ("01040000" + HEAD + NAME, "names no transaction"),
        ("01020000" + HEAD + "0000", "name of 0 bytes"),
        ("01020000" + HEAD + "0100ff", "decode"),
        ("01030000" + HEAD + "010000000200000000000000aa", "follows no segment"),
        ("01030000" + HEAD + "00000000ffffff7f00000000aa", "segments"),
    ],
)
def test_damage_is_named(hexadecimal: str, says: str) -> None:
    with pytest.raises(CorruptData, match=says):
        Decoder().feed(bytes.fromhex(hexadecimal))


def large(producers: int = 10_000) -> Anchored:
    return Anchored(
        AT, Snapshot(tuple((f"a-producer-of-some-length-{at:05}", at) for at in range(producers)))
    )


def test_a_large_snapshot_comes_in_segments() -> None:
    segments = encode(large())
    assert len(segments) == 4
    assert all(len(segment) <= codec.SEGMENT_BYTES + 36 for segment in segments)
    decoder = Decoder()
    assert [decoder.feed(segment) for segment in segments[:-1]] == [None, None, None]
    assert decoder.feed(segments[-1]) == (large(), False)


def test_a_snapshot_that_a_crash_cut_off_is_dropped() -> None:
    """Another record or another snapshot follows; the rest of the first one never does."""
    decoder, segments = Decoder(), encode(large())
    idle = Anchored(AT, Idle("p"))
    assert decoder.feed(segments[0]) is None
    assert decoder.feed(encode(idle)[0]) == (idle, False)
    with pytest.raises(CorruptData, match="follows no segment"):
        decoder.feed(segments[1])
    found = [decoder.feed(segment) for segment in segments[:2] + segments]
    assert found[-1] == (large(), False)


def test_segments_of_two_snapshots_do_not_mix() -> None:
    decoder, other = Decoder(), encode(large(9_999))
    decoder.feed(encode(large())[0])
    with pytest.raises(CorruptData, match="follows no segment"):
        decoder.feed(other[1])


@pytest.mark.parametrize(
    "record",
    [
        Assertion("", 1),
        Assertion("p" * (PRODUCER_BYTES_MAX + 1), 1),
        Assertion("p", -1),
        Assertion("p", EVENT_MS_MAX + 1),
        Idle("ü" * (PRODUCER_BYTES_MAX // 2 + 1)),
    ],
)
def test_what_no_record_holds_is_refused(record: Record) -> None:
    with pytest.raises(LimitExceeded):
        encode(Anchored(AT, record))
