"""Acknowledgements of single messages inside a batch.

Owns: the conversion between the protocol's ack sets and bit masks. Imports: nothing. Pure.
Source: field `MessageIdData.ack_set`: little-endian 64-bit words, bit 1 = not yet acknowledged, as Java's BitSet: absent words are
zero.
Invariant: a mask is a non-negative int whose bit i is 1 while message i of the batch is unacknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable

_WORD = (1 << 64) - 1
_SIGN = 1 << 63


def mask_of_words(words: Iterable[int]) -> int:
    """The mask of an ack set; words may be signed (protobuf's int64) or unsigned."""
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & _WORD) << (64 * index)
    return mask


def words_of_mask(mask: int) -> tuple[int, ...]:
    """The ack set of a mask as signed 64-bit words, without trailing zero words."""
    words: list[int] = []
    while mask:
        word = mask & _WORD
        words.append(word - (1 << 64) if word & _SIGN else word)
        mask >>= 64
    return tuple(words)
