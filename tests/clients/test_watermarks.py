"""Event-time watermarks with `magnetar.client` on a real server that is killed midway."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pulsar
import pytest

from dev.server_process import ServerProcess
from dev.testbed.rest import Admin
from magnetar.client import EARLIEST, Client, Consumer, Message, Producer, Reset, Watermark
from magnetar.wire.watermarks import PROPERTY
from tests.clients.restarts import restart

WAIT_S = 300
MESSAGES, PRODUCERS, STEP_MS = 150, 2, 10


@pytest.fixture
def topic(request: pytest.FixtureRequest, admin: Admin) -> str:
    """A topic of the test's own, with watermarks."""
    name = f"persistent://public/default/{request.node.name}"
    path = name.replace("://", "/")
    admin.call("PUT", path)
    admin.call("POST", f"{path}/watermarks", {"enabled": True, "idleTimeout": 0})
    return name


@asynccontextmanager
async def connected(server: ServerProcess) -> AsyncIterator[Client]:
    async with asyncio.timeout(WAIT_S), Client(server.service_url) as client:
        yield client


async def produce(producer: Producer[bytes], number: int, messages: int = MESSAGES) -> None:
    """Messages out of order by up to 9 ms, each ten followed by what is true of the rest."""
    for index in range(messages):
        event_ms = index * STEP_MS + (index * 7 + number) % STEP_MS
        producer.send_nowait(b"%d" % event_ms, event_time=event_ms)
        if index % 10 == 9:
            await producer.watermark((index + 1) * STEP_MS)


class Seen:
    """What a consumer received, checked as it comes."""

    def __init__(self) -> None:
        self.watermark: int | None = None
        self.events: dict[tuple[str, int], int] = {}
        self.advances = 0

    def take(self, received: Message[bytes] | Watermark | Reset) -> None:
        if isinstance(received, Message):
            assert received.event_time_ms is not None
            assert self.watermark is None or received.event_time_ms >= self.watermark
            # what got no receipt before the kill was sent again, and may be there twice
            self.events[received.producer_name, received.sequence_id] = received.event_time_ms
        elif isinstance(received, Reset):
            self.watermark = received.event_ms
        else:
            assert self.watermark is None or received.event_ms > self.watermark
            self.watermark, self.advances = received.event_ms, self.advances + 1


async def drain(
    consumer: Consumer[bytes], seen: Seen, until_ms: int, messages: int = PRODUCERS * MESSAGES
) -> None:
    """Receive until everything was seen and the watermark has come; acknowledge each message."""
    while len(seen.events) < messages or seen.watermark != until_ms:
        received = await consumer.receive_or_watermark()
        seen.take(received)
        if isinstance(received, Message):
            consumer.acknowledge_nowait(received)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Failover"])
async def test_no_message_is_older_than_the_watermark(
    shared_server: ServerProcess, topic: str, kind: str
) -> None:
    """Two producers that keep their promises; the server is killed in the middle, and everything
    that both asserted arrives in the end."""
    seen, end_ms = Seen(), MESSAGES * STEP_MS
    async with connected(shared_server) as client:
        consumer = await client.subscribe(topic, "s", type=kind, watermarks=True)
        producers = [await client.create_producer(topic, f"p{n}") for n in range(PRODUCERS)]
        for producer in producers:
            await producer.watermark(0)
        sending = [
            asyncio.create_task(produce(producer, number))
            for number, producer in enumerate(producers)
        ]
        draining = asyncio.create_task(drain(consumer, seen, end_ms))
        while not seen.advances:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(restart, shared_server)
        await asyncio.gather(*sending, draining)
        assert consumer.last_watermark == end_ms
        assert consumer.late_messages == 0
        assert len(seen.events) == PRODUCERS * MESSAGES


@pytest.mark.slow
async def test_a_subscription_that_comes_later_and_seeks(
    shared_server: ServerProcess, topic: str
) -> None:
    """It gets the watermarks of the past, behind what it acknowledges; after a seek back a reset,
    then the same ones again."""
    end_ms = MESSAGES * STEP_MS
    async with connected(shared_server) as client:
        producer = await client.create_producer(topic)
        await producer.watermark(0)
        await produce(producer, 0)
        changes: list[Watermark | Reset] = []
        consumer = await client.subscribe(
            topic, "late", initial_position="Earliest", on_watermark=changes.append
        )
        seen = Seen()
        await drain(consumer, seen, end_ms, MESSAGES)
        assert not any(isinstance(change, Reset) for change in changes)

        await consumer.seek(EARLIEST)
        again = Seen()
        again.watermark = end_ms
        while again.watermark is not None and again.watermark > 0:
            again.take(await consumer.receive_or_watermark())
        await drain(consumer, again, end_ms, MESSAGES)
        assert again.events == seen.events
        assert any(isinstance(change, Reset) for change in changes)


