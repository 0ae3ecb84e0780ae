"""The whole feature set survives 300 bad days, and each feature met its trouble.

The seeds run on every core, in chunks; a failure names its seed, which `python -m dev.campaign --suite durable --seeds N:N+1 --again` repeats.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.simulation.scenarios.seeds import Verdict, run_seeds

SEEDS = 300
CHUNK = 50
SHOWN_CHARACTERS_MAX = 6000

HAPPENED_PER_SEED = {
    # the least mean number per seed, about half of what was counted when this was written
    "message": 140,
    "ack confirmed": 75,
    "duplicate refused": 5,
    "taken by force": 3,
    "delivered Key_Shared keyed": 25,
    "delivered Failover standby": 22,
    "delivered Shared delayed": 25,
    "delivered Shared topic": 22,
    "takeover": 2.5,
    "bundle.released": 5,
    "broker.failed": 0.45,
    "trace: crash": 4,
}


@cache
def verdicts(first: int) -> list[Verdict]:
    """Of one chunk; run once, whichever test asks first."""
    return run_seeds("durable:counted", range(first, first + CHUNK))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_feature_keeps_its_promise(first: int) -> None:
    """Invariants 1 to 4 and 9, no duplicate, no producer after its successor, keys in order, nothing late for ever; at every seed of the chunk."""
    failures = [verdict for verdict in verdicts(first) if verdict.error]
    shown = "\n\n".join(f"seed {verdict.seed}:\n{verdict.error[-SHOWN_CHARACTERS_MAX:]}" for verdict in failures[:3])
    assert not failures, f"seeds {[verdict.seed for verdict in failures]} failed\n{shown}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_feature_met_trouble_often() -> None:
    """A scenario that is too kind proves nothing."""
    total: Counter[str] = Counter()
    for first in range(0, SEEDS, CHUNK):
        for verdict in verdicts(first):
            total.update(verdict.counts)
    rare = {kind: (total[kind] / SEEDS, least) for kind, least in HAPPENED_PER_SEED.items() if total[kind] < least * SEEDS}
    assert not rare, f"(mean per seed, wanted): {rare}"
