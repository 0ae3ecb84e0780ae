"""Pending acknowledgements: every rule of conflicts by name, limits, fences, and entries that
are dropped concurrently."""

from __future__ import annotations

import pytest

from magnetar.errors import InvalidTxnStatus, NotAllowed, TransactionConflict
from magnetar.storage.log.framing import NAME_BYTES_MAX, RECORD_HEADER_BYTES
from magnetar.storage.log.writer import BLOCK_BYTES_MAX
from magnetar.storage.transactions.topic_format import transaction_payload
from magnetar.topics.acksets import words_of_mask
from magnetar.topics.dispatch.base import EntryTraits, SubscriptionType
from magnetar.topics.ledger_ids import LedgerIds, ledger_of
from magnetar.topics.ledgers import EARLIEST, Position
from magnetar.topics.subscription import Subscription
from magnetar.topics.topic import Topic
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import EndAcks, Outcome, PendingAck, UnbegunAcks
from magnetar.transactions.topic.conflicts import MESSAGES_PER_SHARE
from magnetar.transactions.topic.pending_acks import (
    HELD_MAX,
    NAMES_BYTES_MAX,
    PendingAcks,
    PendingLimits,
    held_max_of,
)

A, B, C = TxnId(0, 0), TxnId(0, 1), TxnId(0, 2)
COMMIT, ABORT = Outcome.COMMITTED, Outcome.ABORTED
LEDGER = ledger_of(7, 0)


def stage(
    entries: int = 10,
    kind: SubscriptionType | None = SubscriptionType.SHARED,
    limits: PendingLimits | None = None,
) -> tuple[Topic, Subscription, PendingAcks]:
    """A topic of so many entries, each a batch of three messages, with one consumer "c" that has
    plenty of permits."""
    topic = Topic("persistent://a/b/c", LedgerIds(7))
    topic.confirm(topic.publish(entries), entries)
    subscription = topic.subscribe("s", EARLIEST)
    if kind is not None:
        subscription.add_consumer("c", kind)
        subscription.flow("c", 1000)
    return topic, subscription, PendingAcks(subscription, topic.ledgers, limits=limits)


def held_by(pending: PendingAcks, txn: TxnId) -> PendingAck | None:
    """What a checkpoint says that a transaction holds."""
    return next((found for found in pending.to_state().pending if found.txn == txn), None)


def delivered(subscription: Subscription) -> list[int]:
    """Ordinals that go out now."""
    found: list[int] = []
    while (request := subscription.next_read(100)) is not None:
        deliveries = subscription.dispatch(request.first, [3] * request.entries)
        if not deliveries:
            break
        found += [ordinal for delivery in deliveries for ordinal in delivery.ordinals]
    return found


def test_what_is_pending_is_not_delivered_until_an_abort() -> None:
    """Nor acknowledged by anybody else; a commit acknowledges it."""
    _, subscription, pending = stage()
    change, _ = pending.acknowledge(A, "c", [(2, 5)])
    assert change == PendingAck(A, ((LEDGER, 2, 4),))
    assert delivered(subscription) == [0, 1, 5, 6, 7, 8, 9]
    subscription.acknowledge("c", [(0, 10)])
    assert (subscription.cursor.mark_delete, subscription.backlog) == (2, 3), (
        "a normal acknowledgement passes over it"
    )
    subscription.redeliver("c")
    assert delivered(subscription) == []
    assert pending.end(A, ABORT, 0)[0] == EndAcks(A, 0, ABORT)
    assert delivered(subscription) == [2, 3, 4]
    pending.acknowledge(B, "c", [(2, 4)])
    assert pending.end(B, COMMIT, 0)[0] == EndAcks(B, 0, COMMIT, ((LEDGER, 2, 3),))
    assert (subscription.cursor.mark_delete, subscription.deferred) == (4, None)


