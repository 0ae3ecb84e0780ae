"""Any course of a subscription, with transactions that hold, commit and abort acknowledgements
beside everything else that happens.

The courses of `tests.unit.topics.test_subscription_model` with more events: what transactions hold
is neither delivered nor acknowledged by anybody else, conflicts are found exactly, and the log
alone, from any place before a checkpoint on, brings all of it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter

import pytest

from magnetar.errors import NotAllowed, TransactionConflict
from magnetar.topics.dispatch.base import Delivery, ReadRequest
from magnetar.topics.dispatch.hash_ranges import ring_slot_of
from magnetar.topics.state import CursorDelta
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import Outcome, PendingChange, PendingState
from magnetar.transactions.topic.pending_acks import PendingAcks
from tests.support.subscription_course import Course
from tests.support.subscription_type_courses import (
    ExclusiveCourse,
    FailoverCourse,
    KeySharedCourse,
    SharedCourse,
)


class Transactional(Course):
    """What every type does with transactions."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pending = PendingAcks(self.subscription, self.ledgers)
        self.whole: dict[TxnId, set[int]] = {TxnId(0, number): set() for number in range(3)}
        self.bits: dict[TxnId, dict[int, int]] = {txn: {} for txn in self.whole}
        self.log: list[CursorDelta | PendingChange | tuple[CursorDelta, PendingState]] = []
        self.checkpoint = 0
        self.conflicts = self.commits = self.aborts = self.voided = self.asked_ms = 0
        self.events += [
            (14, self.acknowledge_in_transaction),
            (10, self.acknowledge_partly_in_transaction),
            (8, self.acknowledge_cumulatively_in_transaction),
            (10, self.end_transaction),
            (2, self.void_transaction),
        ]

    # --- what is hidden ---------------------------------------------------------------------------

    def full(self, ordinal: int) -> int:
        return (1 << self.batch_sizes[ordinal]) - 1

    def held_bits(self, ordinal: int, besides: TxnId | None = None) -> int:
        found = 0
        for txn, bits in self.bits.items():
            if txn != besides:
                found |= bits.get(ordinal, 0)
        return found

    def held_whole(self, besides: TxnId | None = None) -> set[int]:
        return set[int]().union(
            *(ordinals for txn, ordinals in self.whole.items() if txn != besides)
        )

    def left_of(self, ordinal: int) -> int:
        """Mask of what may be delivered of an entry."""
        if ordinal in self.acknowledged or ordinal in self.held_whole():
            return 0
        return self.masks.get(ordinal, self.full(ordinal)) & ~self.held_bits(ordinal)

    def hidden(self) -> set[int]:
        touched = {ordinal for bits in self.bits.values() for ordinal in bits}
        return (
            self.acknowledged
            | self.held_whole()
            | {ordinal for ordinal in touched if not self.left_of(ordinal)}
        )

    @contextmanager
    def as_delivered(self) -> Iterator[None]:
        """For dispatch what transactions hold is as good as acknowledged."""
        acknowledged, masks, hidden = self.acknowledged, self.masks, self.hidden()
        touched = {*masks, *(ordinal for bits in self.bits.values() for ordinal in bits)} - hidden
        seen = {ordinal: self.left_of(ordinal) for ordinal in touched}
        self.acknowledged, self.masks = hidden, seen
        try:
            yield
        finally:
            self.acknowledged, self.masks = acknowledged, masks

    def dispatch(self, request: ReadRequest) -> list[Delivery]:
        with self.as_delivered():
            return super().dispatch(request)

    def cost(self, ordinal: int) -> int:
        return self.left_of(ordinal).bit_count()

    # --- normal acknowledgements pass over it -----------------------------------------------------

    def settle(self, ordinals: range) -> None:
        whole = self.held_whole()
        for ordinal in ordinals:
            if ordinal in whole or ordinal in self.acknowledged:
                continue
            # a seek may have acknowledged some of it
            held = self.held_bits(ordinal) & self.masks.get(ordinal, self.full(ordinal))
            if held:
                self.masks[ordinal] = held
                self.taken({ordinal})
            else:
                super().settle(range(ordinal, ordinal + 1))

    def acknowledge_partly(self) -> None:
        if not self.batch_sizes:
            return
        ordinal = self.random.randint(self.subscription.cursor.mark_delete, self.ledgers.end)
        size = self.batch_sizes[ordinal] if ordinal < self.ledgers.end else 1
        mask = self.random.getrandbits(size)
        self.subscription.acknowledge(self.any_consumer(), [], [(ordinal, mask)])
        if (
            ordinal >= self.ledgers.end
            or ordinal in self.acknowledged
            or ordinal in self.held_whole()
        ):
            return
        mask |= self.held_bits(ordinal)
        self.masks[ordinal] = self.masks.get(ordinal, mask) & mask
        if not self.masks[ordinal]:
            super().settle(range(ordinal, ordinal + 1))
        elif not self.left_of(ordinal):
            self.taken({ordinal})

    # --- transactions -----------------------------------------------------------------------------

    def taken(self, ordinals: set[int]) -> None:
        """Nobody holds these any more, and nobody gets them for now."""
        for held in self.held.values():
            held -= ordinals

    def returned(self, ordinal: int) -> None:
        """An abort gives this back to delivery."""
        self.read = min(self.read, ordinal)

    def acknowledge_in_transaction(self) -> None:
        txn, handle = self.random.choice(list(self.whole)), self.any_consumer()
        held = sorted(self.held.get(handle, ()))
        start = (
            self.random.choice(held) if held and self.random.random() < 0.8 else self.any_ordinal()
        )
        ordinals = set(range(start, min(start + self.random.randint(1, 3), self.ledgers.end)))
        if not ordinals:
            return
        fresh = ordinals - self.whole[txn]
        refused = any(
            ordinal in self.acknowledged
            or ordinal in self.held_whole(txn)
            or self.held_bits(ordinal, txn)
            for ordinal in fresh
        )
        if refused:
            self.refused(
                txn,
                lambda: self.pending.acknowledge(txn, handle, [(min(ordinals), max(ordinals) + 1)]),
            )
            return
        change, _ = self.pending.acknowledge(txn, handle, [(min(ordinals), max(ordinals) + 1)])
        assert (change is None) == (not fresh), (
            "what a transaction holds it may acknowledge again, and nothing is written"
        )
        self.held_now(txn, fresh, {}, change)

    def acknowledge_partly_in_transaction(self) -> None:
        if not self.batch_sizes:
            return
        txn, ordinal = (
            self.random.choice(list(self.whole)),
            min(self.any_ordinal(), self.ledgers.end - 1),
        )
        size = self.batch_sizes[ordinal]
        mask = self.random.getrandbits(size)
        wanted = self.full(ordinal) & ~mask & ~self.bits[txn].get(ordinal, 0)
        if ordinal in self.whole[txn]:
            wanted = 0
        acknowledged = self.full(ordinal) & ~self.masks[ordinal] if ordinal in self.masks else 0
        others = self.held_bits(ordinal, txn)
        if wanted and (
            ordinal in self.acknowledged
            or ordinal in self.held_whole(txn)
            or wanted & (acknowledged | others)
        ):
            self.refused(
                txn, lambda: self.pending.acknowledge(txn, None, [], [(ordinal, mask, size)])
            )
            return
        change, _ = self.pending.acknowledge(txn, self.any_consumer(), [], [(ordinal, mask, size)])
        assert (change is None) == (not wanted)
        self.held_now(txn, set(), {ordinal: wanted} if wanted else {}, change)

    def acknowledge_cumulatively_in_transaction(self) -> None:
        txn, ordinal = (
            self.random.choice(list(self.whole)),
            min(self.any_ordinal(), self.ledgers.end - 1),
        )
        # where a consumer is that acknowledges batches bit by bit
        if self.masks and self.random.random() < 0.7:
            ordinal = min(self.masks)
        if ordinal < 0:
            return
        if not self.cumulative and self.held:
            with pytest.raises(NotAllowed):
                self.pending.acknowledge_cumulative(txn, None, ordinal)
            return
        size = self.batch_sizes[ordinal]
        mask = self.random.getrandbits(size) if self.random.random() < 0.6 else 0
        fresh = set(range(ordinal + (not mask))) - self.acknowledged - self.whole[txn]
        bits = self.bits_of_cumulative(txn, ordinal, self.full(ordinal) & ~mask) if mask else {}
        others = any(known in self.held_whole(txn) or self.held_bits(known, txn) for known in fresh)
        others = others or any(
            known in self.held_whole(txn) or self.held_bits(known, txn) & wanted
            for known, wanted in bits.items()
        )
        if others or self.nothing_left_of_cumulative(txn, ordinal, mask):
            self.refused(
                txn, lambda: self.pending.acknowledge_cumulative(txn, None, ordinal, mask, size)
            )
            return
        change, _ = self.pending.acknowledge_cumulative(
            txn, self.any_consumer(), ordinal, mask, size
        )
        assert (change is None) == (not fresh and not bits)
        self.held_now(txn, fresh, bits, change)

    def bits_of_cumulative(self, txn: TxnId, ordinal: int, named: int) -> dict[int, int]:
        """What a cumulative acknowledgement newly holds of its last batch: what nobody has
        acknowledged, even if other transactions hold it too."""
        if ordinal in self.acknowledged or ordinal in self.whole[txn]:
            return {}
        wanted = (
            named & self.masks.get(ordinal, self.full(ordinal)) & ~self.bits[txn].get(ordinal, 0)
        )
        return {ordinal: wanted} if wanted else {}

    def nothing_left_of_cumulative(self, txn: TxnId, ordinal: int, mask: int) -> bool:
        """Whether everything that a cumulative acknowledgement names is acknowledged, and not
        held by its own transaction."""
        if ordinal in self.whole[txn]:
            return False
        if ordinal < self.subscription.cursor.mark_delete:
            return True
        named = self.full(ordinal) & ~mask
        left = self.masks.get(ordinal, self.full(ordinal)) | self.bits[txn].get(ordinal, 0)
        return (
            bool(mask and named)
            and ordinal == self.subscription.cursor.mark_delete
            and not named & left
        )

    def refused(self, txn: TxnId, attempt: Callable[[], object]) -> None:
        """A conflict changes nothing, and names the other holder if there is one."""
        before = self.pending.to_state()
        with pytest.raises(
            TransactionConflict, match=r"acknowledged already|held by transaction"
        ) as refusal:
            attempt()
        assert f"held by transaction {txn}" not in str(refusal.value)
        assert self.pending.to_state() == before
        self.conflicts += 1

    def held_now(
        self, txn: TxnId, fresh: set[int], bits: dict[int, int], change: PendingChange | None
    ) -> None:
        if change is None:
            return
        self.log.append(change)
        self.whole[txn] |= fresh
        for ordinal in fresh:
            self.bits[txn].pop(ordinal, None)
        for ordinal, wanted in bits.items():
            self.bits[txn][ordinal] = self.bits[txn].get(ordinal, 0) | wanted
        self.taken(fresh | {ordinal for ordinal in bits if not self.left_of(ordinal)})

    def end_transaction(self) -> None:
        txn = self.random.choice(list(self.whole))
        outcome = self.random.choice((Outcome.COMMITTED, Outcome.ABORTED))
        floor = min(self.whole).least
        change, _ = self.pending.end(txn, outcome, floor)
        assert change is not None
        self.log.append(change)
        assert self.pending.end(txn, outcome, floor) == (None, False), "an end may come again"
        whole, bits = self.whole.pop(txn), self.bits.pop(txn)
        following = TxnId(0, max([txn, *self.whole]).least + 1)
        self.whole[following], self.bits[following] = set(), {}
        if outcome is Outcome.COMMITTED:
            self.commits += bool(whole or bits)
            for ordinal in whole:
                super().settle(range(ordinal, ordinal + 1))
            for ordinal in [ordinal for ordinal in bits if ordinal not in self.acknowledged]:
                self.masks[ordinal] = self.masks.get(ordinal, self.full(ordinal)) & ~bits[ordinal]
                if not self.masks[ordinal]:
                    super().settle(range(ordinal, ordinal + 1))
            self.durable_with_commit(whole, bits)
            return
        self.aborts += bool(whole or bits)
        for ordinal in sorted(whole | set(bits)):
            if self.left_of(ordinal):
                self.returned(ordinal)

    def void_transaction(self) -> None:
        """The coordinator was asked, and says that it has not begun: as an abort, and another
        one may begin under the id."""
        txn = self.random.choice(list(self.whole))
        asked = False
        for _ in range(2):  # the first look only finds them
            self.asked_ms += 1 << 40
            asked = txn in self.pending.to_inquire(self.asked_ms, 1 << 10)
        assert asked == bool(self.whole[txn] or self.bits[txn])
        change, _ = self.pending.unbegun(txn)
        assert (change is not None) == asked
        if change is None:
            return
        self.log.append(change)
        assert self.pending.unbegun(txn) == (None, False)
        self.voided += 1
        whole, bits = self.whole[txn], self.bits[txn]
        self.whole[txn], self.bits[txn] = set(), {}
        for ordinal in sorted(whole | set(bits)):
            if self.left_of(ordinal):
                self.returned(ordinal)

    def durable_with_commit(self, whole: set[int], bits: dict[int, int]) -> None:
        """What a commit acknowledges is durable with its record, whether or not the cursor has
        been written since."""
        acknowledged, masks = self.durable
        acknowledged |= whole
        for ordinal in [ordinal for ordinal in bits if ordinal not in acknowledged]:
            masks[ordinal] = masks.get(ordinal, self.full(ordinal)) & ~bits[ordinal]
            if not masks[ordinal]:
                acknowledged.add(ordinal)
        for ordinal in acknowledged & masks.keys():
            del masks[ordinal]

    # --- the log ----------------------------------------------------------------------------------

    def seek(self) -> None:
        """Written at once, as a server does: else a commit that follows would be undone by the
        seek's record."""
        super().seek()
        self.write_log()

    def write_log(self) -> None:
        before = len(self.deltas)
        super().write_log()
        self.log += self.deltas[before:]

    def write_checkpoint(self) -> None:
        """Nothing is untaken then: replay from long before it would lose that to a seek, as it
        may what was never confirmed."""
        self.write_log()
        super().write_checkpoint()
        self.checkpoint = len(self.log)
        self.log.append((self.deltas[0], self.pending.to_state()))

    def crash(self) -> None:
        super().crash()
        self.subscription = self.new_subscription()
        self.pending = self.replayed(self.random.randint(0, self.checkpoint))

    def replayed(self, start: int) -> PendingAcks:
        """The last checkpoint, then all that was written since `start`, which may be long before
        it."""
        pending = PendingAcks(self.subscription, self.ledgers)
        records = self.log
        if self.checkpoint or (self.log and isinstance(self.log[0], tuple)):
            records = [
                self.log[self.checkpoint],
                *(found for found in self.log[start:] if not isinstance(found, tuple)),
            ]
        for record in records:
            if isinstance(record, tuple):
                self.subscription.apply_delta(record[0])
                pending = PendingAcks.from_state(self.subscription, self.ledgers, record[1])
            elif isinstance(record, CursorDelta):
                self.subscription.apply_delta(record)
            else:
                pending.apply(record)
        return pending

    def check_restart(self) -> None:
        self.write_log()
        live, state, pending = (
            self.subscription,
            self.subscription.to_state(),
            self.pending.to_state(),
        )
        self.subscription = self.new_subscription()
        again = self.replayed(self.random.randint(0, self.checkpoint)).to_state()
        by_id = attrgetter("txn")  # one that was void, and is used again, may change places
        assert (self.subscription.to_state(), sorted(again.pending, key=by_id), again.fences) == (
            state,
            sorted(pending.pending, key=by_id),
            pending.fences,
        )
        self.subscription = live

    def check_everything_is_delivered(self) -> None:
        """Once all transactions have ended."""
        while any(self.whole.values()) or any(self.bits.values()):
            self.end_transaction()
        assert self.subscription.deferred is None, (
            "a subscription that nothing is deferred of pays nothing"
        )
        super().check_everything_is_delivered()


