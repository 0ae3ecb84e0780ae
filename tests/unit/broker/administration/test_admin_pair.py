"""REST of two brokers that ask each other: what concerns bundles of both, and bundles that move
concurrently."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dev.ports import free_port
from magnetar.broker.administration import brokers as brokers_module
from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.administration.peers import ask_broker
from magnetar.broker.incarnation import Broker
from magnetar.broker.routes.application import create_application
from magnetar.errors import InUse, InvalidRequest, NotAllowed, ServiceNotReady
from magnetar.hosting.http import HttpListener
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.election import LeaderRecord
from magnetar.metadata.records import (
    BundleRecord,
    BundleState,
    IncarnationRecord,
    LogPosition,
    LogRange,
)
from magnetar.names import NamespaceName, TopicName
from tests.support.brokers import CLOCK, HOST, SETTINGS, STILL, Node, open_peer, volume_in
from tests.support.polling import until
from tests.support.rest import Process

DEFAULT = NamespaceName("public", "default")


class Pair:
    """Two brokers with their REST on real ports; nobody balances bundles."""

    def __init__(
        self, brokers: list[Broker], ports: list[BrokerAdministration], store: MemoryStore
    ) -> None:
        self.first, self.second = brokers
        self.port, self.other_port = ports
        self.store = store

    async def place(self, topic: TopicName, wanted: Broker) -> str:
        """Have a topic's bundle served by `wanted`; the bundle."""
        bundle = await self.first.ownership.bundle_of(topic)
        await self.first.ownership.resolve(bundle)
        both = (self.first, self.second)
        await until(lambda: any(str(bundle) in broker.ownership.owned for broker in both))
        if str(bundle) not in wanted.ownership.owned:
            source = self.first if wanted is self.second else self.second
            await source.ownership.move(str(bundle), wanted.incarnation, "test")
        await until(lambda: str(bundle) in wanted.ownership.owned)
        await until(
            lambda: all(
                broker.views.bundles.items[str(bundle)].record.incarnation == wanted.incarnation
                for broker in both
            )
        )
        return str(bundle)

    async def partitioned(self) -> list[TopicName]:
        """Two partitions of one topic in different bundles, the first served by the first
        broker, the second by the second."""
        for number in itertools.count():
            topic = TopicName.parse(f"persistent://{DEFAULT}/many{number}")
            parts = [topic.with_partition(index) for index in range(2)]
            if len({await self.first.ownership.bundle_of(part) for part in parts}) == 2:
                break
        await self.port.topics.create_partitions(topic, 2)
        for part, broker in zip(parts, (self.first, self.second), strict=True):
            await self.place(part, broker)
        return parts


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    store, settings = MemoryStore(CLOCK), replace(SETTINGS, balance=STILL)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        volume = await stack.enter_async_context(volume_in(directory))
        brokers, ports = [], []
        for name in ("first", "second"):
            number = free_port()
            broker = await Node(
                store, volume, name, settings, http_url=f"http://{HOST}:{number}"
            ).start()
            stack.push_async_callback(broker.close)
            port = BrokerAdministration(Process(directory, broker))
            listener = HttpListener(create_application(port), HOST, number)
            await listener.open()
            stack.push_async_callback(listener.close)
            brokers.append(broker)
            ports.append(port)
        await until(lambda: all(len(broker.views.incarnations.items) == 2 for broker in brokers))
        yield Pair(brokers, ports, store)


async def test_an_unload_to_a_broker_leaves_there_what_it_has(tmp_path: Path) -> None:
    """Of a namespace and of a partitioned topic: the other bundles go there, whichever broker has them;
    again it is nothing at all."""

    async with pair(tmp_path) as two:
        parts = await two.partitioned()
        topic, target = parts[0].base, two.second
        here, there = [str(await two.first.ownership.bundle_of(part)) for part in parts]
        await two.port.topics.unload_topic(topic, "second")
        await until(lambda: {here, there} <= set(target.ownership.owned))
        await until(
            lambda: two.first.views.bundles.items[here].record.incarnation == target.incarnation
        )
        await two.port.topics.unload_topic(topic, "second")
        assert {here, there} <= set(target.ownership.owned)
        with pytest.raises(NotAllowed, match="owns the bundle already"):
            await two.other_port.topics.unload_topic(parts[0], "second")
        await two.place(parts[0], two.first)
        await two.other_port.bundles.unload_namespace(
            DEFAULT, two.first.context.http_url.removeprefix("http://")
        )
        await until(lambda: {here, there} <= set(two.first.ownership.owned))


