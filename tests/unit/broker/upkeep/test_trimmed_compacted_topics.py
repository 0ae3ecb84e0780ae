"""A compacted topic whose originals retention has dropped: the view has the rest, for every reader
and in whatever way it comes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.topics.compaction_state import CompactionStatus
from magnetar.broker.upkeep.view_writing import ViewWriter, WrittenView
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.ownership.splits import range_equally_divide
from magnetar.wire import requests
from tests.support.brokers import CLOCK, Type, open_peer
from tests.support.compacted_topics import Keyed, keyed_topic, message_id

VIEW = [("a", b"a2"), ("b", b"b1"), ("c", b"c2")]


async def compacted(topic: Keyed) -> None:
    """Nine entries of three keys, all compacted."""
    for key, value in (("a", "a1"), ("b", "b1"), ("c", "c1"), ("x", "x1"), ("a", "a2")):
        await topic.single(key, value.encode())
    await topic.compact()
    for key, value in (("x", ""), ("c", "c2"), ("b", ""), ("b", "b1")):
        await topic.single(key, value.encode())
    await topic.compact()


EXPECTED = [("a", b"a2"), ("c", b"c2"), ("b", b"b1")]


async def test_retention_drops_what_the_view_stands_for_and_nothing_behind_it(
    tmp_path: Path,
) -> None:
    """#11211, #12464: the originals go, every key stays; what was not compacted is held."""
    async with keyed_topic(tmp_path) as topic:
        await compacted(topic)
        later = await topic.single("d", b"d1")
        await topic.single("a", b"a3")
        await topic.trim()
        host = await topic.host()
        ledgers = host.core.ledgers
        assert ledgers.position(ledgers.first) == later
        assert ledgers.end - ledgers.first == 2
        assert await topic.read() == [*EXPECTED, ("d", b"d1"), ("a", b"a3")]
        assert await topic.read(read_compacted=False) == [("d", b"d1"), ("a", b"a3")]
        await topic.compact()
        await topic.trim()
        assert ledgers.first == ledgers.end
        assert await topic.read() == [("c", b"c2"), ("b", b"b1"), ("d", b"d1"), ("a", b"a3")]


async def test_a_topic_without_a_view_is_trimmed_as_ever(tmp_path: Path) -> None:
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        await topic.trim()
        ledgers = (await topic.host()).core.ledgers
        assert ledgers.floor == ledgers.first == ledgers.end == 1


async def test_what_the_first_view_will_have_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention runs between the phases of the first compaction, and its commit. Naive: the view
    stands for entries that nobody knows any more."""
    async with keyed_topic(tmp_path) as topic:
        await topic.single("a", b"1")
        host, write = await topic.host(), ViewWriter.write

        async def trimmed(writer: ViewWriter) -> WrittenView:
            written = await write(writer)
            await topic.trim()
            return written

        monkeypatch.setattr(ViewWriter, "write", trimmed)
        compactor = topic.broker.maintenance.topic_compactor
        compactor.request(host)
        while compactor.status(host).status is CompactionStatus.RUNNING:
            await asyncio.sleep(0.01)
        assert host.core.ledgers.first == 0
        await topic.trim()
        assert host.core.ledgers.first == 1
        assert await topic.read() == [("a", b"1")]


async def test_a_threshold_holds_everything_until_the_first_compaction(tmp_path: Path) -> None:
    """As Pulsar, which makes the cursor of compaction with the policy."""
    async with keyed_topic(tmp_path) as topic:
        host = await topic.host()
        host.policies = replace(host.policies, compaction_threshold=1 << 40)
        await topic.single("a", b"1")
        await topic.trim()
        assert host.core.ledgers.first == 0
        await topic.compact()
        await topic.trim()
        assert host.core.ledgers.first == 1


@pytest.mark.parametrize("checkpoint", [True, False])
async def test_the_view_is_read_after_a_restart(tmp_path: Path, checkpoint: bool) -> None:
    """#25998: by a new owner that has its state from a checkpoint, or from the log."""
    store = MemoryStore(CLOCK)
    async with keyed_topic(tmp_path, store) as topic:
        await compacted(topic)
        await topic.trim()
        await topic.single("d", b"d1")
        if checkpoint:
            for name in list(topic.broker.ownership.owned):
                await topic.broker.ownership.checkpointer.checkpoint(name)
        await topic.round()
    for _ in range(2):
        async with keyed_topic(tmp_path, store) as topic:
            assert await topic.read() == [*EXPECTED, ("d", b"d1")]
            await topic.round()
    async with keyed_topic(tmp_path, store) as topic:
        await topic.single("a", b"")
        await topic.compact()
        await topic.trim()
        assert await topic.read() == [("c", b"c2"), ("b", b"b1"), ("d", b"d1")]
        ledgers = (await topic.host()).core.ledgers
        assert ledgers.first == ledgers.end
    await store.close()


