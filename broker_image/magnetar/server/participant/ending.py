"""How transactions end here.

Owns: END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION, by which their coordinator tells, and the look-up of who takes part. Imports: wire,
names, errors, server siblings. Source: facts on transactions 2.1; DESIGN 8.
Invariants: an answer leaves when the end is durable; that a topic or subscription does not exist is said only by the owner of its bundle, while it
serves it: its coordinator takes that for the end.
"""

from __future__ import annotations

from magnetar.errors import ServiceNotReady, SubscriptionNotFound, TopicNotFound
from magnetar.names import TopicName
from magnetar.server.connection import Connection
from magnetar.server.coordinator.identity import txn_of
from magnetar.server.ownership import Ownership
from magnetar.server.participant.committing import end_transaction
from magnetar.server.participant.subscription_transactions import SubscriptionTransactions
from magnetar.server.subscription_host import SubscriptionHost
from magnetar.server.topic_host import TopicHost
from magnetar.transactions.records import Action
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import transactions


class Ending:
    """Answers what coordinators tell participants."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    async def on_partition(self, connection: Connection, request: api.CommandEndTxnOnPartition) -> None:
        """END_TXN_ON_PARTITION. Raises NotAllowed, TopicNotFound, InvalidTxnStatus, ServiceNotReady, StorageError."""
        txn = txn_of(request)
        topic = await self._topic(TopicName.parse(request.topic))
        await end_transaction(topic, txn, Action(request.txn_action), _floor(request))
        connection.queue(transactions.end_on_partition_response(request.request_id, txn))

    async def on_subscription(self, connection: Connection, request: api.CommandEndTxnOnSubscription) -> None:
        """END_TXN_ON_SUBSCRIPTION. Raises NotAllowed, TopicNotFound, SubscriptionNotFound, InvalidTxnStatus, ServiceNotReady, StorageError."""
        txn = txn_of(request)
        host = await self._subscription(TopicName.parse(request.subscription.topic), request.subscription.subscription)
        await SubscriptionTransactions(host).end(txn, Action(request.txn_action), _floor(request))
        connection.queue(transactions.end_on_subscription_response(request.request_id, txn))

    async def _subscription(self, topic: TopicName, name: str) -> SubscriptionHost:
        found = (await self._topic(topic)).subscriptions.get(name)
        if found is None or not found.core.durable:
            raise SubscriptionNotFound(
                f"subscription {name!r} does not exist on topic {topic}: nothing of the transaction is there"
            )
        return found

    async def _topic(self, name: TopicName) -> TopicHost:
        """A topic that is served here. Raises TopicNotFound, ServiceNotReady."""
        owned = await self._ownership.serving_topic(name)
        found = owned.held(name)
        if (found is not None and found.frozen) or not owned.serving:
            raise ServiceNotReady(f"topic {name} is being unloaded; look it up again")
        if found is None or not name.persistent:
            raise TopicNotFound(f"topic {name} does not exist: nothing of the transaction is there")
        return found


def _floor(request: api.CommandEndTxnOnPartition | api.CommandEndTxnOnSubscription) -> int:
    """Every transaction of the coordinator with a smaller number has ended everywhere."""
    low_watermark = request.txnid_least_bits_of_low_watermark
    known = request.HasField("txnid_least_bits_of_low_watermark") and low_watermark != _NONE
    return low_watermark + 1 if known else 0


_NONE = (1 << 64) - 1
"""-1 as the wire has it: nothing has ended."""
