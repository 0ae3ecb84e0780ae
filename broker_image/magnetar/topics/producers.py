"""Who produces to a topic.

Owns: the registry of producer names, access modes, the queue of those that wait for exclusive
access, the topic's epoch. Imports: errors. Pure. Source: Pulsar's PRODUCER: a PRODUCER with the
name, connection and producer id of an earlier one and a higher epoch replaces it; any other is
refused. Every exclusive grant raises the topic's epoch, and a producer that returns with an older
one is fenced. Invariants: a name belongs to at most one producer; while one has exclusive access no
other is connected; no producer waits for a topic that is free.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from magnetar.errors import ProducerBusy, ProducerFenced

ASKED_AT_ONCE_MAX = 100
"""Producers that are asked at the same time whether they are alive."""


class AccessMode(enum.IntEnum):
    """`ProducerAccessMode` of the protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


@dataclass(frozen=True, slots=True)
class Producer:
    """One producer: the host's `handle`, the `connection` and id it came by, and its epoch
    (`CommandProducer.epoch`).

    `topic_epoch` is that of its earlier exclusive grant, if it had one.
    """

    name: str
    handle: Hashable
    connection: Hashable
    producer_id: int
    epoch: int = 0
    mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    user_provided_name: bool = True

    def replaces(self, other: Producer) -> bool:
        """Whether the other is our own earlier self."""
        return (self.connection, self.producer_id) == (
            other.connection,
            other.producer_id,
        ) and other.epoch < self.epoch


@dataclass(frozen=True, slots=True)
class Grant:
    """`producer` is admitted. The host must make `topic_epoch` durable (None for Shared) before it
    answers.

    `closed` are the producers fenced for it, its own earlier session included; `refused` waited and
    are fenced.
    """

    producer: Producer
    topic_epoch: int | None = None
    closed: tuple[Producer, ...] = ()
    refused: tuple[Producer, ...] = ()


@dataclass(frozen=True, slots=True)
class Succession:
    """What follows from a departure: the waiting producers that are admitted now, and those whose
    epoch is over."""

    granted: Grant | None = None
    refused: tuple[Producer, ...] = ()


class ProducerRegistry:
    """Producers of one topic by name."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._producers: dict[str, Producer] = {}
        self._exclusive: Producer | None = None
        self._waiting: deque[Producer] = deque()
        self.topic_epoch: int | None = None

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def by_name(self) -> Mapping[str, Producer]:
        """Read only."""
        return MappingProxyType(self._producers)

    @property
    def waiting(self) -> Iterator[Producer]:
        """Those that wait for exclusive access, in order."""
        return iter(tuple(self._waiting))

    @property
    def exclusive(self) -> Producer | None:
        """Who has exclusive access."""
        return self._exclusive

    # --- coming -----------------------------------------------------------------------------------

    def add(self, producer: Producer) -> Grant | None:
        """Let a producer in, or have it wait (None). Raises ProducerBusy, ProducerFenced.

        First the host asks the connections of those that are `in_the_way_of` it whether they are
        alive, and removes those that are not.
        """
        held = self._producers.get(producer.name)
        own = held if held is not None and producer.replaces(held) else None
        others = len(self._producers) - (own is not None)
        # Our own earlier self neither keeps us out nor loses its place to those that wait for it to
        # leave.
        barred = (self._exclusive is not None and self._exclusive is not own) or (
            bool(self._waiting) and own is None
        )
        if self._is_over(producer):
            raise self._fenced(
                f"its epoch {producer.topic_epoch} is over, the topic's is {self.topic_epoch}"
            )
        if producer.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            return self._grant(producer, tuple(self._producers.values()), self._drop_waiting())
        if producer.mode is AccessMode.WAIT_FOR_EXCLUSIVE and others:
            if own is not None:
                del self._producers[own.name]
            self._waiting.append(producer)
            return None
        if producer.mode is AccessMode.EXCLUSIVE and (barred or others):
            raise self._fenced("it has other producers; close them first or use WaitForExclusive")
        if producer.mode is AccessMode.SHARED and barred:
            raise ProducerBusy(
                f"Topic {self._topic} has an existing exclusive producer: {self._holder()}; close "
                "it first"
            )
        if held is not None and own is None:
            raise ProducerBusy(
                f"Producer with name {producer.name!r} is already connected to topic "
                f"{self._topic}; close it or choose another name"
            )
        return self._grant(producer, (own,) if own is not None else (), ())

    def in_the_way_of(self, producer: Producer) -> tuple[Producer, ...]:
        """Producers of other connections that keep it out, and may be dead; one that lives
        suffices. A bounded number at a time: ask again.

        They have its name, or exclusive access. A producer that wants exclusive access at once, and
        would be fenced permanently, is kept out by all, waiting ones included. Empty if it fences
        them anyway, or may not come in even without them.
        """
        if producer.mode is AccessMode.EXCLUSIVE_WITH_FENCING or self._is_over(producer):
            return ()
        held = self._producers.get(producer.name)
        if producer.mode is not AccessMode.EXCLUSIVE:
            holders = dict.fromkeys((held, self._exclusive))
            return tuple(
                held
                for held in holders
                if held is not None and held.connection != producer.connection
            )
        own = held if held is not None and producer.replaces(held) else None
        others = [other for other in self._producers.values() if other is not own]
        if own is None:
            others += self._waiting
        if any(other.connection == producer.connection for other in others):
            return ()
        return tuple(others[:ASKED_AT_ONCE_MAX])

    def _grant(
        self, producer: Producer, closed: tuple[Producer, ...], refused: tuple[Producer, ...]
    ) -> Grant:
        for other in closed:
            del self._producers[other.name]
        self._producers[producer.name] = producer
        if producer.mode is AccessMode.SHARED:
            self._exclusive = None
            return Grant(producer, None, closed, refused)
        self._exclusive = producer
        if producer.topic_epoch is not None:
            self.topic_epoch = producer.topic_epoch
        else:
            self.topic_epoch = 0 if self.topic_epoch is None else self.topic_epoch + 1
        return Grant(producer, self.topic_epoch, closed, refused)

    def _drop_waiting(self) -> tuple[Producer, ...]:
        refused = tuple(self._waiting)
        self._waiting.clear()
        return refused

    def _is_over(self, producer: Producer) -> bool:
        return (
            producer.topic_epoch is not None
            and self.topic_epoch is not None
            and producer.topic_epoch < self.topic_epoch
        )

    def _fenced(self, why: str) -> ProducerFenced:
        return ProducerFenced(f"Topic {self._topic} cannot be had exclusively: {why}")

    def _holder(self) -> str:
        return self._exclusive.name if self._exclusive is not None else self._waiting[0].name

    # --- leaving ----------------------------------------------------------------------------------

    def remove(self, name: str, handle: Hashable) -> Succession | None:
        """Forget a producer, connected or waiting; None if it is neither (its name may have
        passed to another handle)."""
        held = self._producers.get(name)
        if held is not None and held.handle == handle:
            del self._producers[name]
            if self._exclusive is held:
                self._exclusive = None
            return self._promote()
        for waiting in self._waiting:
            if waiting.handle == handle:
                self._waiting.remove(waiting)
                return Succession()
        return None

    def _promote(self) -> Succession:
        refused: list[Producer] = []
        while self._waiting and not self._producers:
            first = self._waiting.popleft()
            if not self._is_over(first):
                return Succession(self._grant(first, (), ()), tuple(refused))
            refused.append(first)
        return Succession(None, tuple(refused))
