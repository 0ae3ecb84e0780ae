"""What lives and ends in a broker survives 100 bad days: chunks, expiry, quotas, terminated topics,
topics without storage.

The seeds run on every core, in chunks; a failure names its seed, which `python -m dev.campaign
--suite lifecycle --seeds N:N+1 --again` repeats.
"""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.seeds import SeedRange

SEEDS = SeedRange("lifecycle:counted", 100, chunk=25)

HAPPENED_PER_SEED = {
    # the least mean number per seed, about half of what was counted when this was written
    "message": 50,
    "message in chunks": 6,
    "delivered in chunks": 14,
    "delivered mortals": 14,
    "expired": 1.9,
    "held": 11,
    "topic.backlog_quota": 0.7,
    "topic ended": 2.2,
    "refused at its end": 1.9,
    "arrived without storage": 13,
    "takeover": 3.4,
    "bundle.released": 7,
    "broker.failed": 0.45,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", SEEDS.firsts)
def test_every_life_keeps_its_promise(first: int) -> None:
    """Invariants 1 to 4 and 9; messages whole, none expired early, none kept too long, none
    behind the end of a topic; at every seed of the chunk."""
    SEEDS.check_passed(first)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_life_met_trouble_often() -> None:
    """A scenario that is too kind proves nothing."""
    SEEDS.check_happened(HAPPENED_PER_SEED)
