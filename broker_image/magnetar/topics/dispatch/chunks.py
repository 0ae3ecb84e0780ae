"""Which consumer gets the chunks of a message.

Owns: `ChunkAssignments` and `WaitingChunks`. Imports: base, intervals. Pure. Source: Pulsar's
Shared consumer assignor: only a consumer that gets all chunks of a message, in order, can assemble
it. Invariant: a message has one consumer from its first chunk to its last one, or until that
consumer leaves.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from magnetar.topics.dispatch.base import ChunkTrait, Consumer
from magnetar.topics.intervals import IntervalSet, known_within

UUID_LENGTH_MAX = 128


def _key(chunk: ChunkTrait) -> Hashable:
    """The message's uuid, or its hash: producers choose the length of a uuid."""
    return chunk.uuid if len(chunk.uuid) <= UUID_LENGTH_MAX else hash(chunk.uuid)


class ChunkAssignments:
    """Consumers by message uuid.

    At most `messages_max` unfinished messages are remembered, as a producer may die in the middle
    of one. The oldest is forgotten first; the rest of its chunks go to the next consumer in turn.
    """

    __slots__ = ("_consumers", "_messages_max")

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._consumers: dict[Hashable, Consumer] = {}

    def __len__(self) -> int:
        return len(self._consumers)

    def consumer_of(self, chunk: ChunkTrait) -> Consumer | None:
        """The consumer that must get this chunk; None if any may. A first chunk begins its message
        again, as a redelivery does."""
        return self._consumers.get(_key(chunk)) if chunk.id > 0 else None

    def given(self, chunk: ChunkTrait, consumer: Consumer) -> None:
        """The chunk goes to `consumer`, as will those after it."""
        if chunk.id + 1 >= chunk.count:
            self._consumers.pop(_key(chunk), None)
            return
        self._consumers[_key(chunk)] = consumer
        if len(self._consumers) > self._messages_max:
            del self._consumers[next(iter(self._consumers))]

    def forget(self, consumer: Consumer) -> None:
        """The consumer has left; its chunks are delivered again, the first ones first."""
        for uuid in [uuid for uuid, owner in self._consumers.items() if owner is consumer]:
            del self._consumers[uuid]

    def clear(self) -> None:
        self._consumers.clear()


class WaitingChunks:
    """Chunks whose consumer has no permits: not fetched until it has some."""

    __slots__ = ("_consumers", "_ordinals")

    def __init__(self) -> None:
        self._ordinals: dict[Consumer, IntervalSet] = {}
        self._consumers: dict[int, Consumer] = {}

    def __bool__(self) -> bool:
        return bool(self._consumers)

    def add(self, ordinal: int, consumer: Consumer) -> None:
        self._ordinals.setdefault(consumer, IntervalSet()).add(ordinal, ordinal + 1)
        self._consumers[ordinal] = consumer

    def take(self, consumer: Consumer) -> Iterable[tuple[int, int]]:
        """Take out those that wait for the consumer."""
        runs = self._ordinals.pop(consumer, IntervalSet())
        for start, end in runs:
            for ordinal in range(start, end):
                del self._consumers[ordinal]
        return runs

    def take_all(self) -> list[tuple[int, int]]:
        return [run for consumer in list(self._ordinals) for run in self.take(consumer)]

    def discard(self, start: int, end: int) -> None:
        """Forget those of the entries [start, end)."""
        for ordinal in known_within(self._consumers, start, end):
            self._ordinals[self._consumers.pop(ordinal)].remove(ordinal, ordinal + 1)

    def clear(self) -> None:
        self._ordinals.clear()
        self._consumers.clear()
