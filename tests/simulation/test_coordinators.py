"""Transaction coordinators keep their word through 30 bad days, and each kind of trouble did happen
to them.

The seeds run on every core, in chunks; a failure names its seed, which `python -m dev.campaign
--suite coordinators --seeds N:N+1 --again` repeats.
"""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.seeds import SeedRange

SEEDS = SeedRange("coordinators:counted", 30, chunk=15)

HAPPENED_PER_SEED = {
    # the least mean number per seed, about half of what was counted when this was written
    "begun": 38,
    "answered COMMIT": 24,
    "answered ABORT": 14,
    "answered again": 50,
    "timed out": 5,
    "received": 40,
    "received again": 5,
    "coordinator.ready": 4.5,
    "coordinator.failed": 0.5,
    "coordinator.waits": 4,
    "coordinator stopped": 1.2,
    "scaled down": 0.5,
    "lease outlived": 0.8,
    "takeover": 4,
    "trace: crash": 6,
    "trace: pause": 0.7,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", SEEDS.firsts)
def test_coordinators_keep_their_word(first: int) -> None:
    """Ids once and rising, outcomes that never change, one decision for every participant,
    timeouts, the low watermark; at every seed."""
    SEEDS.check_passed(first)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_coordinators_met_trouble_often() -> None:
    """A scenario that is too kind proves nothing."""
    SEEDS.check_happened(HAPPENED_PER_SEED)
