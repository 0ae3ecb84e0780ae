"""Topics that are compacted and trimmed while brokers die, sleep and lose them: scripted, at
another step under each seed."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.compaction_stories import STORIES
from tests.simulation.scenarios.planted_compaction import BUGS, CONTROL
from tests.simulation.scenarios.seeds import run_seeds

SEEDS = range(6)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_a_compaction_story_ends_well(story: str) -> None:
    """Every reader of the view gets the latest value of each key."""
    for verdict in run_seeds(f"compaction_stories:tell:{story}", SEEDS):
        assert not verdict.error, f"seed {verdict.seed}:\n{verdict.error}"


@pytest.mark.slow
@pytest.mark.parametrize("bug", [*BUGS, CONTROL])
def test_the_stories_notice_every_planted_bug(bug: str) -> None:
    """Without it the same seeds pass."""
    failed = [
        verdict.seed
        for verdict in run_seeds(f"planted_compaction:run:{bug}", range(12))
        if verdict.error
    ]
    assert bool(failed) == (bug != CONTROL), failed
