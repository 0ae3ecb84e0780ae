"""Any course of sends, ends, flushes, checkpoints and crashes against a plain reading of the
log."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.errors import InvalidTxnStatus, NotAllowed
from magnetar.storage.transactions.topic_format import participant_pieces, participant_state
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    NOWHERE,
    Append,
    BufferChange,
    BufferState,
    Commit,
    Outcome,
    ParticipantState,
    Place,
    Unbegun,
)
from magnetar.transactions.topic.buffer import TransactionBuffer
from magnetar.transactions.topic.limits import BufferLimits, Judgement, Verdict
from magnetar.transactions.topic.translations import Translated

NUMBERS = st.tuples(st.integers(0, 1), st.sampled_from((0, 1, 1, 1, 2, 2, 3)))
"""A coordinator, and how far above (the floor - 1) a transaction is: mostly few, so that much
happens to each."""
PRODUCERS = st.sampled_from(("p", "q"))
LIMITS = BufferLimits(open_transactions_max=1000, entries_per_transaction_max=10**6)


@dataclass(frozen=True)
class Trimmed:
    """The partition was trimmed: a record of the topic's own."""

    first: Place


@dataclass
class Reading:
    """What a log says, read without any cleverness."""

    open: dict[TxnId, list[Place]] = field(default_factory=dict)
    highest: dict[tuple[TxnId, str], tuple[int, Place]] = field(default_factory=dict)
    outcomes: dict[TxnId, Outcome] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    meaning: dict[Place, Translated] = field(default_factory=dict)
    trimmed_to: Place = NOWHERE

    def take(self, change: BufferChange | Trimmed) -> None:
        if isinstance(change, Trimmed):
            self.trimmed_to = max(self.trimmed_to, change.first)
        elif isinstance(change, Append):
            ledger, first = change.first
            entries = [(ledger, first + index) for index in range(change.count)]
            self.open.setdefault(change.txn, []).extend(entries)
            self.highest[change.txn, change.producer] = (change.highest, entries[-1])
            self.meaning |= {entry: Translated(change.send_point, False) for entry in entries}
        elif isinstance(change, Unbegun):
            entries = self.open.pop(change.txn)
            assert entries[-1] == change.last, "all that was there, and nothing that came later"
            for entry in entries:
                del self.meaning[entry]
            self.highest = {
                known: found for known, found in self.highest.items() if known[0] != change.txn
            }
        else:
            entries = self.open.pop(change.txn, [])
            self.outcomes[change.txn] = (
                Outcome.COMMITTED if isinstance(change, Commit) else Outcome.ABORTED
            )
            if isinstance(change, Commit):
                named = [
                    (ledger, first + index)
                    for ledger, first, count in change.spans
                    for index in range(count)
                ]
                assert named == entries, (
                    "a marker names all entries of its transaction, in the order of sending"
                )
                ledger, first = change.marker
                self.meaning |= {
                    entry: Translated((ledger, first + index), True)
                    for index, entry in enumerate(entries)
                }
            self.floors[change.txn.most] = max(self.floor(change.txn), change.floor)

    def floor(self, txn: TxnId) -> int:
        return self.floors.get(txn.most, 0)

    def ended(self, txn: TxnId) -> Outcome | None:
        if txn in self.open:
            return None
        return Outcome.ENDED if txn.least < self.floor(txn) else self.outcomes.get(txn)


def read(log: list[BufferChange | Trimmed]) -> Reading:
    reading = Reading()
    for change in log:
        reading.take(change)
    return reading


