"""The log's bytes: golden ones, all values there and back, damage noticed."""

from __future__ import annotations

from array import array

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData, LimitExceeded
from magnetar.storage.log.blocks import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FileHeader,
    block_is_intact,
    block_seed,
    decode_block_header,
    decode_file_header,
    encode_block_header,
    encode_file_header,
)
from magnetar.storage.log.format import (
    CursorOperation,
    CursorRecord,
    EntriesRecord,
    Record,
    RecordType,
    ReleaseRecord,
    TermRecord,
    TopicOperation,
    TopicRecord,
    decode_records,
    encode_cursor,
    encode_entries,
    encode_release,
    encode_term,
    encode_topic,
    encode_watermark,
)
from magnetar.storage.log.framing import RECORD_HEADER_BYTES, Encoded
from magnetar.storage.log.watermark_format import WatermarkRecord

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(max_size=20)
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=3)


def joined(encoded: Encoded) -> bytes:
    data = b"".join(encoded.buffers)
    assert len(data) == encoded.size
    return data


def only_record(encoded: Encoded) -> Record:
    [(at, record)] = decode_records(memoryview(joined(encoded)))
    assert at == RECORD_HEADER_BYTES
    return record


def test_golden_file_header() -> None:
    """Version 1 of the file's first page never changes."""
    page = encode_file_header(FileHeader("broker-0.5f3a9c1e77d0aa12", 7, 1_700_000_000_000))
    fixed = "4d41474e4c4f47000100010000100000070000000068e5cf8b0100001900"
    assert page[:55].hex() == fixed + b"broker-0.5f3a9c1e77d0aa12".hex()
    assert len(page) == FILE_HEADER_BYTES
    assert not any(page[55:-4])
    assert int.from_bytes(page[-4:], "little") == crc32c(page[:-4]) == 0x400424BA
    assert decode_file_header(page) == FileHeader("broker-0.5f3a9c1e77d0aa12", 7, 1_700_000_000_000)


def test_golden_block() -> None:
    """Version 1 of a block with one record of each type never changes."""
    body = b"".join(map(joined, golden_records()))
    header = encode_block_header(block_seed("broker-0.5f", 3), 4096, 9, 1_700_000_000_000, 5, body)
    assert (header + body).hex() == GOLDEN_BLOCK
    assert len(header) == BLOCK_HEADER_BYTES


def test_golden_watermark_record() -> None:
    """Version 1 of a control record's frame never changes."""
    encoded = encode_watermark(epoch=5, topic=b"persistent://a/b/c", control=b"\x01\x02")
    assert joined(encoded).hex() == (
        "0900000020000000" + "0500000000000000" + "12000000" + b"persistent://a/b/c".hex() + "0102"
    )
    assert only_record(encoded) == WatermarkRecord(5, "persistent://a/b/c", b"\x01\x02")
    with pytest.raises(CorruptData):
        list(decode_records(memoryview(bytes.fromhex("090000000c000000" + "00" * 8 + "05000000"))))


def golden_records() -> list[Encoded]:
    return [
        encode_entries(
            epoch=5,
            ledger=11,
            first_entry=2,
            append_ms=1_700_000_000_001,
            topic=b"persistent://a/b/c",
            producer=b"p",
            message_counts=[1, 3],
            sequences=[8, 2**64 - 1],
            entries=[b"\x0e\x01one", memoryview(b"two")],
        ),
        encode_cursor(
            epoch=5,
            topic="persistent://a/b/c",
            subscription="s",
            operation=CursorOperation.ACKNOWLEDGE,
            mark_delete=(11, -1),
            ranges=[(11, 4, 6)],
            partial=[(11, 8, (-2,))],
            properties={"k": "v"},
        ),
        encode_topic(
            epoch=5, topic="persistent://a/b/c", operation=TopicOperation.CREATE, properties={}
        ),
        encode_release(epoch=5, bundle="a/b/0x00000000_0x40000000", state=b"{}"),
        encode_term(epoch=5, bundle="a/b/0x00000000_0x40000000", state=b'{"schema":1}'),
    ]


