"""Pending acknowledgements of one subscription.

Owns: which transaction holds which entries and messages, and the fences of ended ones. Imports:
errors, topics, ids, participant_records, siblings. Pure: made with the first transactional ACK; a
subscription that was never used with any has none. Source: PIP-31 (PENDING_ACK). Invariants:
conflicts are found before anything is logged or held; an acknowledgement is held as a whole or not
at all; no message is held by two transactions; a transaction may acknowledge again what it holds; a
cumulative acknowledgement holds the unacknowledged entries that it covers at that time, so that
transactions end in any order. Unlike the buffer's, these changes act at once: a checkpoint may hold
one before its client has a receipt, and an end comes only after the coordinator's decision is
durable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from magnetar.errors import InvalidTxnStatus, NotAllowed
from magnetar.topics.acksets import mask_of_words, words_of_mask
from magnetar.topics.dispatch.base import SubscriptionType
from magnetar.topics.intervals import IntervalSet, known_within
from magnetar.topics.ledgers import LedgerTable
from magnetar.topics.subscription import Subscription
from magnetar.transactions.ids import TxnId
from magnetar.transactions.participant_records import (
    EndAcks,
    Outcome,
    PendingAck,
    PendingChange,
    PendingState,
    UnbegunAcks,
)
from magnetar.transactions.topic.conflicts import Conflicts, Held, shares_of
from magnetar.transactions.topic.fences import FENCES_MAX, Fences
from magnetar.transactions.topic.inquiries import Inquiries
from magnetar.transactions.topic.parts import LowestNumbers

HELD_MAX = 200_000
HELD_PER_TRANSACTION_MAX = 4_000
"""Shares of one transaction: all of them change together when it ends, which takes some 10 us
each."""
SHARE_BYTES_MAX, NAMES_BYTES_MAX = 40, 132_000
"""A commit names all that its transaction holds in one record: so many bytes per share at most,
and for names and head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingLimits:
    """Per subscription. `held_max` (at most HELD_MAX) bounds what transactions hold together, in
    shares: a run of entries is one, a batch of which only some messages are held one and another
    per 64 of its messages.

    `held_per_transaction_max` bounds those of one transaction. `inquire_ms` is how long a
    transaction holds something before its coordinator is asked about it, again and again;
    `fences_max` as in `BufferLimits`.
    """

    open_transactions_max: int = 10_000
    held_max: int = HELD_MAX
    held_per_transaction_max: int = HELD_PER_TRANSACTION_MAX
    inquire_ms: int = 300_000
    fences_max: int = FENCES_MAX


