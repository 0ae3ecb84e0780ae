"""The transaction buffer: what it says to sends and ends, its limits, and what it costs."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from magnetar.errors import CorruptData, InvalidTxnStatus, NotAllowed
from magnetar.topics.ledger_ids import is_sidecar
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    NO_SEQUENCE,
    NOWHERE,
    Abort,
    Append,
    BufferChange,
    Commit,
)
from magnetar.transactions.topic import parts as open_parts
from magnetar.transactions.topic.buffer import TransactionBuffer
from magnetar.transactions.topic.limits import BufferLimits, Judgement, Verdict
from magnetar.transactions.topic.parts import OpenTransaction
from magnetar.transactions.topic.translations import Translated

TOPIC = "persistent://a/b/c"
FIRST, SECOND, THIRD = TxnId(0, 0), TxnId(0, 1), TxnId(0, 2)


def ledger_14() -> int:
    """The sidecar's ledger in the first term."""
    return 14


def ledger_18() -> int:
    """In a later one."""
    return 18


def send(
    buffer: TransactionBuffer,
    txn: TxnId,
    highest: int,
    count: int = 1,
    *,
    size: int = 10,
    after: int = 6,
) -> Append:
    """A run that arrives and becomes durable."""
    change = buffer.append(
        txn,
        "p",
        count=count,
        highest=highest,
        size=size,
        messages=1,
        send_point=(15, after),
        now_ms=1000,
    )
    buffer.confirm(change)
    return change


def commit(buffer: TransactionBuffer, txn: TxnId, entry: int, floor: int = 0) -> Commit:
    """A commit that becomes durable; the partition is at `entry`."""
    count = buffer.entries_to_commit(txn)
    assert count is not None
    change = buffer.commit(txn, (15, entry) if count else NOWHERE, floor, 50)
    assert change.count == count
    buffer.confirm(change)
    return change


def abort(buffer: TransactionBuffer, txn: TxnId, floor: int = 0) -> Abort:
    change = buffer.abort(txn, floor)
    assert change is not None
    buffer.confirm(change)
    return change


def test_a_marker_takes_an_id_for_each_entry_in_the_order_of_sending() -> None:
    """Entries of two transactions lie mixed in the sidecar; each marker names its own, in order,
    and receipts translate."""
    buffer = TransactionBuffer(TOPIC, ledger_14)
    first = send(buffer, FIRST, 2, 3)
    between = send(buffer, SECOND, 0)
    send(buffer, FIRST, 3, 2)
    assert (first.first, between.first) == ((14, 0), (14, 3))
    assert is_sidecar(first.first)
    assert not is_sidecar((15, 0))
    change = commit(buffer, FIRST, 20)
    assert (change.marker, change.spans, change.count) == ((15, 20), ((14, 0, 3), (14, 4, 2)), 5)
    assert buffer.translate((14, 1)) == Translated((15, 21), True)
    assert buffer.translate((14, 5)) == Translated((15, 24), True)
    assert buffer.translate((14, 3)) == Translated((15, 6), False), "open: behind its send point"
    abort(buffer, SECOND)
    assert buffer.translate((14, 3)) == Translated((15, 6), False), "aborted: the same"
    assert buffer.translate((14, 6)) is None
    assert not any(buffer.waits((14, entry)) for entry in range(8))


def test_repetitions_inside_a_transaction_are_duplicates() -> None:
    """Of one producer, in one transaction, also before the first copy is durable; chunks before
    the last are not tested."""
    buffer = TransactionBuffer(TOPIC, ledger_14)
    change = buffer.append(
        FIRST, "p", count=2, highest=5, size=1, messages=1, send_point=(15, 0), now_ms=0
    )
    assert buffer.judge(FIRST, "p", 5) == Judgement(Verdict.DUPLICATE, (14, 1))
    buffer.confirm(change)
    assert buffer.judge(FIRST, "p", 5) == Judgement(Verdict.DUPLICATE, (14, 1))
    assert buffer.judge(FIRST, "p", 4) == Judgement(Verdict.DUPLICATE, NOWHERE)
    assert [
        buffer.judge(FIRST, "p", 6),
        buffer.judge(FIRST, "q", 5),
        buffer.judge(SECOND, "p", 5),
    ] == [Judgement(Verdict.NEW)] * 3
    assert buffer.judge(FIRST, "p", None) == Judgement(Verdict.NEW)
    send(buffer, FIRST, NO_SEQUENCE)
    assert buffer.judge(FIRST, "p", 6) == Judgement(Verdict.NEW), "a chunk is not recorded either"
    assert (buffer.last_sequence("p"), buffer.last_sequence("q")) == (5, -1)


