"""Ack sets convert as Java's BitSet words do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


class Counted(int):
    """A number that counts the bits which operations on it read and write, wherever their
    results go."""

    bits = 0

    def _result(self, value: int, *read: int) -> Counted:
        Counted.bits += sum(number.bit_length() for number in (self, value, *read))
        return Counted(value)

    def __and__(self, other: int) -> Counted:
        return self._result(int(self) & other, other)

    def __or__(self, other: int) -> Counted:
        return self._result(int(self) | other, other)

    def __add__(self, other: int) -> Counted:
        return self._result(int(self) + other, other)

    def __lshift__(self, count: int) -> Counted:
        return self._result(int(self) << count)

    def __rshift__(self, count: int) -> Counted:
        return self._result(int(self) >> count)

    __rand__, __ror__, __radd__ = __and__, __or__, __add__


def bits_handled(convert: Callable[[], object]) -> int:
    before = Counted.bits
    convert()
    return Counted.bits - before


def word_by_word(words: Sequence[int]) -> int:
    """How an ack set becomes a mask at the square of its length."""
    mask = 0
    for index, word in enumerate(words):
        mask |= (word & (1 << 64) - 1) << 64 * index
    return mask


def test_a_long_ack_set_costs_what_its_words_cost() -> None:
    """A peer says how many there are: each is looked at a few times (word by word into one
    number it would be the square of their count)."""
    words = [Counted((1 << 63) + number) for number in range(1, 1001)]
    signed = tuple(word - (1 << 64) for word in map(int, words))
    mask = mask_of_words(words)
    assert (mask, words_of_mask(mask)) == (word_by_word(signed), signed)
    assert bits_handled(lambda: mask_of_words(words)) <= 4 * 64 * len(words)
    assert bits_handled(lambda: words_of_mask(Counted(mask))) <= 4 * mask.bit_length()
    assert bits_handled(lambda: word_by_word(words)) > 64 * len(words) ** 2, "this is counted"


@given(st.integers(0, (1 << 200) - 1))
def test_masks_survive_the_wire(mask: int) -> None:
    """Conversion is reversible, and every word fits an int64."""
    words = words_of_mask(mask)
    assert mask_of_words(words) == mask
    assert all(-(1 << 63) <= word < 1 << 63 for word in words)
