"""Participants that break one promise of a transaction.

Owns: one small patch per promise of a topic's buffer, of its subscriptions' pending
acknowledgements and of their hosts, and `run(bug, seed)`, the scenario of whole transactions on
brokers patched so (`none`: unpatched, the control). Imports: that scenario, the patched parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from magnetar.broker.replay.sidecar import SidecarRuns
from magnetar.broker.replay.topic_transactions import TopicTransactions
from magnetar.broker.transactions import committing
from magnetar.broker.transactions.subscription_transactions import SubscriptionTransactions
from magnetar.transactions.participant_records import (
    Commit,
    EndAcks,
    Outcome,
    ParticipantState,
    PendingChange,
)
from magnetar.transactions.topic.conflicts import Conflicts
from magnetar.transactions.topic.open_parts import OpenParts
from magnetar.transactions.topic.pending_acks import PendingAcks
from tests.simulation.scenarios import transactions
from tests.simulation.scenarios.planted import planting

FAULTS = transactions.FAULTS.but(append_crash_probability=0.02)
Patch = pytest.MonkeyPatch


def checkpoint_without_the_buffer(patch: Patch) -> None:
    """What open transactions have published is not in the checkpoint."""
    state = TopicTransactions.to_state
    patch.setattr(
        TopicTransactions, "to_state", lambda found: ParticipantState(None, state(found).pending)
    )


def checkpoint_without_held_acknowledgements(patch: Patch) -> None:
    """What open transactions have acknowledged is not in the checkpoint."""
    state = TopicTransactions.to_state
    patch.setattr(
        TopicTransactions, "to_state", lambda found: ParticipantState(state(found).buffer, {})
    )


def commits_are_not_replayed(patch: Patch) -> None:
    """A new owner leaves a committed transaction open."""

    def forgetful(_found: TopicTransactions, _index: Any, _change: Commit) -> None:
        return

    patch.setattr(TopicTransactions, "_apply_commit", forgetful)


def held_acknowledgements_are_not_replayed(patch: Patch) -> None:
    """A new owner knows nothing of what transactions hold."""
    apply = TopicTransactions._apply_pending

    def forgetful(found: TopicTransactions, subscription: str, change: PendingChange) -> None:
        if isinstance(change, EndAcks):
            apply(found, subscription, replace(change, ranges=(), partial=()))

    patch.setattr(TopicTransactions, "_apply_pending", forgetful)


def conflicts_are_not_looked_for(patch: Patch) -> None:
    """Two transactions may acknowledge one message."""

    def generous(
        _found: Conflicts, _txn: Any, held: Any, start: int, end: int
    ) -> Iterable[tuple[int, int]]:
        return list(held.entries.missing(start, end))

    patch.setattr(Conflicts, "fresh", generous)


def acknowledgement_confirmed_before_the_flush(patch: Patch) -> None:
    """What a transaction is to hold is confirmed when its record is handed to the log."""
    write = SubscriptionTransactions._write

    def hasty(
        found: SubscriptionTransactions,
        change: PendingChange | None,
        confirmed: Callable[[], None] | None,
    ) -> None:
        if confirmed is not None:
            confirmed()
        write(found, change, None)

    patch.setattr(SubscriptionTransactions, "_write", hasty)


def a_repetition_is_taken_again(patch: Patch) -> None:
    """A SEND that comes again, for its receipt was lost, is another message."""

    def forgetful(_found: OpenParts, _txn: Any, _producer: str) -> None:
        return

    patch.setattr(OpenParts, "highest", forgetful)


def an_abort_keeps_what_it_held(patch: Patch) -> None:
    """What an aborted transaction has acknowledged does not come again."""
    end = PendingAcks._end

    def greedy(found: PendingAcks, change: EndAcks) -> bool:
        held = found._held.get(change.txn)
        if change.outcome is not Outcome.ABORTED or held is None:
            return end(found, change)
        named = found._record(change.txn, held.entries, held.batches())
        return end(
            found,
            replace(change, outcome=Outcome.COMMITTED, ranges=named.ranges, partial=named.partial),
        )

    patch.setattr(PendingAcks, "_end", greedy)


def an_abort_commits(patch: Patch) -> None:
    """The buffer takes every end for a commit."""

    def obliging(topic: Any, txn: Any, floor: int) -> None:
        committing._commit(topic, txn, floor)

    patch.setattr(committing, "_abort", obliging)


def runs_are_linked_backwards(patch: Patch) -> None:
    """Entries of a transaction become the partition's in another order than they were sent in."""
    take = SidecarRuns.take
    patch.setattr(SidecarRuns, "take", lambda found, span: take(found, span)[::-1])


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        checkpoint_without_the_buffer,
        checkpoint_without_held_acknowledgements,
        commits_are_not_replayed,
        held_acknowledgements_are_not_replayed,
        conflicts_are_not_looked_for,
        acknowledgement_confirmed_before_the_flush,
        a_repetition_is_taken_again,
        an_abort_keeps_what_it_held,
        an_abort_commits,
        runs_are_linked_backwards,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """Whole transactions on brokers with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return dict(transactions.run_counted(seed, FAULTS)[1].counts)
