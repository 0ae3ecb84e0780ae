"""The leader evens out bundles whatever else does not get on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, BundleState, LogPosition, LogRange, NamespaceRecord
from magnetar.names import BundleName, NamespaceName, TopicName
from magnetar.server.topics.topic_registry import PLAIN_TOPIC
from tests.unit.server.test_ownership import pair, until


def test_what_stays_as_it_is_for_ever_holds_nothing_up(tmp_path: Path) -> None:
    """A Free bundle whose namespace's record was lost, and one that nobody can recover: the others are evened out all the same."""

    async def scenario() -> None:
        async with pair(tmp_path, stuck_state_s=10, spread_bundles=1) as cluster:
            store, first, brokers = cluster.store, cluster.first, (cluster.first, cluster.second)
            lost, damaged = NamespaceName("public", "lost"), NamespaceName("public", "damaged")
            topic = TopicName.parse(f"persistent://{lost}/t")
            await store.put(keys.partitioned_topic(topic), PLAIN_TOPIC)
            kept, unreadable = (BundleName(name, 0, 0xFFFFFFFF) for name in (lost, damaged))
            await store.put(keys.bundle(kept), BundleRecord(BundleState.FREE, 2).encode())
            await store.put(keys.namespace(damaged), NamespaceRecord((0, 0xFFFFFFFF), {}).encode())
            missing = LogRange("nobody-1", LogPosition(1, 4096), LogPosition(1, 9000))
            record = BundleRecord(BundleState.ASSIGNING, 2, first.incarnation, chain=(missing,), epochs=(2,), reason="test")
            await store.put(keys.bundle(unreadable), record.encode())

            def states() -> list[BundleState]:
                found = [first.views.bundles.get(str(name)) for name in (kept, unreadable)]
                return [viewed.record.state for viewed in found if viewed is not None]

            await until(lambda: states() == [BundleState.FREE, BundleState.ASSIGNING])
            many = NamespaceName("public", "many")
            await store.put(keys.namespace(many), NamespaceRecord((0, 1, 2, 3, 0xFFFFFFFF), {}).encode())
            for low, high in ((0, 1), (1, 2), (2, 3), (3, 0xFFFFFFFF)):
                assigned = BundleRecord(BundleState.ASSIGNING, 2, first.incarnation, reason="test")
                await store.put(keys.bundle(BundleName(many, low, high)), assigned.encode())
            await until(lambda: sorted(len(broker.ownership.owned) for broker in brokers) == [2, 3])  # TOPIC's is one of them
            assert states() == [BundleState.FREE, BundleState.ASSIGNING]

    asyncio.run(scenario())
