"""Scripted trouble: the nastiest moments of the protocol, one by one.

Owns: the stories, each a function of a seed on real brokers where exactly one thing goes wrong at exactly the wrong moment. Imports: the tracer's
cluster and clients. Every story ends in `Story.ends_well`: service is back, and everything acknowledged is read back in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar.balance import bundles as rules
from magnetar.client import Client, MessageId
from magnetar.errors import MagnetarError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, NamespaceRecord
from magnetar.metadata.store import Compare, Delete, Operation, Put, TxnResult
from magnetar.names import BundleName, NamespaceName, TopicName
from magnetar.server import ownership as bundle_ownership
from magnetar.server.bundle import OwnedBundle
from magnetar.server.settings import BrokerSettings
from tests.simulation.kernel.faults import Faults
from tests.simulation.kernel.history import History, Position, Send
from tests.simulation.kernel.store import STORE_HOST
from tests.simulation.kernel.world import Environment
from tests.simulation.scenarios.tracer import LEASES, SLACK_S, homeless
from tests.simulation.scenarios.tracer_clients import client_of, payload_of, read_topic, until_done
from tests.simulation.scenarios.tracer_cluster import BROKERS, Cluster, small

TOPIC = "persistent://public/default/story"
NAMESPACE = keys.namespace(NamespaceName("public", "default"))
PATIENCE_S = 60.0
SENDS_AT_ONCE = 5
BIG_BYTES = 3000
FIRST_BROKERS_S = 5.0


class Story:
    """A cluster in which nothing fails by chance, a client, and one topic that was published to."""

    def __init__(self, seed: int, faults: Faults | None = None, settings: BrokerSettings | None = None) -> None:
        self.history = History()
        self.cluster = Cluster(seed, self.history, faults or Faults.none(), settings=settings)
        self.sent = 0

    def __enter__(self) -> Story:
        self.cluster.__enter__()
        self.cluster.topics.append(TOPIC)
        self.cluster.start_brokers()
        self.cluster.run(FIRST_BROKERS_S)
        self.environment: Environment = self.cluster.outsider("client")
        self.client = client_of(self.environment)
        self.publish(3)
        return self

    def __exit__(self, *error: Any) -> None:
        self.cluster.__exit__(*error)

    # --- the client's part -----------------------------------------------------------------------------------------------------

    def publish(self, count: int, padding: int = 0) -> None:
        """So many messages, each acknowledged before the next."""
        self.cluster.complete(self._publish(count, padding), PATIENCE_S)

    async def _publish(self, count: int, padding: int) -> None:
        name = f"client-{self.sent}"
        # A client that asks a stopped process hears nothing until its timeout, and then asks another one.
        producer = await until_done(
            self.environment, lambda: self.client.create_producer(TOPIC, name=name, send_timeout_s=PATIENCE_S)
        )
        for number in range(count):
            send = self.history.send(TOPIC, name, number, payload_of(name, number, padding))
            position = await producer.send(send.payload)
            send.acknowledged(Position(position.ledger, position.entry, position.batch_index))
            self.sent += 1
        await producer.close()

    # --- looking ---------------------------------------------------------------------------------------------------------------

    @property
    def bundle(self) -> str:
        """Full name of the topic's bundle."""
        records = self.cluster.bundle_records()
        return next(name for name in records if BundleName.parse(name).contains(TopicName.parse(TOPIC)))

    @property
    def record(self) -> BundleRecord:
        return self.cluster.bundle_records()[self.bundle]

    @property
    def owner(self) -> str:
        """Name of the broker in the bundle's record."""
        return self.record.incarnation.rpartition(".")[0]

    def others(self, *but: str) -> list[str]:
        """Brokers other than these."""
        return [name for name in BROKERS if name not in but]

    def incarnation(self, broker: str) -> str:
        return self.cluster.brokers[broker].incarnation

    def counted(self, event: str) -> int:
        return self.cluster.evidence.counts[event]

    # --- acting ----------------------------------------------------------------------------------------------------------------

    def write(self, record: BundleRecord) -> None:
        """Put the bundle's record straight into the store."""
        change = Put(keys.bundle(BundleName.parse(self.bundle)), record.encode())
        self.cluster.store.execute(lambda core, _now: core.transact((), (change,)))

    def forget_registration(self, broker: str) -> None:
        """Remove the key of a broker's incarnation as if its lease had ended, though it lives."""
        key = keys.incarnation(self.incarnation(broker))
        self.cluster.store.execute(lambda core, _now: core.transact((), (Delete(key),)))

    def within(self, broker: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something as part of a broker's process."""
        return self.cluster.loop.create_task(work, context=self.cluster.current(broker).context.copy())

    def move(self, destination: str) -> asyncio.Task[None]:
        """Begin a planned move of the topic's bundle."""
        ownership = self.cluster.brokers[self.owner].ownership
        return self.within(self.owner, ownership.move(self.bundle, self.incarnation(destination), "story"))

    def lose_answer(self, broker: str, state: BundleState, then: Callable[[], None] | None = None) -> None:
        """The next change of our bundle to `state` by this broker is made, but the answer is lost, and `then` happens first."""
        store, bundle = self.cluster.environment(broker).store, self.bundle
        transact, pending = store.transact, [state]

        async def forgetful(compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
            result = await transact(compares, operations)
            for operation in operations:
                ours = isinstance(operation, Put) and operation.key == keys.bundle(BundleName.parse(bundle))
                if ours and result.succeeded and pending and self.record.state is pending[0]:
                    pending.clear()
                    if then is not None:
                        then()
                    raise StoreUnavailable("the answer was lost")
            return result

        store.transact = forgetful  # type: ignore[method-assign]

    def until(self, condition: Callable[[], bool]) -> None:
        self.cluster.run_until(condition, PATIENCE_S)

    def ends_well(self, *, deduplicated: bool = True) -> dict[str, int]:
        """Within two leases everything is at home; the topic takes a message; everything acknowledged is there, in order."""
        deadline = self.cluster.now + LEASES * self.cluster.settings.lease_ttl_s + SLACK_S
        self.publish(1)
        while found := homeless(self.cluster):
            assert self.cluster.now < deadline, found
            self.cluster.run(0.25)
        self.history.final_log(TOPIC, self.cluster.complete(read_topic(self.client, TOPIC), PATIENCE_S))
        assert not self.cluster.evidence.unexplained(), self.cluster.evidence.endings
        self.history.check(deduplicated=deduplicated)
        return dict(self.cluster.evidence.counts)


# --- stuck ----------------------------------------------------------------------------------------------------------------------


def a_recovery_that_hangs_goes_to_another(seed: int) -> dict[str, int]:
    """The destination of a move never ends its recovery, though it lives: the leader gives the bundle to another, and can give it back later."""
    with Story(seed, settings=small(stuck_state_s=5.0)) as story, pytest.MonkeyPatch.context() as patch:
        target, epoch, hanging = story.others(story.owner)[0], story.record.epoch, [True]
        hung, recover = story.incarnation(target), vars(bundle_ownership)["recover_bundle"]

        async def hang(context: Any, *how: Any) -> Any:
            if context.incarnation == hung and hanging:
                await asyncio.get_running_loop().create_future()
            return await recover(context, *how)

        patch.setattr(bundle_ownership, "recover_bundle", hang)
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
    """A source lives and serves, but does not come to RELEASE: its incarnation is fenced and all its bundles are taken over."""
    with Story(seed, settings=small(stuck_state_s=5.0)) as story, pytest.MonkeyPatch.context() as patch:
        source, former = story.owner, story.incarnation(story.owner)
        release = OwnedBundle.append_release

        async def hang(bundle: OwnedBundle) -> Any:
            if bundle.context.incarnation == former:
                await asyncio.get_running_loop().create_future()
            return await release(bundle)

        patch.setattr(OwnedBundle, "append_release", hang)
        story.move(story.others(source)[0])
        story.until(lambda: story.record.state is BundleState.OWNED and story.record.incarnation != former)
        assert story.counted("leader.fences") == 1
        assert all(
            record.incarnation != former for record in story.cluster.bundle_records().values() if record.state is BundleState.OWNED
        )
        return story.ends_well()


# --- taking over ----------------------------------------------------------------------------------------------------------------


def a_zombie_acknowledges_nothing(seed: int) -> dict[str, int]:
    """An owner is stopped between a write and the look at its claim; it wakes up when another has taken over and gone on."""
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
        assert all(story.incarnation(former) != r.incarnation for r in story.history.receipts[receipts:])
        # The client could not know whether it was stored, so it is there once or twice, but in one place that was acknowledged.
        story.publish(1)
        story.history.final_log(TOPIC, cluster.complete(read_topic(story.client, TOPIC), PATIENCE_S))
        story.history.check(deduplicated=False)
        return dict(cluster.evidence.counts)


async def _send(producer: Any, send: Any) -> None:
    position = await producer.send(send.payload)
    send.acknowledged(Position(position.ledger, position.entry, position.batch_index))


def taken_away_and_given_back_unseen(seed: int) -> dict[str, int]:
    """While the owner cannot see the store, its bundle is given to another that dies, and then to the owner again: its epoch is over."""
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
    """The new owner does not hear that it owns; meanwhile the leader has asked it to release."""
    with Story(seed) as story:
        former = story.owner
        taker, third = story.others(former)

        def request() -> None:
            story.write(rules.release(story.record, story.incarnation(third), reason="story"))

        story.lose_answer(taker, BundleState.OWNED, request)
        story.move(taker)
        story.until(lambda: (story.owner, story.record.state) == (third, BundleState.OWNED))
        return story.ends_well()


def the_answer_to_a_release_is_lost_and_the_successor_goes_on(seed: int) -> dict[str, int]:
    """The former owner finds a record that it did not write, and must not mistake its own success for a takeover."""
    with Story(seed) as story:
        former = story.owner
        story.lose_answer(former, BundleState.ASSIGNING)
        moved = story.move(story.others(former)[0])
        story.until(moved.done)
        counts = story.ends_well()
        assert "broker.failed" not in counts, story.cluster.evidence.endings
        return counts


def a_releasing_owner_sleeps_and_is_overridden(seed: int) -> dict[str, int]:
    """It has written RELEASE, but its record still says Releasing when its lease ends; it wakes up with the change in its hands."""
    with Story(seed) as story:
        former, cluster = story.owner, story.cluster
        store = cluster.environment(former).store
        transact = store.transact

        async def sleepy(compares: Sequence[Compare], operations: Sequence[Operation]) -> TxnResult:
            if story.record.state is BundleState.RELEASING and isinstance(operations[0], Put) and story.bundle in operations[0].key:
                cluster.at(cluster.now, cluster.pause, former)
                await asyncio.sleep(0.001)
            return await transact(compares, operations)

        store.transact = sleepy  # type: ignore[method-assign]
        story.move(story.others(former)[0])
        story.until(lambda: story.owner != former and story.record.state is BundleState.OWNED)
        story.publish(2)
        cluster.resume(former)
        return story.ends_well()


# --- registrations --------------------------------------------------------------------------------------------------------------


def assigned_before_it_listens(seed: int) -> dict[str, int]:
    """A bundle is assigned to a broker that has registered and is still loading its views."""
    with Story(seed) as story:
        cluster = story.cluster
        newcomer = story.others(story.owner)[0]
        before = cluster.registered()
        cluster.restart(newcomer)
        story.until(lambda: any(name.startswith(newcomer) for name in cluster.registered() - before))
        incarnation = next(name for name in cluster.registered() - before if name.startswith(newcomer))
        cluster.crash(story.owner)
        story.write(rules.override(story.record, incarnation, owner_is_dead=True, reason="story"))
        return story.ends_well()


def lease_lost_while_starting(seed: int) -> dict[str, int]:
    """The process is stopped between registration and readiness until its lease has ended: it may not be left outside the cluster."""
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
    """A late request of its own bound the key to an earlier lease: owner or not, the broker is in the cluster again, or restarted."""
    with Story(seed) as story:
        for name in (story.owner, story.others(story.owner)[0]):
            story.forget_registration(name)
        return story.ends_well()


def an_outage_of_the_store_longer_than_a_lease(seed: int) -> dict[str, int]:
    """Owners keep serving under their claims; nobody is fenced when it ends."""
    with Story(seed) as story:
        owner = story.record.incarnation
        producer = story.cluster.complete(story.client.create_producer(TOPIC, name="steady"), PATIENCE_S)
        story.cluster.store.set_available(False)
        story.cluster.run(3 * story.cluster.settings.lease_ttl_s)
        send = story.history.send(TOPIC, "steady", 0, payload_of("steady", 0, 0))
        story.cluster.complete(_send(producer, send), 1.0)
        assert story.record.incarnation == owner
        story.cluster.store.set_available(True)
        return story.ends_well()


def everybody_is_cut_off_from_the_store_longer_than_a_lease(seed: int) -> dict[str, int]:
    """Every lease has ended when the brokers come back, one after another: nobody takes the bundles of those who are not back yet."""
    with Story(seed) as story:
        owners = {name: record.incarnation for name, record in story.cluster.bundle_records().items()}
        for name in BROKERS:
            story.cluster.fabric.partition(name, STORE_HOST)
        story.cluster.run(3 * story.cluster.settings.lease_ttl_s)
        assert not story.cluster.registered()
        for name in (*story.others(story.owner), story.owner):
            story.cluster.fabric.heal(name, STORE_HOST)
            story.cluster.run(0.2)
        happened = story.ends_well()
        now = story.cluster.bundle_records()
        assert {name: now[name].incarnation for name in owners} == owners, "a bundle was taken from an owner that lives"
        return happened


# --- chains, drains -------------------------------------------------------------------------------------------------------------


def long_chain_moved_at_once_after_a_takeover(seed: int) -> dict[str, int]:
    """The new owner's term begins inside a small file: a checkpoint at that file's start would lie before its term."""
    with Story(seed) as story:
        story.publish(8, BIG_BYTES)
        former = story.owner
        taker, third = story.others(former)
        story.move(taker)
        story.until(lambda: (story.owner, story.record.state) == (taker, BundleState.OWNED))
        story.publish(1)
        story.move(third)
        story.until(lambda: (story.owner, story.record.state) == (third, BundleState.OWNED))
        counts = story.ends_well()
        assert "broker.failed" not in counts, story.cluster.evidence.endings
        return counts


def source_dies_before_it_seals(seed: int) -> dict[str, int]:
    """It handed over its only bundle and never comes back: its last file is in the chain, and nobody has a reason to fence it."""
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
    """Everything an index says is in its log file, too: whoever misses one makes it again (before its file is rewritten and goes)."""
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
    """The cordon is seen when the broker has nothing, and then it is given something: it must not keep it."""
    with Story(seed) as story:
        cluster, former = story.cluster, story.owner
        target = story.others(former)[0]
        cluster.cordon(target, drain=True)
        cluster.run(0.1)
        # Whoever asked for the move had not seen the cordon yet.
        story.write(rules.release(story.record, story.incarnation(target), reason="story"))
        story.until(lambda: (story.owner, story.record.state) == (target, BundleState.OWNED))
        story.until(lambda: story.owner != target and story.record.state is BundleState.OWNED)
        cluster.uncordon(target)
        return story.ends_well()


# --- deduplication --------------------------------------------------------------------------------------------------------------


def once_each_through_crash_move_takeover_and_power_loss(seed: int) -> dict[str, int]:
    """A producer repeats what has no receipt to owner after owner, and only what they remember keeps it from being there twice."""
    return _through_trouble(seed, {"deduplicationEnabled": True})


def duplicates_without_deduplication(seed: int) -> dict[str, int]:
    """The control: the same trouble without the policy."""
    return _through_trouble(seed, {})


def _through_trouble(seed: int, policies: dict[str, Any]) -> dict[str, int]:
    # Long steps of the disk: whoever crashes has probably written something that nobody has heard of.
    faults = Faults.none().but(disk_step_s=(0.005, 0.03), latency_s=(0.001, 0.02))
    with Story(seed, faults) as story:
        cluster = story.cluster
        record = NamespaceRecord.decode(cluster.store.core.range(NAMESPACE, 0).items[0].value)
        change = Put(NAMESPACE, replace(record, policies={**record.policies, **policies}).encode())
        cluster.store.execute(lambda core, _now: core.transact((), (change,)))
        cluster.run(1.0)
        ended: list[bool] = []
        sending = cluster.script(_send_on(story, "steady", ended))
        for trouble in (cluster.crash, story.move, cluster.pause, story.move, cluster.crash):
            cluster.run(1.5)
            former = story.record.incarnation
            trouble(story.others(story.owner)[0] if trouble == story.move else story.owner)
            story.until(lambda gone=former: story.record.incarnation != gone and story.record.state is BundleState.OWNED)  # type: ignore[misc]
            for paused in BROKERS:
                cluster.resume(paused)
        cluster.run(1.5)
        cluster.power_loss()
        story.until(lambda: story.record.state is BundleState.OWNED)
        cluster.run(1.5)
        ended.append(True)
        story.until(sending.done)
        return story.ends_well()


async def _send_on(story: Story, name: str, ended: list[bool]) -> None:
    """Numbered messages, some at a time, now and then big ones, until `ended`; every one of them gets its receipt in the end."""
    producer = await until_done(
        story.environment, lambda: story.client.create_producer(TOPIC, name=name, send_timeout_s=None, batching=None)
    )
    pending: deque[tuple[Send, asyncio.Future[MessageId]]] = deque()
    number = 0
    while pending or not ended:
        while len(pending) < SENDS_AT_ONCE and not ended:
            payload = payload_of(name, number, BIG_BYTES if number % 10 == 0 else 0)
            pending.append((story.history.send(TOPIC, name, number, payload), producer.send_nowait(payload)))
            number += 1
        send, receipt = pending.popleft()
        position = await receipt
        known = position.entry < 0  # a duplicate's receipt names no position
        send.acknowledged(None if known else Position(position.ledger, position.entry, position.batch_index))


# --- subscriptions --------------------------------------------------------------------------------------------------------------


def seek_while_the_disk_is_slow(seed: int) -> dict[str, int]:
    """The consumer is back before the reset is durable: it must not get messages before it gets the answer, or it throws them away."""
    with Story(seed) as story:
        story.publish(10)

        async def seek_and_look() -> None:
            consumer = await story.client.subscribe(TOPIC, "seeking", initial_position="Earliest")
            seen = [await consumer.receive(timeout_s=5) for _ in range(10)]
            story.cluster.set_faults(Faults.none().but(flush_s=(1.0, 1.0)))
            await consumer.seek(seen[2].id)
            first = await consumer.receive(timeout_s=5)
            assert first.id == seen[2].id, f"after a seek to {seen[2].id} came {first.id}"
            story.cluster.set_faults(Faults.none())
            await consumer.close()

        story.cluster.complete(seek_and_look(), PATIENCE_S)
        return story.ends_well()


def created_for_one_and_lost_for_the_other(seed: int) -> dict[str, int]:
    """Two consumers create a subscription at once, and the power fails: what either of them was told must still be there."""
    with Story(seed) as story:
        cluster = story.cluster
        told: list[str] = []

        async def subscribe(environment: Environment) -> None:
            await client_of(environment).subscribe(TOPIC, "shared", type="Shared", initial_position="Latest")
            told.append(environment.name)
            await asyncio.Event().wait()

        cluster.set_faults(Faults.none().but(flush_s=(0.5, 0.5)))
        for name in ("first", "second"):
            cluster.node(name, subscribe, on_volume=False)
            cluster.run(0.1)
        story.until(lambda: bool(told))
        cluster.power_loss()
        for name in ("first", "second"):
            cluster.crash(name)
        cluster.set_faults(Faults.none())
        story.publish(1)
        cluster.complete(_receive_one(client_of(cluster.outsider("third")), "shared", "Latest"), PATIENCE_S)
        return story.ends_well()


async def _receive_one(client: Client, subscription: str, initial_position: str) -> None:
    consumer = await client.subscribe(TOPIC, subscription, type="Shared", initial_position=initial_position)
    try:
        await consumer.receive(timeout_s=5)
    except TimeoutError:
        raise AssertionError(f"subscription {subscription!r} is not what its clients were told it is") from None
    await consumer.close()


def unsubscribed_while_the_bundle_leaves(seed: int) -> dict[str, int]:
    """RELEASE is on its way to the disk: what is written behind it is void, so nobody may be told that it is done."""
    with Story(seed) as story:
        cluster = story.cluster

        async def unsubscribe() -> None:
            consumer = await story.client.subscribe(TOPIC, "gone", initial_position="Earliest")
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive(timeout_s=5))
            cluster.set_faults(Faults.none().but(flush_s=(0.5, 0.5)))
            story.move(story.others(story.owner)[0])
            await asyncio.sleep(0.1)
            try:
                await consumer.unsubscribe()
            except MagnetarError:
                return
            await _receive_one(story.client, "gone", "Earliest")

        cluster.complete(unsubscribe(), PATIENCE_S)
        cluster.set_faults(Faults.none())
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


CONTROLS: dict[str, Callable[[int], dict[str, int]]] = {duplicates_without_deduplication.__name__: duplicates_without_deduplication}
"""Stories that do not end well, as they must not."""


def tell(story: str, seed: int) -> dict[str, int]:
    """One story under one seed; raises if it ends badly."""
    return {**STORIES, **CONTROLS}[story](seed)
