"""Index and broker time of messages: each has the number of messages before it in its topic,
wherever its entry lies and whichever broker serves it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics import entry_metadata
from magnetar.client import EARLIEST, Batching, Client, Message, SubscriptionType
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.ownership.splits import range_equally_divide
from magnetar.wire import requests
from tests.support.broker_pair import LOADED, pair
from tests.support.brokers import CLOCK, TOPIC, Type, command_frame, open_peer, running_broker
from tests.support.owner_changes import (
    WAYS,
    A,
    B,
    C,
    begin,
    change_owner,
    has_left,
)
from tests.support.polling import until
from tests.support.published_topics import world
from tests.support.rest import TOPICS, broker_with_rest
from tests.support.transacting import ended, send_in

ON = {"broker_entry_index": 1, "broker_entry_timestamp": 1, "broker_entry_metadata_to_clients": 1}
RECEIVE_S = 120


async def publish(broker: Broker, singles: int, batches: int, size: int = 10) -> None:
    """Messages alone, batches of three, and again messages alone."""
    async with Client(broker.service_url) as client:
        plain = await client.create_producer(TOPIC)
        for _ in range(singles):
            await plain.send(b"x" * size)
        batched = await client.create_producer(
            TOPIC, batching=Batching(messages_max=3, linger_s=60)
        )
        for _ in range(batches):
            await asyncio.gather(*(batched.send(b"x" * size) for _ in range(3)))
        for _ in range(singles):
            await plain.send(b"x" * size)


async def read(broker: Broker) -> list[Message[bytes]]:
    """Everything that is in the topic, in order."""
    found = []
    async with Client(broker.service_url) as client:
        reader = await client.create_reader(TOPIC, EARLIEST)
        while await reader.has_message_available():
            found.append(await reader.receive(RECEIVE_S))
    return found


async def indexes(broker: Broker) -> list[int | None]:
    return [message.index for message in await read(broker)]


async def forget_what_is_in_memory(broker: Broker) -> None:
    """Have the next reads go to storage."""
    host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
    for run in host.index.runs:
        host.bundle.tail_cache.release(run)


async def test_messages_are_numbered_over_batches_and_timed_by_the_broker(tmp_path: Path) -> None:
    """From memory and from storage; a subscription that began before, one after, and one that
    skips what others have."""

    async with running_broker(tmp_path, **ON) as broker:
        begun_ms = CLOCK.wall_ms()
        await publish(broker, 5, 4)
        found = await read(broker)
        assert [message.index for message in found] == list(range(22))
        assert {message.id.batch_index for message in found} == {-1, 0, 1, 2}
        times = [message.broker_publish_time_ms or 0 for message in found]
        assert begun_ms <= times[0] <= times[-1] <= CLOCK.wall_ms()
        assert times == sorted(times)
        await forget_what_is_in_memory(broker)
        assert [
            (message.index, message.broker_publish_time_ms) for message in await read(broker)
        ] == list(enumerate(times))
        async with Client(broker.service_url) as client:
            several = [
                await client.subscribe(
                    TOPIC, "s", type=SubscriptionType.SHARED, initial_position="Earliest"
                )
                for _ in range(2)
            ]
            seen = {}
            while len(seen) < 22:
                for consumer in several:
                    for message in await consumer.batch_receive(100, 0.1):
                        seen[message.id] = message.index
        assert seen == {message.id: message.index for message in found}


async def test_what_was_published_before_the_setting_is_numbered_as_well(tmp_path: Path) -> None:
    """Nothing is stored with entries: a broker with the setting knows of all, one without shows
    nothing."""

    store = MemoryStore(CLOCK)
    for number, settings in enumerate(({}, ON, {}, ON)):
        async with running_broker(tmp_path, store=store, **settings) as broker:
            await publish(broker, 2, 1)
            messages = 7 * (number + 1)
            assert await indexes(broker) == (
                list(range(messages)) if settings else [None] * messages
            )


async def test_a_client_that_does_not_know_of_it_gets_the_bytes_that_were_sent(
    tmp_path: Path,
) -> None:
    """And so does everybody where it is not to be shown to clients."""

    async with (
        running_broker(tmp_path, **ON) as broker,
        open_peer(broker, handshake=False) as peer,
    ):
        peer.write(command_frame("connect", client_version="old", protocol_version=21))
        await peer.answer(Type.CONNECTED)
        await peer.lookup()
        await peer.produce()
        await peer.send(b"m")
        await peer.subscribe()
        peer.write(requests.flow(1, 10))
        assert (await peer.message())[1][:2] == b"\x0e\x01"
        assert await indexes(broker) == [0]
    async with running_broker(
        tmp_path / "hidden", **{**ON, "broker_entry_metadata_to_clients": 0}
    ) as broker:
        await publish(broker, 1, 1)
        assert await indexes(broker) == [None] * 5


@pytest.mark.parametrize("setting", ["broker_entry_index", "broker_entry_timestamp"])
async def test_either_comes_alone(tmp_path: Path, setting: str) -> None:
    async with running_broker(tmp_path, **{**ON, setting: 0}) as broker:
        await publish(broker, 1, 0)
        (first, _) = await read(broker)
        assert (first.index is None) == (setting == "broker_entry_index")
        assert (first.broker_publish_time_ms is None) == (setting == "broker_entry_timestamp")


@pytest.mark.parametrize("how", WAYS)
async def test_numbers_go_on_at_a_new_owner_also_over_transactions(
    tmp_path: Path, how: str
) -> None:
    """One transaction is committed before, one is open over the change, one is void; what
    commits is numbered where it appears."""

    async with pair(tmp_path, **LOADED, **ON) as cluster:
        await publish(cluster.first, 1, 2)
        async with open_peer(cluster.first) as peer:
            await begin(peer)
            await change_owner(cluster, how)
        await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        async with open_peer(cluster.second) as peer:
            await peer.lookup()
            await ended(peer, B, commit=True)
        await publish(cluster.second, 1, 1)
        found = await read(cluster.second)
        assert [message.index for message in found] == list(range(8 + 3 + 2 + 5))
        assert [message.data for message in found[8:13]] == [b"plain", b"0", b"0", b"1", b"1"]


async def test_an_open_transaction_that_moved_twice_is_numbered_when_it_commits(
    tmp_path: Path,
) -> None:
    """The last owner knows of its entries by checkpoints alone."""

    async with pair(tmp_path, **LOADED, **ON) as cluster:
        name = str(await cluster.bundle())
        for number in range(4):
            owner = await cluster.owner()
            async with open_peer(owner) as peer:
                await peer.produce(producer_name="p")
                await send_in(peer, A, b"a", number)
                await send_in(peer, C, b"c", number + 10)
                await peer.send(b"plain", number + 20)
                await owner.service.roll(TopicName.parse(TOPIC))
                await owner.ownership.checkpointer.checkpoint(name)
                await owner.ownership.move(name, "", "test")
            await until(partial(has_left, owner, name))
        owner = await cluster.owner()
        async with open_peer(owner) as peer:
            await peer.lookup()
            await ended(peer, C, commit=False)
            await ended(peer, A, commit=True)
        await publish(owner, 1, 1)
        found = await read(owner)
        assert [message.index for message in found] == list(range(4 + 4 + 5))


async def test_numbers_go_on_in_the_children_of_a_split(tmp_path: Path) -> None:
    async with pair(tmp_path, **ON) as cluster:
        await publish(cluster.first, 2, 1)
        bundle = await cluster.bundle()
        await cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        await publish(cluster.first, 2, 1)
        assert await indexes(cluster.first) == list(range(14))
        cluster.first.fail("crash")
        await cluster.first.close()
        await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        await publish(cluster.second, 2, 1)
        assert await indexes(cluster.second) == list(range(21))


@pytest.mark.slow
async def test_entries_in_segments_and_behind_a_trim_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewritten into segments, read after a restart that knows nothing of them, from the middle,
    and with the beginning dropped.

    Counting goes on from what earlier reads have found, and forgets all but a few of these.
    """
    monkeypatch.setattr(entry_metadata, "PLACES_HELD_MAX", 2)

    store = MemoryStore(CLOCK)
    async with world(tmp_path, store, **ON) as found:
        for _ in range(3):
            await publish(found.broker, 10, 5)
            await found.roll()
        await found.round()
        assert (await found.manifest(TOPIC)).topic(TOPIC).level1
        assert await indexes(found.broker) == list(range(105))
    async with world(tmp_path, store, **ON) as found:
        read_before = await read(found.broker)
        assert [message.index for message in read_before] == list(range(105))
        async with Client(found.broker.service_url) as client:
            for at in (90, 3, 50, 51, 104):
                reader = await client.create_reader(TOPIC, read_before[at].id, inclusive=True)
                assert (await reader.receive(RECEIVE_S)).index == at
        host = await found.host(TOPIC)
        await host.trim(host.core.ledgers.first + 37)
        left = await read(found.broker)
        assert [message.index for message in left] == [
            message.index for message in read_before[-len(left) :]
        ]
        assert len(left) < 105 - 37
        await publish(found.broker, 1, 0)
        assert (await indexes(found.broker))[-3:] == [104, 105, 106]
    async with world(tmp_path, store, **ON) as found:
        assert (await indexes(found.broker))[-3:] == [104, 105, 106]


async def test_administrators_see_them_as_headers(tmp_path: Path) -> None:
    """As pulsar-admin reads them, also where clients are not shown them; without the setting
    there are none."""

    async def seen(settings: dict[str, Any], directory: Path) -> dict[str, str]:
        async with broker_with_rest(directory, **settings) as (broker, rest, _):
            await publish(broker, 2, 1)
            name = TOPIC.rpartition("/")[2]
            answer = await rest.ask(
                "GET", f"{TOPICS}/{name}/examinemessage?initialPosition=earliest&messagePosition=3"
            )
            assert answer.status_code == 200, answer.text
            return {
                key.lower(): value
                for key, value in answer.headers.items()
                if "broker-entry" in key.lower()
            }

    found = await seen({**ON, "broker_entry_metadata_to_clients": 0}, tmp_path / "on")
    assert found["x-pulsar-broker-entry-metadata-index"] == "4", "of the last message of the batch"
    assert found["x-pulsar-broker-entry-metadata-timestamp"].startswith("20")
    assert await seen({}, tmp_path / "off") == {}
