"""Deadlines and remembered outcomes of transactions.

Owns: `Deadlines` of open transactions, `Outcomes` of ended ones. Imports: transaction, records.
Pure. Invariants: stale deadlines are no more than twice the unfinished transactions, and
OVER_HELD_MAX; beyond the limit, the outcome that would be forgotten first is dropped first.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Mapping

from magnetar.transactions.coordinator.transaction import Transaction
from magnetar.transactions.records import Outcome

OVER_HELD_MAX = 1_000
"""Stale deadlines that may be held besides: an older transaction may be open for long."""


class Deadlines:
    """A heap of (deadline, sequence); those of decided transactions are stale."""

    __slots__ = ("_heap", "_live")

    def __init__(self, live: Mapping[int, Transaction]) -> None:
        """`live` are the unfinished transactions."""
        self._heap: list[tuple[int, int]] = []
        self._live = live

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, found: Transaction) -> None:
        heapq.heappush(self._heap, (found.deadline_ms, found.least))

    def collect(self) -> None:
        """Hold those of open transactions only."""
        self._heap = [
            (found.deadline_ms, least)
            for least, found in self._live.items()
            if found.action is None
        ]
        heapq.heapify(self._heap)

    def transaction_ended(self) -> None:
        if len(self._heap) > 2 * len(self._live) + OVER_HELD_MAX:
            self.collect()

    def next_ms(self) -> int | None:
        """The next deadline of an open transaction."""
        while self._heap and self._open(self._heap[0][1]) is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> Transaction | None:
        """The next open transaction whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now_ms:
            if (found := self._open(heapq.heappop(self._heap)[1])) is not None:
                return found
        return None

    def _open(self, least: int) -> Transaction | None:
        found = self._live.get(least)
        return found if found is not None and found.action is None else None


class Outcomes:
    """How transactions have ended, at most `at_most` of them, by sequence."""

    __slots__ = ("_at_most", "_forgetting", "_known")

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._known: dict[int, Outcome] = {}
        self._forgetting: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._known)

    def get(self, least: int) -> Outcome | None:
        return self._known.get(least)

    def add(self, outcome: Outcome) -> None:
        self._known[outcome.least] = outcome
        heapq.heappush(self._forgetting, (outcome.forget_ms, outcome.least))
        while len(self._known) > self._at_most:
            self._drop()

    def next_ms(self) -> int | None:
        """When the next one is forgotten."""
        return self._forgetting[0][0] if self._forgetting else None

    def forget(self, now_ms: int, at_most: int = sys.maxsize) -> None:
        """Drop those that are kept until now, `at_most` of them."""
        while at_most and self._forgetting and self._forgetting[0][0] <= now_ms:
            self._drop()
            at_most -= 1

    def state(self) -> tuple[Outcome, ...]:
        """In the order in which they are forgotten."""
        return tuple(
            sorted(self._known.values(), key=lambda outcome: (outcome.forget_ms, outcome.least))
        )

    def _drop(self) -> None:
        del self._known[heapq.heappop(self._forgetting)[1]]
