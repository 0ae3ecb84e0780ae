"""Topics that end, begin again or lose their beginning while brokers die: scripted, at four
moments each."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.seeds import run_seeds
from tests.simulation.scenarios.topic_stories import STORIES

SEEDS = range(4)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_a_topic_story_ends_well(story: str) -> None:
    """Under a few seeds, each of which lets the broker die at another moment."""
    for verdict in run_seeds(f"topic_stories:tell:{story}", SEEDS):
        assert not verdict.error, f"seed {verdict.seed}:\n{verdict.error}"
