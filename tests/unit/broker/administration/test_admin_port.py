"""The broker's side of REST, over a real broker: what it answers, and how it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.incarnation import Broker
from magnetar.errors import InvalidRequest, MagnetarError, ServiceNotReady
from magnetar.names import NamespaceName, TopicName, initial_boundaries
from tests.support.brokers import TOPIC, Peer, Type, open_peer, running_broker

DEFAULT = NamespaceName("public", "default")
NAME = TopicName.parse(TOPIC)
ABSENT = TopicName.parse("persistent://public/default/absent")


class Process:
    """A process as the port sees it: which incarnation runs now, and on what directory."""

    store_name = "memory"
    coordinator = None

    def __init__(self, directory: Path, broker: Broker | None) -> None:
        self.volume_location, self.broker = str(directory), broker


Script = Callable[[BrokerAdministration, Broker, Peer], Coroutine[Any, Any, None]]


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[tuple[BrokerAdministration, Broker, Peer]]:
    async with running_broker(directory) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce()
        yield BrokerAdministration(Process(directory, broker)), broker, peer


async def play(directory: Path, script: Script) -> None:
    async with opened(directory) as (port, broker, peer):
        await script(port, broker, peer)


async def test_status_names_brokers_bundles_and_the_leader(tmp_path: Path) -> None:
    async def script(port: BrokerAdministration, broker: Broker, _peer: Peer) -> None:
        async with asyncio.timeout(120):
            while not (status := await port.health.status())["leader"]:
                await asyncio.sleep(0.01)
        assert status["leader"] == status["incarnation"] == broker.incarnation
        [row] = status["brokers"]
        assert (row["broker"], row["state"], row["bundles"], row["service_url"]) == (
            "broker-0",
            "serving",
            1,
            broker.service_url,
        )
        assert [(bundle["state"], bundle["owner"]) for bundle in status["bundles"]] == [
            ("Owned", broker.incarnation)
        ]
        assert port.health.ready()
        metrics = b"".join([piece async for piece in port.health.metrics()])
        assert b"magnetar_bundles_owned 1.0" in metrics

    await play(tmp_path, script)


async def test_stats_tell_what_happened(tmp_path: Path) -> None:
    """Messages, producers, subscriptions and their backlog."""

    async def script(port: BrokerAdministration, _broker: Broker, peer: Peer) -> None:
        for number in range(3):
            await peer.send(b"x", number)
        assert (await peer.subscribe(subscription="s")).type == Type.SUCCESS
        stats = await port.topics.stats(NAME)
        assert (stats["msgInCounter"], len(stats["publishers"])) == (3, 1)
        assert (stats["subscriptions"]["s"]["msgBacklog"], stats["subscriptions"]["s"]["type"]) == (
            3,
            "Exclusive",
        )
        assert len(stats["subscriptions"]["s"]["consumers"]) == 1

    await play(tmp_path, script)


async def test_namespaces_and_partitioned_topics_are_created_once(tmp_path: Path) -> None:
    async def script(port: BrokerAdministration, _broker: Broker, _peer: Peer) -> None:
        name, many = NamespaceName("public", "b"), TopicName.parse("persistent://public/b/many")
        await port.namespaces.create_namespace(
            name, initial_boundaries(8), {"message_ttl_in_seconds": 1}
        )
        found = await port.namespaces.namespace(name)
        assert (found["bundles"]["numBundles"], found["message_ttl_in_seconds"]) == (8, 1)
        assert await port.topics.topics(name) == []
        await port.topics.create_partitions(many, 3)
        assert await port.topics.partitions(many, may_create=False) == 3
        for again in (
            port.namespaces.create_namespace(name, initial_boundaries(8), {}),
            port.topics.create_partitions(many, 3),
        ):
            with pytest.raises(MagnetarError) as refused:
                await again
            assert refused.value.http_status == 409

    await play(tmp_path, script)


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda port: port.namespaces.namespace(NamespaceName("no", "where")), 404),
        (lambda port: port.topics.topics(NamespaceName("no", "where")), 404),
        (lambda port: port.topics.stats(ABSENT), 404),
        (lambda port: port.topics.roll(ABSENT), 404),
        (lambda port: port.health.lookup(TopicName.parse("persistent://no/where/t"), ""), 404),
        (
            lambda port: port.topics.create_partitions(
                TopicName.parse("persistent://no/where/t"), 1
            ),
            404,
        ),
        (lambda port: port.topics.create_partitions(ABSENT, 0), 406),
        (lambda port: port.topics.create_partitions(ABSENT, 5000), 406),
        (lambda port: port.topics.unload_topic(NAME, "nobody"), 400),
        (lambda port: port.topics.unload_topic(NAME, "broker-0"), 409),
    ],
)
async def test_refusals_have_the_status_that_admin_clients_expect(
    tmp_path: Path, ask: Callable[[BrokerAdministration], Coroutine[Any, Any, Any]], status: int
) -> None:
    """404 for what is not there, 409 for what conflicts, 400, 406 and 412 for what is wrong."""

    async def script(port: BrokerAdministration, _broker: Broker, peer: Peer) -> None:
        if status == 404:
            await peer.lookup(str(ABSENT))
        with pytest.raises(MagnetarError) as refused:
            await ask(port)
        assert refused.value.http_status == status, refused.value
        assert not isinstance(refused.value, InvalidRequest) or ":" in str(refused.value), (
            "names the field"
        )

    await play(tmp_path, script)


async def test_an_unload_with_nobody_to_take_over_comes_back(tmp_path: Path) -> None:
    """The only broker frees the bundle, clients are sent away, and the next lookup brings it
    back with everything in it."""

    async def script(port: BrokerAdministration, broker: Broker, peer: Peer) -> None:
        await peer.send(b"x")
        await port.topics.unload_topic(NAME, "")
        assert (await peer.answer()).type == Type.CLOSE_PRODUCER
        assert not broker.ownership.owned
        assert (await port.health.lookup(NAME, ""))["brokerUrl"] == broker.service_url
        assert await port.topics.topics(DEFAULT) == [TOPIC]

    await play(tmp_path, script)


async def test_nothing_is_answered_before_the_broker_is_ready_or_after_it_failed(
    tmp_path: Path,
) -> None:
    """503 and not ready, but alive: an orchestrator must not kill a process that is about to
    serve again."""

    async def script(port: BrokerAdministration, broker: Broker, _peer: Peer) -> None:
        broker.fail("test")
        assert (port.health.ready(), port.health.live()) == (False, True)
        with pytest.raises(ServiceNotReady):
            await port.health.status()
        starting = BrokerAdministration(Process(tmp_path, None))
        assert (starting.health.ready(), starting.health.live()) == (False, True)
        assert [piece async for piece in starting.health.metrics()] == [b""]
        with pytest.raises(ServiceNotReady):
            await starting.topics.topics(DEFAULT)

    await play(tmp_path, script)
