"""`magnetar.client` on a real server: the scenarios that it also passes on Apache Pulsar
(`python -m dev.peer_client`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from dev.client_scenarios import BASIC, TRANSACTIONAL
from dev.server_process import ServerProcess
from dev.testbed.rest import Admin
from magnetar.client import Client

SCENARIO_TIMEOUT_S = 300


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario", [*BASIC, *TRANSACTIONAL], ids=lambda scenario: str(scenario.__name__)
)
async def test_scenario(
    shared_server: ServerProcess, scenario: Callable[[Client, str], Awaitable[None]]
) -> None:
    """What the scenario's own sentence says."""

    async with asyncio.timeout(SCENARIO_TIMEOUT_S), Client(shared_server.service_url) as client:
        await scenario(client, f"own-{scenario.__name__}")


@pytest.mark.slow
async def test_a_topic_grows_under_its_producer_and_consumer(
    shared_server: ServerProcess, admin: Admin
) -> None:
    """From two partitions to four while both are in use: later ones get messages, and none is
    missing or comes twice."""
    topic = "persistent://public/default/own-growing"
    path = topic.replace("://", "/") + "/partitions"

    admin.call("PUT", path, 2)
    async with (
        asyncio.timeout(SCENARIO_TIMEOUT_S),
        Client(shared_server.service_url, partitions_check_s=0.1) as client,
    ):
        producer, consumer = (
            await client.create_producer(topic),
            await client.subscribe(topic, "work"),
        )
        await asyncio.to_thread(admin.call, "POST", path, 4)
        sent, found, used = 0, set[int](), set[int]()
        while used != {0, 1, 2, 3}:
            used.add((await producer.send(b"%d" % sent)).partition)
            sent += 1
        while len(found) < sent:
            message = await consumer.receive(SCENARIO_TIMEOUT_S)
            assert int(message.value) not in found
            found.add(int(message.value))
            await consumer.acknowledge(message)
