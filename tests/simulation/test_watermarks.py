"""Event-time watermarks survive 300 bad days (invariant 7), and each met its trouble.

The seeds run on every core, in chunks; a failure names its seed, which `python -m dev.campaign
--suite watermarks --seeds N:N+1 --again` repeats.
"""

from __future__ import annotations

import pytest

from tests.simulation.scenarios.seeds import SeedRange, run_seeds

SEEDS = SeedRange("watermarks:counted", 300, chunk=50)

SEEKING = SeedRange("watermarks:seeking", 100, chunk=50)

RESTING = SeedRange("watermarks:resting", 100, chunk=50)

HAPPENED_PER_SEED = {
    # the least mean number per seed, about half of what was counted when this was written
    "message Exclusive": 60,
    "message Shared": 60,
    "message Failover": 12,
    "watermark Exclusive": 5,
    "watermark Shared": 7,
    "watermark Failover": 3,
    "committed Failover": 2,
    "takeover": 2,
    "bundle.released": 4,
    "bundle.split": 1,
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", SEEDS.firsts)
def test_no_watermark_is_followed_by_an_older_message(first: int) -> None:
    """Invariant 7, beside moves, splits, trimming, transactions and crashes; in the end every
    watermark is the least of what was asserted."""
    SEEDS.check_passed(first)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_way_of_a_watermark_was_met_often() -> None:
    """A scenario that is too kind proves nothing."""
    SEEDS.check_happened(HAPPENED_PER_SEED)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", SEEKING.firsts)
def test_a_seek_back_resets_before_anything_older(first: int) -> None:
    """Whichever owner answers it, and if its answer is lost."""
    SEEKING.check_passed(first)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_seeks_were_met_often() -> None:
    SEEKING.check_happened({"sought Exclusive": 0.5, "reset Exclusive": 0.3})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", RESTING.firsts)
def test_what_an_idle_producer_has_sent_is_not_late(first: int) -> None:
    """The decision lies in the log behind its messages: a subscription that is behind waits for
    them."""
    RESTING.check_passed(first)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rests_were_met_often() -> None:
    RESTING.check_happened({"rested Shared": 1, "watermark Shared": 5})


@pytest.mark.slow
def test_seeds_that_once_failed_pass() -> None:
    """15: a watermark overtook copies of messages that another consumer had got since, and
    acknowledged."""
    assert [verdict for verdict in run_seeds("watermarks:counted", [15]) if verdict.error] == []
