"""Hashes of keys that clients and brokers must compute alike.

Owns: Murmur3 (x86, 32 bits, seed 0) and Java's String.hashCode, both without the sign bit, as Pulsar uses them. Imports: struct. Pure.
Invariant: results are 0..0x7fffffff.
"""

from __future__ import annotations

import struct

_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur3(data: bytes) -> int:
    """Murmur3 x86 32 of `data` with seed 0, sign bit cleared."""
    state = 0
    size = len(data)
    whole = size & ~3
    for block in struct.unpack_from(f"<{whole >> 2}I", data):
        block = block * 0xCC9E2D51 & _MASK
        state ^= (block << 15 | block >> 17) * 0x1B873593 & _MASK
        state = ((state << 13 | state >> 19) & _MASK) * 5 + 0xE6546B64 & _MASK
    block = int.from_bytes(data[whole:], "little") * 0xCC9E2D51 & _MASK
    state ^= (block << 15 | block >> 17) * 0x1B873593 & _MASK ^ size
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return (state ^ state >> 16) & _POSITIVE


def java_string_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16 units, sign bit cleared."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] | units[at + 1] << 8)) & _MASK
    return value & _POSITIVE
