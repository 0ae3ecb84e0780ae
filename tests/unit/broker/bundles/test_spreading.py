"""The leader balances bundles whatever else does not get on, and leaves what a person has
moved."""

from __future__ import annotations

import asyncio
from pathlib import Path

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.topics.topic_registry import PLAIN_TOPIC
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CordonRecord,
    LogPosition,
    LogRange,
    NamespaceRecord,
)
from magnetar.metadata.store import Compare
from magnetar.names import BundleName, NamespaceName, TopicName
from tests.support.broker_pair import pair
from tests.support.brokers import CLOCK, LIVELY, STILL
from tests.support.polling import until
from tests.support.rest import Process


async def test_bundles_that_stay_as_they_are_hold_no_others_up(tmp_path: Path) -> None:
    """A Free bundle whose namespace's record was lost, and one that no broker can recover: the
    others are rebalanced all the same."""

    async with pair(tmp_path, stuck_state_s=10, balance=LIVELY) as cluster:
        store, first, brokers = cluster.store, cluster.first, (cluster.first, cluster.second)
        lost, damaged = NamespaceName("public", "lost"), NamespaceName("public", "damaged")
        topic = TopicName.parse(f"persistent://{lost}/t")
        await store.put(keys.partitioned_topic(topic), PLAIN_TOPIC)
        kept, unreadable = (BundleName(name, 0, 0xFFFFFFFF) for name in (lost, damaged))
        await store.put(keys.bundle(kept), BundleRecord(BundleState.FREE, 2).encode())
        await store.put(keys.namespace(damaged), NamespaceRecord((0, 0xFFFFFFFF), {}).encode())
        missing = LogRange("nobody-1", LogPosition(1, 4096), LogPosition(1, 9000))
        record = BundleRecord(
            BundleState.ASSIGNING,
            2,
            first.incarnation,
            chain=(missing,),
            epochs=(2,),
            reason="test",
        )
        await store.put(keys.bundle(unreadable), record.encode())

        def states() -> list[BundleState]:
            found = [first.views.bundles.get(str(name)) for name in (kept, unreadable)]
            return [viewed.record.state for viewed in found if viewed is not None]

        await until(lambda: states() == [BundleState.FREE, BundleState.ASSIGNING])
        many = NamespaceName("public", "many")
        await store.put(
            keys.namespace(many), NamespaceRecord((0, 1, 2, 3, 0xFFFFFFFF), {}).encode()
        )
        for low, high in ((0, 1), (1, 2), (2, 3), (3, 0xFFFFFFFF)):
            assigned = BundleRecord(BundleState.ASSIGNING, 2, first.incarnation, reason="test")
            await store.put(keys.bundle(BundleName(many, low, high)), assigned.encode())
        # TOPIC's is one of them
        await until(lambda: sorted(len(broker.ownership.owned) for broker in brokers) == [2, 3])
        assert states() == [BundleState.FREE, BundleState.ASSIGNING]


async def test_what_a_person_has_moved_stays(tmp_path: Path) -> None:
    """All four bundles are sent to one broker by hand: no leader takes one away, nor a later
    one, until their pins are taken back."""

    async with pair(tmp_path, balance=LIVELY) as cluster:
        brokers, namespace = (cluster.first, cluster.second), NamespaceName("public", "many")
        port = BrokerAdministration(Process(tmp_path, cluster.first))
        for broker in brokers:
            await broker.leader.stop()  # the test patrols itself, as the leader of its choice
        await cluster.store.put(
            keys.namespace(namespace), NamespaceRecord((0, 1, 2, 3, 0xFFFFFFFF), {}).encode()
        )
        bundles = [
            BundleName(namespace, low, high)
            for low, high in ((0, 1), (1, 2), (2, 3), (3, 0xFFFFFFFF))
        ]
        for bundle in bundles:
            assigned = BundleRecord(
                BundleState.ASSIGNING, 2, cluster.first.incarnation, reason="test"
            )
            await cluster.store.put(keys.bundle(bundle), assigned.encode())
        await until(lambda: len(cluster.first.ownership.owned) == 5)  # TOPIC's is one of them
        for bundle in bundles:
            await port.bundles.unload_bundle(namespace, bundle.range, "second")
        await until(lambda: len(cluster.second.ownership.owned) == 4)

        async def patrol() -> None:
            await asyncio.sleep(LIVELY.plan_interval_s)
            for broker in brokers:
                views = broker.views.bundles.items
                await until(
                    lambda: all(
                        found.record.state is BundleState.OWNED
                        for found in views.values()  # noqa: B023
                    )
                )
                await broker.leader.patrol(Compare(keys.RESTORE, "version", ">", 0))

        await patrol()
        await patrol()
        assert len(cluster.second.ownership.owned) == 4
        found = await port.explanations.explain(None, bundles[0])
        assert any(
            "It is pinned to second for another 2" in sentence for sentence in found["why"]
        ), found["why"]
        for bundle in bundles:
            await cluster.second.ownership.pin(str(bundle), 0)
        await until(
            lambda: (
                not any(
                    found.record.pinned_until_ms
                    for found in cluster.first.views.bundles.items.values()
                )
            )
        )
        await patrol()
        await until(lambda: sorted(len(broker.ownership.owned) for broker in brokers) == [2, 3])


async def test_a_pin_ends_when_its_broker_is_drained(tmp_path: Path) -> None:
    """The next owner holds the bundle by no pin."""

    async with pair(tmp_path, balance=STILL) as cluster:
        bundle = await cluster.bundle()
        await cluster.first.ownership.pin(str(bundle), CLOCK.wall_ms() + 3_600_000)
        assert (await cluster.record()).pinned_until_ms
        await cluster.store.put(
            keys.cordon("first"), CordonRecord(drain=True, reason="test").encode()
        )
        await until(lambda: str(bundle) in cluster.second.ownership.owned)
        assert not (await cluster.record()).pinned_until_ms
