"""An administrator names messages of transactions by their receipts."""

from __future__ import annotations

from pathlib import Path

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from tests.support.brokers import TOPIC, connected_peer
from tests.support.rest import Process
from tests.support.transacting import ended, send_in

NAME = TopicName.parse(TOPIC)


async def test_subscriptions_go_to_what_a_receipt_has_become(tmp_path: Path) -> None:
    """Created at it, moved to it or behind it, and expired up to it; a receipt of an aborted
    transaction is the place where the message would have been."""

    async with connected_peer(tmp_path) as (broker, peer):
        port = BrokerAdministration(Process(tmp_path, broker)).subscriptions
        await peer.produce()
        await peer.send(b"first", 0)
        committed = [await send_in(peer, TxnId(0, 0), b"a", number) for number in (1, 2, 3)]
        aborted = await send_in(peer, TxnId(0, 1), b"b", 4)
        await ended(peer, TxnId(0, 0), commit=True)
        await ended(peer, TxnId(0, 1), commit=False)
        await peer.send(b"last", 5)

        await port.create_subscription(NAME, "s", committed[1], {})
        topic = await broker.service.open_topic(NAME, create=False)

        def backlog() -> int:
            return topic.subscriptions["s"].core.backlog

        assert backlog() == 3
        for receipt, excluded, left in (
            (committed[0], False, 4),
            (committed[0], True, 3),
            (committed[2], False, 2),
            (aborted, False, 4),
        ):
            await port.reset_to_position(NAME, "s", receipt, excluded)
            assert backlog() == left, (receipt, excluded)
        for receipt, left in ((aborted, 4), (committed[1], 2), (committed[2], 1)):
            await port.expire_to(NAME, "s", receipt)
            assert backlog() == left, receipt
