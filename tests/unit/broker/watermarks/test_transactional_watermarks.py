"""Watermarks beside transactions: holds, assertions that take effect with a commit, and what a
crash may leave of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnetar.broker.incarnation import Broker
from magnetar.broker.watermarks.topic_watermarks import ServedWatermarks
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar.wire import requests
from tests.support.asserting import asserted, enable, holds, last_watermark, sent, settles
from tests.support.broker_pair import LOADED, pair
from tests.support.brokers import TOPIC, Peer, Type, open_peer
from tests.support.deliveries import play
from tests.support.owner_changes import WAYS, change_owner
from tests.support.transacting import ended, send_in

T1, T2 = TxnId(0, 1), TxnId(0, 2)


async def begin(broker: Broker, peer: Peer) -> None:
    """Two producers that have asserted, and a subscription that has acknowledged everything."""
    await peer.lookup()
    await enable(broker)
    await peer.produce(1, producer_name="p")
    await peer.produce(2, producer_name="q")
    await holds(peer, 10)
    await holds(peer, 10, producer_id=2)
    await peer.subscribe(watermarks=True)
    await settles(peer, 10)


async def finish(broker: Broker, txn: TxnId, *, commit: bool) -> None:
    """The coordinator says how the transaction ends, by a connection of its own."""
    async with open_peer(broker) as coordinator:
        await ended(coordinator, txn, commit=commit)


async def clear(peer: Peer, count: int) -> None:
    """Receive and acknowledge so many messages."""
    peer.write(requests.flow(1, count))
    ids = []
    while len(ids) < count:
        answer, _ = await peer.receive()
        if answer.type == Type.MESSAGE:
            ids.append(answer.message.message_id)
    peer.write(requests.ack(1, ids, request_id=500))
    while (await peer.answer()).type != Type.ACK_RESPONSE:
        pass


@pytest.mark.parametrize("commit", [True, False])
def test_what_was_asserted_before_holds_until_the_end(tmp_path: Path, commit: bool) -> None:
    """A later assertion outside does not count before the messages of the transaction are
    acknowledged, or void."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await send_in(peer, T1, b"in", 0)
        await holds(peer, 30)
        await holds(peer, 30, producer_id=2)
        assert await last_watermark(peer) == 10
        await finish(broker, T1, commit=commit)
        if commit:
            assert await last_watermark(peer) == 10
            await clear(peer, 1)
        await settles(peer, 30)

    play(tmp_path, script)


@pytest.mark.parametrize("commit", [True, False])
def test_an_assertion_in_a_transaction_takes_effect_with_its_commit(
    tmp_path: Path, commit: bool
) -> None:
    """The last one of each producer, whether the transaction has messages here or not; an abort
    drops it."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await holds(peer, 15, txn=T1)
        await holds(peer, 20, txn=T1)
        await holds(peer, 50, producer_id=2)
        assert await last_watermark(peer) == 10
        await finish(broker, T1, commit=commit)
        await settles(peer, 20 if commit else 10)
        answer = await asserted(peer, 60, txn=T1)
        assert "has ended" in answer.error.message

    play(tmp_path, script)


def test_transactions_before_the_first_assertion_are_known(tmp_path: Path) -> None:
    """A topic gets watermarks while transactions are open: those of producers that assert then
    stop the watermark, others do not."""

    async def script(broker: Broker, peer: Peer) -> None:
        await enable(broker)
        await peer.produce(1, producer_name="p")
        await peer.produce(2, producer_name="q")
        await peer.produce(3, producer_name="r")
        await send_in(peer, T1, b"in", 0, producer_id=1)
        await send_in(peer, T2, b"in", 0, producer_id=2)
        await peer.subscribe(watermarks=True)
        await holds(peer, 7, producer_id=3)
        await settles(peer, 7)
        await holds(peer, 20, producer_id=1)
        await holds(peer, 9, producer_id=3)
        assert await last_watermark(peer) == 7
        await finish(broker, T1, commit=False)
        await settles(peer, 9)
        await finish(broker, T2, commit=False)

    play(tmp_path, script)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("lost", [False, True])
async def test_a_new_owner_knows_what_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, lost: bool
) -> None:
    """Open transactions hold there as before. Where a crash has lost the record of an end, behind
    that of the marker, the new owner writes it."""
    async with pair(tmp_path, **LOADED) as cluster:
        async with open_peer(cluster.first) as peer:
            await begin(cluster.first, peer)
            await send_in(peer, T1, b"in", 0)
            await send_in(peer, T2, b"in", 1)
            await holds(peer, 40, txn=T1)
            await holds(peer, 30)
            await holds(peer, 90, producer_id=2)
            with monkeypatch.context() as patch:
                if lost:
                    patch.setattr(ServedWatermarks, "ended", lambda *_, **__: None)
                await finish(cluster.first, T1, commit=True)
            await clear(peer, 1)
            await change_owner(cluster, how)
        await cluster.second.ownership.owner_of(TopicName.parse(TOPIC))
        async with open_peer(cluster.second) as peer:
            await peer.lookup()
            await peer.subscribe(watermarks=True)
            assert await last_watermark(peer) == 10
            await finish(cluster.second, T2, commit=False)
            await settles(peer, 40)


def test_acknowledgements_of_a_transaction_count_with_its_commit(tmp_path: Path) -> None:
    """What it holds is not acknowledged; then the watermark moves without another ACK."""

    async def script(broker: Broker, peer: Peer) -> None:
        await begin(broker, peer)
        await sent(peer, 12, 0)
        await holds(peer, 25)
        await holds(peer, 25, producer_id=2)
        peer.write(requests.flow(1, 1))
        while (found := await peer.receive())[0].type != Type.MESSAGE:
            pass
        peer.write(requests.ack(1, [found[0].message.message_id], request_id=500, txn=T1))
        while (await peer.answer()).type != Type.ACK_RESPONSE:
            pass
        assert await last_watermark(peer) == 10
        peer.write(
            requests.end_txn_on_subscription(
                peer.next_request(), T1, TOPIC, "s", commit=True, low_watermark=-1
            )
        )
        while (await peer.answer()).type != Type.END_TXN_ON_SUBSCRIPTION_RESPONSE:
            pass
        await settles(peer, 25)

    play(tmp_path, script)