class TransactionalShared(Transactional, SharedCourse):
    """Shared: what comes back is a replay, counted if a consumer had it."""

    def taken(self, ordinals: set[int]) -> None:
        counts = {
            ordinal: count for ordinal, count in self.redeliveries.items() if ordinal in ordinals
        }
        for held in self.held.values():
            counts |= {
                ordinal: self.redeliveries.get(ordinal, 0) + 1 for ordinal in held & ordinals
            }
        super().taken(ordinals)
        self.forgotten(ordinals)
        self.redeliveries |= counts

    def returned(self, ordinal: int) -> None:
        for held in self.held.values():
            if ordinal in held:
                held.remove(ordinal)
                self.replays.add(ordinal)
                self.redeliveries[ordinal] = self.redeliveries.get(ordinal, 0) + 1
        if ordinal < self.read:
            (self.aside if self.traits[ordinal].deliver_at_ms else self.replays).add(ordinal)


class TransactionalKeyShared(TransactionalShared, KeySharedCourse):
    """Key_Shared: what a consumer had comes back in its key's order."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # nobody had it here when it was deferred: its key is not known until it is read
        self.loose: set[int] = set()
        self.known: set[int] = set()

    def forget_delivery(self) -> None:
        super().forget_delivery()
        self.loose, self.known = set(), set()

    def taken(self, ordinals: set[int]) -> None:
        self.known |= set[int]().union(*self.held.values()) & ordinals
        super().taken(ordinals)

    def returned(self, ordinal: int) -> None:
        if ordinal not in self.known:
            self.loose.add(ordinal)
        super().returned(ordinal)

    def check_key(self, handle: int, ordinal: int) -> None:
        slot = ring_slot_of(self.traits[ordinal].key_hash)
        loose = {
            found
            for found in self.loose
            if found < ordinal and ring_slot_of(self.traits[found].key_hash) == slot
        }
        loose -= self.held[handle] | self.acknowledged
        self.held[handle] |= loose
        super().check_key(handle, ordinal)
        self.held[handle] -= loose


class TransactionalExclusive(Transactional, ExclusiveCourse):
    """Exclusive: an abort goes back to the first entry that it gives back."""


class TransactionalFailover(Transactional, FailoverCourse):
    """Failover: the same, at the active consumer."""


COURSES = [
    TransactionalShared,
    TransactionalExclusive,
    TransactionalFailover,
    TransactionalKeyShared,
]


@pytest.mark.parametrize("course", COURSES, ids=lambda course: course.kind.name.lower())
@pytest.mark.parametrize("seed", [*range(10), 12, 30, 33, 35, 39, 49, 50, 154, 193, 287, 310])
def test_random_course_with_transactions(seed: int, course: type[Transactional]) -> None:
    """The subscription agrees with the model after every step, survives crashes, and delivers
    everything in the end."""
    running = course(seed)
    running.run()
    assert running.delivered > 20
    assert running.conflicts
    assert running.commits + running.aborts > 3, (
        "the course must really use transactions, or it proves nothing"
    )
