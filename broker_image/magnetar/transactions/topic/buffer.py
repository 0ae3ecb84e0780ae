"""The transaction buffer of one topic.

Owns: deduplication inside transactions, the ends of transactions, and what became of each sidecar
entry. Imports: errors, ids, participant_records, siblings. Pure: made with the first transactional
SEND; a topic that was never used with transactions has none. Source: PIP-31 (sidecar, marker,
dedup). Invariants: `append`, `commit` and `abort` return changes for the log, and `confirm` takes
them, in the same order, once they are durable: states for checkpoints hold confirmed changes only,
verdicts use all; ids of the sidecar are given once; an ended transaction stays ended; applying
changes that a state holds already changes nothing. The host writes an `Append` behind its entries:
entries without an `Append` belong to no transaction; an `Append` without its entries would make a
repetition a duplicate of missing entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from magnetar.errors import CorruptData, InvalidTxnStatus, NotAllowed
from magnetar.topics.ledger_ids import is_sidecar
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    NOWHERE,
    Abort,
    Append,
    BufferChange,
    BufferState,
    Commit,
    Outcome,
    Place,
    Span,
    Unbegun,
)
from magnetar.transactions.topic.destinations import Destinations
from magnetar.transactions.topic.fences import Fences
from magnetar.transactions.topic.inquiries import Inquiries
from magnetar.transactions.topic.limits import BufferLimits, Judgement, Verdict, repeated
from magnetar.transactions.topic.links import Links
from magnetar.transactions.topic.open_parts import OpenParts
from magnetar.transactions.topic.parts import ConfirmedPart, OpenTransaction, joined_spans
from magnetar.transactions.topic.remembered import RememberedCommits
from magnetar.transactions.topic.sidecar_ids import SidecarIds
from magnetar.transactions.topic.translations import Translated


class TransactionBuffer:
    """Transactions of one topic in one term. Recovery makes it with `from_state` (or empty) and
    `apply`. `committed` and `aborted` count those that ended in this term."""

    def __init__(
        self, topic: str, take_ledger: Callable[[], int], *, limits: BufferLimits | None = None
    ) -> None:
        """`take_ledger` gives the sidecar's ledger id of the term; it is called with the first
        entry, and may raise."""
        self.topic = topic
        self.limits = limits or BufferLimits()
        self.committed = self.aborted = 0
        self._ids = SidecarIds(topic, take_ledger)
        self._open = OpenParts()
        self._floors_ahead: dict[int, int] = {}
        self._fences = Fences()
        self._remembered = RememberedCommits(self.limits.remembered_commits_max)
        self._destinations = Destinations()
        self._inquiries = Inquiries()

    # --- sending ----------------------------------------------------------------------------------

    def judge(self, txn: TxnId, producer: str, sequence: int | None) -> Judgement:
        """What to do with an entry whose lowest sequence id is this (None: a chunk before the last,
        which is not tested).

        Raises NotAllowed if the transaction was aborted or its end is forgotten, or if too many are
        open, or too many ended ones remembered. (This error fails the send; other errors of the
        protocol make clients reconnect and send again without end.)
        """
        outcome = self.outcome(txn)
        if outcome in (Outcome.ABORTED, Outcome.ENDED):
            ended = "was ABORTED" if outcome is Outcome.ABORTED else "has ended"
            raise NotAllowed(
                f"transaction {txn} {ended}: begin another one; topic {self.topic} takes nothing "
                "more of it"
            )
        if outcome is Outcome.COMMITTED:
            return self._judge_late(txn, producer, sequence)
        if not self._open.is_open(txn):
            room = self.limits.open_transactions_max
            self.limits.check_room(
                self.topic, txn, self._open.reaches(room), self._fences.runs(txn.most)
            )
            return Judgement(Verdict.NEW)
        self._inquiries.changed(txn)
        return repeated(self._open.highest(txn, producer), sequence)

    def _judge_late(self, txn: TxnId, producer: str, sequence: int | None) -> Judgement:
        """The transaction's commit is durable or in flight."""
        remembered = self._remembered.find(txn)
        if remembered is None and not self._open.in_flight(txn):
            raise NotAllowed(
                f"transaction {txn} was committed, what it has sent here is not remembered any "
                "more: begin another one"
            )
        found = (
            self._open.highest(txn, producer) if remembered is None else remembered.get(producer)
        )
        judgement = repeated(found, sequence)
        if judgement.verdict is Verdict.DUPLICATE:
            translated = self._destinations.find(judgement.position)
            return (
                judgement
                if translated is None
                else Judgement(Verdict.DUPLICATE, translated.position)
            )
        return Judgement(Verdict.ORDINARY)

    def last_sequence(self, producer: str) -> int:
        """The highest sequence id that a producer of this name has used in any remembered
        transaction; -1 for none.

        A producer that returns under its name must begin above it, or its first entries are taken
        for repetitions.
        """
        known = (*self._remembered.sequences(producer), *self._open.sequences(producer))
        return max(known, default=-1)

    def append(
        self,
        txn: TxnId,
        producer: str,
        *,
        count: int,
        highest: int,
        size: int,
        messages: int,
        send_point: Place,
        now_ms: int,
    ) -> Append:
        """Give sidecar ids to a run of `count` entries, all of them judged NEW; what to write
        behind them. Other numbers: see `Append`.

        Raises NotAllowed if the transaction would become too large, or all that are open here
        together; LedgerIdsExhausted for the first in a term.
        """
        assert count > 0, count
        entries, total = self._open.size_of(txn)
        self.limits.check(
            self.topic, txn, entries + count, total + size, self._open.entries + count
        )
        first = self._ids.take(count)
        change = Append(txn, producer, first, count, highest, size, messages, send_point, now_ms)
        self._open.begin(change)
        return change

    # --- ending -----------------------------------------------------------------------------------

    def entries_to_commit(self, txn: TxnId) -> int | None:
        """How many ids of the partition a commit takes; None if it is durable or in flight: answer
        through the log's queue.

        Raises InvalidTxnStatus if the transaction was aborted here.
        """
        if self._may_end(txn, Outcome.COMMITTED):
            return self._open.size_of(txn)[0]
        return None

    def commit(self, txn: TxnId, marker: Place, floor: int, now_ms: int) -> Commit:
        """The partition has given the ids from `marker` on to the transaction's entries (NOWHERE
        if there are none)."""
        joined = joined_spans(self._open.spans_of(txn))
        assert bool(joined) == (marker != NOWHERE), (txn, marker, joined)
        change = Commit(txn, floor, marker, joined, now_ms)
        self._end(change)
        return change

    def abort(self, txn: TxnId, floor: int) -> Abort | None:
        """What to write; None if it is durable or in flight: answer through the log's queue.
        Raises InvalidTxnStatus if it was committed here."""
        if not self._may_end(txn, Outcome.ABORTED):
            return None
        change = Abort(txn, floor)
        self._end(change)
        return change

    def unbegun(self, txn: TxnId) -> Unbegun | None:
        """What to write when the coordinator has answered an inquiry (`to_inquire`) that the
        transaction has not begun.

        None if something was sent in it since, a repetition even: it may have begun since. Inquire
        again, then.
        """
        known = self._open.durable.get(txn)
        if known is None or self._open.in_flight(txn) or not self._inquiries.is_unchanged(txn):
            return None
        change = Unbegun(txn, known.spans[-1].last)
        self._open.begin(change)
        return change

    def orphans(self) -> list[TxnId]:
        """Open transactions below their coordinator's floor: they were never registered there, so
        no coordinator will end them. Abort them."""
        return [txn for txn in self._open.below(self._floor) if self.is_open(txn)]

    def to_inquire(self, now_ms: int, at_most: int) -> list[TxnId]:
        """Transactions that have been open for long (see `Inquiries`): ask their coordinators, and
        end those that have ended."""
        going_on = (txn for txn in self._open.durable if self._open.goes_on(txn))
        return self._inquiries.due(going_on, now_ms, self.limits.inquire_ms, at_most)

    def _may_end(self, txn: TxnId, wanted: Outcome) -> bool:
        """False if it has ended so already. Raises InvalidTxnStatus if it has ended the other
        way."""
        outcome = self.outcome(txn)
        if outcome is not None and outcome not in (wanted, Outcome.ENDED):
            raise InvalidTxnStatus(
                f"transaction {txn} was {outcome.name.lower()} on topic {self.topic} before"
            )
        return outcome is None

    def outcome(self, txn: TxnId) -> Outcome | None:
        """How the transaction has ended, durably or in flight; None if it is open or unknown."""
        if self._open.is_open(txn):
            return None
        if txn.least < self._floor(txn.most):
            return Outcome.ENDED
        ahead = self._open.end_in_flight(txn)
        return ahead if ahead is not None else self._fences.outcome(txn)

    def _floor(self, coordinator: int) -> int:
        return max(self._floors_ahead.get(coordinator, 0), self._fences.floor(coordinator))

    def _end(self, change: Commit | Abort) -> None:
        self._open.begin(change)
        if change.floor > self._floor(change.txn.most):
            self._floors_ahead[change.txn.most] = change.floor

    # --- the log ----------------------------------------------------------------------------------

    def confirm(self, change: BufferChange) -> None:
        """The change is durable. Must be called in the order in which they were made."""
        self._open.confirmed(change)
        self.committed += isinstance(change, Commit)
        self.aborted += isinstance(change, Abort)
        self.apply(change)

    def apply(self, change: BufferChange) -> None:
        """A change that is durable: in replay, one that the state holds may come again. Raises
        CorruptData if changes before it are missing."""
        if isinstance(change, Append):
            if self._ids.apply(change) and (
                change.txn in self._open.durable or self._fences.outcome(change.txn) is None
            ):
                self._open.apply(change)
            return
        known = self._open.durable.get(change.txn)
        if isinstance(change, Unbegun) and (known is None or known.spans[-1][:2] > change.last):
            return  # it has begun since, in what the state holds already
        self._open.take(change.txn)
        self._inquiries.forget(change.txn)
        if isinstance(change, Unbegun):
            return
        if known is not None or self._fences.outcome(change.txn) is None:
            if isinstance(change, Commit):
                self._apply_commit(change, known)
            else:
                self._destinations.abort(known.spans if known is not None else ())
                self._fences.end(change.txn, Outcome.ABORTED)
        if self._fences.raise_floor(change.txn.most, change.floor):
            self._remembered.forget_below(self._fences.floor)

    def _apply_commit(self, change: Commit, known: ConfirmedPart | None) -> None:
        entries = known.entries if known is not None else 0
        last = (change.marker[0], change.marker[1] + change.count - 1)
        # else of an earlier incarnation of the topic, whose state this is not
        if change.count != entries and last >= self._destinations.trimmed_to:
            raise CorruptData(
                f"topic {self.topic}: the marker of transaction {change.txn} names {change.count} "
                f"entries, {entries} are known"
            )
        self._destinations.commit(change)
        self._fences.end(change.txn, Outcome.COMMITTED)
        if self._fences.outcome(change.txn) is Outcome.COMMITTED:
            self._remembered.add(change.txn, known.producers if known is not None else {})

    def trim(self, first: Place) -> None:
        """The partition's first position is `first` now. Replay calls it too, in the order of the
        log."""
        self._destinations.trim(first)

    # --- questions --------------------------------------------------------------------------------

    def translate(self, position: Place) -> Translated | None:
        """The position in the partition that a receipt's position stands for; None if it is unknown
        (by now).

        Of an open or aborted transaction it is the last position before its place, and not exact:
        SEEK begins behind it, a cumulative ACK ends at it, an individual one has no effect.
        """
        assert is_sidecar(position), position
        found = self._destinations.find(position)
        if found is not None:
            return found
        waiting = self._open.span_at(position)
        return Translated(waiting.send_point, False) if waiting is not None else None

    def waits(self, position: Place) -> bool:
        """Whether a sidecar entry is of a transaction whose end is not durable yet."""
        return self._open.span_at(position) is not None

    @property
    def links(self) -> Links:
        """Where the partition's committed entries came from; only to be looked at."""
        return self._destinations.links

    def committed_to(self, position: Place) -> Place | None:
        """The entry of the partition that a sidecar entry has become; None if none, or one that
        was trimmed."""
        found = self._destinations.find(position)
        return found.position if found is not None and found.exact else None

    def open_transactions(self) -> Iterator[OpenTransaction]:
        """Those with durable entries here, the longest open first."""
        return (
            OpenTransaction(txn, known.since_ms, known.entries, known.size)
            for txn, known in self._open.durable.items()
        )

    def open_producers(self) -> list[tuple[TxnId, str]]:
        """Who has sent whole messages in which open transaction, those in flight included."""
        return self._open.producers()

    @property
    def open_entries(self) -> int:
        """Entries of transactions whose end is not durable, those in flight included."""
        return self._open.entries

    @property
    def has_open(self) -> bool:
        """Whether any transaction is open here, or its end in flight."""
        return bool(self._open)

    def durable_size(self, txn: TxnId) -> tuple[int, int]:
        """Bytes and messages of the durable entries of an open transaction; none for any other."""
        known = self._open.durable.get(txn)
        return (known.size, known.messages) if known is not None else (0, 0)

    def durable_spans(self, txn: TxnId) -> tuple[Span, ...]:
        """Where the durable entries of an open transaction lie; () for any other."""
        known = self._open.durable.get(txn)
        return tuple(known.spans) if known is not None else ()

    def is_open(self, txn: TxnId) -> bool:
        """Whether the transaction has entries here, and no end, durable or in flight."""
        return self._open.is_open(txn)

    @property
    def fences(self) -> Fences:
        """How transactions have ended here; only to be looked at."""
        return self._fences

    # --- checkpoint and recovery ------------------------------------------------------------------

    def to_state(self) -> BufferState:
        """Everything that recovery needs, confirmed changes only."""
        return BufferState(
            last=self._ids.last,
            trimmed_to=self._destinations.trimmed_to,
            open=self._open.to_state(),
            fences=self._fences.to_state(),
            committed=self._remembered.to_state(),
            translations=self._destinations.to_state(),
        )

    @staticmethod
    def from_state(
        topic: str,
        take_ledger: Callable[[], int],
        state: BufferState,
        *,
        limits: BufferLimits | None = None,
    ) -> TransactionBuffer:
        """The buffer of a checkpoint, to be served after replay of the log written since."""
        buffer = TransactionBuffer(topic, take_ledger, limits=limits)
        buffer._ids.last = state.last
        buffer._open = OpenParts(state.open)
        buffer._fences = Fences(state.fences)
        buffer._remembered = RememberedCommits(
            buffer.limits.remembered_commits_max, state.committed
        )
        buffer._destinations = Destinations(state.trimmed_to, state.translations)
        return buffer

    def begin_term(self) -> None:
        """A new term begins, whose ledger is taken with the next entry; nothing is in flight."""
        assert not self._open.is_in_flight
        self._ids.begin_term()
