"""A producer that sends chunks again is answered with where they lie, and the topic has each of
them once.

Without deduplication: it is consumers that cannot put a message together whose first chunks come
twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import (
    CLOCK,
    TOPIC,
    Peer,
    Type,
    connected_peer,
    entry,
    open_peer,
    running_broker,
)
from tests.support.deliveries import play, received
from tests.support.transacting import ended, signed

A, B = TxnId(0, 0), TxnId(0, 1)
COUNT = 3


def chunk(number: int, sequence: int = 0, payload: bytes = b"part") -> bytes:
    """One of three chunks of the message `sequence`."""
    sizes = {"num_chunks_from_msg": COUNT, "total_chunk_msg_size": COUNT * len(payload)}
    return entry(payload, sequence, uuid=f"p-{sequence}", chunk_id=number, **sizes)


async def send(peer: Peer, *chunks: tuple[int, int], payload: bytes = b"part") -> list[int]:
    """Chunks (sequence, number) in one write; the entry ids of their receipts, in order."""
    peer.write(
        b"".join(
            requests.send(1, sequence, chunk(number, sequence, payload))
            for sequence, number in chunks
        )
    )
    receipts = [(await peer.answer(Type.SEND_RECEIPT)).send_receipt for _ in chunks]
    assert [receipt.sequence_id for receipt in receipts] == [sequence for sequence, _ in chunks]
    return [signed(receipt.message_id)[1] for receipt in receipts]


async def stored(broker: Broker) -> int:
    topic = await broker.service.open_topic(TopicName.parse(TOPIC), create=False)
    return topic.core.ledgers.end


@pytest.mark.parametrize(
    "again",
    [[(0, 0), (0, 1), (0, 2)], [(0, 1), (0, 2)]],
    ids=["from the first on", "from the second on"],
)
def test_chunks_that_come_again_on_another_connection_are_stored_once(
    tmp_path: Path, again: list[tuple[int, int]]
) -> None:
    """The first two were stored when the connection ended; the consumer gets each chunk once, in
    order."""

    async def script(broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        await peer.subscribe()
        assert await send(peer, (0, 0), (0, 1)) == [0, 1]
        async with open_peer(broker) as later:
            await later.produce(producer_name="p2")
            assert await send(later, (0, 0)) == [2], "another producer's is another one"
        await peer.ask("close_producer", producer_id=1)
        await peer.produce(producer_name="p", epoch=1)
        assert (await send(peer, *again))[:-1] == [number for _, number in again[:-1]]
        assert await stored(broker) == 4
        assert await received(peer, 4) == [0, 1, 2, 3]

    play(tmp_path, script)


def test_a_producer_of_the_same_name_that_begins_again_is_no_repetition(tmp_path: Path) -> None:
    """It numbers from 0 again, and sends something else: that is stored."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        assert await send(peer, (0, 0), (0, 1)) == [0, 1]
        assert await send(peer, (0, 0), (0, 1), (0, 2), payload=b"else") == [2, 3, 4]

    play(tmp_path, script)


def test_chunks_among_others_keep_the_order_of_their_answers(tmp_path: Path) -> None:
    """Ordinary messages before and behind a repetition in one read; chunks of two messages; with
    deduplication and without."""

    async def script(_broker: Broker, peer: Peer) -> None:
        await peer.produce(producer_name="p")
        assert await send(peer, (0, 0), (0, 1), (0, 2), (1, 0)) == [0, 1, 2, 3]
        peer.write(
            requests.send(1, 2, entry(b"a", 2))
            + requests.send(1, 1, chunk(0, 1))
            + requests.send(1, 3, entry(b"b", 3))
            + requests.send(1, 0, chunk(2, 0))
            + requests.send(1, 1, chunk(1, 1))
        )
        receipts = [(await peer.answer(Type.SEND_RECEIPT)).send_receipt for _ in range(5)]
        assert [(receipt.sequence_id, receipt.message_id.entryId) for receipt in receipts] == [
            (2, 4),
            (1, 3),
            (3, 5),
            (0, 2),
            (1, 6),
        ]

    play(tmp_path, script)


@pytest.mark.parametrize("way", ["log", "checkpoint", "checkpoint and log"])
async def test_the_next_incarnation_knows_what_is_stored(tmp_path: Path, way: str) -> None:
    """By the log, by a checkpoint, and by both: chunks of a killed broker's time are answered
    with their places."""

    store = MemoryStore(CLOCK)
    async with connected_peer(tmp_path, store=store) as (broker, peer):
        await peer.produce(producer_name="p")
        assert await send(peer, (0, 0)) == [0]
        if way != "log":
            (owned,) = broker.ownership.owned
            await broker.ownership.checkpointer.checkpoint(owned)
        if way != "checkpoint":
            assert await send(peer, (0, 1)) == [1]
        broker.fail("killed")
    async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce(producer_name="p", epoch=1)
        peer.write(b"".join(requests.send(1, 0, chunk(number)) for number in range(COUNT)))
        receipts = [
            (await peer.answer(Type.SEND_RECEIPT)).send_receipt.message_id for _ in range(COUNT)
        ]
        old = {
            (receipt.ledgerId, receipt.entryId)
            for receipt in receipts[: 1 if way == "checkpoint" else 2]
        }
        assert len({ledger for ledger, _ in old}) == 1
        assert receipts[-1].ledgerId > receipts[0].ledgerId
        assert await stored(broker) == COUNT
        await peer.subscribe()
        peer.write(requests.flow(1, 10))
        found = [
            api.MessageMetadata.FromString((await peer.message())[1][10:][:size])
            for size in [len(_metadata(n)) for n in range(COUNT)]
        ]
        assert [metadata.chunk_id for metadata in found] == [0, 1, 2]
    await store.close()


def _metadata(number: int) -> bytes:
    made = chunk(number)
    return made[10 : 10 + int.from_bytes(made[6:10], "big")]


async def test_chunks_in_transactions_are_stored_once(tmp_path: Path) -> None:
    """Repeated in an open one and after its commit they are answered with a place; after an
    abort they are refused."""

    store = MemoryStore(CLOCK)
    async with connected_peer(tmp_path, store=store) as (broker, peer):
        await peer.produce(producer_name="p")
        for txn in (A, B):
            peer.write(
                b"".join(
                    requests.send(1, txn.least, chunk(number, txn.least), txn=txn)
                    for number in (0, 1, 0, 1, 2)
                )
            )
            places = [
                signed((await peer.answer(Type.SEND_RECEIPT)).send_receipt.message_id)
                for _ in range(5)
            ]
            assert places[:2] == places[2:4]
            assert len(set(places)) == COUNT
        broker.fail("killed")
    async with running_broker(tmp_path, store=store) as broker, open_peer(broker) as peer:
        await peer.lookup()
        await peer.produce(producer_name="p", epoch=1)
        peer.write(requests.send(1, 0, chunk(1), txn=A))
        assert signed((await peer.answer(Type.SEND_RECEIPT)).send_receipt.message_id)[0] % 2 == 0
        await ended(peer, A, commit=True)
        await ended(peer, B, commit=False)
        assert await stored(broker) == COUNT
        peer.write(requests.send(1, 0, chunk(0), txn=A))
        await peer.answer(Type.SEND_RECEIPT)
        assert "ABORTED" in (await refused_chunk(peer, B)).message
        assert await stored(broker) == COUNT
    await store.close()


async def refused_chunk(peer: Peer, txn: TxnId) -> api.CommandSendError:
    peer.write(requests.send(1, txn.least, chunk(0, txn.least), txn=txn))
    return (await peer.answer(Type.SEND_ERROR)).send_error