def test_the_same_transaction_may_acknowledge_again() -> None:
    """Pulsar refuses that, and its clients fail permanently after a restart (19449, 14327)."""
    _, _, pending = stage()
    pending.acknowledge(A, "c", [(2, 5)], [(6, 0b110, 3)])
    assert pending.acknowledge(A, "c", [(3, 4)]) == (None, False)
    assert pending.acknowledge(A, "c", [], [(6, 0b110, 3)]) == (None, False)
    assert pending.acknowledge(A, "c", [], [(3, 0b110, 3)]) == (None, False), (
        "a message of an entry that it holds as a whole"
    )
    assert pending.acknowledge(A, "c", [(4, 6)])[0] == PendingAck(A, ((LEDGER, 5, 5),)), (
        "only what is new is written"
    )
    assert pending.acknowledge(A, "c", [], [(6, 0b100, 3)])[0] == PendingAck(
        A, (), ((LEDGER, 6, 3, (0b101,)),)
    )
    assert pending.acknowledge(A, "c", [(6, 7)])[0] == PendingAck(A, ((LEDGER, 6, 6),)), (
        "from some messages to the whole entry"
    )
    assert pending.to_state().pending == (PendingAck(A, ((LEDGER, 2, 6),)),)


def test_conflicts_name_the_holder_and_change_nothing() -> None:
    """Entries, messages of batches, and cumulative ones, each against each; a list is refused as
    a whole."""
    _, subscription, pending = stage(kind=SubscriptionType.EXCLUSIVE)
    subscription.acknowledge("c", [(0, 1)], [(1, 0b110)])
    pending.acknowledge(A, "c", [(4, 5)], [(6, 0b110, 3)])
    before = pending.to_state()
    for ranges, partial in (
        ([(7, 9), (3, 6)], []),
        ([(8, 9)], [(4, 0b011, 3)]),
        ([(6, 7)], []),
        ([], [(7, 0, 3), (6, 0b100, 3)]),
    ):
        with pytest.raises(
            TransactionConflict, match=rf"message {LEDGER}:[46] is held by transaction \(0,0\)"
        ):
            pending.acknowledge(B, "c", ranges, partial)
    for cumulative in (4, 9):
        with pytest.raises(
            TransactionConflict, match=rf"message {LEDGER}:4 is held by transaction \(0,0\)"
        ):
            pending.acknowledge_cumulative(B, "c", cumulative)
    with pytest.raises(TransactionConflict, match=f"{LEDGER}:0 is acknowledged already"):
        pending.acknowledge(B, "c", [(0, 1)])
    with pytest.raises(
        TransactionConflict, match=f"{LEDGER}:1 is acknowledged already, wholly or partly"
    ):
        pending.acknowledge(B, "c", [], [(1, 0b010, 3)])
    with pytest.raises(
        TransactionConflict, match=f"{LEDGER}:0 and all before it are acknowledged already"
    ):
        pending.acknowledge_cumulative(B, "c", 0)
    assert pending.to_state() == before
    assert pending.acknowledge(B, "c", [(1, 3)], [(6, 0b001, 3)])[0] is not None, (
        "what is left of batches is free"
    )
    with pytest.raises(TransactionConflict, match=rf"{LEDGER}:6 is held by transaction \(0,1\)"):
        pending.acknowledge(C, "c", [], [(6, 0b011, 3)])


