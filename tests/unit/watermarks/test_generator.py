"""The watermark of a subscription: each operation's effect, with a real cursor."""

from __future__ import annotations

import pytest

from magnetar.topics.cursor import Cursor
from magnetar.topics.ledgers import LedgerTable
from magnetar.transactions.ids import TxnId
from magnetar.watermarks.generator import Effect, Generator, Reset, Watermark
from magnetar.watermarks.records import Assertion, End, Event, Hold, Idle, Place, Record
from magnetar.watermarks.standing import Holder, Standing
from magnetar.watermarks.timeline import SnapshotInterval, Timeline

T1, T2 = TxnId(0, 1), TxnId(0, 2)


class Topic:
    """Entries of ledger 1, each with the assertion (10, 20, ...) of producer p behind it."""

    def __init__(self, entries: int = 5) -> None:
        self.ledgers, self.ledger, self.entry = LedgerTable(), 1, 0
        self.timeline = Timeline()
        self.cursor = Cursor(self.ledgers, 0)
        self.generator = Generator(self.timeline, self.mark)
        for number in range(entries):
            self.publish()
            self.take(Assertion("p", 10 * (number + 1)))

    @property
    def mark(self) -> Place:
        return self.cursor.mark_delete_position

    def publish(self, count: int = 1) -> None:
        self.ledgers.append(self.ledger, self.entry, count)
        self.entry += count

    def take(self, *events: Event) -> Effect | None:
        """Records behind the last entry; the effect once all are there."""
        for event in events:
            self.timeline.apply(*self.timeline.queue(self.ledgers.last_position, event))
        return self.generator.advance()

    def advanced(self) -> Effect | None:
        """The cursor's mark-delete is in the log."""
        return self.generator.advance(self.mark)

    def clear(self) -> Effect | None:
        self.cursor.acknowledge(0, self.ledgers.end)
        return self.advanced()


# --- acknowledgements -----------------------------------------------------------------------------


def test_nothing_is_delivered_before_an_acknowledgement() -> None:
    topic = Topic()
    assert topic.generator.attach() is None
    assert topic.generator.watermark_ms is None


def test_individual_acknowledgements_count_once_the_beginning_is_whole() -> None:
    topic = Topic()
    for ordinal in (1, 2):
        topic.cursor.acknowledge(ordinal, ordinal + 1)
        assert topic.advanced() is None
    topic.cursor.acknowledge(0, 1)
    assert topic.advanced() == Watermark(30)


def test_a_partly_acknowledged_batch_holds_it() -> None:
    topic = Topic()
    topic.cursor.acknowledge(0, 1)
    topic.cursor.acknowledge_partial(1, 0b10)
    assert topic.advanced() == Watermark(10)
    topic.cursor.acknowledge_partial(1, 0b01)
    assert topic.advanced() == Watermark(20)


def test_expiry_skipping_and_clearing_acknowledge() -> None:
    """An expired or skipped message is not delivered any more."""
    topic = Topic()
    topic.cursor.acknowledge(0, 2)
    assert topic.advanced() == Watermark(20)
    assert topic.clear() == Watermark(50)


def test_redelivery_changes_nothing() -> None:
    """A negative acknowledgement, a consumer that left: the messages are behind the mark-delete."""
    topic = Topic()
    topic.cursor.acknowledge(0, 2)
    topic.advanced()
    assert topic.advanced() is None
    assert not topic.generator.saw(20)


def test_an_assertion_behind_acknowledged_entries_counts_at_once() -> None:
    topic = Topic()
    topic.clear()
    assert topic.take(Assertion("p", 60)) == Watermark(60)
    assert topic.take(Assertion("p", 60)) is None, "repeated"


def test_a_turn_reads_so_many_records_and_delivers_at_the_end() -> None:
    topic = Topic()
    topic.cursor.acknowledge(0, 5)
    assert topic.generator.advance(topic.mark, 2) is None
    assert topic.generator.behind
    assert topic.generator.advance(None, 2) is None
    assert topic.generator.advance(None, 2) == Watermark(50)
    assert not topic.generator.behind


# --- producers ------------------------------------------------------------------------------------


def test_the_slowest_active_producer_decides() -> None:
    topic = Topic(1)
    topic.clear()
    assert topic.take(Assertion("q", 12)) is None
    assert topic.take(Assertion("p", 20)) == Watermark(12)
    assert topic.generator.holder() == Holder("q", 12)
    assert topic.take(Idle("q")) == Watermark(20)
    assert topic.generator.active_count == 1
    assert topic.timeline.head.active() == ("p",)