GOLDEN_BLOCK = (
    "4d424c4b3582a6628f0100000500000009000000000000000068e5cf8b010000001000000000000001000000630000000500000000000000"
    "0b0000000000000002000000000000000168e5cf8b010000020000001200010070657273697374656e743a2f2f612f622f63700500000003"
    "00000001000000030000000800000000000000ffffffffffffffff0e016f6e6574776f020000008000000005000000000000000b00000000"
    "000000ffffffffffffffff020112000100000001000000040000000900000070657273697374656e743a2f2f612f622f63730b0000000000"
    "0000040000000000000006000000000000000b0000000000000008000000000000000100000000000000feffffffffffffff7b226b223a22"
    "76227d03000000240000000500000000000000010012000200000070657273697374656e743a2f2f612f622f637b7d040000002b00000005"
    "000000000000001900000002000000612f622f307830303030303030305f307834303030303030307b7d0500000035000000050000000000"
    "0000190000000c000000612f622f307830303030303030305f307834303030303030307b22736368656d61223a317d"
)


def test_decoding_the_golden_block_gives_the_values() -> None:
    body = memoryview(b"".join(map(joined, golden_records())))
    entries, cursor, topic, release, term = (record for _, record in decode_records(body))
    assert isinstance(entries, EntriesRecord)
    assert [bytes(entry) for entry in entries.entries()] == [b"\x0e\x01one", b"two"]
    assert (entries.epoch, entries.ledger, entries.first_entry, entries.append_ms) == (
        5,
        11,
        2,
        1_700_000_000_001,
    )
    assert (entries.topic, entries.producer) == ("persistent://a/b/c", "p")
    assert (list(entries.message_counts), list(entries.sequences)) == ([1, 3], [8, 2**64 - 1])
    assert cursor == CursorRecord(
        5,
        "persistent://a/b/c",
        "s",
        CursorOperation.ACKNOWLEDGE,
        (11, -1),
        ((11, 4, 6),),
        ((11, 8, (-2,)),),
        {"k": "v"},
    )
    assert topic == TopicRecord(5, "persistent://a/b/c", TopicOperation.CREATE, {})
    assert release == ReleaseRecord(5, "a/b/0x00000000_0x40000000", b"{}")
    assert term == TermRecord(5, "a/b/0x00000000_0x40000000", b'{"schema":1}')


def test_records_of_some_types_are_found_without_decoding_the_others() -> None:
    body = memoryview(b"".join(map(joined, golden_records())))
    assert [
        record for _, record in decode_records(body, kinds={RecordType.RELEASE, RecordType.TERM})
    ] == [
        ReleaseRecord(5, "a/b/0x00000000_0x40000000", b"{}"),
        TermRecord(5, "a/b/0x00000000_0x40000000", b'{"schema":1}'),
    ]


@given(
    U64,
    U64,
    U64,
    U64,
    TEXT,
    TEXT,
    st.lists(st.tuples(st.binary(max_size=50), U32, U64), min_size=1, max_size=20),
)
def test_entries_come_back(
    epoch: int,
    ledger: int,
    first: int,
    ms: int,
    topic: str,
    producer: str,
    rows: list[tuple[bytes, int, int]],
) -> None:
    entries, counts, sequences = (
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
    )
    encoded = encode_entries(
        epoch=epoch,
        ledger=ledger,
        first_entry=first,
        append_ms=ms,
        topic=topic.encode(),
        producer=producer.encode(),
        message_counts=counts,
        sequences=sequences,
        entries=entries,
    )
    record = only_record(encoded)
    assert isinstance(record, EntriesRecord)
    assert [bytes(entry) for entry in record.entries()] == entries
    assert (record.epoch, record.ledger, record.first_entry, record.append_ms) == (
        epoch,
        ledger,
        first,
        ms,
    )
    assert (record.topic, record.producer) == (topic, producer)
    assert (record.message_counts, record.sequences) == (array("I", counts), array("Q", sequences))
    assert joined(encoded)[RECORD_HEADER_BYTES + encoded.entries_offset :] == b"".join(entries)


