"""When entries are to be delivered again.

Owns: the delays after negative acknowledgements, the moments they and unacknowledged messages
become due, and the policy for messages that come again and again. Imports: wire's positions. No
I/O, no clock: moments are the caller's. Invariants: an entry has one moment, the latest one asked
for; taking what is due costs O(log n) each.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from magnetar.errors import InvalidRequest
from magnetar.wire.commands import Position


@dataclass(frozen=True, slots=True)
class RedeliveryBackoff:
    """The delay after a negative acknowledgement: `first_s`, times `factor` for every earlier
    redelivery, at most `last_s`."""

    first_s: float = 1.0
    last_s: float = 60.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not (0 <= self.first_s <= self.last_s and self.factor >= 1):
            raise InvalidRequest(
                f"redelivery back-off from {self.first_s} s to {self.last_s} s by {self.factor}: "
                "it must not be negative, nor shrink"
            )

    def delay_s(self, redeliveries: int) -> float:
        """Seconds to wait for a message that has been delivered again `redeliveries` times."""
        delay = self.first_s
        for _ in range(redeliveries):
            if delay >= self.last_s or self.factor == 1:
                break
            delay *= self.factor
        return min(delay, self.last_s)


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """What becomes of a message that was delivered again `redeliveries_max` times and is not
    acknowledged then either.

    It is published to `topic` (default `<topic>-<subscription>-DLQ`), where `initial_subscription`,
    if given, is created before it, and acknowledged. Its properties gain REAL_TOPIC and
    ORIGIN_MESSAGE_ID. For Shared and Key_Shared subscriptions.
    """

    redeliveries_max: int
    topic: str | None = None
    initial_subscription: str | None = None

    def __post_init__(self) -> None:
        if self.redeliveries_max < 1:
            raise InvalidRequest(
                f"redeliveries_max is {self.redeliveries_max}; a dead-letter policy needs at least "
                "1"
            )


class Schedule:
    """Entries by the moment at which they are to be delivered again (seconds of the caller's
    clock)."""

    def __init__(self) -> None:
        self._moments: dict[Position, float] = {}
        self._heap: list[tuple[float, Position]] = []

    def __len__(self) -> int:
        return len(self._moments)

    def put(self, position: Position, moment: float) -> None:
        """Replaces an earlier moment of the same entry."""
        self._moments[position] = moment
        heapq.heappush(self._heap, (moment, position))
        # mostly wishes that were replaced or dropped
        if len(self._heap) > 2 * len(self._moments) + 64:
            self._heap = [(at, entry) for entry, at in self._moments.items()]
            heapq.heapify(self._heap)

    def discard(self, position: Position) -> None:
        self._moments.pop(position, None)

    def discard_through(self, position: Position) -> None:
        for entry in [entry for entry in self._moments if entry <= position]:
            del self._moments[entry]

    def clear(self) -> None:
        self._moments.clear()
        self._heap.clear()

    def next(self) -> float | None:
        while self._heap and self._moments.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[Position]:
        due = []
        while (moment := self.next()) is not None and moment <= now:
            _, position = heapq.heappop(self._heap)
            del self._moments[position]
            due.append(position)
        return sorted(due)
