"""Rewriting and deleting are interrupted at every step; nothing acknowledged is lost, and
storage goes on shrinking."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.seeds import run_seeds
from tests.simulation.scenarios.storage_stories import ROUNDS, STORIES

SEEDS = range(6)


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES)
def test_a_story_ends_well(story: str) -> None:
    """Those that are interrupted five times each, at steps that the seed chooses."""
    for verdict in run_seeds(f"storage_stories:tell:{story}", SEEDS):
        assert not verdict.error, f"seed {verdict.seed}:\n{verdict.error}"
        if story.startswith("it_"):
            assert verdict.counts["interrupted"] == ROUNDS
