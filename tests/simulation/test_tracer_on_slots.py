"""A volume of slots on a bad object service: owners are fenced at any moment, real brokers and
clients survive 60 bad days.

Each protection of the fence is needed: takeovers notice when it is left out. A failure names its
seed; `judge("tracer:counted_on_slots", seed)` or `judge("slot_takeovers:run", seed)` of
tests.simulation.scenarios.seeds repeats it.
"""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import Future
from functools import cache

import pytest

from tests.simulation.scenarios import planted_slots, slot_takeovers
from tests.simulation.scenarios.planted import CONTROL
from tests.simulation.scenarios.seeds import (
    SHOWN_CHARACTERS_MAX,
    SeedRange,
    Verdict,
    hunt,
    run_seeds,
)

SEEDS = SeedRange("tracer:counted_on_slots", 60, chunk=20)
PLANTED_SEEDS = range(200)

HAPPENED_PER_SEED = {
    # the least mean number per seed, about half of what was counted when this was written
    "message": 50,
    "takeover": 2,
    "gc.log_file": 2,
    "bundle.segments_compacted": 3,
    "broker.failed": 0.3,
    "trace: object taken": 8,
    "trace: object late": 1.5,
    "trace: object answer lost": 2,
    "trace: object request lost": 1.5,
    "trace: object conflict": 0.3,
}

LOST = (
    "which its new owner has not found|has not found that out|has not learned|did not end within|ended "
    "because the service refused"
)
TAKEOVER_SEEDS = 100


@cache
def hunts() -> dict[str, Future[Verdict | None]]:
    """All hunts, begun together so that they use every core."""
    return {bug: hunt(f"planted_slots:run:{bug}", PLANTED_SEEDS) for bug in planted_slots.BUGS}


def found(bug: str) -> Verdict:
    verdict = hunts()[bug].result()
    assert verdict is not None, f"{bug} was not noticed in {len(PLANTED_SEEDS)} seeds"
    return verdict


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", SEEDS.firsts)
def test_nothing_acknowledged_is_lost_and_service_comes_back(first: int) -> None:
    """Invariants 1 to 4 and 9, at every seed of the chunk."""
    SEEDS.check_passed(first)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_service_was_as_bad_as_it_may_be() -> None:
    """A scenario that is too kind proves nothing: requests and answers were lost, refused and
    late, and brokers were taken over."""
    SEEDS.check_happened(HAPPENED_PER_SEED)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_owner_acknowledges_what_the_new_owner_has_not_read() -> None:
    """Fenced asleep in the middle of any request, or awake; also when its files are gone before
    it wakes."""
    found = run_seeds("slot_takeovers:run", range(TAKEOVER_SEEDS))
    failures = [verdict for verdict in found if verdict.error]
    assert not failures, (
        f"seeds {[verdict.seed for verdict in failures]} "
        f"failed\n{failures[0].error[-SHOWN_CHARACTERS_MAX:]}"
    )
    total = sum((Counter(verdict.counts) for verdict in found), Counter[str]())
    assert total["takeover"] == slot_takeovers.TAKEOVERS * TAKEOVER_SEEDS
    assert total["collected"] > TAKEOVER_SEEDS
    assert total["files"] > 10 * TAKEOVER_SEEDS
    assert total["hole"] > TAKEOVER_SEEDS
    assert total["throttled"] > TAKEOVER_SEEDS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", planted_slots.BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """Within 200 seeds; the verdict names the seed and the broken promise."""
    verdict = found(bug)
    assert re.search(LOST, verdict.error), verdict.error
    assert f"seed {verdict.seed}, virtual time" in verdict.error


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_unpatched_broker_passes_the_same_seeds() -> None:
    """The control: it is the bugs that were found."""
    last = max(found(bug).seed for bug in planted_slots.BUGS)
    failures = [
        verdict
        for verdict in run_seeds(f"planted_slots:run:{CONTROL}", range(last + 1))
        if verdict.error
    ]
    assert not failures, (
        f"seeds {[verdict.seed for verdict in failures]} failed without a bug:\n{failures[0].error}"
    )
