"""Who must not be given an orphan."""

from __future__ import annotations

from magnetar.metadata.records import LogPosition
from magnetar.ownership import rules as rules

START = LogPosition(0, 4096)


def test_the_holder_of_the_open_range_is_left_out_too() -> None:
    """An owner that is overridden by mistake may be registered again; given its own bundle, it
    would have to fence itself."""
    assigned = rules.assign(None, "a", reason="lookup")
    assert rules.former_owners(assigned) == {"a"}
    owned = rules.own(assigned, "a", epoch=7, start=START)
    assert rules.former_owners(owned) == {"a"}
    assert rules.former_owners(
        rules.override(owned, "b", owner_is_dead=True, reason="a is gone")
    ) == {"a", "b"}


def test_who_released_may_have_it_again() -> None:
    """A closed range needs no fence."""
    owned = rules.own(rules.assign(None, "a", reason="lookup"), "a", epoch=7, start=START)
    releasing = rules.release(owned, "b", reason="move")
    assert rules.former_owners(rules.released(releasing, "b", end=START)) == {"b"}
    assert rules.former_owners(rules.released(releasing, "", end=START)) == frozenset()
    assert rules.former_owners(None) == frozenset()
