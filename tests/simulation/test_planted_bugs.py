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
    planted_merges,
    planted_splits,
    planted_transactions,
    planted_watermarks,
)
from tests.simulation.scenarios.planted import CONTROL, planting
from tests.simulation.scenarios.seeds import Verdict, hunt, run_seeds

SEEDS = range(600)
"""A hunt ends with its first find; the rarest bugs show in one seed of a hundred."""
ORDER = "order of the group is broken"
# What the check of the broken promise says. That a run took too long says nothing of it, and does
# not count.
NOTICED_BY = {
    "planted": {
        "no_look_at_the_claim": "invariant [12]",
        # what was read too short may as well hold a confirmed acknowledgement
        "length_before_fence": "invariant [123]",
        "last_range_ignored": "invariant [12]|after a seek|never got",
        "receipt_before_flush": "invariant [12]",
        "ack_confirmed_before_flush": "invariant 3",
        # where the log refuses what has the ledger of another, nobody reads it again
        "ledger_of_the_term_before": "invariant [14]",
        "topics_of_a_bundle_share_their_ids": "invariant 4.*ledger",
        "collector_ignores_the_manifest": "invariant 1, .*manifest lists",
        "rewrite_without_compare": "invariant 1",
    },
    "planted_splits": {
        "ids_begin_again_in_the_ledger_of_the_parent": "failed: AssertionError|invariant [14]",
        "children_do_not_share_their_ledger_ids": "invariant 4.*ledger",
        "children_forget_the_chain": "invariant [12]|after a seek|never got",
        "chain_is_closed_before_the_flush": "invariant [123]|saw",
        "children_begin_without_files": "invariant 1",
        "files_of_the_parent_go_with_it": "invariant 1, .*manifest lists",
        "checkpoints_of_the_parent_go_with_it": "invariant 1, .*checkpoint",
    },
    "planted_merges": {
        # where the log refuses an id that it has had, the broker ends itself
        "merged_bundle_begins_in_the_term_of_one_parent": r": AssertionError\(\(|invariant [14]",
        "merged_bundle_begins_behind_concurrent_writes": "invariant [123]|after a seek|never got",
        "checkpoint_of_one_parent": "invariant [123]|after a seek|never got",
        "files_of_one_parent_are_not_listed": "invariant 1",
        "merged_manifest_covers_what_one_parent_has_not": "invariant 1|after a seek|never got",
        "files_of_the_parents_go_with_them": "invariant 1, .*manifest lists",
    },
    "planted_durable": {
        "log_not_replayed_for_deduplication": "the broker remembers|invariant 3",
        "checkpoint_without_sequences": "the broker remembers|invariant 3",
        "only_the_highest_of_a_run_is_judged": "invariant 3",
        "fenced_producer_is_not_closed": "after its successor",
        "keys_move_without_draining": ORDER,
        "what_is_stuck_is_forgotten": f"{ORDER}|never got",
        "stand_by_goes_on_without_rewinding": ORDER,
        # where it is trimmed as if acknowledged
        "what_a_consumer_held_is_not_given_back": "never got|invariant 1",
        "retention_ignores_subscriptions": "invariant 1|never got",
        "collector_forgets_the_chain": "invariant 1, .*in the chain",
        "collector_forgets_the_manifests": "invariant 1, .*manifest lists",
    },
    "planted_lifecycle": {
        "an_end_is_only_remembered": "takes producers|was terminated at|was said to end|after its "
        "end",
        "a_topic_goes_on_behind_its_end": "was terminated at|after its end|was said to end",
        "the_end_is_not_reported": "were not notified",
        "the_young_expire": "though it has not expired",
        "nothing_expires": "is still delivered",
        "held_permanently": "a producer is still held",
        "ages_go_by_the_wall_clock": "was expired at the age of|though it has not expired|is still "
        "delivered",
        "ages_are_taken_as_they_are": "was expired at the age of|though it has not expired|is "
        "still delivered",
        "unused_by_the_wall_clock": "after it was in use|has not been used for long",
        "only_looks_see_use": "after it was in use",
        "chunks_go_to_any_consumer": "never got",
    },
    "planted_coordinators": {
        "answered_before_the_flush": "given twice|is not known|have not learned|never learned|"
        "it is no part|nobody was given|, and is \\w+ now",
        "log_is_not_replayed": "given twice|is not known",
        "checkpoint_without_outcomes": "is not known",
        "checkpoint_without_the_next_id": "given twice",
        # the log decides what is open, or ends what nobody has decided: it cannot be replayed
        "checkpoint_without_decisions": "after the last fault|, and is \\w+ now|and then",
        "checkpoint_without_participants": "never learned|have not learned",
        "nothing_is_carried_on": "never learned",
        "timeouts_end_with_the_life": "left to its timeout",
        "lives_begin_at_the_walls_time": "which nobody has asked for|is not known|, and is \\w+ now",
        # the log decides a transaction twice: it cannot be replayed
        "the_last_word_counts": "was (ABORT|COMMIT), and is (ABORT|COMMIT) now|and then|after the "
        "last fault",
        "a_failure_counts_as_an_answer": "never learned|have not learned",
        "the_watermark_is_the_highest_ended": "have not learned|after its end",
        "what_has_ended_takes_more": "after its end|never learned|have not learned",
        "the_previous_incarnation_is_not_fenced": "given twice|was given after|, and is \\w+ now|"
        "and then|is not known|never learned|have not learned",
        "collector_forgets_coordinators": "after the last fault",
    },
    "planted_transactions": {
        "checkpoint_without_the_buffer": "lost commit|torn|split|aborted read",
        "checkpoint_without_held_acknowledgements": "double processing|split|torn|lost "
        "commit|acknowledgement undone",
        "commits_are_not_replayed": "lost commit|torn|split",
        "held_acknowledgements_are_not_replayed": "double processing|split|torn|lost "
        "commit|acknowledgement undone",
        "conflicts_are_not_looked_for": "double processing|pending-ack leak|split|torn",
        "acknowledgement_confirmed_before_the_flush": "acknowledgement undone|split|torn|lost "
        "commit|double processing",
        "a_repetition_is_taken_again": "duplicate",
        "an_abort_keeps_what_it_held": "pending-ack leak",
        "an_abort_commits": "aborted read",
        "runs_are_linked_backwards": "internal nonmonotonic send|inconsistent offsets|nonmonotonic "
        "poll",
    },
    "planted_watermarks": {
        "the_cursor_counts_before_it_is_durable": "invariant 7.*behind the watermark",
        "no_hold": "invariant 7.*behind the watermark",
        "the_hold_ends_before_the_marker": "invariant 7.*behind the watermark",
        "no_snapshot_before_trimming": "invariant 7",
        "checkpoint_without_watermarks": "invariant 7",
        "assertions_are_not_replayed": "invariant 7",
        "an_assertion_overtakes_what_was_sent": "invariant 7.*behind the watermark",
        "idle_is_decided_on_read": "invariant 7.*behind the watermark",
    },
}
SEEN_AT = {
    # the seed that showed the bug last, where a hunt from 0 takes long
    "files_of_the_parents_go_with_them": 57,
    "what_is_stuck_is_forgotten": 0,
    "the_watermark_is_the_highest_ended": 84,
    "the_cursor_counts_before_it_is_durable": 78,
    "no_hold": 16,
    "the_hold_ends_before_the_marker": 254,
    "an_assertion_overtakes_what_was_sent": 329,
    "length_before_fence": 35,
    "collector_ignores_the_manifest": 9,
    "rewrite_without_compare": 0,
    "keys_move_without_draining": 20,
    "stand_by_goes_on_without_rewinding": 11,
    "files_of_the_parent_go_with_it": 15,
    "held_permanently": 15,
    "a_failure_counts_as_an_answer": 20,
    "a_repetition_is_taken_again": 1,
    "no_snapshot_before_trimming": 12,
}
FAR = 10
"""A hunt that ends beyond this seed is worth an entry above."""
BUGS = [(suite, bug) for suite, bugs in NOTICED_BY.items() for bug in bugs]