def test_another_transaction_ends_while_a_cumulative_acknowledgement_is_pending() -> None:
    """In Pulsar its commit does nothing, and its abort delivers everything again."""
    _, subscription, pending = stage(kind=SubscriptionType.EXCLUSIVE)
    pending.acknowledge(B, "c", [(1, 2)])
    pending.acknowledge(C, "c", [(8, 9)])
    with pytest.raises(TransactionConflict, match=rf"{LEDGER}:1 is held by transaction \(0,1\)"):
        pending.acknowledge_cumulative(A, "c", 5)
    pending.end(B, COMMIT, 0)
    assert pending.acknowledge_cumulative(A, "c", 5)[0] == PendingAck(
        A, ((LEDGER, 0, 0), (LEDGER, 2, 5))
    )
    assert pending.acknowledge_cumulative(A, "c", 4) == (None, False), (
        "what it covers is the transaction's already"
    )
    pending.acknowledge(TxnId(0, 3), "c", [(7, 8)])
    pending.end(TxnId(0, 3), COMMIT, 0)
    pending.end(C, ABORT, 0)
    assert delivered(subscription) == [6, 8, 9]
    pending.end(A, COMMIT, 0)
    assert (subscription.cursor.mark_delete, subscription.backlog) == (6, 3)


def test_cumulative_acknowledgements_go_on_within_a_batch() -> None:
    """Transaction after transaction, as a consumer does that acknowledges every few messages:
    what is acknowledged already is passed over."""
    _, subscription, pending = stage(entries=3, kind=SubscriptionType.EXCLUSIVE)
    assert pending.acknowledge_cumulative(A, "c", 0, 0b1110, 4)[0] == PendingAck(
        A, (), ((LEDGER, 0, 4, (0b1110,)),)
    )
    pending.end(A, COMMIT, 0)
    assert subscription.cursor.partial == {0: 0b1110}
    assert pending.acknowledge_cumulative(B, "c", 0, 0b1000, 4)[0] == PendingAck(
        B, (), ((LEDGER, 0, 4, (0b1001,)),)
    )
    assert pending.acknowledge_cumulative(B, "c", 0, 0b1000, 4) == (None, False), (
        "a repetition is no conflict"
    )
    with pytest.raises(
        TransactionConflict, match=f"{LEDGER}:0 and all before it are acknowledged already"
    ):
        pending.acknowledge_cumulative(B, "c", 0, 0b1110, 4)
    with pytest.raises(TransactionConflict, match=rf"{LEDGER}:0 is held by transaction \(0,1\)"):
        pending.acknowledge_cumulative(C, "c", 0, 0b1000, 4)
    pending.end(B, ABORT, 0)
    assert pending.acknowledge_cumulative(C, "c", 0, 0b1000, 4)[0] is not None, (
        "what an abort has given back comes again, and is acknowledged"
    )
    pending.end(C, COMMIT, 0)
    assert subscription.cursor.partial == {0: 0b1000}
    following = TxnId(0, 3)
    subscription.acknowledge("c", [], [(1, 0b1010)])
    assert pending.acknowledge_cumulative(following, "c", 1, 0b1000, 4)[0] == PendingAck(
        following, ((LEDGER, 0, 0),), ((LEDGER, 1, 4, (0b1101,)),)
    ), "also what was acknowledged one by one, without a transaction"
    pending.end(following, COMMIT, 0)
    assert (subscription.cursor.mark_delete, subscription.cursor.partial) == (1, {1: 0b1000})


def test_a_cumulative_acknowledgement_ends_within_an_entry_that_is_acknowledged() -> None:
    """As a whole, by a consumer: what lies before it is held, as if the acknowledgement were of
    the whole entry."""
    _, subscription, pending = stage(entries=3, kind=SubscriptionType.EXCLUSIVE)
    subscription.acknowledge("c", [(1, 2)])
    assert pending.acknowledge_cumulative(A, "c", 1, 0b100, 3)[0] == PendingAck(
        A, ((LEDGER, 0, 0),)
    )
    pending.end(A, COMMIT, 0)
    assert subscription.cursor.mark_delete == 2
    with pytest.raises(NotAllowed, match=f"batch_size: 0 of message {LEDGER}:2"):
        pending.acknowledge_cumulative(B, "c", 2, 0b100, 0)


