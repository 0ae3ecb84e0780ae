"""Fences: which transactions have ended here.

Owns: `IdSet`, a compact set of numbers, and `Fences`, the outcomes that one topic or subscription
knows. Imports: ids, participant_records. Pure. Source: PIP-31 (the marker is a fence: later sends
of that transaction are refused). Invariants: an ended transaction never becomes open again; below a
coordinator's floor every transaction has ended; a run of numbers costs 16 bytes, however long it
is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import FenceState, Outcome

FENCES_MAX = 1 << 20
"""Runs of numbers of one coordinator that a topic or a subscription remembers before it takes no
more transactions: 16 MiB."""


class IdSet:
    """A set of u64 as runs, inclusive at both ends: sorted, neither overlapping nor touching."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, bounds: Iterable[int] = ()) -> None:
        """`bounds` are first and last number of each run, as `bounds` returns them."""
        known = array("Q", bounds)
        self._firsts, self._lasts = known[0::2], known[1::2]

    def __contains__(self, number: int) -> bool:
        if not self._lasts or number > self._lasts[-1]:
            return False
        index = bisect_right(self._firsts, number) - 1
        return index >= 0 and number <= self._lasts[index]

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self._firsts)

    def count(self) -> int:
        """How many numbers there are."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def bounds(self) -> array[int]:
        """First and last number of each run."""
        bounds = array("Q", bytes(16 * len(self._firsts)))
        bounds[0::2], bounds[1::2] = self._firsts, self._lasts
        return bounds

    def add(self, number: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        if lasts and number == lasts[-1] + 1:  # what is usual
            lasts[-1] = number
            return
        index = bisect_right(firsts, number)
        if index and number <= lasts[index - 1]:
            return
        after = index > 0 and lasts[index - 1] == number - 1
        before = index < len(firsts) and firsts[index] == number + 1
        if after and before:
            lasts[index - 1] = lasts[index]
            del firsts[index], lasts[index]
        elif after:
            lasts[index - 1] = number
        elif before:
            firsts[index] = number
        else:
            firsts.insert(index, number)
            lasts.insert(index, number)

    def drop_below(self, limit: int) -> None:
        """Remove every number below `limit`."""
        gone = bisect_left(self._lasts, limit)
        if gone:
            del self._firsts[:gone], self._lasts[:gone]
        if self._firsts and self._firsts[0] < limit:
            self._firsts[0] = limit


class _Coordinator:
    """Outcomes of one coordinator's transactions."""

    __slots__ = ("aborted", "committed", "floor")

    def __init__(
        self, floor: int = 0, committed: Iterable[int] = (), aborted: Iterable[int] = ()
    ) -> None:
        self.floor = floor
        self.committed, self.aborted = IdSet(committed), IdSet(aborted)


class Fences:
    """Outcomes by transaction."""

    __slots__ = ("_coordinators",)

    def __init__(self, states: Iterable[FenceState] = ()) -> None:
        self._coordinators = {
            state.coordinator: _Coordinator(state.floor, state.committed, state.aborted)
            for state in states
        }

    def outcome(self, txn: TxnId) -> Outcome | None:
        """How it has ended; None if it has not, as far as is known. Callers that know it to be open
        need not ask."""
        known = self._coordinators.get(txn.most)
        if known is None:
            return None
        if txn.least < known.floor:
            return Outcome.ENDED
        if txn.least in known.committed:
            return Outcome.COMMITTED
        return Outcome.ABORTED if txn.least in known.aborted else None

    def floor(self, coordinator: int) -> int:
        """Below this number every transaction of the coordinator has ended."""
        known = self._coordinators.get(coordinator)
        return known.floor if known is not None else 0

    def floors(self) -> dict[int, int]:
        """`floor` of every coordinator that anything is known of."""
        return {
            coordinator: known.floor for coordinator, known in sorted(self._coordinators.items())
        }

    def runs(self, coordinator: int) -> int:
        """Runs of numbers, 16 bytes each, that are kept of one coordinator's transactions."""
        known = self._coordinators.get(coordinator)
        return len(known.committed) + len(known.aborted) if known is not None else 0

    def aborted(self) -> int:
        """Aborted transactions that are remembered, of all coordinators."""
        return sum(known.aborted.count() for known in self._coordinators.values())

    def _of(self, coordinator: int) -> _Coordinator:
        known = self._coordinators.get(coordinator)
        if known is None:
            known = self._coordinators[coordinator] = _Coordinator()
        return known

    def end(self, txn: TxnId, outcome: Outcome) -> None:
        """The transaction has ended for good."""
        known = self._of(txn.most)
        if txn.least >= known.floor:
            (known.committed if outcome is Outcome.COMMITTED else known.aborted).add(txn.least)

    def raise_floor(self, coordinator: int, floor: int) -> bool:
        """Every transaction of the coordinator below `floor` has ended; True if that is news."""
        known = self._of(coordinator)
        if floor <= known.floor:
            return False
        known.floor = floor
        known.committed.drop_below(floor)
        known.aborted.drop_below(floor)
        return True

    def to_state(self) -> tuple[FenceState, ...]:
        """For a checkpoint, by coordinator."""
        return tuple(
            FenceState(coordinator, known.floor, known.committed.bounds(), known.aborted.bounds())
            for coordinator, known in sorted(self._coordinators.items())
        )
