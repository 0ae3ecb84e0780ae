"""The core of a transaction coordinator.

Owns: `CoordinatorCore`: transactions from NEW_TXN to their end, and their outcomes for a while
after it. Imports: errors, transactions siblings. Pure: events in, effects out. Source: PIP-31; the
table of `states`. Invariants: an answer follows the changes it depends on, even one that changes
nothing; a decision is taken once; END_TXN with the same action succeeds however often it comes, and
with the other one fails with the outcome, until that is forgotten; a sequence is given once; the
low watermark passes a transaction only after all its participants have ended it. Times are
milliseconds that incarnations of the number have seen pass: each one continues where the records of
the previous one end (`seen_ms`), so a wrong wall clock neither ends a transaction early nor keeps
one open. The first incarnation begins at the wall's time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from magnetar.errors import (
    CorruptData,
    InvalidTxnStatus,
    MagnetarError,
    NotAllowed,
    TransactionNotFound,
)
from magnetar.transactions.coordinator.events import (
    Answer,
    Await,
    Caller,
    Drive,
    Effect,
    EndRequested,
    Event,
    JoinRequested,
    NewRequested,
    ParticipantEnded,
    PatienceOver,
    Request,
    Ticked,
    Write,
)
from magnetar.transactions.coordinator.states import ENDED, STEPS, TRANSACTIONS, Status
from magnetar.transactions.coordinator.timing import Deadlines, Outcomes
from magnetar.transactions.coordinator.transaction import Transaction
from magnetar.transactions.coordinator.usage import Limits, Usage
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import (
    Action,
    Change,
    CoordinatorState,
    Decided,
    Ended,
    Joined,
    LiveTransaction,
    Opened,
    Outcome,
    Participant,
)

DUE_AT_ONCE_MAX, FORGOTTEN_AT_ONCE_MAX = 500, 5_000
"""Transactions and outcomes that one Ticked ends or forgets at most: a few milliseconds' work. The
rest stays due."""


class CoordinatorCore:
    """All transactions of one number (TCID). Begin with `restore` and `apply`, then `recovered`,
    then `handle`."""

    def __init__(self, tcid: int, limits: Limits) -> None:
        self.tcid, self.limits = tcid, limits
        self.seen_ms = 0
        """The latest time in what was recorded, or has happened; 0 before the first."""
        self._next = 0
        self._lowest = 0
        self._live: dict[int, Transaction] = {}
        self._usage = Usage(tcid, limits)
        self._deadlines = Deadlines(self._live)
        self._outcomes = Outcomes(limits.outcomes_max)

    # --- what there is ----------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """Unfinished transactions."""
        return len(self._live)

    @property
    def outcomes(self) -> int:
        """Remembered outcomes."""
        return len(self._outcomes)

    @property
    def low_watermark(self) -> int:
        """Every transaction up to this sequence has ended everywhere; -1 while that is none."""
        while self._lowest < self._next and self._lowest not in self._live:
            self._lowest += 1
        return self._lowest - 1

    @property
    def due_ms(self) -> int | None:
        """When a Ticked has something to do; None if nothing waits for time."""
        times = (self._deadlines.next_ms(), self._outcomes.next_ms())
        return min((time for time in times if time is not None), default=None)

    def to_drive(self, least: int) -> tuple[Action, tuple[Participant, ...]] | None:
        """The decision, and the participants that have not ended it; None unless it is decided and
        unfinished."""
        found = self._live.get(least)
        if found is None or found.action is None:
            return None
        return found.action, tuple(name for name in found.participants if name in found.remaining)

    def is_live(self, least: int) -> bool:
        """Whether some participant has not ended the transaction."""
        return least in self._live

    def status(self, least: int) -> Status | None:
        """None if the transaction is not known (any more)."""
        if (found := self._live.get(least)) is not None:
            return found.status
        outcome = self._outcomes.get(least)
        return ENDED[outcome.action] if outcome is not None else None

    def known(self, least: int) -> LiveTransaction | Outcome | None:
        """A transaction, or how it has ended; None if neither is known (any more)."""
        found = self._live.get(least)
        return found.value() if found is not None else self._outcomes.get(least)

    def living(self) -> Iterator[LiveTransaction]:
        """Unfinished transactions in the order in which they began; to be read at once."""
        return (found.value() for found in self._live.values())

    @property
    def last(self) -> int:
        """The last sequence that was given; -1 if none was."""
        return self._next - 1

    def state(self) -> CoordinatorState:
        """For a checkpoint: everything, also what is in flight to the log."""
        return CoordinatorState(
            self._next, tuple(self.living()), self._outcomes.state(), self.seen_ms
        )

    # --- recovery ---------------------------------------------------------------------------------

    def restore(self, state: CoordinatorState) -> None:
        """Begin with a checkpoint's state."""
        assert self._next == 0, "a state is restored into an empty core"
        self.seen_ms = state.seen_ms
        self._next = state.next
        self._lowest = state.live[0].least if state.live else state.next
        for live in state.live:
            found = self._begin(live.least, live.timeout_ms, live.opened_ms, live.owner)
            self._usage.joined(found, live.participants)
            if live.action is not None:
                found.decide(live.action)
        for outcome in state.outcomes:
            self._outcomes.add(outcome)

    def apply(self, change: Change) -> None:
        """Replay one change of the log. Raises CorruptData if it contradicts those before."""
        match change:
            case Opened(least, timeout_ms, opened_ms, owner):
                if least >= self._next:  # else it is known, or has ended
                    self._next = least + 1
                    self._begin(least, timeout_ms, opened_ms, owner)
                self._saw(opened_ms)
            case Joined(least, participants):
                if (found := self._live.get(least)) is not None:
                    self._usage.joined(found, participants)
            case Decided(least, action, at_ms):
                self._saw(at_ms)
                found = self._live.get(least)
                if found is not None and not found.decide(action):
                    raise CorruptData(
                        f"the log decides {self._named(least)} twice: {found.status}, then "
                        f"{ENDED[action]}"
                    )
            case Ended(least, at_ms):
                self._saw(at_ms)
                found = self._live.get(least)
                if found is not None and not self._end(found, at_ms):
                    raise CorruptData(
                        f"the log ends {self._named(least)}, which nothing has decided"
                    )

    def recovered(self, now_ms: int) -> list[Drive]:
        """After replay: forget outcomes that are due, and carry decisions out."""
        self._saw(now_ms)
        for found in list(self._live.values()):
            if found.action is not None and not found.remaining:
                self._end(found, now_ms)
        self._deadlines.collect()
        self.forget(now_ms)
        return [Drive(least) for least, found in self._live.items() if found.action is not None]

    def forget(self, now_ms: int, at_most: int = sys.maxsize) -> None:
        """Forget outcomes that are due, `at_most` of them. Nothing is decided, unlike by Ticked."""
        self._outcomes.forget(now_ms, at_most)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """Take an event in; the effects. An Answer outside of a Write depends on no change."""
        if isinstance(event, NewRequested | EndRequested | ParticipantEnded | Ticked):
            self._saw(event.now_ms)
        match event:
            case NewRequested():
                return [self._new(event)]
            case JoinRequested():
                return [self._joined(event)]
            case EndRequested():
                return [self._ended(event)]
            case ParticipantEnded():
                return self._participant_ended(event)
            case PatienceOver(request, least):
                return self._patience_over(request, least)
            case Ticked(now_ms):
                return self._ticked(now_ms)

    def _new(self, event: NewRequested) -> Write:
        if (error := self._usage.refusal_to_open(event)) is not None:
            return _refused(event.request, 0, error)
        least, self._next = self._next, self._next + 1
        found = self._begin(least, event.timeout_ms, event.now_ms, event.principal, event.origin)
        self._deadlines.add(found)
        return Write(
            (Opened(least, event.timeout_ms, event.now_ms, event.principal),),
            (Answer(event.request, least),),
        )

    def _joined(self, event: JoinRequested) -> Write:
        least, request = event.least, event.request
        found = self._live.get(least)
        error = self._refusal(least, event.caller)
        if error is not None:
            return _refused(request, least, error)
        if found is None or found.action is not None:
            return _refused(
                request,
                least,
                InvalidTxnStatus(
                    f"transaction {self._named(least)} is {self.status(least)}: it takes nothing "
                    "more"
                ),
            )
        new = tuple(
            name for name in dict.fromkeys(event.participants) if name not in found.participants
        )
        if (error := self._usage.refusal_to_join(found, new)) is not None:
            return _refused(request, least, error)
        self._usage.joined(found, new)
        return Write((Joined(least, new),) if new else (), (Answer(request, least),))

    def _ended(self, event: EndRequested) -> Write:
        least, request, action = event.least, event.request, event.action
        found = self._live.get(least)
        error = self._refusal(least, event.caller)
        if error is not None:
            return _refused(request, least, error)
        status = self.status(least)
        assert status is not None, least
        if TRANSACTIONS.after(status, STEPS[action]) is None:
            return _refused(
                request,
                least,
                InvalidTxnStatus(
                    f"transaction {self._named(least)} is {status}, {action.name} is not possible"
                ),
            )
        if found is None:
            return Write((), (Answer(request, least),))
        if found.action is not None:
            found.waiting[request] = None
            return Write((), (Await(request, least),))
        return self._decision(found, action, event.now_ms, request)

    def _decision(
        self, found: Transaction, action: Action, now_ms: int, *requests: Request
    ) -> Write:
        """Decide an open transaction; one without participants has ended with it."""
        least = found.least
        decided = Decided(least, action, now_ms)
        found.decide(action)
        if not found.remaining:
            self._end(found, now_ms)
            return Write(
                (decided, Ended(least, now_ms)),
                tuple(Answer(request, least) for request in requests),
            )
        found.waiting.update(dict.fromkeys(requests))
        return Write((decided,), (Drive(least), *(Await(request, least) for request in requests)))

    def _participant_ended(self, event: ParticipantEnded) -> list[Effect]:
        found = self._live.get(event.least)
        if found is None or found.action is None:
            return []
        found.remaining.discard(event.participant)
        if found.remaining:
            return []
        self._end(found, event.now_ms)
        # No answer waits for the record: a participant that is asked again succeeds, and the
        # decision was durable before the first was asked.
        ended = Write((Ended(event.least, event.now_ms),), lazy=True)
        return [ended, *(Answer(request, event.least) for request in found.waiting)]

    def _patience_over(self, request: Request, least: int) -> list[Effect]:
        found = self._live.get(least)
        if found is None or request not in found.waiting:
            return []  # it was answered
        del found.waiting[request]
        return [Answer(request, least)]

    def _ticked(self, now_ms: int) -> list[Effect]:
        writes: list[Effect] = []
        while (
            len(writes) < DUE_AT_ONCE_MAX
            and (found := self._deadlines.take_due(now_ms)) is not None
        ):
            writes.append(self._decision(found, Action.ABORT, now_ms))
        self.forget(now_ms, FORGOTTEN_AT_ONCE_MAX)
        return writes

    # --- steps ------------------------------------------------------------------------------------

    def _refusal(self, least: int, caller: Caller) -> MagnetarError | None:
        """Why a caller may not use a transaction."""
        found = self._live.get(least) or self._outcomes.get(least)
        if found is None:
            what = (
                "it has not begun"
                if least >= self._next
                else "it ended so long ago that its outcome is forgotten"
            )
            return TransactionNotFound(
                f"transaction {self._named(least)} is not known: {what}",
                self._next,
                floor=self.low_watermark + 1,
            )
        if found.owner and found.owner != caller.principal and not caller.superuser:
            return NotAllowed(
                f"transaction {self._named(least)} was begun by another role than "
                f"{caller.principal!r}"
            )
        return None

    def _saw(self, now_ms: int) -> None:
        self.seen_ms = max(self.seen_ms, now_ms)

    def _begin(
        self, least: int, timeout_ms: int, opened_ms: int, owner: str, origin: str = ""
    ) -> Transaction:
        found = self._live[least] = Transaction(least, timeout_ms, opened_ms, owner, origin)
        self._usage.opened(found)
        return found

    def _end(self, found: Transaction, at_ms: int) -> bool:
        """All participants have ended it; False while nothing was decided."""
        action = found.action
        if action is None or not found.end():
            return False
        del self._live[found.least]
        self._usage.ended(found)
        self._deadlines.transaction_ended()
        kept_ms = max(found.timeout_ms, self.limits.outcome_kept_ms)
        self._outcomes.add(Outcome(found.least, action, at_ms + kept_ms, found.owner))
        return True

    def _named(self, least: int) -> TxnId:
        return TxnId(self.tcid, least)


def _refused(request: Request, least: int, error: MagnetarError) -> Write:
    return Write((), (Answer(request, least, error),))
