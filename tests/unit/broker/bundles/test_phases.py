"""The table of a bundle's phases at one broker."""

from __future__ import annotations

import itertools

import pytest

from magnetar.broker.bundles.phases import FOLLOWING, Phase, advance


def test_every_phase_is_reached_and_left() -> None:
    assert FOLLOWING.keys() == set(Phase)
    reached = {Phase.ABSENT}
    for _ in Phase:
        reached |= {following for phase in reached for following in FOLLOWING[phase]}
    assert reached == set(Phase)
    assert all(Phase.ABSENT in FOLLOWING[phase] for phase in set(Phase) - {Phase.ABSENT})


def test_a_bundle_is_served_after_its_commit_and_never_again_after_its_freeze() -> None:
    before = {phase for phase in Phase if Phase.SERVING in FOLLOWING[phase]}
    assert before == {Phase.COMMITTING, Phase.ABSENT}
    assert FOLLOWING[Phase.FROZEN] == {Phase.RELEASED, Phase.ABSENT}
    assert FOLLOWING[Phase.RELEASED] == {Phase.ABSENT}


@pytest.mark.parametrize(("phase", "following"), list(itertools.product(Phase, Phase)))
def test_only_what_the_table_names_may_follow(phase: Phase, following: Phase) -> None:
    if following in FOLLOWING[phase]:
        assert advance(phase, following) is following
    else:
        with pytest.raises(AssertionError):
            advance(phase, following)
