"""Which chunks of messages a topic has stored.

Owns: `SentChunk`, what makes a chunk the same as one before it, and `SentChunks`, the positions of
recent ones. Imports: ledgers. Pure. A producer that loses its connection sends again whatever it
has no receipt for, and so perhaps chunks that are stored. A consumer that finds the first chunks of
a message twice gives the message up (the C++ client and those around it do), so that an
acknowledged message is never seen. Invariants: a chunk is a repetition only if producer, sequence
id, number and checksum are those of a stored one, so that a producer of the same name that numbers
from 0 again is not mistaken; a state for a checkpoint holds durable chunks only; the one stored
first is forgotten first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.topics.ledgers import Position

REMEMBERED_MAX = 4096
"""Per topic: clients have at most 1000 messages without a receipt, as a rule, of which a chunk
is one."""

ChunkState = tuple[str, int, int, int, int, int]
"""(producer, sequence id, number, checksum, ledger, entry) of a stored chunk."""


class SentChunk(NamedTuple):
    """One chunk as its producer sends it, and sends it again: `number` within its message,
    `checksum` of all its bytes."""

    producer: str
    sequence: int
    number: int
    checksum: int


class SentChunks:
    """Chunks of one topic, those in flight to storage included, and their positions. `seen`: whether
    the topic has ever had a chunk."""

    __slots__ = ("_on_their_way", "_places", "_remembered_max", "seen")

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        self._places: dict[SentChunk, Position] = {}
        self._on_their_way: set[SentChunk] = set()
        self.seen = False

    def __len__(self) -> int:
        return len(self._places)

    def find(self, chunk: SentChunk) -> Position | None:
        """Where a chunk lies, or will once the log has it: answer its repetition behind what the
        log was given before."""
        return self._places.get(chunk)

    def push(self, chunk: SentChunk, position: Position) -> None:
        """A chunk goes to the log."""
        self._on_their_way.add(chunk)
        self._remember(chunk, position)

    def persist(self, chunk: SentChunk) -> None:
        """A chunk pushed before is durable."""
        self._on_their_way.discard(chunk)

    def apply(self, chunk: SentChunk, position: Position) -> None:
        """Replay a stored chunk."""
        self._remember(chunk, position)

    def to_state(self) -> Sequence[ChunkState]:
        """Durable chunks, the one stored first in front."""
        return tuple(
            (*chunk, *place)
            for chunk, place in self._places.items()
            if chunk not in self._on_their_way
        )

    def _remember(self, chunk: SentChunk, position: Position) -> None:
        self._places[chunk], self.seen = position, True
        if len(self._places) > self._remembered_max:
            oldest = next(iter(self._places))
            del self._places[oldest]
            self._on_their_way.discard(oldest)
