"""Open and committed transactions when their bundle changes hands: moved, taken over, split, in
every state of their files."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.metadata.store import TxnResult
from magnetar.names import TopicName
from magnetar.ownership.splits import range_equally_divide
from magnetar.wire import requests
from tests.support.broker_pair import LOADED, pair
from tests.support.brokers import TOPIC, Type, entry, open_peer
from tests.support.owner_changes import (
    WAYS,
    A,
    B,
    C,
    begin,
    change_owner,
    has_left,
)
from tests.support.polling import until
from tests.support.published_topics import entries_of, stored
from tests.support.transacting import ended, refused_send, send_in

SEEN = entries_of((b"plain", 5), (b"0", 0), (b"0", 3))
OF_B = entries_of((b"1", 1), (b"1", 4))


async def finish(broker: Broker) -> None:
    """At a new owner: what was committed is there, nothing else; what is repeated is; B goes on
    and commits."""
    async with open_peer(broker) as peer:
        await peer.lookup()
        created = await peer.produce(producer_name="p")
        assert created.last_sequence_id == 4
        assert await stored(broker) == SEEN
        assert "ABORT" in (await refused_send(peer, C, b"2", 9)).message
        before = await send_in(peer, B, b"1", 4)  # a repetition: the place of the first
        assert before[1] == 4
        later = await send_in(peer, B, b"1", 10)
        assert later[0] > before[0]
        assert later[1] == 0
        await ended(peer, B, commit=True)
        await ended(peer, B, commit=True)
        await ended(peer, A, commit=True)
        assert await stored(broker) == SEEN + OF_B + entries_of((b"1", 10))


@pytest.mark.parametrize("how", WAYS)
async def test_a_new_owner_goes_on_where_the_old_one_was(tmp_path: Path, how: str) -> None:
    """The log, a checkpoint and the log since, sealed files and open ones."""

    async with pair(tmp_path, **LOADED) as cluster:
        async with open_peer(cluster.first) as peer:
            await begin(peer)
            await change_owner(cluster, how)
        taken = await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        assert taken.broker == "second"
        await finish(cluster.second)


async def test_moves_back_and_forth_keep_an_open_transaction(tmp_path: Path) -> None:
    """Each owner adds to it; the last one commits all of it, in the order of the sends, read
    from files of both."""

    async with pair(tmp_path, **LOADED) as cluster:
        name = str(await cluster.bundle())
        for number in range(5):
            owner = await cluster.owner()
            async with open_peer(owner) as peer:
                await peer.produce(producer_name="p")
                await send_in(peer, A, b"a", number)
                if number % 2:
                    await owner.service.roll(TopicName.parse(TOPIC))
                await owner.ownership.move(name, "", "test")
            await until(partial(has_left, owner, name))
        owner = await cluster.owner()
        async with open_peer(owner) as peer:
            await peer.lookup()
            await ended(peer, A, commit=True)
        assert await stored(owner) == [entry(b"a", number) for number in range(5)]


async def test_sends_of_a_transaction_wait_for_the_end_of_a_split(tmp_path: Path) -> None:
    """They get receipts of the child's sidecar, and commit with what was sent to the parent; a
    new owner finds all of it."""

    async with pair(tmp_path) as cluster, open_peer(cluster.first) as peer:
        await begin(peer)
        bundle = await cluster.bundle()
        inner, frozen = cluster.network.transact, asyncio.Event()

        async def late(compares: Any, operations: Any) -> TxnResult:
            if len(operations) > 3:  # the split's own
                frozen.set()
                await asyncio.sleep(0.2)
            return await inner(compares, operations)

        cluster.network.transact = late  # type: ignore[method-assign]
        splitting = asyncio.create_task(
            cluster.first.ownership.split(bundle, range_equally_divide(bundle))
        )
        await frozen.wait()
        peer.write(requests.send(1, 10, entry(b"1", 10), txn=B))
        peer.write(requests.send(1, 11, entry(b"plain", 11)))
        receipts = [(await peer.answer(Type.SEND_RECEIPT)).send_receipt for _ in range(2)]
        assert [receipt.sequence_id for receipt in receipts] == [10, 11]
        assert [receipt.message_id.ledgerId % 2 for receipt in receipts] == [0, 1]
        await splitting
        await ended(peer, B, commit=True)
        wanted = SEEN + entries_of((b"plain", 11)) + OF_B + entries_of((b"1", 10))
        assert await stored(cluster.first) == wanted
        cluster.first.fail("crash")
        await cluster.first.close()
        await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        assert await stored(cluster.second) == wanted


async def test_a_topic_that_is_created_again_knows_nothing_of_its_former_transactions(
    tmp_path: Path,
) -> None:
    """Its sidecar has a ledger id of its own, live and at the next owner."""

    async with pair(tmp_path) as cluster, open_peer(cluster.first) as peer:
        await peer.lookup()
        await peer.produce(producer_name="p")
        before = [await send_in(peer, A, b"old", number) for number in range(3)]
        owned = cluster.first.ownership.owned[str(await cluster.bundle())]
        await owned.delete_topic(TopicName.parse(TOPIC))
        await peer.answer(Type.CLOSE_PRODUCER)
        await peer.produce(2, producer_name="p")
        ledger, number = await send_in(peer, A, b"new", 0, 2)
        assert (ledger > before[-1][0], number) == (True, 0)
        await cluster.first.ownership.checkpointer.checkpoint(str(await cluster.bundle()))
        await send_in(peer, A, b"new", 1, 2)
        cluster.first.fail("crash")
        await cluster.first.close()
        await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        async with open_peer(cluster.second) as other:
            await other.lookup()
            await ended(other, A, commit=True)
        assert await stored(cluster.second) == entries_of((b"new", 0), (b"new", 1))
