"""The coordinator of a standalone server begins when it is asked for the first time; it may fail
at that, and the server may stop concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.broker.commands.transaction_ends import Ending
from magnetar.broker.incarnation import Broker
from magnetar.broker.standalone_coordinator import StandaloneCoordinator
from magnetar.client import EARLIEST, Client
from magnetar.errors import StorageFull, WireCode
from magnetar.hosting.identity import ProcessIdentity, ProcessPorts
from magnetar.hosting.settings import BrokerSettings
from magnetar.hosting.usage import ProcessUsage
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.leases import LeaseKeeper
from magnetar.names import TopicName
from magnetar.network import AsyncioNetwork, P
from magnetar.storage import names
from magnetar.storage.volumes.posix import PosixVolume
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import CLOCK, HOST, SETTINGS
from tests.support.coordinators import TransactionPeer

ANSWER_S = 120.0


class FillingVolume(PosixVolume):
    """While it is `full` it takes no checkpoint of a coordinator."""

    full = False

    async def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.full and name.startswith(names.COORDINATORS):
            raise StorageFull(f"{name}: no space left")
        return await super().put_if_absent(name, data)


class NobodyElse(AsyncioNetwork):
    """Connects to nobody."""

    async def connect(self, host: str, port: int, factory: Callable[[], P]) -> P:
        raise AssertionError(f"a standalone server connects to {host}:{port} with {factory}")


def standalone_at(
    volume: PosixVolume, store: MemoryStore, settings: BrokerSettings = SETTINGS
) -> tuple[StandaloneCoordinator, Callable[[], Broker]]:
    """The coordinator of a server, and what makes an incarnation of its broker."""
    lease = SETTINGS.lease_ttl_s
    ports = ProcessPorts(
        CLOCK,
        NobodyElse(),
        volume,
        store,
        lambda lost: LeaseKeeper(store, CLOCK, lease, lost),
        ProcessUsage(),
    )
    identity = ProcessIdentity("standalone", HOST, HOST, 0, f"http://{HOST}:0")
    coordinator = StandaloneCoordinator(ports, identity, settings)
    return coordinator, lambda: Broker(ports, identity, settings, coordinator.begin)


@asynccontextmanager
async def incarnation(coordinator: StandaloneCoordinator, broker: Broker) -> AsyncIterator[None]:
    """It serves, and ends as after a failure unless it was stopped."""
    try:
        await broker.start()
        yield
    finally:
        await coordinator.close()
        await broker.close()


@asynccontextmanager
async def standalone(
    volume: PosixVolume, store: MemoryStore, settings: BrokerSettings = SETTINGS
) -> AsyncIterator[tuple[Broker, StandaloneCoordinator]]:
    """A broker with a coordinator of its own."""
    coordinator, make = standalone_at(volume, store, settings)
    broker = make()
    try:
        async with incarnation(coordinator, broker):
            yield broker, coordinator
    finally:
        await volume.close()


@asynccontextmanager
async def connected(broker: Broker) -> AsyncIterator[TransactionPeer]:
    peer = TransactionPeer(
        *await asyncio.open_connection(HOST, int(broker.service_url.rpartition(":")[2]))
    )
    try:
        peer.write(requests.connect("test", 21))
        await peer.answer(api.BaseCommand.Type.CONNECTED)
        yield peer
    finally:
        await peer.close()


async def test_one_that_cannot_begin_is_refused_for_now_and_tried_again(tmp_path: Path) -> None:
    """Its disk is full: clients are asked to try again, the server goes on, and nothing holds the
    number when it is tried again."""

    store, volume = MemoryStore(CLOCK), FillingVolume(tmp_path)
    async with standalone(volume, store) as (broker, _), connected(broker) as peer:
        volume.full = True
        for _attempt in range(2):
            peer.write(requests.new_txn(peer.next_request(), 0, 60_000))
            refused = (await peer.answer(api.BaseCommand.Type.ERROR)).error
            assert (int(refused.error), "cannot begin" in refused.message) == (
                int(WireCode.SERVICE_NOT_READY),
                True,
            )
            assert await store.get(keys.coordinator_claim(0)) is None
        assert broker.ready
        volume.full = False
        txn = await peer.begin()
        assert txn.most == 0
    await store.close()


async def test_it_asks_its_participants_within_the_process(tmp_path: Path) -> None:
    """A transaction that consumes and produces commits, another one aborts, and the server has
    connected to nobody, itself included."""

    store, volume = MemoryStore(CLOCK), PosixVolume(tmp_path)
    topics = [f"persistent://public/default/{name}" for name in ("in", "out")]
    async with standalone(volume, store) as (broker, _), Client(broker.service_url) as client:
        consumer = await client.subscribe(topics[0], "s", initial_position="Earliest")
        outcomes = await client.subscribe(topics[1], "s", initial_position="Earliest")
        inputs, outputs = [await client.create_producer(topic) for topic in topics]
        await inputs.send(b"first")
        for value in (b"of the one that aborts", b"of the one that commits"):
            message = await consumer.receive(ANSWER_S)
            txn = client.transaction()
            await txn.begin()
            await outputs.send(value, txn=txn)
            await consumer.acknowledge(message, txn=txn)
            await (txn.commit() if value.endswith(b"commits") else txn.abort())
        await inputs.send(b"second")
        assert (await consumer.receive(ANSWER_S)).value == b"second", (
            "the first one was acknowledged"
        )
        await outputs.send(b"an ordinary one behind them")
        assert [(await outcomes.receive(ANSWER_S)).value for _ in range(2)] == [
            value,
            b"an ordinary one behind them",
        ]
    await store.close()


async def test_a_transaction_ends_at_a_topic_that_nobody_has_looked_up(tmp_path: Path) -> None:
    """Its bundle has no owner when the transaction is decided: it is assigned as by a look-up,
    and the topic does not exist."""

    store, volume = MemoryStore(CLOCK), PosixVolume(tmp_path)
    async with standalone(volume, store) as (broker, coordinator), connected(broker) as peer:
        txn = await peer.begin("persistent://public/default/nowhere")
        assert not broker.ownership.owned
        assert not (await peer.end(txn)).HasField("error")
        assert coordinator._life is not None
        assert coordinator._life.service.transactions is not None
        assert (coordinator._life.service.transactions.live, len(broker.ownership.owned)) == (
            0,
            1,
        )
    await store.close()


async def test_what_was_committed_outlives_the_loss_of_its_namespaces_record(
    tmp_path: Path,
) -> None:
    """The record is gone when the transaction is decided, and put back: then its message is
    there, and what follows it."""

    store, volume = MemoryStore(CLOCK), PosixVolume(tmp_path)
    topic = "persistent://public/default/out"
    async with (
        standalone(volume, store) as (broker, coordinator),
        Client(broker.service_url) as client,
    ):
        output = await client.create_producer(topic)
        reader = await client.create_reader(topic, EARLIEST)
        key, namespaces = (
            keys.namespace(TopicName.parse(topic).namespace_name),
            broker.views.namespaces,
        )
        async with client.transaction() as txn:
            await output.send(b"committed", txn=txn)
            lost = await store.get(key)
            assert lost is not None
            await store.delete(key)
            async with asyncio.timeout(ANSWER_S):
                while namespaces.get("public/default") is not None:
                    await asyncio.sleep(0.01)
        assert coordinator._life is not None
        assert coordinator._life.service.transactions is not None
        assert coordinator._life.service.transactions.live == 1, "it has not ended at its topic"
        await store.put(key, lost.value)
        assert (await reader.receive(ANSWER_S)).value == b"committed"
        await output.send(b"later")
        assert (await reader.receive(ANSWER_S)).value == b"later"
    await store.close()


async def test_a_surprise_at_a_participant_ends_neither_coordinator_nor_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that never answers. The end is tried again, and takes place."""
    surprises: list[Exception | None] = [
        FileNotFoundError("a file"),
        AssertionError("a mistake of ours"),
        None,
    ]
    settings = replace(SETTINGS, transaction_participant_timeout_s=0.2)
    ordinary = Ending.end_on_partition

    async def surprising(
        ending: Ending, topic: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        if surprises:
            if (surprise := surprises.pop()) is not None:
                raise surprise
            await asyncio.Event().wait()
        await ordinary(ending, topic, txn, action, low_watermark)

    monkeypatch.setattr(Ending, "end_on_partition", surprising)

    async def scenario() -> None:
        store, volume = MemoryStore(CLOCK), PosixVolume(tmp_path)
        async with (
            standalone(volume, store, settings) as (broker, _),
            Client(broker.service_url) as client,
        ):
            output = await client.create_producer("persistent://public/default/out")
            reader = await client.create_reader("persistent://public/default/out", EARLIEST)
            async with client.transaction() as txn:
                await output.send(b"committed", txn=txn)
            assert (await reader.receive(ANSWER_S)).value == b"committed"
            assert (surprises, broker.ready) == ([], True)
        await store.close()

    await scenario()


async def test_a_planned_end_meets_a_coordinator_that_is_beginning(tmp_path: Path) -> None:
    """Waiting clients get an answer or are disconnected. It leaves no claim and no lease, and
    nothing wakes it any more."""

    store = MemoryStore(CLOCK)
    async with (
        standalone(PosixVolume(tmp_path), store) as (broker, coordinator),
        connected(broker) as peer,
    ):
        peer.write(requests.new_txn(peer.next_request(), 0, 60_000))
        while coordinator._waking is None:
            await asyncio.sleep(0)
        await coordinator.stop()
        assert await store.get(keys.coordinator_claim(0)) is None
        answer = await asyncio.wait_for(peer.receive(), ANSWER_S)
        assert int(answer[0].error.error) == int(WireCode.SERVICE_NOT_READY)
        peer.write(requests.new_txn(peer.next_request(), 0, 60_000))
        refused = (await peer.answer(api.BaseCommand.Type.ERROR)).error
        assert "starts or stops" in refused.message
        await broker.stop()
    await store.close()


async def test_it_fails_with_its_broker_and_is_there_from_the_start_of_the_next_incarnation(
    tmp_path: Path,
) -> None:
    """The number is lost under an open transaction: the broker ends and says why; the next one
    has the transaction before it serves anybody."""

    store, volume = MemoryStore(CLOCK), PosixVolume(tmp_path)
    coordinator, make = standalone_at(volume, store)
    broker = make()
    async with incarnation(coordinator, broker):
        assert coordinator.exposition() == b""
        async with connected(broker) as peer:
            first = await peer.begin()
            assert coordinator._life is not None
            coordinator._life.fail("its number was taken over")
            assert (
                await asyncio.wait_for(broker.ended(), ANSWER_S)
                == "transaction coordinator: its number was taken over"
            )
            assert await peer.closed_by_broker()
    broker = make()
    async with incarnation(coordinator, broker):
        assert b"magnetar_coordinator_transactions 1.0" in coordinator.exposition()
        by_pulsars_name = b'pulsar_txn_active_count{cluster="standalone",coordinator_id="0"} 1.0'
        assert by_pulsars_name in coordinator.exposition()
        async with connected(broker) as peer:
            assert not (await peer.end(first)).HasField("error")
            assert await peer.begin() > first
    await volume.close()
    await store.close()