@cache
def hunts() -> dict[tuple[str, str], Future[Verdict | None]]:
    """All hunts, begun together so that they use every core."""
    return {
        (suite, bug): hunt(
            f"{suite}:run:{bug}", SEEDS, NOTICED_BY[suite][bug], seen_at=SEEN_AT.get(bug, 0)
        )
        for suite, bug in BUGS
    }


def found(suite: str, bug: str) -> Verdict:
    verdict = hunts()[suite, bug].result()
    assert verdict is not None, (
        f"{bug} was not noticed by {NOTICED_BY[suite][bug]!r} in {len(SEEDS)} seeds"
    )
    return verdict


def test_every_planted_bug_can_be_planted() -> None:
    """The parts that they patch are there: a bug that cannot be planted would be found by its
    failure to be."""
    for module in (
        planted,
        planted_splits,
        planted_merges,
        planted_durable,
        planted_lifecycle,
        planted_coordinators,
        planted_transactions,
        planted_watermarks,
    ):
        for bug in module.BUGS:
            with planting(module.BUGS, bug):
                pass


def test_every_planted_bug_is_hunted() -> None:
    assert {*NOTICED_BY["planted"]} == {*planted.BUGS}
    assert {*NOTICED_BY["planted_splits"]} == {*planted_splits.BUGS}
    assert {*NOTICED_BY["planted_merges"]} == {*planted_merges.BUGS}
    assert {*NOTICED_BY["planted_durable"]} == {*planted_durable.BUGS}
    assert {*NOTICED_BY["planted_lifecycle"]} == {*planted_lifecycle.BUGS}
    assert {*NOTICED_BY["planted_coordinators"]} == {*planted_coordinators.BUGS}
    assert {*NOTICED_BY["planted_transactions"]} == {*planted_transactions.BUGS}
    assert {*NOTICED_BY["planted_watermarks"]} == {*planted_watermarks.BUGS}


