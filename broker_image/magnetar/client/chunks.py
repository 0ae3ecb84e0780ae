"""Messages in more than one entry.

Owns: putting the chunks of a message together. Imports: messages, wire's positions. No I/O. Source:
Pulsar's protocol: chunks share a uuid and come in order; the payload is compressed before it is
cut; the message's id is that of its last chunk. Invariants: a message comes out when its last chunk
is there and all before it were, byte for byte; unfinished messages are limited in number and size,
and what is given up is named, so that it can be delivered again; of chunks that a producer has sent
twice none is left behind: they are part of the message, or named as repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import Position

UNFINISHED_MESSAGES_MAX = 10
CHUNKED_BYTES_MAX = 64 * 1024 * 1024
CHUNK_BYTES_COUNTED_MIN = 1024
"""What a chunk counts for at least: where it lies has to be kept, and a producer may send empty
ones."""
CARRIED_POSITIONS_MAX = 1_000
"""Chunks of earlier beginnings that a message stands for, too; a producer says how often it
begins."""
MESSAGES_TRACKED_MAX = 100_000
MESSAGES_COMPLETED_MAX = 1_000
"""Of so many it is remembered that they came out: chunks of them that come behind are
repetitions."""


class Chunk(NamedTuple):
    """One entry of several."""

    metadata: api.MessageMetadata
    payload: bytes
    broker_metadata: api.BrokerEntryMetadata | None = None


@dataclass(slots=True)
class _Unfinished:
    """`first`: where the chunk lies that its present beginning is; `positions` has chunks of an
    earlier beginning as well."""

    first: Position
    positions: list[Position] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0


class Whole(NamedTuple):
    """The payload of a message, compressed as it was sent, and where its chunks before the last
    lie."""

    payload: bytes
    earlier: tuple[Position, ...]


class Assembler:
    """The unfinished messages of one consumer."""

    def __init__(self) -> None:
        self._unfinished: dict[str, _Unfinished] = {}
        self._completed: dict[str, list[Position]] = {}
        self.given_up: list[Position] = []
        self.repeated: list[Position] = []
        self.too_large = 0

    def clear(self) -> None:
        """Everything unacknowledged is redelivered."""
        self._unfinished.clear()
        self.given_up.clear()
        self.repeated.clear()
        self.come_again()

    def come_again(self) -> None:
        """Some entries do: a chunk of a message that came out may be needed once more."""
        self._completed.clear()

    def add(self, chunk: Chunk, position: Position) -> Whole | None:
        """Take a chunk; the message if it was the last one. Chunks that do not follow are left out;
        `given_up` says what was dropped for room.

        `repeated` has those that no message needs: the log has them twice, since their producer
        got no receipt.
        """
        metadata = chunk.metadata
        message = self._unfinished.get(metadata.uuid)
        if metadata.chunk_id == 0 and (message is None or message.first != position):
            message = self._begin(metadata.uuid, position)
        if message is None or metadata.chunk_id != len(message.parts):
            known = message.positions if message is not None else self._completed.get(metadata.uuid)
            ahead = message is not None and metadata.chunk_id > len(message.parts)
            if known is not None and not ahead and position not in known:
                self.repeated.append(position)
            return None
        message.positions.append(position)
        message.parts.append(chunk.payload)
        message.size += max(len(chunk.payload), CHUNK_BYTES_COUNTED_MIN)
        if message.size > CHUNKED_BYTES_MAX:
            del self._unfinished[metadata.uuid]
            self.too_large += 1
            return None
        if len(message.parts) < metadata.num_chunks_from_msg:
            return None
        del self._unfinished[metadata.uuid]
        self._completed[metadata.uuid] = message.positions
        if len(self._completed) > MESSAGES_COMPLETED_MAX:
            del self._completed[next(iter(self._completed))]
        return Whole(b"".join(message.parts), tuple(message.positions[:-1]))

    def _begin(self, uuid: str, first: Position) -> _Unfinished:
        before = self._unfinished.pop(uuid, None)
        earlier = (
            [position for position in before.positions if position != first]
            if before is not None
            else []
        )
        beyond = max(0, len(earlier) - CARRIED_POSITIONS_MAX)
        self.repeated += earlier[:beyond]
        del earlier[:beyond]
        if len(self._unfinished) >= UNFINISHED_MESSAGES_MAX:
            oldest = next(iter(self._unfinished))
            self.given_up += self._unfinished.pop(oldest).positions
        return self._unfinished.setdefault(uuid, _Unfinished(first, earlier))


class ChunkPositions:
    """Which entries stand behind the id of a message: acknowledging or redelivering it means all
    of them."""

    def __init__(self) -> None:
        self._earlier: dict[Position, tuple[Position, ...]] = {}

    def add(self, last: Position, earlier: tuple[Position, ...]) -> None:
        if len(self._earlier) >= MESSAGES_TRACKED_MAX:
            self._earlier.pop(next(iter(self._earlier)))
        self._earlier[last] = earlier

    def earlier(self, last: Position) -> tuple[Position, ...]:
        return self._earlier.get(last, ())

    def pop(self, last: Position) -> None:
        self._earlier.pop(last, None)

    def expanded(self, positions: Iterable[Position]) -> list[Position]:
        return [entry for last in positions for entry in (*self.earlier(last), last)]
