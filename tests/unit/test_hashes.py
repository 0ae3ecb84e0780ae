"""Key hashes agree with the published vectors of Murmur3 and with Java's String.hashCode."""

from __future__ import annotations

import pytest

from magnetar.hashes import java_string_hash, murmur3


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"test", 0xBA6BD213),
        (b"Hello, world!", 0xC0363E43),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        (b"!C", 0xA0F7B07A),
        (b"abc", 0xB3DD93FA),
    ],
)
def test_murmur3_vectors(data: bytes, expected: int) -> None:
    """Seed 0; Pulsar clears the sign bit. Lengths with every remainder of four."""
    assert murmur3(data) == expected & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("key", 106079), ("hello", 99162322), ("polygenelubricants", 0), ("é", 233)],
)
def test_java_string_hash_vectors(text: str, expected: int) -> None:
    """ "polygenelubricants" hashes to the smallest int, whose sign bit is all it has."""
    assert java_string_hash(text) == expected


def test_java_string_hash_counts_utf16_units() -> None:
    """A character beyond the basic plane is two units: 0xD83D, 0xDE00."""
    assert java_string_hash("\U0001f600") == (31 * 0xD83D + 0xDE00) & 0x7FFFFFFF
