"""Runs on their way to stable storage.

Owns: `PublishedRun`, and `CountedRun`, which also counts latency and sizes.
Imports: ports, publish_histogram. Invariant: what is not to be counted costs nothing: a
topic makes the one or the other for as long as it is served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from magnetar.broker.ports import AttachedProducer, SendRun
from magnetar.clock import Clock
from magnetar.storage.log.places import RecordPlace
from magnetar.topics.ledgers import Position

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.topics.admission import Recorded
    from magnetar.broker.topics.publish_histogram import PublishHistogram


class Counting(Protocol):
    """What a topic has of its producers for this."""

    @property
    def histogram(self) -> PublishHistogram | None: ...


class PublishingTopic(Protocol):
    """The topic that has appended a run."""

    @property
    def context(self) -> BrokerContext: ...
    @property
    def publishing(self) -> Counting: ...
    def durable(self, published: PublishedRun, place: RecordPlace) -> None: ...


@dataclass(slots=True, eq=False)
class PublishedRun:
    """The log calls it, in order, once it is there."""

    topic: PublishingTopic
    session: AttachedProducer
    run: SendRun
    position: Position
    payload: bytes
    lengths: Sequence[int]
    entries_offset: int
    recorded: Recorded | None
    append_ms: int

    def __call__(self, place: RecordPlace) -> None:
        self.topic.durable(self, place)


@dataclass(slots=True, eq=False)
class CountedRun(PublishedRun):
    """A run that histograms ask for."""

    _clock: Clock = field(init=False)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._clock = self.topic.context.clock
        self._since = self._clock.monotonic()

    def __call__(self, place: RecordPlace) -> None:
        self.topic.durable(self, place)
        histogram = self.topic.publishing.histogram
        if histogram is not None:
            histogram.add(self._clock.monotonic() - self._since, self.lengths)
