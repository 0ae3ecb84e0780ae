"""One consumer of several topics, against a real broker: everything finds its way back to the
topic that it came from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.client import Client, Consumer, DeadLetterPolicy, Message
from magnetar.errors import ConsumerBusy, InvalidRequest, InvalidTopicName
from magnetar.names import TopicName
from tests.support.brokers import running_broker

PREFIX = "persistent://public/default/"
TOPICS = ["a", "b", "c", "d", "e"]
RECEIVE_S = 120
Scenario = Callable[[Client, Broker], Awaitable[None]]


def run(directory: Path, scenario: Scenario, **settings: Any) -> None:
    async def main() -> None:
        async with (
            running_broker(directory, **settings) as broker,
            Client(broker.service_url) as client,
        ):
            await scenario(client, broker)

    asyncio.run(main())


async def publish(client: Client, count: int, topics: list[str] = TOPICS) -> None:
    """So many messages on each topic; each says where it is."""
    for topic in topics:
        producer = await client.create_producer(topic)
        for number in range(count):
            await producer.send(f"{topic} {number}".encode())


async def receive(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(RECEIVE_S) for _ in range(count)]


def values(messages: list[Message]) -> list[bytes]:
    return sorted(message.data for message in messages)


def everything(count: int) -> list[bytes]:
    return sorted(f"{topic} {number}".encode() for topic in TOPICS for number in range(count))


def test_messages_of_all_topics_come_with_ids_that_name_theirs(tmp_path: Path) -> None:
    """In the order of each topic; messages, and ids alone, are acknowledged where they belong."""

    async def scenario(client: Client, _broker: Broker) -> None:
        await publish(client, 4)
        consumer = await client.subscribe(TOPICS, "s", initial_position="Earliest")
        assert consumer.topics == tuple(PREFIX + topic for topic in TOPICS)
        found = await receive(consumer, 20)
        for topic in TOPICS:
            mine = [message for message in found if message.id.topic == PREFIX + topic]
            assert [message.data for message in mine] == [
                f"{topic} {number}".encode() for number in range(4)
            ]
            await consumer.acknowledge(mine[0])
            await consumer.acknowledge(mine[1].id)
            await consumer.acknowledge_cumulative(mine[2].id)
        await consumer.close()
        again = await client.subscribe(TOPICS, "s")
        assert values(await receive(again, 5)) == [f"{topic} 3".encode() for topic in TOPICS]
        await again.unsubscribe()

    run(tmp_path, scenario)


def test_what_is_refused_or_not_acknowledged_in_time_comes_again_from_its_topic(
    tmp_path: Path,
) -> None:
    """Topics may give equal (ledger, entry): acknowledging one's message leaves another's alone."""

    async def scenario(client: Client, _broker: Broker) -> None:
        await publish(client, 1)
        refused = await client.subscribe(
            TOPICS, "n", type="Shared", initial_position="Earliest", negative_ack_delay_s=0.05
        )
        for message in await receive(refused, 5):
            if message.data in (b"a 0", b"d 0"):
                refused.negative_acknowledge(message.id)
            else:
                await refused.acknowledge(message)
        again = await receive(refused, 2)
        assert values(again) == [b"a 0", b"d 0"]
        assert {message.redelivery_count for message in again} == {1}
        late = await client.subscribe(
            TOPICS, "t", type="Shared", initial_position="Earliest", ack_timeout_s=2.0
        )
        for message in await receive(late, 5):
            if message.data == b"b 0":
                await late.acknowledge(message)
        left = await receive(late, 4)
        assert values(left) == [b"a 0", b"c 0", b"d 0", b"e 0"]
        late.redeliver(left)
        assert values(await receive(late, 4)) == values(left)

    run(tmp_path, scenario)


def test_dead_letters_go_to_the_topic_of_their_own(tmp_path: Path) -> None:
    async def scenario(client: Client, _broker: Broker) -> None:
        await publish(client, 1, ["a", "b"])
        policy = DeadLetterPolicy(redeliveries_max=1, initial_subscription="first")
        consumer = await client.subscribe(
            ["a", "b"],
            "s",
            type="Shared",
            initial_position="Earliest",
            negative_ack_delay_s=0.05,
            dead_letter=policy,
        )
        for _ in range(4):
            consumer.negative_acknowledge(await consumer.receive(RECEIVE_S))
        buried = await client.subscribe(
            ["a-s-DLQ", "b-s-DLQ"], "first", initial_position="Earliest"
        )
        found = await receive(buried, 2)
        assert {message.id.topic.removeprefix(PREFIX): message.data for message in found} == {
            "a-s-DLQ": b"a 0",
            "b-s-DLQ": b"b 0",
        }

    run(tmp_path, scenario)


def test_a_seek_by_time_holds_for_all_and_one_by_id_for_its_topic(tmp_path: Path) -> None:
    async def scenario(client: Client, _broker: Broker) -> None:
        await publish(client, 3)
        consumer = await client.subscribe(TOPICS, "s", initial_position="Earliest")
        found = await receive(consumer, 15)
        await asyncio.gather(*(consumer.acknowledge(message) for message in found))
        await consumer.seek(0)
        assert values(await receive(consumer, 15)) == everything(3)
        await asyncio.gather(*(consumer.acknowledge(message) for message in found))
        (second,) = [message for message in found if message.data == b"c 1"]
        await consumer.seek(second.id)
        assert [message.data for message in await receive(consumer, 2)] == [b"c 1", b"c 2"]
        with pytest.raises(InvalidRequest, match="without partitions"):
            await consumer.seek(second.id._replace(topic=""))

    run(tmp_path, scenario)


def test_partitioned_topics_may_be_among_them(tmp_path: Path) -> None:
    """Ids name the partition."""

    async def scenario(client: Client, broker: Broker) -> None:
        await broker.service.partitioning.create(TopicName.parse("p"), 3)
        await publish(client, 6, ["p", "a"])
        consumer = await client.subscribe({"p", "a"}, "s", initial_position="Earliest")
        found = await receive(consumer, 12)
        assert {message.id.topic for message in found} == {
            PREFIX + "a",
            *(f"{PREFIX}p-partition-{number}" for number in range(3)),
        }
        await asyncio.gather(*(consumer.acknowledge(message.id) for message in found))
        await consumer.close()
        again = await client.subscribe(["a", "p"], "s")
        with pytest.raises(TimeoutError):
            await again.receive(0.2)

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "names none"),
        (["a", "b", "persistent://public/default/a"], "twice"),
        (["a", 3], "neither a name nor a list"),
        (7, "neither a name nor a list"),
        (None, "neither a name nor a list"),
    ],
)
def test_what_is_no_list_of_topics_is_refused_in_words(
    tmp_path: Path, given: Any, words: str
) -> None:
    async def scenario(client: Client, _broker: Broker) -> None:
        with pytest.raises(InvalidRequest, match=words):
            await client.subscribe(given, "s")
        with pytest.raises(InvalidTopicName):
            await client.subscribe(["a", "//"], "s")

    run(tmp_path, scenario)


def test_one_topic_that_cannot_be_had_leaves_nothing_attached(tmp_path: Path) -> None:
    """And ids of others are refused in words."""

    async def scenario(client: Client, broker: Broker) -> None:
        taken = await client.subscribe("b", "s")
        other = await client.create_producer("a")
        with pytest.raises(ConsumerBusy):
            await client.subscribe(["a", "b"], "s")
        await taken.close()
        consumer = await client.subscribe(["a", "b"], "s")
        sent = await other.send(b"x")
        found = await consumer.receive(RECEIVE_S)
        for wrong, words in (
            (sent, "names no topic"),
            (found.id._replace(topic="persistent://x/y/z"), "none of"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                await consumer.acknowledge(wrong)
        await consumer.acknowledge(found)
        assert len(broker._connections.open()[0].sessions.consumers) == 2

    run(tmp_path, scenario)
