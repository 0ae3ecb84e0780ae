"""The scenarios notice every planted bug, and nothing else: without it the same seeds pass."""

from __future__ import annotations

import re
from concurrent.futures import Future
from functools import cache

import pytest

from tests.simulation.scenarios import (
    planted,
    planted_coordinators,
    planted_durable,
    planted_lifecycle,
    planted_splits,
    planted_transactions,
)
from tests.simulation.scenarios.planted import CONTROL, planting
from tests.simulation.scenarios.seeds import Verdict, hunt, run_seeds

SEEDS = range(200)
ORDER = "order of the group is broken"
NOTICED_BY = {
    "planted": {
        "no_look_at_the_claim": "invariant [12]",
        "length_before_fence": "invariant [123]",  # what was read too short may as well hold a confirmed acknowledgement
        "last_range_ignored": "invariant [12]|after a seek|never got",
        "receipt_before_flush": "invariant [12]",
        "ack_confirmed_before_flush": "invariant 3",
        # the next recovery refuses a log that holds its own ledger, for ever: the topic never comes back
        "ledger_of_the_term_before": "invariant 4|did not end within",
        # a reader asks for the file for ever
        "collector_ignores_the_manifest": "did not end within",
        "rewrite_without_compare": "did not end within",
    },
    "planted_splits": {
        "ids_begin_again_in_the_ledger_of_the_parent": "failed: AssertionError|invariant 4|did not end within",
        "children_forget_the_chain": "invariant [12]|after a seek|never got|did not end within",
        "chain_is_closed_before_the_flush": "invariant [123]|did not end within|saw",
        "children_begin_without_files": "did not end within",
        "files_of_the_parent_go_with_it": "did not end within|after the last fault",
        "checkpoints_of_the_parent_go_with_it": "invariant 1|did not end within|after the last fault",
    },
    "planted_durable": {
        "log_not_replayed_for_deduplication": "the broker remembers|invariant 3",
        "checkpoint_without_sequences": "the broker remembers|invariant 3",
        "only_the_highest_of_a_run_is_judged": "invariant 3",
        "fenced_producer_is_not_closed": "after its successor",
        "keys_move_without_draining": ORDER,
        "what_is_stuck_is_forgotten": f"{ORDER}|never got",
        "stand_by_goes_on_without_rewinding": ORDER,
        "what_a_consumer_held_is_not_given_back": "never got|invariant 1",  # where it is trimmed as if acknowledged
        "retention_ignores_subscriptions": "invariant 1|never got",
        # a topic that cannot be recovered, or read, does not come back; nor does a broker that is to recover it
        "collector_forgets_the_chain": "invariant 1|did not end within|never got|after the last fault",
        "collector_forgets_the_manifests": "invariant 1|did not end within|never got",
    },
    "planted_lifecycle": {
        "an_end_is_only_remembered": "takes producers|was terminated at|was said to end|after its end",
        "a_topic_goes_on_behind_its_end": "was terminated at|after its end|was said to end",
        "the_end_is_not_told": "did not end within",
        "the_young_expire": "though it has not expired",
        "nothing_expires": "is still delivered",
        "held_for_ever": "did not end within",
        "chunks_go_to_whoever_is_next": "never got",
    },
    "planted_coordinators": {
        "answered_before_the_flush": "given twice|is not known|have not heard|never heard|it is no part|nobody was given|, and is \\w+ now",
        "log_is_not_replayed": "given twice|is not known",
        "checkpoint_without_outcomes": "is not known",
        "checkpoint_without_the_next_id": "given twice",
        # the log decides what is open, or ends what nobody has decided: it cannot be replayed
        "checkpoint_without_decisions": "after the last fault|, and is \\w+ now|and then",
        "checkpoint_without_participants": "never heard|have not heard",
        "nothing_is_carried_on": "never heard",
        "timeouts_end_with_the_life": "left to its timeout",
        # the log decides a transaction twice: it cannot be replayed
        "the_last_word_counts": "was (ABORT|COMMIT), and is (ABORT|COMMIT) now|and then|after the last fault",
        "a_failure_counts_as_an_answer": "never heard|have not heard",
        "the_watermark_is_the_highest_ended": "have not heard|after its end",
        "what_has_ended_takes_more": "after its end|never heard|have not heard",
        "a_former_life_is_not_fenced": "given twice|was given after|, and is \\w+ now|and then|is not known|never heard|have not heard",
        "collector_forgets_coordinators": "after the last fault",
    },
    "planted_transactions": {
        # a topic that waits for what is missing, or cannot be recovered, does not come back
        "checkpoint_without_the_buffer": "lost commit|torn|split|aborted read|did not end within|after the last fault|did not hold within",
        "checkpoint_without_held_acknowledgements": "double processing|split|torn|lost commit|acknowledgement undone",
        "commits_are_not_replayed": "lost commit|torn|split|did not end within|after the last fault|did not hold within",
        "held_acknowledgements_are_not_replayed": "double processing|split|torn|lost commit|acknowledgement undone",
        "conflicts_are_not_looked_for": "double processing|pending-ack leak|split|torn|did not hold within",
        "acknowledgement_confirmed_before_the_flush": "acknowledgement undone|split|torn|lost commit|double processing",
        "a_repetition_is_taken_again": "duplicate",
        "an_abort_keeps_what_it_held": "pending-ack leak",
        "an_abort_commits": "aborted read",
        "runs_are_linked_backwards": "internal nonmonotonic send|inconsistent offsets|nonmonotonic poll",
    },
}
BUGS = [(suite, bug) for suite, bugs in NOTICED_BY.items() for bug in bugs]


