"""Recovery of a topic that was used with transactions: from its log, and from any checkpoint and
what was written since."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.bundles.bundle import RecoveredTopic
from magnetar.broker.bundles.recovery.bundle_recovery import BundleReplay
from magnetar.broker.reading.entry_index import ELSEWHERE, EntryIndex
from magnetar.broker.replay.topic_transactions import TopicTransactions
from magnetar.names import BundleName, TopicName, sidecar_of
from magnetar.storage.log.format import (
    CursorOperation,
    TopicOperation,
    decode_records,
    encode_cursor,
    encode_entries,
    encode_topic,
    encode_transaction,
)
from magnetar.storage.log.framing import Encoded
from magnetar.storage.log.places import RecordPlace
from magnetar.storage.log.recovery import ScannedRecord
from magnetar.storage.transactions.topic_format import participant_pieces, participant_state
from magnetar.topics.ledger_ids import LedgerIds, ledger_of, sidecar_ledger
from magnetar.topics.state import TopicState
from magnetar.topics.topic import Topic
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    NOWHERE,
    Abort,
    Append,
    Commit,
    EndAcks,
    Outcome,
    PendingAck,
)

TOPIC = "persistent://public/default/t"
BUNDLE = BundleName.parse("public/default/0x00000000_0xffffffff")
EPOCH, NEXT_EPOCH = 7, 9
LEDGER = ledger_of(EPOCH, 3)
SIDECAR = sidecar_ledger(LEDGER)
STEPS = ("publish", "send", "send", "send", "commit", "abort", "hold", "end_acks", "trim")


def messages_of(first: int, count: int) -> list[int]:
    """How many messages entries have."""
    return [1 + entry % 3 for entry in range(first, first + count)]


class Course:
    """Writes records of one term as a broker would: `records` are (records written together);
    what they hold is distinguished by transaction."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.records: list[list[Encoded]] = []
        self.next = self.sidecar = self.trimmed = self.number = 0
        self.open: dict[TxnId, list[tuple[int, int]]] = {}
        self.held: dict[TxnId, int] = {}
        self.free: list[int] = []
        self.where: list[bytes] = []
        self.sent: dict[int, bytes] = {}
        self.write(
            encode_topic(
                epoch=EPOCH,
                topic=TOPIC,
                operation=TopicOperation.CREATE,
                properties={"created_ms": "5"},
            )
        )
        self.write(
            encode_cursor(
                epoch=EPOCH,
                topic=TOPIC,
                subscription="s",
                operation=CursorOperation.RESET,
                mark_delete=(-1, -1),
                properties={},
            )
        )

    def write(self, *encoded: Encoded) -> None:
        self.records.append(list(encoded))

    def entries(self, topic: str, ledger: int, first: int, count: int) -> Encoded:
        bodies = [b"%s-%d" % (topic.encode(), first + n) for n in range(count)]
        if topic == TOPIC:
            self.where += bodies
        else:
            self.sent.update({first + n: body for n, body in enumerate(bodies)})
        return encode_entries(
            epoch=EPOCH,
            ledger=ledger,
            first_entry=first,
            append_ms=100 + len(self.records),
            topic=topic.encode(),
            producer=b"p",
            message_counts=messages_of(first, count),
            sequences=range(count),
            entries=bodies,
        )

    def step(self, kind: str) -> None:
        getattr(self, "_" + kind)()

    def _publish(self) -> None:
        count = self.random.randint(1, 3)
        self.write(self.entries(TOPIC, LEDGER, self.next, count))
        self.free += range(self.next, self.next + count)
        self.next += count

    def _send(self) -> None:
        if self.open and self.random.random() < 0.7:
            txn = self.random.choice(list(self.open))
        else:
            txn = TxnId(0, self.number)
            self.number += 1
        count = self.random.randint(1, 3)
        first = (SIDECAR, self.sidecar)
        run = self.entries(sidecar_of(TOPIC), *first, count)
        send_point = (LEDGER, self.next - 1) if self.next else (-1, -1)
        append = Append(
            txn,
            "p",
            first,
            count,
            self.sidecar,
            sum(len(self.sent[self.sidecar + n]) for n in range(count)),
            sum(messages_of(self.sidecar, count)),
            send_point,
            50,
        )
        self.write(run, encode_transaction(epoch=EPOCH, topic=TOPIC, change=append))
        self.open.setdefault(txn, []).append((self.sidecar, count))
        self.sidecar += count

    def _commit(self) -> None:
        if not self.open:
            return
        txn = self.random.choice(list(self.open))
        spans = self.open.pop(txn)
        count = sum(span[1] for span in spans)
        change = Commit(
            txn,
            0,
            (LEDGER, self.next),
            tuple((SIDECAR, *span) for span in spans),
            200 + len(self.records),
        )
        self.write(encode_transaction(epoch=EPOCH, topic=TOPIC, change=change))
        self.where += [self.sent[first + n] for first, length in spans for n in range(length)]
        self.free += range(self.next, self.next + count)
        self.next += count

    def _abort(self) -> None:
        if self.open:
            txn = self.random.choice(list(self.open))
            del self.open[txn]
            floor = self.random.choice(
                (0, min((found.least for found in self.open), default=self.number))
            )
            self.write(encode_transaction(epoch=EPOCH, topic=TOPIC, change=Abort(txn, floor)))

    def _hold(self) -> None:
        if self.free:
            entry = self.free.pop(self.random.randrange(len(self.free)))
            txn = TxnId(1, self.number)
            self.number += 1
            self.held[txn] = entry
            self.write(self.pending(PendingAck(txn, ((LEDGER, entry, entry),))))

    def _end_acks(self) -> None:
        if self.held:
            txn, entry = self.held.popitem()
            outcome = self.random.choice((Outcome.COMMITTED, Outcome.ABORTED))
            ranges = ((LEDGER, entry, entry),) if outcome is Outcome.COMMITTED else ()
            if outcome is Outcome.ABORTED:
                self.free.append(entry)
            self.write(self.pending(EndAcks(txn, 0, outcome, ranges)))

    def _trim(self) -> None:
        """Retention drops what neither a transaction holds nor anybody needs."""
        until = min(self.held.values(), default=self.next)
        if until > self.trimmed:
            self.trimmed = self.random.randint(self.trimmed + 1, until)
            text = f"{LEDGER}:{self.trimmed - 1}"
            self.free = [entry for entry in self.free if entry >= self.trimmed]
            self.write(
                encode_topic(
                    epoch=EPOCH,
                    topic=TOPIC,
                    operation=TopicOperation.UPDATE,
                    properties={"trimmed": text},
                )
            )

    @staticmethod
    def pending(change: PendingAck | EndAcks) -> Encoded:
        return encode_transaction(epoch=EPOCH, topic=TOPIC, change=change, subscription="s")