def test_late_sends() -> None:
    """Committed: what is known is a duplicate, what is new an ordinary message. Aborted, or long
    ended: not allowed."""
    buffer = TransactionBuffer(TOPIC, ledger_14)
    send(buffer, FIRST, 5)
    send(buffer, SECOND, 6)
    count = buffer.entries_to_commit(FIRST)
    change = buffer.commit(FIRST, (15, 9), 0, 50)
    assert (count, buffer.judge(FIRST, "p", 5)) == (1, Judgement(Verdict.DUPLICATE, (14, 0))), (
        "while the commit is on its way"
    )
    assert buffer.judge(FIRST, "p", 6) == Judgement(Verdict.ORDINARY)
    buffer.confirm(change)
    assert buffer.judge(FIRST, "p", 5) == Judgement(Verdict.DUPLICATE, (15, 9)), (
        "its id in the partition"
    )
    assert buffer.judge(FIRST, "p", 6) == Judgement(Verdict.ORDINARY)
    assert buffer.judge(FIRST, "q", 0) == Judgement(Verdict.ORDINARY)
    aborting = buffer.abort(SECOND, floor=1)
    assert aborting is not None
    for known in ("on its way", "durable"):
        with pytest.raises(NotAllowed, match=r"\(0,1\) was ABORTED"):
            buffer.judge(SECOND, "p", 7)
        with pytest.raises(NotAllowed, match=r"\(0,0\) has ended"):
            buffer.judge(FIRST, "p", 5)
        if known == "on its way":
            buffer.confirm(aborting)


def test_an_end_is_repeated_at_will_and_never_reversed() -> None:
    """The same end again: nothing to write, also while the first is on its way. The opposite: an
    error that names the outcome."""
    buffer = TransactionBuffer(TOPIC, ledger_14)
    send(buffer, FIRST, 5)
    change = buffer.commit(FIRST, (15, 9), 0, 50)
    for known in ("on its way", "durable"):
        assert buffer.entries_to_commit(FIRST) is None
        with pytest.raises(InvalidTxnStatus, match="committed"):
            buffer.abort(FIRST, 0)
        if known == "on its way":
            buffer.confirm(change)
    abort(buffer, SECOND)
    assert buffer.abort(SECOND, 0) is None
    with pytest.raises(InvalidTxnStatus, match="aborted"):
        buffer.entries_to_commit(SECOND)
    abort(buffer, THIRD, floor=2)
    assert buffer.entries_to_commit(SECOND) is None, "below the floor either end is done"
    assert buffer.abort(FIRST, 0) is None


def test_a_commit_counts_what_is_durable_and_what_is_on_its_way() -> None:
    """Three runs, of which the log has confirmed one: the marker takes an id for each of their
    entries, and limits see each once."""
    buffer = TransactionBuffer(
        TOPIC,
        ledger_14,
        limits=BufferLimits(entries_per_transaction_max=6, transaction_bytes_max=60),
    )
    runs = [
        buffer.append(
            FIRST,
            "p",
            count=count,
            highest=count,
            size=10 * count,
            messages=1,
            send_point=(15, 0),
            now_ms=0,
        )
        for count in (1, 2, 3)
    ]
    buffer.confirm(runs[0])
    assert buffer.entries_to_commit(FIRST) == 6
    with pytest.raises(NotAllowed, match="7 entries of 61 bytes"):
        buffer.append(
            FIRST, "p", count=1, highest=9, size=1, messages=1, send_point=(15, 0), now_ms=0
        )
    change = buffer.commit(FIRST, (15, 1), 0, 50)
    assert change.spans == ((14, 0, 6),)
    rest: list[BufferChange] = [*runs[1:], change]
    for found in rest:
        buffer.confirm(found)
    assert buffer.translate((14, 5)) == Translated((15, 6), True)


