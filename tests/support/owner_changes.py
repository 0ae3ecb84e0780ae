"""Three transactions at a broker whose bundle then gets another owner.

Owns: the transactions (one committed, one open, one aborted), and how the bundle leaves its
broker. Imports: the pair of brokers, their transactions.
"""

from __future__ import annotations

from magnetar.broker.incarnation import Broker
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from tests.support.broker_pair import Pair
from tests.support.brokers import TOPIC, Peer
from tests.support.transacting import ended, send_in

A, B, C = TxnId(0, 0), TxnId(0, 1), TxnId(0, 2)


def has_left(owner: Broker, bundle: str) -> bool:
    return bundle not in owner.ownership.owned


async def begin(peer: Peer) -> None:
    """Three transactions: A is committed behind a plain message, B waits, C is aborted."""
    await peer.lookup()
    await peer.produce(producer_name="p")
    for number, txn in enumerate((A, B, C, A, B)):
        await send_in(peer, txn, b"%d" % txn.least, number)
    await peer.send(b"plain", 5)
    await ended(peer, A, commit=True)
    await ended(peer, C, commit=False)


WAYS = ("moved", "checkpointed and moved", "taken over", "rolled and taken over")
"""How a bundle gets another owner."""


async def change_owner(cluster: Pair, how: str) -> None:
    """The bundle of TOPIC leaves the first broker in one of the `WAYS`."""
    name = str(await cluster.bundle())
    if how == "rolled and taken over":
        await cluster.first.service.roll(TopicName.parse(TOPIC))
    if how == "checkpointed and moved":
        await cluster.first.ownership.checkpointer.checkpoint(name)
    if how.endswith("moved"):
        await cluster.first.ownership.move(name, cluster.second.incarnation, "test")
    else:
        cluster.first.fail("crash")
        await cluster.first.close()
