"""A disk that is full, hangs, and writes half of what it is given: nothing acknowledged is lost,
and what frees space goes on."""

from __future__ import annotations

import re

import pytest

from tests.simulation.scenarios import full_disk_stories
from tests.simulation.scenarios.full_disk_stories import STORIES
from tests.simulation.scenarios.planted import CONTROL
from tests.simulation.scenarios.seeds import hunt, run_seeds

STORY_SEEDS = range(4)
SEEDS = range(12)
HAPPENED = {
    # the least number in all seeds, about half of what was counted when this was written
    "trace: full": 15,
    "trace: hangs": 10,
    "trace: reserve used": 3,
    "trace: short write": 12,
    "log.space_short": 22,
    "log.space_again": 16,
    "message": 900,
    "ack confirmed": 400,
}
BUGS_SEEDS = range(40)
NOTICED_BY = {
    "no_short_files": "no receipt in|did not hold within|did not end within",
    "nothing_is_refused": "did not hold within|the reserve did not last",
    "the_reserve_is_never_filled_again": "no receipt in|did not hold within|did not end within",
}


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_a_full_disk_is_freed(story: str) -> None:
    """By what the story is about, with nothing but the reserve; then publishing goes on by
    itself, and what was refused is stored."""
    for verdict in run_seeds(f"full_disk_stories:tell:{story}", STORY_SEEDS):
        assert not verdict.error, f"seed {verdict.seed}:\n{verdict.error}"
        assert verdict.counts["trace: reserve used"], "the reserve was not needed"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_feature_keeps_its_promise_on_a_disk_that_is_full_now_and_then() -> None:
    """Every promise of `test_durable` holds, with brokers that die and move bundles concurrently;
    with space everything goes on."""
    verdicts = run_seeds("durable:full", SEEDS)
    for verdict in verdicts:
        assert not verdict.error, f"seed {verdict.seed}:\n{verdict.error}"
    counts = {name: sum(verdict.counts.get(name, 0) for verdict in verdicts) for name in HAPPENED}
    assert {name: count for name, count in counts.items() if count < HAPPENED[name]} == {}, counts


@pytest.mark.slow
@pytest.mark.parametrize("bug", NOTICED_BY)
def test_a_story_notices_a_planted_bug(bug: str) -> None:
    (verdict,) = run_seeds(f"full_disk_stories:run:{bug}", [0])
    assert re.search(NOTICED_BY[bug], verdict.error), verdict.error


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", full_disk_stories.DURABLE_BUGS)
def test_the_checkers_notice_a_planted_bug(bug: str) -> None:
    """And pass the same seeds without it."""
    verdict = hunt(f"full_disk_stories:run_durable:{bug}", BUGS_SEEDS).result()
    assert verdict is not None, f"{bug} was not noticed in {len(BUGS_SEEDS)} seeds"
    assert re.search(
        "invariant [123]|never got|did not end within|after the last fault", verdict.error
    ), verdict.error
    (control,) = run_seeds(f"full_disk_stories:run_durable:{CONTROL}", [verdict.seed])
    assert not control.error, control.error


def test_every_planted_bug_is_hunted() -> None:
    assert {*NOTICED_BY} == {*full_disk_stories.BUGS}