def test_an_end_without_entries_is_a_fence() -> None:
    """A transaction that wrote nothing here must not begin to after its end."""
    buffer = TransactionBuffer(TOPIC, ledger_14)
    assert commit(buffer, FIRST, 0) == Commit(FIRST, 0, NOWHERE, (), 50)
    assert buffer.judge(FIRST, "p", 0) == Judgement(Verdict.ORDINARY)
    abort(buffer, SECOND)
    with pytest.raises(NotAllowed):
        buffer.judge(SECOND, "p", 0)


def test_a_commit_that_is_not_remembered_any_more_takes_nothing() -> None:
    """Beyond the limit nobody can say what is a repetition; its end can still be repeated."""
    buffer = TransactionBuffer(TOPIC, ledger_14, limits=BufferLimits(remembered_commits_max=1))
    for number, txn in enumerate((FIRST, SECOND)):
        send(buffer, txn, 5)
        commit(buffer, txn, number)
    with pytest.raises(NotAllowed, match="not remembered"):
        buffer.judge(FIRST, "p", 5)
    assert buffer.judge(SECOND, "p", 5).verdict is Verdict.DUPLICATE
    assert buffer.entries_to_commit(FIRST) is None


def test_limits_are_named() -> None:
    """Entries and bytes of one transaction, and open transactions of the topic: what is refused
    changes nothing."""
    limits = BufferLimits(
        open_transactions_max=2, entries_per_transaction_max=3, transaction_bytes_max=100
    )
    buffer = TransactionBuffer(TOPIC, ledger_14, limits=limits)
    send(buffer, FIRST, 1, 2)
    with pytest.raises(NotAllowed, match=r"4 entries of 21 bytes.*txn_entries_max=3"):
        buffer.append(
            FIRST, "p", count=2, highest=9, size=11, messages=1, send_point=(15, 0), now_ms=0
        )
    with pytest.raises(NotAllowed, match="txn_bytes_max=100"):
        buffer.append(
            FIRST, "p", count=1, highest=9, size=91, messages=1, send_point=(15, 0), now_ms=0
        )
    assert buffer.judge(FIRST, "p", 9) == Judgement(Verdict.NEW)
    waiting = buffer.append(
        SECOND, "p", count=1, highest=0, size=1, messages=1, send_point=(15, 0), now_ms=0
    )
    with pytest.raises(NotAllowed, match="2 open transactions"):
        buffer.judge(THIRD, "p", 0)
    buffer.confirm(waiting)
    abort(buffer, SECOND)
    assert buffer.judge(THIRD, "p", 0) == Judgement(Verdict.NEW)


def test_open_transactions_of_a_topic_are_limited_together() -> None:
    """Each is below its own limits, and all of them meet the topic's: on their way, durable,
    after a recovery; what has ended makes room."""
    limits = BufferLimits(open_entries_max=6)
    refused = (
        r"7 entries of open transactions with those of "
        rf"{re.escape(str(THIRD))}.*txn_open_entries_per_topic_max=6"
    )
    buffer = TransactionBuffer(TOPIC, ledger_14, limits=limits)
    changes: list[BufferChange] = [send(buffer, FIRST, 1, 2), send(buffer, SECOND, 1, 2)]
    waiting = buffer.append(
        THIRD, "p", count=2, highest=1, size=20, messages=1, send_point=(15, 0), now_ms=0
    )
    with pytest.raises(NotAllowed, match=refused):
        send(buffer, THIRD, 2)
    buffer.confirm(waiting)
    replayed = TransactionBuffer(TOPIC, ledger_18, limits=limits)
    for change in (*changes, waiting):
        replayed.apply(change)
    restored = TransactionBuffer.from_state(TOPIC, ledger_18, buffer.to_state(), limits=limits)
    for found in (buffer, replayed, restored):
        assert found.open_entries == 6
        with pytest.raises(NotAllowed, match=refused):
            send(found, THIRD, 2)
        commit(found, FIRST, 20)
        send(found, THIRD, 3, 2)
        with pytest.raises(NotAllowed):
            send(found, THIRD, 4)
        abort(found, SECOND)
        send(found, THIRD, 5, 2)
        commit(found, THIRD, 22)
        assert found.open_entries == 0


