"""Listeners of transaction coordinators: a client outside is led to an address that it can
reach, and to no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dev.ports import free_port
from magnetar.broker.incarnation import Broker
from magnetar.coordinator.incarnation import Coordinator
from magnetar.errors import WireCode
from magnetar.hosting.advertised import options_of
from magnetar.metadata import keys
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.metadata.records import CoordinatorClaimRecord, CoordinatorSetRecord, ListenerAddress
from magnetar.names import COORDINATOR_TOPIC
from tests.support.brokers import CLOCK, HOST, Peer, open_peer, running_broker
from tests.support.coordinators import running_coordinator
from tests.support.replaced_files import replace_file
from tests.support.rest import rest_over

pytestmark = pytest.mark.slow

FIRST = str(COORDINATOR_TOPIC.with_partition(0))
PATH = "/lookup/v2/topic/persistent/pulsar/system/transaction_coordinator_assign-partition-0"
OUTSIDE = "pulsar://coordinator-0.example:6650"
WAIT_S = 120.0


@asynccontextmanager
async def stage(
    directory: Path, file: Path, port: int
) -> AsyncIterator[tuple[Broker, Coordinator, MemoryStore, int]]:
    """A broker with a listener `external` on a port of its own (which comes last), and a
    coordinator with one whose address the file has."""
    store, admission = MemoryStore(CLOCK), free_port()
    await store.put(keys.COORDINATOR_SET, CoordinatorSetRecord(1, 0, "shop/tx").encode())
    of_broker = options_of(
        "external:pulsar://broker-0.example:6650", f"external:pulsar://{HOST}:{admission}", "", ""
    )
    of_coordinator = options_of("", f"external:pulsar://{HOST}:{port}", str(file), "")
    try:
        async with (
            running_broker(directory, store=store, listeners=of_broker) as broker,
            running_coordinator(
                directory, store, listeners=of_coordinator, listeners_check_s=0.05
            ) as coordinator,
            asyncio.timeout(WAIT_S),
        ):
            yield broker, coordinator, store, admission
    finally:
        await store.close()


async def lookup(peer: Peer, listener: str = "") -> str:
    """Where a LOOKUP finds the coordinator; a refusal as `code text`."""
    answer = (
        await peer.ask("lookup", topic=FIRST, advertised_listener_name=listener)
    ).lookup_response
    return answer.brokerServiceUrl or f"{answer.error} {answer.message}"


async def test_a_client_outside_finds_a_coordinator_by_its_own_listener(tmp_path: Path) -> None:
    """By name, or by the port that it came in on; everybody else by the internal address; the
    port that its address stands for is open."""

    file, port = tmp_path / "listeners", free_port()
    file.write_text(f"external:{OUTSIDE}\n")
    async with (
        stage(tmp_path / "volume", file, port) as (broker, coordinator, _, admission),
        rest_over(tmp_path, broker) as rest,
    ):
        internal = f"pulsar://{HOST}:{coordinator.port}"
        async with open_peer(broker) as peer:
            assert await lookup(peer, "external") == OUTSIDE
            assert await lookup(peer, "internal") == internal
            refused = await lookup(peer, "named")
            assert refused.startswith(
                f"{int(WireCode.SERVICE_NOT_READY)} transaction coordinator tx-coordinator-0 "
                "does not have named"
            )
        async with open_peer(broker, port=admission) as peer:
            assert await lookup(peer) == OUTSIDE
        assert (await rest.get(f"{PATH}?listenerName=external"))["brokerUrl"] == OUTSIDE
        assert (await rest.get(PATH))["brokerUrl"] == internal
        _, writer = await asyncio.open_connection(HOST, port)
        writer.close()


async def test_an_address_that_comes_late_reaches_clients_without_a_restart(tmp_path: Path) -> None:
    """Until then they are asked to try again; the number keeps its holder, and the record has
    the message that clients get."""

    file, port = tmp_path / "listeners", free_port()
    async with stage(tmp_path / "volume", file, port) as (
        broker,
        coordinator,
        store,
        admission,
    ):
        async with open_peer(broker, port=admission) as peer:
            refused = await lookup(peer)
            assert refused.startswith(
                f"{int(WireCode.SERVICE_NOT_READY)} transaction coordinator tx-coordinator-0 "
                "does not have"
            )
            for url in (OUTSIDE, "pulsar://198.51.100.7:6650"):
                replace_file(file, f"external:{url}\n")
                while await lookup(peer) != url:
                    await asyncio.sleep(0.02)
                item = await store.get(keys.coordinator_claim(0))
                assert item is not None
                record = CoordinatorClaimRecord.decode(item.value)
                assert record.listeners == {"external": ListenerAddress(url)}
                assert record.incarnation == coordinator.incarnation
        await coordinator.stop()
        assert await store.get(keys.coordinator_claim(0)) is None, (
            "it was bound to the lease again, and given back"
        )