def test_a_hunt_begins_where_the_bug_was_seen_and_goes_on() -> None:
    """A seed that shows it no longer costs one run; the first one that does is found."""
    case, seeds, wanted = "toy_fence_blind:run", range(50), "beyond the seal"
    failing = [verdict.seed for verdict in run_seeds(case, seeds) if wanted in verdict.raised]
    healthy = next(seed for seed in seeds if seed > failing[0] and seed not in failing)
    for seen_at, expected in ((failing[-1], failing[-1]), (healthy, failing[0])):
        verdict = hunt(case, seeds, wanted, seen_at=seen_at).result()
        assert verdict is not None
        assert verdict.seed == expected
    assert {*SEEN_AT} <= {bug for _, bug in BUGS}
    assert all(seed in SEEDS for seed in SEEN_AT.values())


@pytest.mark.parametrize(
    "late",
    ["<coroutine object probe> did not end within 10.0", "the condition did not hold within 28.0"],
)
def test_that_a_run_took_too_long_is_no_evidence(late: str) -> None:
    """A bug counts as found only by what the check of its promise says."""
    assert [
        bug
        for suite, bug in BUGS
        if re.search(NOTICED_BY[suite][bug], f"TimeoutError: {late} virtual seconds")
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "bug"), BUGS)
def test_a_planted_bug_is_found(suite: str, bug: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Within so many seeds; the verdict names the seed and the broken promise."""
    verdict = found(suite, bug)
    noted = SEEN_AT.get(bug)
    if verdict.seed != noted and (noted is not None or verdict.seed > FAR):
        with capsys.disabled():
            print(f'\nwrite into SEEN_AT: "{bug}": {verdict.seed},')
    assert re.search(NOTICED_BY[suite][bug], verdict.raised), verdict.error
    assert f"seed {verdict.seed}, virtual time" in verdict.error


@pytest.mark.slow
@pytest.mark.parametrize("suite", NOTICED_BY)
def test_the_unpatched_broker_passes_the_same_seeds(suite: str) -> None:
    """The control: it is the bugs that were found."""
    last = max(found(suite, bug).seed for bug in NOTICED_BY[suite])
    failures = [
        verdict for verdict in run_seeds(f"{suite}:run:{CONTROL}", range(last + 1)) if verdict.error
    ]
    assert not failures, (
        f"seeds {[verdict.seed for verdict in failures]} failed without a bug:\n{failures[0].error}"
    )
