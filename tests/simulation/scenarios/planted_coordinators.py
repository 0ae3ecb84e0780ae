"""Coordinators that break one promise.

Owns: one small patch per promise of a coordinator's log, its core and what drives participants, and
`run(bug, seed)`, the coordinator scenario on coordinators patched so (`none`: unpatched, the
control). Imports: the coordinator scenario, the patched parts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar.coordinator import retired, transaction_log
from magnetar.coordinator.attempts import Attempts
from magnetar.coordinator.transaction_log import TransactionLog
from magnetar.coordinator.transactions import Transactions
from magnetar.errors import MagnetarError, TopicNotFound
from magnetar.metadata.records import LogRange
from magnetar.storage import gc as collection
from magnetar.storage.log.fencing import SealedFile, seal
from magnetar.storage.log.recovery import list_log_files
from magnetar.storage.transactions import coordinator_log
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.coordinator.core import CoordinatorCore
from magnetar.transactions.coordinator.events import Drive, EndRequested, JoinRequested, Write
from magnetar.transactions.coordinator.states import Status
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action, Change, CoordinatorState, Participant
from tests.simulation.scenarios import coordinators
from tests.simulation.scenarios.planted import planting

FAULTS = coordinators.FAULTS.but(append_crash_probability=0.02, lease_loss_every_s=2.0)
"""Above all, what the rules are about: processes that end in the middle of an append, or go on
beyond their lease."""
Patch = pytest.MonkeyPatch


def answered_before_the_flush(patch: Patch) -> None:
    """What depends on a change leaves before the change is durable."""
    append = TransactionLog.append

    def hasty(
        log: TransactionLog, changes: Sequence[Change], on_durable: Callable[[], object] | None
    ) -> None:
        append(log, changes, None)
        if on_durable is not None:
            on_durable()

    patch.setattr(TransactionLog, "append", hasty)


def log_is_not_replayed(patch: Patch) -> None:
    """A new incarnation knows what the checkpoint says, not what the log says."""

    async def nothing(
        _volume: Volume, _tcid: int, _chain: Sequence[LogRange]
    ) -> AsyncIterator[Change]:
        return
        yield

    patch.setattr(transaction_log, "read_changes", nothing)
    patch.setattr(retired, "read_changes", nothing)


def checkpoint_without_outcomes(patch: Patch) -> None:
    """A checkpoint holds what is live, not how the others ended."""
    _change_state(patch, lambda state: replace(state, outcomes=()))


def checkpoint_without_the_next_id(patch: Patch) -> None:
    """Ids go on behind the last live one."""
    _change_state(
        patch,
        lambda state: replace(state, next=max((live.least for live in state.live), default=-1) + 1),
    )


def checkpoint_without_decisions(patch: Patch) -> None:
    """What was decided before a checkpoint is open after it."""
    _change_state(
        patch,
        lambda state: replace(state, live=tuple(replace(live, action=None) for live in state.live)),
    )


def checkpoint_without_participants(patch: Patch) -> None:
    """Nobody has joined what was live at a checkpoint."""
    _change_state(
        patch,
        lambda state: replace(
            state, live=tuple(replace(live, participants=()) for live in state.live)
        ),
    )


def _change_state(patch: Patch, change: Callable[[CoordinatorState], CoordinatorState]) -> None:
    state = CoordinatorCore.state
    patch.setattr(CoordinatorCore, "state", lambda core: change(state(core)))


def nothing_is_carried_on(patch: Patch) -> None:
    """What an incarnation before has decided is driven by nobody."""
    recovered = CoordinatorCore.recovered

    def idle(core: CoordinatorCore, now_ms: int) -> list[Drive]:
        recovered(core, now_ms)
        return []

    patch.setattr(CoordinatorCore, "recovered", idle)


def timeouts_end_with_the_life(patch: Patch) -> None:
    """What an incarnation before has begun never times out."""
    recovered = CoordinatorCore.recovered

    def patient(core: CoordinatorCore, now_ms: int) -> list[Drive]:
        drives = recovered(core, now_ms)
        core._deadlines._heap.clear()
        return drives

    patch.setattr(CoordinatorCore, "recovered", patient)


def lives_begin_at_the_walls_time(patch: Patch) -> None:
    """A wall clock that was set wrong between two incarnations decides what is overdue."""
    begin = Transactions.begin

    def misled(found: Transactions) -> None:
        found._first_ms = found.wall_ms()
        begin(found)

    patch.setattr(Transactions, "begin", misled)


def the_last_word_counts(patch: Patch) -> None:
    """END_TXN is not compared with what was decided before."""
    ended = CoordinatorCore._ended

    def obliging(core: CoordinatorCore, event: EndRequested) -> Write:
        found = core._live.get(event.least)
        if found is not None and found.action not in (None, event.action):
            found.status = Status.OPEN
        return ended(core, event)

    patch.setattr(CoordinatorCore, "_ended", obliging)


def a_failure_counts_as_an_answer(patch: Patch) -> None:
    """A participant is asked once."""
    inform = Attempts._inform

    async def once(attempts: Attempts, txn: TxnId, action: Action, name: Participant) -> None:
        try:
            await inform(attempts, txn, action, name)
        except MagnetarError as error:
            raise TopicNotFound("as good as gone") from error

    patch.setattr(Attempts, "_inform", once)


def the_watermark_is_the_highest_ended(patch: Patch) -> None:
    """It passes what is still open."""

    def hasty(core: CoordinatorCore) -> int:
        return max((outcome.least for outcome in core._outcomes.state()), default=-1)

    patch.setattr(CoordinatorCore, "low_watermark", property(hasty))


def what_has_ended_takes_more(patch: Patch) -> None:
    """A participant may join while the end is carried out, and never learns of it."""
    joined = CoordinatorCore._joined

    def lax(core: CoordinatorCore, event: JoinRequested) -> Write:
        found = core._live.get(event.least)
        if found is None or found.action is None:
            return joined(core, event)
        status, found.status = found.status, Status.OPEN
        try:
            return joined(core, event)
        finally:
            found.status = status

    patch.setattr(CoordinatorCore, "_joined", lax)


def the_previous_incarnation_is_not_fenced(patch: Patch) -> None:
    """Who takes a number reads the log of the incarnation before, and does not end it."""

    async def length(
        volume: Volume, incarnation: str, _known: Mapping[int, int]
    ) -> list[SealedFile]:
        return [
            SealedFile(number, await seal(volume, incarnation, number))
            for number in await list_log_files(volume, incarnation)
        ]

    patch.setattr(coordinator_log, "fence", length)


def collector_forgets_coordinators(patch: Patch) -> None:
    """Log files go as soon as no bundle needs them."""
    dead = collection.dead_log_files

    def careless(*facts: Any, coordinators: Any = (), **rest: Any) -> Any:  # noqa: ARG001
        return dead(*facts, **rest)

    patch.setattr(collection, "dead_log_files", careless)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        answered_before_the_flush,
        log_is_not_replayed,
        checkpoint_without_outcomes,
        checkpoint_without_the_next_id,
        checkpoint_without_decisions,
        checkpoint_without_participants,
        nothing_is_carried_on,
        timeouts_end_with_the_life,
        lives_begin_at_the_walls_time,
        the_last_word_counts,
        a_failure_counts_as_an_answer,
        the_watermark_is_the_highest_ended,
        what_has_ended_takes_more,
        the_previous_incarnation_is_not_fenced,
        collector_forgets_coordinators,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """The coordinator scenario with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return dict(coordinators.run_counted(seed, FAULTS)[1].counts)
