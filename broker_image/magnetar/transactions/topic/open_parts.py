"""Open transactions of one topic.

Owns: `OpenParts`: what each open transaction has sent, durable or in flight, and where its entries
lie. Imports: ids, participant_records, parts. Pure. Invariants: a change is in flight from `begin`
to `confirmed`; states hold the durable part only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    NO_SEQUENCE,
    Append,
    BufferChange,
    Commit,
    OpenState,
    Outcome,
    Place,
    Span,
    Unbegun,
)
from magnetar.transactions.topic.parts import (
    ConfirmedPart,
    LowestNumbers,
    OpenSpans,
    PartAhead,
    producers_in_state,
    producers_of_state,
)


class OpenParts:
    """By transaction: `durable` parts, the longest open first, and parts in flight. `entries`
    counts both."""

    __slots__ = ("_ahead", "_in_flight", "_lowest", "_spans", "durable", "entries")

    def __init__(self, states: Iterable[OpenState] = ()) -> None:
        self.durable: dict[TxnId, ConfirmedPart] = {}
        self.entries = 0
        self._ahead: dict[TxnId, PartAhead] = {}
        self._in_flight: deque[BufferChange] = deque()
        self._lowest = LowestNumbers()
        spans: list[tuple[Span, TxnId]] = []
        for state in states:
            self.durable[state.txn] = part = ConfirmedPart(
                state.since_ms,
                state.size,
                state.messages,
                sum(span.entries for span in state.spans),
                list(state.spans),
                producers_of_state(state.producers),
            )
            self.entries += part.entries
            self._lowest.add(state.txn, self.durable)
            spans += [(span, state.txn) for span in state.spans]
        self._spans = OpenSpans(self._is_there, spans)

    def __bool__(self) -> bool:
        return bool(self.durable or self._ahead)

    # --- questions --------------------------------------------------------------------------------

    def _is_there(self, txn: TxnId) -> bool:
        return txn in self.durable or txn in self._ahead

    @property
    def is_in_flight(self) -> bool:
        """Whether any change is in flight."""
        return bool(self._in_flight)

    def in_flight(self, txn: TxnId) -> bool:
        """Whether a change of the transaction is in flight."""
        return txn in self._ahead

    def is_open(self, txn: TxnId) -> bool:
        """Whether the transaction has entries here, and no end, durable or in flight."""
        ahead = self._ahead.get(txn)
        if ahead is None:
            return txn in self.durable
        return ahead.outcome is None and (ahead.entries > 0 or self._standing(txn) is not None)

    def goes_on(self, txn: TxnId) -> bool:
        """Whether nothing in flight ends the transaction or makes it void."""
        ahead = self._ahead.get(txn)
        return ahead is None or (ahead.outcome is None and not ahead.voids)

    def end_in_flight(self, txn: TxnId) -> Outcome | None:
        ahead = self._ahead.get(txn)
        return ahead.outcome if ahead is not None else None

    def reaches(self, most: int) -> bool:
        """Whether there are at least so many transactions."""
        durable, ahead = self.durable, self._ahead
        return len(durable) + len(ahead) >= most and len(durable.keys() | ahead.keys()) >= most

    def _standing(self, txn: TxnId) -> ConfirmedPart | None:
        """The durable part, unless a change in flight makes it void."""
        ahead = self._ahead.get(txn)
        return None if ahead is not None and ahead.voids else self.durable.get(txn)

    def size_of(self, txn: TxnId) -> tuple[int, int]:
        """Entries and bytes of the transaction."""
        ahead, known = self._ahead.get(txn), self._standing(txn)
        return (
            (ahead.entries if ahead else 0) + (known.entries if known else 0),
            (ahead.size if ahead else 0) + (known.size if known else 0),
        )

    def spans_of(self, txn: TxnId) -> list[Span]:
        ahead, known = self._ahead.get(txn), self._standing(txn)
        return [*(known.spans if known else ()), *(ahead.spans if ahead else ())]

    def highest(self, txn: TxnId, producer: str) -> tuple[int, Place] | None:
        """The producer's highest sequence id in the transaction, and the position of that entry."""
        ahead, known = self._ahead.get(txn), self._standing(txn)
        found = ahead.producers.get(producer) if ahead is not None else None
        if found is None and known is not None:
            found = known.producers.get(producer)
        return found

    def sequences(self, producer: str) -> list[int]:
        """The producer's highest sequence ids, per part."""
        parts = [part.producers for part in self.durable.values()]
        parts += [part.producers for part in self._ahead.values()]
        return [producers[producer][0] for producers in parts if producer in producers]

    def producers(self) -> list[tuple[TxnId, str]]:
        """Producers of the transactions that are open, each once."""
        parts = ((txn, part.producers) for txn, part in self.durable.items())
        ahead = ((txn, part.producers) for txn, part in self._ahead.items())
        named = ((txn, name) for txn, names in (*parts, *ahead) for name in names)
        return [found for found in dict.fromkeys(named) if self.is_open(found[0])]

    def span_at(self, position: Place) -> Span | None:
        """The span that holds a sidecar entry."""
        return self._spans.find(position)

    # --- changes ----------------------------------------------------------------------------------

    def begin(self, change: BufferChange) -> None:
        """The change goes to the log."""
        self._in_flight.append(change)
        ahead = self._ahead.get(change.txn)
        if ahead is None:
            ahead = self._ahead[change.txn] = PartAhead()
        ahead.changes += 1
        if isinstance(change, Append):
            assert ahead.outcome is None, (change, ahead)
            ahead.entries, ahead.size = ahead.entries + change.count, ahead.size + change.size
            self.entries += change.count
            ledger, first = change.first
            span = Span(ledger, first, change.count, change.send_point)
            ahead.spans.append(span)
            self._spans.add(change.txn, span)
            if change.highest != NO_SEQUENCE:
                last = (ledger, first + change.count - 1)
                ahead.producers[change.producer] = (change.highest, last)
        elif isinstance(change, Unbegun):
            ahead.voids = True
        else:
            ahead.outcome = Outcome.COMMITTED if isinstance(change, Commit) else Outcome.ABORTED

    def confirmed(self, change: BufferChange) -> None:
        """The change is durable, and about to be applied; in the order of `begin`."""
        expected = self._in_flight.popleft()
        assert change is expected, (change, expected)
        ahead = self._ahead[change.txn]
        ahead.changes -= 1
        if isinstance(change, Append):
            ahead.spans.popleft()
            ahead.entries -= change.count
            ahead.size -= change.size
            self.entries -= change.count
        elif isinstance(change, Unbegun):
            ahead.voids = False
        if not ahead.changes:
            del self._ahead[change.txn]

    def apply(self, change: Append) -> None:
        """Add a durable run."""
        known = self.durable.get(change.txn)
        if known is None:
            known = self.durable[change.txn] = ConfirmedPart(change.append_ms)
            self._lowest.add(change.txn, self.durable)
        known.entries += change.count
        self.entries += change.count
        known.size, known.messages = known.size + change.size, known.messages + change.messages
        ledger, first = change.first
        span = Span(ledger, first, change.count, change.send_point)
        last = known.spans[-1] if known.spans else None
        if last is not None and (last.ledger, last.first + last.entries, last.send_point) == (
            ledger,
            first,
            change.send_point,
        ):
            known.spans[-1] = last._replace(entries=last.entries + span.entries)
        else:
            known.spans.append(span)
        self._spans.add(change.txn, span)
        if change.highest != NO_SEQUENCE:
            known.producers[change.producer] = (
                change.highest,
                (ledger, first + change.count - 1),
            )

    def take(self, txn: TxnId) -> ConfirmedPart | None:
        """Take out the durable part of a transaction that has ended or is void."""
        known = self.durable.pop(txn, None)
        if known is not None:
            self._spans.ended(len(known.spans))
            self.entries -= known.entries
        return known

    def below(self, floor: Callable[[int], int]) -> list[TxnId]:
        """Durable transactions below their coordinators' floors."""
        return self._lowest.below(floor, self.durable)

    def to_state(self) -> tuple[OpenState, ...]:
        return tuple(
            OpenState(
                txn,
                known.since_ms,
                known.size,
                known.messages,
                tuple(known.spans),
                producers_in_state(known.producers),
            )
            for txn, known in self.durable.items()
        )