def test_all_idle_keeps_the_last_value() -> None:
    topic = Topic(1)
    topic.clear()
    assert topic.take(Idle("p")) is None
    assert topic.take(Idle("p")) is None
    assert topic.generator.watermark_ms == 10
    assert Generator(topic.timeline, topic.mark).attach() == Watermark(10)


def test_a_producer_that_joins_or_returns_below_is_clamped() -> None:
    topic = Topic(2)
    topic.clear()
    assert topic.take(Assertion("q", 5)) is None
    assert (topic.generator.watermark_ms, topic.generator.clamped) == (20, 1)
    assert topic.take(Assertion("p", 30)) is None, "q is at 5"
    assert topic.take(Assertion("q", 25)) == Watermark(25)
    assert topic.generator.clamped == 1


def test_late_messages_are_counted() -> None:
    topic = Topic(2)
    assert not topic.generator.saw(0)
    topic.clear()
    assert [topic.generator.saw(ms) for ms in (19, 20, 21)] == [True, False, False]
    assert topic.generator.late == 1


# --- transactions ---------------------------------------------------------------------------------


def test_a_hold_applies_from_the_first_message_to_the_end_of_the_marker() -> None:
    """p sends in a transaction at 10, asserts 40 outside of it, and commits two messages then."""
    topic = Topic(1)
    topic.take(Hold("p", T1))
    topic.publish()
    topic.take(Assertion("p", 40))
    topic.publish(2)
    topic.take(End(T1, True))
    marks = []
    for ordinal in range(4):
        topic.cursor.acknowledge(ordinal, ordinal + 1)
        marks.append(topic.advanced())
    assert marks == [Watermark(10), None, None, Watermark(40)]


def test_an_abort_lifts_the_hold_where_it_was_written() -> None:
    topic = Topic(1)
    topic.clear()
    topic.take(Hold("p", T1), Assertion("p", 40))
    assert topic.generator.holder() == Holder("p", 10, T1)
    assert topic.take(End(T1, False)) == Watermark(40)


def test_a_transaction_before_the_first_assertion_stops_it() -> None:
    topic = Topic(0)
    topic.publish()
    topic.clear()
    assert topic.take(Hold("q", T1), Assertion("q", 9), Assertion("p", 8)) is None
    assert topic.generator.holder() == Holder("q", None, T1)
    assert topic.take(End(T1, True)) == Watermark(8)


def test_a_producer_that_never_asserts_holds_nothing() -> None:
    """Its transaction bounds the watermark from its first assertion on."""
    topic = Topic(0)
    topic.publish()
    topic.clear()
    assert topic.take(Hold("q", T1), Assertion("p", 8)) == Watermark(8)
    assert topic.take(Assertion("p", 9)) == Watermark(9)
    assert topic.take(Assertion("q", 20), Assertion("p", 10)) is None
    assert topic.take(End(T1, True)) == Watermark(10)


def test_several_transactions_of_a_producer_hold_each() -> None:
    topic = Topic(1)
    topic.clear()
    topic.take(Hold("p", T1), Assertion("p", 20), Hold("p", T2), Hold("p", T1))
    assert topic.take(Assertion("p", 30)) is None
    assert topic.take(End(T1, True)) == Watermark(20)
    assert topic.take(End(T2, True)) == Watermark(30)


def test_assertions_in_a_transaction_count_with_its_commit() -> None:
    topic = Topic(1)
    topic.clear()
    assert topic.take(Assertion("p", 20, T1), Idle("q", T1), Assertion("p", 70, T2)) is None
    assert topic.take(End(T2, False)) is None
    assert topic.take(End(T1, True)) == Watermark(20)
    topic.take(Assertion("p", 15, T1), Assertion("q", 90, T1), End(T1, True))
    assert topic.generator.clamped == 1
    assert topic.take(Idle("p", T1), Idle("q", T1), End(T1, True)) is None


# --- seek, consumers, owners ----------------------------------------------------------------------


def test_a_seek_back_is_a_reset() -> None:
    """By id or by time: the host gives the position in both cases."""
    topic = Topic()
    topic.clear()
    topic.cursor.reset(2)
    assert topic.generator.seek(topic.mark) == Reset(20)
    topic.cursor.reset(0)
    assert topic.generator.seek(topic.mark) == Reset(None)
    topic.cursor.acknowledge(0, 1)
    assert topic.advanced() == Watermark(10)


