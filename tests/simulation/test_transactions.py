"""Whole transactions survive 30 bad days without an anomaly, and each kind of trouble did happen to
them.

The seeds run on every core, in chunks; a failure names its seed, which `python -m dev.campaign
--suite transactions --seeds N:N+1 --again` repeats.
"""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.seeds import SeedRange

SEEDS = SeedRange("transactions:counted", 30, chunk=15)

HAPPENED_PER_SEED = {
    # the least mean number per seed, about half of what was counted when this was written
    "committed": 12,
    "aborted": 7,
    "acknowledged, outcome unknown": 0.25,
    "moved": 85,
    "moved: keyed": 3,
    "moved: failover": 3,
    "moved: mortal": 3,
    "output in chunks": 0.6,
    "expired": 20,
    "trimmed: persistent://public/once/mixed": 0.8,
    "trimmed: persistent://public/once/input": 1.5,
    "trimmed: persistent://public/trimmed/handed": 3,
    "client ended": 1.7,
    "takeover": 3,
    "preloaded": 5,
    "bundle.released": 7,
    "bundle.checkpoint": 10,
    "bundle.segments_compacted": 5,
    "bundle.split": 2,
    "transaction.inquired": 5,
    "transaction.participant_unavailable": 5,
    "coordinator.ready": 3.5,
    "coordinator.failed": 0.6,
    "coordinator stopped": 1,
    "lease outlived": 0.6,
    "log.roll": 9,
    "gc.removed": 30,
    "trace: append": 250,
    "trace: crash": 7,
    "trace: pause": 0.5,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", SEEDS.firsts)
def test_no_transaction_is_lost_torn_or_seen_too_early(first: int) -> None:
    """Committed outputs once and in order, aborted ones never, output and acknowledgement
    together, nothing held permanently; at every seed."""
    SEEDS.check_passed(first)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_transactions_met_trouble_often() -> None:
    """A scenario that is too kind proves nothing."""
    SEEDS.check_happened(HAPPENED_PER_SEED)
