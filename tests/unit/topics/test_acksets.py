"""Ack sets convert as Java's BitSet words do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.topics.acksets import mask_of_words, words_of_mask


def test_words_are_little_endian_and_signed() -> None:
    """Bit 63 of a word is the sign of protobuf's int64; absent words are zero."""
    assert words_of_mask(0b101) == (5,)
    assert words_of_mask(1 << 63) == (-(1 << 63),)
    assert words_of_mask((1 << 64) | 1) == (1, 1)
    assert words_of_mask(0) == ()
    assert mask_of_words((-1, 1)) == (1 << 65) - 1
    assert mask_of_words(((1 << 64) - 1, 1, 0, 0)) == (1 << 65) - 1


def test_a_long_ack_set_costs_what_its_words_cost() -> None:
    """A peer says how many there are: a hundred thousand are a matter of milliseconds (word by word into one number it was seconds)."""
    words = tuple(range(1, 100_001))
    assert words_of_mask(mask_of_words(words)) == words


@given(st.integers(0, (1 << 200) - 1))
def test_masks_survive_the_wire(mask: int) -> None:
    """Conversion is reversible, and every word fits an int64."""
    words = words_of_mask(mask)
    assert mask_of_words(words) == mask
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
