"""Entries read back from a log file: what is short or damaged is named exactly, and never
delivered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.reading.entry_checks import PieceOfRun, checked_entries
from magnetar.errors import CorruptData
from tests.support.brokers import entry

PIECE = PieceOfRun("logs/a/00000000.log", 5000, "persistent://t/n/topic", 7, 40)
PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


@given(PAYLOADS)
def test_entries_come_out_as_they_lie(payloads: list[bytes]) -> None:
    entries = [entry(payload, number) for number, payload in enumerate(payloads)]
    found = checked_entries(memoryview(b"".join(entries)), list(map(len, entries)), PIECE)
    assert [bytes(one) for one in found] == entries


@given(PAYLOADS, st.data())
def test_a_changed_byte_of_an_entry_is_found_and_named(
    payloads: list[bytes], data: st.DataObject
) -> None:
    """Behind its magic number and checksum any byte of any entry: file, offset, topic and
    position of that entry are reported."""
    entries = [entry(payload, number) for number, payload in enumerate(payloads)]
    bad = data.draw(st.integers(0, len(entries) - 1))
    at = data.draw(st.integers(6, len(entries[bad]) - 1))
    before = sum(map(len, entries[:bad]))
    raw = bytearray(b"".join(entries))
    raw[before + at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptData, match="damaged") as found:
        checked_entries(memoryview(raw), list(map(len, entries)), PIECE)
    assert (found.value.file, found.value.offset, found.value.topic) == (
        PIECE.file,
        PIECE.offset + before,
        PIECE.topic,
    )
    assert found.value.first == found.value.last == (PIECE.ledger, PIECE.entry + bad)


@given(PAYLOADS, st.data())
def test_a_file_that_ends_early_is_named_with_all_that_is_missing(
    payloads: list[bytes], data: st.DataObject
) -> None:
    entries = [entry(payload, number) for number, payload in enumerate(payloads)]
    raw = b"".join(entries)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(CorruptData, match="ends at") as found:
        checked_entries(memoryview(raw[:cut]), list(map(len, entries)), PIECE)
    assert (found.value.file, found.value.offset) == (PIECE.file, PIECE.offset + cut)
    assert (found.value.first, found.value.last) == ((7, 40), (7, 40 + len(entries) - 1))
