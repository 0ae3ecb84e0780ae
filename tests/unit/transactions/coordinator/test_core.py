"""The coordinator's core, case by case: each status meets each request, and nothing is
reported before it is durable."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from magnetar.errors import (
    CorruptData,
    InvalidRequest,
    InvalidTxnStatus,
    LimitExceeded,
    MagnetarError,
    NotAllowed,
    TransactionNotFound,
)
from magnetar.transactions.coordinator.core import (
    DUE_AT_ONCE_MAX,
    FORGOTTEN_AT_ONCE_MAX,
    CoordinatorCore,
)
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
    Ticked,
    Write,
)
from magnetar.transactions.coordinator.timing import OVER_HELD_MAX
from magnetar.transactions.coordinator.usage import Limits
from magnetar.transactions.records import (
    Action,
    CoordinatorState,
    Decided,
    Ended,
    Joined,
    Opened,
    Participant,
)

COMMIT, ABORT = Action.COMMIT, Action.ABORT
A, B = (
    Participant("persistent://public/default/a"),
    Participant("persistent://public/default/b", "shop"),
)
ANYBODY, NOBODY = Caller(), Caller("eve", superuser=False)
MINUTE = 60_000


def core(**limits: int) -> CoordinatorCore:
    return CoordinatorCore(3, Limits(**limits))


def begin(
    found: CoordinatorCore,
    *participants: Participant,
    owner: str = "",
    timeout_ms: int = MINUTE,
    now_ms: int = 0,
) -> int:
    """A transaction with these participants; its sequence."""
    [write] = found.handle(NewRequested("new", timeout_ms, owner, now_ms))
    assert isinstance(write, Write)
    [answer] = write.then
    assert isinstance(answer, Answer)
    assert answer.error is None
    if participants:
        found.handle(JoinRequested("join", answer.least, participants, ANYBODY))
    return answer.least


def end(
    found: CoordinatorCore,
    least: int,
    action: Action,
    request: str = "end",
    caller: Caller = ANYBODY,
) -> Write:
    [write] = found.handle(EndRequested(request, least, action, caller, 1))
    assert isinstance(write, Write)
    return write


def refusal(effects: Iterable[Effect]) -> MagnetarError:
    """The only thing that comes of a request: an error, behind everything that was appended
    before."""
    [write] = effects
    assert isinstance(write, Write)
    assert write.changes == ()
    [answer] = write.then
    assert isinstance(answer, Answer)
    assert answer.error is not None
    return answer.error


def test_a_transaction_is_reported_after_its_record() -> None:
    """NEW_TXN: one durable change, then its sequence; the first is 0."""
    assert core().handle(NewRequested("r", MINUTE, "ann", 7)) == [
        Write((Opened(0, MINUTE, 7, "ann"),), (Answer("r", 0),))
    ]


def test_a_participant_joins_once() -> None:
    """What a transaction has is confirmed, behind the record, and not written again."""
    found = core()
    least = begin(found)
    assert found.handle(JoinRequested("r", least, (A, B, A), ANYBODY)) == [
        Write((Joined(least, (A, B)),), (Answer("r", least),))
    ]
    assert found.handle(JoinRequested("s", least, (B,), ANYBODY)) == [
        Write((), (Answer("s", least),))
    ]


@pytest.mark.parametrize("action", list(Action))
def test_the_decision_is_durable_before_participants_hear_of_it(action: Action) -> None:
    """END_TXN: the decision; then participants and the caller's patience; their answers end it
    without a flush, and answer the caller."""
    found = core()
    least = begin(found, A, B)
    assert end(found, least, action) == Write(
        (Decided(least, action, 1),), (Drive(least), Await("end", least))
    )
    assert found.to_drive(least) == (action, (A, B))
    assert found.handle(ParticipantEnded(least, B, 2)) == []
    assert found.to_drive(least) == (action, (A,))
    assert found.handle(ParticipantEnded(least, A, 3)) == [
        Write((Ended(least, 3),), lazy=True),
        Answer("end", least),
    ]
    assert found.to_drive(least) is None
    assert found.status(least) == ("COMMITTED" if action is COMMIT else "ABORTED")


def test_a_transaction_without_participants_ends_with_its_decision() -> None:
    """One write, one answer, nobody to ask."""
    found = core()
    least = begin(found)
    assert end(found, least, COMMIT) == Write(
        (Decided(least, COMMIT, 1), Ended(least, 1)), (Answer("end", least),)
    )


def test_patience_answers_while_participants_are_unavailable() -> None:
    """The caller learns of the decision; the end goes on, and nobody is answered twice."""
    found = core()
    least = begin(found, A)
    end(found, least, COMMIT)
    assert found.handle(PatienceOver("end", least)) == [Answer("end", least)]
    assert found.handle(PatienceOver("end", least)) == []
    assert found.handle(ParticipantEnded(least, A, 2)) == [Write((Ended(least, 2),), lazy=True)]
    assert found.handle(ParticipantEnded(least, A, 3)) == []


def test_the_same_end_again_succeeds_in_every_status() -> None:
    """While it is under way the second caller waits as the first does; afterwards the outcome is
    confirmed behind a look at the claim."""
    found = core()
    least = begin(found, A)
    end(found, least, COMMIT)
    assert end(found, least, COMMIT, "again") == Write((), (Await("again", least),))
    assert found.handle(ParticipantEnded(least, A, 2))[1:] == [
        Answer("end", least),
        Answer("again", least),
    ]
    assert end(found, least, COMMIT, "late") == Write((), (Answer("late", least),))


@pytest.mark.parametrize(
    ("action", "statuses"),
    [(COMMIT, ("COMMITTING", "COMMITTED")), (ABORT, ("ABORTING", "ABORTED"))],
)
def test_the_opposite_end_is_refused_with_the_outcome(
    action: Action, statuses: tuple[str, str]
) -> None:
    """InvalidTxnStatus names the status, before and after the end; so does a participant that
    comes too late."""
    found = core()
    least = begin(found, A)
    end(found, least, action)
    opposite = ABORT if action is COMMIT else COMMIT
    for status in statuses:
        for event in (
            EndRequested("r", least, opposite, ANYBODY, 1),
            JoinRequested("r", least, (B,), ANYBODY),
        ):
            error = refusal(found.handle(event))
            assert isinstance(error, InvalidTxnStatus)
            assert f"(3,{least}) is {status}" in str(error)
        found.handle(ParticipantEnded(least, A, 2))


def test_what_never_began_is_not_found() -> None:
    """Sequences that were never given, whatever is asked about them."""
    found = core()
    begin(found)
    for event in (EndRequested("r", 1, COMMIT, ANYBODY, 0), JoinRequested("r", 1, (A,), ANYBODY)):
        assert isinstance(refusal(found.handle(event)), TransactionNotFound)


def test_the_refusal_of_an_unknown_transaction_says_whether_it_has_begun() -> None:
    """The next number, and the floor below which all has ended everywhere: what is below the
    next one and not known has ended."""
    found = core(outcome_kept_ms=10)
    gone, live = begin(found, timeout_ms=1), begin(found, timeout_ms=MINUTE)
    end(found, gone, ABORT)
    found.handle(Ticked(11))
    for least in (gone, live + 1, (1 << 64) - 1):
        error = refusal(found.handle(JoinRequested("r", least, (A,), ANYBODY)))
        assert isinstance(error, TransactionNotFound)
        assert (error.next_least, error.floor) == (live + 1, live)
        assert ("has not begun" in str(error)) == (least > live)


def test_outcomes_are_forgotten_after_the_longer_of_timeout_and_retention() -> None:
    """The same END_TXN succeeds until then, and is not found afterwards."""
    found = core(outcome_kept_ms=1000)
    short, long = begin(found, timeout_ms=10), begin(found, timeout_ms=5000)
    end(found, short, COMMIT)
    end(found, long, COMMIT)
    assert found.due_ms == 1001
    found.handle(Ticked(1000))
    assert found.status(short) == "COMMITTED"
    found.handle(Ticked(1001))
    assert (found.status(short), found.status(long)) == (None, "COMMITTED")
    found.handle(Ticked(5001))
    assert isinstance(
        refusal(found.handle(EndRequested("r", long, COMMIT, ANYBODY, 1))), TransactionNotFound
    )
    assert found.due_ms is None


def test_outcomes_have_a_limit() -> None:
    """Beyond it the one that would be forgotten first goes."""
    found = core(outcomes_max=2)
    for now_ms in range(3):
        found.handle(EndRequested("r", begin(found), COMMIT, ANYBODY, now_ms))
    assert [found.status(least) for least in range(3)] == [None, "COMMITTED", "COMMITTED"]


def test_an_open_transaction_is_aborted_at_its_deadline() -> None:
    """By the coordinator itself: durable, carried out, and never after a decision."""
    found = core()
    slow, decided = begin(found, A, timeout_ms=100), begin(found, A, timeout_ms=50)
    end(found, decided, COMMIT)
    assert found.due_ms == 100
    assert found.handle(Ticked(99)) == []
    assert found.handle(Ticked(100)) == [Write((Decided(slow, ABORT, 100),), (Drive(slow),))]
    assert found.status(decided) == "COMMITTING"


def test_however_much_is_overdue_a_tick_does_a_little_of_it() -> None:
    """As after a night's outage: the rest stays due, in the order of deadlines, and so do
    outcomes that are to be forgotten."""
    found, many = core(outcome_kept_ms=1000), 2 * FORGOTTEN_AT_ONCE_MAX
    for number in range(many):
        begin(found, timeout_ms=1 + number // 10)
    now_ms, decided = MINUTE, list[int]()
    while (due_ms := found.due_ms) is not None and due_ms <= now_ms:
        writes = found.handle(Ticked(now_ms))
        assert 0 < len(writes) <= DUE_AT_ONCE_MAX
        for write in writes:
            assert isinstance(write, Write)
            decided.append(
                next(change.least for change in write.changes if isinstance(change, Decided))
            )
    assert decided == list(range(many))
    assert found.due_ms == now_ms + 1000
    now_ms += 1000
    for left in (many - FORGOTTEN_AT_ONCE_MAX, 0):
        assert found.due_ms == now_ms
        assert found.handle(Ticked(now_ms)) == []
        assert found.outcomes == left
    assert found.due_ms is None


def test_one_that_is_open_for_long_keeps_no_deadlines_of_others() -> None:
    """Deadlines of ended transactions go while an older one is above them in the heap, and those
    of open ones stay."""
    found = core()
    slow = begin(found, timeout_ms=MINUTE)
    for _ in range(3 * OVER_HELD_MAX):
        end(found, begin(found, timeout_ms=2 * MINUTE), COMMIT)
        assert len(found._deadlines) <= 2 * found.live + OVER_HELD_MAX + 1
    late = begin(found, timeout_ms=3 * MINUTE)
    assert found.due_ms == MINUTE
    found.handle(Ticked(MINUTE))
    assert (found.status(slow), found.status(late)) == ("ABORTED", "OPEN")
    found.handle(Ticked(3 * MINUTE))
    assert found.status(late) == "ABORTED"


def test_the_low_watermark_waits_for_participants() -> None:
    """It passes what has ended everywhere, in order."""
    found = core()
    assert found.low_watermark == -1
    first, second = begin(found, A), begin(found, A)
    for least in (second, first):
        end(found, least, COMMIT)
        assert found.low_watermark == -1
    found.handle(ParticipantEnded(second, A, 1))
    assert found.low_watermark == -1
    found.handle(ParticipantEnded(first, A, 1))
    assert found.low_watermark == 1


def test_others_may_not_touch_a_transaction() -> None:
    """Only the principal that began it, or a super user; without an owner anybody."""
    found = core()
    least = begin(found, owner="ann")
    for event in (
        JoinRequested("r", least, (A,), NOBODY),
        EndRequested("r", least, ABORT, NOBODY, 0),
    ):
        assert isinstance(refusal(found.handle(event)), NotAllowed)
    assert end(found, least, COMMIT, caller=Caller("ann", superuser=False)).changes
    assert isinstance(
        refusal(found.handle(EndRequested("r", least, COMMIT, NOBODY, 0))), NotAllowed
    )
    assert end(found, begin(found), COMMIT, caller=NOBODY).changes


def test_limits_are_named() -> None:
    """Open transactions, participants and the bytes of their names, timeouts: each with its own
    words, and nothing is begun."""
    found = core(open_max=1, participants_max=1, participant_bytes_max=60, timeout_max_ms=100)
    for timeout_ms in (0, 101):
        assert isinstance(
            refusal(found.handle(NewRequested("r", timeout_ms, "", 0))), InvalidRequest
        )
    least = begin(found, timeout_ms=100)
    error = refusal(found.handle(NewRequested("r", 100, "", 0)))
    assert isinstance(error, LimitExceeded)
    assert "transactions_open_max" in str(error)
    assert "2 participants" in str(
        refusal(found.handle(JoinRequested("r", least, (A, B), ANYBODY)))
    )
    long = Participant("persistent://public/default/" + "x" * 60)
    assert "88 bytes" in str(refusal(found.handle(JoinRequested("r", least, (long,), ANYBODY))))
    assert end(found, least, COMMIT).then == (Answer("end", least),)


@pytest.mark.parametrize(
    ("limit", "named", "setting"),
    [
        ("open_per_owner_max", {"principal": "ann"}, "transactions_open_per_role_max"),
        ("open_per_origin_max", {"origin": "10.0.0.1"}, "transactions_open_per_address_max"),
    ],
)
def test_one_role_or_address_leaves_transactions_for_others(
    limit: str, named: dict[str, str], setting: str
) -> None:
    """Its share counts what has not ended; the others begin theirs concurrently."""

    def ask(**who: str) -> Write:
        [write] = found.handle(NewRequested("r", MINUTE, **{"principal": "", "now_ms": 0, **who}))  # type: ignore[arg-type]
        assert isinstance(write, Write)
        return write

    def least_of(write: Write) -> int:
        [answer] = write.then
        assert isinstance(answer, Answer)
        assert answer.error is None
        return answer.least

    found = core(**{limit: 2})
    first, _second = least_of(ask(**named)), least_of(ask(**named))
    assert setting in str(refusal([ask(**named)]))
    for _ in range(3):
        least_of(ask(**{name: "other" + str(_) for name in named}))
        least_of(ask())
    end(found, first, COMMIT)
    least_of(ask(**named))
    assert setting in str(refusal([ask(**named)]))


def test_the_share_of_a_role_is_known_after_recovery() -> None:
    """An attacker does not begin again because the coordinator has."""
    before = core()
    for _ in range(2):
        begin(before, owner="ann")
    found = core(open_per_owner_max=2)
    found.restore(before.state())
    found.recovered(0)
    assert isinstance(refusal(found.handle(NewRequested("r", MINUTE, "ann", 0))), LimitExceeded)
    begin(found, owner="eve")


def test_names_of_participants_are_given_back_with_the_transaction() -> None:
    """The limit on their bytes is for those that have not ended."""
    found = core(participant_bytes_max=len(A.topic))
    for _ in range(3):
        least = begin(found, A)
        assert found.to_drive(least) is None
        end(found, least, COMMIT)
        assert found.to_drive(least) == (COMMIT, (A,))
        found.handle(ParticipantEnded(least, A, 0))


def test_recovery_carries_on() -> None:
    """What was decided is driven again, all of it; deadlines count from the records; the next
    sequence is a new one."""
    found = core()
    for change in (
        Opened(4, 100, 10, "ann"),
        Joined(4, (A,)),
        Opened(5, 100, 10, ""),
        Joined(5, (A, B)),
        Decided(5, COMMIT, 20),
        Opened(6, 100, 10, ""),
        Decided(6, ABORT, 20),
        Ended(6, 21),
    ):
        found.apply(change)
    assert found.recovered(50) == [Drive(5)]
    assert found.to_drive(5) == (COMMIT, (A, B))
    assert (found.status(4), found.status(5), found.status(6)) == ("OPEN", "COMMITTING", "ABORTED")
    assert found.due_ms == 110
    assert found.low_watermark == 3
    assert begin(found) == 7


def test_a_life_goes_on_at_the_time_where_the_records_end() -> None:
    """In the log or in a checkpoint: deadlines and outcomes stand to it as they stood to the
    time of the incarnation before."""
    found = core()
    found.apply(Opened(0, 100, 1_000, ""))
    found.apply(Opened(1, 100, 1_040, ""))
    found.apply(Decided(1, COMMIT, 1_060))
    restored = core()
    restored.restore(found.state())
    assert found.seen_ms == restored.seen_ms == 1_060
    restored.recovered(restored.seen_ms)
    assert restored.due_ms == 1_100
    restored.handle(Ticked(1_099))
    assert restored.status(0) == "OPEN"
    restored.handle(Ticked(1_100))
    assert restored.status(0) == "ABORTED"


def test_a_log_that_contradicts_itself_is_damage() -> None:
    """Two decisions, or an end without one, are never guessed at."""
    found = core()
    found.apply(Opened(0, 100, 0, ""))
    with pytest.raises(CorruptData, match="which nothing has decided"):
        found.apply(Ended(0, 1))
    found.apply(Decided(0, COMMIT, 0))
    with pytest.raises(CorruptData, match="twice"):
        found.apply(Decided(0, ABORT, 0))


def test_a_state_is_what_it_was_made_of() -> None:
    """A checkpoint restores transactions, outcomes, the next sequence and the low watermark,
    without walking through all sequences."""
    found = core()
    begin(found)
    open_one, ended, ending = begin(found, A, B, owner="ann"), begin(found), begin(found, A)
    end(found, 0, COMMIT)
    end(found, ended, ABORT)
    end(found, ending, COMMIT)
    state = found.state()
    restored = core()
    restored.restore(state)
    assert restored.recovered(0) == [Drive(ending)]
    assert restored.state() == state
    assert restored.low_watermark == open_one - 1
    far = core()
    far.restore(CoordinatorState(next=10**15))
    assert far.low_watermark == 10**15 - 1
