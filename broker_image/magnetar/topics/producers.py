"""Who produces to a topic.

Owns: the registry of producer names. Imports: errors. Pure.
Source: Pulsar's PRODUCER: the same name from the same connection and producer id with a higher epoch replaces; anyone else is
refused.
Invariant: a name belongs to at most one producer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from magnetar.errors import ProducerBusy


@dataclass(frozen=True, slots=True)
class Producer:
    """One producer: the host's `handle`, the `connection` and id it came by, and its epoch (`CommandProducer.epoch`)."""

    name: str
    handle: Hashable
    connection: Hashable
    producer_id: int
    epoch: int = 0


class ProducerRegistry:
    """Producers of one topic by name."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._producers: dict[str, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def by_name(self) -> Mapping[str, Producer]:
        """Read only."""
        return MappingProxyType(self._producers)

    def add(self, producer: Producer) -> Producer | None:
        """Register; returns the earlier self it replaces, which the host must forget. Raises ProducerBusy.

        Before it answers ProducerBusy, the host should ask the holder's connection whether it is alive, `remove` it if not, and try
        again.
        """
        held = self._producers.get(producer.name)
        if held is not None and not (
            held.connection == producer.connection and held.producer_id == producer.producer_id and held.epoch < producer.epoch
        ):
            raise ProducerBusy(
                f"Producer with name {producer.name!r} is already connected to topic {self._topic}; close it or choose another name"
            )
        self._producers[producer.name] = producer
        return held

    def remove(self, name: str, handle: Hashable) -> bool:
        """Forget a producer, unless the name has passed to another handle meanwhile."""
        held = self._producers.get(name)
        if held is None or held.handle != handle:
            return False
        del self._producers[name]
        return True
