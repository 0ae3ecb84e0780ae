"""Failover: one consumer at a time, the others stand by.

Owns: which consumer is active, the change from one to the next, and its notifications. Imports:
base, exclusive, hashes, names. Pure. Source: Pulsar's Failover subscription: among the consumers of
the best priority, a partition takes number `partition % consumers` by name, another topic the one
whose point follows the topic's on a ring of hashes. Invariants: at most one consumer is served; a
consumer that is not active any more gets nothing; the next one waits for `failover_delay_ms`, so
that its predecessor's last acknowledgements can arrive, and begins at the mark-delete; a change
notifies all consumers when it takes effect; a newcomer that changes nothing is notified at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from magnetar.hashes import murmur3
from magnetar.names import partition_of
from magnetar.topics.dispatch.base import Consumer, CursorView, DispatchLimits, SubscriptionType
from magnetar.topics.dispatch.exclusive import SingleActiveDispatcher

POINTS_PER_CONSUMER = 100


class FailoverDispatcher(SingleActiveDispatcher):
    """Delivers to the active consumer."""

    kind: ClassVar[SubscriptionType] = SubscriptionType.FAILOVER

    def __init__(self, cursor: CursorView, limits: DispatchLimits, topic: str) -> None:
        super().__init__(cursor, limits, topic)
        self._partition = partition_of(topic)
        self._topic_hash = murmur3(topic.encode())
        self._consumers: list[Consumer] = []
        self._ring_places: dict[Consumer, tuple[bool, int]] = {}
        self._active: Consumer | None = None
        # The one that was served when the current change began: choosing it again ends the change.
        self._before: Consumer | None = None
        self._changing = False
        self._change_due_ms: int | None = None
        self._unnotified: dict[Consumer, None] = {}

    @property
    def active(self) -> Consumer | None:
        return self._active

    def add(self, consumer: Consumer) -> None:
        self._consumers.append(consumer)
        self._unnotified[consumer] = None
        if self._partition < 0:
            self._ring_places[consumer] = self._place_on_ring(consumer.name)
        self._choose()

    def remove(self, consumer: Consumer) -> None:
        self._consumers.remove(consumer)
        self._unnotified.pop(consumer, None)
        self._ring_places.pop(consumer, None)
        if consumer is self._before:
            self._before = None
        self._choose()

    def rewind(self) -> None:
        """Read from the mark-delete. Consumers on standby stay connected over a seek, and keep
        their permits; the host disconnects the active one."""
        self._read = self.cursor.mark_delete

    def _may_rewind(self, consumer: Consumer) -> bool:
        """Standby consumers may not. One that is being replaced may: it can become active again,
        and its client waits for redelivery."""
        return consumer is self._active or consumer is self._before

    # --- who is active ----------------------------------------------------------------------------

    def _choose(self) -> None:
        """Choose the active consumer; a new one is served later."""
        chosen = self._best() if self._consumers else None
        if chosen is self._active:
            return
        if not self._changing:
            self._before = self._active
        self._active, self._serving = chosen, None
        self._changing = chosen is not None
        if self._changing and chosen is self._before:
            self._changing, self._change_due_ms, self._serving = False, None, chosen
        elif not self._changing:
            self._change_due_ms = None

    def _best(self) -> Consumer:
        best = min(consumer.priority for consumer in self._consumers)
        candidates = [consumer for consumer in self._consumers if consumer.priority == best]
        candidates.sort(key=lambda consumer: consumer.name)
        if self._partition >= 0:
            return candidates[self._partition % len(candidates)]
        # Where points of two consumers coincide, the later name has it.
        return min(reversed(candidates), key=self._ring_places.__getitem__)

    def _place_on_ring(self, name: str) -> tuple[bool, int]:
        """The distance of the consumer's nearest point, going up from the topic's and around; less
        is nearer."""
        points = (murmur3(f"{name}{number}".encode()) for number in range(POINTS_PER_CONSUMER))
        return min((point < self._topic_hash, point) for point in points)

    # --- the change -------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> Sequence[tuple[Hashable, bool]]:
        if self._changing:
            delay = self._limits.failover_delay_ms
            # A clock that was set back must not prolong the wait.
            self._change_due_ms = min(self._change_due_ms or now_ms + delay, now_ms + delay)
            if now_ms >= self._change_due_ms:
                self._changing, self._change_due_ms, self._before = False, None, None
                self._serving = self._active
                self._read = self.cursor.mark_delete
                self._unnotified = dict.fromkeys(self._consumers)
        notified = [
            (consumer.handle, consumer is self._active)
            for consumer in self._unnotified
            if self._may_notify(consumer)
        ]
        self._unnotified = {
            consumer: None for consumer in self._unnotified if not self._may_notify(consumer)
        }
        return notified

    def _may_notify(self, consumer: Consumer) -> bool:
        """The active consumer is notified when it is served, a standby newcomer at once."""
        return not self._changing or consumer is not self._active

    def next_wakeup_ms(self) -> int | None:
        return self._change_due_ms
