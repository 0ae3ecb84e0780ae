"""Scripted trouble: the nastiest moments of the protocol, one by one.

Owns: the stories about who owns a bundle, each a function of a seed on real brokers where exactly
one thing goes wrong at exactly the wrong moment; the list of these and of `client_stories`.
Imports: the stories' stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from magnetar.broker.bundles import acquiring
from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.metadata.records import BundleState
from magnetar.metadata.store import Compare, Operation, Put, TxnResult
from magnetar.ownership import rules as rules
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import Position
from tests.simulation.kernel.store import STORE_HOST
from tests.simulation.scenarios.client_stories import (
    created_for_one_and_lost_for_the_other,
    duplicates_without_deduplication,
    once_each_through_crash_move_takeover_and_power_loss,
    seek_while_the_disk_is_slow,
    unsubscribed_while_the_bundle_leaves,
)
from tests.simulation.scenarios.story import BIG_BYTES, PATIENCE_S, TOPIC, Story
from tests.simulation.scenarios.tracer_clients import payload_of, read_topic
from tests.simulation.scenarios.tracer_cluster import BROKERS, small

# --- stuck ----------------------------------------------------------------------------------------


def a_recovery_that_hangs_goes_to_another(seed: int) -> dict[str, int]:
    """The destination of a move never ends its recovery, though it lives: the leader gives the
    bundle to another, and can give it back later."""
    with (
        Story(seed, settings=small(stuck_state_s=5.0)) as story,
        pytest.MonkeyPatch.context() as patch,
    ):
        target, epoch, hanging = story.others(story.owner)[0], story.record.epoch, [True]
        hung, recover = story.incarnation(target), vars(acquiring)["recover_bundle"]

        async def hang(context: Any, *how: Any) -> Any:
            if context.incarnation == hung and hanging:
                await asyncio.get_running_loop().create_future()
            return await recover(context, *how)

        patch.setattr(acquiring, "recover_bundle", hang)
        story.move(target)
        story.until(lambda: story.record.state is BundleState.OWNED and story.record.epoch > epoch)
        assert story.owner != target
        assert story.counted("bundle.reassigned") == 1
        story.publish(2)
        hanging.clear()
        story.move(target)
        story.until(lambda: story.owner == target and story.record.state is BundleState.OWNED)
        return story.ends_well()


def a_release_that_never_ends_fences_its_broker(seed: int) -> dict[str, int]:
    """A source lives and serves, but does not come to RELEASE: its incarnation is fenced and all
    its bundles are taken over."""
    with (
        Story(seed, settings=small(stuck_state_s=5.0)) as story,
        pytest.MonkeyPatch.context() as patch,
    ):
        source, former = story.owner, story.incarnation(story.owner)
        release = OwnedBundle.append_release

        async def hang(bundle: OwnedBundle) -> Any:
            if bundle.context.incarnation == former:
                await asyncio.get_running_loop().create_future()
            return await release(bundle)

        patch.setattr(OwnedBundle, "append_release", hang)
        story.move(story.others(source)[0])
        story.until(
            lambda: story.record.state is BundleState.OWNED and story.record.incarnation != former
        )
        assert story.counted("leader.fences") == 1
        assert all(
            record.incarnation != former
            for record in story.cluster.bundle_records().values()
            if record.state is BundleState.OWNED
        )
        return story.ends_well()


# --- taking over ----------------------------------------------------------------------------------


def a_zombie_acknowledges_nothing(seed: int) -> dict[str, int]:
    """An owner is stopped between a write and the look at its claim; it wakes up when another
    has taken over and gone on."""
    with Story(seed, Faults.none().but(flush_s=(0.01, 0.01))) as story:
        former, cluster = story.owner, story.cluster
        producer = cluster.complete(story.client.create_producer(TOPIC, name="late"), PATIENCE_S)
        send = story.history.send(TOPIC, "late", 0, payload_of("late", 0, 0))
        pending = cluster.script(_send(producer, send))
        cluster.run(0.005)
        cluster.pause(former)
        story.until(lambda: story.owner != former and story.record.state is BundleState.OWNED)
        receipts = len(story.history.receipts)
        story.publish(3)
        cluster.resume(former)
        story.until(pending.done)
        assert story.counted("zombie resumed") == 1
        assert all(
            story.incarnation(former) != r.incarnation for r in story.history.receipts[receipts:]
        )
        # The client could not know whether it was stored, so it is there once or twice, but in one
        # place that was acknowledged.
        story.publish(1)
        story.history.final_log(
            TOPIC, cluster.complete(read_topic(story.client, TOPIC), PATIENCE_S)
        )
        story.history.check(deduplicated=False)
        return dict(cluster.evidence.counts)


async def _send(producer: Any, send: Any) -> None:
    position = await producer.send(send.payload)
    send.acknowledged(Position(position.ledger, position.entry, position.batch_index))


def taken_away_and_given_back_unseen(seed: int) -> dict[str, int]:
    """While the owner cannot see the store, its bundle is given to another that dies, and then
    to the owner again: its epoch is over."""
    with Story(seed) as story:
        record, owner = story.record, story.owner
        incarnation = record.incarnation
        other = story.incarnation(story.others(owner)[0])
        taken = rules.override(record, other, owner_is_dead=True, reason="story")
        story.cluster.store.compact()
        story.write(rules.override(taken, incarnation, owner_is_dead=True, reason="story"))
        story.until(lambda: story.record.state is BundleState.OWNED)
        assert story.record.epoch > record.epoch
        assert story.record.incarnation != incarnation, "nobody may take over from itself"
        return story.ends_well()


def the_answer_to_owned_is_lost_and_a_move_is_requested(seed: int) -> dict[str, int]:
    """The new owner does not hear that it owns; concurrently the leader has asked it to release."""
    with Story(seed) as story:
        former = story.owner
        new_owner, third = story.others(former)

        def request() -> None:
            story.write(rules.release(story.record, story.incarnation(third), reason="story"))

        story.lose_answer(new_owner, BundleState.OWNED, request)
        story.move(new_owner)
        story.until(lambda: (story.owner, story.record.state) == (third, BundleState.OWNED))
        return story.ends_well()


def the_answer_to_a_release_is_lost_and_the_successor_goes_on(seed: int) -> dict[str, int]:
    """The former owner finds a record that it did not write, and must not mistake its own
    success for a takeover."""
    with Story(seed) as story:
        former = story.owner
        story.lose_answer(former, BundleState.ASSIGNING)
        moved = story.move(story.others(former)[0])
        story.until(moved.done)
        counts = story.ends_well()
        assert "broker.failed" not in counts, story.cluster.evidence.endings
        return counts


def a_releasing_owner_sleeps_and_is_overridden(seed: int) -> dict[str, int]:
    """It has written RELEASE, but its record still says Releasing when its lease ends; it wakes
    up with the change in its hands."""
    with Story(seed) as story:
        former, cluster = story.owner, story.cluster
        store = cluster.environment(former).store
        transact = store.transact

        async def sleepy(compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
            if (
                story.record.state is BundleState.RELEASING
                and isinstance(operations[0], Put)
                and story.bundle in operations[0].key
            ):
                cluster.at(cluster.now, cluster.pause, former)
                await asyncio.sleep(0.001)
            return await transact(compares, operations)

        store.transact = sleepy  # type: ignore[method-assign]
        story.move(story.others(former)[0])
        story.until(lambda: story.owner != former and story.record.state is BundleState.OWNED)
        story.publish(2)
        cluster.resume(former)
        return story.ends_well()


# --- registrations --------------------------------------------------------------------------------


def assigned_before_it_listens(seed: int) -> dict[str, int]:
    """A bundle is assigned to a broker that has registered and is still loading its views."""
    with Story(seed) as story:
        cluster = story.cluster
        newcomer = story.others(story.owner)[0]
        before = cluster.registered()
        cluster.restart(newcomer)
        story.until(
            lambda: any(name.startswith(newcomer) for name in cluster.registered() - before)
        )
        incarnation = next(
            name for name in cluster.registered() - before if name.startswith(newcomer)
        )
        cluster.crash(story.owner)
        story.write(rules.override(story.record, incarnation, owner_is_dead=True, reason="story"))
        return story.ends_well()


def lease_lost_while_starting(seed: int) -> dict[str, int]:
    """The process is stopped between registration and readiness until its lease has ended: it
    may not be left outside the cluster."""
    with Story(seed) as story:
        cluster = story.cluster
        name = story.others(story.owner)[0]
        before = cluster.registered()
        cluster.restart(name)
        story.until(lambda: any(found.startswith(name) for found in cluster.registered() - before))
        cluster.pause(name)
        cluster.run(2 * cluster.settings.lease_ttl_s)
        cluster.resume(name)
        return story.ends_well()


def registration_vanishes_though_the_lease_lives(seed: int) -> dict[str, int]:
    """A late request of its own bound the key to an earlier lease: owner or not, the broker is
    in the cluster again, or restarted."""
    with Story(seed) as story:
        for name in (story.owner, story.others(story.owner)[0]):
            story.forget_registration(name)
        # What was on its way to an owner that is taken for dead is sent again.
        return story.ends_well(deduplicated=False)


def an_outage_of_the_store_longer_than_a_lease(seed: int) -> dict[str, int]:
    """Owners keep serving under their claims; nobody is fenced when it ends."""
    with Story(seed) as story:
        owner = story.record.incarnation
        producer = story.cluster.complete(
            story.client.create_producer(TOPIC, name="steady"), PATIENCE_S
        )
        story.cluster.store.set_available(False)
        story.cluster.run(3 * story.cluster.settings.lease_ttl_s)
        send = story.history.send(TOPIC, "steady", 0, payload_of("steady", 0, 0))
        story.cluster.complete(_send(producer, send), 1.0)
        assert story.record.incarnation == owner
        story.cluster.store.set_available(True)
        return story.ends_well()


def everybody_is_cut_off_from_the_store_longer_than_a_lease(seed: int) -> dict[str, int]:
    """Every lease has ended when the brokers come back, one after another: nobody takes the
    bundles of those who are not back yet."""
    with Story(seed) as story:
        owners = {
            name: record.incarnation for name, record in story.cluster.bundle_records().items()
        }
        for name in BROKERS:
            story.cluster.fabric.partition(name, STORE_HOST)
        story.cluster.run(3 * story.cluster.settings.lease_ttl_s)
        assert not story.cluster.registered()
        for name in (*story.others(story.owner), story.owner):
            story.cluster.fabric.heal(name, STORE_HOST)
            story.cluster.run(0.2)
        happened = story.ends_well()
        now = story.cluster.bundle_records()
        assert {name: now[name].incarnation for name in owners} == owners, (
            "a bundle was taken from an owner that lives"
        )
        return happened


# --- chains, drains -------------------------------------------------------------------------------


def long_chain_moved_at_once_after_a_takeover(seed: int) -> dict[str, int]:
    """The new owner's term begins inside a small file: a checkpoint at that file's start would
    lie before its term."""
    with Story(seed) as story:
        story.publish(8, BIG_BYTES)
        former = story.owner
        new_owner, third = story.others(former)
        story.move(new_owner)
        story.until(lambda: (story.owner, story.record.state) == (new_owner, BundleState.OWNED))
        story.publish(1)
        story.move(third)
        story.until(lambda: (story.owner, story.record.state) == (third, BundleState.OWNED))
        counts = story.ends_well()
        assert "broker.failed" not in counts, story.cluster.evidence.endings
        return counts


def source_dies_before_it_seals(seed: int) -> dict[str, int]:
    """It transferred its only bundle and never comes back: its last file is in the chain, and
    nobody has a reason to fence it."""
    with Story(seed) as story:
        cluster, former = story.cluster, story.owner
        story.publish(8, BIG_BYTES)
        cluster._places[former].restarts = False
        story.move(story.others(former)[0])
        story.until(lambda: story.owner != former and story.record.state is BundleState.OWNED)
        cluster.crash(former)
        for _ in range(4):
            story.publish(15, BIG_BYTES)
            cluster.run(5.0)
        assert len(story.record.chain) == 1, f"the chain cannot be shortened: {story.record.chain}"
        assert all(span.incarnation != former for span in story.record.chain)
        cluster._places[former].restarts = True
        cluster.restart(former)
        return story.ends_well()


def an_index_is_lost(seed: int) -> dict[str, int]:
    """Everything an index says is in its log file, too: a broker that misses one makes it
    again (before its file is rewritten and goes)."""
    with Story(seed, settings=small(rewrite_age_s=3600.0)) as story:
        cluster = story.cluster
        for _ in range(3):
            story.publish(15, BIG_BYTES)
            cluster.run(2.0)
        assert story.counted("bundle.checkpoint")
        indexes = [name for name in cluster.disk.names if name.endswith(".index")]
        for name in indexes:
            cluster.disk.unlink(name)
        cluster.restart(story.owner)
        counts = story.ends_well()
        assert set(indexes) & set(cluster.disk.names), "no index was missed"
        return counts


def cordoned_while_a_bundle_is_on_its_way(seed: int) -> dict[str, int]:
    """The cordon is seen when the broker has nothing, and then it is given something: it must
    not keep it."""
    with Story(seed) as story:
        cluster, former = story.cluster, story.owner
        target = story.others(former)[0]
        cluster.cordon(target, drain=True)
        cluster.run(0.1)
        # The broker that began the move had not seen the cordon yet.
        story.write(rules.release(story.record, story.incarnation(target), reason="story"))
        story.until(lambda: (story.owner, story.record.state) == (target, BundleState.OWNED))
        story.until(lambda: story.owner != target and story.record.state is BundleState.OWNED)
        cluster.uncordon(target)
        return story.ends_well()


STORIES: dict[str, Callable[[int], dict[str, int]]] = {
    story.__name__: story
    for story in (
        a_recovery_that_hangs_goes_to_another,
        a_release_that_never_ends_fences_its_broker,
        a_zombie_acknowledges_nothing,
        taken_away_and_given_back_unseen,
        the_answer_to_owned_is_lost_and_a_move_is_requested,
        the_answer_to_a_release_is_lost_and_the_successor_goes_on,
        a_releasing_owner_sleeps_and_is_overridden,
        assigned_before_it_listens,
        lease_lost_while_starting,
        registration_vanishes_though_the_lease_lives,
        an_outage_of_the_store_longer_than_a_lease,
        everybody_is_cut_off_from_the_store_longer_than_a_lease,
        long_chain_moved_at_once_after_a_takeover,
        source_dies_before_it_seals,
        an_index_is_lost,
        cordoned_while_a_bundle_is_on_its_way,
        seek_while_the_disk_is_slow,
        created_for_one_and_lost_for_the_other,
        unsubscribed_while_the_bundle_leaves,
        once_each_through_crash_move_takeover_and_power_loss,
    )
}


CONTROLS: dict[str, Callable[[int], dict[str, int]]] = {
    duplicates_without_deduplication.__name__: duplicates_without_deduplication
}
"""Stories that do not end well, as they must not."""


def tell(story: str, seed: int) -> dict[str, int]:
    """One story under one seed; raises if it ends badly."""
    return {**STORIES, **CONTROLS}[story](seed)
