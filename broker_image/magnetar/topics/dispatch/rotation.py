"""Whose turn it is among consumers that share a subscription.

Owns: round robin within priority levels. Imports: dispatch. Pure. Invariants: a consumer of a lower
priority number that is ready goes before any of a higher one; within a level every ready consumer
gets a turn before any gets its second. Cost per turn is constant: consumers that are not ready
leave the queue and come back by `offer`.
"""

from __future__ import annotations

from collections import deque

from magnetar.topics.dispatch.base import Consumer


class Rotation:
    """Queues of consumers that may be ready, one per priority level."""

    def __init__(self) -> None:
        self._levels: dict[int, deque[Consumer]] = {}
        self._order: list[int] = []

    def offer(self, consumer: Consumer) -> None:
        """The consumer has become ready, or may have."""
        if consumer.queued or not consumer.ready:
            return
        level = self._levels.get(consumer.priority)
        if level is None:
            level = self._levels[consumer.priority] = deque()
            self._order = sorted(self._levels)
        level.append(consumer)
        consumer.queued = True

    def withdraw(self, consumer: Consumer) -> None:
        """The consumer has left."""
        level = self._levels.get(consumer.priority)
        if level is None:
            return
        if consumer.queued:
            level.remove(consumer)
            consumer.queued = False
        if not level:
            # Peers choose their priorities: empty levels must not pile up.
            del self._levels[consumer.priority]
            self._order = sorted(self._levels)

    def next(self) -> Consumer | None:
        """The consumer whose turn it is; it goes to the end of its level's queue. None if no
        consumer is ready."""
        for priority in self._order:
            level = self._levels[priority]
            while level:
                consumer = level[0]
                if consumer.ready:
                    level.rotate(-1)
                    return consumer
                level.popleft()
                consumer.queued = False
        return None

    def permits(self, enough: int) -> int:
        """Permits of the ready consumers together, counted no further than `enough`."""
        total = 0
        for priority in self._order:
            for consumer in self._levels[priority]:
                if consumer.ready:
                    total += consumer.permits
                    if total >= enough:
                        return total
        return total
