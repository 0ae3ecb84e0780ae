"""The nastiest moments of the protocol, scripted one by one; each story fails on a broker that
gets it wrong."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.seeds import run_seeds
from tests.simulation.scenarios.stories import STORIES

SEEDS = range(4)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_a_story_ends_well(story: str) -> None:
    """Under a few seeds, which vary latencies and the order of what happens at once."""
    for verdict in run_seeds(f"stories:tell:{story}", SEEDS):
        assert not verdict.error, f"seed {verdict.seed}:\n{verdict.error}"


@pytest.mark.slow
def test_without_deduplication_the_same_trouble_leaves_duplicates() -> None:
    """The control of the story about deduplication: there was something to remember."""
    errors = [
        verdict.error
        for verdict in run_seeds("stories:tell:duplicates_without_deduplication", SEEDS)
    ]
    assert any("is in the log 2 times" in error for error in errors), errors
