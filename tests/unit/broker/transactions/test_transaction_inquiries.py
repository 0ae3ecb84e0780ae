"""Transactions end to end in one process, a real coordinator and a real broker, and those whose
coordinator does not know of the topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from magnetar.broker.incarnation import Broker
from magnetar.broker.upkeep import inquiring
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import RULES, TopicName
from magnetar.topics import topic
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from tests.support.acknowledging import (
    DONE,
    Lives,
    ack_in,
    host_of,
    pending_of,
    play_lives,
    subscription_of,
)
from tests.support.brokers import CLOCK, TOPIC, Peer, open_peer, running_broker
from tests.support.coordinators import TransactionPeer, running_coordinator, transaction_peer
from tests.support.deliveries import publish, received
from tests.support.published_topics import entries_of, stored
from tests.support.transacting import send_in

OTHER = "persistent://public/default/other"
QUICK: dict[str, Any] = {"txn_inquire_s": 0.05, "maintenance_s": 3600.0}
"""Transactions are old at once, and asked about by the test alone."""


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[tuple[Broker, Peer, TransactionPeer]]:
    """A broker with a producer on TOPIC, and a coordinator, with a client of each."""
    store = MemoryStore(CLOCK)
    async with (
        running_broker(directory, store=store, **QUICK) as broker,
        open_peer(broker) as peer,
        running_coordinator(directory, store) as coordinator,
        transaction_peer(coordinator) as client,
    ):
        await peer.lookup()
        await peer.produce()
        yield broker, peer, client
    await store.close()


async def test_a_committed_transaction_is_read_and_an_aborted_one_is_not(tmp_path: Path) -> None:
    """The answer to END_TXN comes after what was published can be read."""

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


async def test_a_topic_that_was_not_registered_asks_and_learns_of_the_end_or_that_there_is_none(
    tmp_path: Path,
) -> None:
    """An open one gets the topic as a participant; what a client invented is void; the absent
    are waited for."""

    store = MemoryStore(CLOCK)
    async with (
        running_broker(tmp_path / "b", store=store, **QUICK) as broker,
        open_peer(broker) as peer,
    ):
        await peer.lookup()
        await peer.produce()
        host = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
        inquiries = broker.maintenance.inquiries
        invented = TxnId(7, 0)
        await send_in(peer, invented, b"invented", 0)
        assert host.transactions is not None
        buffer = host.transactions.buffer

        async def until_ended(txn: TxnId) -> None:
            async with asyncio.timeout(120):
                while buffer.is_open(txn):
                    await asyncio.sleep(0.06)
                    await inquiries.look()

        await until_ended(invented)
        assert buffer.fences.outcome(invented) is None
        async with running_coordinator(tmp_path / "b", store):
            pass
        unknown = TxnId(0, 1_000_000)
        await send_in(peer, unknown, b"unknown", 1)
        await asyncio.sleep(0.06)
        await inquiries.look()
        assert buffer.is_open(unknown), "its coordinator is unavailable"
        async with (
            running_coordinator(tmp_path / "b", store) as coordinator,
            transaction_peer(coordinator) as client,
        ):
            txn = await client.begin()
            await send_in(peer, txn, b"open", 2)
            await until_ended(unknown)
            await asyncio.sleep(0.06)
            await inquiries.look()
            assert buffer.is_open(txn)
            assert not (await client.end(txn)).HasField("error")
            assert await stored(broker) == entries_of((b"open", 2))
    await store.close()


async def test_subscriptions_ask_as_well(tmp_path: Path) -> None:
    """What is held for one that has not begun is delivered again; one that is open gets the
    subscription as a participant, and commits there."""

    async with stage(tmp_path / "b") as (broker, peer, client):
        ids = [await publish(peer) for _ in range(2)]
        await peer.subscribe()
        assert await received(peer, 2) == [0, 1]
        unknown, txn = TxnId(0, 1_000_000), await client.begin()
        assert (await ack_in(peer, unknown, ids[0]), await ack_in(peer, txn, ids[1])) == (
            (0, ""),
            (0, ""),
        )
        pending, inquiries = await pending_of(broker), broker.maintenance.inquiries
        await inquiries.look()
        assert [*pending.open_transactions()] == [unknown, txn], "not yet"
        async with asyncio.timeout(120):
            while pending.is_open(unknown):
                await asyncio.sleep(0.06)
                await inquiries.look()
        assert await received(peer, 1) == [0]
        assert [*pending.open_transactions()] == [txn]
        assert not (await client.end(txn)).HasField("error")
        host = await subscription_of(broker)
        assert [*host.core.cursor.unacknowledged(0, 2)] == [(0, 1)]


async def until_closed(broker: Broker, *txns: TxnId) -> None:
    """Ask until none of them is open on the topic or its subscription, durably."""
    used = (await host_of(broker)).transactions
    assert used is not None
    async with asyncio.timeout(120):
        while any(
            used.buffer.is_open(txn) or any(part.is_open(txn) for part in used.pending.values())
            for txn in txns
        ):
            await asyncio.sleep(0.06)
            await broker.maintenance.inquiries.look()
        await broker.context.log.barrier()


def test_an_id_that_was_named_before_it_was_given_is_as_good_as_any(tmp_path: Path) -> None:
    """What a peer sent and acknowledged under ids that have not begun is void, without a fence:
    transactions begin under them, and commit what is theirs; a broker that dies then reads the same
    from its log.
    """

    async def script(lives: Lives) -> None:
        async with (
            running_coordinator(tmp_path / "b", lives.store) as coordinator,
            transaction_peer(coordinator) as client,
        ):
            async with lives.life() as (broker, peer):
                await peer.produce()
                ids = [await publish(peer) for _ in range(2)]
                await peer.subscribe()
                assert await received(peer, 2) == [0, 1]
                for number in (0, 1):
                    await send_in(peer, TxnId(0, number), b"early", number)
                    assert await ack_in(peer, TxnId(0, number), ids[number]) == DONE
                await until_closed(broker, TxnId(0, 0), TxnId(0, 1))
                used = (await host_of(broker)).transactions
                assert used is not None
                assert (used.buffer.fences.to_state(), used.pending["s"].fences.to_state()) == (
                    (),
                    (),
                )
                assert used.buffer.to_state().translations == ()
                assert len(used.sidecar) == 0
                assert sorted(await received(peer, 2)) == [0, 1], "given back"
                txns = [await client.begin(TOPIC) for _ in range(2)]
                assert txns == [TxnId(0, 0), TxnId(0, 1)]
                await send_in(peer, txns[0], b"own", 0)
                assert await ack_in(peer, txns[0], ids[0]) == DONE
                assert not (await client.acknowledge(txns[0], TOPIC, "s")).HasField("error")
                assert not (await client.end(txns[0])).HasField("error")
                await send_in(peer, txns[1], b"own too", 1)
            async with lives.life() as (broker, peer):
                assert not (await client.end(txns[1])).HasField("error")
                assert (await stored(broker))[2:] == entries_of((b"own", 0), (b"own too", 1))
                host = await subscription_of(broker)
                assert [*host.core.cursor.unacknowledged(0, 2)] == [(1, 2)]

    play_lives(tmp_path / "b", script, **QUICK)


async def test_a_transaction_that_begins_while_it_is_asked_about_keeps_what_it_sends(
    tmp_path: Path,
) -> None:
    """The answer "it has not begun" is on its way when it begins, and sends: a repetition even,
    of what another client sent in its name before."""

    async with stage(tmp_path / "b") as (broker, peer, client):
        await send_in(peer, TxnId(0, 0), b"x", 0)
        inquiries, ask = broker.maintenance.inquiries, broker.maintenance.inquiries._ask

        async def ask_and_begin(*about: Any) -> None:
            try:
                await ask(*about)
            finally:
                assert await client.begin(TOPIC) == TxnId(0, 0)
                await send_in(peer, TxnId(0, 0), b"x", 0)

        inquiries._ask = ask_and_begin  # type: ignore[method-assign, assignment]
        await inquiries.look()  # from now on it counts
        await asyncio.sleep(0.06)
        await inquiries.look()
        assert not (await client.end(TxnId(0, 0))).HasField("error")
        assert await stored(broker) == entries_of((b"x", 0))


async def test_a_question_that_is_refused_keeps_no_other_from_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that takes no more participants and a subscription of earlier times, whose
    name a coordinator does not take: both come first."""
    monkeypatch.setattr(inquiring, "ASKED_AT_ONCE_MAX", 1)
    monkeypatch.setattr(
        topic, "RULES", {"subscription": replace(RULES["subscription"], length_max=2_000)}
    )

    store, long_name = MemoryStore(CLOCK), "s" * 2_000
    async with (
        running_broker(tmp_path / "b", store=store, **QUICK) as broker,
        open_peer(broker) as peer,
        running_coordinator(tmp_path / "b", store, transaction_participants_max=1) as coordinator,
        transaction_peer(coordinator) as client,
    ):
        await peer.lookup()
        await peer.produce()
        ids = [await publish(peer) for _ in range(2)]
        await peer.subscribe(subscription=long_name)
        await peer.subscribe(2, subscription="t")
        full, invented = await client.begin(OTHER), TxnId(0, 1_000_000)
        await send_in(peer, full, b"too many", 0)
        await send_in(peer, invented, b"invented", 1)
        assert await ack_in(peer, full, ids[0]) == DONE
        assert await ack_in(peer, invented, ids[0], consumer_id=2) == DONE
        used = (await host_of(broker)).transactions
        assert used is not None
        await until_closed(broker, invented)
        assert used.buffer.is_open(full)
        assert used.pending[long_name].is_open(full)
    await store.close()