def test_orphans_and_transactions_that_are_open_for_long() -> None:
    """Below the floor nobody ends it any more; above it the coordinator is asked, again and
    again."""
    buffer = TransactionBuffer(TOPIC, ledger_14, limits=BufferLimits(inquire_ms=500))
    send(buffer, FIRST, 0)
    send(buffer, THIRD, 0, 2)
    assert list(buffer.open_transactions()) == [
        OpenTransaction(FIRST, 1000, 1, 10),
        OpenTransaction(THIRD, 1000, 2, 10),
    ]
    assert [buffer.to_inquire(now, 9) for now in (7, 506, 507, 1006, 1007)] == [
        [],
        [],
        [FIRST, THIRD],
        [],
        [FIRST, THIRD],
    ]
    assert buffer.orphans() == []
    commit(buffer, SECOND, 0, floor=2)
    assert buffer.orphans() == [FIRST]
    ending = buffer.abort(FIRST, 2)
    assert ending is not None
    assert buffer.orphans() == []
    assert not buffer.is_open(FIRST)
    assert buffer.is_open(THIRD)
    buffer.confirm(ending)
    assert [entry for entry in range(8) if buffer.waits((14, entry))] == [1, 2]


def test_a_hole_in_the_log_is_not_passed_over() -> None:
    """A run that does not follow, or a marker that names other entries, is damage."""
    buffer = TransactionBuffer(TOPIC, ledger_14)
    send(buffer, FIRST, 0)
    with pytest.raises(CorruptData, match="does not follow"):
        buffer.apply(Append(FIRST, "p", (14, 2), 1, 1, 1, 1, (15, 0), 0))
    with pytest.raises(CorruptData, match="names 2 entries, 1 are known"):
        buffer.apply(Commit(FIRST, 0, (15, 0), ((14, 0, 2),), 50))


def test_a_ledger_is_taken_with_the_first_entry_of_a_term() -> None:
    """Not before, once a term; a refusal, as when none is left, changes nothing."""
    ledgers: list[int] = []
    buffer = TransactionBuffer(TOPIC, lambda: ledgers.pop(0))
    with pytest.raises(IndexError):
        send(buffer, FIRST, 0)
    assert not buffer.has_open
    ledgers += [14, 18]
    assert [send(buffer, FIRST, sequence).first for sequence in (0, 1)] == [(14, 0), (14, 1)]
    buffer.begin_term()
    assert ledgers == [18]
    assert send(buffer, FIRST, 2).first == (18, 0)
    assert commit(buffer, FIRST, 4).spans == ((14, 0, 2), (18, 0, 1))


def test_what_ends_behind_the_trimming_needs_no_translation() -> None:
    """Its place is before the partition's first entry: every request is clamped to that anyway;
    and trimming forgets what was kept."""
    buffer = TransactionBuffer(TOPIC, ledger_14)
    send(buffer, FIRST, 0, after=6)
    send(buffer, SECOND, 0, after=7)
    send(buffer, THIRD, 0, after=7)
    commit(buffer, THIRD, 8)
    buffer.trim((15, 7))
    abort(buffer, FIRST)
    assert buffer.translate((14, 0)) is None
    abort(buffer, SECOND)
    assert (buffer.translate((14, 1)), buffer.translate((14, 2))) == (
        Translated((15, 7), False),
        Translated((15, 8), True),
    )
    buffer.trim((15, 9))
    buffer.trim((15, 2))
    assert buffer.to_state().translations == ()
    assert buffer.to_state().trimmed_to == (15, 9)