@pytest.mark.slow
async def test_the_minimum_over_partitions(shared_server: ServerProcess, admin: Admin) -> None:
    """An assertion goes to all partitions; the consumer's watermark is the least of them, and an
    idle producer does not hold it."""
    name = "persistent://public/default/marks-partitioned"
    path = name.replace("://", "/")
    admin.call("PUT", f"{path}/partitions", 3)
    admin.call("POST", f"{path}/watermarks", {"enabled": True})
    async with connected(shared_server) as client:
        consumer = await client.subscribe(name, "s", watermarks=True)
        fast, slow = await client.create_producer(name), await client.create_producer(name)
        await slow.watermark(50)
        await fast.watermark(100)
        view = aiter(consumer.watermarks())
        found: Watermark | Reset = Watermark(0)
        while found.event_ms != 50:
            found = await anext(view)
        await slow.idle()
        while found.event_ms != 100:
            found = await anext(view)
        message = await fast.send(b"late", event_time=20)
        received = await consumer.receive()
        assert received.id.position == message.position
        assert consumer.late_messages == 1


@pytest.mark.slow
async def test_an_assertion_in_a_transaction_takes_effect_with_its_commit(
    shared_server: ServerProcess, topic: str
) -> None:
    """What was sent in an open transaction holds the watermark, whatever is asserted outside."""
    async with connected(shared_server) as client:
        consumer = await client.subscribe(topic, "s", watermarks=True)
        producer = await client.create_producer(topic)
        await producer.watermark(10)
        txn = client.transaction()
        await txn.begin()
        await producer.send(b"in", txn=txn, event_time=12)
        await producer.watermark(40, txn=txn)
        await producer.watermark(30)
        other = await producer.send(b"out", event_time=35)
        received = await consumer.receive()
        assert received.id == other
        await consumer.acknowledge(received)
        await asyncio.sleep(0.2)
        assert consumer.last_watermark == 10
        await txn.commit()
        received = await consumer.receive()
        assert (received.value, received.event_time_ms) == (b"in", 12)
        assert consumer.last_watermark == 10
        await consumer.acknowledge(received)
        async for change in consumer.watermarks():
            if change.event_ms == 40:
                break
        assert consumer.late_messages == 0


@pytest.mark.slow
async def test_a_policy_that_is_off_refuses(shared_server: ServerProcess, admin: Admin) -> None:
    """The error names the policy. Without one a producer may assert."""
    path = "persistent/public/default/marks-off"
    async with connected(shared_server) as client:
        producer = await client.create_producer("marks-off")
        await producer.watermark(1)
        admin.call("POST", f"{path}/watermarks", {"enabled": False})
        with pytest.raises(Exception, match="policy watermarks"):
            await producer.watermark(2)


@pytest.mark.slow
def test_the_example_closes_the_windows_of_an_offline_computation(
    shared_server: ServerProcess,
) -> None:
    """As its reader runs it."""
    ran = subprocess.run(
        [
            sys.executable,
            "examples/event_time_windows.py",
            "--service-url",
            shared_server.service_url,
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    found = json.loads(ran.stdout)
    assert found["windows"] == found["offline"]
    assert sum(found["windows"].values()) == 400
    assert found["late"] == 3


@pytest.mark.slow
async def test_a_client_without_the_commands_asserts_by_a_property(
    shared_server: ServerProcess, topic: str, admin: Admin
) -> None:
    """The official Python client sends the property; our consumer gets the watermark, and REST has
    it for others."""
    async with connected(shared_server) as ours:
        consumer = await ours.subscribe(topic, "s", watermarks=True)
        await asyncio.to_thread(_send_officially, shared_server, topic, {PROPERTY: "10"})
        received = await consumer.receive()
        await consumer.acknowledge(received)
        async for change in consumer.watermarks():
            assert change.event_ms == 10
            break
        path = topic.replace("://", "/") + "/subscription/s/watermark"
        found = await asyncio.to_thread(admin.call, "GET", path)
        assert found["watermark"] == 10
        assert found["boundedBy"] == {"producer": "official", "eventTime": 10}
        await asyncio.to_thread(_send_officially, shared_server, topic, {PROPERTY: "idle"})
        await consumer.acknowledge(await consumer.receive())
        found = await asyncio.to_thread(admin.call, "GET", path)
        assert (found["watermark"], found["boundedBy"], found["activeProducers"]) == (10, None, 0)


def _send_officially(server: ServerProcess, topic: str, properties: dict[str, str]) -> None:
    """One message of the official Python client."""
    client = pulsar.Client(
        server.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    producer = client.create_producer(topic, producer_name="official")
    producer.send(b"a", event_timestamp=5, properties=properties)
    client.close()