@given(
    st.sampled_from(CursorOperation),
    st.tuples(I64, I64),
    st.lists(st.tuples(I64, I64, I64), max_size=5).map(tuple),
    st.lists(st.tuples(I64, I64, st.lists(I64, max_size=4).map(tuple)), max_size=3).map(tuple),
    st.none() | PROPERTIES,
)
def test_cursors_come_back(
    operation: CursorOperation,
    mark: tuple[int, int],
    ranges: tuple[tuple[int, int, int], ...],
    partial: tuple[tuple[int, int, tuple[int, ...]], ...],
    properties: dict[str, str] | None,
) -> None:
    encoded = encode_cursor(
        epoch=1,
        topic="t",
        subscription="größe",
        operation=operation,
        mark_delete=mark,
        ranges=ranges,
        partial=partial,
        properties=properties,
    )
    assert only_record(encoded) == CursorRecord(
        1, "t", "größe", operation, mark, ranges, partial, properties
    )


@given(U64, TEXT, st.sampled_from(TopicOperation), PROPERTIES, st.binary(max_size=30))
def test_topics_releases_and_terms_come_back(
    epoch: int, name: str, operation: TopicOperation, properties: dict[str, str], state: bytes
) -> None:
    assert only_record(
        encode_topic(epoch=epoch, topic=name, operation=operation, properties=properties)
    ) == TopicRecord(epoch, name, operation, properties)
    assert only_record(encode_release(epoch=epoch, bundle=name, state=state)) == ReleaseRecord(
        epoch, name, state
    )
    assert only_record(encode_term(epoch=epoch, bundle=name, state=state)) == TermRecord(
        epoch, name, state
    )


def test_every_flipped_bit_of_a_block_is_found() -> None:
    """No single bit of header or body can change without notice."""
    body = b"".join(map(joined, golden_records()))
    seed = block_seed("i", 0)
    block = encode_block_header(seed, 4096, 0, 1, 4, body) + body
    for bit in range(len(block) * 8):
        damaged = bytearray(block)
        damaged[bit // 8] ^= 1 << bit % 8
        view = memoryview(damaged)
        header = decode_block_header(view, 0, 4096)
        assert header is None or not block_is_intact(view, 0, header, seed), bit


@pytest.mark.parametrize(
    ("incarnation", "number", "offset"), [("j", 0, 4096), ("i", 1, 4096), ("i", 0, 8192)]
)
def test_a_block_of_another_place_is_not_accepted(
    incarnation: str, number: int, offset: int
) -> None:
    """Stale bytes of a reused file, of another file or of another offset never pass."""
    body = joined(golden_records()[0])
    view = memoryview(encode_block_header(block_seed("i", 0), 4096, 0, 1, 1, body) + body)
    header = decode_block_header(view, 0, offset)
    assert header is None or not block_is_intact(view, 0, header, block_seed(incarnation, number))


def test_an_unknown_record_type_is_an_error() -> None:
    data = bytearray(joined(golden_records()[2]))
    data[0] = 99
    with pytest.raises(CorruptData, match="type 99"):
        list(decode_records(memoryview(data)))


@given(st.integers(0, 4), st.data())
def test_a_record_that_is_cut_short_never_crashes_the_decoder(
    which: int, data: st.DataObject
) -> None:
    """Whatever length the header claims, the answer is CorruptData or a record."""
    whole = joined(golden_records()[which])
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    if len(cut) >= RECORD_HEADER_BYTES:
        cut = cut[:4] + (len(cut) - RECORD_HEADER_BYTES).to_bytes(4, "little") + cut[8:]
    with pytest.raises(CorruptData):
        list(decode_records(memoryview(cut)))


@pytest.mark.parametrize("at", [0, 8, 12, 16, 100, 4095])
def test_a_damaged_file_header_is_refused(at: int) -> None:
    page = bytearray(encode_file_header(FileHeader("i", 0, 0)))
    page[at] ^= 1
    with pytest.raises(CorruptData):
        decode_file_header(page)


def test_a_name_beyond_the_format_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="65535"):
        encode_topic(epoch=1, topic="x" * 65536, operation=TopicOperation.CREATE, properties={})
