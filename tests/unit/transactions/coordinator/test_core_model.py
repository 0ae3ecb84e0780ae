"""Any course of requests, flushes, crashes and checkpoints: what was reported to a client stays
true, and every transaction ends one way.

The log is a list of changes of which a prefix is durable. A crash keeps that prefix, or what a
checkpoint holds if that is more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.errors import InvalidTxnStatus, TransactionNotFound
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.coordinator.events import (
    Answer,
    Await,
    Caller,
    Drive,
    Effect,
    EndRequested,
    JoinRequested,
    NewRequested,
    ParticipantEnded,
    PatienceOver,
    Then,
    Ticked,
    Write,
)
from magnetar.transactions.coordinator.usage import Limits
from magnetar.transactions.records import (
    Action,
    Change,
    CoordinatorState,
    Decided,
    Joined,
    Opened,
    Participant,
)

KEPT_MS = 400
LIMITS = Limits(outcome_kept_ms=KEPT_MS)
PARTICIPANTS = [
    Participant("persistent://public/default/a"),
    Participant("persistent://public/default/b"),
    Participant("c", "s"),
]
ANYBODY = Caller()


@dataclass(frozen=True)
class Saved:
    """A checkpoint: the state, how many changes it holds, and where replay begins."""

    state: CoordinatorState
    changes: int
    position: int


@dataclass
class Reported:
    """What clients know, and what participants have done."""

    sequences: set[int] = field(default_factory=set)
    joined: dict[int, set[Participant]] = field(default_factory=dict)
    decided: dict[int, Action] = field(default_factory=dict)
    ended: dict[int, set[Participant]] = field(default_factory=dict)


class Life(RuleBasedStateMachine):
    """A coordinator over its log, its participants and its clients."""

    def __init__(self) -> None:
        super().__init__()
        self.core = CoordinatorCore(0, LIMITS)
        self.core.recovered(0)
        self.now_ms = 0
        self.changes: list[Change] = []
        self.durable = 0
        self.waiting: list[tuple[int, tuple[Then, ...]]] = []
        self.saved: list[Saved] = []
        self.requests: dict[int, object] = {}
        self.patience: list[Await] = []
        self.driven: set[int] = set()
        self.reported = Reported()
        self.numbers = 0
        # requests about sequences that had been reported to clients
        self.asked_knowing: set[object] = set()

    # --- what clients do --------------------------------------------------------------------------

    def ask(self, event_of: object) -> None:
        self.numbers += 1
        event = event_of(self.numbers)  # type: ignore[operator]
        self.requests[self.numbers] = event
        if getattr(event, "least", None) in self.reported.sequences:
            self.asked_knowing.add(self.numbers)
        self.perform(self.core.handle(event))

    @rule(timeout_ms=st.sampled_from([50, 500]))
    def new(self, timeout_ms: int) -> None:
        self.ask(lambda request: NewRequested(request, timeout_ms, "", self.now_ms))

    @rule(
        pick=st.integers(0, 12),
        names=st.lists(st.sampled_from(PARTICIPANTS), min_size=1, max_size=2),
    )
    def join(self, pick: int, names: list[Participant]) -> None:
        self.ask(lambda request: JoinRequested(request, pick, tuple(names), ANYBODY))

    @rule(pick=st.integers(0, 12), action=st.sampled_from(Action))
    def end(self, pick: int, action: Action) -> None:
        self.ask(lambda request: EndRequested(request, pick, action, ANYBODY, self.now_ms))

    # --- what happens -----------------------------------------------------------------------------

    @precondition(lambda self: self.driven)
    @rule(data=st.data())
    def participant_ends(self, data: st.DataObject) -> None:
        least = data.draw(st.sampled_from(sorted(self.driven)))
        found = self.core.to_drive(least)
        if found is None:
            self.driven.discard(least)
            return
        name = data.draw(st.sampled_from(found[1]))
        self.reported.ended.setdefault(least, set()).add(name)
        self.perform(self.core.handle(ParticipantEnded(least, name, self.now_ms)))

    @precondition(lambda self: self.patience)
    @rule()
    def patience_is_over(self) -> None:
        waits = self.patience.pop(0)
        self.perform(self.core.handle(PatienceOver(waits.request, waits.least)))

    @rule(passed_ms=st.sampled_from([1, 60, 450]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        due_ms = self.core.due_ms
        effects = self.core.handle(Ticked(self.now_ms))
        assert due_ms is not None or not effects, (
            "something was due that nobody would have come for"
        )
        self.perform(effects)
        assert self.core.due_ms is None or self.core.due_ms > self.now_ms

    @precondition(lambda self: self.waiting or self.durable < len(self.changes))
    @rule(share=st.sampled_from([0.5, 1.0]))
    def flush(self, share: float) -> None:
        """A group commit of all that waits, or of a part."""
        last = len(self.waiting) if share == 1.0 else max(1, len(self.waiting) // 2)
        due, self.waiting = self.waiting[:last], self.waiting[last:]
        self.durable = (
            len(self.changes)
            if share == 1.0
            else max([self.durable, *(reached for reached, _ in due)])
        )
        for _, then in due:
            for effect in then:
                self.happen(effect)

    @rule()
    def checkpoint(self) -> None:
        self.saved.append(Saved(self.core.state(), len(self.changes), self.durable))

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        """What was not durable is gone; nobody who waits gets an answer."""
        saved = data.draw(st.sampled_from([Saved(CoordinatorState(), 0, 0), *self.saved]))
        kept = max(self.durable, saved.changes)
        core, replayed = CoordinatorCore(0, LIMITS), CoordinatorCore(0, LIMITS)
        core.restore(saved.state)
        for change in self.changes[saved.position : self.durable]:
            core.apply(change)
        for change in self.changes[:kept]:
            replayed.apply(change)
        drives = core.recovered(self.now_ms)
        assert drives == replayed.recovered(self.now_ms)
        assert core.state() == replayed.state(), (
            "a checkpoint and its tail say something else than the whole log"
        )
        self.core, self.changes, self.durable = core, self.changes[:kept], kept
        # A checkpoint that is pointed to is never followed by an older one, nor by one that held
        # what is lost.
        self.saved = [
            other
            for other in self.saved
            if other.changes <= kept and other.position >= saved.position
        ]
        self.waiting, self.patience, self.requests = [], [], {}
        self.driven = {drive.least for drive in drives}
        for least, action in self.reported.decided.items():
            assert self.core.status(least) in (*_names(action), None)

    # --- the host ---------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                self.happen(effect)
                continue
            assert isinstance(effect, Write)
            self.changes += effect.changes
            if effect.then:
                self.waiting.append((len(self.changes), effect.then))

    def happen(self, effect: Then) -> None:
        """An effect may leave now: everything it says must be durable."""
        if isinstance(effect, Drive):
            assert self.decision(effect.least) is not None
            self.driven.add(effect.least)
        elif isinstance(effect, Await):
            assert self.decision(effect.least) is not None
            self.patience.append(effect)
        else:
            event = self.requests.pop(effect.request)  # answered once
            self.answered(event, effect)

    def answered(self, event: object, answer: Answer) -> None:
        if isinstance(event, NewRequested):
            assert answer.error is None
            assert answer.least not in self.reported.sequences, "a sequence was given twice"
            assert any(
                change == Opened(answer.least, event.timeout_ms, change.opened_ms)
                for change in self.opened()
            )
            self.reported.sequences.add(answer.least)
        elif isinstance(answer.error, TransactionNotFound):
            assert answer.request not in self.asked_knowing or self.forgotten(answer.least)
        elif isinstance(answer.error, InvalidTxnStatus):
            decision = self.decision(answer.least)
            assert decision is not None
            assert any(name in str(answer.error) for name in _names(decision.action))
        elif isinstance(event, JoinRequested):
            assert answer.error is None
            self.reported.joined.setdefault(answer.least, set()).update(event.participants)
            assert set(event.participants) <= self.participants(answer.least)
        else:
            assert isinstance(event, EndRequested)
            assert answer.error is None
            decision = self.decision(answer.least)
            assert decision is not None
            assert decision.action is event.action
            self.reported.decided[answer.least] = event.action

    # --- what is durable --------------------------------------------------------------------------

    def opened(self) -> list[Opened]:
        return [change for change in self.changes[: self.durable] if isinstance(change, Opened)]

    def decision(self, least: int) -> Decided | None:
        found = [
            change
            for change in self.changes[: self.durable]
            if isinstance(change, Decided) and change.least == least
        ]
        assert len(found) <= 1, "decided twice"
        return found[0] if found else None

    def participants(self, least: int) -> set[Participant]:
        joined = [
            change
            for change in self.changes[: self.durable]
            if isinstance(change, Joined) and change.least == least
        ]
        return {name for change in joined for name in change.participants}

    def forgotten(self, least: int) -> bool:
        decision = self.decision(least)
        return decision is not None and self.now_ms >= decision.at_ms + KEPT_MS

    @invariant()
    def nothing_is_left_behind(self) -> None:
        """Up to the low watermark every participant that was reported to a client has ended what
        was decided."""
        for least in range(self.core.low_watermark + 1):
            joined = self.reported.joined.get(least, set())
            assert joined <= self.reported.ended.get(least, set()), (
                f"{least} has participants that were never asked"
            )

    @invariant()
    def what_was_reported_stays(self) -> None:
        for least, action in self.reported.decided.items():
            status = self.core.status(least)
            assert status in _names(action) or (status is None and self.forgotten(least))
        for least in self.reported.sequences:
            decided = any(
                isinstance(change, Decided) and change.least == least for change in self.changes
            )
            assert self.core.status(least) is not None or decided


def _names(action: Action) -> tuple[str, str]:
    return ("COMMITTING", "COMMITTED") if action is Action.COMMIT else ("ABORTING", "ABORTED")


Life.TestCase.settings = settings(max_examples=100, stateful_step_count=50)
TestLife = Life.TestCase
