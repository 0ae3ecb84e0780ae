"""Hashes of keys that clients and brokers must compute alike.

Owns: Murmur3 (x86, 32 bits, seed 0) and Java's String.hashCode, both without the sign bit, as
Pulsar uses them. Imports: mmh3. Pure. Invariant: results are 0..0x7fffffff.
"""

from __future__ import annotations

import mmh3

_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def murmur3(data: bytes) -> int:
    """Murmur3 x86 32 of `data` with seed 0, sign bit cleared."""
    return mmh3.hash(data, 0, signed=False) & _POSITIVE


def java_string_hash(text: str) -> int:
    """Java's String.hashCode over UTF-16 units, sign bit cleared."""
    units = text.encode("utf-16-le", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] | units[at + 1] << 8)) & _MASK
    return value & _POSITIVE