def test_an_aborted_cumulative_acknowledgement_comes_again_in_order() -> None:
    """With all that was delivered behind it, as a redelivery of the type."""
    _, subscription, pending = stage(kind=SubscriptionType.FAILOVER)
    subscription.advance(0)
    subscription.advance(10_000)
    assert delivered(subscription) == list(range(10))
    pending.acknowledge_cumulative(A, "c", 5, 0b100, 3)
    subscription.redeliver("c", None, epoch=2)
    [delivery] = subscription.dispatch(*next_of(subscription))
    assert (delivery.first, delivery.epoch) == (5, 2)
    assert delivery.ack_sets is not None
    assert delivery.ack_sets[0] == (0b100,), "the messages of the batch that are held are masked"
    pending.end(A, ABORT, 0)
    assert delivered(subscription) == list(range(10))


def next_of(subscription: Subscription) -> tuple[int, list[int]]:
    request = subscription.next_read(100)
    assert request is not None
    return request.first, [3] * request.entries


def test_messages_of_one_batch_may_be_of_two_transactions() -> None:
    """Each ends by itself; the entry is delivered with a mask, and not at all while nothing of
    it is free."""
    _, subscription, pending = stage(entries=1)
    pending.acknowledge(A, "c", [], [(0, 0b110, 3)])
    pending.acknowledge(B, "c", [], [(0, 0b101, 3)])
    [delivery] = subscription.dispatch(*next_of(subscription))
    assert (delivery.messages, delivery.ack_sets) == (1, [(0b100,)])
    subscription.acknowledge("c", [(0, 1)])
    assert subscription.cursor.partial == {0: 0b011}, "only the message that nobody holds"
    assert subscription.next_read(10) is None
    pending.end(A, ABORT, 0)
    [delivery] = subscription.dispatch(*next_of(subscription))
    assert (delivery.messages, delivery.ack_sets) == (1, [(0b001,)])
    pending.end(B, COMMIT, 0)
    assert subscription.cursor.partial == {0: 0b001}
    subscription.acknowledge("c", [(0, 1)])
    assert subscription.backlog == 0


def test_an_end_is_a_fence_and_is_repeated_at_will() -> None:
    """The same end again is done; the opposite names the outcome; what comes late is refused,
    also of one that held nothing here."""
    _, _, pending = stage()
    pending.acknowledge(A, "c", [(0, 1)])
    pending.end(A, COMMIT, 0)
    pending.end(B, ABORT, 0)
    assert pending.end(A, COMMIT, 0) == (None, False)
    with pytest.raises(InvalidTxnStatus, match="was committed"):
        pending.end(A, ABORT, 0)
    for txn, word in ((A, "was committed"), (B, "was aborted")):
        with pytest.raises(InvalidTxnStatus, match=word):
            pending.acknowledge(txn, "c", [(5, 6)])
    pending.acknowledge(C, "c", [(5, 6)])
    pending.end(TxnId(0, 9), COMMIT, 5)
    with pytest.raises(InvalidTxnStatus, match="has ended"):
        pending.acknowledge(B, "c", [(6, 7)])
    assert pending.orphans() == [C], "open, and nobody else will end it"
    assert list(pending.open_transactions()) == [C]


def test_orphans_are_reported_until_they_are_aborted() -> None:
    """By each coordinator's own floor, and only those that hold something still, also after a
    restart."""
    topic, subscription, pending = stage()
    txns = [TxnId(most, least) for most in (0, 7) for least in range(3)]
    for number, txn in enumerate(txns):
        pending.acknowledge(txn, "c", [(number, number + 1)])
    pending.end(txns[1], COMMIT, 0)
    assert pending.orphans() == []
    pending.end(TxnId(0, 9), COMMIT, 2)
    assert pending.orphans() == [txns[0]]
    pending.end(TxnId(7, 9), ABORT, 3)
    assert pending.orphans() == [txns[0], *txns[3:]]
    restored = PendingAcks.from_state(
        Topic.from_state(topic.name, LedgerIds(9), topic.to_state()).subscription("s"),
        topic.ledgers,
        pending.to_state(),
    )
    for known in (pending, restored):
        for orphan in known.orphans():
            known.end(orphan, ABORT, 0)
        assert known.orphans() == []
        assert list(known.open_transactions()) == [txns[2]]
    assert subscription.deferred is not None