async def test_files_of_dropped_originals_are_given_up(tmp_path: Path) -> None:
    """The view is all that is left in storage, and is enough."""
    async with keyed_topic(tmp_path) as topic:
        await compacted(topic)
        await topic.trim()
        host = await topic.host()
        await topic.broker.service.roll(host.name)
        for _ in range(3):
            await topic.round()
            await asyncio.sleep(0.06)
        manifest = host.bundle.catalog.manifest
        found = manifest.topic(str(host.name))
        assert manifest.level0 == ()
        assert found.level1 == ()
        assert await topic.read() == EXPECTED


@pytest.mark.parametrize("durable", [True, False])
async def test_a_consumer_of_the_view_loses_nothing_to_a_reconnect(
    tmp_path: Path, durable: bool
) -> None:
    """#25998, #12522: acknowledged are the entries that were named, not everything that the topic
    has dropped."""
    async with keyed_topic(tmp_path) as topic:
        await compacted(topic)
        await topic.trim()
        options: dict[str, Any] = {"subscription": "view", "read_compacted": True}
        async with open_peer(topic.broker) as reader:
            await reader.subscribe(**options, durable=durable)
            reader.write(requests.flow(1, 1))
            first, _ = await reader.message()
            reader.write(requests.ack(1, [first.message_id], cumulative=True))
            reader.write(requests.redeliver(1))
            reader.write(requests.flow(1, 10))
            again = [(await reader.message())[0].message_id.entryId for _ in range(2)]
        assert again == [6, 8]
        if durable:
            async with open_peer(topic.broker) as reader:
                await reader.subscribe(**options)
                reader.write(requests.flow(1, 10))
                assert [(await reader.message())[0].message_id.entryId for _ in range(2)] == [6, 8]


async def test_a_durable_position_within_the_view_survives_a_restart(tmp_path: Path) -> None:
    """The mark-delete lies among dropped entries: a new owner does not move it to what is left."""
    store = MemoryStore(CLOCK)
    options: dict[str, Any] = {"subscription": "view", "read_compacted": True}
    for restart in range(3):
        async with keyed_topic(tmp_path, store) as topic:
            if not restart:
                await compacted(topic)
                await topic.trim()
            else:
                await topic.round()
            async with open_peer(topic.broker) as reader:
                await reader.subscribe(**options)
                reader.write(requests.flow(1, 10))
                places = [(await reader.message())[0].message_id for _ in range(3 - restart)]
                assert [found.entryId for found in places] == [4, 6, 8][restart:]
                request = reader.next_request()
                reader.write(requests.ack(1, [places[0]], request_id=request))
                while (await reader.answer()).type != Type.ACK_RESPONSE:
                    pass
    await store.close()


async def test_a_durable_position_within_the_view_holds_retention(tmp_path: Path) -> None:
    """As any backlog does; once it is acknowledged what the view stands for goes."""
    async with keyed_topic(tmp_path) as topic:
        await compacted(topic)
        await topic.trim()
        async with open_peer(topic.broker) as reader:
            await reader.subscribe(subscription="view", read_compacted=True)
        await topic.single("d", b"1")
        await topic.compact()
        await topic.trim()
        ledgers = (await topic.host()).core.ledgers
        assert ledgers.end - ledgers.first == 1
        async with open_peer(topic.broker) as reader:
            await reader.subscribe(subscription="view")
            reader.write(requests.flow(1, 10))
            message, _ = await reader.message()
            assert message.message_id.entryId == 9, "one that reads no view gets what exists"


