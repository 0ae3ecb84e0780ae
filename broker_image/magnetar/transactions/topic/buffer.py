"""The transaction buffer of one topic.

Owns: which transactions are open here and where their entries lie in the topic's sidecar,
deduplication inside transactions, the fences of ended ones, and what became of each sidecar entry.
Imports: errors, ids, participant_records, judgement, open_parts, fences, translations, links. Pure:
made with the first transactional SEND; a topic that was never used with transactions has none.
Source: PIP-31 (sidecar, marker, dedup). Invariants: `append`, `commit` and `abort` return what the
log is to hold, and `confirm` takes it, in the same order, when it is durable: states for
checkpoints hold confirmed changes only, verdicts know of all; ids of the sidecar are never given
twice; an ended transaction stays ended; applying changes that a state holds already changes
nothing. The host writes an `Append` behind its entries: entries without it are nobody's, while it
without them would make a repetition a duplicate of what is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from magnetar.errors import CorruptData, InvalidTxnStatus, NotAllowed
from magnetar.topics.ledger_ids import is_sidecar
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    NO_SEQUENCE,
    NOWHERE,
    Abort,
    Append,
    BufferChange,
    BufferState,
    Commit,
    CommittedState,
    OpenState,
    Outcome,
    Place,
    Span,
    Unbegun,
)
from magnetar.transactions.topic.fences import Fences
from magnetar.transactions.topic.limits import BufferLimits, Judgement, Verdict, repeated
from magnetar.transactions.topic.links import Links
from magnetar.transactions.topic.parts import (
    ConfirmedPart,
    LowestNumbers,
    OpenSpans,
    OpenTransaction,
    PartAhead,
    producers_in_state,
    producers_of_state,
)
from magnetar.transactions.topic.translations import Translated, Translations


class TransactionBuffer:
    """Transactions of one topic in one term. Recovery makes it with `from_state` (or empty) and
    `apply`."""

    def __init__(
        self, topic: str, take_ledger: Callable[[], int], *, limits: BufferLimits | None = None
    ) -> None:
        """`take_ledger` gives the sidecar's ledger id in the term that is served; it is called
        with the first entry, and may raise."""
        self.topic = topic
        self.limits = limits or BufferLimits()
        self._take_ledger = take_ledger
        self._ledger, self._next_entry = -1, 0
        self._last: Place = NOWHERE
        self._trimmed_to: Place = NOWHERE
        self._open: dict[TxnId, ConfirmedPart] = {}
        self._open_entries = 0  # of `_open` and `_ahead` together
        self._ahead: dict[TxnId, PartAhead] = {}
        self._floors_ahead: dict[int, int] = {}
        self._in_flight: deque[BufferChange] = deque()
        self._fences = Fences()
        self._committed: dict[TxnId, dict[str, tuple[int, Place]]] = {}
        self._translations, self._links = Translations(), Links()
        self._inquired: dict[TxnId, int] = {}
        self._unchanged: set[TxnId] = set()  # since they were to be inquired after
        self._lowest, self._remembered = LowestNumbers(), LowestNumbers()
        self._spans = OpenSpans(self._is_there)

    # --- sending ----------------------------------------------------------------------------------

    def judge(self, txn: TxnId, producer: str, sequence: int | None) -> Judgement:
        """What to do with an entry whose lowest sequence id is this (None: a chunk before the last,
        which is not tested).

        Raises NotAllowed if the transaction takes nothing more: it was aborted, or its end is so
        long ago that nothing is known of it, or too many are open here, or too many that have ended
        are remembered. (Of the protocol's errors this one fails the send; others make clients
        reconnect and send it again permanently.)
        """
        outcome = self._outcome(txn)
        if outcome is Outcome.ABORTED:
            raise NotAllowed(
                f"transaction {txn} was ABORTED: begin another one; topic {self.topic} takes "
                "nothing more of it"
            )
        if outcome is Outcome.ENDED:
            raise NotAllowed(
                f"transaction {txn} has ended: begin another one; topic {self.topic} takes nothing "
                "more of it"
            )
        if outcome is Outcome.COMMITTED:
            return self._judge_late(txn, producer, sequence)
        if not self.is_open(txn):
            self._check_room(txn)
            return Judgement(Verdict.NEW)
        self._unchanged.discard(txn)
        return repeated(self._highest(txn, producer), sequence)

    def _check_room(self, txn: TxnId) -> None:
        """Raises NotAllowed if one more transaction is too much."""
        most = self.limits.open_transactions_max
        if (
            len(self._open) + len(self._ahead) >= most
            and len(self._open.keys() | self._ahead.keys()) >= most
        ):
            raise NotAllowed(
                f"topic {self.topic} has {most} open transactions, the most it takes "
                "(txn_open_per_topic_max); end some"
            )
        if self._fences.runs(txn.most) >= self.limits.fences_max:
            raise NotAllowed(
                f"topic {self.topic} remembers {self.limits.fences_max} runs of ended transactions "
                f"of coordinator {txn.most}, the most it "
                "does: end that coordinator's oldest transactions"
            )

    def _judge_late(self, txn: TxnId, producer: str, sequence: int | None) -> Judgement:
        """The transaction has committed, or is about to."""
        remembered = self._committed.get(txn)
        if remembered is None and txn not in self._ahead:
            raise NotAllowed(
                f"transaction {txn} was committed, what it has sent here is not remembered any "
                "more: begin another one"
            )
        found = self._highest(txn, producer) if remembered is None else remembered.get(producer)
        judgement = repeated(found, sequence)
        if judgement.verdict is Verdict.DUPLICATE:
            translated = self._translations.find(judgement.position)
            return (
                judgement
                if translated is None
                else Judgement(Verdict.DUPLICATE, translated.position)
            )
        return Judgement(Verdict.ORDINARY)

    def _standing(self, txn: TxnId) -> ConfirmedPart | None:
        """The confirmed part of an open transaction, if it is not about to be void."""
        ahead = self._ahead.get(txn)
        return None if ahead is not None and ahead.voids else self._open.get(txn)

    def _highest(self, txn: TxnId, producer: str) -> tuple[int, Place] | None:
        """The highest sequence id of a producer in an open transaction, and where it went."""
        ahead, known = self._ahead.get(txn), self._standing(txn)
        found = ahead.producers.get(producer) if ahead is not None else None
        if found is None and known is not None:
            found = known.producers.get(producer)
        return found

    def last_sequence(self, producer: str) -> int:
        """The highest sequence id that a producer of this name has used in any transaction
        remembered here; -1 for none.

        A producer that is made again under its name must begin above it, or its first entries pass
        for repetitions.
        """
        known = [transaction.producers for transaction in self._open.values()]
        known += [transaction.producers for transaction in self._ahead.values()]
        return max(
            (
                found[producer][0]
                for found in (*known, *self._committed.values())
                if producer in found
            ),
            default=-1,
        )

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
        ahead, known = self._ahead.get(txn), self._standing(txn)
        assert ahead is None or ahead.outcome is None, (txn, ahead)
        entries = count + (ahead.entries if ahead else 0) + (known.entries if known else 0)
        total = size + (ahead.size if ahead else 0) + (known.size if known else 0)
        self.limits.check(self.topic, txn, entries, total, self._open_entries + count)
        if not self._next_entry:
            self._ledger = self._take_ledger()
            assert self._ledger > self._last[0], (self._ledger, self._last)
        first = (self._ledger, self._next_entry)
        self._next_entry += count
        change = Append(txn, producer, first, count, highest, size, messages, send_point, now_ms)
        ahead = self._begin(change)
        ahead.entries, ahead.size = ahead.entries + count, ahead.size + size
        self._open_entries += count
        span = Span(*first, count, send_point)
        ahead.spans.append(span)
        self._spans.add(txn, span)
        if highest != NO_SEQUENCE:
            ahead.producers[producer] = (highest, (first[0], first[1] + count - 1))
        return change

    # --- ending -----------------------------------------------------------------------------------

    def entries_to_commit(self, txn: TxnId) -> int | None:
        """How many ids of the partition a commit takes; None if it is done, or on its way: answer
        through the log's queue.

        Raises InvalidTxnStatus if the transaction was aborted here.
        """
        if self._may_end(txn, Outcome.COMMITTED):
            ahead, known = self._ahead.get(txn), self._standing(txn)
            return (ahead.entries if ahead else 0) + (known.entries if known else 0)
        return None

    def commit(self, txn: TxnId, marker: Place, floor: int, now_ms: int) -> Commit:
        """The partition has given the ids from `marker` on to the transaction's entries (NOWHERE
        if there are none)."""
        ahead, known = self._ahead.get(txn), self._standing(txn)
        spans = [*(known.spans if known else ()), *(ahead.spans if ahead else ())]
        joined: list[tuple[int, int, int]] = []
        for ledger, first, count, _ in spans:
            if joined and joined[-1][0] == ledger and joined[-1][1] + joined[-1][2] == first:
                joined[-1] = (ledger, joined[-1][1], joined[-1][2] + count)
            else:
                joined.append((ledger, first, count))
        assert bool(joined) == (marker != NOWHERE), (txn, marker, joined)
        change = Commit(txn, floor, marker, tuple(joined), now_ms)
        self._end(change, Outcome.COMMITTED)
        return change

    def abort(self, txn: TxnId, floor: int) -> Abort | None:
        """What to write; None if it is done, or on its way: answer through the log's queue.
        Raises InvalidTxnStatus if it was committed here."""
        if not self._may_end(txn, Outcome.ABORTED):
            return None
        change = Abort(txn, floor)
        self._end(change, Outcome.ABORTED)
        return change

    def unbegun(self, txn: TxnId) -> Unbegun | None:
        """What to write when the coordinator has said, after `to_inquire` named it, that the
        transaction has not begun.

        None if something was sent in it since, a repetition even: it may have begun concurrently.
        Inquire again, then.
        """
        known = self._open.get(txn)
        if known is None or txn in self._ahead or txn not in self._unchanged:
            return None
        change = Unbegun(txn, known.spans[-1].last)
        self._begin(change).voids = True
        return change

    def orphans(self) -> list[TxnId]:
        """Open transactions below their coordinator's floor: they were never registered there,
        and nobody else will end them. Abort them."""
        return [txn for txn in self._lowest.below(self._floor, self._open) if self.is_open(txn)]

    def to_inquire(self, now_ms: int, at_most: int) -> list[TxnId]:
        """Transactions that have been open for long (or long since the last time): ask their
        coordinators, and end those that have ended.

        How long is counted from the first call that finds them (`now_ms` is `clock.elapsed_ms`), so
        that a restart counts from zero.
        """
        long_ago_ms = now_ms - self.limits.inquire_ms
        due = [
            txn
            for txn in self._open
            if self._inquired.setdefault(txn, now_ms) <= long_ago_ms and self._goes_on(txn)
        ][:at_most]
        self._inquired.update(dict.fromkeys(due, now_ms))
        self._unchanged.update(due)
        return due

    def _goes_on(self, txn: TxnId) -> bool:
        return (ahead := self._ahead.get(txn)) is None or (
            ahead.outcome is None and not ahead.voids
        )

    def _may_end(self, txn: TxnId, wanted: Outcome) -> bool:
        """False if it has ended so already. Raises InvalidTxnStatus if it has ended the other
        way."""
        outcome = self._outcome(txn)
        if outcome is not None and outcome not in (wanted, Outcome.ENDED):
            raise InvalidTxnStatus(
                f"transaction {txn} was {outcome.name.lower()} on topic {self.topic} before"
            )
        return outcome is None

    def _outcome(self, txn: TxnId) -> Outcome | None:
        """How the transaction has ended, or is about to; None if it is open or unknown."""
        if self.is_open(txn):
            return None
        if txn.least < self._floor(txn.most):
            return Outcome.ENDED
        ahead = self._ahead.get(txn)
        return (
            ahead.outcome
            if ahead is not None and ahead.outcome is not None
            else self._fences.outcome(txn)
        )

    def _floor(self, coordinator: int) -> int:
        return max(self._floors_ahead.get(coordinator, 0), self._fences.floor(coordinator))

    def _end(self, change: Commit | Abort, outcome: Outcome) -> None:
        self._begin(change).outcome = outcome
        if change.floor > self._floor(change.txn.most):
            self._floors_ahead[change.txn.most] = change.floor

    def _begin(self, change: BufferChange) -> PartAhead:
        """The change goes to the log."""
        self._in_flight.append(change)
        ahead = self._ahead.get(change.txn)
        if ahead is None:
            ahead = self._ahead[change.txn] = PartAhead()
        ahead.changes += 1
        return ahead

    # --- the log ----------------------------------------------------------------------------------

    def confirm(self, change: BufferChange) -> None:
        """The change is durable. Must be called in the order in which they were made."""
        expected = self._in_flight.popleft()
        assert change is expected, (change, expected)
        ahead = self._ahead[change.txn]
        ahead.changes -= 1
        if isinstance(change, Append):
            ahead.spans.popleft()
            ahead.entries -= change.count
            self._open_entries -= change.count
            ahead.size -= change.size
        elif isinstance(change, Unbegun):
            ahead.voids = False
        if not ahead.changes:
            del self._ahead[change.txn]
        self.apply(change)

    def apply(self, change: BufferChange) -> None:
        """A change that is durable: in replay, one that the state holds may come again. Raises
        CorruptData if changes before it are missing."""
        if isinstance(change, Append):
            self._apply_append(change)
            return
        known = self._open.get(change.txn)
        if isinstance(change, Unbegun):
            # else it has begun since, in what the state holds already
            if known is not None and known.spans[-1][:2] <= change.last:
                self._forget_open(change.txn)
            return
        self._forget_open(change.txn)
        if known is not None or self._fences.outcome(change.txn) is None:
            if isinstance(change, Commit):
                self._apply_commit(change, known)
            else:
                self._apply_abort(change, known)
        if self._fences.raise_floor(change.txn.most, change.floor):
            for txn in self._remembered.below(self._fences.floor, self._committed):
                del self._committed[txn]

    def _forget_open(self, txn: TxnId) -> None:
        if (known := self._open.pop(txn, None)) is not None:
            self._spans.ended(len(known.spans))
            self._open_entries -= known.entries
        self._inquired.pop(txn, None)
        self._unchanged.discard(txn)

    def _apply_append(self, change: Append) -> None:
        ledger, first = change.first
        if change.first <= self._last:
            return
        if ledger == self._last[0] and first != self._last[1] + 1:
            raise CorruptData(
                f"topic {self.topic}: sidecar entry {change.first} does not follow {self._last}: "
                "records before it are missing"
            )
        self._last = (ledger, first + change.count - 1)
        known = self._open.get(change.txn)
        if known is None:
            if self._fences.outcome(change.txn) is not None:
                return
            known = self._open[change.txn] = ConfirmedPart(change.append_ms)
            self._lowest.add(change.txn, self._open)
        known.entries += change.count
        self._open_entries += change.count
        known.size, known.messages = known.size + change.size, known.messages + change.messages
        last = known.spans[-1] if known.spans else None
        if last is not None and (last.ledger, last.first + last.entries, last.send_point) == (
            ledger,
            first,
            change.send_point,
        ):
            known.spans[-1] = last._replace(entries=last.entries + change.count)
        else:
            known.spans.append(Span(ledger, first, change.count, change.send_point))
        self._spans.add(change.txn, Span(ledger, first, change.count, change.send_point))
        if change.highest != NO_SEQUENCE:
            known.producers[change.producer] = (change.highest, self._last)

    def _apply_commit(self, change: Commit, known: ConfirmedPart | None) -> None:
        entries = known.entries if known is not None else 0
        last = (change.marker[0], change.marker[1] + change.count - 1)
        # else of an earlier incarnation of the topic, whose state this is not
        if change.count != entries and last >= self._trimmed_to:
            raise CorruptData(
                f"topic {self.topic}: the marker of transaction {change.txn} names {change.count} "
                f"entries, {entries} are known"
            )
        ledger, entry = change.marker
        for span in change.spans:
            if (ledger, entry + span[2] - 1) >= self._trimmed_to:
                self._translations.add(span, (ledger, entry), committed=True)
                self._links.add((ledger, entry), span)
            entry += span[2]
        self._fences.end(change.txn, Outcome.COMMITTED)
        if self._fences.outcome(change.txn) is Outcome.COMMITTED:
            self._committed[change.txn] = known.producers if known is not None else {}
            self._remembered.add(change.txn, self._committed)
        while len(self._committed) > self.limits.remembered_commits_max:
            del self._committed[next(iter(self._committed))]

    def _apply_abort(self, change: Abort, known: ConfirmedPart | None) -> None:
        for ledger, first, count, send_point in known.spans if known is not None else ():
            if send_point >= self._trimmed_to:
                self._translations.add((ledger, first, count), send_point, committed=False)
        self._fences.end(change.txn, Outcome.ABORTED)

    def trim(self, first: Place) -> None:
        """The partition's first position is `first` now: in replay, too, before what the log
        holds behind the trimming."""
        if first > self._trimmed_to:
            self._trimmed_to = first
            self._translations.trim(first)
            self._links.trim(first)

    # --- questions --------------------------------------------------------------------------------

    def translate(self, position: Place) -> Translated | None:
        """What a receipt's position means in the partition; None: nothing is known of it (any
        more).

        Of an open or aborted transaction it is the last position before its place, and not exact:
        SEEK begins behind it, a cumulative ACK goes up to it, an individual one means nothing.
        """
        assert is_sidecar(position), position
        found = self._translations.find(position)
        if found is not None:
            return found
        waiting = self._spans.find(position)
        return Translated(waiting.send_point, False) if waiting is not None else None

    def waits(self, position: Place) -> bool:
        """Whether a sidecar entry is of a transaction whose end is not durable yet."""
        return self._spans.find(position) is not None

    def _is_there(self, txn: TxnId) -> bool:
        return txn in self._open or txn in self._ahead

    def source_of(self, position: Place) -> tuple[Place, int] | None:
        """The sidecar entry that an entry of the partition is, and how many follow it on both
        sides; None if it was published plainly."""
        return self._links.find(position)

    @property
    def links(self) -> Links:
        """Where the partition's committed entries came from; only to be looked at."""
        return self._links

    def committed_to(self, position: Place) -> Place | None:
        """The entry of the partition that a sidecar entry has become; None if none, or one that
        was trimmed."""
        found = self._translations.find(position)
        return found.position if found is not None and found.exact else None

    def open_transactions(self) -> Iterator[OpenTransaction]:
        """Those with durable entries here, the longest open first."""
        return (
            OpenTransaction(txn, known.since_ms, known.entries, known.size)
            for txn, known in self._open.items()
        )

    @property
    def open_entries(self) -> int:
        """Entries of transactions whose end is not durable, those on their way among them."""
        return self._open_entries

    @property
    def has_open(self) -> bool:
        """Whether any transaction is open here, or its end on its way."""
        return bool(self._open or self._ahead)

    def durable_size(self, txn: TxnId) -> tuple[int, int]:
        """Bytes and messages of the durable entries of an open transaction; none for any other."""
        return (self._open[txn].size, self._open[txn].messages) if txn in self._open else (0, 0)

    def durable_spans(self, txn: TxnId) -> tuple[Span, ...]:
        """Where the durable entries of an open transaction lie; () for any other."""
        return tuple(self._open[txn].spans) if txn in self._open else ()

    def is_open(self, txn: TxnId) -> bool:
        """Whether entries of the transaction wait here, durable or on their way."""
        ahead = self._ahead.get(txn)
        waits = ahead is not None and (ahead.entries > 0 or self._standing(txn) is not None)
        return txn in self._open if ahead is None else waits and ahead.outcome is None

    @property
    def fences(self) -> Fences:
        """How transactions have ended here; only to be looked at."""
        return self._fences

    # --- checkpoint and recovery ------------------------------------------------------------------

    def to_state(self) -> BufferState:
        """Everything that recovery needs, confirmed changes only."""
        return BufferState(
            last=self._last,
            trimmed_to=self._trimmed_to,
            open=tuple(
                OpenState(
                    txn,
                    known.since_ms,
                    known.size,
                    known.messages,
                    tuple(known.spans),
                    producers_in_state(known.producers),
                )
                for txn, known in self._open.items()
            ),
            fences=self._fences.to_state(),
            committed=tuple(
                CommittedState(txn, producers_in_state(found))
                for txn, found in self._committed.items()
            ),
            translations=self._translations.to_state(),
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
        buffer._last, buffer._trimmed_to = state.last, state.trimmed_to
        for found in state.open:
            entries = sum(span.entries for span in found.spans)
            buffer._open[found.txn] = ConfirmedPart(
                found.since_ms,
                found.size,
                found.messages,
                entries,
                list(found.spans),
                producers_of_state(found.producers),
            )
            buffer._open_entries += entries
            buffer._lowest.add(found.txn, buffer._open)
        buffer._spans = OpenSpans(
            buffer._is_there, ((span, found.txn) for found in state.open for span in found.spans)
        )
        buffer._fences = Fences(state.fences)
        for committed in state.committed:
            buffer._committed[committed.txn] = producers_of_state(committed.producers)
            buffer._remembered.add(committed.txn, buffer._committed)
        buffer._translations = Translations(state.translations)
        buffer._links = buffer._translations.links()
        return buffer

    def begin_term(self) -> None:
        """A new term begins, whose ledger is taken with the next entry; nothing is on its way."""
        assert not self._in_flight, self._in_flight
        self._ledger, self._next_entry = -1, 0
