"""The tracer scenario notices every planted bug, and nothing else: without it the same seeds pass."""

from __future__ import annotations

import re
from concurrent.futures import Future
from functools import cache

import pytest

from tests.simulation.scenarios.planted import BUGS, CONTROL
from tests.simulation.scenarios.seeds import Verdict, hunt, run_seeds

SEEDS = range(100)
NOTICED_BY = {
    "no_look_at_the_claim": "invariant [12]",
    "length_before_fence": "invariant [123]",  # what was read too short may as well hold a confirmed acknowledgement
    "last_range_ignored": "invariant [12]",
    "receipt_before_flush": "invariant [12]",
    "ack_confirmed_before_flush": "invariant 3",
    # the next recovery refuses a log that holds its own ledger, for ever: the topic never comes back
    "ledger_of_the_term_before": "invariant 4|did not end within",
}


@cache
def hunts() -> dict[str, Future[Verdict | None]]:
    """All hunts, begun together so that they use every core."""
    return {bug: hunt(f"planted:run:{bug}", SEEDS) for bug in BUGS}


def found(bug: str) -> Verdict:
    verdict = hunts()[bug].result()
    assert verdict is not None, f"{bug} was not noticed in {len(SEEDS)} seeds"
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    """Within 100 seeds; the verdict names the seed and the broken promise."""
    verdict = found(bug)
    assert re.search(NOTICED_BY[bug], verdict.error), verdict.error
    assert f"seed {verdict.seed}, virtual time" in verdict.error


@pytest.mark.slow
def test_the_unpatched_broker_passes_the_same_seeds() -> None:
    """The control: it is the bugs that were found."""
    last = max(found(bug).seed for bug in BUGS)
    failures = [verdict for verdict in run_seeds(f"planted:run:{CONTROL}", range(last + 1)) if verdict.error]
    assert not failures, f"seeds {[verdict.seed for verdict in failures]} failed without a bug:\n{failures[0].error}"