def test_limits_and_combinations_that_are_not_allowed() -> None:
    """Cumulative on Shared, a batch without its size, too many transactions, too much held."""
    _, subscription, pending = stage(limits=PendingLimits(open_transactions_max=2, held_max=3))
    with pytest.raises(NotAllowed, match="SHARED"):
        pending.acknowledge_cumulative(A, "c", 3)
    with pytest.raises(NotAllowed, match="batch_size: 0"):
        pending.acknowledge(A, "c", [], [(3, 1, 0)])
    pending.acknowledge(A, "c", [(0, 1), (2, 3)])
    pending.acknowledge(B, "c", [(4, 5)])
    with pytest.raises(NotAllowed, match="2 open transactions"):
        pending.acknowledge(C, "c", [(6, 7)])
    with pytest.raises(NotAllowed, match="txn_held_acks_max=3"):
        pending.acknowledge(A, "c", [(6, 7)])
    pending.end(B, ABORT, 0)
    pending.acknowledge(A, "c", [(6, 7)])
    assert subscription.deferred is not None


def test_large_batches_count_for_more() -> None:
    """A commit names every message, in one record: what a batch takes there grows with its size."""
    _, _, pending = stage(limits=PendingLimits(held_max=5))
    pending.acknowledge(A, "c", [], [(3, 1, 128)])
    with pytest.raises(
        NotAllowed, match=r"hold 3 runs .* \(0,1\) wants 3 more; the limit is txn_held_acks_max=5"
    ):
        pending.acknowledge(B, "c", [], [(4, 1, 128)])
    pending.acknowledge(B, "c", [], [(4, 1, 127)])
    pending.acknowledge(A, "c", [], [(3, 2, 128)])
    pending.acknowledge(B, "c", [(4, 5)])
    pending.end(A, ABORT, 0)
    pending.acknowledge(C, "c", [(0, 1), (2, 3), (6, 7), (8, 9)])
    with pytest.raises(NotAllowed, match="hold 5 runs"):
        pending.acknowledge(C, "c", [(5, 6)])


def test_one_transaction_holds_so_much_as_can_change_at_once() -> None:
    """By one ACK or by several, runs and batches together; entries that follow each other are
    one run."""
    _, _, pending = stage(limits=PendingLimits(held_per_transaction_max=3))
    pending.acknowledge(A, "c", [(0, 2), (3, 4)])
    with pytest.raises(NotAllowed, match=r"\(0,0\) would hold 4 runs .* more than 3"):
        pending.acknowledge(A, "c", [(5, 6), (7, 8)])
    with pytest.raises(NotAllowed, match="would hold 4 runs"):
        pending.acknowledge(B, "c", [(5, 6), (7, 8), (9, 10), (11, 12)])
    pending.acknowledge(A, "c", [(5, 6)])
    pending.acknowledge(B, "c", [(7, 8)])