async def test_a_round_is_bounded_and_every_topic_has_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic full of invented ids does not keep another one's from being asked after; the log
    has a line per topic, not one per id."""
    monkeypatch.setattr(inquiring, "ASKED_PER_ROUND_MAX", 8)
    monkeypatch.setattr(inquiring, "ROUND_S_MAX", 3600.0)

    async with stage(tmp_path / "b") as (broker, peer, _):
        for number in range(20):
            await send_in(peer, TxnId(0, 2 * number), b"x", number)
        await peer.subscribe()
        used = (await host_of(broker)).transactions
        assert used is not None
        await peer.lookup(OTHER)
        await peer.produce(2, topic=OTHER, producer_name="other")
        for number in range(3):
            await send_in(peer, TxnId(0, 100 + 2 * number), b"x", number, 2)
        other = (await host_of(broker, OTHER)).transactions
        assert other is not None
        await broker.maintenance.inquiries.look()  # from now on it counts
        await asyncio.sleep(0.06)
        with capture_logs() as lines:
            await broker.maintenance.inquiries.look()
        logged = [(line["topic"], line["unbegun"]) for line in lines if "unbegun" in line]
        assert sorted(logged) == [(OTHER, 3), (TOPIC, 5)]
        await broker.context.log.barrier()
        assert len([*used.buffer.open_transactions()]) == 15
        assert not other.buffer.has_open
        for left in (7, 0):
            await broker.maintenance.inquiries.look()
            await broker.context.log.barrier()
            assert len([*used.buffer.open_transactions()]) == left
