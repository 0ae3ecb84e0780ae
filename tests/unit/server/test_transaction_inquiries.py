"""Transactions end to end in one process, a real coordinator and a real broker, and those whose coordinator does not know of the topic."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from magnetar.metadata.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from tests.unit.server.acknowledging import ack_in, pending_of, subscription_of
from tests.unit.server.brokers import CLOCK, TOPIC, open_peer, running_broker
from tests.unit.server.coordinators import running_coordinator, transaction_peer
from tests.unit.server.deliveries import publish, received
from tests.unit.server.test_transactional_publishing import entries_of, stored
from tests.unit.server.transacting import send_in


def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(tmp_path: Path) -> None:
    """The answer to END_TXN comes after what was published can be read."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        async with (
            running_broker(tmp_path / "b", store=store) as broker,
            running_coordinator(tmp_path / "b", store) as coordinator,
            transaction_peer(coordinator) as client,
            open_peer(broker) as peer,
        ):
            await peer.lookup()
            await peer.produce()
            for number in range(6):
                txn = await client.begin(TOPIC)
                await send_in(peer, txn, b"x", number)
                action = Action.COMMIT if number % 2 else Action.ABORT
                assert not (await client.end(txn, action)).HasField("error")
            assert await stored(broker) == entries_of((b"x", 1), (b"x", 3), (b"x", 5))
        await store.close()

    asyncio.run(scenario())


def test_whoever_was_not_registered_asks_and_hears_of_the_end_or_that_there_is_none(tmp_path: Path) -> None:
    """An open one gets the topic as a participant; what nobody remembers, or a client invented, is aborted; the absent are waited for."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        quick: dict[str, Any] = {"txn_inquire_s": 0.05, "maintenance_s": 3600.0}
        async with running_broker(tmp_path / "b", store=store, **quick) as broker, open_peer(broker) as peer:
            await peer.lookup()
            await peer.produce()
            host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
            inquiries = broker.maintenance.inquiries
            invented = TxnId(7, 0)
            await send_in(peer, invented, b"invented", 0)
            assert host.transactions is not None
            buffer = host.transactions.buffer

            async def until_ended(txn: TxnId) -> None:
                async with asyncio.timeout(30):
                    while buffer.is_open(txn):
                        await asyncio.sleep(0.06)
                        await inquiries.look()

            await until_ended(invented)
            async with running_coordinator(tmp_path / "b", store):
                pass
            unknown = TxnId(0, 1_000_000)
            await send_in(peer, unknown, b"unknown", 1)
            await asyncio.sleep(0.06)
            await inquiries.look()
            assert buffer.is_open(unknown), "its coordinator is away"
            async with running_coordinator(tmp_path / "b", store) as coordinator, transaction_peer(coordinator) as client:
                txn = await client.begin()
                await send_in(peer, txn, b"open", 2)
                await until_ended(unknown)
                await asyncio.sleep(0.06)
                await inquiries.look()
                assert buffer.is_open(txn)
                assert not (await client.end(txn)).HasField("error")
                assert await stored(broker) == entries_of((b"open", 2))
        await store.close()

    asyncio.run(scenario())


def test_subscriptions_ask_as_well(tmp_path: Path) -> None:
    """What a forgotten transaction holds is delivered again; one that is open gets the subscription as a participant, and commits there."""

    async def scenario() -> None:
        store = MemoryStore(CLOCK)
        quick: dict[str, Any] = {"txn_inquire_s": 0.05, "maintenance_s": 3600.0}
        async with (
            running_broker(tmp_path / "b", store=store, **quick) as broker,
            open_peer(broker) as peer,
            running_coordinator(tmp_path / "b", store) as coordinator,
            transaction_peer(coordinator) as client,
        ):
            await peer.lookup()
            await peer.produce()
            ids = [await publish(peer) for _ in range(2)]
            await peer.subscribe()
            assert await received(peer, 2) == [0, 1]
            unknown, txn = TxnId(0, 1_000_000), await client.begin()
            assert (await ack_in(peer, unknown, ids[0]), await ack_in(peer, txn, ids[1])) == ((0, ""), (0, ""))
            pending, inquiries = await pending_of(broker), broker.maintenance.inquiries
            await inquiries.look()
            assert [*pending.open_transactions()] == [unknown, txn], "not yet"
            async with asyncio.timeout(30):
                while pending.is_open(unknown):
                    await asyncio.sleep(0.06)
                    await inquiries.look()
            assert await received(peer, 1) == [0]
            assert [*pending.open_transactions()] == [txn]
            assert not (await client.end(txn)).HasField("error")
            host = await subscription_of(broker)
            assert [*host.core.cursor.unacknowledged(0, 2)] == [(0, 1)]
        await store.close()

    asyncio.run(scenario())
