"""Arrays of fixed-width numbers as the formats store them.

Owns: the conversion between number sequences and little-endian bytes. Imports: the standard
library. Pure. Invariant: the bytes are the same on every machine.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

from magnetar.storage.volumes.volume import Buffer

U32 = "I"
U64 = "Q"
I32 = "i"
I64 = "q"

_SWAPPED = sys.byteorder == "big"
assert array(U32).itemsize == 4, "this platform has no 32-bit unsigned int"
assert array(U64).itemsize == 8, "this platform has no 64-bit unsigned long long"


def packed(typecode: str, values: Iterable[int]) -> array[int]:
    """`values` as an array whose buffer is little-endian. Raises OverflowError for a value
    outside the type."""
    numbers = array(typecode, values)
    if _SWAPPED:
        numbers.byteswap()
    return numbers


def unpacked(typecode: str, data: Buffer) -> array[int]:
    """The numbers that `data` holds in little-endian order; its length must be a multiple of the
    type's size."""
    numbers = array(typecode)
    numbers.frombytes(data)
    if _SWAPPED:
        numbers.byteswap()
    return numbers