class BufferCourse(RuleBasedStateMachine):
    """One topic's transactions over several terms."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 1
        self.buffer = TransactionBuffer("t", self.sidecar, limits=LIMITS)
        self.log: list[BufferChange | Trimmed] = []
        self.durable = 0
        self.reading, self.confirmed = Reading(), Reading()
        self.asked_ms = 0
        self.partition = 0  # entries in this term's ledger
        self.checkpoints: list[tuple[int, BufferState]] = [(0, self.buffer.to_state())]

    def sidecar(self) -> int:
        """The sidecar's ledger in this term."""
        return 2 * self.epoch

    def transaction(self, number: tuple[int, int]) -> TxnId:
        return TxnId(number[0], max(0, self.reading.floors.get(number[0], 0) - 1 + number[1]))

    def write(self, change: BufferChange | Trimmed) -> None:
        self.log.append(change)
        self.reading.take(change)

    @property
    def last_partition(self) -> Place:
        return (2 * self.epoch + 1, self.partition - 1)

    @rule(
        number=NUMBERS,
        producer=PRODUCERS,
        step=st.sampled_from((1, 1, 1, 2, 0, -1)),
        count=st.integers(1, 3),
    )
    def send(self, number: tuple[int, int], producer: str, step: int, count: int) -> None:
        """A run whose lowest sequence id is at, below or above the highest known: the verdict is
        that of the log as written."""
        txn = self.transaction(number)
        known = self.reading.highest.get((txn, producer))
        lowest = max(0, (known[0] if known else 0) + step)
        ended = self.reading.ended(txn)
        if ended in (Outcome.ABORTED, Outcome.ENDED):
            with pytest.raises(NotAllowed):
                self.buffer.judge(txn, producer, lowest)
            return
        judgement = self.buffer.judge(txn, producer, lowest)
        if known is not None and lowest <= known[0]:
            assert judgement.verdict is Verdict.DUPLICATE
            after = self.confirmed.meaning.get(known[1])
            moved = {after.position} if after is not None and after.exact else set[Place]()
            assert judgement.position in ({known[1]} | moved if lowest == known[0] else {NOWHERE})
            return
        if ended is Outcome.COMMITTED:
            assert judgement == Judgement(Verdict.ORDINARY)
            return
        assert judgement == Judgement(Verdict.NEW)
        change = self.buffer.append(
            txn,
            producer,
            count=count,
            highest=lowest + count - 1,
            size=7 * count,
            messages=2 * count,
            send_point=self.last_partition,
            now_ms=len(self.log),
        )
        self.write(change)

    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        """Ordinary traffic."""
        self.partition += count

    @rule(
        number=NUMBERS,
        ahead=st.sampled_from((0, 0, 1, 2)),
        action=st.sampled_from((Outcome.COMMITTED, Outcome.ABORTED)),
    )
    def end(self, number: tuple[int, int], ahead: int, action: Outcome) -> None:
        """The coordinator ends one; its floor may have passed transactions that the topic
        never learned of."""
        txn = self.transaction(number)
        ended = self.reading.ended(txn)
        floor = min(self.reading.floor(txn) + ahead, txn.least)
        if ended is not None and ended not in (action, Outcome.ENDED):
            with pytest.raises(InvalidTxnStatus):
                self.buffer.entries_to_commit(
                    txn
                ) if action is Outcome.COMMITTED else self.buffer.abort(txn, floor)
            return
        if action is Outcome.ABORTED:
            change = self.buffer.abort(txn, floor)
            assert (change is None) == (ended is not None)
            if change is not None:
                self.write(change)
            return
        count = self.buffer.entries_to_commit(txn)
        assert count == (len(self.reading.open.get(txn, ())) if ended is None else None)
        if count is not None:
            marker = (2 * self.epoch + 1, self.partition) if count else NOWHERE
            self.partition += count
            self.write(self.buffer.commit(txn, marker, floor, 50))

    @rule(number=NUMBERS, again=st.sampled_from(("nothing", "nothing", "a repetition", "more")))
    def not_begun(self, number: tuple[int, int], again: str) -> None:
        """The coordinator is asked, and says so; what came while it was asked may be a
        transaction's that has begun since."""
        txn = self.transaction(number)
        self.asked_ms += 1 << 40
        due = self.buffer.to_inquire(self.asked_ms, 1 << 10)
        on_its_way = any(
            not isinstance(change, Trimmed) and change.txn == txn
            for change in self.log[self.durable :]
        )
        expected = txn in due and not on_its_way
        assert set(due) <= self.confirmed.open.keys() & self.reading.open.keys()
        if again != "nothing" and expected:
            producer = next(name for named, name in self.reading.highest if named == txn)
            self.send(
                (txn.most, txn.least - self.reading.floors.get(txn.most, 0) + 1),
                producer,
                int(again == "more"),
                1,
            )
            expected = False
        change = self.buffer.unbegun(txn)
        assert (change is not None) == expected
        if change is not None:
            assert self.buffer.unbegun(txn) is None
            self.write(change)

    @rule(back=st.integers(0, 4))
    def trim(self, back: int) -> None:
        if self.partition:
            self.write(Trimmed((2 * self.epoch + 1, max(0, self.partition - back))))

    @rule(count=st.integers(1, 5))
    def flush(self, count: int) -> None:
        for change in self.log[self.durable : self.durable + count]:
            self.confirmed.take(change)
            self.durable += 1
            if isinstance(change, Trimmed):
                self.buffer.trim(change.first)
            else:
                self.buffer.confirm(change)

    @rule()
    def checkpoint(self) -> None:
        self.checkpoints.append((self.durable, self.buffer.to_state()))

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """What is durable comes back from any checkpoint, and from any place of the log before
        it; a new term begins."""
        del self.log[self.durable :]
        self.reading = read(self.log)
        taken, state = data.draw(st.sampled_from(self.checkpoints))
        before = self.buffer.to_state()
        written = b"".join(participant_pieces(ParticipantState(state)))
        read_back = participant_state(json.loads(written)).buffer
        assert read_back == state
        self.epoch += 1
        self.partition = 0
        self.buffer = TransactionBuffer.from_state("t", self.sidecar, read_back, limits=LIMITS)
        for change in self.log[data.draw(st.integers(0, taken)) :]:
            self.buffer.trim(change.first) if isinstance(change, Trimmed) else self.buffer.apply(
                change
            )
        assert self.buffer.to_state() == before

    @invariant()
    def open_ones_are_those_without_a_durable_end(self) -> None:
        found = {txn: (entries, size) for txn, _, entries, size in self.buffer.open_transactions()}
        assert found == {
            txn: (len(entries), 7 * len(entries)) for txn, entries in self.confirmed.open.items()
        }
        on_their_way = sum(
            change.count for change in self.log[self.durable :] if isinstance(change, Append)
        )
        assert (
            self.buffer.open_entries == sum(map(len, self.confirmed.open.values())) + on_their_way
        )
        for most in (0, 1):
            for least in range(self.reading.floors.get(most, 0) + 4):
                assert self.buffer.is_open(TxnId(most, least)) == (
                    TxnId(most, least) in self.reading.open
                )
        orphans = [
            txn
            for txn in self.confirmed.open
            if txn in self.reading.open and txn.least < self.reading.floor(txn)
        ]
        assert sorted(self.buffer.orphans()) == sorted(orphans)

    @invariant()
    def entries_wait_for_the_durable_end_of_their_transaction(self) -> None:
        sent = [
            change
            for change in self.log
            if isinstance(change, Append) and change.txn not in self.confirmed.outcomes
        ]
        waiting = {
            (change.first[0], change.first[1] + at) for change in sent for at in range(change.count)
        }
        assert {
            entry for entry in self.reading.meaning if self.buffer.waits(entry)
        } == waiting & self.reading.meaning.keys()

    @invariant()
    def every_receipt_translates(self) -> None:
        """As the durable log has it, while the partition has its target."""
        for entry, meaning in self.reading.meaning.items():
            expected = self.confirmed.meaning.get(entry)
            if expected is None:
                expected = Translated(meaning.position, False) if not meaning.exact else None
            found = self.buffer.translate(entry)
            gone = expected is not None and expected.position < self.confirmed.trimmed_to
            assert (
                found == expected
                or (found is None and gone)
                or (expected is None and found is not None and not found.exact)
            )

    @invariant()
    def replay_of_all_that_is_durable_gives_the_same_state(self) -> None:
        again = TransactionBuffer("t", self.sidecar, limits=LIMITS)
        for change in self.log[: self.durable]:
            again.trim(change.first) if isinstance(change, Trimmed) else again.apply(change)
        assert again.to_state() == self.buffer.to_state()


TestBufferCourse = BufferCourse.TestCase
TestBufferCourse.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