def held_max_of(record_bytes_max: int) -> int:
    """The greatest `held_max` with which every commit fits into a record of so many bytes."""
    return max(1, min(HELD_MAX, (record_bytes_max - NAMES_BYTES_MAX) // SHARE_BYTES_MAX))


class PendingAcks:
    """Transactions on one durable subscription. Recovery makes it with `from_state` (or empty)
    and `apply`."""

    def __init__(
        self,
        subscription: Subscription,
        ledgers: LedgerTable,
        *,
        limits: PendingLimits | None = None,
    ) -> None:
        self._subscription, self._ledgers = subscription, ledgers
        self.limits = limits or PendingLimits()
        self._held: dict[TxnId, Held] = {}
        self._shares = 0
        self._fences = Fences()
        self._conflicts = Conflicts(subscription, ledgers, self._held)
        self._inquiries = Inquiries()
        self._lowest = LowestNumbers()

    # --- acknowledging ----------------------------------------------------------------------------

    def acknowledge(
        self,
        txn: TxnId,
        handle: Hashable | None,
        ranges: Sequence[tuple[int, int]],
        partial: Sequence[tuple[int, int, int]] = (),
    ) -> tuple[PendingAck | None, bool]:
        """Hold entries (`ranges` of ordinals [start, end)) and messages (`partial`: ordinal, ack
        set's mask, messages in the batch).

        All must exist: the caller refuses what does not. Returns what to write (None: the
        transaction holds all of it already; answer through the log's queue), and whether delivery
        became possible by a lifted block. Raises TransactionConflict naming who holds what, or what
        is acknowledged, InvalidTxnStatus if the transaction has ended here, NotAllowed at a limit:
        then nothing is changed.
        """
        return self._acknowledge(txn, handle, ranges, partial, opens_holes=True)

    def _acknowledge(
        self,
        txn: TxnId,
        handle: Hashable | None,
        ranges: Sequence[tuple[int, int]],
        partial: Sequence[tuple[int, int, int]],
        *,
        opens_holes: bool,
    ) -> tuple[PendingAck | None, bool]:
        """As `acknowledge`; `opens_holes`: a commit may leave more holes in the cursor than
        there were."""
        self._check_open(txn)
        self._inquiries.changed(txn)
        held = self._held.get(txn, Held())
        most = self.limits.held_per_transaction_max
        if len(ranges) + len(partial) > most:
            raise self._too_much(txn, len(ranges) + len(partial))
        fresh = [
            run for start, end in ranges for run in self._conflicts.fresh(txn, held, start, end)
        ]
        covered = IntervalSet(fresh)
        messages: dict[int, tuple[int, int]] = {}
        for ordinal, mask, size in partial:
            wanted = self._conflicts.fresh_messages(
                txn, held, ordinal, self._conflicts.messages_named(ordinal, mask, size)
            )
            if wanted and ordinal not in covered:
                messages[ordinal] = (messages.get(ordinal, (0, 0))[0] | wanted, size)
        if not fresh and not messages:
            return None, False
        # What is held goes into the cursor with the commit, whatever that holds by then.
        crowded = self._subscription.crowded_out(fresh, messages) if opens_holes else None
        if crowded is not None:
            raise NotAllowed(crowded)
        whole = (
            ordinal for start, end in fresh for ordinal in known_within(held.sizes, start, end)
        )
        wanted_shares = len(fresh) - sum(shares_of(held.sizes[ordinal]) for ordinal in whole)
        wanted_shares += sum(
            held.more_shares(ordinal, size) for ordinal, (_, size) in messages.items()
        )
        if held.shares + wanted_shares > most:
            raise self._too_much(txn, held.shares + wanted_shares)
        if self._shares + wanted_shares > self.limits.held_max:
            raise NotAllowed(
                f"transactions hold {self._shares} runs of entries and shares of batches of "
                f"subscription {self._subscription.name!r}, and "
                f"{txn} wants {wanted_shares} more; the limit is "
                f"txn_held_acks_max={self.limits.held_max}: end some"
            )
        runs = tuple(covered)
        return self._record(txn, runs, messages), self._hold(txn, handle, runs, messages)

    def acknowledge_cumulative(
        self, txn: TxnId, handle: Hashable | None, ordinal: int, mask: int = 0, size: int = 0
    ) -> tuple[PendingAck | None, bool]:
        """Hold everything up to and including `ordinal`; with `mask` (and its batch's `size`) of
        that entry only the messages whose bit is 0.

        What of that is acknowledged already is passed over, as long as there is anything else: a
        batch may be acknowledged bit by bit. As `acknowledge`; raises NotAllowed on Shared and
        Key_Shared too.
        """
        if self._subscription.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            raise NotAllowed(
                f"subscription {self._subscription.name!r} is {self._subscription.kind.name}: "
                "acknowledge each message"
            )
        self._check_open(txn)
        cursor, held = self._subscription.cursor, self._held.get(txn)
        if ordinal < cursor.mark_delete and (held is None or ordinal not in held.entries):
            raise self._conflicts.nothing_left(txn, ordinal)
        runs = list(cursor.unacknowledged(cursor.mark_delete, ordinal if mask else ordinal + 1))
        if not mask:
            return self._acknowledge(txn, handle, runs, [], opens_holes=False)
        named = self._conflicts.messages_named(ordinal, mask, size)
        left = named & self._conflicts.not_acknowledged(held, ordinal)
        if named and not left and not runs:
            raise self._conflicts.nothing_left(txn, ordinal)
        return self._acknowledge(
            txn, handle, runs, [(ordinal, ((1 << size) - 1) & ~left, size)], opens_holes=False
        )

    def _check_open(self, txn: TxnId) -> None:
        if txn in self._held:
            return
        outcome = self._fences.outcome(txn)
        if outcome is not None:
            ended = "has ended" if outcome is Outcome.ENDED else f"was {outcome.name.lower()}"
            raise InvalidTxnStatus(
                f"transaction {txn} {ended} on subscription {self._subscription.name!r}: begin "
                "another one"
            )
        if len(self._held) >= self.limits.open_transactions_max:
            raise NotAllowed(
                f"{len(self._held)} open transactions hold messages of subscription "
                f"{self._subscription.name!r}, the most it takes "
                "(txn_open_per_topic_max); end some"
            )
        if self._fences.runs(txn.most) >= self.limits.fences_max:
            raise NotAllowed(
                f"subscription {self._subscription.name!r} remembers {self.limits.fences_max} runs "
                "of ended transactions of coordinator "
                f"{txn.most}, the most it does: end that coordinator's oldest transactions"
            )

    def _too_much(self, txn: TxnId, shares: int) -> NotAllowed:
        return NotAllowed(
            f"{txn} would hold {shares} runs of entries and shares of batches of subscription "
            f"{self._subscription.name!r}, more than "
            f"{self.limits.held_per_transaction_max}: acknowledge fewer separate messages in one "
            "transaction"
        )

    def _hold(
        self,
        txn: TxnId,
        handle: Hashable | None,
        runs: Sequence[tuple[int, int]],
        messages: dict[int, tuple[int, int]],
    ) -> bool:
        held = self._held.get(txn)
        if held is None:
            held = self._held[txn] = Held()
            self._lowest.add(txn, self._held)
        self._shares -= held.shares
        for start, end in runs:
            held.hold(start, end)
        for ordinal, (wanted, size) in messages.items():
            held.hold_messages(ordinal, wanted, size)
        self._shares += held.shares
        return self._subscription.pending.defer(
            handle, runs, [(ordinal, wanted, size) for ordinal, (wanted, size) in messages.items()]
        )

    # --- ending -----------------------------------------------------------------------------------

    def end(self, txn: TxnId, outcome: Outcome, floor: int) -> tuple[EndAcks | None, bool]:
        """The transaction commits or aborts: what to write (None: it has, answer through the log's
        queue), and as `acknowledge`.

        Raises InvalidTxnStatus if it has ended the other way.
        """
        known = None if txn in self._held else self._fences.outcome(txn)
        if known is not None:
            if known not in (outcome, Outcome.ENDED):
                raise InvalidTxnStatus(
                    f"transaction {txn} was {known.name.lower()} on subscription "
                    f"{self._subscription.name!r} before"
                )
            return None, False
        held = self._held.get(txn)
        if held is None or outcome is Outcome.ABORTED:
            change = EndAcks(txn, floor, outcome)
        else:
            named = self._record(txn, held.entries, held.batches())
            change = EndAcks(txn, floor, outcome, named.ranges, named.partial)
        return change, self._end(change)

    def _end(self, change: EndAcks) -> bool:
        committed = change.outcome is Outcome.COMMITTED
        released = self._let_go(change.txn, again=not committed)
        unblocked = (
            self._subscription.pending.settle(*self._ordinals(change)) if committed else released
        )
        self._fences.end(change.txn, change.outcome)
        self._fences.raise_floor(change.txn.most, change.floor)
        return unblocked

    def _let_go(self, txn: TxnId, *, again: bool) -> bool:
        """Whether the transaction held anything; with `again` that is delivered again."""
        held = self._held.pop(txn, None)
        self._inquiries.forget(txn)
        if held is not None:
            self._shares -= held.shares
            self._subscription.pending.release(
                list(held.entries), list(held.messages.items()), again=again
            )
        return held is not None

    def unbegun(self, txn: TxnId) -> tuple[UnbegunAcks | None, bool]:
        """As `end`, when the coordinator has answered an inquiry (`to_inquire`) that the transaction
        has not begun.

        None if something was acknowledged in it since, a repetition even: it may have begun since.
        Inquire again, then.
        """
        if not self._inquiries.is_unchanged(txn):
            return None, False
        return UnbegunAcks(txn), self._let_go(txn, again=True)

    def orphans(self) -> list[TxnId]:
        """Open transactions below their coordinator's floor: they were never registered there, so
        no coordinator will end them. Abort them."""
        return self._lowest.below(self._fences.floor, self._held)

    def to_inquire(self, now_ms: int, at_most: int) -> list[TxnId]:
        """Transactions that have held something for long (see `Inquiries`): ask their coordinators,
        and end those that have ended."""
        return self._inquiries.due(self._held, now_ms, self.limits.inquire_ms, at_most)

    # --- questions --------------------------------------------------------------------------------

    def open_transactions(self) -> Sequence[TxnId]:
        """Those that hold something here, the longest open first."""
        return list(self._held)

    def is_open(self, txn: TxnId) -> bool:
        """Whether the transaction holds something here."""
        return txn in self._held

    def holders(self, ordinal: int) -> list[TxnId]:
        """Transactions that hold an entry, or messages of it."""
        return [
            txn
            for txn, held in self._held.items()
            if ordinal in held.entries or ordinal in held.messages
        ]

    @property
    def fences(self) -> Fences:
        """How transactions have ended here; only to be looked at."""
        return self._fences

    # --- the log ----------------------------------------------------------------------------------

    def apply(self, change: PendingChange) -> None:
        """Replay one change; one that the state holds may come again."""
        if isinstance(change, UnbegunAcks):
            self._let_go(change.txn, again=True)
        elif isinstance(change, PendingAck):
            if change.txn in self._held or self._fences.outcome(change.txn) is None:
                self._apply_ack(change)
        elif change.txn in self._held or self._fences.outcome(change.txn) is None:
            self._end(change)
        else:
            # The cursor may have gone back since, by a seek of before that commit which is replayed
            # too.
            self._subscription.pending.settle(*self._ordinals(change))
            self._fences.raise_floor(change.txn.most, change.floor)

    def _apply_ack(self, change: PendingAck) -> None:
        runs, partial = self._ordinals(change)
        sizes = {(ledger, entry): size for ledger, entry, size, _ in change.partial}
        held = self._held.get(change.txn, Held())
        messages = {}
        for ordinal, mask in partial:
            size = sizes[self._ledgers.position(ordinal)]
            if ordinal not in held.entries:
                messages[ordinal] = (((1 << size) - 1) & ~mask, size)
        self._hold(change.txn, None, runs, messages)

    def _ordinals(
        self, change: PendingAck | EndAcks
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """What a change names, as `Subscription.acknowledge` takes it; what exists no more is
        left out."""
        runs = [self._ledgers.span(*span) for span in change.ranges]
        found = [
            (self._ledgers.find((ledger, entry)), mask_of_words(words))
            for ledger, entry, _, words in change.partial
        ]
        return [run for run in runs if run[0] < run[1]], [
            (ordinal, mask) for ordinal, mask in found if ordinal is not None
        ]

    def _record(
        self, txn: TxnId, runs: Iterable[tuple[int, int]], messages: dict[int, tuple[int, int]]
    ) -> PendingAck:
        """`runs` and `messages` as positions; what exists no more is left out."""
        first = self._ledgers.first
        ranges = [
            span
            for start, end in runs
            if end > first
            for span in self._ledgers.runs(max(start, first), end)
        ]
        partial = [
            (*self._ledgers.position(ordinal), size, words_of_mask(((1 << size) - 1) & ~wanted))
            for ordinal, (wanted, size) in sorted(messages.items())
            if ordinal >= first
        ]
        return PendingAck(txn, tuple(ranges), tuple(partial))

    def to_state(self) -> PendingState:
        """Everything that recovery needs."""
        pending = tuple(
            self._record(txn, held.entries, held.batches()) for txn, held in self._held.items()
        )
        return PendingState(pending, self._fences.to_state())

    @staticmethod
    def from_state(
        subscription: Subscription,
        ledgers: LedgerTable,
        state: PendingState,
        *,
        limits: PendingLimits | None = None,
    ) -> PendingAcks:
        """Those of a checkpoint, whose cursor `subscription` has, before replay of the log
        written since."""
        pending = PendingAcks(subscription, ledgers, limits=limits)
        pending._fences = Fences(state.fences)
        for change in state.pending:
            pending._apply_ack(change)
        return pending