async def test_a_deletion_that_one_partition_refuses_deletes_none(tmp_path: Path) -> None:
    """Its client may be at another broker; without it all go, with their idle subscriptions."""

    async with pair(tmp_path) as two:
        parts = await two.partitioned()
        async with open_peer(two.first) as quiet:
            await quiet.produce(1, str(parts[0]))
            sent = await quiet.send(b"kept")
        async with open_peer(two.second) as peer:
            await peer.subscribe(1, str(parts[1]))
            mine = two.first.ownership.owned[str(await two.first.ownership.bundle_of(parts[0]))]
            await until(lambda: not len(mine.topics[str(parts[0])].core.producers))
            with pytest.raises(InUse, match="consumers connected to s"):
                await two.port.topics.delete_partitions(parts[0].base, force=False)
            host = await two.first.service.open_topic(parts[0], create=False)
            assert host.core.last_confirmed == sent
        served = two.second.ownership.owned[str(await two.second.ownership.bundle_of(parts[1]))]
        await until(lambda: not served.topics[str(parts[1])].subscriptions["s"].core.connected)
        await two.port.topics.delete_partitions(parts[0].base, force=False)
        assert not (await two.store.range(keys.partitioned_topics_in(DEFAULT))).items


async def test_a_request_follows_a_bundle_that_has_moved(tmp_path: Path) -> None:
    """The broker that had it sends us on to the one that has it."""

    async with pair(tmp_path) as two:
        topic = TopicName.parse(f"persistent://{DEFAULT}/t")
        await two.place(topic, two.second)
        await two.other_port.topics.create_topic(topic, {"a": "b"})
        path = f"/admin/v2/persistent/{DEFAULT}/t/properties?authoritative=false"
        assert await ask_broker(two.second.context, two.first.context.http_url, "GET", path) == {
            "a": "b"
        }


async def test_a_destination_is_found_as_brokers_are_listed(tmp_path: Path) -> None:
    """With plain ports closed, too: by name, by address as listed, and as a URL."""

    async with pair(tmp_path) as two:
        record = IncarnationRecord(
            "third",
            "pulsar+ssl://h:1",
            "https://third.example:8443",
            0,
            "1",
            http_url_tls="https://third.example:8443",
        )
        await two.store.put(keys.incarnation("third.1"), record.encode())
        await until(lambda: two.first.views.incarnations.get("third.1") is not None)
        listed = await two.port.brokers.brokers("")
        assert "third.example:8443" in listed
        for name in ("third", "third.example:8443", "https://third.example:8443"):
            assert two.port.moves.incarnation_of(name) == "third.1"
        found = {two.port.moves.incarnation_of(name) for name in listed}
        assert found == {two.first.incarnation, two.second.incarnation, "third.1"}
        for name in ("fourth", "third.example", ""):
            with pytest.raises(InvalidRequest):
                two.port.moves.incarnation_of(name)


async def test_who_asks_for_the_leader_waits_for_the_election(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While there is none, and while the one there is, is not in sight yet; not permanently."""

    async with pair(tmp_path) as two:
        for broker in (two.first, two.second):
            await broker.leader.stop()
        ghost = IncarnationRecord("third", "pulsar://h:1", "http://third.example:8080", 0, "1")
        await two.store.put(keys.LEADER, LeaderRecord("third.1").encode())
        asked = asyncio.create_task(two.port.brokers.leader_broker())
        await asyncio.sleep(3 * brokers_module.LEADER_LOOK_S)
        assert not asked.done()
        await two.store.put(keys.incarnation("third.1"), ghost.encode())
        assert await asked == {
            "serviceUrl": "http://third.example:8080",
            "brokerId": "third.example:8080",
        }
        await two.store.delete(keys.LEADER)
        asked = asyncio.create_task(two.other_port.brokers.leader_broker())
        await asyncio.sleep(3 * brokers_module.LEADER_LOOK_S)
        assert not asked.done()
        two.first.leader.start()
        assert (await asked)["serviceUrl"] == two.first.context.http_url
        await two.first.leader.stop()
        monkeypatch.setattr(brokers_module, "LEADER_S", 0.2)
        with pytest.raises(ServiceNotReady, match="no leader has been elected"):
            await two.port.brokers.leader_broker()


async def test_the_health_of_a_broker_does_not_depend_on_another(tmp_path: Path) -> None:
    """The owner of the bundle of the check's topic is registered and answers nothing: this broker
    is healthy, and checks its own parts."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            # else the garbage collection of a later test finds the socket open, and fails that test
            writer.transport.abort()

    silent = await asyncio.start_server(hang, HOST, 0)
    async with silent, pair(tmp_path) as two:
        brokers, topic = (
            (two.first, two.second),
            TopicName.parse("persistent://pulsar/system/healthcheck-first"),
        )
        url = f"{HOST}:{silent.sockets[0].getsockname()[1]}"
        hanging = IncarnationRecord("third", f"pulsar://{url}", f"http://{url}", 0, "1")
        await two.store.put(keys.incarnation("third.1"), hanging.encode())
        await until(
            lambda: all(broker.views.incarnations.get("third.1") is not None for broker in brokers)
        )
        chain = (LogRange("third.1", LogPosition(1, 0), None),)
        record = BundleRecord(BundleState.OWNED, 2, "third.1", chain=chain, epochs=(2,))
        bundle = await two.first.ownership.bundle_of(topic)
        await two.store.put(keys.bundle(bundle), record.encode())
        await until(lambda: two.first.views.bundles.get(str(bundle)) is not None)
        await two.port.brokers.check_health()
        assert two.first.metrics.traffic().messages_out == 0
        assert two.first.views.bundles.items[str(bundle)].record == record
