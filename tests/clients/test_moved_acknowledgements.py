"""What two real clients had acknowledged before their consumers were closed for a move is not
delivered to them again.

Proxies before the brokers show every command that passes, in one order; the topics of the asyncio
client and of the official Python client are unloaded from broker to broker under traffic. Proved:
no message whose ACK had passed to the old owner before that consumer's CLOSE_CONSUMER passed to the
client is delivered again, and none is missed. Printed: what was delivered again for other reasons,
which are the client's: it had not acknowledged, or kept the acknowledgement for its next group.

MAGNETAR_ACKNOWLEDGED_MOVES: how often each topic moves (default 6).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from dev.testbed.cluster import PATIENCE_S, STILL, Cluster, wait_for
from magnetar.client import Client, MessageId
from tests.simulation.kernel.acknowledged import Passed, Subscribed

pytestmark = [pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(600)]

MOVES = int(os.environ.get("MAGNETAR_ACKNOWLEDGED_MOVES", "6"))
INTERVAL_S = 0.002
BETWEEN_MOVES_S = 0.3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers behind proxies; nobody but the test moves anything."""
    with Cluster(
        tmp_path_factory.mktemp("acknowledged"), environment=STILL, fronted=True
    ) as running:
        yield running


@pytest.fixture
def passed(cluster: Cluster) -> Iterator[Passed]:
    """What passes through the brokers' own ports."""
    found = Passed()
    for broker_port, _ in cluster.fronts.values():
        broker_port.tap = found.tap
    yield found
    for broker_port, _ in cluster.fronts.values():
        broker_port.tap = None


def _move(cluster: Cluster, topic: str) -> None:
    """From broker to broker, the topic's clients being as busy as before in between."""
    names = list(cluster.brokers)
    for _ in range(MOVES):
        owner = cluster.owner(topic)
        cluster.unload(topic, names[(names.index(owner) + 1) % len(names)])
        time.sleep(BETWEEN_MOVES_S)


def _judge(passed: Passed, topic: str, subscriptions: list[str], sent: int) -> None:
    for subscription in subscriptions:
        key = Subscribed(f"persistent://public/default/{topic}", subscription)
        again = sum(count - 1 for count in passed.delivered[key].values())
        ours = passed.repeated.get(key, set())
        print(
            f"  {topic} {subscription}: {passed.moves[key]} moves, {sent} sent, {again} delivered "
            f"again, {len(ours)} of them acknowledged before"
        )
        assert passed.moves[key] >= MOVES
        assert len(passed.delivered[key]) == sent
        assert not ours, (
            f"{len(ours)} messages that were acknowledged before the move came again: "
            f"{sorted(ours)[:5]}"
        )


def test_the_official_client_is_not_given_again_what_it_has_acknowledged(
    cluster: Cluster, passed: Passed, tmp_path: Path
) -> None:
    """Exclusive and Shared; it groups its acknowledgements for 100 ms, and sends the last group
    behind the move."""
    topic = "official"
    client = pulsar.Client(
        cluster.service_url,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log")),
    )
    seen: dict[str, set[int]] = {"exclusive": set(), "shared": set()}

    def take(name: str, consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        seen[name].add(int(message.data()))
        consumer.acknowledge(message)

    for name, kind in (
        ("exclusive", pulsar.ConsumerType.Exclusive),
        ("shared", pulsar.ConsumerType.Shared),
    ):
        client.subscribe(
            topic,
            name,
            consumer_type=kind,
            message_listener=lambda consumer, message, name=name: take(name, consumer, message),
        )
    producer, stopping, sent = (
        client.create_producer(
            topic, batching_enabled=False, block_if_queue_full=True, send_timeout_millis=120_000
        ),
        threading.Event(),
        [0],
    )

    def publish() -> None:
        while not stopping.wait(INTERVAL_S):
            producer.send_async(str(sent[0]).encode(), lambda _result, _id: None)
            sent[0] += 1

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        _move(cluster, topic)
    finally:
        stopping.set()
        publisher.join()
    producer.flush()
    wait_for(
        "everything is consumed", lambda: all(len(numbers) == sent[0] for numbers in seen.values())
    )
    client.close()
    _judge(passed, topic, ["exclusive", "shared"], sent[0])


async def test_our_client_is_not_given_again_what_it_has_acknowledged(
    cluster: Cluster, passed: Passed
) -> None:
    """Exclusive and Shared; it sends each acknowledgement at once."""
    topic = "own"

    async def scenario() -> int:
        async with Client(cluster.service_url) as client:
            consumers = {
                name: await client.subscribe(topic, name, type=kind)
                for name, kind in (("exclusive", "Exclusive"), ("shared", "Shared"))
            }
            producer, stopping = await client.create_producer(topic), asyncio.Event()
            seen: dict[str, set[int]] = {name: set() for name in consumers}

            async def consume(name: str) -> None:
                while True:
                    message = await consumers[name].receive()
                    seen[name].add(int(message.value or b""))
                    consumers[name].acknowledge_nowait(message)

            async def publish() -> int:
                sends: list[asyncio.Task[MessageId]] = []
                while not stopping.is_set():
                    sends.append(asyncio.create_task(producer.send(str(len(sends)).encode())))
                    await asyncio.sleep(INTERVAL_S)
                await asyncio.gather(*sends)
                return len(sends)

            consuming = [asyncio.create_task(consume(name)) for name in consumers]
            publishing = asyncio.create_task(publish())
            await asyncio.to_thread(_move, cluster, topic)
            stopping.set()
            sent = await publishing
            async with asyncio.timeout(PATIENCE_S):
                while any(len(numbers) < sent for numbers in seen.values()):
                    await asyncio.sleep(0.05)
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)
            return sent

    _judge(passed, topic, ["exclusive", "shared"], await scenario())
