"""A bundle of the default namespace that tests split, and its two halves.

Owns: the names of the bundles and of topics in them; a peer that is attached to several topics, and
one message that it publishes and receives; a bundle's record and the namespace's boundaries as the
store has them. Imports: the brokers of the tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.broker.incarnation import Broker
from magnetar.metadata import keys
from magnetar.metadata.records import BundleRecord, NamespaceRecord
from magnetar.names import BundleName, NamespaceName, TopicName
from magnetar.wire import requests
from tests.support.brokers import Peer, Type, entry, open_peer

NAMESPACE = NamespaceName("public", "default")
WHOLE = BundleName.parse(str(NAMESPACE) + "/0x80000000_0xc0000000")
LEFT, RIGHT = (
    BundleName(NAMESPACE, 0x80000000, 0xA0000000),
    BundleName(NAMESPACE, 0xA0000000, 0xC0000000),
)
MIDDLE = (0xA0000000,)


def topics_in(bundle: BundleName, count: int) -> list[str]:
    """Names that hash into a bundle."""
    found = (f"persistent://public/default/t-{number}" for number in range(100_000))
    return [name for name in found if bundle.contains(TopicName.parse(name))][:count]


LEFT_TOPIC, RIGHT_TOPIC = topics_in(LEFT, 1)[0], topics_in(RIGHT, 1)[0]


@asynccontextmanager
async def attached(broker: Broker, *topics: str) -> AsyncIterator[Peer]:
    """A peer with a producer and a consumer (of the same number, from 1) on each topic."""
    async with open_peer(broker) as peer:
        for number, topic in enumerate(topics, 1):
            await peer.lookup(topic)
            await peer.produce(number, topic)
            assert (await peer.subscribe(number, topic)).type == Type.SUCCESS
            peer.write(requests.flow(number, 1000))
        yield peer


async def round_trip(peer: Peer, number: int, sequence: int) -> tuple[int, int]:
    """Publish and receive one message by producer and consumer `number`; its id."""
    peer.write(requests.send(number, sequence, entry(b"x", sequence)))
    found: dict[int, tuple[int, int]] = {}
    while len(found) < 2:
        command, _ = await peer.receive()
        assert command.type in (Type.SEND_RECEIPT, Type.MESSAGE), command
        body = command.send_receipt if command.type == Type.SEND_RECEIPT else command.message
        found[command.type] = (body.message_id.ledgerId, body.message_id.entryId)
    assert found[Type.SEND_RECEIPT] == found[Type.MESSAGE]
    return found[Type.MESSAGE]


async def store_of(broker: Broker, bundle: BundleName) -> BundleRecord | None:
    item = await broker.context.store.get(keys.bundle(bundle))
    return BundleRecord.decode(item.value) if item is not None else None


async def boundaries(broker: Broker) -> tuple[int, ...]:
    item = await broker.context.store.get(keys.namespace(NAMESPACE))
    assert item is not None
    return NamespaceRecord.decode(item.value).boundaries
