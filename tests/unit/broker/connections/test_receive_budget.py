"""Reservations for unfinished frames: bounds, order, and that every request is granted once others
have ended."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.broker.connections.receive_budget import ReceiveBudget

MOST, GROUP_MAX = 20, 10


def budget_of(*reserved: tuple[str, str, int]) -> ReceiveBudget[str]:
    budget: ReceiveBudget[str] = ReceiveBudget(MOST, GROUP_MAX)
    for peer, group, size in reserved:
        assert budget.reserve(peer, group, size)
    return budget


def test_an_address_that_has_half_waits_and_delays_no_other() -> None:
    budget = budget_of(("a1", "a", 10))
    assert not budget.reserve("a2", "a", 1)
    assert budget.reserve("b1", "b", 10)
    budget.release("a1")
    assert budget.take_granted() == ["a2"]


def test_addresses_take_turns_when_all_is_reserved() -> None:
    """One that asks again and again does not come before others that asked later than it began."""
    budget = budget_of(("a1", "a", 10), ("b1", "b", 10))
    for peer in ("c1", "c2", "c3", "d1"):
        assert not budget.reserve(peer, peer[0], 5)
    budget.release("a1")
    assert budget.take_granted() == ["c1", "d1"]
    budget.release("b1")
    assert budget.take_granted() == ["c2"]
    budget.release("c1")
    assert budget.take_granted() == ["c3"]


def test_a_large_request_is_not_overtaken_by_small_ones() -> None:
    budget = budget_of(("a1", "a", 5), ("a2", "a", 5), ("b1", "b", 5))
    assert not budget.reserve("c1", "c", 10)
    assert not budget.reserve("d1", "d", 1)
    budget.release("a1")
    assert budget.take_granted() == ["c1"]
    budget.release("a2")
    assert budget.take_granted() == ["d1"]


def test_one_that_gives_up_lets_those_behind_it_go_on() -> None:
    budget = budget_of(("a1", "a", 9))
    assert not budget.reserve("a2", "a", 2)
    assert not budget.reserve("a3", "a", 1)
    budget.release("a2")
    assert budget.take_granted() == ["a3"]
    assert budget.waiting == 0


class Reservations(RuleBasedStateMachine):
    """Any order of requests and ends keeps the bounds, the order within an address, and nobody
    waits who need not."""

    def __init__(self) -> None:
        super().__init__()
        self.budget: ReceiveBudget[int] = ReceiveBudget(MOST, GROUP_MAX)
        self.next = 0
        self.held: dict[int, tuple[str, int]] = {}
        self.waiting: dict[int, tuple[str, int]] = {}

    def _grant(self) -> None:
        for peer in self.budget.take_granted():
            group, _ = self.waiting[peer]
            first = next(key for key, (other, _) in self.waiting.items() if other == group)
            assert peer == first, "not in its turn"
            self.held[peer] = self.waiting.pop(peer)

    @rule(group=st.sampled_from("abc"), size=st.integers(1, GROUP_MAX))
    def reserve(self, group: str, size: int) -> None:
        peer, self.next = self.next, self.next + 1
        kept = self.held if self.budget.reserve(peer, group, size) else self.waiting
        kept[peer] = group, size
        self._grant()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[peer]
        self.budget.release(peer)
        self._grant()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[peer]
        self.budget.release(peer)
        self._grant()

    @invariant()
    def bounds(self) -> None:
        sizes = [size for _, size in self.held.values()]
        assert self.budget.reserved == sum(sizes) <= MOST
        assert self.budget.waiting == len(self.waiting)
        for group in "abc":
            assert self._of(group) <= GROUP_MAX

    @invariant()
    def who_waits_has_to(self) -> None:
        """Of each address the first fits neither into its own limit nor, if it is its turn, into
        what is left of all."""
        firsts: dict[str, int] = {}
        for group, size in self.waiting.values():
            firsts.setdefault(group, size)
        within = [size for group, size in firsts.items() if self._of(group) + size <= GROUP_MAX]
        assert not within or any(sum(s for _, s in self.held.values()) + s > MOST for s in within)

    def _of(self, group: str) -> int:
        return sum(size for other, size in self.held.values() if other == group)

    def teardown(self) -> None:
        """Once everything ends, everything is granted."""
        while self.held:
            peer = next(iter(self.held))
            del self.held[peer]
            self.budget.release(peer)
            self._grant()
        assert not self.waiting
        assert self.budget.reserved == 0


TestReservations = Reservations.TestCase