async def test_a_reader_that_is_in_the_middle_goes_on(tmp_path: Path) -> None:
    """Retention drops the originals of what a reader of the view has not got yet."""
    async with keyed_topic(tmp_path) as topic:
        await compacted(topic)
        async with open_peer(topic.broker) as reader:
            await reader.subscribe(subscription="r", durable=False, read_compacted=True)
            reader.write(requests.flow(1, 1))
            assert (await reader.message())[0].message_id.entryId == 4
            await topic.trim()
            reader.write(requests.flow(1, 2))
            found = [(await reader.message())[0].message_id.entryId for _ in range(2)]
            assert found == [6, 8]


async def test_seeks_reach_the_whole_view(tmp_path: Path) -> None:
    """By id, by time, and to the beginning."""
    async with keyed_topic(tmp_path) as topic:
        await compacted(topic)
        await topic.trim()
        ledger = (await topic.host()).core.ledgers.last_ledger
        for target, expected in (
            ({"message_id": message_id((ledger, 5))}, [6, 8]),
            ({"message_id": message_id((-1, -1))}, [4, 6, 8]),
            ({"message_publish_time": 1}, [4, 6, 8]),
        ):
            async with open_peer(topic.broker) as reader:
                options: dict[str, Any] = {"subscription": "seeks", "read_compacted": True}
                await reader.subscribe(**options)
                answer = await reader.ask("seek", consumer_id=1, **target)
                while answer.type != Type.SUCCESS:
                    answer = await reader.answer()
            async with open_peer(topic.broker) as reader:
                await reader.subscribe(**options)
                reader.write(requests.flow(1, 10))
                found = [(await reader.message())[0].message_id.entryId for _ in expected]
                assert found == expected


async def test_a_truncation_drops_the_view_as_well_and_for_good(tmp_path: Path) -> None:
    """What an administrator drops comes back neither from the view nor from the next one."""
    async with keyed_topic(tmp_path) as topic:
        await compacted(topic)
        await topic.trim()
        await (await topic.host()).truncate()
        assert await topic.read() == []
        await topic.single("d", b"1")
        await topic.compact()
        assert await topic.read() == [("d", b"1")]
        await topic.trim()
        assert await topic.read() == [("d", b"1")]
        assert sum(found.entries for found in (await topic.view()).segments) == 1


async def test_a_topic_that_was_made_again_has_no_view_of_the_one_before(tmp_path: Path) -> None:
    async with keyed_topic(tmp_path) as topic:
        await compacted(topic)
        host = await topic.host()
        await host.bundle.delete_topic(host.name)
        async with open_peer(topic.broker) as peer:
            await peer.produce(producer_id=1)
            again = Keyed(topic.broker, peer)
            await again.single("d", b"1")
            assert await again.read() == [("d", b"1")]
            await again.compact()
            assert await again.read() == [("d", b"1")]
            assert sum(found.entries for found in (await again.view()).segments) == 1


async def test_the_view_is_read_in_the_parts_of_a_split_bundle(tmp_path: Path) -> None:
    """The topic stays in service, with its ledgers; the part has the view in its own manifest, and
    after a takeover of the part as well."""
    store = MemoryStore(CLOCK)
    async with keyed_topic(tmp_path, store) as topic:
        await compacted(topic)
        await topic.trim()
        whole = (await topic.host()).bundle.name
        await topic.broker.ownership.split(whole, range_equally_divide(whole))
        assert (await topic.host()).bundle.name != whole
        assert await topic.read() == EXPECTED
        await topic.single("d", b"d1")
        await topic.compact()
        await topic.trim()
        assert await topic.read() == [*EXPECTED, ("d", b"d1")]
    async with keyed_topic(tmp_path, store) as topic:
        assert await topic.read() == [*EXPECTED, ("d", b"d1")]
    await store.close()
