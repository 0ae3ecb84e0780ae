"""Merges that something interrupts: an answer that is lost, a changed namespace, a manifest that
cannot be written, an owner that dies. Both bundles or the merged one serve everything."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from magnetar.broker.bundles import merge_planning
from magnetar.broker.bundles.merge_planning import MergePlanner
from magnetar.errors import ServiceNotReady, StorageError, StoreUnavailable
from magnetar.metadata import keys
from magnetar.metadata.records import BundleState, NamespaceRecord
from magnetar.metadata.store import TxnResult
from magnetar.names import TopicName, initial_boundaries
from magnetar.topics.ledger_ids import epoch_of
from tests.support.brokers import running_broker
from tests.support.faulty_store import lose_answer, writes
from tests.support.merging_pair import Transact, halves, meddling, stored
from tests.support.polling import until
from tests.support.split_bundles import (
    LEFT,
    LEFT_TOPIC,
    MIDDLE,
    NAMESPACE,
    RIGHT,
    RIGHT_TOPIC,
    WHOLE,
    boundaries,
    round_trip,
    store_of,
)


@pytest.mark.parametrize("committed", [True, False])
async def test_a_merge_whose_answer_is_lost_is_found_out(tmp_path: Path, committed: bool) -> None:
    """The merged bundle serves either way, once, and the broker lives."""
    async with halves(tmp_path) as (cluster, peer):
        before, lost = await round_trip(peer, 1, 0), []

        async def lossy(inner: Transact, compares: Any, operations: Any) -> TxnResult:
            if not lost:
                lost.append(True)
                if committed:
                    await inner(compares, operations)
                raise StoreUnavailable("injected: no answer")
            return await inner(compares, operations)

        meddling(cluster, lossy)
        assert await cluster.first.ownership.merge(LEFT) == WHOLE
        assert lost
        assert str(WHOLE) in cluster.first.ownership.owned
        assert await round_trip(peer, 1, 1) > before
        assert cluster.first.ready


@pytest.mark.parametrize("committed", [True, False])
async def test_a_request_whose_answer_is_lost_is_made_once(tmp_path: Path, committed: bool) -> None:
    """Both records become Merging together or not at all, and the merge is carried out."""
    async with halves(tmp_path) as (cluster, peer):
        before = await round_trip(peer, 1, 0)
        lost = lose_answer(cluster.network, writes(b'"Merging"'), committed=committed)
        assert await cluster.first.ownership.merge(LEFT) == WHOLE
        assert lost == [2]
        assert await round_trip(peer, 1, 1) > before
        assert cluster.first.ready


async def test_a_policy_that_is_set_during_a_merge_stays(tmp_path: Path) -> None:
    """A change of the namespace in between makes the merge read it again."""
    async with halves(tmp_path) as (cluster, _peer):
        edits: list[int] = []

        async def meddled(inner: Transact, compares: Any, operations: Any) -> TxnResult:
            if len(edits) < 3:
                item = await cluster.store.get(keys.namespace(NAMESPACE))
                assert item is not None
                edits.append(len(edits))
                changed = replace(
                    NamespaceRecord.decode(item.value),
                    policies={"message_ttl_in_seconds": 1000 + edits[-1]},
                )
                await cluster.store.put(keys.namespace(NAMESPACE), changed.encode())
            return await inner(compares, operations)

        meddling(cluster, meddled)
        await cluster.first.ownership.merge(LEFT)
        item = await cluster.store.get(keys.namespace(NAMESPACE))
        assert item is not None
        assert NamespaceRecord.decode(item.value).policies == {"message_ttl_in_seconds": 1002}
        assert await boundaries(cluster.first) == initial_boundaries(4)


@pytest.mark.parametrize("error", [StorageError("no space"), ZeroDivisionError("no space")])
async def test_a_merge_that_cannot_be_prepared_leaves_both_in_service(
    tmp_path: Path, error: Exception
) -> None:
    """The manifest cannot be written, or for no known reason: clients notice nothing, and a later
    merge is done."""
    async with halves(tmp_path) as (cluster, peer):
        first = cluster.first
        before = await round_trip(peer, 1, 0)
        failing = mock.AsyncMock(side_effect=error)
        with (
            mock.patch.object(merge_planning, "write_manifest", failing),
            pytest.raises(ServiceNotReady, match=r"were not merged: .*no space"),
        ):
            await first.ownership.merge(LEFT)
        for bundle in (LEFT, RIGHT):
            record = await store_of(first, bundle)
            assert record is not None
            assert (record.state, record.boundaries) == (BundleState.OWNED, ())
            assert first.ownership.owned[str(bundle)].serving
        after = await round_trip(peer, 1, 1)
        assert epoch_of(after[0]) == epoch_of(before[0])
        await round_trip(peer, 2, 0)
        assert await peer.is_quiet()
        assert await first.ownership.merge(LEFT) == WHOLE


async def test_a_merge_that_is_refused_once_both_are_frozen_leaves_them_free(
    tmp_path: Path,
) -> None:
    """The namespace was made again with other bundles. The broker continues, and if both are
    bundles again everything is in them."""
    async with halves(tmp_path) as (cluster, peer):
        for number in (1, 2):
            await round_trip(peer, number, 0)
        namespace, before = keys.namespace(NAMESPACE), list[bytes]()

        async def meddled(inner: Transact, compares: Any, operations: Any) -> TxnResult:
            if not before:
                item = await cluster.store.get(namespace)
                assert item is not None
                before.append(item.value)
                record = NamespaceRecord(initial_boundaries(1), {})
                await cluster.store.put(namespace, record.encode())
            return await inner(compares, operations)

        meddling(cluster, meddled)
        with pytest.raises(ServiceNotReady, match="are not both bundles of namespace"):
            await cluster.first.ownership.merge(LEFT)
        assert cluster.first.ready
        revision = await cluster.store.put(namespace, before[0])
        for broker in (cluster.first, cluster.second):
            await broker.views.namespaces.reach(revision)
        for topic in (LEFT_TOPIC, RIGHT_TOPIC):
            owner = await cluster.second.ownership.owner_of(TopicName.parse(topic))
            broker = cluster.second if owner.broker == "second" else cluster.first
            assert await stored(broker, topic) == 1


async def test_a_namespace_that_is_deleted_during_a_merge_takes_both_bundles(
    tmp_path: Path,
) -> None:
    """The merge is called off, and the leader retires what is left as it does without a merge."""
    async with running_broker(tmp_path) as broker:
        await broker.ownership.resolve(WHOLE)
        await until(lambda: str(WHOLE) in broker.ownership.owned)
        await broker.ownership.split(WHOLE, MIDDLE)
        plan = MergePlanner.plan

        async def deleted(planner: MergePlanner, *how: Any) -> Any:
            await broker.context.store.delete(keys.namespace(NAMESPACE))
            return await plan(planner, *how)

        with (
            mock.patch.object(MergePlanner, "plan", deleted),
            pytest.raises(ServiceNotReady, match="does not exist any more"),
        ):
            await broker.ownership.merge(LEFT)

        async def retired() -> bool:
            records = [await store_of(broker, bundle) for bundle in (LEFT, RIGHT)]
            return all(record is None or record.state is BundleState.DELETED for record in records)

        async with asyncio.timeout(120):
            while not await retired():
                await asyncio.sleep(0.05)
        assert broker.ready


async def test_a_merge_that_its_owner_did_not_finish_is_undone_by_the_next(tmp_path: Path) -> None:
    """RELEASE of both is in its log, the transaction is not in the store: both are recovered."""
    async with halves(tmp_path) as (cluster, peer):
        for number in (1, 2):
            await round_trip(peer, number, 0)
        stuck = asyncio.Event()

        async def never(_inner: Transact, _compares: Any, _operations: Any) -> TxnResult:
            stuck.set()
            await asyncio.sleep(3600)
            raise AssertionError

        meddling(cluster, never)
        merging = asyncio.create_task(cluster.first.ownership.merge(LEFT))
        await stuck.wait()
        cluster.first.fail("crash")
        await cluster.first.close()
        merging.cancel()
        for topic, bundle in ((LEFT_TOPIC, LEFT), (RIGHT_TOPIC, RIGHT)):
            owner = await cluster.second.ownership.owner_of(TopicName.parse(topic))
            assert owner.broker == "second"
            record = await store_of(cluster.second, bundle)
            assert record is not None
            assert (record.state, record.boundaries) == (BundleState.OWNED, ())
            assert await stored(cluster.second, topic) == 1
        assert await store_of(cluster.second, WHOLE) is not None
        assert len(await boundaries(cluster.second)) == 6