def test_a_seek_forward_advances() -> None:
    topic = Topic()
    topic.cursor.reset(3)
    assert topic.generator.seek(topic.mark) == Watermark(30)
    assert topic.generator.seek(topic.mark) is None


def test_a_seek_inside_a_batch_begins_before_it() -> None:
    topic = Topic()
    topic.clear()
    topic.cursor.reset(2, 0b10)
    assert topic.generator.seek(topic.mark) == Reset(20)


def test_a_consumer_that_attaches_gets_the_latest() -> None:
    topic = Topic(2)
    topic.clear()
    assert topic.generator.attach() == Watermark(20)
    topic.take(Assertion("q", 3))
    assert topic.generator.attach() == Watermark(20), "reconnecting takes nothing back"


def test_a_new_owner_continues_at_the_mark_delete_of_the_log() -> None:
    topic = Topic()
    topic.cursor.acknowledge(0, 3)
    topic.advanced()
    restored = Timeline(topic.timeline.to_state())
    assert Generator(restored, topic.mark).attach() == Watermark(30)
    known = Generator(restored, topic.mark, delivered_ms=35)
    assert known.attach() == Watermark(35)


def test_a_split_child_inherits_and_writes_behind_the_parents_anchors() -> None:
    topic = Topic(2)
    topic.clear()
    child = Topic(0)
    child.timeline = Timeline(topic.timeline.to_state())
    child.ledgers, child.ledger, child.entry = LedgerTable(topic.ledgers.ledgers()), 9, 0
    child.generator = Generator(child.timeline, topic.mark)
    assert child.take(Assertion("p", 30)) == Watermark(30)
    assert child.timeline.last == (1, 1, 1), (
        "the child's ledger is empty: behind the parent's entry"
    )
    child.publish()
    assert child.take(Assertion("p", 40)) is None
    assert child.generator.advance((9, 0)) == Watermark(40)


# --- topics that shrink or end --------------------------------------------------------------------


def test_trimming_behind_the_cursor_changes_nothing() -> None:
    topic = Topic()
    topic.cursor.acknowledge(0, 3)
    topic.advanced()
    horizon = topic.timeline.horizon((1, 1))
    assert horizon is not None
    topic.timeline.trim(horizon)
    topic.ledgers.drop_before(2)
    assert topic.generator.trimmed(topic.mark) is None
    assert topic.clear() == Watermark(50)


def test_trimming_beyond_the_cursor_moves_it() -> None:
    topic = Topic()
    horizon = topic.timeline.horizon((1, 2))
    assert horizon is not None
    topic.timeline.trim(horizon)
    topic.cursor.acknowledge(0, 3)
    topic.ledgers.drop_before(3)
    assert topic.generator.trimmed(topic.mark) == Watermark(30)


def test_a_compacted_view_delivers_less_and_means_the_same() -> None:
    """Entries 1 and 3 are gone from the view: its reader acknowledges 0, 2 and 4, cumulatively."""
    topic = Topic()
    found = []
    for ordinal in (0, 2, 4):
        topic.cursor.acknowledge_cumulative(ordinal)
        found.append(topic.advanced())
    assert found == [Watermark(10), Watermark(30), Watermark(50)]


def test_a_terminated_topic_keeps_its_watermark() -> None:
    """It ends at what was asserted, never at the end of time; the client removes the source."""
    topic = Topic(2)
    topic.clear()
    assert topic.take(Idle("p")) is None
    assert topic.generator.watermark_ms == 20


def test_a_cursor_that_moves_far_reads_from_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more records than an interval has, with the watermark that reading all would lead to."""
    timeline, applied = Timeline(interval=SnapshotInterval(records=5)), list[Record]()
    for entry in range(100):
        timeline.apply(*timeline.queue((1, entry), Assertion("p", entry)))
        if timeline.snapshot_due:
            timeline.apply(*timeline.snapshot((1, entry)))
    generator, apply = Generator(timeline, (-1, -1)), Standing.apply

    def count(standing: Standing, record: Record) -> None:
        applied.append(record)
        apply(standing, record)

    monkeypatch.setattr(Standing, "apply", count)
    for mark, most in ((3, 5), (88, 5), (99, 5)):
        applied.clear()
        assert generator.advance((1, mark)) == Watermark(mark)
        assert len(applied) <= most
        assert not generator.behind
