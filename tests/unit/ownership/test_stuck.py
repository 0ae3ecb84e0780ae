"""Bundles that do not get on: who is patient with what, for how long, and what is done then."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from magnetar.metadata.records import BundleRecord, BundleState
from magnetar.ownership.stuck import REPLACEMENTS_MAX, Remedy, StuckStates

PATIENCE_S = 30.0
LIVE = {"a.1", "b.1"}


def record(state: BundleState, incarnation: str = "a.1") -> BundleRecord:
    return BundleRecord(state, 7, incarnation)


def test_a_destination_is_replaced_and_a_source_is_fenced() -> None:
    """After the patience, by state; what is owned or free, or whose party is gone, is nobody's
    fault."""
    states = {
        "assigning": record(BundleState.ASSIGNING),
        "releasing": record(BundleState.RELEASING),
        "splitting": record(BundleState.SPLITTING),
        "merging": record(BundleState.MERGING),
        "owned": record(BundleState.OWNED),
        "free": record(BundleState.FREE, ""),
        "orphan": record(BundleState.ASSIGNING, "gone.1"),
    }
    watched, records = StuckStates(PATIENCE_S), {name: (found, 5) for name, found in states.items()}
    assert watched.look(0.0, records, LIVE) == []
    assert watched.look(PATIENCE_S - 0.1, records, LIVE) == []
    found = {stuck.bundle: stuck.remedy for stuck in watched.look(PATIENCE_S, records, LIVE)}
    assert found == {
        "assigning": Remedy.REPLACE,
        "releasing": Remedy.FENCE,
        "splitting": Remedy.FENCE,
        "merging": Remedy.FENCE,
    }


def test_any_progress_begins_the_wait_again() -> None:
    """A record that changes, a party that comes back, a bundle that was owned in between."""
    watched, releasing = StuckStates(PATIENCE_S), record(BundleState.RELEASING)
    for number in range(20):
        assert watched.look(20.0 * number, {"b": (releasing, number)}, LIVE) == []
    assert watched.look(409.0, {"b": (releasing, 19)}, LIVE) == []
    assert watched.look(409.5, {"b": (record(BundleState.OWNED), 20)}, LIVE) == []
    assert watched.look(420.0, {"b": (releasing, 21)}, LIVE) == []
    assert watched.look(440.0, {"b": (releasing, 21)}, {"b.1"}) == []
    assert watched.look(441.0, {"b": (releasing, 21)}, LIVE) == []
    assert [stuck.seconds for stuck in watched.look(471.0, {"b": (releasing, 21)}, LIVE)] == [
        PATIENCE_S
    ]


def test_what_nobody_can_recover_does_not_wander() -> None:
    """Each replacement doubles the patience, up to a limit; a term that began ends the count."""
    watched, now, revision, waits = StuckStates(PATIENCE_S), 0.0, 1, []
    for _ in range(REPLACEMENTS_MAX + 3):
        began = now
        while not watched.look(now, {"b": (record(BundleState.ASSIGNING), revision)}, LIVE):
            now += PATIENCE_S / 2
        watched.replaced("b")
        revision += 1
        waits.append(now - began)
        now += 1.0
    assert all(after >= before for before, after in itertools.pairwise(waits))
    assert waits[-1] <= PATIENCE_S * (1 << REPLACEMENTS_MAX) + PATIENCE_S
    watched.look(now, {"b": (record(BundleState.OWNED), revision)}, LIVE)
    assert watched.look(now, {"b": (record(BundleState.ASSIGNING), revision + 1)}, LIVE) == []
    assert watched.look(
        now + PATIENCE_S, {"b": (record(BundleState.ASSIGNING), revision + 1)}, LIVE
    )


@given(
    st.lists(
        st.tuples(
            st.floats(0.1, 20.0),
            st.sampled_from(list(BundleState)),
            st.booleans(),
            st.sampled_from(["a.1", "gone.1"]),
        )
    )
)
def test_nothing_is_stuck_that_was_not_seen_unchanged_for_so_long(
    course: list[tuple[float, BundleState, bool, str]],
) -> None:
    """Whatever the course: the same record of the same revision, in hands that live, for the
    whole patience."""
    watched, now, revision, since, before = StuckStates(PATIENCE_S), 0.0, 1, 0.0, None
    for step, state, changes, holder in course:
        now += step
        revision += changes or before != (state, holder)
        if changes or before != (state, holder) or holder not in LIVE:
            since = now
        before = (state, holder)
        for stuck in watched.look(now, {"b": (record(state, holder), revision)}, LIVE):
            assert now - since >= PATIENCE_S - 1e-6
            assert stuck.remedy is (
                Remedy.REPLACE if state is BundleState.ASSIGNING else Remedy.FENCE
            )
            assert holder in LIVE


def test_what_is_overdue_stays_so_until_it_gets_on() -> None:
    """Also between two replacements; a bundle that has just begun to change hands, and one that
    serves again, is not."""
    watched, assigning = StuckStates(PATIENCE_S), record(BundleState.ASSIGNING)
    watched.look(0.0, {"old": (assigning, 5)}, LIVE)
    assert watched.overdue(PATIENCE_S - 0.1) == frozenset()
    watched.look(PATIENCE_S, {"old": (assigning, 5), "new": (assigning, 6)}, LIVE)
    assert watched.overdue(PATIENCE_S) == {"old"}
    watched.replaced("old")
    watched.look(PATIENCE_S + 1, {"old": (assigning, 7), "new": (assigning, 6)}, LIVE)
    assert watched.overdue(PATIENCE_S + 1) == {"old"}
    watched.look(
        PATIENCE_S + 2, {"old": (record(BundleState.OWNED), 8), "new": (assigning, 6)}, LIVE
    )
    assert watched.overdue(PATIENCE_S + 2) == frozenset()
