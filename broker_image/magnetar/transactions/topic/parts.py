"""What a transaction buffer keeps of one open transaction.

Owns: `ConfirmedPart`, which is durable, and `PartAhead`, which is in flight; `OpenTransaction`,
what `explain` shows; how states hold producers; `LowestNumbers`, which finds transactions below a
floor; `OpenSpans`, which finds the transaction of an entry. Imports: ids, participant_records.
Pure. Invariant: producers are known by name, each with its highest sequence id and where that entry
lies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import Outcome, Place, Span

GONE_HELD_MAX = 1_000
"""Transactions that have gone which `LowestNumbers` may hold, besides as many as are there: a
floor may stay where it is for long."""

_BEHIND = 1 << 62
"""More entries than any span has."""


@dataclass(slots=True)
class ConfirmedPart:
    """Confirmed part of an open transaction."""

    since_ms: int
    size: int = 0
    messages: int = 0
    entries: int = 0
    spans: list[Span] = field(default_factory=list)
    producers: dict[str, tuple[int, Place]] = field(default_factory=dict)


@dataclass(slots=True)
class PartAhead:
    """The part of a transaction that is in flight to stable storage. `voids`: its first change
    makes the confirmed part void."""

    changes: int = 0
    size: int = 0
    entries: int = 0
    spans: deque[Span] = field(default_factory=deque)
    producers: dict[str, tuple[int, Place]] = field(default_factory=dict)
    outcome: Outcome | None = None
    voids: bool = False


class OpenTransaction(NamedTuple):
    """What `explain` and metrics show of an open transaction."""

    txn: TxnId
    since_ms: int
    entries: int
    size: int


class LowestNumbers:
    """Numbers of some transactions by coordinator, as heaps. Ended ones stay until a floor passes
    them, or until they are too many."""

    __slots__ = ("_heaps",)

    def __init__(self) -> None:
        self._heaps: dict[int, list[int]] = {}

    def add(self, txn: TxnId, present: Collection[TxnId]) -> None:
        """A transaction that was not there before; `present` are all that are there now."""
        heap = self._heaps.get(txn.most)
        if heap is None:
            heap = self._heaps[txn.most] = []
        heappush(heap, txn.least)
        if len(heap) > 2 * len(present) + GONE_HELD_MAX:
            heap[:] = sorted(least for most, least in present if most == txn.most)

    def below(self, floor: Callable[[int], int], present: Container[TxnId]) -> list[TxnId]:
        """Those of `present` below their coordinators' floors; they are found again until they
        are there no more."""
        found = []
        for most, heap in self._heaps.items():
            limit, low = floor(most), set()
            while heap and heap[0] < limit:
                low.add(heappop(heap))
            left = [txn for least in sorted(low) if (txn := TxnId(most, least)) in present]
            for txn in left:
                heappush(heap, txn.least)
            found += left
        return found


class OpenSpans:
    """Spans of transactions by position. Those of ended ones stay until they are as many as the
    others.

    `is_open` says whether a transaction is open. An ended one stays ended, except under an id that
    entries named before the coordinator gave it: such void entries are found again while the
    transaction that has begun since is open. That keeps files for as long and changes no message.
    """

    __slots__ = ("_gone", "_is_open", "_spans", "_transactions")

    def __init__(
        self, is_open: Callable[[TxnId], bool], known: Iterable[tuple[Span, TxnId]] = ()
    ) -> None:
        self._is_open, in_order = is_open, sorted(known)
        self._spans = [span for span, _ in in_order]
        self._transactions = [txn for _, txn in in_order]
        self._gone = 0

    def add(self, txn: TxnId, span: Span) -> None:
        """Behind all others; nothing if it is there already."""
        if self._spans:
            last = self._spans[-1]
            end = (last.ledger, last.first + last.entries)
            if (span.ledger, span.first) < end:
                return
            if (
                (span.ledger, span.first) == end
                and txn == self._transactions[-1]
                and span.send_point == last.send_point
            ):
                self._spans[-1] = last._replace(entries=last.entries + span.entries)
                return
        self._spans.append(span)
        self._transactions.append(txn)

    def find(self, position: Place) -> Span | None:
        """The span of an open transaction that holds a position."""
        at = bisect_right(self._spans, (*position, _BEHIND)) - 1
        if at < 0:
            return None
        span = self._spans[at]
        within = span.ledger == position[0] and position[1] < span.first + span.entries
        return span if within and self._is_open(self._transactions[at]) else None

    def ended(self, spans: int) -> None:
        """A transaction of so many spans has ended."""
        self._gone += spans
        if self._gone > GONE_HELD_MAX + len(self._spans) // 2:
            left = [at for at, txn in enumerate(self._transactions) if self._is_open(txn)]
            self._spans = [self._spans[at] for at in left]
            self._transactions = [self._transactions[at] for at in left]
            self._gone = 0


def joined_spans(spans: Iterable[Span]) -> tuple[tuple[int, int, int], ...]:
    """(ledger, first, count) of the spans; consecutive ones are one."""
    joined: list[tuple[int, int, int]] = []
    for ledger, first, count, _ in spans:
        if joined and joined[-1][0] == ledger and joined[-1][1] + joined[-1][2] == first:
            joined[-1] = (ledger, joined[-1][1], joined[-1][2] + count)
        else:
            joined.append((ledger, first, count))
    return tuple(joined)


def producers_in_state(known: dict[str, tuple[int, Place]]) -> tuple[tuple[str, int, Place], ...]:
    """(name, highest sequence id, position of its entry), by name."""
    return tuple((name, sequence, position) for name, (sequence, position) in sorted(known.items()))


def producers_of_state(producers: Iterable[tuple[str, int, Place]]) -> dict[str, tuple[int, Place]]:
    """The inverse of `producers_in_state`."""
    return {name: (sequence, position) for name, sequence, position in producers}
