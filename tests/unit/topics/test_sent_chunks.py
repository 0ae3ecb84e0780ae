"""Which chunks count as stored already."""

from __future__ import annotations

from magnetar.topics.ledgers import Position
from magnetar.topics.sent_chunks import SentChunk, SentChunks

FIRST, SECOND = SentChunk("p", 7, 0, 1), SentChunk("p", 7, 1, 2)


def test_a_repetition_is_found_where_the_chunk_went() -> None:
    """Of the same producer, sequence id, number and bytes: who numbers from 0 again, and sends
    something else, is new."""
    chunks = SentChunks()
    assert not chunks.seen
    chunks.push(FIRST, Position(9, 0))
    assert chunks.seen
    assert chunks.find(FIRST) == Position(9, 0)
    for other in (
        SECOND,
        FIRST._replace(producer="q"),
        FIRST._replace(sequence=8),
        FIRST._replace(checksum=9),
    ):
        assert chunks.find(other) is None


def test_a_state_holds_durable_chunks_only() -> None:
    """What was on its way when a checkpoint was written may be lost: its repetition must be
    stored then."""
    chunks = SentChunks()
    chunks.push(FIRST, Position(9, 0))
    chunks.push(SECOND, Position(9, 1))
    assert chunks.to_state() == ()
    chunks.persist(FIRST)
    assert chunks.to_state() == ((*FIRST, 9, 0),)
    recovered = SentChunks()
    for producer, sequence, number, checksum, ledger, entry in chunks.to_state():
        recovered.apply(SentChunk(producer, sequence, number, checksum), Position(ledger, entry))
    assert (recovered.find(FIRST), recovered.find(SECOND)) == (Position(9, 0), None)
    assert recovered.seen


def test_what_is_remembered_is_bounded() -> None:
    """The chunk stored first is forgotten first, also if it was never durable."""
    chunks = SentChunks(remembered_max=2)
    for number in range(4):
        chunks.push(SentChunk("p", number, 0, 0), Position(9, number))
    assert len(chunks) == 2
    assert chunks.find(SentChunk("p", 1, 0, 0)) is None
    assert chunks.find(SentChunk("p", 3, 0, 0)) == Position(9, 3)
    for number in range(4):
        chunks.persist(SentChunk("p", number, 0, 0))
    assert len(chunks.to_state()) == 2
