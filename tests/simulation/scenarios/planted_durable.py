"""Brokers that break one promise of the durable scenario.

Owns: one small patch per promise (deduplication, exclusive producers, order by key, stand-by,
retention, collection of files), and `run(bug, seed)`, the durable scenario on a broker patched so
(`none`: unpatched, the control). Imports: the durable scenario, the patched parts of the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from magnetar.broker.topics.producers import Publishing
from magnetar.broker.upkeep import expiry as topic_life
from magnetar.storage.gc import BundleFacts, LogFile
from magnetar.topics.deduplication import Deduplication
from magnetar.topics.dispatch.base import Consumer
from magnetar.topics.dispatch.failover import FailoverDispatcher
from magnetar.topics.dispatch.key_waiting import WaitingEntries
from magnetar.topics.dispatch.shared import SharedDispatcher
from magnetar.topics.dispatch.turns import Round, Turn
from magnetar.topics.producers import Grant
from magnetar.topics.retention import Ages
from tests.simulation.scenarios import durable
from tests.simulation.scenarios.planted import FAULTS, planting

Patch = pytest.MonkeyPatch


def log_not_replayed_for_deduplication(patch: Patch) -> None:
    """A new owner knows what the checkpoint says of producers, not what the log says."""

    def forgetful(_self: Deduplication, _name: str, _sequences: Iterable[int]) -> None:
        return

    patch.setattr(Deduplication, "apply", forgetful)


def checkpoint_without_sequences(patch: Patch) -> None:
    """What deduplication knows is not in the checkpoint."""

    def nothing(_self: Deduplication) -> tuple[tuple[str, int], ...]:
        return ()

    patch.setattr(Deduplication, "to_state", nothing)


def only_the_highest_of_a_run_is_judged(patch: Patch) -> None:
    """A run of entries passes if its last one is new."""
    push_run = Deduplication.push_run

    def lax(known: Deduplication, name: str, lowest: list[int], highest: list[int]) -> bool:
        if highest[-1] > known._pushed.get(name, -1):
            known.push(name, highest[-1])
            return True
        return push_run(known, name, lowest, highest)

    patch.setattr(Deduplication, "push_run", lax)


def fenced_producer_is_not_closed(patch: Patch) -> None:
    """A producer that is fenced by force goes on sending."""

    def silent(_self: Publishing, _grant: Grant) -> None:
        return

    patch.setattr(Publishing, "_close_replaced", silent)


def keys_move_without_draining(patch: Patch) -> None:
    """The new owner of a hash gets its entries while the old one still holds earlier ones."""

    give = Round.give

    def careless(fetched: Round, consumer: Consumer, turn: Turn, ordinal: int, slot: int) -> None:
        give(fetched, consumer, turn, ordinal, slot)
        assert fetched._slots is not None
        fetched._slots.pop(slot)

    patch.setattr(Round, "give", careless)


def what_is_stuck_is_forgotten(patch: Patch) -> None:
    """Entries of a hash that changed hands are not delivered when its former owner has let go."""

    def stuck_is_forgotten(waiting: WaitingEntries, _holder: Consumer, slot: int) -> bool:
        waiting._stuck.pop(slot, None)
        return False

    patch.setattr(WaitingEntries, "slot_freed", stuck_is_forgotten)


def stand_by_goes_on_without_rewinding(patch: Patch) -> None:
    """The next active consumer begins where its predecessor read, not where it acknowledged."""
    advance = FailoverDispatcher.advance

    def careless(dispatcher: FailoverDispatcher, now_ms: int) -> object:
        read = dispatcher._read
        changes = advance(dispatcher, now_ms)
        dispatcher._read = read
        return changes

    patch.setattr(FailoverDispatcher, "advance", careless)


def what_a_consumer_held_is_not_given_back(patch: Patch) -> None:
    """A Shared consumer that leaves takes what it held with it."""

    def greedy(dispatcher: SharedDispatcher, consumer: Consumer, start: int, end: int) -> None:
        dispatcher._settle(consumer, start, end)
        dispatcher.cursor.acknowledge(start, end)

    patch.setattr(SharedDispatcher, "_give_back", greedy)


def retention_ignores_subscriptions(patch: Patch) -> None:
    """What is old enough is dropped, acknowledged or not."""
    point = topic_life.trim_point

    def careless(ages: Ages, *, needed_from: int, end: int, **rest: int) -> int:
        del needed_from
        return point(ages, needed_from=end, end=end, **rest)

    patch.setattr(topic_life, "trim_point", careless)


def collector_forgets_the_chain(patch: Patch) -> None:
    """Log files go as soon as manifests do not need them, though a recovery still would."""

    def nothing(_self: BundleFacts, _file: LogFile) -> bool:
        return False

    patch.setattr(BundleFacts, "replays", nothing)


def collector_forgets_the_manifests(patch: Patch) -> None:
    """Log files go as soon as no recovery needs them, though a reader still would."""

    def nothing(_self: BundleFacts, _file: LogFile) -> bool:
        return False

    patch.setattr(BundleFacts, "lists", nothing)


BUGS: dict[str, Callable[[Patch], None]] = {
    bug.__name__: bug
    for bug in (
        log_not_replayed_for_deduplication,
        checkpoint_without_sequences,
        only_the_highest_of_a_run_is_judged,
        fenced_producer_is_not_closed,
        keys_move_without_draining,
        what_is_stuck_is_forgotten,
        stand_by_goes_on_without_rewinding,
        what_a_consumer_held_is_not_given_back,
        retention_ignores_subscriptions,
        collector_forgets_the_chain,
        collector_forgets_the_manifests,
    )
}


def run(bug: str, seed: int) -> dict[str, int]:
    """The durable scenario on brokers with this bug; raises if it is noticed."""
    with planting(BUGS, bug):
        return dict(durable.run_counted(seed, FAULTS)[1].counts)
