"""Asking coordinators about transactions that are open for long.

Owns: `Inquiries`: a transaction that its client never registered here, or lost the answer of doing so, is ended by nobody: its coordinator is asked.
Imports: client (connections), metadata, wire, server siblings. Source: DESIGN 8 (participant watchdog).
The question is ADD_PARTITION_TO_TXN or ADD_SUBSCRIPTION_TO_TXN: an open transaction has the topic or subscription as a participant then, if it had
not, and its end will be told here.
Invariants: only "not found" aborts: a coordinator forgets a transaction when all its participants have carried out the end, and this one has not;
of one that is ending, or has ended a short time ago, it is waited for that; whatever cannot be asked now is asked later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import structlog

from magnetar.client.connection import Credentials
from magnetar.client.failures import failure_of
from magnetar.client.pool import Pool
from magnetar.errors import InvalidTxnStatus, MagnetarError, TransactionCoordinatorNotFound, TransactionNotFound
from magnetar.metadata import keys
from magnetar.metadata.records import CoordinatorClaimRecord
from magnetar.security.authorization import INTERNAL_METHOD
from magnetar.server.context import BrokerContext
from magnetar.server.coordinator.discovery import FIRST
from magnetar.server.ownership import Ownership
from magnetar.server.participant.committing import abort_forgotten
from magnetar.server.participant.subscription_transactions import SubscriptionTransactions
from magnetar.server.topic_host import TopicHost
from magnetar.transactions.ids import TxnId
from magnetar.wire import pulsar_api_pb2 as api
from magnetar.wire import requests

log = structlog.get_logger(__name__)


class Inquiries:
    """Looks at the topics served here."""

    def __init__(self, context: BrokerContext, ownership: Ownership) -> None:
        self._context, self._ownership = context, ownership
        self._pool: Pool | None = None

    async def close(self) -> None:
        """Close what connections there are."""
        if self._pool is not None:
            await self._pool.close()

    async def look(self) -> None:
        """Ask about what has become due; a coordinator that does not answer once is asked nothing more this time."""
        deaf: set[int] = set()
        for topic in list(self._topics()):
            for subscription, txn in self._due(topic):
                if txn.most not in deaf and not await self._inquire(topic, subscription, txn):
                    deaf.add(txn.most)

    def _topics(self) -> Iterator[TopicHost]:
        for owned in self._ownership.owned.values():
            yield from (topic for topic in owned.topics.values() if topic.transactions is not None and not topic.frozen)

    def _due(self, topic: TopicHost) -> list[tuple[str, TxnId]]:
        """Transactions of the topic ("") and of its subscriptions."""
        used, now_ms = topic.transactions, self._context.clock.wall_ms()
        if used is None:
            return []
        return [
            *(("", txn) for txn in used.buffer.to_inquire(now_ms)),
            *((name, txn) for name, pending in used.pending.items() for txn in pending.to_inquire(now_ms)),
        ]

    async def _inquire(self, topic: TopicHost, subscription: str, txn: TxnId) -> bool:
        """Whether its coordinator has answered."""
        about = {"topic": str(topic.name), "subscription": subscription, "txn": str(txn)}
        try:
            async with asyncio.timeout(self._context.settings.transaction_participant_timeout_s):
                await self._ask(str(topic.name), subscription, txn)
            log.info("transaction.open_for_long", **about)
        except TransactionNotFound:
            log.warning("transaction.forgotten_aborted", **about)
            self._abort(topic, subscription, txn)
        except InvalidTxnStatus as error:
            log.info("transaction.open_for_long", **about, answer=str(error))
        except (MagnetarError, OSError) as error:
            log.warning("transaction.inquiry_failed", **about, error=str(error))
            return False
        return True

    @staticmethod
    def _abort(topic: TopicHost, subscription: str, txn: TxnId) -> None:
        if not subscription:
            abort_forgotten(topic, txn)
        elif (host := topic.subscriptions.get(subscription)) is not None:
            SubscriptionTransactions(host).abort_forgotten(txn)

    async def _ask(self, topic: str, subscription: str, txn: TxnId) -> None:
        """Raises what its coordinator says, TransactionCoordinatorNotFound if there is none now."""
        claim = await self._holder(txn.most)
        door = self._context.tls
        url = claim.service_url_tls if door is not None and claim.service_url_tls else claim.service_url
        pool = self._pool
        if pool is None:
            timeout_s = self._context.settings.transaction_participant_timeout_s
            pool = self._pool = Pool(self._context.network, url, self._credentials(), timeout_s)
        pool.begin_at(url, door.to_peers() if door is not None else None)
        connection, number = await pool.get(pool.assigned(url, False)), pool.next_request_id()
        body: api.CommandAddPartitionToTxnResponse | api.CommandAddSubscriptionToTxnResponse
        if subscription:
            answer = await connection.request(number, requests.add_subscription_to_txn(number, txn, topic, subscription))
            body = answer.add_subscription_to_txn_response
        else:
            answer = await connection.request(number, requests.add_partitions_to_txn(number, txn, [topic]))
            body = answer.add_partition_to_txn_response
        if body.HasField("error"):
            raise failure_of(body.error, body.message)

    async def _holder(self, tcid: int) -> CoordinatorClaimRecord:
        """Who answers for a number: its holder, or the first coordinator.

        Raises TransactionNotFound for a number that nobody has ever held: its transactions are a client's invention.
        """
        store = self._context.store
        item = await store.get(keys.coordinator_claim(tcid))
        if item is None:
            if await store.get(keys.coordinator(tcid)) is None:
                raise TransactionNotFound(f"there has never been a transaction coordinator {tcid}")
            item = await store.get(keys.coordinator_claim(FIRST))
        if item is not None:
            return CoordinatorClaimRecord.decode(item.value)
        raise TransactionCoordinatorNotFound(f"transaction coordinator {tcid} is not there, nor the first one")

    def _credentials(self) -> Credentials:
        security = self._context.security
        if security is None:
            return Credentials()
        return Credentials(INTERNAL_METHOD, lambda: security.internal_token().encode())
