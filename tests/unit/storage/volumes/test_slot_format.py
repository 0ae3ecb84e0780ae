"""The bytes of a slot's header, and that a header of another place or a damaged one never
passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import CorruptData
from magnetar.storage.log.blocks import block_seed
from magnetar.storage.volumes.slot_format import (
    SLOT_HEADER_BYTES,
    SlotHeader,
    SlotKind,
    decode_slot_header,
    encode_slot_header,
)

SEED = block_seed("broker-0.00000000000000a1", 3)
DATA = SlotHeader(SlotKind.DATA, 3, 7, 4096, 1234, 0x0123456789ABCDEF0123456789ABCDEF)
GOLDEN_DATA = (
    "4d41474e534c4f540100010003000000070000000010000000000000d2040000"
    "00000000efcdab8967452301efcdab89674523010000000000000000c572e7ff"
)
GOLDEN_FENCE = (
    "4d41474e534c4f54010002000400000000000000000000000000000000000000"
    "0000000001000000000000000000000000000000000000000000000016ff4599"
)
HEADERS = st.builds(
    SlotHeader,
    st.sampled_from(SlotKind),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 128) - 1),
)


def test_version_1_is_written_as_it_always_was() -> None:
    fence = SlotHeader(SlotKind.FENCE, 4, 0, 0, 0, 1)
    assert encode_slot_header(SEED, DATA).hex() == GOLDEN_DATA
    assert (
        encode_slot_header(block_seed("broker-0.00000000000000a1", 4), fence).hex() == GOLDEN_FENCE
    )


@given(HEADERS)
def test_what_is_written_is_read(header: SlotHeader) -> None:
    data = encode_slot_header(SEED, header)
    assert len(data) == SLOT_HEADER_BYTES
    assert decode_slot_header(SEED, data + b"what follows", "key") == header


@given(st.integers(0, SLOT_HEADER_BYTES - 1), st.integers(1, 255))
def test_a_flipped_byte_is_noticed(at: int, flip: int) -> None:
    data = bytearray(encode_slot_header(SEED, DATA))
    data[at] ^= flip
    with pytest.raises(CorruptData, match="key"):
        decode_slot_header(SEED, data, "key")


def test_a_slot_of_another_file_is_noticed() -> None:
    with pytest.raises(CorruptData, match="not a slot of this log file"):
        decode_slot_header(
            block_seed("broker-0.00000000000000a1", 4), encode_slot_header(SEED, DATA), "key"
        )
    with pytest.raises(CorruptData, match="not a slot"):
        decode_slot_header(SEED, b"short", "key")
