"""Partitioned topics: routing, growth while in use, readers over all partitions; compression
codecs of producers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.client import (
    EARLIEST,
    LATEST,
    Batching,
    Client,
    Compression,
    KeyHash,
    MessageId,
    Routing,
)
from magnetar.client.incoming import Received, open_entry
from magnetar.errors import InvalidRequest, WireCode
from magnetar.hashes import java_string_hash, murmur3
from magnetar.wire import commands
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire.commands import Position
from tests.support.client_scenarios import entry, run
from tests.support.memory import ScriptedBroker


def partition_of(broker: ScriptedBroker, producer_id: int) -> int:
    return next(
        int(ask.topic.rpartition("-")[2])
        for ask in broker.of("producer")
        if ask.producer_id == producer_id
    )


def test_routing_round_single_and_by_the_application() -> None:
    """Round: each in turn; single: all in one; a router sees key and count, and must name a
    partition."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.partitions = 4

        async def targets(count: int, **options: Any) -> list[int]:
            broker.received.clear()
            producer = await client.create_producer("t", **options)
            for number in range(count):
                await producer.send(
                    b"x", key="k" if number == 0 and callable(options.get("routing")) else None
                )
            return [partition_of(broker, send.producer_id) for send in broker.of("send")]

        assert sorted(await targets(4)) == [0, 1, 2, 3]
        assert len(set(await targets(4, routing=Routing.SINGLE))) == 1
        seen: list[tuple[str | None, int]] = []

        def router(key: str | None, count: int) -> int:
            seen.append((key, count))
            return 2

        assert await targets(2, routing=router) == [2, 2]
        assert seen == [("k", 4), (None, 4)]
        with pytest.raises(InvalidRequest, match="chose partition 7 of 4"):
            await targets(1, routing=lambda *_: 7)

    run(scenario)


def test_a_batch_fills_before_the_next_partition_gets_one() -> None:
    """Sticky: messages that travel together lie together."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.partitions = 3
        producer = await client.create_producer("t", batching=Batching(messages_max=4, linger_s=5))
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(12)))
        assert [send.num_messages for send in broker.of("send")] == [4, 4, 4]
        assert sorted(partition_of(broker, send.producer_id) for send in broker.of("send")) == [
            0,
            1,
            2,
        ]

    run(scenario)


@pytest.mark.parametrize("key", ["", "a", "order-17", "schlüssel", "𝄞"])
def test_keys_choose_partitions_as_pulsars_hashes_do(key: str) -> None:
    """JAVA is String.hashCode, MURMUR3 the 32-bit hash, both without the sign."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.partitions = 7
        for kind, expected in (
            (KeyHash.JAVA, java_string_hash(key)),
            (KeyHash.MURMUR3, murmur3(key.encode())),
        ):
            producer = await client.create_producer("t", key_hash=kind)
            await producer.send(b"x", key=key)
            assert partition_of(broker, broker.of("send")[-1].producer_id) == expected % 7

    run(scenario)


def test_producers_consumers_and_readers_follow_a_topic_that_grows() -> None:
    """New partitions are sent to, and read from their first message, whatever the consumer began
    with; a look that fails is repeated."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.partitions = 1
        producer = await client.create_producer("t")
        consumer = await client.subscribe("t", "s", initial_position="Latest")
        reader = await client.create_reader("t", LATEST)
        refusals = iter(range(3))

        def count(_: Any, ask: Any) -> bytes:
            if next(refusals, None) is not None:
                return commands.partitioned_metadata_failed(
                    ask.request_id, WireCode.NOT_ALLOWED, "not now"
                )
            return commands.partitioned_metadata(ask.request_id, 3)

        broker.script["partitioned_metadata"] = count
        await broker.arrival("producer", 3)
        await broker.arrival("subscribe", 6)
        later = [ask for ask in broker.of("subscribe") if not ask.topic.endswith("-0")]
        assert sorted(ask.topic[-1] for ask in later) == ["1", "1", "2", "2"]
        assert all(ask.initialPosition == api.CommandSubscribe.Earliest for ask in later)
        assert [MessageId.from_wire(ask.start_message_id) for ask in later if not ask.durable] == [
            EARLIEST,
            EARLIEST,
        ]
        grown = {ask.topic[-1]: ask.consumer_id for ask in later if ask.durable}
        await broker.arrival("flow", 6)
        broker.deliver(grown["2"], [entry(b"new")], partition=2)
        message = await consumer.receive()
        await consumer.acknowledge(message)
        assert broker.of("ack")[0].consumer_id == grown["2"]
        while {partition_of(broker, send.producer_id) for send in broker.of("send")} != {0, 1, 2}:
            await producer.send(b"x")
        await asyncio.gather(consumer.close(), reader.close(), producer.close())
        assert (len(broker.of("close_consumer")), len(broker.of("close_producer"))) == (6, 3)

    run(scenario, partitions_check_s=0.01)


def test_plain_topics_and_single_partitions_are_not_looked_at_again() -> None:
    """Only partitioned topics grow."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        await client.subscribe("t", "s")
        await client.subscribe("u-partition-0", "s")
        asked = len(broker.of("partitioned_metadata"))
        await asyncio.sleep(0.05)
        assert len(broker.of("partitioned_metadata")) == asked == 1

    run(scenario, partitions_check_s=0.001)


def test_a_reader_reads_all_partitions() -> None:
    """It has a message as long as one partition has; an id of one partition is no place to start
    or seek for all."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        broker.partitions = 2
        last = {0: Position(-1, -1), 1: Position(-1, -1)}
        broker.script["get_last_message_id"] = lambda _, ask: commands.last_message_id(
            ask.request_id, commands.message_id_data(last[ask.consumer_id])
        )
        reader = await client.create_reader("t", EARLIEST)
        assert not await reader.has_message_available()
        last[1] = Position(7, 0)
        assert await reader.has_message_available()
        broker.deliver(1, [entry(b"a")], partition=1)
        assert (await reader.receive(10)).value == b"a"
        assert not await reader.has_message_available()
        await reader.seek(1234)
        assert sorted((ask.consumer_id, ask.message_publish_time) for ask in broker.of("seek")) == [
            (0, 1234),
            (1, 1234),
        ]
        with pytest.raises(InvalidRequest, match="without partitions"):
            await reader.seek(MessageId(7, 0))
        with pytest.raises(InvalidRequest, match="without partitions"):
            await client.create_reader("t", MessageId(7, 0))

    run(scenario)


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_read_back(codec: Compression) -> None:
    """What a producer compresses, alone or in a batch, its consumers unpack."""

    async def scenario(broker: ScriptedBroker, client: Client) -> None:
        producer = await client.create_producer(
            "t", compression=codec.value, batching=Batching(linger_s=0.01)
        )
        await asyncio.gather(*(producer.send(b"%d" % number * 500) for number in range(3)))
        found = open_entry("t", api.CommandMessage(consumer_id=0), broker.stored[0][1])
        assert isinstance(found, Received)
        assert [message.value for message in found.messages] == [b"0" * 500, b"1" * 500, b"2" * 500]
        assert codec is Compression.NONE or len(broker.stored[0][1]) < 500

    run(scenario)
