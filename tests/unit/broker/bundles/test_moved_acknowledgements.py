"""Acknowledgements around a planned move, frame by frame: what reached the old owner, or the new
one before it answered, is not delivered again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from magnetar.broker.bundles import bundle as bundle_module
from magnetar.broker.incarnation import Broker
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.broker_pair import Pair, pair
from tests.support.brokers import STILL, Peer, Type, command_frame, entry, open_peer
from tests.support.polling import until

SETTINGS: dict[str, Any] = {"balance": STILL, "failover_delay_ms": 0}
MESSAGES = 40
"""So many ids make an ACK that is taken as a span; a few are parsed one by one."""
KINDS = pytest.mark.parametrize(
    "kind", [0, 1, 2, 3], ids=["Exclusive", "Shared", "Failover", "Key_Shared"]
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """Moves wait until the peers of these tests have answered; how long they do otherwise."""
    usual = bundle_module.LATE_ACKNOWLEDGEMENTS_S
    monkeypatch.setattr(bundle_module, "LATE_ACKNOWLEDGEMENTS_S", 600.0)
    return usual


async def published(peer: Peer) -> list[api.MessageIdData]:
    """Ids of messages that were sent by a producer and delivered to consumer 1 of the same peer."""
    for number in range(MESSAGES):
        peer.write(requests.send(1, number, entry(b"m", number)))
    peer.write(requests.flow(1, MESSAGES))
    identifiers: list[api.MessageIdData] = []
    receipts = 0
    while receipts < MESSAGES or len(identifiers) < MESSAGES:
        command, _ = await peer.receive()
        receipts += command.type == Type.SEND_RECEIPT
        if command.type == Type.MESSAGE:
            identifiers.append(command.message.message_id)
    return identifiers


def acknowledged(identifiers: list[api.MessageIdData]) -> bytes:
    return command_frame(
        "ack", consumer_id=1, ack_type=0, message_id=[plain(found) for found in identifiers]
    )


def plain(found: api.MessageIdData) -> api.MessageIdData:
    return api.MessageIdData(ledgerId=found.ledgerId, entryId=found.entryId)


async def until_asked_to_leave(peer: Peer) -> None:
    """Up to and with CLOSE_CONSUMER and the PING behind it, which is not answered yet."""
    while (await peer.answer()).type != Type.PING:
        pass


async def delivered(broker: Broker, kind: int, early: bytes = b"") -> list[int]:
    """Entry ids that the new owner delivers before a message that is published now; `early` is
    sent right behind SUBSCRIBE."""
    async with open_peer(broker) as peer, open_peer(broker) as other:
        request = peer.next_request()
        peer.write(
            command_frame(
                "subscribe",
                request_id=request,
                topic="persistent://public/default/t",
                subscription="s",
                subType=kind,
                consumer_id=1,
                consumer_name="c1",
                initialPosition=1,
            )
        )
        peer.write(early)
        while (await peer.answer()).type != Type.SUCCESS:
            pass
        await other.produce(producer_name="last")
        last = await other.send(b"last")
        peer.write(requests.flow(1, MESSAGES + 1))
        found: list[tuple[int, int]] = []
        while last not in found:
            answer = await peer.answer()
            if answer.type == Type.MESSAGE:
                identifier = answer.message.message_id
                found.append((identifier.ledgerId, identifier.entryId))
        assert await peer.is_quiet(), "nothing comes twice"
        assert found[-1] == last
        return [entry_id for _, entry_id in found[:-1]]


async def move(cluster: Pair) -> asyncio.Task[None]:
    name = str(await cluster.bundle())
    return asyncio.create_task(
        cluster.first.ownership.move(name, cluster.second.incarnation, "test")
    )


async def asked_to_leave(
    cluster: Pair, peer: Peer, kind: int
) -> tuple[list[api.MessageIdData], asyncio.Task[None]]:
    """A consumer that was sent MESSAGES and CLOSE_CONSUMER: their ids, and the move that waits
    for its answer."""
    await peer.produce()
    await peer.subscribe(subType=kind)
    identifiers = await published(peer)
    moving = await move(cluster)
    await until_asked_to_leave(peer)
    return identifiers, moving


@KINDS
async def test_an_acknowledgement_that_crosses_close_consumer_is_taken(
    tmp_path: Path, kind: int
) -> None:
    """Sent before CLOSE_CONSUMER was read, some in a span and some one by one: none of it is
    delivered by the new owner, all else is."""

    async with pair(tmp_path, **SETTINGS) as cluster, open_peer(cluster.first) as peer:
        identifiers, moving = await asked_to_leave(cluster, peer, kind)
        peer.write(acknowledged(identifiers[:30]))
        peer.write(acknowledged([identifiers[31], identifiers[33]]))
        peer.write(command_frame("pong"))
        await moving
        expected = [30, 32, *range(34, MESSAGES)]
        assert sorted(await delivered(cluster.second, kind)) == expected


async def test_publishing_goes_on_while_consumers_leave(tmp_path: Path) -> None:
    """A receipt comes between CLOSE_CONSUMER and the answer to the PING behind it."""

    async with (
        pair(tmp_path, **SETTINGS) as cluster,
        open_peer(cluster.first) as peer,
        open_peer(cluster.first) as other,
    ):
        await peer.subscribe()
        await other.produce()
        moving = await move(cluster)
        await until_asked_to_leave(peer)
        await other.send(b"in between")
        peer.write(command_frame("pong"))
        await moving
        assert await delivered(cluster.second, 0) == [0]


async def test_a_peer_that_reads_nothing_holds_no_move_up(
    tmp_path: Path, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one that has left."""

    async with pair(tmp_path, **SETTINGS) as cluster:
        async with open_peer(cluster.first) as leaving:
            await leaving.subscribe()
            moving = await move(cluster)
            await until_asked_to_leave(leaving)
        async with asyncio.timeout(120):
            await moving
    monkeypatch.setattr(bundle_module, "LATE_ACKNOWLEDGEMENTS_S", patience)
    async with pair(tmp_path / "again", **SETTINGS) as cluster, open_peer(cluster.first) as silent:
        await silent.subscribe()
        async with asyncio.timeout(120):
            await (await move(cluster))


@KINDS
@pytest.mark.parametrize("count", [2, 30], ids=["few", "span"])
async def test_an_acknowledgement_before_the_new_owner_has_answered_is_taken(
    tmp_path: Path, kind: int, count: int
) -> None:
    """It comes behind SUBSCRIBE, as from a client that groups acknowledgements; what it names is
    not delivered."""

    async with pair(tmp_path, **SETTINGS) as cluster, open_peer(cluster.first) as peer:
        identifiers, moving = await asked_to_leave(cluster, peer, kind)
        getting = asyncio.create_task(
            delivered(cluster.second, kind, acknowledged(identifiers[:count]))
        )
        peer.write(command_frame("pong"))
        await moving
        assert sorted(await getting) == list(range(count, MESSAGES))
        await until(lambda: not cluster.first.ownership.owned)
