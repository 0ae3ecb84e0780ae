"""Entry ids of a topic's sidecar.

Owns: `SidecarIds`. Imports: errors, participant_records. Pure. Invariants: an id is given once;
durable runs follow each other without holes.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.errors import CorruptData
from magnetar.transactions.participant_records import NOWHERE, Append, Place


class SidecarIds:
    """Ids of one term, and `last`, the last durable position."""

    __slots__ = ("_ledger", "_next_entry", "_take_ledger", "_topic", "last")

    def __init__(self, topic: str, take_ledger: Callable[[], int]) -> None:
        self._topic, self._take_ledger = topic, take_ledger
        self._ledger, self._next_entry = -1, 0
        self.last: Place = NOWHERE

    def take(self, count: int) -> Place:
        """The first of `count` ids. Raises what `take_ledger` raises, for the first in a term."""
        if not self._next_entry:
            self._ledger = self._take_ledger()
            assert self._ledger > self.last[0], (self._ledger, self.last)
        first = (self._ledger, self._next_entry)
        self._next_entry += count
        return first

    def apply(self, change: Append) -> bool:
        """The run is durable; False if it was before. Raises CorruptData if it leaves a hole."""
        ledger, first = change.first
        if change.first <= self.last:
            return False
        if ledger == self.last[0] and first != self.last[1] + 1:
            raise CorruptData(
                f"topic {self._topic}: sidecar entry {change.first} does not follow {self.last}: "
                "records before it are missing"
            )
        self.last = (ledger, first + change.count - 1)
        return True

    def begin_term(self) -> None:
        """The term's ledger is taken with the next id."""
        self._ledger, self._next_entry = -1, 0
