"""Level-1 segments: golden bytes, reading against a model, damage noticed."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import CorruptData
from magnetar.storage.segments.format import (
    BLOCK_BYTES_MAX,
    BLOCK_HEADER_BYTES,
    BLOCK_ROWS_MAX,
    HAS_KEY,
    IS_BATCH,
    IS_DECIDED,
    Block,
    KeyColumns,
    Row,
    encode_block,
)
from magnetar.storage.segments.segment import SegmentReader, SegmentWriter

GOLDEN = (
    "4d53424b0200000003000000d00000000300000000000000000000000000000001000000000000000d000000000000000000000000000000"
    "00000000e1522a6c00000000070000000d0000000d0000000000000001000000010000000100000003000000000000000300000000000000"
    "09000000000000000000000000000000050000000000000000000000000000006400000000000000ffffffffffffffff3200000000000000"
    "c800000000000000c900000000000000ca000000000000002c010000000000002d010000000000002e010000000000000100000007000000"
    "0100000000000000010000000200000001000000000000006b000000000000000e0166697273747365636f6e640000001e00000001000000"
    "000000000000000010010000030000000300000000000000000000000000000009000000000000000000000000000000ffffffffffffffff"
    "6400000000000000c800000000000000ca000000000000002c010000000000002e0100000000000009000000000000000d00000000000000"
    "00000000000000007b22746f706963223a2270657273697374656e743a2f2f612f622f63227d10010000000000009e000000b0bfd9040300"
    "0000000000000900000000000000020000005611a9724d41474e53454700"
)
GOLDEN_INDEX = "0300000001000000000000005584386300000000010000000100000001000000050000000600000005000000000000006b00000000000000"
ROWS = [
    Row(3, 0, 100, 200, 300, 1, 0, b"k", b"\x0e\x01first"),
    Row(3, 5, -1, 201, 301, 7, IS_BATCH, None, memoryview(b"second")),
    Row(9, 0, 50, 202, 302, 1, 0, b"", b""),
]


def written(rows: list[Row]) -> bytes:
    writer = SegmentWriter({"topic": "persistent://a/b/c"})
    parts = []
    for row in rows:
        writer.add(row)
        parts += writer.take()
    rest, _ = writer.finish()
    data = b"".join(parts + rest)
    assert len(data) == writer.length
    return data


def reader(data: bytes, cached: int = 4) -> SegmentReader:
    view = memoryview(data)
    return SegmentReader(
        lambda offset, length: view[offset : offset + length], len(data), "s", cached
    )


def test_golden_segment() -> None:
    """Version 2 never changes."""
    assert written(ROWS).hex() == GOLDEN


def test_columns_are_arrow_buffers() -> None:
    """Offsets are int32 from 0, all columns begin at multiples of 8, absent and empty keys
    differ."""
    data, _, entry = encode_block(ROWS, 0)
    block = Block.decode(data, "s")
    assert list(block.payload_offsets) == [0, 7, 13, 13]
    assert list(block.key_offsets) == [0, 1, 1, 1]
    assert bytes(block.payloads) == b"\x0e\x01firstsecond"
    assert [block.key(row) for row in range(3)] == [b"k", None, b""]
    assert list(block.flags) == [HAS_KEY, IS_BATCH, HAS_KEY]
    assert list(block.event_times) == [100, -1, 50]
    assert (
        entry.event_time_min,
        entry.event_time_max,
        entry.messages,
        entry.bytes,
        entry.rows,
    ) == (-1, 100, 9, 13, 3)
    assert BLOCK_HEADER_BYTES % 8 == len(data) % 8 == 0
    assert data.index(struct.pack("<3q", 3, 3, 9)) % 8 == 0


POSITIONS = st.sets(st.tuples(st.integers(1, 4), st.integers(0, 30)), min_size=1, max_size=60).map(
    sorted
)


@pytest.mark.slow
@settings(deadline=None)
@given(POSITIONS)
def test_find_floor_and_ceiling_agree_with_a_model(positions: list[tuple[int, int]]) -> None:
    """With holes, several ledgers and several blocks."""
    size = BLOCK_BYTES_MAX // 8
    rows = [
        Row(ledger, entry, 0, 0, 0, 1, 0, None, bytes([ledger, entry]).ljust(size, b"x"))
        for ledger, entry in positions
    ]
    found = reader(written(rows), 2)

    def position(place: tuple[int, int] | None) -> tuple[int, int] | None:
        if place is None:
            return None
        block = found.block(place[0])
        return block.ledgers[place[1]], block.entries[place[1]]

    for ledger in range(6):
        for entry in range(-1, 33, 2):
            asked = (ledger, entry)
            above, below = bisect_left(positions, asked), bisect_right(positions, asked) - 1
            assert position(found.ceiling(*asked)) == (
                positions[above] if above < len(positions) else None
            )
            assert position(found.floor(*asked)) == (positions[below] if below >= 0 else None)
            payload = found.find(*asked)
            assert (payload is not None) == (asked in positions)
            assert payload is None or bytes(payload[:2]) == bytes(asked)
    assert [
        row for block in found.blocks() for row in zip(block.ledgers, block.entries, strict=True)
    ] == positions


def test_blocks_keep_their_limits() -> None:
    """Rows and bytes are bounded; an entry beyond a block gets one of its own."""
    rows = [Row(1, entry, 0, 0, 0, 1, 0, None, b"x") for entry in range(BLOCK_ROWS_MAX + 1)]
    rows.append(Row(2, 0, 0, 0, 0, 1, 0, None, bytes(BLOCK_BYTES_MAX * 2)))
    rows.append(Row(2, 1, 0, 0, 0, 1, 0, None, b"y"))
    footer = reader(written(rows)).footer
    assert [block.rows for block in footer.blocks] == [BLOCK_ROWS_MAX, 1, 1, 1]
    assert (footer.rows, footer.messages, footer.description) == (
        len(rows),
        len(rows),
        {"topic": "persistent://a/b/c"},
    )


def test_every_damaged_byte_is_found() -> None:
    data = written(ROWS)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x04
        with pytest.raises(CorruptData):
            reader(bytes(damaged)).find(3, 0)
    for length in range(48, len(data)):
        with pytest.raises(CorruptData):
            reader(data[:length])


def test_the_key_index_repeats_what_decides_about_compaction() -> None:
    """Of blocks whose rows are all decided keys and flags are read without the blocks; every
    damaged byte of them is found; other blocks are not in the index."""
    decided = [row._replace(flags=row.flags | IS_DECIDED) for row in ROWS]
    assert encode_block(decided, 0)[1].hex() == GOLDEN_INDEX
    assert encode_block([*decided[:-1], ROWS[-1]._replace(flags=0)], 0)[1] == b""
    writer = SegmentWriter({})
    for row in decided:
        writer.add(row)
    pieces, footer = writer.finish()
    data = b"".join(pieces)
    stored = 0
    for entry, at in zip(footer.blocks, footer.index_offsets, strict=True):
        block = Block.decode(data[entry.offset :][: entry.length], "s")
        part = data[at : at + entry.index_bytes]
        columns = KeyColumns.decode(part, "s")
        assert (list(columns.flags), list(columns.key_offsets), bytes(columns.keys)) == (
            list(block.flags),
            list(block.key_offsets),
            bytes(block.keys),
        )
        stored += len(columns.flags)
        for place in range(len(part)):
            damaged = bytearray(part)
            damaged[place] ^= 0x04
            for wrong in (damaged, part[:place]):
                with pytest.raises(CorruptData):
                    KeyColumns.decode(wrong, "s")
    assert stored == len(ROWS)


def test_rows_out_of_order_are_a_programmers_error() -> None:
    writer = SegmentWriter({})
    writer.add(ROWS[1])
    with pytest.raises(AssertionError):
        writer.add(ROWS[0])
