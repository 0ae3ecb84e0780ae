"""The end of transactions at their participants.

Owns: END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION, which coordinators send, the look-up of
participants, and `OwnParticipants`, by which the coordinator of a standalone server does without
these commands. Imports: wire, names, errors. Invariants: an answer leaves when the end is durable;
only the owner of a bundle answers that a topic or subscription does not exist, while it serves the
bundle, and after it has checked its claim and flushed its log since the request: the coordinator
takes that answer for the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from magnetar.broker.bundles.ownership import Ownership
from magnetar.broker.connections.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.topics.subscription_host import SubscriptionHost
from magnetar.broker.topics.topic_host import TopicHost
from magnetar.broker.transactions.committing import end_transaction
from magnetar.broker.transactions.subscription_transactions import SubscriptionTransactions
from magnetar.coordinator.identity import txn_of
from magnetar.errors import (
    MagnetarError,
    NotOwner,
    ServiceNotReady,
    SubscriptionNotFound,
    TopicNotFound,
)
from magnetar.names import TopicName
from magnetar.transactions.ids import TxnId
from magnetar.transactions.records import Action
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import transactions

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Ending:
    """Answers END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership = context, ownership

    async def on_partition(
        self, connection: Connection, request: api.CommandEndTxnOnPartition
    ) -> None:
        """END_TXN_ON_PARTITION. Raises NotAllowed, TopicNotFound, InvalidTxnStatus,
        ServiceNotReady, StorageError."""
        txn = txn_of(request)
        await self.end_on_partition(
            request.topic, txn, Action(request.txn_action), _low_watermark(request)
        )
        connection.queue(transactions.end_on_partition_response(request.request_id, txn))

    async def on_subscription(
        self, connection: Connection, request: api.CommandEndTxnOnSubscription
    ) -> None:
        """END_TXN_ON_SUBSCRIPTION. Raises NotAllowed, TopicNotFound, SubscriptionNotFound,
        InvalidTxnStatus, ServiceNotReady, StorageError."""
        txn, name = txn_of(request), request.subscription
        await self.end_on_subscription(
            name.topic, name.subscription, txn, Action(request.txn_action), _low_watermark(request)
        )
        connection.queue(transactions.end_on_subscription_response(request.request_id, txn))

    async def end_on_partition(
        self, topic: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        """As `Participants.end_on_partition`, of a topic that is served here. Raises NotOwner if
        it is not, TopicNotFound, InvalidTxnStatus, ServiceNotReady, StorageError."""
        name = TopicName.parse(topic)
        await end_transaction(
            await self._certain(lambda: self._topic(name)), txn, action, low_watermark + 1
        )

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        """As `Participants.end_on_subscription`, of a topic that is served here. Raises as
        above, SubscriptionNotFound."""
        name = TopicName.parse(topic)
        host = await self._certain(lambda: self._subscription(name, subscription))
        await SubscriptionTransactions(host).end(txn, action, low_watermark + 1)

    async def _certain(self, look: Callable[[], Awaitable[T]]) -> T:
        """What `look` finds. Raises TopicNotFound and SubscriptionNotFound only if that is durable
        and this owner's claim was found after the request.

        What is not in memory may be at an unknown successor, or reappear with a crash before its
        deletion is durable. Raises StorageError, and as `look`.
        """
        try:
            return await look()
        except (TopicNotFound, SubscriptionNotFound):
            self._context.check_log()
            await self._context.log.barrier()
        return await look()

    async def _subscription(self, topic: TopicName, name: str) -> SubscriptionHost:
        found = (await self._topic(topic)).subscriptions.get(name)
        if found is None or not found.core.durable:
            raise SubscriptionNotFound(
                f"subscription {name!r} does not exist on topic {topic}: nothing of the "
                "transaction is there"
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


class OwnParticipants:
    """The `Participants` of a standalone server, which is the owner of every topic: no
    connection is made."""

    def __init__(self, ending: Ending, ownership: Ownership, timeout_s: float) -> None:
        """An attempt ends after `timeout_s`, as one over a connection does."""
        self._ending, self._ownership, self._timeout_s = ending, ownership, timeout_s

    async def end_on_partition(
        self, topic: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        await self._attempt(
            topic, lambda: self._ending.end_on_partition(topic, txn, action, low_watermark)
        )

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, action: Action, low_watermark: int
    ) -> None:
        await self._attempt(
            topic,
            lambda: self._ending.end_on_subscription(
                topic, subscription, txn, action, low_watermark
            ),
        )

    async def _attempt(self, topic: str, end: Callable[[], Awaitable[None]]) -> None:
        """An unforeseen error ends this attempt, as it would end a connection: neither the
        coordinator nor the server."""
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    await end()
                except (
                    NotOwner
                ):  # no client has looked it up since its last owner left: a look-up assigns it
                    await self._ownership.owner_of(TopicName.parse(topic))
                    await end()
        except MagnetarError:
            raise
        except TimeoutError as error:
            raise ServiceNotReady(f"{topic} gave no answer in {self._timeout_s:g} s") from error
        except Exception as error:
            log.error("transaction.end_failed", topic=topic, exc_info=error)
            raise ServiceNotReady(f"topic {topic}: {error!r}; it is tried again") from error


def _low_watermark(request: api.CommandEndTxnOnPartition | api.CommandEndTxnOnSubscription) -> int:
    """Every transaction of the coordinator up to this number has ended everywhere; -1 = none."""
    low_watermark = request.txnid_least_bits_of_low_watermark
    known = request.HasField("txnid_least_bits_of_low_watermark") and low_watermark != _NONE
    return low_watermark if known else -1


_NONE = (1 << 64) - 1
"""-1 as the wire has it."""
