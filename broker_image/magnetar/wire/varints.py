"""Varints of the protobuf encoding, one or a window of 2^14 at once.

Owns: their bytes. Imports: nothing. Pure. Within a window all numbers have equally many bytes, and
share those above the low 14 bits; the low ones come from a table.
"""

from __future__ import annotations

from typing import NamedTuple

WINDOW_BITS = 14
WINDOW = 1 << WINDOW_BITS


def varint(value: int) -> bytes:
    """The encoding of an unsigned integer."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint_value(encoded: bytes) -> int:
    """Inverse of `varint`."""
    value = 0
    for byte in reversed(encoded):
        value = value << 7 | byte & 0x7F
    return value


WHOLE = [varint(value) for value in range(WINDOW)]
_LOW = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(WINDOW)]


class Window(NamedTuple):
    """Varints of one length: that of v in [first, end) is `low[v % WINDOW] + high`."""

    first: int
    end: int
    low: list[bytes]
    high: bytes

    def numbers(self, first: int, count: int) -> list[bytes]:
        """The low bytes of `count` numbers from `first` on, all within the window."""
        at = first & (WINDOW - 1)
        return self.low[at : at + count]


def window_of(value: int) -> Window:
    if value < 0x80:
        return Window(0, 0x80, WHOLE, b"")
    if value < WINDOW:
        return Window(0x80, WINDOW, WHOLE, b"")
    first = value >> WINDOW_BITS << WINDOW_BITS
    return Window(first, first + WINDOW, _LOW, varint(value >> WINDOW_BITS))