def test_a_million_aborted_transactions_would_take_less_than_fifty_megabytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the worst order (nothing joins anything): a fence and a translation each, in arrays.
    Other orders join, and cost next to nothing."""
    monkeypatch.setattr(open_parts, "GONE_HELD_MAX", 10)
    count, taken = 5_000, []
    for step in (2, 1):
        buffer = TransactionBuffer(TOPIC, ledger_14)
        tracemalloc.start()
        try:
            for number in range(count):
                send(buffer, TxnId(0, step * number + 1), 0, after=number if step > 1 else 0)
                abort(buffer, TxnId(0, step * number + 1))
            taken.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert len(buffer.to_state().open) == 0
        assert len(buffer.to_state().fences[0].aborted) == 2 * (count if step > 1 else 1)
    assert taken[0] < 50 * count
    assert taken[1] < 5 * count, "hardly anything"


def test_ended_transactions_leave_nothing_behind_while_the_floor_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An old transaction that stays open holds the floor; those that have ended above it are a
    run of numbers and not one each."""
    monkeypatch.setattr(open_parts, "GONE_HELD_MAX", 10)
    buffer, count = TransactionBuffer(TOPIC, ledger_14), 5_000
    send(buffer, TxnId(0, 0), 0)
    tracemalloc.start()
    try:
        for number in range(1, count):
            send(buffer, TxnId(0, number), number)
            abort(buffer, TxnId(0, number))
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 5 * count, "less than a pointer each"
    assert buffer.orphans() == []
    abort(buffer, TxnId(1, 5), 0)
    assert buffer.abort(TxnId(0, count), 1) is not None
    assert buffer.orphans() == [TxnId(0, 0)], "the one that is open is found all the same"


def test_commits_below_the_floor_are_forgotten_and_others_are_not() -> None:
    """In whatever order they were committed, and by coordinator."""
    buffer = TransactionBuffer(TOPIC, ledger_14)
    numbers = [5, 1, 9, 3, 7]
    for entry, number in enumerate(numbers):
        send(buffer, TxnId(0, number), number)
        commit(buffer, TxnId(0, number), entry)
    send(buffer, TxnId(1, 2), 2)
    commit(buffer, TxnId(1, 2), 5)
    send(buffer, TxnId(0, 10), 10)
    commit(buffer, TxnId(0, 10), 6, floor=6)
    assert [found.txn for found in buffer.to_state().committed] == [
        TxnId(0, 9),
        TxnId(0, 7),
        TxnId(1, 2),
        TxnId(0, 10),
    ]


def test_invented_ids_leave_nothing_however_many_there_are() -> None:
    """Each was open until its coordinator said that it has not begun; neither fences nor
    receipts nor numbers of open ones are kept."""
    buffer = TransactionBuffer(TOPIC, ledger_14, limits=BufferLimits(inquire_ms=0))
    wide = 1_000
    for first in range(0, 10_000, wide):
        for number in range(first, first + wide):
            send(buffer, TxnId(number % 16, 3 * number), 0)
        for txn in buffer.to_inquire(2000, wide):
            change = buffer.unbegun(txn)
            assert change is not None
            buffer.confirm(change)
    assert not buffer.has_open
    state = buffer.to_state()
    assert (state.open, state.fences, state.translations) == ((), (), ())
    assert not any(buffer.waits((14, entry)) for entry in range(10_000))


def test_ended_transactions_that_are_remembered_are_bounded() -> None:
    """At the bound none of that coordinator begins to send here; what is open goes on and ends,
    and once the floor rises others begin."""
    buffer = TransactionBuffer(TOPIC, ledger_14, limits=BufferLimits(fences_max=3))
    open_one = TxnId(0, 1)
    send(buffer, open_one, 0)
    for number in (2, 4, 6):
        abort(buffer, TxnId(0, number))
    with pytest.raises(NotAllowed, match="3 runs of ended transactions of coordinator 0"):
        buffer.judge(TxnId(0, 8), "p", 0)
    with pytest.raises(NotAllowed, match="ABORTED"):
        buffer.judge(TxnId(0, 4), "p", 0)
    assert buffer.judge(TxnId(1, 0), "p", 0) == Judgement(Verdict.NEW)
    assert buffer.judge(open_one, "p", 1) == Judgement(Verdict.NEW)
    abort(buffer, TxnId(0, 10))
    commit(buffer, open_one, 0, floor=6)
    assert buffer.judge(TxnId(0, 8), "p", 0) == Judgement(Verdict.NEW)
