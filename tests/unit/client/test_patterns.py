"""One consumer of all topics that a pattern names, against a real broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.client import AlreadyClosed, Client, Consumer
from magnetar.client.patterns import TopicPattern
from magnetar.errors import InvalidRequest, InvalidTopicName
from magnetar.names import TopicName
from tests.support.brokers import running_broker

PREFIX = "persistent://public/default/"
RECEIVE_S = 120


@asynccontextmanager
async def connected(
    directory: Path, every_s: float | None = None
) -> AsyncIterator[tuple[Client, Broker]]:
    async with (
        running_broker(directory) as broker,
        Client(broker.service_url, operation_timeout_s=20, partitions_check_s=every_s) as client,
    ):
        yield client, broker


async def publish(client: Client, topic: str, value: bytes) -> None:
    producer = await client.create_producer(topic)
    await producer.send(value)
    await producer.close()


async def taken(consumer: Consumer, count: int) -> dict[str, bytes]:
    """So many messages by topic, acknowledged."""
    found = {}
    for _ in range(count):
        message = await consumer.receive(RECEIVE_S)
        await consumer.acknowledge(message)
        found[message.id.topic.removeprefix(PREFIX)] = message.value
    return found


async def test_it_receives_from_topics_that_match_and_come_and_go(tmp_path: Path) -> None:
    """A later one from its beginning; one that is deleted ends nothing; one that matches in part
    is none of it."""
    async with connected(tmp_path) as (client, broker):
        for name in ("orders-a", "orders-b", "other", "my-orders-c"):
            await publish(client, name, name.encode())
        consumer = await client.subscribe(
            re.compile("public/default/orders-.*"), "s", initial_position="Earliest"
        )
        assert set(consumer.topics) == {f"{PREFIX}orders-a", f"{PREFIX}orders-b"}
        assert await taken(consumer, 2) == {"orders-a": b"orders-a", "orders-b": b"orders-b"}
        await publish(client, "orders-new", b"1")
        await consumer.look_for_topics()
        assert await taken(consumer, 1) == {"orders-new": b"1"}
        gone = TopicName.parse("orders-a")
        topic = await broker.service.open_topic(gone, create=False)
        await topic.bundle.delete_topic(gone)
        await consumer.look_for_topics()
        assert set(consumer.topics) <= {f"{PREFIX}orders-{name}" for name in ("a", "b", "new")}
        await publish(client, "orders-b", b"2")
        assert await taken(consumer, 1) == {"orders-b": b"2"}
        await consumer.close()
        with pytest.raises(AlreadyClosed):
            await consumer.receive(RECEIVE_S)


async def test_it_may_begin_without_any_topic_and_looks_by_itself(tmp_path: Path) -> None:
    async with connected(tmp_path, every_s=0.05) as (client, _):
        consumer = await client.subscribe(re.compile("late-[0-9]+"), "s", type="Shared")
        assert consumer.topics == ()
        assert not consumer.end_of_topic
        await publish(client, "late-1", b"x")
        assert await taken(consumer, 1) == {"late-1": b"x"}
        iterated = asyncio.create_task(anext(aiter(consumer)))
        await publish(client, "late-2", b"y")
        assert (await asyncio.wait_for(iterated, RECEIVE_S)).value == b"y"


@pytest.mark.parametrize(
    ("pattern", "namespace", "local"),
    [
        ("a.*", "public/default", "a.*"),
        ("acme/eu/a/b.*", "acme/eu", "a/b.*"),
        ("persistent://acme/eu/x", "acme/eu", "x"),
    ],
)
def test_a_pattern_names_one_namespace(pattern: str, namespace: str, local: str) -> None:
    found = TopicPattern.parse(re.compile(pattern, re.IGNORECASE))
    assert (str(found.namespace), found.local.pattern) == (namespace, local)
    assert found.local.flags & re.IGNORECASE


def test_partitions_are_one_topic_and_names_match_as_a_whole() -> None:
    found = TopicPattern.parse(re.compile("a|b"))
    listed = [f"{PREFIX}{name}" for name in ("a-partition-0", "a-partition-1", "b", "ab", "xa")]
    assert found.topics(listed) == {f"{PREFIX}a", f"{PREFIX}b"}


@pytest.mark.parametrize("wrong", ["non-persistent://a/b/c", "default/a.*", "a b*/c/d", "//x"])
def test_a_pattern_without_a_namespace_is_refused(wrong: str) -> None:
    with pytest.raises((InvalidRequest, InvalidTopicName)):
        TopicPattern.parse(re.compile(wrong))
