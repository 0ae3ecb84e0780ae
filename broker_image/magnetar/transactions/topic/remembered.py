"""Sequence ids of committed transactions.

Owns: `RememberedCommits`, by which late repetitions are recognised. Imports: ids,
participant_records, parts. Pure. Invariant: the commit that was added first is forgotten first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import CommittedState, Place
from magnetar.transactions.topic.parts import (
    LowestNumbers,
    producers_in_state,
    producers_of_state,
)

Producers = dict[str, tuple[int, Place]]
"""Highest sequence id by producer, and the position of that entry."""


class RememberedCommits:
    """Producers of at most `at_most` commits."""

    __slots__ = ("_at_most", "_commits", "_lowest")

    def __init__(self, at_most: int, states: Iterable[CommittedState] = ()) -> None:
        self._at_most = at_most
        self._commits: dict[TxnId, Producers] = {}
        self._lowest = LowestNumbers()
        for state in states:
            self._commits[state.txn] = producers_of_state(state.producers)
            self._lowest.add(state.txn, self._commits)

    def find(self, txn: TxnId) -> Producers | None:
        return self._commits.get(txn)

    def add(self, txn: TxnId, producers: Producers) -> None:
        self._commits[txn] = producers
        self._lowest.add(txn, self._commits)
        while len(self._commits) > self._at_most:
            del self._commits[next(iter(self._commits))]

    def forget_below(self, floor: Callable[[int], int]) -> None:
        """Forget commits below their coordinators' floors."""
        for txn in self._lowest.below(floor, self._commits):
            del self._commits[txn]

    def sequences(self, producer: str) -> list[int]:
        """The producer's highest sequence ids, per commit."""
        return [found[producer][0] for found in self._commits.values() if producer in found]

    def to_state(self) -> tuple[CommittedState, ...]:
        return tuple(
            CommittedState(txn, producers_in_state(found)) for txn, found in self._commits.items()
        )
