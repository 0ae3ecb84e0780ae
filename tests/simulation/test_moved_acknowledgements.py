"""Planned moves deliver nothing again that was acknowledged before CLOSE_CONSUMER, and the story
notices brokers that do."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.moved_acknowledgements import BUGS
from tests.simulation.scenarios.seeds import run_seeds

SEEDS = range(6)


@pytest.mark.slow
@pytest.mark.parametrize("bug", list(BUGS))
def test_what_was_acknowledged_before_a_move_does_not_come_again(bug: str) -> None:
    """Under every seed on a broker as it is; each planted bug is noticed, by just that."""
    errors = [verdict.error for verdict in run_seeds(f"moved_acknowledgements:run:{bug}", SEEDS)]
    if bug == "none":
        assert not any(errors), errors
    else:
        assert any(
            "acknowledged before the move were delivered again" in error for error in errors
        ), errors
