"""What peers may take: counts by address, who makes room, and how the open files of a process
are divided."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from magnetar.errors import LimitExceeded
from magnetar.hosting.descriptors import DescriptorShares
from magnetar.hosting.peer_budget import PeerBudget, peer_group

MOST, GROUP_MAX, UNKNOWN_MAX = 8, 5, 3


@pytest.mark.parametrize(
    ("peername", "group"),
    [
        (("10.0.0.1", 1), "10.0.0.1"),
        (("::ffff:10.0.0.1", 1, 0, 0), "10.0.0.1"),
        (("2001:db8::1", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8::ffff:2", 1, 0, 0), "2001:db8::/64"),
        (("2001:db8:0:1::1", 1, 0, 0), "2001:db8:0:1::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        (("simulated", 1), "simulated"),
        ("", ""),
        (None, ""),
    ],
)
def test_peers_are_counted_by_address_or_subnet(peername: object, group: str) -> None:
    assert peer_group(peername) == group


def test_a_flood_from_one_address_drops_itself() -> None:
    """Those of another address who have shown nothing yet are left alone."""
    budget: PeerBudget[str] = PeerBudget("limit", most=100, group_max=100, unknown_max=4)
    assert budget.admit("honest", "a") is None
    dropped = [budget.admit(f"flood {number}", "b") for number in range(10)]
    assert [name for name in dropped if name is not None] == [
        f"flood {number}" for number in range(7)
    ]
    assert "honest" in budget


def test_an_address_that_has_all_it_may_gets_no_more_and_others_do() -> None:
    budget: PeerBudget[int] = PeerBudget("limit", most=10, group_max=2, unknown_max=10)
    for peer in (1, 2):
        budget.admit(peer, "a")
        budget.keep(peer)
    with pytest.raises(LimitExceeded, match=r"limit: 2 connections are open from a"):
        budget.admit(3, "a")
    assert budget.admit(4, "b") is None


class Budgets(RuleBasedStateMachine):
    """Any order of events keeps every bound, and drops nobody who is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.budget: PeerBudget[int] = PeerBudget(
            "limit", most=MOST, group_max=GROUP_MAX, unknown_max=UNKNOWN_MAX
        )
        self.there: dict[int, str] = {}
        self.kept: set[int] = set()
        self.number = 0

    @rule(group=st.sampled_from("abc"))
    def admit(self, group: str) -> None:
        self.number += 1
        before = list(self.there.values())
        try:
            dropped = self.budget.admit(self.number, group)
        except LimitExceeded:
            full = before.count(group) >= GROUP_MAX or len(before) >= MOST
            assert full, "refused although there was room"
            return
        if dropped is not None:
            assert dropped not in self.kept, "one that is kept was dropped"
            del self.there[dropped]
        self.there[self.number] = group

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def keep(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(sorted(self.there)))
        self.budget.keep(peer)
        self.kept.add(peer)

    @precondition(lambda self: self.kept and len(self.there) - len(self.kept) < UNKNOWN_MAX)
    @rule(data=st.data())
    def spare(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(sorted(self.kept)))
        self.budget.spare(peer)
        self.kept.discard(peer)

    @precondition(lambda self: self.there)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(sorted(self.there)))
        self.budget.forget(peer)
        self.budget.forget(peer)
        del self.there[peer]
        self.kept.discard(peer)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.budget) == len(self.there) <= MOST
        assert all(list(self.there.values()).count(group) <= GROUP_MAX for group in "abc")
        assert self.budget.unknown == len(self.there) - len(self.kept) <= UNKNOWN_MAX
        assert all(peer in self.budget for peer in self.there)


TestBudgets = Budgets.TestCase


@pytest.mark.parametrize("limit", [64, 256, 1024, 4096, 65_536, 1 << 20])
def test_peers_together_leave_a_process_files_of_its_own(limit: int) -> None:
    shares = DescriptorShares.of(limit, 20_000)
    assert min(shares.clients, shares.http, shares.handshakes) > 0
    assert limit - shares.clients - shares.http - shares.handshakes >= min(1024, limit // 4)
    assert shares.clients == 20_000 or limit < 30_000
