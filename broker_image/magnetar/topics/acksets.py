"""Acknowledgements of single messages inside a batch.

Owns: the conversion between the protocol's ack sets and bit masks. Imports: struct. Pure. Source:
field `MessageIdData.ack_set`: little-endian 64-bit words, bit 1 = not yet acknowledged, as Java's
BitSet: absent words are zero. Invariant: a mask is a non-negative int whose bit i is 1 while
message i of the batch is unacknowledged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_WORD = (1 << 64) - 1
_WORD_BYTES = 8


def mask_of_words(words: Sequence[int]) -> int:
    """The mask of an ack set; words may be signed (protobuf's int64) or unsigned."""
    if len(words) == 1:
        return words[0] & _WORD
    # Word by word into one number would cost the square of their count, and a peer says how many
    # there are.
    return int.from_bytes(
        struct.pack(f"<{len(words)}Q", *[word & _WORD for word in words]), "little"
    )


def words_of_mask(mask: int) -> tuple[int, ...]:
    """The ack set of a mask as signed 64-bit words, without trailing zero words."""
    count = -(-mask.bit_length() // 64)
    return struct.unpack(f"<{count}q", mask.to_bytes(_WORD_BYTES * count, "little"))
