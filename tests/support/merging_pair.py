"""Two brokers of one process, the first of which can merge two halves of a bundle.

Owns: `halves`, which starts them with a client on a topic of each half; `meddling`, which hands a
test the transactions that end merges; how many messages a topic's owner serves. Imports: the pair
of brokers, the bundle that tests split.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from magnetar.broker.incarnation import Broker
from magnetar.metadata.store import TxnResult
from magnetar.names import TopicName
from tests.support.broker_pair import Pair, pair
from tests.support.brokers import STILL, Peer
from tests.support.polling import until
from tests.support.split_bundles import LEFT_TOPIC, MIDDLE, RIGHT_TOPIC, WHOLE, attached

COMMIT_OPERATIONS = 7
"""Of the transaction that ends a merge: three records of bundles, three pointers, the namespace."""
Transact = Callable[[Any, Any], Awaitable[TxnResult]]


@asynccontextmanager
async def halves(directory: Path, **settings: Any) -> AsyncIterator[tuple[Pair, Peer]]:
    """Two brokers; the first has both halves of WHOLE, with a client on a topic of each."""
    async with pair(directory, balance=STILL, **settings) as cluster:
        first = cluster.first
        await first.ownership.resolve(WHOLE)
        owner = first if str(WHOLE) in first.ownership.owned else cluster.second
        if owner is not first:
            await until(lambda: str(WHOLE) in owner.ownership.owned)
            await owner.ownership.move(str(WHOLE), first.incarnation, "test")
        await until(lambda: str(WHOLE) in first.ownership.owned)
        await first.ownership.split(WHOLE, MIDDLE)
        async with attached(first, LEFT_TOPIC, RIGHT_TOPIC) as peer:
            yield cluster, peer


def meddling(cluster: Pair, meddle: Callable[[Transact, Any, Any], Awaitable[TxnResult]]) -> None:
    """Have `meddle` make the transactions that end merges."""
    inner = cluster.network.transact

    async def transact(compares: Any, operations: Any) -> TxnResult:
        if len(operations) >= COMMIT_OPERATIONS:
            return await meddle(inner, compares, operations)
        return await inner(compares, operations)

    cluster.network.transact = transact  # type: ignore[method-assign]


async def stored(broker: Broker, topic: str) -> int:
    """How many messages the owner of a topic serves."""
    host = await broker.service.open_topic(TopicName.parse(topic), create=False)
    return host.core.ledgers.end
