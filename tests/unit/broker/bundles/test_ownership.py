"""Bundles that change hands between brokers of one process: moves meet checkpoints, store
outages and one another."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.broker.bundles.recovery.bundle_recovery import BundleReplay, Preloaded
from magnetar.broker.incarnation import Broker
from magnetar.broker.reading.catalog import BundleCatalog
from magnetar.errors import DestinationRefused, NotOwner, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    CordonRecord,
    IncarnationRecord,
    LogPosition,
    LogRange,
    NamespaceRecord,
)
from magnetar.metadata.store import Compare
from magnetar.names import BundleName, NamespaceName, TopicName
from magnetar.storage.log.writer import LogWriter
from magnetar.storage.manifest import load_manifest
from magnetar.wire import requests
from tests.support.broker_pair import LOADED, count_stored, pair
from tests.support.brokers import (
    CLOCK,
    LIVELY,
    STILL,
    TOPIC,
    Peer,
    Type,
    entry,
    open_peer,
    running_broker,
)
from tests.support.faulty_store import FaultPlan
from tests.support.polling import until

MESSAGE = bytes(64 << 10)


async def publish(peer: Peer, first: int, count: int) -> None:
    """Send messages of 64 KiB and wait for their receipts."""
    for number in range(first, first + count):
        peer.write(requests.send(1, number, entry(MESSAGE, number)))
    for number in range(first, first + count):
        assert (await peer.answer(Type.SEND_RECEIPT)).send_receipt.sequence_id == number


async def test_properties_of_a_topic_survive_moves(tmp_path: Path) -> None:
    """What was set is there at every later owner, what was removed is not, whether it comes from
    the log or from a checkpoint."""

    async with pair(tmp_path, **LOADED) as cluster:
        name, topic = str(await cluster.bundle()), TopicName.parse(TOPIC)
        for number in range(4):
            owner = await cluster.owner()
            host = await owner.service.open_topic(topic, create=number == 0)
            await host.update_properties(
                {"kept": f"value {number}", "gone": "" if number % 2 else "here"}
            )
            if number == 2:
                async with open_peer(owner) as peer:
                    await peer.produce()
                    await publish(peer, 0, 40)  # enough for the move to write a checkpoint
            await owner.ownership.move(name, "", "test")
            found = (
                await (await cluster.owner()).service.open_topic(topic, create=False)
            ).core.properties
            assert found == {
                "kept": f"value {number}",
                **({} if number % 2 else {"gone": "here"}),
            }


async def test_a_move_that_meets_a_checkpoint_is_done_all_the_same(tmp_path: Path) -> None:
    """The checkpoint changes the record between the look and the request: the request is
    repeated, not refused."""

    async with pair(tmp_path) as cluster:
        name = str(await cluster.bundle())
        stale = cluster.first.views.bundles.items[name]
        cluster.network.plan = FaultPlan(delay=1.0, delay_s_max=0.001)
        await cluster.store.put(
            keys.bundle(await cluster.bundle()),
            replace(stale.record, reason="changed").encode(),
        )
        await cluster.first.ownership.move(name, "", "test")
        assert (await cluster.owner()) is cluster.second
        assert not cluster.first.ownership.owned


@pytest.mark.slow
async def test_moves_back_and_forth_keep_everything(tmp_path: Path) -> None:
    """With more to scan than a move leaves behind, every move writes a checkpoint, also where a
    term began inside a small file."""

    async with pair(tmp_path, **LOADED) as cluster:
        name, sent = str(await cluster.bundle()), 0
        for number in range(6):
            owner = await cluster.owner()
            async with open_peer(owner) as peer:
                await peer.produce()
                await publish(peer, sent, 40 if number % 3 == 0 else 2)
                sent += 40 if number % 3 == 0 else 2
                await owner.ownership.move(name, "", "test")
                assert owner.ready, "a move never ends a broker"
                assert (await peer.answer()).type == Type.CLOSE_PRODUCER
        assert await count_stored(await cluster.owner()) == sent
        record = await cluster.record()
        assert record.checkpoint is not None
        assert len(record.chain) <= 4, "checkpoints keep the chain short"


@pytest.mark.slow
async def test_an_outage_of_the_store_does_not_end_a_broker_whose_files_roll(
    tmp_path: Path,
) -> None:
    """Checkpoints wait for the store, publishing does not; afterwards they are made up for, and
    a move works."""

    name = BundleName.parse("public/default/0x80000000_0xc0000000")
    assert name.contains(TopicName.parse(TOPIC))
    async with pair(tmp_path, **LOADED) as cluster:
        async with open_peer(cluster.first) as peer:
            await peer.produce()
            cluster.network.plan = FaultPlan(unreachable=True)
            await publish(peer, 0, 60)
            assert cluster.first.ready
            assert (await cluster.record()).checkpoint is None
            cluster.network.plan = FaultPlan()
            await publish(peer, 60, 40)
            await until(
                lambda: cluster.first.views.bundles.items[str(name)].record.checkpoint is not None
            )
        await cluster.first.ownership.move(str(name), "", "test")
        assert await count_stored(await cluster.owner()) == 100


async def test_a_broker_that_stops_without_its_store_leaves_its_bundles_to_a_takeover(
    tmp_path: Path,
) -> None:
    """It does not use up its drain time-out when nobody can take what it transfers; nothing
    acknowledged is lost by that."""

    async with pair(tmp_path, drain_timeout_s=600.0, drain_store_patience_s=0.5) as cluster:
        async with open_peer(cluster.first) as peer:
            await peer.produce()
            await publish(peer, 0, 3)
        registered = await cluster.store.get(keys.incarnation(cluster.first.incarnation))
        assert registered is not None
        cluster.network.plan = FaultPlan(unreachable=True)
        async with asyncio.timeout(120):
            await cluster.first.stop()
        await cluster.store.revoke_lease(registered.lease)  # the time of its lease is over
        await until(lambda: bool(cluster.second.ownership.owned))
        assert await count_stored(cluster.second) == 3


@pytest.mark.slow
async def test_a_store_that_fails_during_recovery_delays_it(tmp_path: Path) -> None:
    """The new owner loads a manifest from the store: without it the bundle stays Assigning, and is
    taken when the store is back."""

    async with pair(tmp_path) as cluster:
        name = str(await cluster.bundle())
        await cluster.first.ownership.move(name, "", "test")
        real = cluster.network.get

        async def refuse(key: str) -> Any:
            if key.startswith(keys.MANIFESTS):
                raise StoreUnavailable("injected: no manifest now")
            return await real(key)

        cluster.network.get = refuse  # type: ignore[method-assign]
        owner = await cluster.owner()
        moving = asyncio.create_task(owner.ownership.move(name, cluster.first.incarnation, "test"))
        await until(
            lambda: cluster.first.views.bundles.items[name].record.state is BundleState.ASSIGNING
        )
        await asyncio.sleep(0.05)
        assert cluster.first.ready
        cluster.network.get = real  # type: ignore[method-assign]
        await moving
        await until(lambda: name in cluster.first.ownership.owned)


@pytest.mark.slow
async def test_a_roll_on_request_covers_everything_acknowledged(tmp_path: Path) -> None:
    """However little is in the current file: a job that starts afterwards finds it in files that
    the manifest lists."""

    async with running_broker(tmp_path) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        for number in range(3):
            last = await peer.send(b"small", number)
        assert await broker.service.roll(TopicName.parse(TOPIC)) == last
        bundle = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
        manifest, _, _ = await load_manifest(broker.context.store, broker.context.volume, bundle)
        assert [(file.incarnation, file.file) for file in manifest.level0] == [
            (broker.incarnation, 0)
        ]
        await peer.send(b"after", 3)
        await broker.service.roll(TopicName.parse(TOPIC))
        await broker.service.roll(TopicName.parse(TOPIC))
        manifest, _, _ = await load_manifest(broker.context.store, broker.context.volume, bundle)
        assert [file.file for file in manifest.level0] == [0, 1], (
            "an empty file is not rolled again"
        )


@pytest.mark.slow
async def test_an_incarnation_that_ends_writes_nothing_more(tmp_path: Path) -> None:
    """Acknowledgements that wait to be written die with it: no timer writes into a closed log."""

    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: problems.append(context)
    )
    async with (
        running_broker(tmp_path, ack_write_delay_s=0.05) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await peer.produce()
        ledger, number = await peer.send(b"x")
        await peer.subscribe()
        peer.write(requests.flow(1, 1))
        message, _ = await peer.message()
        assert (message.message_id.ledgerId, message.message_id.entryId) == (ledger, number)
        peer.write(requests.ack(1, [message.message_id]))
        assert await peer.is_quiet()
        broker.fail("test")
        await broker.close()
    await asyncio.sleep(0.1)
    assert problems == []


def ahead(broker: Broker) -> float:
    """Bundles this broker acquired after having read them ahead."""
    return (
        broker.metrics.registry.get_sample_value(
            "magnetar_bundle_acquisitions_total", {"kind": "preloaded"}
        )
        or 0.0
    )


async def test_a_move_finds_everything_read_ahead(tmp_path: Path) -> None:
    """While the source still takes messages its successor reads the log; after RELEASE it reads
    the rest, and nothing is missing or double."""

    async with pair(tmp_path) as cluster:
        name, sent = str(await cluster.bundle()), 0
        before = [ahead(broker) for broker in (cluster.first, cluster.second)]
        for _ in range(6):
            owner = await cluster.owner()
            async with open_peer(owner) as peer:
                await peer.produce()
                await publish(peer, sent, 5)
                host = owner.ownership.owned[name].topics[TOPIC]
                moving = asyncio.create_task(owner.ownership.move(name, "", "test"))
                taken = 5
                while not host.frozen:
                    peer.write(requests.send(1, sent + taken, entry(MESSAGE, sent + taken)))
                    taken += 1
                    await asyncio.sleep(0.003)
                await moving
                stored = await count_stored(await cluster.owner())
                assert sent + 5 <= stored <= sent + taken
                sent = stored
            successor = await cluster.owner()
            assert successor is cluster.other(owner)
        assert [ahead(broker) for broker in (cluster.first, cluster.second)] == [
            before[0] + 3,
            before[1] + 3,
        ], "all were read ahead"


def test_what_was_read_ahead_is_used_only_where_it_fits() -> None:
    """A term that ended otherwise, another source, a checkpoint beyond what was read: then
    recovery reads everything itself."""
    start, reached, end = LogPosition(3, 4096), LogPosition(3, 9000), LogPosition(3, 12000)
    releasing = BundleRecord(
        BundleState.RELEASING,
        7,
        "a.1",
        destination="b.1",
        chain=(LogRange("a.1", start, None),),
        epochs=(7,),
        reason="test",
    )
    preloaded = Preloaded(
        releasing, cast(BundleReplay, None), cast(BundleCatalog, None), reached, over=False
    )
    assigned = replace(
        releasing,
        state=BundleState.ASSIGNING,
        incarnation="b.1",
        chain=(LogRange("a.1", start, end),),
    )
    assert preloaded.fits(assigned)
    assert preloaded.fits(replace(assigned, chain=(LogRange("a.1", reached, end),)))
    for other in (
        replace(assigned, chain=releasing.chain),
        replace(assigned, epochs=(8,)),
        replace(assigned, chain=(LogRange("c.1", start, end),)),
        replace(assigned, chain=(LogRange("a.1", LogPosition(3, 9001), end),)),
        replace(assigned, chain=(), epochs=()),
    ):
        assert not preloaded.fits(other), other


async def test_bundles_of_a_broker_that_is_gone_are_spread_over_the_others_at_once(
    tmp_path: Path,
) -> None:
    """The end of its registration wakes the leader, who assigns all of them in one go, half to
    each; its log is fenced and read for all together."""

    async with pair(tmp_path) as cluster:
        ghost = "ghost.0123456789abcdef"
        writer = LogWriter(
            cluster.first.context.volume, CLOCK, ghost, on_fenced=lambda _error: None
        )
        await writer.open()
        registered = IncarnationRecord("ghost", "pulsar://127.0.0.1:1", "", 0, "test")
        await cluster.store.put(keys.incarnation(ghost), registered.encode())
        orphans = [f"public/many/0x{number:08x}_0x{number + 1:08x}" for number in range(100)]
        namespace = NamespaceRecord(tuple(range(101)), {})
        await cluster.store.put(keys.namespace(NamespaceName("public", "many")), namespace.encode())
        for number, name in enumerate(orphans, 1000):
            span = LogRange(ghost, LogPosition(0, 4096), None)
            record = BundleRecord(
                BundleState.OWNED, 2, ghost, chain=(span,), epochs=(2,), reason=f"test {number}"
            )
            await cluster.store.put(keys.bundle(BundleName.parse(name)), record.encode())
        brokers = (cluster.first, cluster.second)
        await until(lambda: all(len(broker.views.bundles.items) >= 100 for broker in brokers))
        await cluster.store.delete(keys.incarnation(ghost))
        await until(
            lambda: (
                sum(name in broker.ownership.owned for broker in brokers for name in orphans) == 100
            )
        )
        shares = [sum(name in broker.ownership.owned for name in orphans) for broker in brokers]
        assert max(shares) - min(shares) <= 4, shares
        assert not await cluster.first.context.volume.exists(f"claims/{ghost}")
        await writer.close()


@pytest.mark.parametrize("spread", [0, 1])
async def test_bundles_are_evened_out_only_if_that_is_wanted(tmp_path: Path, spread: int) -> None:
    """All are at one broker: half of them go to the other one, or all stay, however often the
    leader looks."""

    async def scenario() -> None:
        async with pair(tmp_path, balance=LIVELY if spread else STILL) as cluster:
            brokers, first, namespace = (
                (cluster.first, cluster.second),
                cluster.first,
                NamespaceName("public", "many"),
            )
            await cluster.store.put(
                keys.namespace(namespace), NamespaceRecord((0, 1, 2, 3, 0xFFFFFFFF), {}).encode()
            )
            bundles = [
                BundleName(namespace, low, high)
                for low, high in ((0, 1), (1, 2), (2, 3), (3, 0xFFFFFFFF))
            ]
            for bundle in bundles:
                record = BundleRecord(BundleState.ASSIGNING, 2, first.incarnation, reason="test")
                await cluster.store.put(keys.bundle(bundle), record.encode())

            def count(broker: Broker) -> int:
                return sum(str(bundle) in broker.ownership.owned for bundle in bundles)

            if spread:
                # TOPIC's is one of them
                await until(
                    lambda: sorted(len(broker.ownership.owned) for broker in brokers) == [2, 3]
                )
                return
            await until(lambda: count(first) == 4)
            await until(lambda: any(broker.leader.leading for broker in brokers))
            leader = next(broker for broker in brokers if broker.leader.leading)
            owned = lambda: [  # noqa: E731
                leader.views.bundles.items[str(bundle)].record.state for bundle in bundles
            ]
            await until(lambda: owned() == [BundleState.OWNED] * 4)
            for _ in range(3):
                await leader.leader.patrol(Compare(keys.RESTORE, "version", ">", 0))
            assert owned() == [BundleState.OWNED] * 4
            assert count(first) == 4

    await scenario()


async def test_bundles_of_a_deleted_namespace_go(tmp_path: Path) -> None:
    """They are released and their records deleted; bundles of others, and of a namespace that is
    only not in sight yet, stay."""

    async with pair(tmp_path, replaced_kept_s=0.0) as cluster:
        await cluster.owner()
        gone = NamespaceName("public", "gone")
        await cluster.store.put(keys.namespace(gone), NamespaceRecord((0, 0xFFFFFFFF), {}).encode())
        topic = TopicName.parse(f"persistent://{gone}/t")
        bundle = await cluster.first.ownership.bundle_of(topic)
        await cluster.first.ownership.resolve(bundle)
        await cluster.store.delete(keys.namespace(gone))
        brokers = (cluster.first, cluster.second)
        await until(
            lambda: all(broker.views.bundles.get(str(bundle)) is None for broker in brokers)
        )
        assert all(str(bundle) not in broker.ownership.owned for broker in brokers)
        assert (await cluster.record()).state is BundleState.OWNED


async def test_bundles_of_a_namespace_whose_record_was_lost_keep_their_messages(
    tmp_path: Path,
) -> None:
    """Its topics are still entered, so nobody has deleted it: its bundles wait, and serve again
    when the record is back."""

    async with pair(tmp_path) as cluster:
        topic = TopicName.parse(TOPIC)
        item = await cluster.store.get(keys.namespace(topic.namespace_name))
        assert item is not None
        bundle = await cluster.bundle()
        async with open_peer(await cluster.owner()) as peer:
            await peer.produce()
            assert await peer.send(b"kept") > (0, 0)
        await cluster.store.delete(keys.namespace(topic.namespace_name))
        brokers = (cluster.first, cluster.second)

        def is_free() -> bool:
            seen = [broker.views.bundles.get(str(bundle)) for broker in brokers]
            return all(
                viewed is not None and viewed.record.state is BundleState.FREE for viewed in seen
            )

        await until(is_free)
        leader = next(broker for broker in brokers if broker.leader.leading)
        for _ in range(3):
            await leader.leader.patrol(Compare(keys.RESTORE, "version", ">", 0))
        assert is_free()
        await cluster.store.put(keys.namespace(topic.namespace_name), item.value)
        owner = await cluster.owner()
        host = await owner.service.open_topic(topic, create=False)
        assert host.core.last_confirmed > (0, 0)


async def test_who_is_sent_here_before_we_know_of_it_waits(tmp_path: Path) -> None:
    """The destination's watch is late: a producer that its former owner has sent makes it read
    the record, and is not refused."""

    async with pair(tmp_path) as cluster:
        name = str(await cluster.bundle())
        await cluster.second.views.bundles.stop()
        await cluster.first.ownership.move(name, cluster.second.incarnation, "test")
        assert (
            cluster.second.views.bundles.items[name].record.incarnation == cluster.first.incarnation
        ), "an old view"
        async with open_peer(cluster.second) as peer:
            await peer.produce()
            assert await peer.send(b"here") > (0, 0)
        with pytest.raises(NotOwner):
            await cluster.first.ownership.serving(await cluster.bundle())


async def test_a_move_to_a_broker_that_takes_no_bundles_is_refused(tmp_path: Path) -> None:
    """Cordoned: the bundle stays, and serves, until the cordon is lifted."""

    async with pair(tmp_path) as cluster:
        name, second = str(await cluster.bundle()), cluster.second
        await cluster.store.put(
            keys.cordon("second"), CordonRecord(drain=False, reason="test").encode()
        )
        await until(lambda: cluster.first.views.cordons.get("second") is not None)
        with pytest.raises(DestinationRefused, match="takes no bundles"):
            await cluster.first.ownership.move(name, second.incarnation, "test")
        assert cluster.first.ownership.owned[name].serving
        await cluster.store.delete(keys.cordon("second"))
        await until(lambda: cluster.first.views.cordons.get("second") is None)
        await cluster.first.ownership.move(name, second.incarnation, "test")
        assert await cluster.owner() is second
