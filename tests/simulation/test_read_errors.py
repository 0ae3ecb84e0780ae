"""The whole feature set on bad days and a disk whose reads fail now and then, which the other
mixes of faults leave out."""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.seeds import run_seeds

SEEDS = range(12)
READ_ERRORS_PER_SEED = 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_reads_that_fail_cost_nothing_but_time() -> None:
    """Deliveries, rewriting, moves and recovery try again: every promise of `test_durable`
    holds."""
    verdicts = run_seeds("durable:worn", SEEDS)
    for verdict in verdicts:
        assert not verdict.error, f"seed {verdict.seed}:\n{verdict.error}"
    assert sum(
        verdict.counts["trace: read error"] for verdict in verdicts
    ) > READ_ERRORS_PER_SEED * len(SEEDS)
