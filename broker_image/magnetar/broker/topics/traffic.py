"""What goes through a topic and its subscriptions, and when it last did.

Owns: `TopicTraffic` and `SubscriptionTraffic`: counters, times and rates that statistics show.
Imports: ports, rates. Invariants: counting adds to plain integers; a time costs a look at the clock
only where there was one anyway, or once a write of a cursor; rates are computed when they are asked
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from magnetar.broker.ports import AttachedConsumer, AttachedProducer, ServedTopic
from magnetar.hosting.rates import RateMeter

if TYPE_CHECKING:
    from magnetar.broker.reading.entry_index import EntryIndex
    from magnetar.topics.subscription import Subscription


class TopicRates(NamedTuple):
    """Per second; `entries_in` counts a batch as one."""

    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float
    entries_in: float


class TopicTraffic:
    """Of one topic. `published_ms` is of its last message, 0 where only storage has that."""

    __slots__ = ("_meter", "_topic", "published_ms")

    def __init__(self, topic: ServedTopic, index: EntryIndex) -> None:
        self._topic = topic
        # how many entries there were before is no rate
        begin = (0, 0, 0, 0, topic.core.ledgers.end)
        self._meter = RateMeter(topic.context.clock.monotonic(), len(begin), begin)
        self.published_ms = max(0, index.runs[-1].append_ms) if index.runs else 0

    def published(
        self, session: AttachedProducer, messages: int, size: int, append_ms: int
    ) -> None:
        """Count a run of a producer that can be delivered now."""
        session.messages_in += messages
        session.bytes_in += size
        self.published_ms = append_ms
        self.count_in(messages, size)

    def count_in(self, messages: int, size: int) -> None:
        """Count messages that can be delivered now."""
        traffic, counters = self._topic.bundle.traffic, self._topic.core.counters
        traffic.messages_in += messages
        traffic.bytes_in += size
        counters.messages_in += messages
        counters.bytes_in += size

    def rates(self) -> TopicRates:
        """Since the last request, or over a moment; at first since the topic is served here."""
        core = self._topic.core
        counters = core.counters
        counts = (
            counters.messages_in,
            counters.bytes_in,
            counters.messages_out,
            counters.bytes_out,
            core.ledgers.end,
        )
        return TopicRates(*self._meter.rates(self._topic.context.clock.monotonic(), counts))


class SubscriptionTraffic:
    """Of one subscription. `bytes_out`, `flow_ms` and `sent_ms` are of consumers that have left.
    `acknowledging` is who acknowledged last since the cursor was written; `expired_ms` is when
    messages last expired; `messages_dropped` had no consumer to go to."""

    __slots__ = (
        "_drops",
        "_expiries",
        "_topic",
        "_written",
        "acknowledged_ms",
        "acknowledging",
        "advanced_ms",
        "bytes_out",
        "expired_ms",
        "flow_ms",
        "messages_dropped",
        "messages_expired",
        "sent_ms",
    )

    def __init__(self, topic: ServedTopic, core: Subscription) -> None:
        self._topic, self._written = topic, tuple(core.cursor.mark_delete_position)
        self.bytes_out = self.flow_ms = self.sent_ms = 0
        self.acknowledged_ms = self.advanced_ms = 0
        self.acknowledging: AttachedConsumer | None = None
        self.messages_expired = self.expired_ms = self.messages_dropped = 0
        self._expiries: RateMeter | None = None
        self._drops: RateMeter | None = None

    def expired(self, messages: int) -> None:
        """Messages were acknowledged because of their age."""
        clock = self._topic.context.clock
        if self._expiries is None:
            self._expiries = RateMeter(clock.monotonic(), 1, (self.messages_expired,))
        self.messages_expired += messages
        self.expired_ms = clock.wall_ms()

    def expiry_rate(self) -> float:
        """Messages per second that expire."""
        return self._rate(self._expiries, self.messages_expired)

    def dropped(self, messages: int) -> None:
        """Messages of a topic without storage found no consumer with permits."""
        if self._drops is None:
            now = self._topic.context.clock.monotonic()
            self._drops = RateMeter(now, 1, (self.messages_dropped,))
        self.messages_dropped += messages

    def drop_rate(self) -> float:
        """Messages per second that are dropped."""
        return self._rate(self._drops, self.messages_dropped)

    def _rate(self, meter: RateMeter | None, count: int) -> float:
        if meter is None:
            return 0.0
        return meter.rates(self._topic.context.clock.monotonic(), (count,))[0]

    def left(self, session: AttachedConsumer) -> None:
        """A consumer has left; what it was sent still counts."""
        self.bytes_out += session.bytes_out
        self.flow_ms = max(self.flow_ms, session.flow_ms)
        self.sent_ms = max(self.sent_ms, session.sent_ms)

    def written(self, mark_delete: tuple[int, int]) -> None:
        """Acknowledgements are on their way into the log: that is the time of the last ones."""
        now_ms = self._topic.context.clock.wall_ms()
        if mark_delete != self._written:
            self._written, self.advanced_ms = tuple(mark_delete), now_ms
        if self.acknowledging is not None:
            self.acknowledged_ms = self.acknowledging.acknowledged_ms = now_ms
            self.acknowledging = None
