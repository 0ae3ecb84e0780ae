"""Watermarks over random histories: the invariant, exactness, recovery and progress; and that each
of these properties notices the bugs that break it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.watermarks.planted import BUGS, Bug
from tests.unit.watermarks.world import CHECKS, WEIGHTS, play, random_steps

SEEDS = range(2_000)
HISTORIES = range(400)
STEPS = st.lists(
    st.tuples(st.sampled_from([*WEIGHTS]), st.integers(0, 11), st.integers(0, 19)), max_size=50
)
PLANTED = [(name, bug) for name, bugs in BUGS.items() for bug in bugs]


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=250)
def test_any_history_keeps_every_promise(steps: list[tuple[str, int, int]]) -> None:
    """A delivered watermark w is never followed, in delivery order, by an on-time producer's
    message older than w; it is the reference's; recovery changes nothing; it reaches the minimum."""
    play(steps)


@pytest.mark.slow
def test_long_histories_keep_every_promise() -> None:
    for seed in HISTORIES:
        play(random_steps(seed))


@pytest.mark.parametrize("seed", [4721, 4991, 5379, 5484])
def test_histories_that_once_failed_keep_every_promise(seed: int) -> None:
    """A producer sent in a transaction, asserted, sent again in it, and became idle. 5484 never
    ended: its last message is redelivered and acknowledged."""
    play(random_steps(seed))


def test_histories_reach_what_they_are_about() -> None:
    """Watermarks are delivered, clamped, violated by producers that come late, and go back."""
    worlds = [play(random_steps(seed)) for seed in range(60)]
    assert sum(world.client.watermark_ms is not None for world in worlds) > 40
    assert sum(world.generator.clamped for world in worlds) > 10
    assert sum(world.generator.late for world in worlds) > 10
    assert sum(world.timeline.base_place != (-1, -1) for world in worlds) > 10


def failure(seed: int, check: str) -> str | None:
    """What a check says of a history, without the other checks."""
    try:
        play(random_steps(seed), {check})
    except AssertionError as error:
        return str(error)
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "bug"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_planted_bug_is_noticed(check: str, bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its property alone, in some seed; and without the bug the seed passes."""
    with monkeypatch.context() as patch:
        bug(patch)
        found = next(((seed, said) for seed in SEEDS if (said := failure(seed, check))), None)
    assert found is not None, f"{bug.__name__} was not noticed by {check!r} in {len(SEEDS)} seeds"
    assert found[1].startswith(f"{check}: "), found
    play(random_steps(found[0]))


def test_every_check_has_bugs() -> None:
    assert {*BUGS} == CHECKS
