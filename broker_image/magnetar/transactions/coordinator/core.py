"""The core of a transaction coordinator.

Owns: `CoordinatorCore`: transactions from NEW_TXN to their end, and their outcomes for a while
after it. Imports: errors, transactions siblings. Pure: events in, effects out. Source: PIP-31, OPEN
-> COMMITTING -> COMMITTED (END_TXN COMMIT; all participants have answered) OPEN -> ABORTING   ->
ABORTED   (END_TXN ABORT, or the timeout; likewise) Invariants: every answer, also one that changes
nothing, is behind the changes that it depends on; a decision is taken once; END_TXN with the same
action succeeds however often it comes, with the other one it is told the outcome, until that is
forgotten; a sequence is given once; a transaction leaves the low watermark behind only when all its
participants have ended it. Times are milliseconds that the number's lives saw pass: an incarnation
goes on where the records of those before it end (`seen_ms`), so that no wall clock that was set
wrong concurrently ends a transaction early or keeps one open. Only the first incarnation begins at
the wall's time.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from magnetar.errors import (
    CorruptData,
    InvalidRequest,
    InvalidTxnStatus,
    LimitExceeded,
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

ENDING = {Action.COMMIT: "COMMITTING", Action.ABORT: "ABORTING"}
ENDED = {Action.COMMIT: "COMMITTED", Action.ABORT: "ABORTED"}
DUE_AT_ONCE_MAX, FORGOTTEN_AT_ONCE_MAX = 500, 5_000
"""Of what is due, a Ticked ends and forgets no more: a few milliseconds' work. The rest stays
due."""
OVER_HELD_MAX = 1_000
"""Deadlines that mean nothing any more which may be held, besides twice as many as transactions:
an older one may be open for long."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one coordinator. `outcome_kept_ms` and a transaction's own timeout, whichever is
    longer, pass before its outcome is forgotten."""

    open_max: int = 100_000
    open_per_owner_max: int = 100_000
    open_per_origin_max: int = 100_000
    participants_max: int = 10_000
    participant_bytes_max: int = 256 << 20
    timeout_max_ms: int = 86_400_000
    outcomes_max: int = 200_000
    outcome_kept_ms: int = 600_000


# --- state ----------------------------------------------------------------------------------------


class _Transaction:
    """One that has not ended: `remaining` are the participants that have not answered, `waiting`
    the callers of END_TXN."""

    __slots__ = (
        "action",
        "bytes",
        "deadline_ms",
        "least",
        "opened_ms",
        "origin",
        "owner",
        "participants",
        "remaining",
        "timeout_ms",
        "waiting",
    )

    def __init__(
        self, least: int, timeout_ms: int, opened_ms: int, owner: str, origin: str
    ) -> None:
        self.least, self.timeout_ms, self.opened_ms, self.owner, self.origin = (
            least,
            timeout_ms,
            opened_ms,
            owner,
            origin,
        )
        self.deadline_ms = opened_ms + timeout_ms
        self.participants: dict[Participant, None] = {}
        self.bytes = 0
        self.action: Action | None = None
        self.remaining: set[Participant] = set()
        self.waiting: dict[Request, None] = {}

    @property
    def status(self) -> str:
        return "OPEN" if self.action is None else ENDING[self.action]

    def told(self) -> LiveTransaction:
        """As others may keep it."""
        return LiveTransaction(
            self.least,
            self.timeout_ms,
            self.opened_ms,
            self.owner,
            tuple(self.participants),
            self.action,
        )


class _Counts(dict[str, int]):
    """How many transactions each name has; a name that has none takes no room."""

    def __missing__(self, name: str) -> int:
        return 0

    def add(self, name: str) -> None:
        if name:
            self[name] += 1

    def remove(self, name: str) -> None:
        if not name:
            return
        if self[name] == 1:
            del self[name]
        else:
            self[name] -= 1


class CoordinatorCore:
    """All transactions of one number (TCID). Begin with `restore` and `apply`, then `recovered`,
    then `handle`."""

    def __init__(self, tcid: int, limits: Limits) -> None:
        self.tcid, self.limits = tcid, limits
        self.seen_ms = 0
        """The latest time in what was recorded, or has happened; 0 before the first."""
        self._next = 0
        self._lowest = 0
        self._live: dict[int, _Transaction] = {}
        self._of_owner, self._of_origin = _Counts(), _Counts()
        self._deadlines: list[tuple[int, int]] = []
        self._outcomes: dict[int, Outcome] = {}
        self._forgetting: list[tuple[int, int]] = []
        self._participant_bytes = 0

    # --- what there is ----------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """Transactions that have not ended everywhere."""
        return len(self._live)

    @property
    def outcomes(self) -> int:
        """Outcomes that are remembered."""
        return len(self._outcomes)

    @property
    def low_watermark(self) -> int:
        """Every transaction up to this sequence has ended everywhere; -1 while that is none."""
        while self._lowest < self._next and self._lowest not in self._live:
            self._lowest += 1
        return self._lowest - 1

    @property
    def due_ms(self) -> int | None:
        """When a Ticked has something to do; None while nothing waits for time."""
        while self._deadlines and self._is_over(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        times = [heap[0][0] for heap in (self._deadlines, self._forgetting) if heap]
        return min(times, default=None)

    def to_drive(self, least: int) -> tuple[Action, tuple[Participant, ...]] | None:
        """What is to be carried out, and by whom; None once the transaction has ended."""
        found = self._live.get(least)
        if found is None or found.action is None:
            return None
        return found.action, tuple(name for name in found.participants if name in found.remaining)

    def is_live(self, least: int) -> bool:
        """Whether a transaction has not ended everywhere."""
        return least in self._live

    def status(self, least: int) -> str | None:
        """OPEN, COMMITTING, ABORTING, COMMITTED or ABORTED; None if it is not known (any more)."""
        if (found := self._live.get(least)) is not None:
            return found.status
        outcome = self._outcomes.get(least)
        return ENDED[outcome.action] if outcome is not None else None

    def known(self, least: int) -> LiveTransaction | Outcome | None:
        """A transaction, or how it has ended; None if neither is known (any more)."""
        found = self._live.get(least)
        return found.told() if found is not None else self._outcomes.get(least)

    def living(self) -> Iterator[LiveTransaction]:
        """Transactions that have not ended everywhere, in the order in which they began. To be
        read at once."""
        return (found.told() for found in self._live.values())

    @property
    def last(self) -> int:
        """The last sequence that was given; -1 if none was."""
        return self._next - 1

    def state(self) -> CoordinatorState:
        """For a checkpoint: everything, also what is on its way to the log."""
        return CoordinatorState(
            self._next,
            tuple(self.living()),
            tuple(
                sorted(
                    self._outcomes.values(), key=lambda outcome: (outcome.forget_ms, outcome.least)
                )
            ),
            self.seen_ms,
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
            self._join(found, live.participants)
            if live.action is not None:
                self._decide(found, live.action)
        for outcome in state.outcomes:
            self._remember(outcome)

    def apply(self, change: Change) -> None:
        """Do what the log says. Raises CorruptData if it contradicts itself."""
        match change:
            case Opened(least, timeout_ms, opened_ms, owner):
                if least >= self._next:  # else it is known, or has ended
                    self._next = least + 1
                    self._begin(least, timeout_ms, opened_ms, owner)
                self._saw(opened_ms)
            case Joined(least, participants):
                if (found := self._live.get(least)) is not None:
                    self._join(found, participants)
            case Decided(least, action, at_ms):
                self._saw(at_ms)
                if (found := self._live.get(least)) is not None:
                    if found.action not in (None, action):
                        raise CorruptData(
                            f"the log decides {self._named(least)} twice: {found.status}, then "
                            f"{ENDED[action]}"
                        )
                    self._decide(found, action)
            case Ended(least, at_ms):
                self._saw(at_ms)
                if (found := self._live.get(least)) is not None:
                    if found.action is None:
                        raise CorruptData(
                            f"the log ends {self._named(least)}, which nothing has decided"
                        )
                    self._end(found, found.action, at_ms)

    def recovered(self, now_ms: int) -> list[Drive]:
        """Everything has been applied: forget what is due, and carry on with what was decided."""
        self._saw(now_ms)
        for found in list(self._live.values()):
            if found.action is not None and not found.remaining:
                self._end(found, found.action, now_ms)
        self._collect_deadlines()
        self.forget(now_ms)
        return [Drive(least) for least, found in self._live.items() if found.action is not None]

    def forget(self, now_ms: int, at_most: int = sys.maxsize) -> None:
        """Outcomes that were to be kept until now are not known any more; nothing is decided,
        unlike by Ticked."""
        while at_most and self._forgetting and self._forgetting[0][0] <= now_ms:
            del self._outcomes[heapq.heappop(self._forgetting)[1]]
            at_most -= 1

    # --- events -----------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Effect]:
        """What happened; what is to be written, and done once it is durable. An Answer of its
        own needs no more than what is."""
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
        if len(self._live) >= self.limits.open_max:
            return _refused(
                event.request,
                0,
                LimitExceeded(
                    f"transaction coordinator {self.tcid} has {len(self._live)} transactions that "
                    "have not ended, as many as "
                    "transactions_open_max allows; end some, or add coordinators"
                ),
            )
        if (share := self._share_used(event)) is not None:
            return _refused(event.request, 0, LimitExceeded(share))
        if not 0 < event.timeout_ms <= self.limits.timeout_max_ms:
            return _refused(
                event.request,
                0,
                InvalidRequest(
                    f"timeout: {event.timeout_ms} ms is out of range: use "
                    f"1..{self.limits.timeout_max_ms} ms"
                ),
            )
        least, self._next = self._next, self._next + 1
        found = self._begin(least, event.timeout_ms, event.now_ms, event.principal, event.origin)
        heapq.heappush(self._deadlines, (found.deadline_ms, least))
        return Write(
            (Opened(least, event.timeout_ms, event.now_ms, event.principal),),
            (Answer(event.request, least),),
        )

    def _share_used(self, event: NewRequested) -> str | None:
        """Why one owner or address gets no more, so that it does not use up what others need;
        None if it does."""
        if event.principal and self._of_owner[event.principal] >= self.limits.open_per_owner_max:
            return (
                f"role {event.principal!r} has {self._of_owner[event.principal]} unfinished "
                f"transactions at coordinator {self.tcid}, as many "
                "as transactions_open_per_role_max allows; end some"
            )
        if event.origin and self._of_origin[event.origin] >= self.limits.open_per_origin_max:
            return (
                f"clients at {event.origin} have {self._of_origin[event.origin]} unfinished "
                f"transactions at coordinator {self.tcid}, as many "
                "as transactions_open_per_address_max allows; end some"
            )
        return None

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
        count, size = (
            len(found.participants) + len(new),
            self._participant_bytes + sum(map(_size, new)),
        )
        if count > self.limits.participants_max:
            return _refused(
                request,
                least,
                LimitExceeded(
                    f"transaction {self._named(least)} would have {count} participants, more than "
                    f"{self.limits.participants_max}: "
                    "divide the work among several transactions"
                ),
            )
        if new and size > self.limits.participant_bytes_max:
            return _refused(
                request,
                least,
                LimitExceeded(
                    f"the names of all participants would take {size} bytes, more than "
                    f"{self.limits.participant_bytes_max}: end "
                    "transactions first"
                ),
            )
        self._join(found, new)
        return Write((Joined(least, new),) if new else (), (Answer(request, least),))

    def _ended(self, event: EndRequested) -> Write:
        least, request, action = event.least, event.request, event.action
        found = self._live.get(least)
        error = self._refusal(least, event.caller)
        if error is not None:
            return _refused(request, least, error)
        known = found.action if found is not None else self._outcomes[least].action
        if known not in (None, action):
            return _refused(
                request,
                least,
                InvalidTxnStatus(
                    f"transaction {self._named(least)} is {self.status(least)}, {action.name} is "
                    "not possible"
                ),
            )
        if found is None:
            return Write((), (Answer(request, least),))
        if found.action is not None:
            found.waiting[request] = None
            return Write((), (Await(request, least),))
        return self._decision(found, action, event.now_ms, request)

    def _decision(
        self, found: _Transaction, action: Action, now_ms: int, *requests: Request
    ) -> Write:
        """Decide an open transaction; one without participants has ended with it."""
        least = found.least
        decided = Decided(least, action, now_ms)
        self._decide(found, action)
        if not found.remaining:
            self._end(found, action, now_ms)
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
        self._end(found, found.action, event.now_ms)
        # Nobody waits for the record: a participant that is asked again says yes. The decision is
        # durable, or none would have been asked.
        ended = Write((Ended(event.least, event.now_ms),), lazy=True)
        return [ended, *(Answer(request, event.least) for request in found.waiting)]

    def _patience_over(self, request: Request, least: int) -> list[Effect]:
        found = self._live.get(least)
        if found is None or request not in found.waiting:
            return []  # it has its answer
        del found.waiting[request]
        return [Answer(request, least)]

    def _ticked(self, now_ms: int) -> list[Effect]:
        writes: list[Effect] = []
        while len(writes) < DUE_AT_ONCE_MAX and self._deadlines and self._deadlines[0][0] <= now_ms:
            _, least = heapq.heappop(self._deadlines)
            found = self._live.get(least)
            if found is not None and found.action is None:
                writes.append(self._decision(found, Action.ABORT, now_ms))
        self.forget(now_ms, FORGOTTEN_AT_ONCE_MAX)
        return writes

    # --- steps ------------------------------------------------------------------------------------

    def _refusal(self, least: int, caller: Caller) -> MagnetarError | None:
        """Why a caller is told nothing more about a transaction."""
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
    ) -> _Transaction:
        found = self._live[least] = _Transaction(least, timeout_ms, opened_ms, owner, origin)
        self._of_owner.add(owner)
        self._of_origin.add(origin)
        return found

    def _join(self, found: _Transaction, participants: Iterable[Participant]) -> None:
        for name in participants:
            if name not in found.participants:
                found.participants[name] = None
                found.bytes += _size(name)
                self._participant_bytes += _size(name)

    def _decide(self, found: _Transaction, action: Action) -> None:
        if found.action is None:
            found.action, found.remaining = action, set(found.participants)

    def _end(self, found: _Transaction, action: Action, at_ms: int) -> None:
        del self._live[found.least]
        self._of_owner.remove(found.owner)
        self._of_origin.remove(found.origin)
        self._participant_bytes -= found.bytes
        if len(self._deadlines) > 2 * len(self._live) + OVER_HELD_MAX:
            self._collect_deadlines()
        kept_ms = max(found.timeout_ms, self.limits.outcome_kept_ms)
        self._remember(Outcome(found.least, action, at_ms + kept_ms, found.owner))

    def _remember(self, outcome: Outcome) -> None:
        self._outcomes[outcome.least] = outcome
        heapq.heappush(self._forgetting, (outcome.forget_ms, outcome.least))
        while len(self._outcomes) > self.limits.outcomes_max:
            del self._outcomes[heapq.heappop(self._forgetting)[1]]

    def _collect_deadlines(self) -> None:
        """Those of open transactions."""
        self._deadlines = [
            (found.deadline_ms, least)
            for least, found in self._live.items()
            if found.action is None
        ]
        heapq.heapify(self._deadlines)

    def _is_over(self, least: int) -> bool:
        """Whether a deadline means nothing any more."""
        found = self._live.get(least)
        return found is None or found.action is not None

    def _named(self, least: int) -> TxnId:
        return TxnId(self.tcid, least)


def _refused(request: Request, least: int, error: MagnetarError) -> Write:
    return Write((), (Answer(request, least, error),))


def _size(name: Participant) -> int:
    return len(name.topic) + len(name.subscription)
