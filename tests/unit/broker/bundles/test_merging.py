"""Bundles that are merged at brokers of one process: clients stay, nothing is lost, other brokers
recover what was merged, and only neighbours that one broker serves are merged."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from magnetar.balance.settings import BALANCE
from magnetar.broker.bundles.merge_planning import MergePlanner
from magnetar.errors import NotAllowed, NotOwner, ServiceNotReady, StorageError
from magnetar.metadata import keys
from magnetar.metadata.records import BundleState
from magnetar.metadata.store import TxnResult
from magnetar.names import BundleName, TopicName, bundles_of, initial_boundaries
from magnetar.ownership.splits import range_equally_divide
from magnetar.storage.manifest import load_manifest
from magnetar.topics.ledger_ids import epoch_of
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import Type, entry, open_peer, running_broker
from tests.support.merging_pair import Transact, halves, meddling, stored
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


async def test_clients_notice_nothing_of_a_merge(tmp_path: Path) -> None:
    """No CLOSE, no lookup: the same producers and consumers go on, with greater ids, in the one
    bundle."""
    async with (
        running_broker(tmp_path) as broker,
        attached(broker, LEFT_TOPIC, RIGHT_TOPIC) as peer,
    ):
        await broker.ownership.split(WHOLE, MIDDLE)
        before = [await round_trip(peer, number, 0) for number in (1, 2)]
        assert await broker.ownership.merge(LEFT) == WHOLE
        after = [await round_trip(peer, number, 1) for number in (1, 2)]
        assert all(new > old and new[0] > old[0] for old, new in zip(before, after, strict=True))
        assert set(broker.ownership.owned) == {str(WHOLE)}
        assert {*broker.ownership.owned[str(WHOLE)].topics} == {LEFT_TOPIC, RIGHT_TOPIC}
        assert await boundaries(broker) == initial_boundaries(4)
        left, whole = await store_of(broker, LEFT), await store_of(broker, WHOLE)
        assert left is not None
        assert whole is not None
        assert (left.state, whole.state, whole.epoch) == (
            BundleState.DELETED,
            BundleState.OWNED,
            epoch_of(after[0][0]),
        )
        assert await peer.is_quiet()


async def test_a_bundle_is_split_and_merged_again_and_again(tmp_path: Path) -> None:
    """Ids increase, nothing is lost, and generations of manifests never go back."""
    async with (
        running_broker(tmp_path) as broker,
        attached(broker, LEFT_TOPIC, RIGHT_TOPIC) as peer,
    ):
        store, volume = broker.context.store, broker.context.volume
        last, generation = [(0, 0), (0, 0)], 0
        for sequence in range(8):
            if sequence % 2:
                await broker.ownership.split(WHOLE, MIDDLE)
            elif sequence:
                await broker.ownership.merge(LEFT, right=RIGHT)
                manifest, _, _ = await load_manifest(store, volume, WHOLE)
                assert manifest.generation > generation
                generation = manifest.generation
            found = [await round_trip(peer, number, sequence) for number in (1, 2)]
            assert all(new > old for old, new in zip(last, found, strict=True))
            last = found
        async with open_peer(broker) as reader:
            for number, topic in ((1, LEFT_TOPIC), (2, RIGHT_TOPIC)):
                assert (
                    await reader.subscribe(number, topic, subscription="again", durable=False)
                ).type == Type.SUCCESS
                reader.write(requests.flow(number, 1000))
                for _ in range(8):
                    await reader.message()


@pytest.mark.parametrize("older", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize("moved", [True, False], ids=["moved", "crashed"])
async def test_a_merged_bundle_is_recovered_by_others(
    tmp_path: Path, moved: bool, older: BundleName
) -> None:
    """With what was written before, during and after the merge, in terms of different age, of
    which files were sealed: messages and positions of subscriptions."""
    younger = RIGHT if older is LEFT else LEFT
    async with halves(tmp_path) as (cluster, peer):
        first, second = cluster.first, cluster.second
        for number in (1, 2):
            ledger, number_in_it = await round_trip(peer, number, 0)
            acked, place = peer.next_request(), api.MessageIdData()
            place.ledgerId, place.entryId = ledger, number_in_it
            peer.write(requests.ack(number, [place], request_id=acked))
            assert not (await peer.answer(Type.ACK_RESPONSE)).ack_response.message
        for owner, other in ((first, second), (second, first)):
            await owner.ownership.move(str(younger), other.incarnation, "test")
            await until(lambda other=other: str(younger) in other.ownership.owned)  # type: ignore[misc]
        async with open_peer(first) as again:
            for number, topic in ((1, LEFT_TOPIC), (2, RIGHT_TOPIC)):
                await again.lookup(topic)
                await again.produce(number, topic)
                await again.send(b"x", 1, number)
            await first.service.roll(TopicName.parse(LEFT_TOPIC))
            for number in (1, 2):
                await again.send(b"x", 2, number)
            await first.ownership.merge(LEFT)
            for number in (1, 2):
                await again.send(b"x", 3, number)
            record = await store_of(first, WHOLE)
            assert record is not None
            assert len(record.epochs) == 3
            if moved:
                await first.ownership.move(str(WHOLE), second.incarnation, "test")
            else:
                first.fail("crash")
                await first.close()
            for topic in (LEFT_TOPIC, RIGHT_TOPIC):
                assert (await second.ownership.owner_of(TopicName.parse(topic))).broker == "second"
                assert await stored(second, topic) == 4
                host = await second.service.open_topic(TopicName.parse(topic), create=False)
                assert host.core.subscriptions["s"].cursor.mark_delete == 1
            assert set(second.ownership.owned) >= {str(WHOLE)}


async def test_what_is_sent_during_a_merge_waits_for_its_end(tmp_path: Path) -> None:
    """The store answers late: SENDs to both bundles get their receipts, in order, once the merged
    bundle is there; what was answered survives a crash."""
    async with halves(tmp_path) as (cluster, peer):
        frozen, seen = asyncio.Event(), asyncio.Event()

        async def late(inner: Transact, compares: Any, operations: Any) -> TxnResult:
            frozen.set()
            await seen.wait()
            return await inner(compares, operations)

        meddling(cluster, late)
        merging = asyncio.create_task(cluster.first.ownership.merge(LEFT))
        await frozen.wait()
        for sequence in range(3):
            for number in (1, 2):
                peer.write(requests.send(number, sequence, entry(b"x", sequence)))
        seen.set()
        receipts: dict[int, list[int]] = {1: [], 2: []}
        while sum(map(len, receipts.values())) < 6:
            command = await peer.answer()
            assert command.type in (Type.SEND_RECEIPT, Type.MESSAGE), command
            if command.type == Type.SEND_RECEIPT:
                found = command.send_receipt
                receipts[found.producer_id].append(found.sequence_id)
        assert receipts == {1: [0, 1, 2], 2: [0, 1, 2]}
        assert await merging == WHOLE
        cluster.first.fail("crash")
        await cluster.first.close()
        for topic in (LEFT_TOPIC, RIGHT_TOPIC):
            await cluster.second.ownership.owner_of(TopicName.parse(topic))
            assert await stored(cluster.second, topic) == 3


async def test_only_neighbours_that_one_broker_serves_are_merged(tmp_path: Path) -> None:
    """The answer says where the neighbour is, and what to do."""
    async with halves(tmp_path) as (cluster, _peer):
        first, second = cluster.first, cluster.second
        await first.ownership.move(str(RIGHT), second.incarnation, "test")
        await until(lambda: str(RIGHT) in second.ownership.owned)
        with pytest.raises(NotAllowed) as refused:
            await first.ownership.merge(LEFT)
        assert "served by broker second" in str(refused.value)
        assert f"magnetar bundles unload {RIGHT} --to first" in str(refused.value)
        with pytest.raises(NotOwner):
            await first.ownership.merge(RIGHT)
        with pytest.raises(NotAllowed, match="is not the right neighbour"):
            await first.ownership.merge(LEFT, right=WHOLE)
        assert {str(LEFT)} <= set(first.ownership.owned)


async def test_what_is_asked_of_a_bundle_that_is_being_merged(tmp_path: Path) -> None:
    """A split, another merge and a pin are refused, a move waits; so does coverage for a job."""
    async with halves(tmp_path) as (cluster, _peer):
        first, second = cluster.first, cluster.second
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def held(*_how: Any) -> Any:
            begun.set()
            await go_on.wait()
            raise StorageError("injected")

        with mock.patch.object(MergePlanner, "plan", held):
            merging = asyncio.create_task(first.ownership.merge(LEFT))
            await begun.wait()
            for bundle in (LEFT, RIGHT):
                with pytest.raises(ServiceNotReady, match="split or merged"):
                    await first.ownership.split(bundle, range_equally_divide(bundle))
                with pytest.raises(ServiceNotReady, match="split or merged"):
                    await first.ownership.pin(str(bundle), 1)
                with pytest.raises(ServiceNotReady, match="is being merged"):
                    await first.ownership.checkpointer.cover(str(bundle))
            with pytest.raises(ServiceNotReady, match="split or merged"):
                await first.ownership.merge(LEFT)
            # clients are still sent here
            assert (await second.ownership.resolve(LEFT)).broker == "first"
            move = first.ownership.move(str(RIGHT), second.incarnation, "test")
            moving = asyncio.create_task(move)
            await asyncio.sleep(0.05)
            assert not moving.done()
            go_on.set()
            with pytest.raises(ServiceNotReady, match="injected"):
                await merging
        await moving
        await until(lambda: str(RIGHT) in second.ownership.owned)


async def test_merges_and_splits_meet_next_to_each_other(tmp_path: Path) -> None:
    """Two merges of four neighbours at once, then a split next to a merge: each is done; of two
    merges that share a bundle one is refused."""
    async with running_broker(tmp_path) as broker:
        ownership = broker.ownership
        await ownership.resolve(WHOLE)
        await until(lambda: str(WHOLE) in ownership.owned)
        quarters = await ownership.split(WHOLE, (0x90000000, 0xA0000000, 0xB0000000))
        assert await asyncio.gather(ownership.merge(quarters[0]), ownership.merge(quarters[2])) == [
            LEFT,
            RIGHT,
        ]
        await asyncio.gather(
            ownership.split(LEFT, (0x90000000,)), ownership.split(RIGHT, (0xB0000000,))
        )
        merged, children = await asyncio.gather(
            ownership.merge(quarters[0]), ownership.split(quarters[2], (0xA8000000,))
        )
        assert merged == LEFT
        assert len(children) == 2
        assert await boundaries(broker) == tuple(
            sorted({*initial_boundaries(4), 0xA0000000, 0xA8000000, 0xB0000000})
        )
        results = await asyncio.gather(
            ownership.merge(LEFT), ownership.merge(children[0]), return_exceptions=True
        )
        assert [isinstance(found, BundleName) for found in results].count(True) == 1
        assert [isinstance(found, ServiceNotReady) for found in results].count(True) == 1
        assert broker.ready


async def test_a_broker_with_an_old_view_finds_the_merged_bundle(tmp_path: Path) -> None:
    """It never makes a bundle of what has been merged: it reads the namespace again, and answers;
    also once nothing reminds of the parents."""
    async with halves(tmp_path) as (cluster, _peer):
        second = cluster.second
        await second.ownership.owner_of(TopicName.parse(LEFT_TOPIC))
        await until(
            lambda: second.views.namespaces.items[str(NAMESPACE)].record.boundaries[3:4] == MIDDLE
        )
        stale = second.views.namespaces.items[str(NAMESPACE)]
        await cluster.first.ownership.merge(LEFT)
        await until(
            lambda: (
                getattr(second.views.bundles.get(str(LEFT)), "record", None).state
                is BundleState.DELETED
            )
        )
        for deleted in (False, True):
            if deleted:
                await cluster.store.delete(keys.bundle(LEFT))
                await until(lambda: second.views.bundles.get(str(LEFT)) is None)
            second.views.namespaces._items[str(NAMESPACE)] = stale
            owner = await second.ownership.owner_of(TopicName.parse(LEFT_TOPIC))
            assert owner.broker == "first"
            record = await store_of(second, LEFT)
            assert record is None or record.state is BundleState.DELETED
        assert str(WHOLE) in cluster.first.ownership.owned


async def test_merges_by_rest(tmp_path: Path) -> None:
    """The answer names the merged bundle; what cannot be is refused with a reason and a status, and
    nothing has changed then."""
    async with broker_with_rest(tmp_path) as (broker, rest, peer):
        await peer.produce()
        await broker.ownership.resolve(WHOLE)
        path, ours = "/admin/v2/namespaces/public/default", "/magnetar/v1/namespaces/public/default"
        await rest("PUT", f"{ours}/0x80000000_0xa0000000/merge", status=412)
        await rest("PUT", f"{ours}/everything/merge", status=412)
        last = BundleName(NAMESPACE, 0xC0000000, 0xFFFFFFFF)
        await broker.ownership.resolve(last)
        answer = await rest.ask("PUT", f"{ours}/{last.range}/merge")
        assert (answer.status_code, "the last of its namespace" in answer.text) == (409, True)
        await rest("PUT", f"{path}/{WHOLE.range}/split")
        found = await rest("PUT", f"{ours}/{LEFT.range}/merge", status=200)
        assert found == {"bundle": str(WHOLE)}
        assert (await rest.get(f"{path}/bundles"))["numBundles"] == 4
        await rest("PUT", f"{ours}/{LEFT.range}/merge", status=412)
        assert await peer.send(b"x", 0)
        assert broker.ready


async def test_what_was_split_is_merged_again_once_it_is_cold(tmp_path: Path) -> None:
    """By the broker itself, down to the bundles that the namespace was created with; clients stay
    attached."""
    balance = replace(BALANCE, split_minutes=0.01, merge_hits=1, merge_bundles_min=1)
    async with (
        running_broker(tmp_path, balance=balance, load_report_s=0.1) as broker,
        attached(broker, LEFT_TOPIC, RIGHT_TOPIC) as peer,
    ):
        for bundle in bundles_of(NAMESPACE, initial_boundaries(4)):
            await broker.ownership.resolve(bundle)
        await until(lambda: len(broker.ownership.owned) == 4)
        await broker.ownership.split(WHOLE, (0x90000000, 0xA0000000, 0xB0000000))
        await until(lambda: len(broker.ownership.owned) == 4)
        assert len(await boundaries(broker)) == 5
        await asyncio.sleep(1.5)
        assert len(await boundaries(broker)) == 5
        assert broker.context.metrics.balance.merges._value.get() == 3
        for number in (1, 2):
            await round_trip(peer, number, 0)
        assert await peer.is_quiet()


@pytest.mark.slow
async def test_manifests_and_collection_follow_a_merge(tmp_path: Path) -> None:
    """The merged bundle lists what its parents did; their files go when it has passed them, their
    checkpoints and records last, and every message stays readable."""
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
        store, volume = broker.context.store, broker.context.volume
        await broker.ownership.split(WHOLE, MIDDLE)
        for number in (1, 2):
            await round_trip(peer, number, 0)
        for topic in (LEFT_TOPIC, RIGHT_TOPIC):
            await broker.service.roll(TopicName.parse(topic))
        for number in (1, 2):
            await round_trip(peer, number, 1)
        await broker.ownership.merge(LEFT)
        for bundle in (LEFT, RIGHT):
            assert await store.get(keys.manifest(bundle)) is None
        assert (await load_manifest(store, volume, WHOLE))[0].covered is not None
        for number in (1, 2):
            await round_trip(peer, number, 2)
        sequence = 3

        async def forgotten() -> bool:
            return not any([await store.get(keys.bundle(bundle)) for bundle in (LEFT, RIGHT)])

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
