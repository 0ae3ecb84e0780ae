"""How many topics a namespace may have: in all of its bundles, by whatever way they come to be,
partitions one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.errors import WireCode
from magnetar.metadata import keys
from magnetar.names import NamespaceName, TopicName
from tests.support.brokers import Peer, Type, command_frame, connected_peer
from tests.support.rest import NAMESPACE, TOPICS, Rest, rest_over

PUBLIC = NamespaceName("public", "default")
LIMIT = 8
LIMITS = ["policy", "setting"]


def full(local: str, domain: str = "persistent") -> str:
    return f"{domain}://{PUBLIC}/{local}"


@asynccontextmanager
async def limited(directory: Path, by: str) -> AsyncIterator[tuple[Broker, Peer, Rest]]:
    """A broker alone, a client of it, and its REST; the namespace may have LIMIT topics."""
    settings = {"topics_per_namespace_max": LIMIT} if by == "setting" else {}
    async with (
        connected_peer(directory, **settings) as (broker, peer),
        rest_over(directory, broker) as rest,
    ):
        if by == "policy":
            await rest("POST", f"{NAMESPACE}/maxTopicsPerNamespace", LIMIT)
        async with asyncio.timeout(120):
            while by == "policy" and not broker.service.namespace_policies(PUBLIC).max_topics:
                await asyncio.sleep(0.005)
        yield broker, peer, rest


async def produce(peer: Peer, producer_id: int, topic: str) -> int | None:
    """Look a topic up and create it by a producer; the code of the refusal, None if it is there
    now."""
    await peer.lookup(topic)
    answer = await peer.ask("producer", topic=topic, producer_id=producer_id)
    return int(answer.error.error) if answer.type == Type.ERROR else None


@pytest.mark.parametrize("by", LIMITS)
async def test_a_namespace_is_full_for_every_way_in_which_topics_come_to_be(
    tmp_path: Path, by: str
) -> None:
    """Plain ones in several bundles, without storage, partitioned by an administrator or by a
    look-up; what is full is not even written."""

    async with limited(tmp_path, by) as (broker, peer, rest):
        plain = [full(f"t{number}") for number in range(LIMIT - 3)]
        for number, topic in enumerate(plain):
            assert await produce(peer, number, topic) is None
        assert (
            len({await broker.ownership.bundle_of(TopicName.parse(topic)) for topic in plain}) > 1
        )
        await rest("PUT", f"{TOPICS}/p/partitions", 2)
        assert await produce(peer, 100, full("n", "non-persistent")) is None
        for topic in (full("more"), full("more", "non-persistent")):
            assert await produce(peer, 101, topic) == WireCode.NOT_ALLOWED
        await rest("PUT", f"{TOPICS}/more", status=409)
        await rest("PUT", f"{TOPICS}/more/partitions", 1, status=409)
        await rest("POST", f"{TOPICS}/p/partitions", 3, status=409)
        auto = {
            "allowAutoTopicCreation": True,
            "topicType": "partitioned",
            "defaultNumPartitions": 2,
        }
        await rest("POST", f"{NAMESPACE}/autoTopicCreation", auto)
        async with asyncio.timeout(120):
            while broker.service.namespace_policies(PUBLIC).auto_topic_creation.partitions != 2:
                await asyncio.sleep(0.005)
        for _ in range(3):
            answer = await peer.ask("partitioned_metadata", topic=full("auto"))
            assert answer.partitioned_metadata_response.error == WireCode.NOT_ALLOWED
        assert (
            await broker.context.store.get(keys.partitioned_topic(TopicName.parse(full("auto"))))
            is None
        )
        # The partitions that there are need no room; what is deleted makes some.
        assert await produce(peer, 102, full("p-partition-1")) is None
        for topic in plain[:2]:
            await rest("DELETE", f"{TOPICS}/{TopicName.parse(topic).local}?force=true")
            await peer.answer(Type.CLOSE_PRODUCER)
        answer = await peer.ask("partitioned_metadata", topic=full("auto"))
        assert answer.partitioned_metadata_response.partitions == 2
        assert await produce(peer, 103, full("more-partition-0")) == WireCode.NOT_ALLOWED


@pytest.mark.parametrize("by", LIMITS)
async def test_many_at_once_do_not_pass_the_limit(tmp_path: Path, by: str) -> None:
    """Creations that are under way count, and one topic that many ask for counts once."""

    async with limited(tmp_path, by) as (_broker, peer, _rest):
        topics = [full(f"t{number % (2 * LIMIT)}") for number in range(4 * LIMIT)]
        for topic in topics:
            await peer.lookup(topic)
        frames = [
            command_frame("producer", topic=topic, producer_id=number, request_id=number)
            for number, topic in enumerate(topics)
        ]
        peer.write(b"".join(frames))
        answers = [await peer.answer() for _ in topics]
        created = {
            answer.producer_success.request_id
            for answer in answers
            if answer.type == Type.PRODUCER_SUCCESS
        }
        assert {topics[number] for number in created} == set(topics[:LIMIT])
        refused = {answer.error.error for answer in answers if answer.type == Type.ERROR}
        assert refused == {WireCode.NOT_ALLOWED}


@pytest.mark.parametrize("by", LIMITS)
async def test_topics_of_the_machinery_count_for_the_broker_alone(tmp_path: Path, by: str) -> None:
    """The policy, as Pulsar's, does not see them; the setting bounds whatever clients may
    create."""

    async with limited(tmp_path, by) as (_broker, peer, _rest):
        for number in range(LIMIT):
            assert await produce(peer, number, full(f"__transaction_log_{number}")) is None
        assert await produce(peer, 100, full("t")) == (
            None if by == "policy" else WireCode.NOT_ALLOWED
        )
