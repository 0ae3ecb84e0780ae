"""Bundles that are split at brokers of one process: clients stay, nothing is lost, and an
outdated view still leads to the children."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.errors import NotAllowed, NotOwner, ServiceNotReady
from magnetar.metadata import keys
from magnetar.metadata.records import BundleState, ManifestPointer, NamespaceRecord
from magnetar.metadata.store import TxnResult
from magnetar.names import BundleName, TopicName, initial_boundaries
from magnetar.ownership.splits import range_equally_divide
from magnetar.storage.manifest import load_manifest
from magnetar.topics.ledger_ids import epoch_of
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.broker_pair import count_stored, pair
from tests.support.brokers import (
    STILL,
    TOPIC,
    Peer,
    Type,
    command_frame,
    entry,
    open_peer,
    running_broker,
)
from tests.support.faulty_store import lose_answer, writes
from tests.support.polling import until
from tests.support.rest import broker_with_rest
from tests.support.split_bundles import (
    LEFT,
    LEFT_TOPIC,
    MIDDLE,
    NAMESPACE,
    RIGHT,
    RIGHT_TOPIC,
    WHOLE,
    attached,
    boundaries,
    round_trip,
    store_of,
)


async def test_clients_notice_nothing_of_a_split(tmp_path: Path) -> None:
    """No CLOSE, no lookup: the same producers and consumers go on, with greater ids, in the
    bundles that their topics fall into now."""

    async with (
        running_broker(tmp_path) as broker,
        attached(broker, LEFT_TOPIC, RIGHT_TOPIC) as peer,
    ):
        before = [await round_trip(peer, number, 0) for number in (1, 2)]
        assert await broker.ownership.split(WHOLE, MIDDLE) == [LEFT, RIGHT]
        after = [await round_trip(peer, number, 1) for number in (1, 2)]
        assert all(new > old and new[0] > old[0] for old, new in zip(before, after, strict=True))
        assert set(broker.ownership.owned) == {str(LEFT), str(RIGHT)}
        assert [*broker.ownership.owned[str(LEFT)].topics] == [LEFT_TOPIC]
        assert [*broker.ownership.owned[str(RIGHT)].topics] == [RIGHT_TOPIC]
        assert (await boundaries(broker))[2:5] == (0x80000000, 0xA0000000, 0xC0000000)
        parent, left = await store_of(broker, WHOLE), await store_of(broker, LEFT)
        assert parent is not None
        assert left is not None
        assert (parent.state, left.state, left.epoch) == (
            BundleState.DELETED,
            BundleState.OWNED,
            epoch_of(after[0][0]),
        )
        assert await peer.is_quiet()


async def test_bundles_are_split_again_and_again(tmp_path: Path) -> None:
    """Down to where a bundle is too narrow; each time with increasing ids."""

    async with running_broker(tmp_path) as broker, attached(broker, LEFT_TOPIC) as peer:
        last, splits = await round_trip(peer, 1, 0), 0
        while True:
            bundle = await broker.ownership.bundle_of(TopicName.parse(LEFT_TOPIC))
            try:
                middle = range_equally_divide(bundle)
            except NotAllowed:
                break
            await broker.ownership.split(bundle, middle)
            splits += 1
            last, before = await round_trip(peer, 1, splits), last
            assert last > before
        assert splits >= 29
        assert len(broker.ownership.owned) == splits + 1
        record = await store_of(
            broker, await broker.ownership.bundle_of(TopicName.parse(LEFT_TOPIC))
        )
        assert record is not None
        assert len(record.epochs) == splits + 1


async def handled(peer: Peer) -> None:
    """Everything that was sent before has been handled, and nothing of it is answered yet: a
    PING is answered in its turn."""
    peer.write(command_frame("ping"))
    await peer.answer(Type.PONG)


async def test_what_is_sent_and_acknowledged_during_a_split_waits_for_its_end(
    tmp_path: Path,
) -> None:
    """The store answers late: SENDs get their receipts, in order, and acknowledgements their
    answers, once the children are there."""

    async with pair(tmp_path) as cluster, attached(cluster.first, TOPIC) as peer:
        bundle = await cluster.bundle()
        first = [await round_trip(peer, 1, sequence) for sequence in range(3)]
        inner, frozen, seen = cluster.network.transact, asyncio.Event(), asyncio.Event()

        async def late(compares: Any, operations: Any) -> TxnResult:
            if len(operations) > 3:  # the split's own
                frozen.set()
                await seen.wait()
            return await inner(compares, operations)

        cluster.network.transact = late  # type: ignore[method-assign]
        splitting = asyncio.create_task(
            cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        )
        await frozen.wait()
        for sequence in range(3, 6):
            peer.write(requests.send(1, sequence, entry(b"x", sequence)))
        acked = peer.next_request()
        peer.write(
            requests.ack(
                1,
                [api.MessageIdData(ledgerId=ledger, entryId=number) for ledger, number in first],
                request_id=acked,
            )
        )
        await handled(peer)
        seen.set()
        receipts, acknowledged = [], False
        while len(receipts) < 3 or not acknowledged:
            command = await peer.answer()
            if command.type == Type.SEND_RECEIPT:
                receipts.append(command.send_receipt.sequence_id)
            if command.type == Type.ACK_RESPONSE:
                assert not command.ack_response.message, command
                acknowledged = True
            assert command.type in (Type.SEND_RECEIPT, Type.ACK_RESPONSE, Type.MESSAGE), command
        assert receipts == [3, 4, 5]
        await splitting
        cluster.first.fail("crash")
        await cluster.first.close()
        taken = await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        assert taken.broker == "second"
        host = await cluster.second.service.open_topic(TopicName.parse(TOPIC), create=False)
        cursor = host.core.subscriptions["s"].cursor
        assert (host.core.ledgers.end, cursor.mark_delete) == (6, 3), "what was answered survives"


async def test_producers_of_more_than_is_kept_are_sent_away(tmp_path: Path) -> None:
    """In order: what fitted is stored, then CLOSE_PRODUCER names this very broker."""

    async with (
        pair(tmp_path, split_buffered_bytes_max=40 << 10) as cluster,
        attached(cluster.first, TOPIC) as peer,
    ):
        bundle, inner, frozen, seen = (
            await cluster.bundle(),
            cluster.network.transact,
            asyncio.Event(),
            asyncio.Event(),
        )

        async def late(compares: Any, operations: Any) -> TxnResult:
            if len(operations) > 3:
                frozen.set()
                await seen.wait()
            return await inner(compares, operations)

        cluster.network.transact = late  # type: ignore[method-assign]
        splitting = asyncio.create_task(
            cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        )
        await frozen.wait()
        for sequence in range(3):
            peer.write(requests.send(1, sequence, entry(bytes(16 << 10), sequence)))
            await handled(peer)  # reads of their own
        seen.set()
        await splitting
        receipts = []
        while (command := await peer.answer()).type != Type.CLOSE_PRODUCER:
            if command.type == Type.SEND_RECEIPT:
                receipts.append(command.send_receipt.sequence_id)
        assert receipts == list(range(len(receipts)))
        assert len(receipts) < 3
        assert command.close_producer.assignedBrokerServiceUrl == cluster.first.service_url


@pytest.mark.parametrize("moved_to_the_end", [True, False], ids=["moved", "crashed"])
async def test_children_are_recovered_by_others(tmp_path: Path, moved_to_the_end: bool) -> None:
    """With what was written before and after a checkpoint, before and after the split: each
    child its topics, and no others."""

    async with pair(tmp_path, balance=STILL) as cluster:
        first, second = cluster.first, cluster.second
        if str(WHOLE) not in first.ownership.owned:
            await first.ownership.resolve(WHOLE)
        await until(lambda: str(WHOLE) in first.ownership.owned)
        async with attached(first, LEFT_TOPIC, RIGHT_TOPIC) as peer:
            for number in (1, 2):
                await round_trip(peer, number, 0)
            await first.ownership.checkpointer.checkpoint(str(WHOLE))
            for number in (1, 2):
                await round_trip(peer, number, 1)
            await first.ownership.split(WHOLE, MIDDLE)
            record = await store_of(first, LEFT)
            assert record is not None
            assert record.checkpoint is not None
            for number in (1, 2):
                await round_trip(peer, number, 2)
            if moved_to_the_end:
                await first.ownership.move(str(LEFT), second.incarnation, "test")
                assert str(RIGHT) in first.ownership.owned, (
                    "a sibling's RELEASE ends nobody else's term"
                )
        if not moved_to_the_end:
            first.fail("crash")
            await first.close()
        for topic, bundle in ((LEFT_TOPIC, LEFT), (RIGHT_TOPIC, RIGHT)):
            if bundle is RIGHT and moved_to_the_end:
                await first.ownership.move(str(RIGHT), second.incarnation, "test")
            await second.ownership.owner_of(TopicName.parse(topic))
            host = await second.service.open_topic(TopicName.parse(topic), create=False)
            assert host.core.ledgers.end == 3
            assert [*second.ownership.owned[str(bundle)].topics] == [topic]


@pytest.mark.parametrize("committed", [True, False])
async def test_a_split_whose_answer_is_lost_is_found_out(tmp_path: Path, committed: bool) -> None:
    """The children serve either way, once, and the broker lives."""

    async with pair(tmp_path) as cluster, attached(cluster.first, TOPIC) as peer:
        bundle, before = await cluster.bundle(), await round_trip(peer, 1, 0)
        lost = lose_answer(cluster.network, lambda _: True, committed=committed, least=4)
        children = await cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        assert lost
        assert set(map(str, children)) <= set(cluster.first.ownership.owned)
        assert await round_trip(peer, 1, 1) > before
        assert cluster.first.ready


@pytest.mark.parametrize("committed", [True, False])
async def test_a_request_whose_answer_is_lost_is_made_once(tmp_path: Path, committed: bool) -> None:
    """The caller learns of the children, and is not asked to try again."""
    async with pair(tmp_path) as cluster, attached(cluster.first, TOPIC) as peer:
        bundle, before = await cluster.bundle(), await round_trip(peer, 1, 0)
        lost = lose_answer(cluster.network, writes(b'"Splitting"'), committed=committed)
        children = await cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        assert lost == [1]
        assert set(map(str, children)) <= set(cluster.first.ownership.owned)
        assert await round_trip(peer, 1, 1) > before
        assert cluster.first.ready


async def test_a_policy_that_is_set_during_a_split_stays(tmp_path: Path) -> None:
    """A change of the namespace in between makes the split read it again, not overwrite it
    (#17797, #16612)."""

    async with pair(tmp_path) as cluster:
        bundle, inner, edits = await cluster.bundle(), cluster.network.transact, []

        async def meddled(compares: Any, operations: Any) -> TxnResult:
            if len(operations) > 3 and len(edits) < 3:
                item = await cluster.store.get(keys.namespace(NAMESPACE))
                assert item is not None
                edits.append(len(edits))
                changed = replace(
                    NamespaceRecord.decode(item.value),
                    policies={"message_ttl_in_seconds": 1000 + edits[-1]},
                )
                await cluster.store.put(keys.namespace(NAMESPACE), changed.encode())
            return await inner(compares, operations)

        cluster.network.transact = meddled  # type: ignore[method-assign]
        await cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        item = await cluster.store.get(keys.namespace(NAMESPACE))
        assert item is not None
        assert NamespaceRecord.decode(item.value).policies == {"message_ttl_in_seconds": 1002}
        assert len(await boundaries(cluster.first)) == 6


async def test_a_namespace_that_changes_during_a_split_leaves_the_bundle_free(
    tmp_path: Path,
) -> None:
    """It was made again, with other bundles. The broker continues, and if the bundle is one again
    everything is in it."""

    async with pair(tmp_path) as cluster, attached(cluster.first, TOPIC) as peer:
        bundle, inner, before = await cluster.bundle(), cluster.network.transact, []
        await round_trip(peer, 1, 0)
        namespace = keys.namespace(NAMESPACE)

        async def meddled(compares: Any, operations: Any) -> TxnResult:
            if len(operations) > 3 and not before:
                before.append(await cluster.store.get(namespace))
                await cluster.store.put(
                    namespace, NamespaceRecord(initial_boundaries(1), {}).encode()
                )
            return await inner(compares, operations)

        cluster.network.transact = meddled  # type: ignore[method-assign]
        with pytest.raises(ServiceNotReady, match="is not a bundle of namespace"):
            await cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        assert cluster.first.ready
        assert {(await peer.answer()).type for _ in range(2)} == {
            Type.CLOSE_PRODUCER,
            Type.CLOSE_CONSUMER,
        }
        revision = await cluster.store.put(namespace, before[0].value)
        await cluster.second.views.namespaces.reach(revision)
        owner = await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        broker = cluster.second if owner.broker == "second" else cluster.first
        assert await count_stored(broker) == 1


async def test_a_broker_with_an_old_view_finds_the_children(tmp_path: Path) -> None:
    """It never makes a bundle of what has been split (#821, #13677): it reads the namespace
    again, and answers."""

    async with pair(tmp_path) as cluster:
        first, second, bundle = cluster.first, cluster.second, await cluster.bundle()
        stale = second.views.namespaces.items[str(NAMESPACE)]
        children = await first.ownership.split(bundle, range_equally_divide(bundle))
        await until(
            lambda: (
                getattr(second.views.bundles.get(str(bundle)), "record", None).state
                is BundleState.DELETED
            )
        )
        for deleted in (False, True):
            if deleted:  # the leader has removed what reminds of it
                await cluster.store.delete(keys.bundle(bundle))
                await until(lambda: second.views.bundles.get(str(bundle)) is None)
            second.views.namespaces._items[str(NAMESPACE)] = stale
            owner = await second.ownership.owner_of(TopicName.parse(TOPIC))
            assert owner.broker == "first"
            record = await store_of(first, bundle)
            assert (
                (record is None)
                if deleted
                else (record is not None and record.state is BundleState.DELETED)
            )
        assert set(map(str, children)) == set(first.ownership.owned)


async def test_a_namespace_that_is_created_again_may_have_its_old_bundles(tmp_path: Path) -> None:
    """What had been split in its earlier incarnation is a bundle again."""

    async with pair(tmp_path) as cluster:
        bundle = await cluster.bundle()
        item = await cluster.store.get(keys.namespace(NAMESPACE))
        assert item is not None
        await cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        await cluster.store.delete(keys.namespace(NAMESPACE))
        revision = await cluster.store.put(keys.namespace(NAMESPACE), item.value)
        for broker in (cluster.first, cluster.second):
            await broker.views.namespaces.reach(revision)
        assert await cluster.bundle() == bundle
        await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        record = await store_of(cluster.first, bundle)
        assert record is not None
        assert (record.state, len(record.epochs)) == (BundleState.OWNED, 1)


async def test_splits_meet_one_another_and_moves(tmp_path: Path) -> None:
    """Two bundles of a namespace at once, each at its broker; one that is being moved, or not
    here, is refused with a reason."""

    async with pair(tmp_path) as cluster:
        first, second, bundle = cluster.first, cluster.second, await cluster.bundle()
        other = BundleName(NAMESPACE, 0, 0x40000000)
        await second.ownership.resolve(other)
        owner = first if str(other) in first.ownership.owned else second
        await until(lambda: str(other) in owner.ownership.owned)
        await asyncio.gather(
            first.ownership.split(bundle, range_equally_divide(bundle)),
            owner.ownership.split(other, range_equally_divide(other)),
        )
        assert len(await boundaries(first)) == 7
        child = await cluster.bundle()
        with pytest.raises(NotOwner):
            await second.ownership.split(child, range_equally_divide(child))
        moving = asyncio.create_task(first.ownership.move(str(child), second.incarnation, "test"))
        served = first.views.bundles.items[str(child)].record
        await until(
            lambda: (
                (seen := first.views.bundles.items[str(child)].record).state
                is not BundleState.OWNED
                or seen.incarnation != served.incarnation
            )
        )
        with pytest.raises((ServiceNotReady, NotOwner)):
            await first.ownership.split(child, range_equally_divide(child))
        await moving
        await until(lambda: str(child) in second.ownership.owned)
        moves = asyncio.create_task(second.ownership.move(str(child), first.incarnation, "test"))
        splits = asyncio.create_task(second.ownership.split(child, range_equally_divide(child)))
        await asyncio.wait([moves, splits])
        assert first.ready
        assert second.ready


async def test_a_split_that_its_owner_did_not_finish_is_undone_by_the_next(tmp_path: Path) -> None:
    """RELEASE is in its log, the transaction is not in the store: the parent is recovered whole."""

    async with (
        pair(tmp_path) as cluster,
        attached(cluster.first, TOPIC) as peer,
    ):
        bundle, inner, stuck = await cluster.bundle(), cluster.network.transact, asyncio.Event()
        await round_trip(peer, 1, 0)

        async def never(compares: Any, operations: Any) -> TxnResult:
            if len(operations) > 3:
                stuck.set()
                await asyncio.sleep(3600)
            return await inner(compares, operations)

        cluster.network.transact = never  # type: ignore[method-assign]
        splitting = asyncio.create_task(
            cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        )
        await stuck.wait()
        cluster.first.fail("crash")
        await cluster.first.close()
        splitting.cancel()
        owner = await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        assert owner.broker == "second"
        record = await store_of(cluster.second, bundle)
        assert record is not None
        assert (record.state, record.boundaries) == (BundleState.OWNED, ())
        assert await count_stored(cluster.second) == 1
        assert len(await boundaries(cluster.second)) == 5


async def test_manifests_and_collection_follow_a_split(tmp_path: Path) -> None:
    """Children list what their parent did; its files go when both have passed them, its
    checkpoints and its record last."""

    quick = {
        "maintenance_s": 0.05,
        "replaced_kept_s": 0.05,
        "checkpoint_age_s": 0.05,
        "rewrite_age_s": 0.05,
    }
    async with (
        running_broker(tmp_path, **quick) as broker,
        attached(broker, LEFT_TOPIC, RIGHT_TOPIC) as peer,
    ):
        for number in (1, 2):
            await round_trip(peer, number, 0)
        await broker.service.roll(TopicName.parse(LEFT_TOPIC))
        for number in (1, 2):
            await round_trip(peer, number, 1)
        store, volume = broker.context.store, broker.context.volume
        await broker.ownership.split(WHOLE, MIDDLE)
        assert await store.get(keys.manifest(WHOLE)) is None
        for bundle in (LEFT, RIGHT):
            item = await store.get(keys.manifest(bundle))
            assert item is not None
            assert ManifestPointer.decode(item.value).object.startswith("manifests/")
            assert (await load_manifest(store, volume, bundle))[0].covered is not None
        for number in (1, 2):
            await round_trip(peer, number, 2)
        sequence = 3

        async def forgotten() -> bool:
            return await store.get(keys.bundle(WHOLE)) is None

        async with asyncio.timeout(120):
            while not await forgotten():
                for number in (1, 2):
                    await round_trip(peer, number, sequence)
                sequence += 1
                for topic in (LEFT_TOPIC, RIGHT_TOPIC):
                    await broker.service.roll(TopicName.parse(topic))
        for topic in (LEFT_TOPIC, RIGHT_TOPIC):
            async with open_peer(broker) as reader:
                assert (
                    await reader.subscribe(1, topic, subscription="again", durable=False)
                ).type == Type.SUCCESS
                reader.write(requests.flow(1, 1000))
                for _ in range(sequence):
                    await reader.message()


async def test_splits_by_rest(tmp_path: Path) -> None:
    """Pulsar's path and names; what cannot be is refused with a reason and a status, and nothing
    has changed then."""

    async with broker_with_rest(tmp_path, bundles_per_namespace_max=7) as (broker, rest, peer):
        await peer.produce()
        path = "/admin/v2/namespaces/public/default"
        await rest("PUT", f"{path}/0x00000000_0x10000000/split", status=412)
        await rest(
            "PUT",
            f"{path}/0x80000000_0xc0000000/split?splitAlgorithmName=topic_count_equally_divide",
            status=412,
        )
        await rest(
            "PUT",
            f"{path}/0x80000000_0xc0000000/split?splitAlgorithmName=specified_positions_divide",
            status=412,
        )
        await rest("PUT", f"{path}/0x80000000_0xc0000000/split", {"no": "list"}, status=400)
        specified = (
            f"{path}/0x80000000_0xc0000000/split?splitAlgorithmName=specified_positions_divide"
        )
        await rest("PUT", specified, [5], status=409)
        await rest("PUT", specified, [True], status=400)
        assert (await rest.get(f"{path}/bundles"))["numBundles"] == 4
        await rest("PUT", f"{path}/0x80000000_0xc0000000/split?unload=false")
        found = await rest.get(f"{path}/bundles")
        assert found["boundaries"] == [
            "0x00000000",
            "0x40000000",
            "0x80000000",
            "0xa0000000",
            "0xc0000000",
            "0xffffffff",
        ]
        await rest(
            "PUT",
            f"{path}/0x80000000_0xa0000000/split?splitAlgorithmName=specified_positions_divide",
            [0x90000000, 0x98000000],
        )
        assert (await rest.get(f"{path}/bundles"))["numBundles"] == 7
        await rest("PUT", f"{path}/0x00000000_0x40000000/split", status=409)
        await rest("PUT", f"{path}/0x80000000_0xc0000000/split", status=412)
        assert await peer.send(b"x", 0)
        await rest("PUT", f"{path}/policies-are-elsewhere/split", status=412)
        assert TOPIC in await rest.get(f"{path}/topics")
        assert broker.ready