class Log:
    """The records as one file, one block per write."""

    def __init__(self, course: Course) -> None:
        self.data = bytearray()
        self.scanned: list[list[ScannedRecord]] = []
        for written in course.records:
            body = b"".join(b"".join(map(bytes, encoded.buffers)) for encoded in written)
            base = len(self.data)
            self.data += body
            self.scanned.append(
                [
                    ScannedRecord(RecordPlace(0, base + at), record, 0)
                    for at, record in decode_records(memoryview(body))
                ]
            )

    def replay(self, first: int, end: int, begin: RecoveredTopic | None = None) -> RecoveredTopic:
        replay = BundleReplay(BUNDLE, LedgerIds(NEXT_EPOCH))
        if begin is not None:
            replay.topics[TOPIC] = begin
        take = replay.applier("broker-0.1")
        for written in self.scanned[first:end]:
            for scanned in written:
                take(scanned)
        return replay.topics[TOPIC]

    def bytes_of(self, found: RecoveredTopic) -> dict[int, bytes | None]:
        """Every entry that the index knows, by its ordinal from the end; None: it lies
        elsewhere."""
        end, entries = found.core.ledgers.end, {}
        for run in found.index.runs:
            at = run.offset
            for number, length in enumerate(run.lengths):
                entry = None if run.incarnation == ELSEWHERE else bytes(self.data[at : at + length])
                entries[run.first + number - end] = entry
                at += length
        return entries


def state_of(found: RecoveredTopic) -> TopicState:
    used = found.transactions
    state = found.core.to_state()
    return state if used is None else replace(state, transactions=used.to_state())


def recovered(state: TopicState) -> RecoveredTopic:
    """As `BundleReplay.load` makes it of a checkpoint, bytes of its transactions included."""
    core = Topic.from_state(TOPIC, LedgerIds(NEXT_EPOCH), state)
    if state.transactions is None:
        return RecoveredTopic(core, EntryIndex())
    used = participant_state(json.loads(b"".join(participant_pieces(state.transactions))))
    return RecoveredTopic(core, EntryIndex(), TopicTransactions(core, state=used))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40), st.integers(0, 2**32), st.data())
def test_a_checkpoint_and_the_log_since_give_what_the_whole_log_gives(
    steps: list[str], seed: int, data: st.DataObject
) -> None:
    """Whatever prefix of the log is durable, wherever in it the checkpoint was taken and however
    long before that its position lies."""
    course = Course(seed)
    for step in steps:
        course.step(step)
    log = Log(course)
    end = data.draw(st.integers(2, len(log.scanned)), label="durable")
    taken = data.draw(st.integers(2, end), label="checkpoint")
    position = data.draw(st.integers(2, taken), label="position")
    whole = log.replay(0, end)
    since = log.replay(position, end, recovered(state_of(log.replay(0, taken))))
    assert state_of(since) == state_of(whole)
    expected = log.bytes_of(whole)
    assert all(entry is not None for entry in expected.values())
    known = log.bytes_of(since)
    assert all(
        entry in (None, expected[place]) for place, entry in known.items() if place in expected
    )
    if end == len(log.scanned):
        total = len(course.where)
        assert [expected[place] for place in range(-total, 0) if place in expected] == course.where[
            total - len(expected) :
        ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=30), st.integers(0, 2**32))
def test_applying_the_log_again_changes_nothing(steps: list[str], seed: int) -> None:
    """A walk that meets damage hands out its records a second time."""
    course = Course(seed)
    for step in steps:
        course.step(step)
    log = Log(course)
    once = log.replay(0, len(log.scanned))
    before, runs = state_of(once), len(once.index.runs)
    known = copy.deepcopy(before)
    again = recovered(before)
    twice = log.replay(2, len(log.scanned), again)
    assert state_of(twice) == known
    assert len(twice.index.runs) <= runs


def test_a_sidecar_lies_in_its_topics_bundle_whatever_its_name_hashes_to() -> None:
    """Log files, manifests and recoveries ask for the hash of names that the log holds."""
    for number in range(100):
        topic = TopicName.parse(f"persistent://public/default/t-{number}")
        assert TopicName.parse(sidecar_of(str(topic))).hash == topic.hash


def test_a_commit_without_entries_leaves_a_fence_only() -> None:
    """Nothing is given to the partition, and the transaction is known to have ended."""
    course = Course(0)
    course.write(
        encode_transaction(epoch=EPOCH, topic=TOPIC, change=Commit(TxnId(0, 0), 0, NOWHERE, (), 5))
    )
    log = Log(course)
    found = log.replay(0, len(log.scanned))
    assert found.core.ledgers.end == 0
    assert found.transactions is not None
    assert found.transactions.buffer.to_state().fences
