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


@pytest.mark.slow
def test_a_client_that_groups_acknowledgements_gets_nothing_twice() -> None:
    """It keeps up: a transfer ends delivery a moment before it disconnects consumers. Without that
    moment the story notices."""
    cases = {wait_s: f"moved_acknowledgements:run_grouped:{wait_s}" for wait_s in ("0.15", "0.0")}
    errors = {
        wait_s: [verdict.error for verdict in run_seeds(case, SEEDS)]
        for wait_s, case in cases.items()
    }
    assert not any(errors["0.15"]), errors["0.15"]
    assert any("were delivered twice" in error for error in errors["0.0"]), errors["0.0"]
