"""Deduplication: verdicts, memory, and a whole life of sends, repetitions and crashes against a
plain model of the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar.topics.deduplication import (
    NO_SEQUENCE,
    RETURN_MS,
    Deduplication,
    DeduplicationLimits,
    Verdict,
)

LIMITS = DeduplicationLimits(remembered_max=3, inactive_ms=100)


def test_between_pushed_and_persisted_nobody_knows() -> None:
    """Above what was pushed: new; up to what is durable: a duplicate; between: unknown."""
    known = Deduplication()
    known.push("p", 9)
    known.persist("p", 9)
    known.push("p", 12)
    assert [known.judge("p", n) for n in (9, 10, 12, 13)] == [
        Verdict.DUPLICATE,
        Verdict.UNKNOWN,
        Verdict.UNKNOWN,
        Verdict.NEW,
    ]
    assert (known.last_sequence("p"), known.settled("p")) == (9, False)
    assert (known.last_sequence("other"), known.judge("other", 0)) == (-1, Verdict.NEW)


def test_a_batch_is_judged_by_its_lowest_and_remembered_by_its_highest() -> None:
    """A batch that begins below what is known is a duplicate as a whole."""
    known = Deduplication()
    assert known.push_run("p", (0, 5), (4, 9))
    known.persist("p", 9)
    assert known.judge("p", 5) is Verdict.DUPLICATE
    assert not known.push_run("p", (10, 9), (10, 9)), "the second is not above the first"
    assert known.push_run("p", (10,), (10,)), "and the refusal changed nothing"


def test_those_disconnected_longest_are_forgotten_first() -> None:
    """At most so many names, besides those that are connected; time ends the memory too."""
    known = Deduplication(LIMITS)
    for number, name in enumerate("abcde"):
        known.push(name, 7)
        known.persist(name, 7)
        if name != "a":
            known.disconnected(name, number)
    assert [known.last_sequence(name) for name in "abcde"] == [7, -1, 7, 7, 7], (
        "b was disconnected longest, a never"
    )
    known.disconnected("a", 110)
    assert [known.last_sequence(name) for name in "acde"] == [7, -1, -1, -1]
    known.connected("a", 209)
    known.disconnected("a", 210)
    known.connected("a", 310)
    assert known.last_sequence("a") == -1


def test_a_checkpoint_and_the_log_after_it_bring_it_back() -> None:
    """Chunks before the last do not count; a name that begins again in the log begins again in
    memory."""
    known = Deduplication()
    for name, sequence in (("a", 3), ("b", 5)):
        known.push(name, sequence)
        known.persist(name, sequence)
    again = Deduplication()
    for name, sequence in known.to_state():
        again.apply(name, (sequence,))
    again.apply("a", (4, NO_SEQUENCE))
    again.apply("b", (NO_SEQUENCE, NO_SEQUENCE))
    again.apply("c", (NO_SEQUENCE,))
    assert [again.last_sequence(name) for name in "abc"] == [4, 5, -1]
    again.apply("a", (0,))
    assert again.last_sequence("a") == 0
    again.recovered(DeduplicationLimits(remembered_max=1, inactive_ms=100), 1000)
    again.connected("a", 1050)
    again.disconnected("a", 1100)
    assert again.to_state() == (("a", 0),), "b was disconnected for too long"
    again.connected("a", 1200)
    assert again.to_state() == ()


def test_recovery_forgets_nobody_who_may_still_be_connected() -> None:
    """Neither by the limit while the log is replayed, whatever it is, nor before producers have
    had the time to come back."""
    names, limits = (
        [f"p-{number}" for number in range(20_000)],
        DeduplicationLimits(remembered_max=15_000, inactive_ms=10**9),
    )
    known = Deduplication()
    for name in names:
        known.apply(name, (7,))
    known.recovered(limits, 1000)
    known.connected("late", 1000)
    assert len(known) == 20_000
    known.connected(names[0], 2000)  # it was here all the time, and sent nothing for long
    known.connected("late", 1000 + RETURN_MS)
    assert [known.last_sequence(names[at]) for at in (0, 1, 4_999, 5_000, 19_999)] == [
        7,
        -1,
        -1,
        7,
        7,
    ]
    assert len(known) == 15_001, "besides the one that is connected"


@dataclass
class Client:
    """A producer that numbers its messages and repeats what has no receipt, in order."""

    next: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)


class Life(RuleBasedStateMachine):
    """Clients send batches, repeat them after losing receipts, brokers crash with what is not
    flushed; the log is a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.known = Deduplication()
        self.clients = {name: Client() for name in "ab"}
        self.log: list[tuple[str, int, int]] = []
        self.flying: list[tuple[str, int, int]] = []
        self.checkpoint: tuple[int, tuple[tuple[str, int], ...]] = (0, ())

    @initialize()
    def begin(self) -> None:
        self.acknowledged: dict[str, int] = dict.fromkeys(self.clients, -1)

    @rule(name=st.sampled_from("ab"), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def send(self, name: str, sizes: list[int]) -> None:
        client = self.clients[name]
        fresh = []
        for size in sizes:
            fresh.append((client.next, client.next + size - 1))
            client.next += size
        client.waiting += fresh
        self._offer(name, fresh)

    @rule(name=st.sampled_from("ab"))
    def repeat(self, name: str) -> None:
        """The connection was lost: everything without a receipt once more."""
        self._offer(name, list(self.clients[name].waiting))

    @rule(name=st.sampled_from("ab"), sequence=st.integers(0, 40))
    def repeat_something_old(self, name: str, sequence: int) -> None:
        if sequence <= self.acknowledged[name]:
            assert self.known.judge(name, sequence) is Verdict.DUPLICATE

    def _offer(self, name: str, entries: list[tuple[int, int]]) -> None:
        if not entries:
            return
        if self.known.push_run(name, [low for low, _ in entries], [high for _, high in entries]):
            self.flying += [(name, low, high) for low, high in entries]
            return
        for low, high in entries:
            verdict = self.known.judge(name, low)
            if verdict is Verdict.NEW:
                self.known.push(name, high)
                self.flying.append((name, low, high))
            elif verdict is Verdict.DUPLICATE:
                self._receipt(name, low)

    @precondition(lambda self: self.flying)
    @rule(count=st.integers(1, 6), answered=st.booleans())
    def flush(self, count: int, answered: bool) -> None:
        """Entries become durable; with the connection gone their receipts are lost."""
        for name, low, high in self.flying[:count]:
            self.log.append((name, low, high))
            self.known.persist(name, high)
            if answered:
                self._receipt(name, low)
        del self.flying[:count]

    def _receipt(self, name: str, low: int) -> None:
        waiting = self.clients[name].waiting
        if waiting and waiting[0][0] == low:
            self.acknowledged[name] = waiting.pop(0)[1]

    @rule()
    def write_checkpoint(self) -> None:
        self.checkpoint = (len(self.log), self.known.to_state())

    @rule(overlap=st.integers(0, 5), lost=st.integers(0, 10))
    def crash(self, overlap: int, lost: int) -> None:
        """Some of what was on its way is durable without anybody having learned of it. Replay may
        begin before the checkpoint's moment."""
        self.log += self.flying[: max(0, len(self.flying) - lost)]
        self.flying.clear()
        start, names = self.checkpoint
        self.known = Deduplication()
        for name, sequence in names:
            self.known.apply(name, (sequence,))
        for name, _low, high in self.log[max(0, start - overlap) :]:
            self.known.apply(name, (high,))
        self.known.recovered(DeduplicationLimits(), 0)
        for name in self.clients:
            self.repeat(name)

    @invariant()
    def no_duplicates_and_in_order(self) -> None:
        for name in self.clients:
            ids = [
                n for found, low, high in self.log if found == name for n in range(low, high + 1)
            ]
            assert ids == list(range(len(ids))), (
                "nothing twice, nothing missing before it, nothing out of order"
            )

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        for name, acknowledged in self.acknowledged.items():
            last = max((high for found, _low, high in self.log if found == name), default=-1)
            assert acknowledged <= last
            assert self.known.last_sequence(name) == last


Life.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