def test_the_largest_commit_fits_into_a_record() -> None:
    """Whatever a subscription holds belongs to one transaction at worst, to batches of the worst
    size, under the longest names."""

    def bytes_of(ranges: int, batches: int, size: int) -> int:
        spans = tuple((LEDGER, 2 * entry, 2 * entry) for entry in range(ranges))
        partial = tuple(
            (LEDGER, entry, size, words_of_mask(1 << (size - 1))) for entry in range(batches)
        )
        return len(transaction_payload(1, "t", EndAcks(A, 0, COMMIT, spans, partial), "s"))

    for block in (1 << 20, BLOCK_BYTES_MAX):
        shares = held_max_of(block)
        assert 20_000 < shares <= HELD_MAX
        few = 500
        for ranges, batches, size in [
            (few, 0, 1),
            *((0, few, size) for size in (1, 63, 64, 65, 127, 128, 64 * 64)),
        ]:
            cost = few if ranges else few * (1 + size // MESSAGES_PER_SHARE)
            assert (
                bytes_of(ranges, batches, size) - bytes_of(0, 0, 1)
            ) * shares / cost + NAMES_BYTES_MAX < block
        longest = transaction_payload(
            1, "t" * NAME_BYTES_MAX, EndAcks(A, 0, COMMIT), "s" * NAME_BYTES_MAX
        )
        assert len(longest) + RECORD_HEADER_BYTES < NAMES_BYTES_MAX


def test_long_held_transactions_are_asked_about_again_and_again() -> None:
    """From the first look on, at intervals; one that has ended is not asked about, and begins
    again if it comes back."""
    _, _, pending = stage(limits=PendingLimits(inquire_ms=100))
    pending.acknowledge(A, "c", [(0, 1)])
    assert pending.to_inquire(1_000, 9) == []
    pending.acknowledge(B, "c", [(1, 2)])
    assert pending.to_inquire(1_060, 9) == []
    assert pending.to_inquire(1_100, 9) == [A]
    assert pending.to_inquire(1_199, 9) == [B]
    pending.end(B, ABORT, 0)
    assert pending.to_inquire(1_400, 9) == [A]
    assert held_by(pending, A) == PendingAck(A, ((LEDGER, 0, 0),))
    assert held_by(pending, B) is None


def test_ended_transactions_that_are_remembered_are_bounded() -> None:
    """At the bound none begins to acknowledge here; what is held is ended as ever, and once the
    floor rises others begin."""
    _, _, pending = stage(limits=PendingLimits(fences_max=2))
    pending.acknowledge(TxnId(0, 1), "c", [(0, 1)])
    for number in (2, 4):
        pending.end(TxnId(0, number), ABORT, 0)
    with pytest.raises(NotAllowed, match="2 runs of ended transactions of coordinator 0"):
        pending.acknowledge(TxnId(0, 8), "c", [(1, 2)])
    assert pending.acknowledge(TxnId(0, 1), "c", [(1, 2)])[0] is not None
    pending.end(TxnId(0, 1), COMMIT, 3)
    assert pending.acknowledge(TxnId(0, 8), "c", [(2, 3)])[0] is not None


def test_what_is_acknowledged_again_in_between_is_not_void() -> None:
    """It may be a transaction's that has begun since its coordinator was asked: its client was
    answered that it holds these."""
    _, _, pending = stage(limits=PendingLimits(inquire_ms=0))
    pending.acknowledge(A, "c", [(0, 1)])
    assert pending.unbegun(A) == (None, False), "nobody has been asked"
    assert pending.to_inquire(0, 9) == [A]
    assert pending.acknowledge(A, "c", [(0, 1)]) == (None, False)
    assert pending.unbegun(A) == (None, False)
    assert pending.to_inquire(1, 9) == [A]
    assert pending.unbegun(A)[0] == UnbegunAcks(A)
    assert pending.acknowledge(A, "c", [(0, 1)])[0] is not None


def test_what_is_trimmed_is_gone_even_if_a_transaction_held_it() -> None:
    """Trimming moves every subscription on; ends of transactions that held something of it still
    work, and so does a checkpoint."""
    topic, subscription, pending = stage()
    pending.acknowledge(A, "c", [(1, 4)], [(5, 0b110, 3)])
    pending.acknowledge(B, "c", [(4, 5), (8, 9)])
    topic.trim(5, 5)
    assert subscription.cursor.mark_delete == 5
    state = pending.to_state()
    assert state.pending == (
        PendingAck(A, (), ((LEDGER, 5, 3, (0b110,)),)),
        PendingAck(B, ((LEDGER, 8, 8),)),
    )
    topic.trim(7, 7)
    assert pending.to_state().pending == (PendingAck(A), PendingAck(B, ((LEDGER, 8, 8),)))
    pending.end(A, ABORT, 0)
    pending.end(B, COMMIT, 0)
    assert delivered(subscription) == [7, 9]
    assert subscription.deferred is None


@pytest.mark.parametrize("later", list(SubscriptionType))
@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_consumers_of_another_type_find_what_is_pending(
    kind: SubscriptionType, later: SubscriptionType
) -> None:
    """A consumer that leaves gives nothing of its transactions back, and a new consumer gets
    none of it, until they end."""
    _, subscription, pending = stage(kind=kind)
    subscription.advance(0)
    subscription.advance(10_000)
    delivered(subscription)
    pending.acknowledge(A, "c", [(1, 3)], [(4, 0b110, 3)])
    pending.acknowledge(B, "c", [(5, 6)])
    subscription.remove_consumer("c")
    subscription.add_consumer("d", later)
    subscription.flow("d", 1000)
    subscription.advance(20_000)
    subscription.advance(30_000)
    assert delivered(subscription) == [0, 3, 4, 6, 7, 8, 9]
    pending.end(A, ABORT, 0)
    pending.end(B, COMMIT, 0)
    again = delivered(subscription)
    assert {1, 2, 4} <= set(again)
    assert 5 not in again


def test_a_restart_brings_back_what_is_pending_before_anybody_connects() -> None:
    """From a checkpoint; a consumer that comes gets none of it."""
    topic, _, pending = stage()
    pending.acknowledge(A, "c", [(0, 9)], [(9, 0b110, 3)])
    again = Topic.from_state(topic.name, LedgerIds(9), topic.to_state())
    restored = PendingAcks.from_state(again.subscription("s"), again.ledgers, pending.to_state())
    assert restored.to_state() == pending.to_state()
    found = again.subscription("s")
    found.add_consumer("d", SubscriptionType.EXCLUSIVE)
    found.flow("d", 100)
    [delivery] = found.dispatch(*next_of(found))
    assert (delivery.first, delivery.entries, delivery.ack_sets) == (9, 1, [(0b110,)])
    restored.end(A, COMMIT, 0)
    assert (found.cursor.mark_delete, found.cursor.partial) == (9, {9: 0b110})


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_an_entry_that_waits_for_its_time_comes_back_once(kind: SubscriptionType) -> None:
    """Acknowledged and given back while it waits: it waits on, and is delivered a single time."""
    _, subscription, pending = stage(entries=1, kind=kind)
    traits = [EntryTraits(1, 5_000)]
    [request] = [subscription.next_read(10, 0)]
    assert request is not None
    assert subscription.dispatch(0, [1], traits) == []
    pending.acknowledge(A, "c", [(0, 1)])
    pending.end(A, ABORT, 0)
    assert subscription.next_read(10, 4_500) is not None, "a tick early, as it has waited"
    assert len(subscription.dispatch(0, [1], traits)) == 1
    assert subscription.next_read(10, 60_000) is None


def test_a_commit_survives_a_seek_that_is_replayed_with_it() -> None:
    """Replay may begin before a seek that the checkpoint holds the results of: the commit that
    followed must act again."""
    topic, subscription, pending = stage(kind=None)
    subscription.take_delta()
    subscription.reset(1)
    seek = subscription.take_delta()
    pending.acknowledge(A, None, [(3, 4)])
    commit, _ = pending.end(A, COMMIT, 0)
    assert seek is not None
    assert commit is not None
    again = Topic.from_state(topic.name, LedgerIds(9), topic.to_state())
    restored = PendingAcks.from_state(again.subscription("s"), again.ledgers, pending.to_state())
    again.apply_cursor("s", seek)
    restored.apply(commit)
    assert again.subscription("s").to_state() == subscription.to_state()
    assert Position(*again.subscription("s").to_state().mark_delete) == (LEDGER, 0)