@cache
def hunts() -> dict[tuple[str, str], Future[Verdict | None]]:
    """All hunts, begun together so that they use every core."""
    return {(suite, bug): hunt(f"{suite}:run:{bug}", SEEDS) for suite, bug in BUGS}


def found(suite: str, bug: str) -> Verdict:
    verdict = hunts()[suite, bug].result()
    assert verdict is not None, f"{bug} was not noticed in {len(SEEDS)} seeds"
    return verdict


def test_every_planted_bug_can_be_planted() -> None:
    """The parts that they patch are there: a bug that cannot be planted would be found by its failure to be."""
    for module in (planted, planted_splits, planted_durable, planted_lifecycle, planted_coordinators, planted_transactions):
        for bug in module.BUGS:
            with planting(module.BUGS, bug):
                pass


def test_every_planted_bug_is_hunted() -> None:
    assert {*NOTICED_BY["planted"]} == {*planted.BUGS}
    assert {*NOTICED_BY["planted_splits"]} == {*planted_splits.BUGS}
    assert {*NOTICED_BY["planted_durable"]} == {*planted_durable.BUGS}
    assert {*NOTICED_BY["planted_lifecycle"]} == {*planted_lifecycle.BUGS}
    assert {*NOTICED_BY["planted_coordinators"]} == {*planted_coordinators.BUGS}
    assert {*NOTICED_BY["planted_transactions"]} == {*planted_transactions.BUGS}


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "bug"), BUGS)
def test_a_planted_bug_is_found(suite: str, bug: str) -> None:
    """Within 200 seeds; the verdict names the seed and the broken promise."""
    verdict = found(suite, bug)
    assert re.search(NOTICED_BY[suite][bug], verdict.error), verdict.error
    assert f"seed {verdict.seed}, virtual time" in verdict.error


@pytest.mark.slow
@pytest.mark.parametrize("suite", NOTICED_BY)
def test_the_unpatched_broker_passes_the_same_seeds(suite: str) -> None:
    """The control: it is the bugs that were found."""
    last = max(found(suite, bug).seed for bug in NOTICED_BY[suite])
    failures = [verdict for verdict in run_seeds(f"{suite}:run:{CONTROL}", range(last + 1)) if verdict.error]
    assert not failures, f"seeds {[verdict.seed for verdict in failures]} failed without a bug:\n{failures[0].error}"
