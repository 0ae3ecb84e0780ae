"""What tests of acknowledgements in transactions ask of a broker, frame by frame: ACKs with a
TxnID, their ends, incarnations of one broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.errors import WireCode
from magnetar.metadata.backends.memory import MemoryStore
from magnetar.names import TopicName
from magnetar.storage.volumes.volume import Volume
from magnetar.transactions.ids import TxnId
from magnetar.transactions.topic.pending_acks import PendingAcks
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests
from tests.support.brokers import CLOCK, SETTINGS, TOPIC, Node, Peer, Type, open_peer, volume_in
from tests.support.deliveries import publish

A, B, C = TxnId(0, 0), TxnId(0, 1), TxnId(3, 0)
CONFLICT, ENDED = int(WireCode.TRANSACTION_CONFLICT), int(WireCode.INVALID_TXN_STATUS)
DONE = (0, "")


async def published(peer: Peer, count: int, **metadata: int) -> list[api.MessageIdData]:
    """Ids of so many messages of a new producer."""
    await peer.produce()
    return [await publish(peer, **metadata) for _ in range(count)]


async def ack_in(
    peer: Peer,
    txn: TxnId,
    *identifiers: api.MessageIdData,
    cumulative: bool = False,
    consumer_id: int = 1,
) -> tuple[int, str]:
    """An ACK in a transaction; (error, message) of its answer, (0, "") for a success."""
    number = peer.next_request()
    peer.write(
        requests.ack(consumer_id, identifiers, cumulative=cumulative, request_id=number, txn=txn)
    )
    answer = (await peer.answer(Type.ACK_RESPONSE)).ack_response
    assert (answer.consumer_id, answer.request_id) == (consumer_id, number)
    return int(answer.error), answer.message


async def end(
    broker: Broker,
    txn: TxnId,
    *,
    commit: bool,
    floor: int = 0,
    subscription: str = "s",
    topic: str = TOPIC,
) -> tuple[int, str]:
    """END_TXN_ON_SUBSCRIPTION as a coordinator sends it; (error, message) of its answer."""
    async with open_peer(broker) as coordinator:
        watermark = floor - 1
        coordinator.write(
            requests.end_txn_on_subscription(
                5, txn, topic, subscription, commit=commit, low_watermark=watermark
            )
        )
        answer = await coordinator.answer(Type.END_TXN_ON_SUBSCRIPTION_RESPONSE)
    body = answer.end_txn_on_subscription_response
    assert (body.request_id, body.txnid_most_bits, body.txnid_least_bits) == (5, *txn), body
    return int(body.error), body.message


def some_of(identifier: api.MessageIdData, left: int, size: int | None = None) -> api.MessageIdData:
    """The id of a batch of which the messages whose bit is 0 in `left` are acknowledged."""
    found = api.MessageIdData(
        ledgerId=identifier.ledgerId, entryId=identifier.entryId, ack_set=[left]
    )
    if size is not None:
        found.batch_size = size
    return found


async def host_of(broker: Broker, topic: str = TOPIC) -> TopicHost:
    return await broker.service.open_topic(TopicName.parse(topic), create=False)


async def pending_of(broker: Broker, name: str = "s") -> PendingAcks:
    """What transactions hold on a subscription."""
    used = (await host_of(broker)).transactions
    assert used is not None
    return used.pending[name]


async def subscription_of(broker: Broker, name: str = "s", topic: str = TOPIC) -> SubscriptionHost:
    return (await host_of(broker, topic)).subscriptions[name]


@dataclass
class Lives:
    """One broker after the other over one store and volume."""

    node: Node
    store: MemoryStore
    volume: Volume

    @asynccontextmanager
    async def life(self) -> AsyncIterator[tuple[Broker, Peer]]:
        """A broker that has TOPIC's bundle, and a peer; it ends as a process that is killed
        does: nothing is transferred."""
        broker = await self.node.start()
        try:
            async with open_peer(broker) as peer:
                await peer.lookup()
                yield broker, peer
        finally:
            await broker.close()


def play_lives(
    directory: Path, script: Callable[[Lives], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    async def main() -> None:
        async with volume_in(directory) as volume:
            store = MemoryStore(CLOCK)
            try:
                await script(
                    Lives(
                        Node(store, volume, "broker-0", replace(SETTINGS, **settings)),
                        store,
                        volume,
                    )
                )
            finally:
                await store.close()

    asyncio.run(main())
