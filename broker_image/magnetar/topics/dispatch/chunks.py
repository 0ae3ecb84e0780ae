"""Which consumer gets the chunks of a message.

Owns: `ChunkAssignments`. Imports: dispatch. Pure. Source: Pulsar's Shared consumer assignor: a
message that its producer cut into chunks can only be put together by a consumer that gets all of
them, in order. Invariant: from the first chunk that goes out until the last one, or until the
consumer leaves, a message has one consumer.
"""

from __future__ import annotations

from collections.abc import Hashable

from magnetar.topics.dispatch.base import ChunkTrait, Consumer

UUID_LENGTH_MAX = 128


def _key(chunk: ChunkTrait) -> Hashable:
    """What stands for the message's uuid, which a producer may make as long as it likes."""
    return chunk.uuid if len(chunk.uuid) <= UUID_LENGTH_MAX else hash(chunk.uuid)


class ChunkAssignments:
    """Consumers by message uuid.

    At most `messages_max` unfinished messages are remembered, for producers may die in the middle:
    the one begun first is forgotten first, and the rest of its chunks go to whoever takes the next
    one.
    """

    __slots__ = ("_consumers", "_messages_max")

    def __init__(self, messages_max: int) -> None:
        self._messages_max = messages_max
        self._consumers: dict[Hashable, Consumer] = {}

    def __len__(self) -> int:
        return len(self._consumers)

    def consumer_of(self, chunk: ChunkTrait) -> Consumer | None:
        """Who must get this chunk; None if anybody may. A first chunk begins the message again
        (it is delivered again)."""
        return self._consumers.get(_key(chunk)) if chunk.id > 0 else None

    def given(self, chunk: ChunkTrait, consumer: Consumer) -> None:
        """The chunk goes to `consumer`, and so will those after it."""
        if chunk.id + 1 >= chunk.count:
            self._consumers.pop(_key(chunk), None)
            return
        self._consumers[_key(chunk)] = consumer
        if len(self._consumers) > self._messages_max:
            del self._consumers[next(iter(self._consumers))]

    def forget(self, consumer: Consumer) -> None:
        """The consumer has left; what it was given comes back, the first chunks first."""
        for uuid in [uuid for uuid, owner in self._consumers.items() if owner is consumer]:
            del self._consumers[uuid]

    def clear(self) -> None:
        self._consumers.clear()
