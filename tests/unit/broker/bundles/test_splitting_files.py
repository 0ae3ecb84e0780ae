"""Log files after a split, at real brokers: a child lists the files that have entries of it, and
those alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import BundleName, TopicName
from magnetar.storage import names
from magnetar.storage.manifest import load_manifest
from magnetar.topics.dispatch.base import ReadRequest
from magnetar.transactions.ids import TxnId
from tests.support.brokers import CLOCK, SETTINGS, Node, entry, open_peer, running_broker, volume_in
from tests.support.published_topics import QUICK, stored
from tests.support.split_bundles import LEFT, LEFT_TOPIC, MIDDLE, RIGHT, RIGHT_TOPIC, WHOLE
from tests.support.transacting import ended, send_in

TXN = TxnId(0, 0)


async def listed(broker: Broker, bundle: BundleName) -> list[str]:
    """The log files in a bundle's manifest."""
    manifest, _, _ = await load_manifest(broker.context.store, broker.context.volume, bundle)
    return [names.log_file(file.incarnation, file.file) for file in manifest.level0]


@asynccontextmanager
async def inherited(directory: Path) -> AsyncIterator[tuple[Broker, list[str]]]:
    """A broker with the bundle of one that died before it noted its files, and these, which the
    manifest lists.

    The first holds an entry of the left half, the second one of the right half, both of one term.
    """
    store = MemoryStore(CLOCK)
    async with volume_in(directory) as volume:
        dead = await Node(store, volume, "broker-0", SETTINGS).start()
        async with open_peer(dead) as peer:
            for number, topic in enumerate((LEFT_TOPIC, RIGHT_TOPIC), 1):
                await peer.lookup(topic)
                await peer.produce(number, topic)
            await peer.send(b"left", 0, 1)
            await dead.service.roll(TopicName.parse(LEFT_TOPIC))
            await peer.send(b"right", 0, 2)
        dead.fail("killed")
        await dead.leader.stop()
        await store.delete(keys.incarnation(dead.incarnation))
        for item in (await store.range(keys.logs_of(dead.incarnation))).items:
            await store.delete(item.key)
        async with (
            running_broker(directory, store=store, name="broker-1", **QUICK) as broker,
            open_peer(broker) as peer,
        ):
            await peer.lookup(LEFT_TOPIC)
            await broker.service.roll(TopicName.parse(LEFT_TOPIC))
            files = await listed(broker, WHOLE)
            assert files == [names.log_file(dead.incarnation, number) for number in (0, 1)]
            yield broker, files
        await dead.close()
    await store.close()


@pytest.mark.slow
async def test_a_file_without_entries_of_a_child_goes_with_the_other_and_nobody_misses_it(
    tmp_path: Path,
) -> None:
    """The leader notes a dead broker's file after the split, with the child that has entries in it,
    and gives it up once that one may.

    The other child reads what it has in the next file, which is of the same term, and no damage is
    reported.
    """

    async with inherited(tmp_path) as (broker, (first, second)):
        await broker.ownership.split(WHOLE, MIDDLE)
        left, right = (broker.ownership.owned[str(bundle)] for bundle in (LEFT, RIGHT))
        for child in (left, right):
            await broker.ownership.checkpointer.checkpoint(str(child.name))
        await broker.maintenance.manifest_compactor.tidy(left)
        # the manifest of before, which lists it, goes first
        await broker.maintenance.garbage_collector.collect_objects()
        await broker.maintenance.garbage_collector.collect_dead()
        there = await broker.context.volume.list(names.LOGS)
        assert first not in there
        assert second in there

        host = right.topics[RIGHT_TOPIC]
        request = ReadRequest(host.core.ledgers.first, 1)
        found, _ = await right.catalog.read(host.name, host.core.ledgers, request, 1 << 20)
        assert [*map(bytes, found)] == [entry(b"right", 0)]
        await broker.maintenance.manifest_compactor.tidy(right)
        assert broker.context.damage.listed() == []


@pytest.mark.slow
async def test_a_file_with_nothing_but_open_transactions_stays_with_their_child(
    tmp_path: Path,
) -> None:
    """Their entries are in the sidecar of a topic, which goes where the topic goes; a commit
    after the split finds them."""

    async with running_broker(tmp_path, **QUICK) as broker, open_peer(broker) as peer:
        await peer.lookup(RIGHT_TOPIC)
        await peer.produce(1, RIGHT_TOPIC)
        await send_in(peer, TXN, b"held", 0)
        await broker.service.roll(TopicName.parse(RIGHT_TOPIC))
        files = await listed(broker, WHOLE)
        assert len(files) == 1
        await broker.ownership.split(WHOLE, MIDDLE)
        assert (await listed(broker, LEFT), await listed(broker, RIGHT)) == ([], files)
        await ended(peer, TXN, commit=True, topic=RIGHT_TOPIC)
        # what is in memory hides nothing
        broker.ownership.owned[str(RIGHT)].topics[RIGHT_TOPIC].index.drop_before(1 << 60)
        assert await stored(broker, RIGHT_TOPIC) == [entry(b"held", 0)]


@pytest.mark.slow
async def test_a_file_that_cannot_be_looked_into_stays_with_every_child(tmp_path: Path) -> None:
    """Neither index nor file is there: it may have had entries of each child, and what is
    missing is named until it is back."""

    async with inherited(tmp_path) as (broker, (first, second)):
        volume, parent = broker.context.volume, broker.ownership.owned[str(WHOLE)]
        kept = await volume.read(first)
        for name in (first, first.replace(".log", ".index")):
            await volume.remove(name)
        parent.catalog.take(
            replace(
                parent.catalog.manifest,
                generation=parent.catalog.manifest.generation + 1,
                level0=(),
            )
        )
        await broker.ownership.split(WHOLE, MIDDLE)
        assert (await listed(broker, LEFT), await listed(broker, RIGHT)) == (
            [first],
            [first, second],
        )
        manifest_compactor, children = (
            broker.maintenance.manifest_compactor,
            [broker.ownership.owned[str(bundle)] for bundle in (LEFT, RIGHT)],
        )
        for child in children:
            await manifest_compactor.tidy(child)
        assert {found["file"] for found in broker.context.damage.listed()} == {first}
        assert await volume.put_if_absent(first, kept)
        manifest_compactor._damaged = dict.fromkeys(
            manifest_compactor._damaged, 0.0
        )  # DAMAGED_RETRY_S later
        for child in children:
            await manifest_compactor.tidy(child)
        assert broker.context.damage.listed() == []
        assert first not in await listed(broker, RIGHT)
