"""Hashes of keys that clients and brokers must compute alike.

Owns: Murmur3 (x86, 32 bits, seed 0) and Java's String.hashCode, both without the sign bit, as Pulsar uses them. Imports: nothing. Pure.
Invariant: results are 0..0x7fffffff.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur3(data: bytes) -> int:
    """Murmur3 x86 32 of `data` with seed 0, sign bit cleared."""
    state = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        state ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        state = (state << 13 | state >> 19) & _MASK
        state = (state * 5 + 0xE6546B64) & _MASK
    state ^= _scrambled(int.from_bytes(data[whole:], "little")) ^ len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return (state ^ state >> 16) & _POSITIVE


def _scrambled(block: int) -> int:
    block = block * 0xCC9E2D51 & _MASK
    block = (block << 15 | block >> 17) & _MASK
    return block * 0x1B873593 & _MASK


def java_string_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16 units, sign bit cleared."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] | units[at + 1] << 8)) & _MASK
    return value & _POSITIVE
