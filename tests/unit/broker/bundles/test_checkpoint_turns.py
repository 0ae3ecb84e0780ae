"""A checkpoint of many topics is made, and taken by a successor, in turns; what happens while it
is made is in the log behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.bundles import bundle
from magnetar.broker.bundles.bundle import OwnedBundle
from magnetar.broker.bundles.recovery import bundle_recovery as recovery
from magnetar.broker.bundles.recovery.bundle_recovery import BundleReplay
from magnetar.broker.bundles.recovery.log_scans import LogScans
from magnetar.metadata.records import LogRange
from magnetar.names import TopicName
from magnetar.storage import turns
from magnetar.topics.ledger_ids import LedgerIds
from magnetar.transactions.ids import TxnId
from magnetar.wire import requests
from tests.support.brokers import TOPIC, Peer, Type, entry, open_peer, running_broker

FIRST, MIDDLE, LAST = 0, 1, 2


class Pauses:
    """Stands for asyncio in a module: a task that makes or takes a checkpoint there waits at its
    first pause until it is `resumed`."""

    def __init__(self) -> None:
        self.reached, self.resumed, self.count = asyncio.Event(), asyncio.Event(), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, _delay: float) -> None:
        self.count += 1
        self.reached.set()
        await self.resumed.wait()


@asynccontextmanager
async def three_topics(directory: Path) -> AsyncIterator[tuple[Peer, OwnedBundle, list[TopicName]]]:
    """Of one bundle, each with a producer (by its number) and a message; and names of two more."""
    async with (
        running_broker(directory, keep_alive_s=3600.0, maintenance_s=3600.0) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        name = await broker.ownership.bundle_of(TopicName.parse(TOPIC))
        all_names = (TopicName.parse(f"{TOPIC}-{number:03}") for number in range(1000))
        topics = [topic for topic in all_names if name.contains(topic)][:5]
        for number, topic in enumerate(topics[:3]):
            await peer.produce(number, str(topic))
            await peer.send(b"before", 0, number)
        yield peer, broker.ownership.owned[str(name)], topics


async def _replayed(owned: OwnedBundle, directory_state: tuple[Any, Any]) -> BundleReplay:
    pointer, position = directory_state
    log = owned.context.log
    await log.barrier()
    replay = BundleReplay(owned.name, LedgerIds(1 << 40))
    await replay.load(owned.context, pointer)
    await replay.replay(
        LogScans(owned.context.volume),
        owned.epoch,
        LogRange(log.incarnation, position, log.position),
    )
    return replay


async def test_what_happens_between_the_turns_is_found_by_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the first topic all are published to and acknowledged, one is deleted, one is deleted
    and made again, two are made.

    The checkpoint has the first topic as it was before and the others as they are after that; with
    the log behind it, all are as they are.
    """
    monkeypatch.setattr(bundle, "CHECKPOINT_SLICE_BYTES", 1)

    pauses = Pauses()
    async with three_topics(tmp_path) as (peer, owned, topics):
        monkeypatch.setattr(bundle, "asyncio", pauses)
        position = owned.context.log.position
        writing = asyncio.create_task(owned.write_checkpoint(position))
        await asyncio.wait_for(pauses.reached.wait(), 120)
        await peer.subscribe(1, str(topics[FIRST]), subscription="s", initialPosition=1)
        for number in (FIRST, MIDDLE):
            await peer.send(b"between", 1, number)
        txn = TxnId(0, 7)
        peer.write(requests.send(FIRST, 0, entry(b"in a transaction", 0), txn=txn))
        await peer.answer(Type.SEND_RECEIPT)
        commit = requests.end_txn_on_partition(
            peer.next_request(), txn, str(topics[FIRST]), commit=True, low_watermark=-1
        )
        peer.write(commit)
        await peer.answer(Type.END_TXN_ON_PARTITION_RESPONSE)
        for topic in topics[MIDDLE : LAST + 1]:
            await owned.delete_topic(topic)
        for topic in (topics[MIDDLE], *topics[3:]):
            await owned.topic(topic, create=True)
        pauses.resumed.set()
        replay = await _replayed(owned, ((await writing)[0], position))
        assert pauses.count == 1, (
            "the first topic; the others are gone, or were made behind the checkpoint's position"
        )
        assert (
            set(replay.topics)
            == set(owned.topics)
            == {str(topics[number]) for number in (0, 1, 3, 4)}
        )
        for name, host in owned.topics.items():
            ours, found = host.to_state(), replay.topics[name].core.to_state()
            assert (found.ledgers, found.cursors, found.sizes) == (
                ours.ledgers,
                ours.cursors,
                ours.sizes,
            ), name
        assert (
            sum(count for _, count in replay.topics[str(topics[FIRST])].core.to_state().ledgers)
            == 3
        )


async def test_others_have_a_turn_for_each_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three topics in slices of one, or in a slice that takes them all."""

    async def scenario(slice_bytes: int) -> int:
        pauses = Pauses()
        pauses.resumed.set()
        async with three_topics(tmp_path / str(slice_bytes)) as (_, owned, _):
            with monkeypatch.context() as patch:
                patch.setattr(bundle, "CHECKPOINT_SLICE_BYTES", slice_bytes)
                patch.setattr(bundle, "asyncio", pauses)
                await owned.write_checkpoint(owned.context.log.position)
            return pauses.count

    assert [await scenario(slice_bytes) for slice_bytes in (1, 1 << 20)] == [3, 0]


async def test_others_have_a_turn_while_a_checkpoint_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three topics, of which one has a subscription: one by one, or in one go; first parsed,
    then hosted, and all are there."""

    async def scenario(taken: int) -> tuple[int, int]:
        loading, hosting = Pauses(), Pauses()
        loading.resumed.set()
        hosting.resumed.set()
        async with three_topics(tmp_path / str(taken)) as (peer, owned, topics):
            await peer.subscribe(1, str(topics[FIRST]), subscription="s", initialPosition=1)
            pointer, _ = await owned.write_checkpoint(owned.context.log.position)
            with monkeypatch.context() as patch:
                patch.setattr(recovery, "TAKEN_PER_TURN_MAX", taken)
                patch.setattr(turns, "asyncio", loading)
                replay = BundleReplay(owned.name, LedgerIds(1 << 40))
                await replay.load(owned.context, pointer)
                patch.setattr(bundle, "HOSTED_PER_TURN_MAX", taken)
                patch.setattr(turns, "asyncio", hosting)
                held, owned.topics = owned.topics, {}
                await owned.host(replay.topics)
                assert held.keys() == owned.topics.keys()
                owned.topics = held
            return loading.count, hosting.count

    assert [await scenario(taken) for taken in (1, 3, 5)] == [(3, 3), (1, 1), (0, 0)]
