"""Watermarks by brute force.

Owns: `Reference`, which answers for any beginning ("cut") of a list of events by looking at all of
them. Imports: records only: neither heaps nor folds. The rule in its plain form: a hold
of (p0, W0) applies from the producer's first message in the transaction to the transaction's end;
without a W0, while its producer is active, and as 0 once it has become idle.
"""

from __future__ import annotations

import itertools
from functools import cache

from magnetar.transactions.ids import TxnId
from magnetar.watermarks.records import Assertion, End, Event, Hold, Idle


class Reference:
    """`events` may grow."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self.changes = cache(self._changes)
        self.in_force = cache(self._in_force)
        self.exact = cache(self._exact)

    def _changes(self, cut: int) -> list[tuple[int, str, int | None]]:
        """(index, producer, assertion or None for idle) as they take effect before the cut."""
        found: list[tuple[int, str, int | None]] = []
        for index, event in enumerate(self._events[:cut]):
            if isinstance(event, End) and event.committed:
                found += [(index, name, ms) for name, ms in self._said(event.txn, index).items()]
            elif isinstance(event, Assertion | Idle) and event.txn is None:
                found.append((index, event.producer, getattr(event, "event_ms", None)))
        return found

    def _said(self, txn: TxnId, end: int) -> dict[str, int | None]:
        """What a transaction that ends at `end` has asserted."""
        start = max(
            (at + 1 for at, event in enumerate(self._events[:end]) if self._ends(event, txn)),
            default=0,
        )
        return {
            event.producer: getattr(event, "event_ms", None)
            for event in self._events[start:end]
            if isinstance(event, Assertion | Idle) and event.txn == txn
        }

    @staticmethod
    def _ends(event: Event, txn: TxnId) -> bool:
        return isinstance(event, End) and event.txn == txn

    def _in_force(self, producer: str, cut: int) -> int | None:
        mine = [ms for _, name, ms in self.changes(cut) if name == producer]
        return mine[-1] if mine else None

    def joined(self, producer: str, cut: int) -> int:
        """Where the producer became active that is active at the cut."""
        return max(
            at
            for at in range(cut)
            if self.in_force(producer, at) is None and self.in_force(producer, at + 1) is not None
        )

    def active(self, cut: int) -> dict[str, int]:
        names = {name for _, name, _ in self.changes(cut)}
        found = {name: self.in_force(name, cut) for name in names}
        return {name: ms for name, ms in found.items() if ms is not None}

    def holds(self, cut: int) -> list[tuple[str, int | None]]:
        """Producer and W0 of each hold that applies."""
        found = []
        for at, event in enumerate(self._events[:cut]):
            if not isinstance(event, Hold):
                continue
            since = [*self._events[at + 1 : cut]]
            before = self._events[:at]
            ends = [k for k, one in enumerate(before) if self._ends(one, event.txn)]
            first = event not in before[(ends[-1] + 1 if ends else 0) :]
            if first and not any(self._ends(one, event.txn) for one in since):
                found.append((event.producer, self._value(event.producer, at, cut)))
        return found

    def _value(self, producer: str, at: int, cut: int) -> int | None:
        """W0; 0 if there is none, and the producer has been active since and become idle."""
        asserted = [self.in_force(producer, index) for index in range(at, cut + 1)]
        left = any(
            before is not None and after is None for before, after in itertools.pairwise(asserted)
        )
        return 0 if asserted[0] is None and left else asserted[0]

    def _exact(self, cut: int) -> int | None:
        """None: nothing to deliver."""
        holds, active = self.holds(cut), self.active(cut)
        if any(ms is None and producer in active for producer, ms in holds):
            return None
        counted = cut
        while counted and not self.active(counted):
            counted -= 1
        values = [*self.active(counted).values()]
        return min([*values, *(ms for _, ms in holds if ms is not None)]) if values else None
